"""What a selftest measures: identical arms, planted effects, reads of pools. Pure; seeded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gemvbench.arm import Arm
from gemvbench.case import Gemv
from gemvbench.contest import Contest, Entrant, make_contest
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.jobs import roof_jobs
from gemvbench.ladder import extra_rows, rule_arm, specialize
from gemvbench.messages import Block, CaseBlock, KernelJob, Layout, RoofMeasured
from gemvbench.outcome import Declined, Specialization
from gemvbench.plan import doubled, draw_padding, plan_lengths, plan_slots
from gemvbench.stats import LOOKS, MIN_BLOCKS

PLANTED = (5, 10, 20, 50)
"""Effects, in per mille of the rows."""

SAME = ("same1", "same2", "same3")
"""Labels of arms that are the baseline itself, beside its twin."""

CACHE, STREAM, DOUBLE = "cache", "stream", "double"
"""Reads of half the last-level cache, of the pool of `stream`, and of twice as much."""

POOL_BLOCKS = MIN_BLOCKS
POOL_PASSES = 3
WAVES = 50
"""Of workgroups on a GPU, so that extra rows cost their share of time."""

_PASSES = (6, 5, 4, 3)
_RESIDENT = 2048
"""Work-items that a GPU's compute unit holds at a time, at most."""
_GPU_K = (4096, 2048, 1024, 512)
_CPU_SHAPE = (4096, 4000)
_SLOT_SECONDS = 0.08
"""Both legs, the untimed run and the check of one measurement."""
_ARM_SECONDS = 0.8
"""To verify and calibrate an arm."""


def choose_case(device: DeviceInfo, shape: tuple[int, int] | None = None) -> Gemv:
    """A case whose extra rows are exact shares, with spare rows for the largest effect."""
    k, n = shape or (_CPU_SHAPE if device.is_cpu else _gpu_shape(device))
    return Gemv(k=k, n=n, spare=extra_rows(Arm(axes=(("extra", max(PLANTED)),)), n))


def _gpu_shape(device: DeviceInfo) -> tuple[int, int]:
    """WAVES of workgroups, rows in thousands; the longest row of which two copies fit."""
    room = min(device.max_alloc_bytes, device.free_bytes * 9 // 10)
    shapes = [(k, math.ceil(WAVES * _wave(Gemv(k=k, n=1), device) / 1000) * 1000) for k in _GPU_K]
    fitting = [(k, n) for k, n in shapes if 2 * Gemv(k=k, n=n).weight_bytes <= room]
    return fitting[0] if fitting else shapes[-1]


def waves(case: Gemv, device: DeviceInfo) -> float:
    """How many times the workgroups of the arm by rule fill a GPU."""
    return case.n / _wave(case, device)


def _wave(case: Gemv, device: DeviceInfo) -> int:
    built = specialize(rule_arm(case, device), case, device)
    size = built.workgroup_size if isinstance(built, Specialization) else 1
    return device.compute_units * max(1, _RESIDENT // size)


def selftest_contest(case: Gemv, device: DeviceInfo) -> Contest:
    """The arm by rule against itself under other names and against itself with extra rows.

    Raises:
        UserError: the case is too small for the smallest effect, or does not fit the device.
    """
    arm = rule_arm(case, device)
    planted = [arm.replace_axis("extra", extra) for extra in PLANTED]
    named = [(arm, arm.label), *((arm, label) for label in SAME)]
    named += [(each, each.label) for each in planted]
    contest = make_contest(case, [Entrant(each, device, label) for each, label in named], STREAM)
    if contest.refusal:
        raise UserError(contest.refusal, Exit.NO_DEVICE)
    for choice in contest.choices:
        if isinstance(choice.outcome, Declined):
            raise UserError(
                f"{case.id} cannot show what {device.id} resolves: {choice.label} is declined, "
                f"{choice.outcome.reason}. Choose another --shape, with 1000 rows or more."
            )
    return contest


def choose_blocks(budget: float, spent: float, start_up: float) -> tuple[int, int]:
    """(passes, blocks) that end within a budget, both in seconds; never less than six blocks."""
    labels = 2 + len(SAME) + len(PLANTED)
    pools = POOL_BLOCKS * (start_up + POOL_PASSES * 3 * _SLOT_SECONDS)
    left = budget - spent - pools - 2 * start_up - labels * _ARM_SECONDS
    options = [(_PASSES[0], blocks) for blocks in reversed(LOOKS)]
    options += [(passes, MIN_BLOCKS) for passes in _PASSES[1:]]
    for passes, blocks in options:
        if blocks * (start_up + (labels + 1) * passes * _SLOT_SECONDS) <= left:
            return passes, blocks
    return options[-1]


def pool_case(case: Gemv) -> Gemv:
    """What the reads of pools go by in a record: the same bytes, and no case of the run's own."""
    return msgspec.structs.replace(case, n=case.stored_rows, spare=0)


def pool_sizes(layout: Layout, device: DeviceInfo) -> dict[str, int]:
    """Bytes of each read by its label; no cache where its size is unknown."""
    sizes = {STREAM: layout.pool_bytes, DOUBLE: 2 * layout.pool_bytes}
    half = min(device.cache_bytes, layout.pool_bytes // 4) // 2 // 4096 * 4096
    return sizes | ({CACHE: half} if half else {})


def pool_blocks(contest: Contest, device: DeviceInfo, roof: RoofMeasured, seed: int) -> list[Block]:
    """Reads of parts of one pool in turn, in fresh processes; none if twice as much won't fit."""
    layout, own = contest.layouts[device.id], contest.case
    assert isinstance(layout, Layout)
    assert isinstance(own, Gemv)
    double = doubled(layout, own, device)
    (job,) = [job for job in roof_jobs(device) if job.arm == roof.arm]
    if double is None:
        return []
    sizes = pool_sizes(layout, device)
    reads = tuple(
        msgspec.structs.replace(job, arm=label, read_bytes=size) for label, size in sizes.items()
    )
    lengths = {label: plan_lengths(size / roof.bandwidth) for label, size in sizes.items()}
    case = pool_case(own)

    def plan(block: int) -> CaseBlock:
        return CaseBlock(
            case=case,
            layouts={device.id: double},
            jobs=(),
            roofs=_rotated(reads, block),
            slots=plan_slots(tuple(sizes), lengths, block=block, passes=POOL_PASSES, seed=seed),
            padding=draw_padding(seed, block, case),
        )

    return [
        Block(devices=(device,), block=block, cases=(plan(block),), seed=seed)
        for block in range(POOL_BLOCKS)
    ]


def _rotated(jobs: Sequence[KernelJob], by: int) -> tuple[KernelJob, ...]:
    """Another order of loading in each block."""
    start = by % len(jobs)
    return (*jobs[start:], *jobs[:start])
