"""The decision rule: from log seconds to verdicts. Pure; the block is the unit of replication.

Arrays are log seconds per call [blocks, passes] of one arm, NaN where nothing was measured.

Within a pass: log(baseline) - log(arm), the baseline being the mean log of base and twin. A pair
in which some measurements are slow and some are not is set aside; the others, the clean pairs,
carry the verdict, and all pairs stand beside it.
Within a block: the Hodges-Lehmann estimate over its passes (median of the Walsh averages;
Hodges and Lehmann, Ann. Math. Stat. 34, 1963). Over blocks: Student's t interval, at the
level divided by the number of arms compared with one baseline and by the number of looks
(Bonferroni). Looks are fixed before the run; by the union bound all their intervals hold
together, so a run may stop after any of them, for any reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

MIN_BLOCKS = 6
LOOKS = (6, 8, 12, 16)
"""Numbers of blocks after which a run looks at its intervals, and stops if all are decided."""

MORE_LOOKS = (24, 32)
"""Further ones of a run that is planned to so many blocks (`--blocks`)."""

VOID_LEVEL = 0.999
"""The twin's mean effect over a run's cases is tested once, at this level."""

MODES_LEVEL = 0.95
"""Level of the sign test on slow measurements. It can only take a verdict away."""

MODES = "modes: one of the two is slow more often than the other"
"""The reason that an unlike number of slow measurements gives."""

SLOW = 1.18
"""A measurement this many times above its arm's lower quartile is slow (S2's mode was 19)."""

POWER = 0.90

Array = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)


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

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def _exp(value: float) -> float:
    """Infinite where it overflows: over two blocks, for many arms and looks, it does."""
    return math.exp(value) if value < 700 else math.inf


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What was fixed before the run. `level` is that of one arm at one look."""

    level: float
    looks: tuple[int, ...]
    min_effect: float
    least: int = 0
    """Blocks before which there is no verdict, where the first look is later than MIN_BLOCKS."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule says of one arm."""

    verdict: str
    reason: str
    interval: Interval
    """Over clean pairs: the one that decides."""
    all_pairs: Interval
    pairs: int
    removed: int
    """Pairs set aside, of `pairs`, because they mix a slow measurement with others."""


def judge(arm: Array, base: Array, twin: Array | None, rule: Rule) -> Judgement:
    """FASTER, SLOWER, SAME or UNDECIDED for an arm against base and, where there is one, twin."""
    bases = [base] if twin is None else [base, twin]
    rows = rows_at_look(arm, bases, rule.looks)
    arm, bases = arm[rows], [logs[rows] for logs in bases]
    every, clean = pair_effects(arm, bases), clean_effects(arm, bases)
    pairs = int(np.isfinite(every).sum())
    interval = t_interval(block_effects(clean), rule.level)
    verdict, reason = decide(interval, rule.min_effect)
    if len(rows) < rule.least:
        verdict, reason = "UNDECIDED", f"{len(rows)} of the {rule.least} that the first look takes"
    if verdict in ("FASTER", "SLOWER", "SAME") and modes_differ(arm, bases):
        verdict = "UNDECIDED"
        reason = MODES
    return Judgement(
        verdict=verdict,
        reason=reason or "",
        interval=interval,
        all_pairs=t_interval(block_effects(every), rule.level),
        pairs=pairs,
        removed=pairs - int(np.isfinite(clean).sum()),
    )


def pair_effects(arm: Array, bases: Sequence[Array]) -> Array:
    """Effects by block and pass: positive where the arm is faster than its baselines' mean."""
    effects: Array = np.mean(bases, axis=0) - arm
    return effects


def clean_effects(arm: Array, bases: Sequence[Array]) -> Array:
    """Effects of the pairs within one mode; NaN where some measurements are slow and some not.

    A pair whose measurements are all slow is kept: what slows all of them alike is drift, which
    the pair takes out, and setting it aside would cost whole blocks.
    """
    slow = [is_slow(logs) for logs in (arm, *bases)]
    mixed = np.any(slow, axis=0) & ~np.all(slow, axis=0)
    return np.where(mixed, np.nan, pair_effects(arm, bases))


def is_slow(logs: Array) -> NDArray[np.bool_]:
    """Which of one arm's measurements are far above its lower quartile over the run."""
    known = logs[np.isfinite(logs)]
    if len(known) < 4:
        return np.zeros(logs.shape, bool)
    slow: NDArray[np.bool_] = logs > np.quantile(known, 0.25) + math.log(SLOW)
    return slow


def modes_differ(arm: Array, bases: Sequence[Array]) -> bool:
    """Whether the arm is slow unlike often from each baseline: exact sign tests over blocks.

    Against the mean of two baselines the test would not be symmetric: of three equal arms, one
    is slow less often than the mean of the others more than half of the time.
    """
    counts = is_slow(arm).sum(axis=1)
    return all(_signs_differ(counts - is_slow(logs).sum(axis=1)) for logs in bases)


def _signs_differ(differences: NDArray[np.int64]) -> bool:
    from scipy import stats

    more, less = int((differences > 0).sum()), int((differences < 0).sum())
    if not more + less:
        return False
    return bool(stats.binomtest(more, more + less).pvalue < 1 - MODES_LEVEL)


def rows_at_look(arm: Array, bases: Sequence[Array], looks: Sequence[int]) -> NDArray[np.intp]:
    """Rows of the blocks that the last look reached has seen; one counts if it has any pair.

    A block all of whose pairs are set aside counts, and gives no effect: a look is a number of
    blocks that were run.
    """
    rows = np.flatnonzero(np.isfinite(pair_effects(arm, bases)).any(axis=1))
    return at_look(rows, looks)


def block_effects(effects: Array) -> Array:
    """[blocks, passes] to the Hodges-Lehmann estimate of each block that has a pair, in order."""
    some = effects[np.isfinite(effects).any(axis=1)]
    if not some.size:
        return np.empty(0)
    i, j = _walsh_pairs(some.shape[1])
    walsh = (some[:, i] + some[:, j]) / 2
    if np.isnan(walsh).any():
        estimates: Array = np.nanmedian(walsh, axis=1)
        return estimates
    # np.median to the bit, whose checks take longer than so few values.
    walsh.sort(axis=1)
    middle = walsh.shape[1] // 2
    return (walsh[:, (walsh.shape[1] - 1) // 2] + walsh[:, middle]) / 2


@cache
def _walsh_pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(count)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Median of all pairwise means, each value with itself included."""
    return float(block_effects(np.asarray([values], float))[0])


def t_interval(effects: Sequence[float] | Array, level: float) -> Interval:
    """Student's t interval for the mean of block effects at a two-sided level.

    With fewer than two blocks the interval is unbounded.
    """
    count = len(effects)
    estimate = float(np.mean(effects)) if count else math.nan
    if count < 2:
        return Interval(estimate, -math.inf, math.inf, count, math.nan)
    spread = float(np.std(effects, ddof=1))
    half = t_quantile((1 + level) / 2, count - 1) * spread / math.sqrt(count)
    return Interval(estimate, estimate - half, estimate + half, count, spread)


@cache
def t_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t; kept, as one run asks for the same one many times."""
    from scipy import stats

    return float(stats.t.ppf(share, freedom))


def family_level(confidence: float, arms: int, looks: int = 1) -> float:
    """The level of each interval when those of all arms and looks are to hold together."""
    return 1 - (1 - confidence) / (max(1, arms) * looks)


def at_look(blocks: NDArray[T], looks: Sequence[int]) -> NDArray[T]:
    """The blocks that the last look reached has seen; all of them before the first.

    Blocks beyond a look belong to the next one: an interval over them would be one more look
    than was planned.
    """
    reached = [count for count in looks if count <= len(blocks)]
    return blocks[: reached[-1]] if reached else blocks


def min_detectable_effect(interval: Interval, level: float) -> float:
    """The true effect (log scale) that would be found in nine runs out of ten."""
    if interval.blocks < 2:
        return math.inf
    freedom = interval.blocks - 1
    quantiles = t_quantile((1 + level) / 2, freedom) + t_quantile(POWER, freedom)
    return quantiles * interval.spread / math.sqrt(interval.blocks)


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
