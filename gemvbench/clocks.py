"""Clocks: of arms that ran at different ones, and of devices whose event clock is wrong. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from gemvbench.case_results import CaseView
from gemvbench.messages import RoofMeasured, Sample
from gemvbench.record import Run
from gemvbench.result import Result

CLOCKS_DIFFER = 0.005
"""SM clocks of an arm and its baseline that differ by more are flagged."""

EVENT_CLOCK = 0.02
"""An event clock that is off the host's by more is flagged."""


def with_cycles(result: Result, view: CaseView) -> Result:
    """A result flagged, and with its ratio in cycles, where its clock was another one.

    The cycles of the baseline over those of the arm: the ratio of times, less the median
    over passes of log(clock of the arm / mean clock of base and twin).
    """
    is_baseline = result.arm in view.baselines
    if result.ratio is None or is_baseline or not _on_one_device(result, view):
        return result
    shift = _clock_shift(
        view.usable_of(result.arm),
        [s for label in view.bases_of(result.arm) for s in view.usable_of(label)],
    )
    if shift is None or abs(math.expm1(shift)) <= CLOCKS_DIFFER:
        return result
    return msgspec.structs.replace(
        result,
        flags=(*result.flags, f"clocks differ ({math.expm1(shift):+.1%})"),
        cycles_ratio=result.ratio / math.exp(shift),
    )


def event_clocks(run: Run) -> dict[str, float]:
    """Event span over host span by device, where that is off by more than 2 %."""
    return {d: ratio for d, ratio in measured_clocks(run).items() if abs(ratio - 1) > EVENT_CLOCK}


def measured_clocks(run: Run) -> dict[str, float]:
    """Event span over host span by device.

    Of a device's read kernels, each timed over half a second, the one nearest to 1 counts: a
    wrong clock is wrong in all of them, a busy host only in some.
    """
    found: dict[str, float] = {}
    for roof in run.of(RoofMeasured):
        best = found.get(roof.device, math.inf)
        if abs(roof.event_clock - 1) < abs(best - 1):
            found[roof.device] = roof.event_clock
    return found


def _on_one_device(result: Result, view: CaseView) -> bool:
    """Cycles of two devices are not the same thing; one GPU under two drivers is one device."""
    memories = {device.id: device.memory for device in view.header.devices}
    return memories[result.device] == memories[view.choices[0].device]


def _clock_shift(own: Sequence[Sample], others: Sequence[Sample]) -> float | None:
    """Median over passes of log(clock / mean clock of the others); None where none is known."""
    theirs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for sample in others:
        clock = _sm_mhz(sample)
        if clock:
            theirs[sample.block, sample.pass_].append(math.log(clock))
    shifts = [
        math.log(clock) - statistics.fmean(theirs[sample.block, sample.pass_])
        for sample in own
        if (clock := _sm_mhz(sample)) and theirs[sample.block, sample.pass_]
    ]
    return statistics.median(shifts) if shifts else None


def _sm_mhz(sample: Sample) -> float | None:
    """Mean of the readings around a measurement."""
    states = [state for state in (sample.before, sample.after) if state is not None]
    clocks = [state.sm_mhz for state in states if state.sm_mhz]
    return statistics.fmean(clocks) if clocks else None
