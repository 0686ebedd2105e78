"""What people use today, on the same measurements: none of it decides anything in the product."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gemvbench.messages import Sample
from gemvbench.plan import TWIN
from gemvbench.record import Run

WELCH_LEVEL = 0.01
ASV_LEVEL = 0.002
"""asv 0.6.6, `is_different` in asv/_stats.py; asv then asks for a factor (`asv compare --factor`,
1.1 by default) by which medians differ. It is left at 1 here: 1.1 hides whatever is below 10 %."""

ASV_EXACT = 20
"""Up to so many samples of each, asv takes exact probabilities."""

MEDIANS_THRESHOLD = 0.01
"""`triton.testing.do_bench` gives a median and no rule; this is the default of --min-effect."""

Floats = NDArray[np.float64]


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """What others say of one arm in a record; ratios are baseline / arm, more is faster.

    A record has no consecutive runs, so medians of its interleaved samples stand in for them;
    they are spared the drift that medians of one run after the other suffer.
    """

    welch: str
    mann_whitney: str
    ratio_of_medians: float


def judge_record(run: Run, case: str, arm: str) -> Verdicts:
    """All samples of an arm against all of the baseline and its twin, unpaired.

    Raises:
        ValueError: fewer than two usable samples of either.
    """
    samples = [s for s in run.of(Sample) if s.case == case and s.is_usable]
    names = (run.header.baseline, TWIN)
    base = np.array([[s.seconds for s in samples if s.arm in names]])
    own = np.array([[s.seconds for s in samples if s.arm == arm]])
    if min(base.size, own.size) < 2:
        raise ValueError(f"{case}: {base.size} samples of the baseline, {own.size} of {arm}")
    return Verdicts(
        welch=verdict(int(welch(base, own)[0])),
        mann_whitney=verdict(int(mann_whitney(base, own)[0])),
        ratio_of_medians=float(np.median(base) / np.median(own)),
    )


def verdict(sign: int) -> str:
    return {1: "FASTER", -1: "SLOWER", 0: "UNDECIDED"}[sign]


def welch(base: Floats, arm: Floats) -> NDArray[np.int64]:
    """Of each row of seconds: 1 where the arm is faster, -1 slower, 0 undecided (Welch 1947)."""
    from scipy import stats as scipy_stats

    found = scipy_stats.ttest_ind(base, arm, axis=1, equal_var=False)
    return _signs(found.statistic, found.pvalue < WELCH_LEVEL)


def mann_whitney(base: Floats, arm: Floats) -> NDArray[np.int64]:
    """The same by the U test as asv has it, and by the sign of the difference of medians."""
    from scipy import stats as scipy_stats

    counts = base.shape[1], arm.shape[1]
    if 1 / math.comb(sum(counts), min(counts)) >= ASV_LEVEL:
        return np.zeros(len(base), np.int64)
    method = "asymptotic" if max(counts) > ASV_EXACT else "exact"
    found = scipy_stats.mannwhitneyu(base, arm, axis=1, use_continuity=False, method=method)
    return _signs(np.median(base, 1) - np.median(arm, 1), found.pvalue < ASV_LEVEL)


def medians(base: Floats, arm: Floats) -> NDArray[np.int64]:
    """The same by the ratio of medians and a threshold."""
    ratio = np.median(base, 1) / np.median(arm, 1)
    return _signs(np.log(ratio), np.abs(np.log(ratio)) > math.log1p(MEDIANS_THRESHOLD))


def _signs(difference: Any, decided: Any) -> NDArray[np.int64]:
    signs: NDArray[np.int64] = np.where(decided, np.sign(difference), 0).astype(np.int64)
    return signs
