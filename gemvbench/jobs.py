"""From what was asked for to what workers build: labels, kernel text, roofs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from gemvbench.arm import Arm
from gemvbench.case import Gemv
from gemvbench.cases import Case
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import resolve, specialize
from gemvbench.flash_ladder import LEAST_WEIGHT
from gemvbench.messages import (
    AttentionJob,
    DeviceJob,
    HostJob,
    Job,
    KernelJob,
    LibraryJob,
    TokenJob,
)
from gemvbench.outcome import Declined, HostArm, LibraryArm, Outcome, Specialization
from gemvbench.source import assemble, kernel_text
from gemvbench.stages import Precision, Ranges, Stage
from gemvbench.token_arm import DeviceOutcome, TokenArm, specialize_token
from gemvbench.token_case import Token

Chosen = Outcome | TokenArm


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An arm with the label it has in this run, the device it runs on, and its outcomes."""

    label: str
    arm: str
    device: str
    case: str
    outcome: Chosen
    against: str = ""
    """Label of the arm that it is compared with; "" for the baseline of the run."""
    source: str = ""
    """Digest of the kernel text, entry and geometry; "" where nothing is built."""


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A choice with the digest of its cubin, "" where there is none."""

    choice: Choice
    binary: str = ""


def choose(
    arm: Arm, label: str, case: Case, device: DeviceInfo, attention: Arm | None = None
) -> tuple[Choice, Job | None]:
    """The specialisation of an arm for a case, and the job that builds it, if any.

    `attention` is the arm of a token's attention, `auto` where there is none.
    """
    if isinstance(case, Token):
        outcome: Chosen = specialize_token(arm, case, device, attention)
    else:
        outcome = specialize(arm, case, device)
    job = make_job(outcome, label, device)
    choice = Choice(
        label=label,
        arm=arm.name,
        device=device.id,
        case=case.id,
        outcome=outcome,
        source=_source_digest(job),
    )
    return choice, job


def identical(one: Build, other: Build) -> bool:
    """Whether two arms are the same code in the same geometry; what is unknown is not the same.

    By their cubins where both are known, else by their source.
    """
    if one.binary and other.binary:
        return one.binary == other.binary and _geometry(one) == _geometry(other)
    return bool(one.choice.source) and one.choice.source == other.choice.source


def short_digest(data: bytes) -> str:
    """Enough of a SHA-256 to tell builds apart."""
    return hashlib.sha256(data).hexdigest()[:16]


def _source_digest(job: Job | None) -> str:
    """Of all that a job builds; "" where nothing is built."""
    if isinstance(job, TokenJob):
        parts = (*job.layers, job.whole, job.attention)
        return short_digest(" ".join(map(_source_digest, parts)).encode())
    if isinstance(job, AttentionJob):
        return short_digest(f"{job.stages} {job.ranges}\n{job.text}".encode())
    if not isinstance(job, KernelJob):
        return f"{job.library} {job.w}" if isinstance(job, LibraryJob) else ""
    named = f"{job.entry} {job.workgroups} {job.workgroup_size}\n{job.text}"
    return short_digest(named.encode())


def _geometry(build: Build) -> tuple[str, int, int] | None:
    """A cubin holds every entry of its file, and no number of workgroups."""
    outcome = build.choice.outcome
    if not isinstance(outcome, Specialization):
        return None
    return outcome.entry, outcome.workgroups, outcome.workgroup_size


def make_job(outcome: Chosen, label: str, device: DeviceInfo) -> Job | None:
    if isinstance(outcome, Declined):
        return None
    if isinstance(outcome, HostArm):
        return HostJob(arm=label, device=device.id, family=outcome.family)
    if isinstance(outcome, LibraryArm) and outcome.operation == "attention":
        return _attention_library_job(outcome, label, device)
    if isinstance(outcome, TokenArm):
        return _token_job(outcome, label, device)
    if isinstance(outcome, Specialization) and outcome.ranges is not None:
        return _attention_job(outcome, outcome.ranges, label, device)
    return _device_job(outcome, label, device)


def _token_job(outcome: TokenArm, label: str, device: DeviceInfo) -> TokenJob:
    layers: list[DeviceJob] = []
    attention = None
    for each in outcome.layers:
        job = make_job(each.outcome, label, device)
        if isinstance(job, AttentionJob):
            attention = msgspec.structs.replace(job, calls=outcome.calls)
        elif isinstance(job, DeviceJob):
            layers.append(job)
    whole = _device_job(outcome.whole, label, device) if outcome.whole else None
    assert not isinstance(whole, LibraryJob)
    return TokenJob(
        arm=label, device=device.id, layers=tuple(layers), whole=whole, attention=attention
    )


def _attention_job(
    outcome: Specialization, ranges: Ranges, label: str, device: DeviceInfo
) -> AttentionJob:
    return AttentionJob(
        arm=label,
        device=device.id,
        text=kernel_text(outcome),
        stages=outcome.stages,
        ranges=ranges,
        precision=_precision(outcome),
    )


def _attention_library_job(outcome: LibraryArm, label: str, device: DeviceInfo) -> AttentionJob:
    """A call in place of kernels. Weights and outputs are of the type of the operands."""
    return AttentionJob(
        arm=label,
        device=device.id,
        text="",
        stages=(Stage(entry=outcome.library, workgroups=1, workgroup_size=1),),
        ranges=Ranges(k_chunk=0, v_chunk=0, splits=1),
        precision=Precision(weight=2.0**-11, least=2.0**-24, y=outcome.y),
        library=outcome.library,
    )


def _precision(outcome: Specialization) -> Precision:
    if outcome.family == "flashdecode":
        return Precision(least=LEAST_WEIGHT)
    return Precision(quantises_q=bool(outcome.constant("QUANT_Q")))


def _device_job(outcome: DeviceOutcome, label: str, device: DeviceInfo) -> DeviceJob:
    if isinstance(outcome, LibraryArm):
        return LibraryJob(
            arm=label,
            device=device.id,
            library=outcome.library,
            w=outcome.w,
            y=outcome.y,
            accumulate=outcome.accumulate,
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
        local_bytes=outcome.local_bytes,
        is_dependent=bool(outcome.constant("DEPENDENT")),
        is_repacked=bool(outcome.constant("REPACK")),
        quantises_x=bool(outcome.constant("X8")),
    )


def launches_job(case: Token, device: DeviceInfo, label: str) -> TokenJob:
    """As many launches as a token has linear layers, of a kernel that does nothing."""
    nothing = KernelJob(
        arm=label,
        device=device.id,
        text=assemble(device.kernel_file("launch")),
        entry="launch_only",
        workgroups=1,
        workgroup_size=1,
    )
    return TokenJob(arm=label, device=device.id, layers=(nothing,) * len(case.operations))


def rows1_sibling(arm: Arm, case: Gemv, device: DeviceInfo) -> KernelJob | None:
    """The same arm with one row per workgroup, where it has more: outputs must be identical."""
    arm = resolve(arm, case, device)
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
