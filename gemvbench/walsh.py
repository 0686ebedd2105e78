"""The median of all pairwise means (Walsh averages) of many values, without making all of them.

520 values have 135,460 of them. In sorted order the partners x_j that keep x_i + x_j between two
ends are a stretch for each x_i, which a binary search finds; so a bracket of the median, taken from
a few order statistics, leaves a small part to select from (after Monahan, Algorithm 616, ACM Trans.
Math. Softw. 10, 1984). The result is that of sorting them all, bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PIECES = 32
"""About as many order statistics give the bracket."""
_SHARE = 0.06
"""Of their sums, what lies between an end of the bracket and the median."""

Array = NDArray[np.float64]


def walsh_median(values: Array) -> float:
    """Of finite values, at least one."""
    x = np.sort(values)
    sums = np.add.outer(part := x[:: max(1, len(x) // _PIECES)], part).ravel()
    ends = [int(len(sums) * (0.5 - _SHARE)), int(len(sums) * (0.5 + _SHARE))]
    low, high = np.partition(sums, ends)[ends]
    found = _select(x, float(low), float(high))
    return _select(x, -np.inf, np.inf) if np.isnan(found) else found


def _select(x: Array, low: float, high: float) -> float:
    """The median, if it surely lies between half of two ends; else NaN."""
    rows = np.arange(len(x))
    first = np.maximum(np.searchsorted(x, low - x, "left"), rows)
    last = np.maximum(np.searchsorted(x, high - x, "right"), rows)
    counts, below = last - first, int((first - rows).sum())
    total, count = len(x) * (len(x) + 1) // 2, int(counts.sum())
    middle = [(total - 1) // 2 - below, total // 2 - below]
    if middle[0] < 0 or middle[1] >= count:
        return np.nan
    partners = np.arange(count) + np.repeat(first - np.cumsum(counts) + counts, counts)
    sums = np.partition(np.repeat(x, counts) + x[partners], middle)[middle]
    # A sum that rounds onto an end may have been left out or not: then the ranks are not sure.
    room = 4 * np.spacing(max(abs(x[0]), abs(x[-1])) * 2)
    if not low + room < sums[0] <= sums[1] < high - room:
        return np.nan
    return float((sums[0] / 2 + sums[1] / 2) / 2)
