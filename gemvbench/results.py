"""From a record to results: one for each case and arm. Pure; every report reads this."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from gemvbench import stats
from gemvbench.best import Best, find_best
from gemvbench.case_results import CaseView
from gemvbench.cases import is_part
from gemvbench.clocks import event_clocks, with_cycles
from gemvbench.contamination import Contamination, find_contamination
from gemvbench.messages import Sample
from gemvbench.plan import TWIN
from gemvbench.record import Ended, Run
from gemvbench.result import Result, Roof

_CUT_SHORT = "without an end: the record is cut short"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run: the worst noise floor of all cases, the median arm's detectable effect."""

    run: Run
    views: dict[str, CaseView]
    """By case id: for comparisons that are no result of their own."""
    results: tuple[Result, ...]
    roofs: tuple[Roof, ...]
    best: tuple[Best, ...]
    """Of each case with several arms."""
    noise_floor: float | None
    min_detectable_effect: float | None
    ended: str
    """How the run ended: "complete", "budget", or what stopped it."""
    void: str = ""
    """Why the run as a whole is not to be believed; "" where it is."""
    flags: tuple[str, ...] = ()
    """Of the run as a whole."""
    contamination: Contamination | None = None
    device_seconds: float = 0.0
    """Sum of all timed device intervals of the blocks."""
    wall_seconds: float | None = None
    """Wall time that the blocks took; None where the record does not say."""
    smallest_budget: float | None = None
    """Where the budget did not reach for a verdict: one that does, in seconds."""

    def of_case(self, case: str) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.case == case)


def summarise(run: Run) -> Summary:
    """All results of a record; an arm without samples has its reason instead."""
    views = {case.id: CaseView(run, case) for case in run.header.cases}
    contamination = find_contamination(run, views)
    by_case = {
        case: [_flagged(with_cycles(result, view), contamination) for result in view.results()]
        for case, view in views.items()
    }
    results = [result for of_case in by_case.values() for result in of_case]
    best = [find_best(view, by_case[case]) for case, view in views.items()]
    roofs = [roof for view in views.values() for roof in view.roofs()]
    twins = [r for of in _deciding(run, by_case) for r in of if r.arm == TWIN and r.ci is not None]
    floors = [floor for twin in twins if (floor := noise_floor(twin)) is not None]
    effects = [
        r.min_detectable_effect
        for of_case in _deciding(run, by_case)
        for r in of_case
        if r.min_detectable_effect is not None and r.arm != TWIN
    ]
    clocks = event_clocks(run)
    ended = next(iter(run.of(Ended)[-1:]), Ended(reason=_CUT_SHORT, seconds=0.0))
    return Summary(
        run=run,
        views=views,
        results=tuple(results),
        roofs=tuple(roofs),
        best=tuple(filter(None, best)),
        noise_floor=max(floors, default=None),
        min_detectable_effect=statistics.median(effects) if effects else None,
        void=_void([view.twin_effects() for view in views.values()]),
        flags=tuple(
            f"event clock of {name} at {at:.3f} of the host's" for name, at in clocks.items()
        ),
        contamination=contamination,
        device_seconds=sum(map(_device_seconds, run.of(Sample))),
        wall_seconds=ended.measuring_seconds,
        ended=ended.reason,
        smallest_budget=ended.smallest_budget,
    )


def noise_floor(twin: Result) -> float | None:
    """Half the width of the twin's interval, as a log; None where it is unbounded."""
    return math.log(twin.ci[1] / twin.ci[0]) / 2 if twin.ci and twin.ci[0] > 0 else None


def all_decided(summary: Summary) -> bool:
    """Whether no arm is left that more blocks could decide."""
    by_case = {case.id: summary.of_case(case.id) for case in summary.run.header.cases}
    return all(
        result.verdict != "UNDECIDED" or result.arm == TWIN
        for of_case in _deciding(summary.run, by_case)
        for result in of_case
    )


def _deciding(run: Run, by_case: Mapping[str, Sequence[Result]]) -> list[Sequence[Result]]:
    """Results of the cases that a run is about; parts of a token only show where its time goes."""
    return [by_case[case.id] for case in run.header.cases if not is_part(case)]


def _flagged(result: Result, contamination: Contamination | None) -> Result:
    """A result with the flag of the check that was made of it, if that found something."""
    if contamination is None or not contamination.contaminated:
        return result
    if (result.case, result.arm) != (contamination.case, contamination.arm):
        return result
    return msgspec.structs.replace(result, flags=(*result.flags, contamination.flag))


def _device_seconds(sample: Sample) -> float:
    legs = (sample.long, sample.short, sample.middle)
    return sum(leg.timeline for leg in legs if leg is not None)


def _void(twins: Sequence[dict[int, float]]) -> str:
    """The alarm: base and twin differ over the whole run, which nothing but a fault explains."""
    blocks = sorted(set().union(*twins)) if twins else []
    means = [statistics.mean(t[block] for t in twins if block in t) for block in blocks]
    if len(means) < stats.MIN_BLOCKS:
        return ""
    interval = stats.t_interval(means, stats.VOID_LEVEL)
    if not interval.excludes_zero:
        return ""
    return (
        f"the baseline and its identical twin differ by {interval.estimate:+.2%} over the run's "
        f"cases, which is no chance at {stats.VOID_LEVEL:.1%}: no verdict of this run is to be "
        "believed. Look for what disturbs the machine, and run it again."
    )
