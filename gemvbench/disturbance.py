"""What disturbed a run: drift of the baseline, effect of the slot, legs in a slow mode. Pure.

Drift and slots decide nothing: pairing within passes and balanced orders are there so that they
need not. They tell a reader what kind of machine the verdicts were made on.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gemvbench.messages import Sample
from gemvbench.stats import is_slow


def drift(samples: Sequence[Sample], baseline: str) -> float:
    """The baseline's slowest pass over its fastest, as a ratio; 1 with fewer than two."""
    seconds = [s.seconds for s in samples if s.arm == baseline and s.is_usable]
    return max(seconds) / min(seconds) if len(seconds) > 1 else 1.0


def slot_effect(means: Mapping[int, float]) -> float:
    """Slowest over fastest slot of a pass, by `slot_means`, as a ratio."""
    slots = means.values()
    return math.exp(max(slots) - min(slots)) if len(slots) > 1 else 1.0


def slot_means(samples: Sequence[Sample]) -> dict[int, float]:
    """By slot: its mean log time, arms and passes taken out.

    Each arm's mean log and each pass's mean residual are subtracted; orders are balanced, so
    what is left by slot is the slot's.
    """
    logs = {
        (s.block, s.pass_, s.slot): (s.arm, math.log(s.seconds)) for s in samples if s.is_usable
    }
    by_arm: dict[str, list[float]] = defaultdict(list)
    for arm, value in logs.values():
        by_arm[arm].append(value)
    means = {arm: statistics.fmean(values) for arm, values in by_arm.items()}
    rest = {place: value - means[arm] for place, (arm, value) in logs.items()}
    by_pass: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (block, pass_, _), value in rest.items():
        by_pass[block, pass_].append(value)
    level = {place: statistics.fmean(values) for place, values in by_pass.items()}
    by_slot: dict[int, list[float]] = defaultdict(list)
    for (block, pass_, slot), value in rest.items():
        by_slot[slot].append(value - level[block, pass_])
    return {slot: statistics.fmean(values) for slot, values in sorted(by_slot.items())}


def slow_mode(samples: Sequence[Sample]) -> tuple[int, float]:
    """(how many of one arm's measurements are slow, their median over that of the others)."""
    seconds = np.array([s.seconds for s in samples if s.is_usable])
    slow = is_slow(np.log(seconds))
    if not slow.any():
        return 0, 1.0
    return int(slow.sum()), float(np.median(seconds[slow]) / np.median(seconds[~slow]))
