"""From a record to results: one for each case and arm. Pure; every report reads this."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from gemvbench import stats
from gemvbench.best import Best, find_best
from gemvbench.case_results import CaseView, Result, Roof
from gemvbench.plan import TWIN
from gemvbench.record import Run


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
    void: str = ""
    """Why the run as a whole is not to be believed; "" where it is."""

    def of_case(self, case: str) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.case == case)


def summarise(run: Run) -> Summary:
    """All results of a record; an arm without samples has its reason instead."""
    views = {case.id: CaseView(run, case) for case in run.header.cases}
    by_case = {case: view.results() for case, view in views.items()}
    results = [result for of_case in by_case.values() for result in of_case]
    best = [find_best(view, by_case[case]) for case, view in views.items()]
    roofs = [roof for view in views.values() for roof in view.roofs()]
    twins = [r for r in results if r.arm == TWIN and r.ci is not None]
    floors = [math.log(r.ci[1] / r.ci[0]) / 2 for r in twins if r.ci and r.ci[0] > 0]
    effects = [
        r.min_detectable_effect
        for r in results
        if r.min_detectable_effect is not None and r.arm != TWIN
    ]
    return Summary(
        run=run,
        views=views,
        results=tuple(results),
        roofs=tuple(roofs),
        best=tuple(filter(None, best)),
        noise_floor=max(floors, default=None),
        min_detectable_effect=statistics.median(effects) if effects else None,
        void=_void([view.twin_effects() for view in views.values()]),
    )


def all_decided(summary: Summary) -> bool:
    """Whether no arm is left that more blocks could decide."""
    return all(result.verdict != "UNDECIDED" or result.arm == TWIN for result in summary.results)


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
