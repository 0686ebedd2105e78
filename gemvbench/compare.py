"""Two records of the same arms: is the later run faster or slower? Pure.

Absolute times of two runs differ by what the machine did meanwhile. So an arm is compared by
its ratio to a reference that is the same code in both runs: block effects of B against those of
A, by Welch's unequal-variance t interval. Each run chose when to stop by its own looks, so all
pairs of looks hold together (Bonferroni), with all arms and cases.

Where no reference is the same, nothing is decided, unless earlier runs tell how much a run
differs from the next: then absolute times are compared, with that added to the interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gemvbench import stats
from gemvbench.between_runs import MIN_RUNS, add_run_spread, welch
from gemvbench.case_results import CaseView
from gemvbench.jobs import Choice, identical
from gemvbench.outcome import Specialization
from gemvbench.plan import TWIN
from gemvbench.result import Result
from gemvbench.results import Summary

REFERENCE = "REFERENCE"
_REFUSED = ("WRONG", "FAILED", "DECLINED", "INVALID")
_BROKEN = ("WRONG", "FAILED")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one case. Ratios are time in A over time in B: more than 1 is faster in B."""

    case: str
    arm: str
    device: str
    verdict: str
    reason: str = ""
    reference: str = ""
    """What both are measured against: an arm, "earlier runs", or "" for nothing."""
    identical: bool = False
    """Whether the arm itself is the same code in both."""
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    blocks: tuple[int, int] = (0, 0)
    seconds: tuple[float | None, float | None] = (None, None)
    times_ratio: float | None = None
    """Of the absolute times alone, which is no verdict."""
    newly_broken: bool = False
    """WRONG or FAILED in B, and not in A."""
    flags: tuple[str, ...] = ()

    @property
    def is_compared(self) -> bool:
        """Whether the data could have decided."""
        return self.ci is not None and min(self.blocks) >= stats.MIN_BLOCKS


@dataclass(frozen=True)
class Terms:
    """What is compared and how: fixed before any effect is looked at."""

    cases: tuple[str, ...]
    confidence: float
    min_effect: float


@dataclass(frozen=True)
class _Effects:
    """Block effects of both runs on the log scale, more is faster, and what they refer to."""

    a: list[float]
    b: list[float]
    reference: str
    modes_differ: bool = False
    """Whether arm or reference is slow more often than the other in one of the runs."""

    @property
    def blocks(self) -> tuple[int, int]:
        return len(self.a), len(self.b)


def compare(a: Summary, b: Summary, earlier: Sequence[Summary], terms: Terms) -> list[Row]:
    """A row for each arm that both records have on the same device, case by case."""
    pairs = [_Pair(a, b, case, label) for case in terms.cases for label in _common_arms(a, b, case)]
    count = sum(not pair.is_reference for pair in pairs)
    # The two runs ended at any pair of their looks, each by its own data: all pairs hold together.
    looks = len(a.run.header.settings.looks) * len(b.run.header.settings.looks)
    level = stats.family_level(terms.confidence, count, looks)
    return [_row(pair, earlier, level, terms.min_effect) for pair in pairs]


class _Pair:
    """An arm of a case as both records have it."""

    def __init__(self, a: Summary, b: Summary, case: str, label: str) -> None:
        self.case, self.label = case, label
        self.views = a.views[case], b.views[case]
        self.choices = tuple(_choice(view, label) for view in self.views)
        self.results = tuple(_results(summary, case) for summary in (a, b))
        self.own = self.results[0][label], self.results[1][label]
        one, other = (v.build_of(c) for v, c in zip(self.views, self.choices, strict=True))
        self.identical = identical(one, other)
        self.references = self._find_references()

    @property
    def is_reference(self) -> bool:
        """Whether this is what the others are compared with."""
        return self.references[:1] == [(self.label, self.label)]

    def effects(self) -> _Effects | None:
        """Over the first reference that has blocks enough, else over the first with any."""
        found = []
        for labels in self.references:
            if self.label in labels:
                continue
            name = labels[0] if labels[0] == labels[1] else " / ".join(labels)
            found.append(self._effects_against(labels, name))
        enough = [each for each in found if min(each.blocks) >= stats.MIN_BLOCKS]
        return next((each for each in (*enough, *found) if min(each.blocks)), None)

    def _effects_against(self, labels: tuple[str, str], name: str) -> _Effects:
        sides, modes = [], False
        for view, results, label in zip(self.views, self.results, labels, strict=True):
            references = _with_twin(view, results, label)
            sides.append(list(view.effects(self.label, references).values()))
            logs = [view.logs.of(reference) for reference in references]
            modes |= stats.modes_differ(view.logs.of(self.label), logs)
        return _Effects(sides[0], sides[1], name, modes)

    def _find_references(self) -> list[tuple[str, str]]:
        """Arms that are the same code in both: the frozen kernel, the baselines, any other."""
        device = self.choices[0].device
        ranked = sorted(
            (_rank(self.views, one, other), one.label, other.label)
            for one in self.views[0].choices
            for other in self.views[1].choices
            if one.device == other.device == device
            and identical(self.views[0].build_of(one), self.views[1].build_of(other))
            and _is_sound(self.views[0], self.results[0][one.label])
            and _is_sound(self.views[1], self.results[1][other.label])
        )
        return [(one, other) for _, one, other in ranked]


def _row(pair: _Pair, earlier: Sequence[Summary], level: float, min_effect: float) -> Row:
    a, b = pair.own
    row = Row(
        case=pair.case,
        arm=pair.label,
        device=b.device,
        verdict="UNDECIDED",
        identical=pair.identical,
        seconds=(a.seconds_per_call, b.seconds_per_call),
        times_ratio=_ratio(a, b),
        newly_broken=b.verdict in _BROKEN and a.verdict not in _BROKEN,
        flags=_flags(pair),
    )
    refusal = _refusal(pair)
    if refusal is not None:
        verdict, reason = refusal
        return msgspec.structs.replace(row, verdict=verdict, reason=reason)
    if pair.is_reference:
        return msgspec.structs.replace(row, verdict=REFERENCE, ratio=1.0)
    effects = pair.effects()
    if effects is not None:
        interval = welch(effects.a, effects.b, level)
        return _decided(row, pair, effects, interval, min_effect)
    return _by_earlier_runs(row, pair, earlier, level, min_effect)


def _by_earlier_runs(
    row: Row, pair: _Pair, earlier: Sequence[Summary], level: float, min_effect: float
) -> Row:
    """Absolute times, where enough earlier runs of the same arm tell what they are worth."""
    runs = [value for summary in earlier for value in _run_values(pair, summary)]
    reason = "no other arm is the same code in both records"
    if len(runs) < MIN_RUNS:
        if earlier:
            reason += f", and {len(runs)} of at least {MIN_RUNS} earlier runs hold this one"
        return msgspec.structs.replace(row, reason=reason)
    a, b = (_block_speeds(view, pair.label) for view in pair.views)
    effects = _Effects(a, b, "earlier runs")
    interval = add_run_spread(welch(a, b, level), runs, level)
    return _decided(row, pair, effects, interval, min_effect)


def _decided(
    row: Row, pair: _Pair, effects: _Effects, interval: stats.Interval, min_effect: float
) -> Row:
    verdict, reason = stats.decide(interval, min_effect)
    alarm = max(view.twin_alarm for view in pair.views)
    if verdict != "UNDECIDED" and effects.modes_differ:
        verdict, reason = "UNDECIDED", stats.MODES
    if math.isnan(interval.low):
        verdict, reason = "UNDECIDED", "the blocks do not differ at all, as no measurement does"
    if verdict != "UNDECIDED" and abs(interval.estimate) < 2 * alarm:
        verdict, reason = "UNDECIDED", "smaller than twice the twin's effect in one of the runs"
    small = verdict in ("FASTER", "SLOWER") and abs(interval.estimate) < math.log1p(min_effect)
    return msgspec.structs.replace(
        row,
        verdict=verdict,
        reason=reason or "",
        reference=effects.reference,
        ratio=interval.ratio,
        ci=interval.ci,
        blocks=effects.blocks,
        flags=(*row.flags, "small") if small else row.flags,
    )


def _refusal(pair: _Pair) -> tuple[str, str] | None:
    """What either run says of the arm that leaves nothing to compare."""
    a, b = pair.own
    if b.verdict in _REFUSED:
        return b.verdict, b.reason
    if a.verdict in _REFUSED:
        return "UNDECIDED", f"{a.verdict} in A: {a.reason}"
    for name, view, result in zip("AB", pair.views, pair.own, strict=True):
        unknown = view.unknown(pair.label)
        if unknown or result.seconds_per_call is None:
            return "UNDECIDED", f"{name}: {unknown or result.reason}"
    return None


def _flags(pair: _Pair) -> tuple[str, ...]:
    """Whether the arm is the same, and what the runs say of it: what both say, once."""
    a, b = ([f for f in own.flags if not _is_of_the_run(f)] for own in pair.own)
    return (
        *(("identical in both",) if pair.identical else ()),
        *(flag for flag in a if flag in b),
        *(f"A: {flag}" for flag in a if flag not in b),
        *(f"B: {flag}" for flag in b if flag not in a),
    )


def _is_of_the_run(flag: str) -> bool:
    """Whether a flag is about the run's own comparison with its baseline."""
    return flag == "small" or flag.startswith("identical to")


def _common_arms(a: Summary, b: Summary, case: str) -> list[str]:
    """Labels of arms that both have on the same device, in A's order."""
    there = {(choice.label, choice.device) for choice in b.views[case].choices}
    return [c.label for c in a.views[case].choices if (c.label, c.device) in there]


def _with_twin(view: CaseView, results: dict[str, Result], reference: str) -> list[str]:
    """The reference, and its twin where it has one: a second measurement for free."""
    twin = reference == view.baseline and _is_sound(view, results[TWIN])
    return [reference, TWIN] if twin else [reference]


def _block_speeds(view: CaseView, arm: str) -> list[float]:
    """Minus log seconds per call by block, up to the last look."""
    speeds = stats.block_effects(-view.logs.of(arm))
    return list(stats.at_look(speeds, view.header.settings.looks))


def _run_values(pair: _Pair, earlier: Summary) -> list[float]:
    """The log speed of the same arm in an earlier run, if that has it."""
    view = earlier.views.get(pair.case)
    if view is None or earlier.void:
        return []
    mine = pair.views[0].build_of(pair.choices[0])
    results = _results(earlier, pair.case)
    return [
        statistics.fmean(_block_speeds(view, choice.label))
        for choice in view.choices
        if choice.label == pair.label
        and choice.device == mine.choice.device
        and identical(mine, view.build_of(choice))
        and _is_sound(view, results[choice.label])
    ]


def _is_sound(view: CaseView, result: Result) -> bool:
    """Whether an arm was right and measured, so that others can be held against it."""
    measured = result.verdict not in _REFUSED and result.seconds_per_call is not None
    return measured and not view.unknown(result.arm)


def _rank(views: tuple[CaseView, CaseView], one: Choice, other: Choice) -> int:
    if isinstance(one.outcome, Specialization) and one.outcome.family == "frozen":
        return 0
    labels = (one.label, other.label)
    if labels == tuple(view.baseline for view in views):
        return 1
    return 2 if one.label == other.label else 3


def _choice(view: CaseView, label: str) -> Choice:
    (found,) = [choice for choice in view.choices if choice.label == label]
    return found


def _results(summary: Summary, case: str) -> dict[str, Result]:
    return {result.arm: result for result in summary.of_case(case)}


def _ratio(a: Result, b: Result) -> float | None:
    return (
        a.seconds_per_call / b.seconds_per_call
        if a.seconds_per_call and b.seconds_per_call
        else None
    )
