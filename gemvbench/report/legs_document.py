"""Legs as a document: the verdict first, then what it rests on."""

from __future__ import annotations

import math
import shlex
import statistics
from typing import Any

import msgspec

from gemvbench.legs.findings import Findings, Found, SideFound
from gemvbench.legs.lines import SIDES, LegDone, Metric
from gemvbench.report import units
from gemvbench.report.document import Document, Section

_COLUMNS = ("metric", "verdict", "ratio", "interval", "pairs won", "A", "B", "all pairs", "floor")


def legs_document(found: Findings) -> Document:
    """One row for each metric; legs that failed or were slow are named below."""
    settings = found.run.header.settings
    section = Section(
        title="B against A",
        columns=_COLUMNS,
        rows=tuple(map(_row, found.metrics)),
        lead=tuple(_headline(each, found) for each in found.metrics),
        notes=(
            *_commands(found),
            f"Ratio: cost of A over cost of B, more is better for B; {settings.confidence:.4g} "
            f"intervals over pairs, for {_count(len(settings.metrics), 'metric')} and "
            f"{_count(len(settings.looks), 'look')} together ({found.level:.4g} each). It takes "
            f"{settings.looks[0]} pairs to decide; looks after "
            f"{', '.join(map(str, settings.looks))}.",
            *(line for each in found.metrics for line in _notes(each)),
            *_failures(found),
            *_floor_lines(found),
            *([f"VOID: {found.void}"] if found.void else []),
            *found.run.damage,
            *_how_it_ended(found),
            *_where_and_how(found),
        ),
    )
    measured = Section(
        title="Measured from outside, all legs that ended well (median; not judged)",
        columns=("", "wall", "cpu", "memory"),
        rows=tuple(_outside(found, side) for side in SIDES),
    )
    return Document((section, measured), _data(found), [_record(each) for each in found.metrics])


def _headline(each: Found, found: Findings) -> str:
    judged = each.judgement
    verdict = "VOID" if found.void else judged.verdict
    reason = f"; {_reason(each)}" if judged.reason else ""
    return (
        f"{each.metric.name}: {verdict}, ratio {units.ratio(judged.interval.ratio)} "
        f"({units.interval(judged.interval.ci)}), {each.won} of {each.clean} clean pairs won"
        f"{reason}"
    )


def _reason(each: Found) -> str:
    """The rule speaks of blocks; here a pair is one."""
    return each.judgement.reason.replace("blocks", "clean pairs")


def _row(each: Found) -> tuple[str, ...]:
    judged = each.judgement
    floor = "-" if each.floor is None else units.effect(_reach(each))
    return (
        each.metric.name,
        judged.verdict,
        units.ratio(judged.interval.ratio),
        units.interval(judged.interval.ci),
        f"{each.won} of {each.clean}",
        value(each.metric, each.a.median),
        value(each.metric, each.b.median),
        units.ratio(judged.all_pairs.ratio),
        floor,
    )


def _reach(each: Found) -> float:
    """How far A may differ from itself: the end of the floor's interval that lies farther out."""
    assert each.floor is not None
    return max(abs(each.floor.low), abs(each.floor.high))


def value(metric: Metric, number: float | None) -> str:
    """A metric as people read it."""
    if metric.source in ("wall", "cpu"):
        return units.seconds(number)
    if number is None or not math.isfinite(number):
        return "-"
    return units.size(int(number)) if metric.source == "memory" else f"{number:.5g}"


def _commands(found: Findings) -> list[str]:
    header = found.run.header
    lines = []
    for side in SIDES:
        program = header.side(side)
        names = [f"{name}={text}" for name, text in program.environment.items()]
        lines.append(f"{side}: {' '.join([*names, shlex.join(program.argv)])}")
    return lines


def _notes(each: Found) -> list[str]:
    name, judged = each.metric.name, each.judgement
    lines = []
    if judged.removed:
        lines.append(
            f"{name}: {judged.removed} of {judged.pairs} pairs mix a slow leg with another and are "
            f"set aside; over all pairs the ratio is {units.ratio(judged.all_pairs.ratio)} "
            f"({units.interval(judged.all_pairs.ci)})."
        )
    for side, its in (("A", each.a), ("B", each.b)):
        if its.slow:
            lines.append(f"{name}: slow legs of {side}: {', '.join(map(str, its.slow))}.")
    ranges = [f"{side} {_spread(its)}" for side, its in (("A", each.a), ("B", each.b))]
    drift = "" if each.drift is None else f"; pairs drifted {each.drift - 1:.2%} in all"
    slot = "" if each.slot is None else f"; the second leg of a pair costs {each.slot - 1:+.2%}"
    sign = "" if each.sign_p is None else f"; sign test p = {each.sign_p:.2g}"
    lines.append(f"{name}: clean legs, peak to peak: {', '.join(ranges)}{drift}{slot}{sign}.")
    if each.twice:
        lines.append(f"{name} was there more than once in {each.twice} legs; the last one counts.")
    return lines


def _spread(its: SideFound) -> str:
    return "-" if its.clean_range is None else f"{its.clean_range - 1:.2%}"


def _floor_lines(found: Findings) -> list[str]:
    """What A against itself says; a hint where it was not asked."""
    lines = []
    for each in found.metrics:
        if each.floor is not None:
            low, high = (1 / bound for bound in reversed(each.floor.ci))
            lines.append(
                f"{each.metric.name}: A against itself, {each.floor.blocks} pairs: second over "
                f"first run {1 / each.floor.ratio:.3f} ({low:.3f} .. {high:.3f}); the noise floor "
                f"is {units.effect(_reach(each))}."
            )
    if not lines:
        lines.append("No floor: --aa N runs A against itself too.")
    return lines


def _failures(found: Findings) -> list[str]:
    failed = [leg for leg in found.run.legs if leg.reason]
    if not failed:
        return []
    counts = ", ".join(f"{side} {count}" for side, count in found.failures.items())
    lines = [f"Failed legs, their pairs removed: {counts}."]
    lines += [f"  leg {leg.number} ({_whose(leg)}): {leg.reason}" for leg in failed[:5]]
    return lines + ([f"  and {len(failed) - 5} more"] if len(failed) > 5 else [])


def _whose(leg: LegDone) -> str:
    return leg.side if leg.kind == "ab" else "A against itself"


def _how_it_ended(found: Findings) -> list[str]:
    ended = found.run.ended
    planned = found.run.header.settings.pairs
    pairs = found.usable_pairs
    if ended is None:
        return ["The record has no end: the run goes on, or was killed."]
    if ended.reason != "complete":
        return [f"The run ended early: {ended.reason}. Above is what was measured until then."]
    return [f"{pairs} pairs of {planned} planned, in {ended.seconds:.3g} s."]


def _where_and_how(found: Findings) -> list[str]:
    """The machine, and the command that does it again."""
    header = found.run.header
    known = [header.environment.get(name, "") for name in ("cpu", "system")]
    return [
        f"On {', '.join(filter(None, known)) or 'a machine that is not known'}, {header.started}.",
        shlex.join(("gemvbench", *header.arguments)),
    ]


def _outside(found: Findings, side: str) -> tuple[str, ...]:
    legs = [
        leg for leg in found.run.legs if leg.side == side and leg.kind == "ab" and not leg.reason
    ]
    if not legs:
        return (side, "-", "-", "-")
    return (
        side,
        units.seconds(statistics.median(leg.wall for leg in legs)),
        units.seconds(statistics.median(leg.cpu for leg in legs)),
        _memory([leg.memory for leg in legs]),
    )


def _memory(peaks: list[int]) -> str:
    """Of the legs that were looked at before they ended."""
    known = [peak for peak in peaks if peak]
    return units.size(int(statistics.median(known))) if known else "-"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _record(each: Found) -> dict[str, Any]:
    judged = each.judgement
    return {
        "metric": each.metric.name,
        "verdict": judged.verdict,
        "reason": _reason(each),
        "ratio": judged.interval.ratio,
        "ci_low": judged.interval.ci[0],
        "ci_high": judged.interval.ci[1],
        "pairs": judged.pairs,
        "removed": judged.removed,
        "won": each.won,
        "clean": each.clean,
        "sign_p": each.sign_p,
        "median_a": each.a.median,
        "median_b": each.b.median,
        "all_pairs_ratio": judged.all_pairs.ratio,
        "noise_floor": None if each.floor is None else math.expm1(_reach(each)),
        "slow_a": len(each.a.slow),
        "slow_b": len(each.b.slow),
    }


def _data(found: Findings) -> dict[str, Any]:
    header = found.run.header
    return {
        "schema": header.schema,
        "confidence": header.settings.confidence,
        "looks": header.settings.looks,
        "a": msgspec.to_builtins(header.a),
        "b": msgspec.to_builtins(header.b),
        "void": found.void,
        "ended": None if found.run.ended is None else found.run.ended.reason,
        "failures": found.failures,
        "results": [_record(each) for each in found.metrics],
    }
