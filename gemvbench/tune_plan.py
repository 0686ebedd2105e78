"""What a search for the best arm of a shape measures: candidates, rounds, survivors. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gemvbench.arm import AUTO_VALUE, FAMILIES, Arm
from gemvbench.attention_case import Attention
from gemvbench.attention_ladder import recommend_attention
from gemvbench.cases import Single
from gemvbench.contest import Entrant
from gemvbench.device import DeviceInfo
from gemvbench.jobs import choose
from gemvbench.ladder import rule_arm
from gemvbench.plan import TWIN
from gemvbench.record import Settings
from gemvbench.result import Result
from gemvbench.results import Summary
from gemvbench.tuning import AnyRow

Grid = Mapping[str, tuple[int, ...]]
"""Values by axis, all combined; axes that are not named keep the family's default."""

GRIDS: Mapping[str, tuple[Grid, ...]] = {
    "row": (
        {"pack": (3,), "rows": (1, 2, 4), "block": (64, 128, 256, 512), "unroll": (1, 2, 4)},
        {"pack": (2,), "rows": (1, 2), "block": (128, 256), "unroll": (2, 4)},
        {"pack": (3,), "rows": (1, 2, 4), "block": (64, 128, 256, 512), "wide": (1,)},  # FP32 x
    ),
    "flight": (
        {"ahead": (2, 3, 4, 5, 8), "block": (64, 128, 256)},
        {"block": (64, 128), "cluster": (2, 4, 8)},
        {"block": (64, 128, 256), "dependent": (1,)},
    ),
    "bulk": ({},),
    "quant": (
        {"pack": (1, 3), "rows": (1, 2, 4), "ahead": (2, 4), "block": (128, 256)},
        {"rows": (1, 2), "lanes": (16, 64), "block": (128, 256), "groups": (2, 4)},
        {"block": (128, 256), "groups": (0, 1, 3, 4)},
        {"items": (2, 4, 8, 16, 64, 128)},
    ),
    "cpu": ({"pack": (3, 4), "accs": (1, 2, 4), "items": (8, 32, 128)},),
}
"""What is searched of each family: what was measured to matter somewhere (docs/kernels.md).

Of family quant, what changes neither the result (x in 8 bits) nor the file (repacked weights).
"""

_RANGES = (AUTO_VALUE, 8, 16, 32, 64, 128)
ATTENTION_GRIDS: Mapping[str, tuple[Grid, ...]] = {
    "flashdecode": (
        {"splits": _RANGES, "dependent": (0, 1)},
        {"block": (64, 256), "splits": (AUTO_VALUE, 16, 64)},
        {"resident": (1, 2, 3, 4), "dependent": (0, 1)},
    ),
    "splitkv": ({"block": (64, 128, 256), "splits": _RANGES, "fused": (0, 1)},),
    "gqa": ({"splits": (AUTO_VALUE, 16, 64)},),
    "token_major": ({"splits": (AUTO_VALUE, 16, 64)},),
    "per_head": ({"splits": (AUTO_VALUE, 16, 64)},),
}
"""The same of attention, and of its halves, on a GPU."""
CPU_GRID: Grid = {"splits": (AUTO_VALUE, 1, 2, 4, 8)}
"""And of each family on a CPU, whose kernels are of one work-item."""

FINALISTS = 3
_KEPT = 4
"""One in so many goes on to the next round."""

_RANKED = ("FASTER", "SLOWER", "SAME", "UNDECIDED")


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """How closely the arms of a round are looked at."""

    passes: int
    looks: tuple[int, ...]


ROUNDS = (
    Round(passes=2, looks=(1,)),
    Round(passes=4, looks=(1,)),
    Round(passes=3, looks=(6, 8)),
)
"""Two only rank, in one process each; the last decides by the rule of every comparison."""


@dataclass(frozen=True)
class Found:
    """What a search came to: its rounds, the row for the table, or why there is none."""

    case: Single
    summaries: tuple[Summary, ...]
    row: AnyRow | None = None
    why: str = ""
    seconds: float = 0.0
    """Wall time; rounds that were measured earlier take none."""


def entrants(case: Single, device: DeviceInfo) -> tuple[Entrant, ...]:
    """The rule's arm and every candidate that builds, each once by its text and geometry."""
    if isinstance(case, Attention):
        rule = recommend_attention(case, device)
        arms = _attention_arms(case, device)
    else:
        rule, arms = rule_arm(case, device), _grid_arms(device)
    found: dict[str, Entrant] = {}
    for arm in (rule, *arms):
        choice, job = choose(arm, arm.label, case, device)
        if job is not None:
            found.setdefault(choice.source, Entrant(arm, device, arm.label))
    return tuple(found.values())


def round_settings(number: int, seed: int, min_effect: float, confidence: float) -> Settings:
    """The numbers of a round; none of them depends on the time that is left."""
    own = ROUNDS[number]
    return Settings(
        command="tune",
        seed=seed,
        passes=own.passes,
        looks=own.looks,
        confidence=confidence,
        min_effect=min_effect,
        quick=True,
    )


def survivors(results: Sequence[Result], number: int) -> tuple[str, ...]:
    """Labels of the arms that go on from a round, fastest first; the baseline goes on anyway."""
    ranked = rank(results)
    kept = FINALISTS if number == len(ROUNDS) - 2 else math.ceil(len(ranked) / _KEPT)
    return tuple(result.arm for result in ranked[: max(FINALISTS, kept)])


def winner(results: Sequence[Result]) -> Result | None:
    """The arm of the last round with the highest ratio of those that are FASTER."""
    return next((result for result in rank(results) if result.verdict == "FASTER"), None)


def rank(results: Sequence[Result]) -> list[Result]:
    """Arms that were measured, but for baseline and twin, by their ratio."""
    measured = [r for r in results if r.verdict in _RANKED and r.arm != TWIN and r.ratio]
    return sorted(measured, key=lambda result: -(result.ratio or 0))


def _grid_arms(device: DeviceInfo) -> Iterator[Arm]:
    """Every arm of the grids, written without the values that are its family's own."""
    for name, grids in GRIDS.items():
        family = FAMILIES[name]
        for grid in grids:
            for_cpus = "items" in grid if name == "quant" else family.cpu_only
            if for_cpus == device.is_cpu:
                yield from _arms_of(name, grid)


def _attention_arms(case: Attention, device: DeviceInfo) -> Iterator[Arm]:
    """Arms that decline the case are left out by whoever builds them."""
    for name, grids in ATTENTION_GRIDS.items():
        if case.op in FAMILIES[name].operations:
            for grid in (CPU_GRID,) if device.is_cpu else grids:
                yield from _arms_of(name, grid)


def _arms_of(name: str, grid: Grid) -> Iterator[Arm]:
    family = FAMILIES[name]
    for values in itertools.product(*grid.values()):
        axes = zip(grid, values, strict=True)
        yield Arm(
            family=name, axes=tuple((axis, v) for axis, v in axes if v != family.default(axis))
        )
