"""What a terminal shows while a run goes on: ratios so far, and what remains."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gemvbench.progress import Pace
from gemvbench.record import Run
from gemvbench.report import units
from gemvbench.report.document import Section
from gemvbench.report.formats import SO_FAR
from gemvbench.standing import Standing, standings

_AROUND = 8
"""Lines of a terminal that are no rows: title, head, notes, where they wrap, and the bar."""


def live_section(run: Run, pace: Pace, lines: int) -> Section:
    """All arms, in a terminal of so many lines; where they do not fit, open ones go first."""
    found = standings(run, pace.last_look)
    shown = _fitting(found, max(3, lines - _AROUND))
    left_out = len(found) - len(shown)
    several = len(run.header.cases) > 1
    verdict = f"verdict at look {pace.last_look}" if pace.last_look else "verdict"
    columns = ("case",) * several + ("arm", "ratio so far", "interval so far", verdict, "")
    names = [one.case for one in shown]
    looks = ", ".join(map(str, pace.looks))
    return Section(
        title=_pace(pace),
        columns=columns,
        rows=tuple(
            ("" if before == one.case else one.case,) * several + _row(one)
            for before, one in zip(["", *names], shown, strict=False)
        ),
        notes=(
            *([f"{left_out} more arms do not fit on this terminal."] if left_out else ()),
            f"Only looks decide, after {looks} blocks; a later one may say otherwise.",
        ),
    )


def _fitting(found: Sequence[Standing], room: int) -> list[Standing]:
    """As many as fit, open ones first, in the order of the run."""
    ranked = sorted(range(len(found)), key=lambda n: (not found[n].is_open, n))
    return [found[n] for n in sorted(ranked[:room])]


def _row(one: Standing) -> tuple[str, ...]:
    interval = one.interval
    verdict = one.verdict if one.is_out or not one.verdict else f"{one.verdict} {SO_FAR}"
    return (
        one.arm,
        units.ratio(interval.ratio if interval else None),
        units.interval(interval.ci if interval else None),
        verdict,
        _state(one),
    )


def _state(one: Standing) -> str:
    if one.is_out:
        return "out"
    if not one.decides:
        return ""
    return "open" if one.is_open else "settled"


def _pace(pace: Pace) -> str:
    """Blocks done and left, with the times as they were when this was written."""
    parts = [f"{pace.done} of {pace.most} blocks"]
    look, wait = pace.next_look, pace.seconds_to(pace.next_look or pace.most)
    if look is not None:
        parts.append(f"look after {look}" + (f" in about {_span(max(wait, 1))}" if wait else ""))
    most, left = pace.seconds_to(pace.most), None
    if pace.budget.seconds is not None:
        left = max(0.0, pace.budget.seconds - pace.budget.spent())
        parts.append(f"{_span(left)} of the budget of {_span(pace.budget.seconds)} left")
        most = None if most is None else min(most, left)
    if most:
        parts.append(f"at {time.strftime('%H:%M:%S')} at most {_span(most)} to go")
    return ", ".join(parts)


def _span(seconds: float) -> str:
    """A time for people: seconds, then minutes, then hours."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"
