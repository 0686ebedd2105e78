"""Flags: what a reader should know of a measurement before believing it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gemvbench.disturbance import slow_mode
from gemvbench.messages import Leg, Sample
from gemvbench.stats import Interval, hodges_lehmann, t_interval

HOST_BOUND_SHARE = 0.8
"""A leg whose queue was not full and took this share of its time to fill is host-bound."""

NON_LINEAR = 0.03
COMPUTE_BOUND = 0.20
COMPUTE_BOUND_FLAG = "compute-bound"
LAUNCH_GAP = 0.10
_FLAG_LEVEL = 0.999
_NOT_HELD_BACK = {"ApplicationsClocksSetting", "DisplayClockSetting", "SyncBoost"}
"""Reasons NVML gives for a clock that somebody chose."""


def find_flags(samples: Sequence[Sample], roof: Interval | None) -> tuple[str, ...]:
    """Flags of one arm on one case, from all of its samples."""
    found = []
    usable = [sample for sample in samples if sample.is_usable]
    seconds = np.array([sample.seconds for sample in usable])
    unusable = len(samples) - len(usable)
    if unusable:
        found.append(f"{unusable} of {len(samples)} measurements not positive")
    bound = sum(_host_bound(sample.long) for sample in samples)
    if bound:
        found.append(f"host-bound in {bound} of {len(samples)}")
    held = [reasons for sample in samples if (reasons := _held_back(sample))]
    if held:
        names = ", ".join(sorted(set().union(*held)))
        found.append(f"throttled in {len(held)} of {len(samples)} ({names})")
    slow, factor = slow_mode(seconds)
    if slow:
        found.append(f"slow in {slow} of {len(samples)} ({factor:.2f}x)")
    bend = non_linearity(usable)
    if bend is not None:
        found.append(f"non-linear ({bend:+.1%})")
    gap = launch_gap(usable)
    if gap is not None and gap > LAUNCH_GAP:
        found.append(f"launch gaps {gap:.0%}")
    if roof is not None and roof.ratio < COMPUTE_BOUND:
        found.append(COMPUTE_BOUND_FLAG)
    return tuple(found)


def non_linearity(samples: Sequence[Sample]) -> float | None:
    """How much more a call costs in the first half of a leg than over all of it, if it does.

    Of usable samples, as those of `launch_gap` are.

    None unless the t interval over blocks (99.9 %) excludes zero and the effect matters.
    """
    bends: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.middle is None:
            continue
        early = _per_call(sample.middle, sample.short)
        if early > 0:
            bends[sample.block].append(math.log(early / sample.seconds))
    if len(bends) < 3:
        return None
    interval = t_interval([hodges_lehmann(values) for values in bends.values()], _FLAG_LEVEL)
    matters = interval.excludes_zero and abs(interval.estimate) > NON_LINEAR
    return interval.estimate if matters else None


def launch_gap(samples: Sequence[Sample]) -> float | None:
    """Share of the timeline in which no kernel ran, by the sums of kernel times."""
    shares = [
        1 - kernel / sample.seconds
        for sample in samples
        if (kernel := sample.kernel_seconds) is not None
    ]
    return statistics.median(shares) if shares else None


def _host_bound(leg: Leg) -> bool:
    return not leg.queued_ahead and leg.enqueue > HOST_BOUND_SHARE * leg.timeline


def _held_back(sample: Sample) -> set[str]:
    """Why the GPU's clock was lower than it could be, by NVML, around a measurement."""
    states = [state for state in (sample.before, sample.after) if state is not None]
    reasons = {reason for state in states for reason in state.throttle_reasons or ()}
    return reasons - _NOT_HELD_BACK


def _per_call(longer: Leg, shorter: Leg) -> float:
    return (longer.timeline - shorter.timeline) / (longer.calls - shorter.calls)
