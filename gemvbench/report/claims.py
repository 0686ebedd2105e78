"""What a run says, in sentences a kernel author can repeat."""

from __future__ import annotations

from collections import Counter

from gemvbench.cases import is_part
from gemvbench.plan import TWIN
from gemvbench.report import units
from gemvbench.result import Result
from gemvbench.results import Summary

_MOST_NAMED = 4
"""Arms of one case that a sentence on the run names."""


def claim(result: Result) -> str:
    """One sentence on one arm."""
    name = f"{result.arm} against {result.baseline}"
    if result.ratio is None or result.ci is None or result.verdict in ("WRONG", "FAILED"):
        return f"{result.arm}: {result.verdict}, {result.reason.partition(chr(10))[0]}"
    bounds = f"ratio {units.ratio(result.ratio)}, interval {units.interval(result.ci)}"
    if result.verdict == "FASTER":
        said = f"FASTER, {units.ratio(result.ratio)}x the speed"
    elif result.verdict == "SLOWER":
        said = f"SLOWER, {units.ratio(result.ratio)}x the speed"
    else:
        said = result.verdict
    why = f"; {result.reason}" if result.reason else ""
    return f"{name}: {said} ({bounds}, {result.blocks} blocks){why}."


def claimed(results: tuple[Result, ...]) -> list[Result]:
    """The arms that something is claimed of: neither the baseline nor its twin."""
    return [r for r in results if r.arm != TWIN and r.verdict != "BASELINE"]


def headline(summary: Summary) -> str:
    """One sentence on a whole run; classes of layers only show where a token's time goes."""
    cases = [case.id for case in summary.run.header.cases if not is_part(case)]
    arms = [result for result in claimed(summary.results) if result.case in cases]
    if len(arms) == 1:
        return f"On {arms[0].case} ({arms[0].device}), {claim(arms[0])}"
    where = cases[0] if len(cases) == 1 else f"{len(cases)} cases"
    against = {result.baseline for result in arms}
    baseline = min(against) if len(against) == 1 else "their own baselines"
    if len(arms) <= _MOST_NAMED and len(cases) == 1:
        said = ", ".join(_brief(result) for result in arms)
        return f"Against {baseline} on {where}: {said}."
    verdicts = Counter(result.verdict for result in arms)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return f"Against {baseline} on {where}, of {len(arms)} comparisons: {counts}."


def _brief(result: Result) -> str:
    if result.ratio is None or result.verdict in ("WRONG", "FAILED"):
        return f"{result.arm} is {result.verdict}"
    return f"{result.arm} is {result.verdict} (ratio {units.ratio(result.ratio)})"
