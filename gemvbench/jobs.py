"""From what was asked for to what workers build: labels, kernel text, roofs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gemvbench.arm import Arm
from gemvbench.cases import Case
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import specialize
from gemvbench.ladder import Declined, HostArm, Specialization
from gemvbench.messages import AttentionJob, HostJob, Job, KernelJob
from gemvbench.source import assemble, kernel_text

Outcome = Specialization | HostArm | Declined


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An arm with the label it has in this run, the device it runs on, and its outcomes."""

    label: str
    arm: str
    device: str
    case: str
    outcome: Outcome


def choose(arm: Arm, label: str, case: Case, device: DeviceInfo) -> tuple[Choice, Job | None]:
    """The specialisation of an arm for a case, and the job that builds it, if any."""
    outcome = specialize(arm, case, device)
    choice = Choice(label=label, arm=arm.name, device=device.id, case=case.id, outcome=outcome)
    return choice, make_job(outcome, label, device)


def make_job(outcome: Outcome, label: str, device: DeviceInfo) -> Job | None:
    if isinstance(outcome, Declined):
        return None
    if isinstance(outcome, HostArm):
        return HostJob(arm=label, device=device.id, family=outcome.family)
    if outcome.ranges is not None:
        return AttentionJob(
            arm=label,
            device=device.id,
            text=kernel_text(outcome),
            stages=outcome.stages,
            ranges=outcome.ranges,
            quantised_q=bool(outcome.constant("QUANT_Q")),
        )
    return KernelJob(
        arm=label,
        device=device.id,
        text=kernel_text(outcome),
        entry=outcome.entry,
        workgroups=outcome.workgroups,
        workgroup_size=outcome.workgroup_size,
        accumulate=int(outcome.constant("ACC") or 32),
        extra=outcome.extra,
    )


def rows1_sibling(arm: Arm, case: Case, device: DeviceInfo) -> KernelJob | None:
    """The same arm with one row per workgroup, where it has more: outputs must be identical."""
    if arm.family != "row" or arm.value("rows") == 1:
        return None
    job = make_job(specialize(arm.replace_axis("rows", 1), case, device), "rows1", device)
    return job if isinstance(job, KernelJob) else None


def roof_jobs(device: DeviceInfo) -> tuple[KernelJob, ...]:
    """Read kernels to choose the roof from: chunks for a CPU, coalesced tiles for a GPU."""
    if device.is_cpu:
        shapes = [("read_chunked", v, u, i, 1) for v, u, i in _CPU_ROOFS]
    else:
        groups = device.compute_units
        shapes = [("read_strided", v, u, groups * g, b) for v, u, g, b in _GPU_ROOFS]
    return tuple(
        KernelJob(
            arm=f"{device.id}:{entry}+vec{vec}+unroll{unroll}+groups{groups}+block{block}",
            device=device.id,
            text=assemble(
                device.kernel_file("roof"),
                (("VEC", vec), ("UNROLL", unroll), ("BLOCK", block)),
            ),
            entry=entry,
            workgroups=groups,
            workgroup_size=block,
        )
        for entry, vec, unroll, groups, block in shapes
    )


_CPU_ROOFS: Sequence[tuple[int, int, int]] = ((4, 2, 32), (4, 8, 8), (8, 8, 16))
"""(uints per load, loads in flight, work-items)."""

_GPU_ROOFS: Sequence[tuple[int, int, int, int]] = (
    (4, 4, 16, 256),
    (4, 8, 16, 256),
    (4, 2, 32, 256),
    (8, 2, 16, 512),
)
"""(uints per load, loads in flight, workgroups per compute unit, workgroup size)."""


def identical(one: Outcome, other: Outcome) -> bool:
    """Whether two arms would build the same thing: source, constants and geometry."""
    if not isinstance(one, Specialization) or not isinstance(other, Specialization):
        return False
    blank = {"arm": "", "steps": ()}
    return msgspec.structs.replace(one, **blank) == msgspec.structs.replace(other, **blank)
