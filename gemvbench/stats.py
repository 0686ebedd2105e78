"""From samples to verdicts. The block is the unit of replication; nothing is pooled.

Within a pass: log(baseline) - log(arm), the baseline being the mean log of base and twin.
Within a block: the Hodges-Lehmann estimate over its passes (median of the Walsh averages;
Hodges and Lehmann, Ann. Math. Stat. 34, 1963). Over blocks: Student's t interval, at the
level divided by the number of arms compared with one baseline and by the number of looks
(Bonferroni). Looks are fixed before the run; by the union bound all their intervals hold
together, so a run may stop after any of them, for any reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gemvbench.messages import Sample

MIN_BLOCKS = 6
LOOKS = (6, 8, 12, 16)
"""Numbers of blocks after which a run looks at its intervals, and stops if all are decided."""

VOID_LEVEL = 0.999
"""The twin's mean effect over a run's cases is tested once, at this level."""

POWER = 0.90

Logs = Mapping[tuple[int, int], Mapping[str, float]]
"""log seconds per call of each arm, by (block, pass)."""


class Interval(msgspec.Struct, frozen=True):
    """An estimate on the log scale with its interval; `blocks` effects behind it."""

    estimate: float
    low: float
    high: float
    blocks: int
    spread: float
    """Standard deviation of the block effects."""

    @property
    def ratio(self) -> float:
        return _exp(self.estimate)

    @property
    def ci(self) -> tuple[float, float]:
        return _exp(self.low), _exp(self.high)


def _exp(value: float) -> float:
    """Infinite where it overflows: over two blocks, for many arms and looks, it does."""
    return math.exp(value) if value < 700 else math.inf


def pass_logs(samples: Iterable[Sample]) -> Logs:
    """Logs of one case's samples; one that is not usable has none."""
    logs: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for sample in samples:
        if sample.is_usable:
            logs[sample.block, sample.pass_][sample.arm] = math.log(sample.seconds)
    return logs


def block_effects(logs: Logs, arm: str, baselines: Sequence[str]) -> list[float]:
    """One effect per block, in their order."""
    return list(effects_by_block(logs, arm, baselines).values())


def effects_by_block(logs: Logs, arm: str, baselines: Sequence[str]) -> dict[int, float]:
    """Effects by block: positive where the arm is faster than its baselines' mean."""
    effects: dict[int, list[float]] = defaultdict(list)
    for (block, _), of in sorted(logs.items()):
        if arm in of and all(name in of for name in baselines):
            base = sum(of[name] for name in baselines) / len(baselines)
            effects[block].append(base - of[arm])
    return {block: hodges_lehmann(values) for block, values in sorted(effects.items())}


def hodges_lehmann(values: Sequence[float]) -> float:
    """Median of all pairwise means, each value with itself included."""
    array = np.asarray(values)
    i, j = np.triu_indices(len(array))
    return float(np.median((array[i] + array[j]) / 2))


def t_interval(effects: Sequence[float], level: float) -> Interval:
    """Student's t interval for the mean of block effects at a two-sided level.

    With fewer than two blocks the interval is unbounded.
    """
    from scipy import stats

    count = len(effects)
    estimate = float(np.mean(effects)) if count else math.nan
    if count < 2:
        return Interval(estimate, -math.inf, math.inf, count, math.nan)
    spread = float(np.std(effects, ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * spread / math.sqrt(count)
    return Interval(estimate, estimate - half, estimate + half, count, spread)


def family_level(confidence: float, arms: int, looks: int = 1) -> float:
    """The level of each interval when those of all arms and looks are to hold together."""
    return 1 - (1 - confidence) / (max(1, arms) * looks)


def at_look(effects: Sequence[float], looks: Sequence[int]) -> Sequence[float]:
    """The effects that the last look reached has seen; all of them before the first.

    Blocks beyond a look belong to the next one: an interval over them would be one more look
    than was planned.
    """
    reached = [look for look in looks if look <= len(effects)]
    return effects[: reached[-1]] if reached else effects


def min_detectable_effect(interval: Interval, level: float) -> float:
    """The true effect (log scale) that would be found in nine runs out of ten."""
    from scipy import stats

    if interval.blocks < 2:
        return math.inf
    freedom = interval.blocks - 1
    quantiles = stats.t.ppf((1 + level) / 2, freedom) + stats.t.ppf(POWER, freedom)
    return float(quantiles) * interval.spread / math.sqrt(interval.blocks)


def decide(interval: Interval, min_effect: float) -> tuple[str, str | None]:
    """(verdict, reason or None): FASTER, SLOWER, SAME or UNDECIDED."""
    if interval.blocks < MIN_BLOCKS:
        return "UNDECIDED", f"only {interval.blocks} of at least {MIN_BLOCKS} blocks"
    if interval.low > 0:
        return "FASTER", None
    if interval.high < 0:
        return "SLOWER", None
    inside = -math.log1p(min_effect) <= interval.low and interval.high <= math.log1p(min_effect)
    return ("SAME", None) if inside else ("UNDECIDED", None)
