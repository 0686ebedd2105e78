"""What disturbed a run: drift of the baseline, effect of the slot, legs in a slow mode. Pure.

Drift and slots decide nothing: pairing within passes and balanced orders are there so that they
need not. They tell a reader what kind of machine the verdicts were made on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from gemvbench.messages import Sample
from gemvbench.stats import Array, is_slow


def drift(samples: Sequence[Sample], baseline: str) -> float:
    """The baseline's slowest pass over its fastest, as a ratio; 1 with fewer than two."""
    seconds = [s.seconds for s in samples if s.arm == baseline and s.is_usable]
    return max(seconds) / min(seconds) if len(seconds) > 1 else 1.0


def slot_effect(means: Mapping[int, float]) -> float:
    """Slowest over fastest slot of a pass, by `slot_means`, as a ratio."""
    slots = means.values()
    return math.exp(max(slots) - min(slots)) if len(slots) > 1 else 1.0


def slot_means(samples: Sequence[Sample]) -> dict[int, float]:
    """By slot: its mean log time, arms and passes of usable samples taken out.

    Each arm's mean log and each pass's mean residual are subtracted; orders are balanced, so
    what is left by slot is the slot's.
    """
    if not samples:
        return {}
    logs = np.log([sample.seconds for sample in samples])
    rest = _less_group_means(logs, [sample.arm for sample in samples])
    rest = _less_group_means(rest, [(sample.block, sample.pass_) for sample in samples])
    slots = np.array([sample.slot for sample in samples])
    return {int(slot): float(rest[slots == slot].mean()) for slot in np.unique(slots)}


def _less_group_means(values: Array, groups: Iterable[Hashable]) -> Array:
    """Each value less the mean of its group."""
    numbers: dict[Hashable, int] = {}
    places = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    means = np.bincount(places, values) / np.bincount(places)
    rest: Array = values - means[places]
    return rest


def slow_mode(seconds: Array) -> tuple[int, float]:
    """(how many of one arm's measurements are slow, their median over that of the others)."""
    slow = is_slow(np.log(seconds))
    if not slow.any():
        return 0, 1.0
    return int(slow.sum()), float(np.median(seconds[slow]) / np.median(seconds[~slow]))
