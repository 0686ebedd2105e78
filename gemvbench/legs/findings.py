"""What the legs say: verdicts by the rule of kernels, the noise floor, modes, drift. Pure.

Arrays are logs of cost [pairs, 1], NaN where a leg failed: the value where less is better, one
over it where more is. A pair is the unit of replication, so it takes the place of a block.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from gemvbench import stats
from gemvbench.legs.lines import SIDES, LegDone, LegsRun, Metric

FLOOR_PAIRS = 2
"""Pairs of A with itself from which there is a floor."""


class SideFound(msgspec.Struct, frozen=True, kw_only=True):
    """One side of one metric."""

    median: float | None
    slow: tuple[int, ...]
    """Numbers of its legs in a slow mode."""
    clean_range: float | None
    """Largest over smallest of its other legs, as a ratio."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    metric: Metric
    judgement: stats.Judgement
    """Of B against A: FASTER where it is better."""
    won: int
    """Clean pairs in which B is better."""
    clean: int
    sign_p: float | None
    """Of the exact sign test over clean pairs."""
    a: SideFound
    b: SideFound
    floor: stats.Interval | None
    """The second of two runs of A against the first, over pairs of A with itself."""
    drift: float | None
    """Slowest over fastest pair, both sides together, slow legs aside, as a ratio."""
    slot: float | None
    """Second leg of a pair over the first, as a ratio of cost, programs taken out."""
    twice: int
    """Legs in which it was found more than once."""

    @property
    def is_void(self) -> bool:
        return self.floor is not None and self.floor.excludes_zero


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    run: LegsRun
    metrics: tuple[Found, ...]
    level: float
    """Of each interval at each look."""
    usable_pairs: int
    failures: dict[str, int]
    """Failed legs by side."""

    @property
    def void(self) -> str:
        """Why the run is not to be believed; "" where it is."""
        names = [found.metric.name for found in self.metrics if found.is_void]
        if not names:
            return ""
        return f"A differs from itself in {', '.join(names)}, so what differs is not the program."


def find(run: LegsRun) -> Findings:
    """Everything that a report shows."""
    settings = run.header.settings
    level = stats.family_level(settings.confidence, len(settings.metrics), len(settings.looks))
    rule = stats.Rule(
        level=level,
        looks=settings.looks,
        min_effect=settings.min_effect,
        least=settings.looks[0],
    )
    metrics = tuple(_find(run, metric, rule) for metric in settings.metrics)
    failed = [leg.side if leg.kind == "ab" else "A" for leg in run.legs if leg.reason]
    return Findings(
        run=run,
        metrics=metrics,
        level=level,
        usable_pairs=max((found.judgement.pairs for found in metrics), default=0),
        failures={side: failed.count(side) for side in SIDES},
    )


def _find(run: LegsRun, metric: Metric, rule: stats.Rule) -> Found:
    a, b = (_costs(run, metric, side) for side in SIDES)
    judgement = stats.judge(b, a, None, rule)
    clean = stats.clean_effects(b, [a])
    known = clean[np.isfinite(clean)]
    return Found(
        metric=metric,
        judgement=judgement,
        won=int((known > 0).sum()),
        clean=len(known),
        sign_p=_sign_p(known),
        a=_side(run, metric, "A"),
        b=_side(run, metric, "B"),
        floor=_floor(run, metric),
        drift=_drift(a, b),
        slot=_slot(run, metric, a, b),
        twice=sum(metric.name in leg.matches for leg in run.legs),
    )


def _sign_p(effects: stats.Array) -> float | None:
    from scipy import stats as scipy_stats

    won, lost = int((effects > 0).sum()), int((effects < 0).sum())
    return float(scipy_stats.binomtest(won, won + lost).pvalue) if won + lost else None


def _cost(leg: LegDone, metric: Metric) -> float:
    value = leg.values.get(metric.name)
    if value is None or value <= 0:
        return math.nan
    return -math.log(value) if metric.more else math.log(value)


def _pairs(run: LegsRun, kind: str) -> list[int]:
    return sorted({leg.pair for leg in run.legs if leg.kind == kind})


def _costs(run: LegsRun, metric: Metric, side: str, kind: str = "ab") -> stats.Array:
    rows = {pair: row for row, pair in enumerate(_pairs(run, kind))}
    costs = np.full((len(rows), 1), math.nan)
    for leg in run.legs:
        if (leg.kind, leg.side) == (kind, side):
            costs[rows[leg.pair], 0] = _cost(leg, metric)
    return costs


def _side(run: LegsRun, metric: Metric, side: str) -> SideFound:
    legs = [leg for leg in run.legs if (leg.kind, leg.side) == ("ab", side) and leg.values]
    costs = np.array([_cost(leg, metric) for leg in legs])
    slow = stats.is_slow(costs)
    values = [leg.values[metric.name] for leg in legs]
    fast = costs[~slow]
    return SideFound(
        median=float(np.median(values)) if values else None,
        slow=tuple(leg.number for leg, is_slow in zip(legs, slow, strict=True) if is_slow),
        clean_range=math.exp(fast.max() - fast.min()) if len(fast) else None,
    )


def _floor(run: LegsRun, metric: Metric) -> stats.Interval | None:
    """Clean pairs alone, as for the verdict; at the confidence of the run, looked at once."""
    one, other = (_costs(run, metric, side, "aa") for side in SIDES)
    effects = stats.clean_effects(other, [one])
    known = effects[np.isfinite(effects)]
    if len(known) < FLOOR_PAIRS:
        return None
    return stats.t_interval(known, run.header.settings.confidence)


def _drift(a: stats.Array, b: stats.Array) -> float | None:
    """Of pairs in which no leg is slow."""
    level = (a + b) / 2
    fast = level[~(stats.is_slow(a) | stats.is_slow(b)) & np.isfinite(level)]
    return math.exp(fast.max() - fast.min()) if len(fast) > 1 else None


def _slot(run: LegsRun, metric: Metric, a: stats.Array, b: stats.Array) -> float | None:
    """Half the difference between pairs that A began and pairs that B began."""
    first = {leg.pair: leg.side for leg in run.legs if leg.kind == "ab" and leg.first}
    effects = stats.clean_effects(b, [a])[:, 0]
    by_lead: dict[str, list[float]] = {side: [] for side in SIDES}
    for pair, effect in zip(_pairs(run, "ab"), effects, strict=True):
        if math.isfinite(effect):
            by_lead[first[pair]].append(float(effect))
    if not all(by_lead.values()):
        return None
    means = [float(np.mean(by_lead[side])) for side in SIDES]
    return math.exp((means[1] - means[0]) / 2)
