"""Intervals for the difference of two runs. Pure; values are on the log scale, one per block."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence

import msgspec

from gemvbench.stats import Interval, t_quantile

MIN_RUNS = 6
"""Earlier runs without which nothing is known of the differences from run to run."""


def welch(a: Sequence[float], b: Sequence[float], level: float) -> Interval:
    """Mean of b less mean of a, by Welch's t (Biometrika 34, 1947); `blocks` is the smaller count.

    Unbounded with fewer than two in either; NaN bounds where neither varies at all.
    """
    from scipy.stats import ttest_ind

    blocks = min(len(a), len(b))
    estimate = statistics.fmean(b) - statistics.fmean(a)
    if blocks < 2:
        return Interval(estimate, -math.inf, math.inf, blocks, math.nan)
    spread = math.hypot(statistics.stdev(a), statistics.stdev(b))
    if spread == 0:
        return Interval(estimate, math.nan, math.nan, blocks, spread)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # effects that hardly differ: the interval is as narrow
        bounds = ttest_ind(b, a, equal_var=False).confidence_interval(level)
    return Interval(estimate, float(bounds.low), float(bounds.high), blocks, spread)


def add_run_spread(interval: Interval, runs: Sequence[float], level: float) -> Interval:
    """The interval of a difference of two runs, wider by the spread from run to run.

    Half-widths add in quadrature; that of the runs is sqrt(2) standard deviations times the
    quantile of Student's t at the degrees of freedom of the earlier runs.
    """
    quantile = t_quantile((1 + level) / 2, len(runs) - 1)
    half = math.hypot(
        (interval.high - interval.low) / 2, quantile * math.sqrt(2) * statistics.stdev(runs)
    )
    low, high = interval.estimate - half, interval.estimate + half
    return msgspec.structs.replace(interval, low=low, high=high)
