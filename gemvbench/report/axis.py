"""Where the axes of pictures end, drawn or in text."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gemvbench.stats import Array

_FURTHEST_RATIO = 0.04
"""Ratios below (or above the inverse) do not widen an axis."""
_FURTHEST = 4.0
"""Times the spread of most: what lies further out is drawn at the edge."""


def ratio_limits(ratios: Iterable[float]) -> tuple[float, float]:
    """Of all ratios and 1, with room on a log axis; what lies very far out does not count."""
    ends = (min(max(end, _FURTHEST_RATIO), 1 / _FURTHEST_RATIO) for end in (1.0, *ratios))
    logs = [math.log(end) for end in ends]
    room = max((max(logs) - min(logs)) * 0.06, 0.002)
    return math.exp(min(logs) - room), math.exp(max(logs) + room)


def window(change: Array) -> tuple[float, float]:
    """Where most of some percentages lie, and all of it if that is not much more."""
    low, high = (float(end) for end in np.quantile(change, (0.02, 0.98)))
    most = max(abs(low), abs(high), 0.2)
    return max(float(change.min()), -_FURTHEST * most), min(float(change.max()), _FURTHEST * most)
