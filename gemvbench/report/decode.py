"""The report of `decode`: the token, where its time goes, and whether `ab` is to be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from gemvbench.breakdown import CLOSED, Breakdown, Part, break_down
from gemvbench.modes import Mode, find_modes
from gemvbench.operating_point import Point, compare_points
from gemvbench.report import units
from gemvbench.report.closing import closing
from gemvbench.report.comparison import (
    ComparisonJson,
    case_section,
    comparison_document,
)
from gemvbench.report.document import Document, Section
from gemvbench.results import Summary
from gemvbench.token_case import Token

_HALF = ("ms", "GB/s", "of roof", "of token")


class _Json(ComparisonJson, kw_only=True):
    """The object of `ab`, and what only a token has."""

    lengths: tuple[int, int] | None
    launches: str
    tokens: tuple[Breakdown, ...]
    modes: tuple[Mode, ...]
    operating_point: tuple[Point, ...]


def decode_document(summary: Summary) -> Document:
    """The whole token of all arms, then each arm beside the baseline by class of layers."""
    header = summary.run.header
    common = comparison_document(summary)
    tokens, modes = break_down(summary), find_modes(summary)
    points = compare_points(summary)
    whole = case_section(summary, header.cases[0].id)
    notes = (*whole.notes, *map(_token_line, tokens), *_mode_lines(modes))
    by_arm = {token.arm: token for token in tokens}
    against = {token.arm: by_arm.get(token.whole.baseline, token) for token in tokens}
    sections = [
        replace(whole, notes=notes),
        *_attention_sections(summary),
        *(_table(base, by_arm[arm], summary) for arm, base in against.items() if arm != base.arm),
        *_point_sections(points, header.settings.tolerance),
        Section(title="", columns=(), rows=(), notes=(_lengths(summary), *closing(summary))),
    ]
    data = _Json(
        **msgspec.structs.asdict(common.data),
        lengths=header.settings.lengths,
        launches=header.settings.launches,
        tokens=tokens,
        modes=modes,
        operating_point=points,
    )
    return Document(sections=tuple(sections), data=data, records=common.records)


def _attention_sections(summary: Summary) -> list[Section]:
    """What attends to how much, and which bytes were counted."""
    token = summary.run.header.cases[0]
    assert isinstance(token, Token)
    if token.attention is None or token.growth is None:
        return []
    growth, own = token.growth, token.classes[-1]
    (first, last), whole = growth.counted, token.attention
    mean = (first + last) / 2
    head = f"{whole.head_dim}" + (f" (V {whole.v_size})" if whole.v_size != whole.head_dim else "")
    text = (
        f"{own.times} layers attend, {whole.heads} heads of {head} over {whole.kv_heads} of K and "
        f"V in {whole.k_type}, each to a cache of its own. A run begins with {growth.context} "
        f"cached tokens and adds one with every token, so what both runs differ in attends to "
        f"{first} to {last}; K and V count once, at the mean of {mean:g}. Attention by itself has "
        f"{math.ceil(mean)} in every call."
    )
    return [Section(title="", columns=(), rows=(), notes=(text,))]


def _token_line(token: Breakdown) -> str:
    spread = ""
    if token.ci is not None:
        spread = f" ({token.ci[0] * 1e3:.4g} .. {token.ci[1] * 1e3:.4g} over blocks)"
    return (
        f"{token.arm}: {token.seconds * 1e3:.4g} ms per token{spread}, "
        f"{token.tokens_per_second:.4g} tokens/s by these layers alone."
    )


def _table(base: Breakdown, arm: Breakdown, summary: Summary) -> Section:
    """One arm beside the baseline, by class of layers."""
    rows = [_part_row(*pair) for pair in zip(base.parts, arm.parts, strict=True)]
    rows.append(_time_row("launch gaps, rest", base, arm, base.rest, arm.rest))
    rows.append(_whole_row(base, arm))
    if base.gap is not None and arm.gap is not None:
        rows.append(_time_row("no kernel running", base, arm, base.gap, arm.gap))
    if base.launches is not None and arm.launches is not None:
        rows.append(_time_row("launches alone", base, arm, base.launches, arm.launches))
    return Section(
        title=f"{arm.arm} against {base.arm}, by class of layers",
        columns=("layers", "calls", *_HALF, *_HALF, "ratio", "interval", "verdict"),
        rows=tuple(rows),
        lead=(f"First {base.arm}, then {arm.arm}; ms per token.",),
        notes=(*_sum_notes(base), *_sum_notes(arm), *_row_notes(arm, summary)),
    )


def _part_row(base: Part, arm: Part) -> tuple[str, ...]:
    result = arm.result
    return (
        base.name,
        str(base.calls),
        *_half(base),
        *_half(arm),
        units.ratio(result.ratio),
        units.interval(result.ci),
        result.verdict,
    )


def _half(part: Part) -> tuple[str, ...]:
    result = part.result
    return (
        _ms(result.seconds_per_call),
        units.rate(result.gbps),
        units.share(result.roof_fraction),
        units.share(part.share),
    )


def _whole_row(base: Breakdown, arm: Breakdown) -> tuple[str, ...]:
    halves = (
        (_ms(t.seconds), units.rate(t.whole.gbps), units.share(t.whole.roof_fraction), "100.0%")
        for t in (base, arm)
    )
    calls = sum(part.calls for part in arm.parts)
    whole = arm.whole
    ends = (units.ratio(whole.ratio), units.interval(whole.ci), whole.verdict)
    return ("token", str(calls), *(cell for half in halves for cell in half), *ends)


def _time_row(
    name: str, base: Breakdown, arm: Breakdown, first: float, second: float
) -> tuple[str, ...]:
    shares = units.share(first / base.seconds), units.share(second / arm.seconds)
    return (name, "", _ms(first), "", "", shares[0], _ms(second), "", "", shares[1], "", "", "")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def _sum_notes(token: Breakdown) -> list[str]:
    """Whether the parts of an arm are the whole."""
    if token.missing:
        return [f"{token.arm}: not measured by itself: {', '.join(token.missing)}."]
    share = 1 - token.rest / token.seconds
    if token.closes:
        return [f"{token.arm}: the parts add up to {share:.1%} of the token."]
    side = (
        "in none of them: what comes between layers of different classes, or drift"
        if token.rest > 0
        else "too many: classes are slower by themselves than side by side, or drift"
    )
    return [
        f"{token.arm}: the parts add up to {share:.1%} of the token, which is more than "
        f"{CLOSED:.0%} away: {_ms(abs(token.rest))} ms are {side}."
    ]


def _row_notes(arm: Breakdown, summary: Summary) -> list[str]:
    notes = []
    if arm.gap is not None:
        notes.append("no kernel running: time line less the kernels' own times, inside the above.")
    if arm.launches is not None:
        calls = arm.launch_count
        how = summary.run.header.settings.launches
        cuda = any(device.backend == "cuda" for device in summary.run.header.devices)
        notes.append(
            f"launches alone: {calls} launches of an empty kernel, "
            f"{arm.launches / calls * 1e6:.3g} us each" + (f", by {how}." if cuda else ".")
        )
    return notes


def _mode_lines(modes: Sequence[Mode]) -> list[str]:
    """Each class that collapses, with the arms it does so in."""
    lines = []
    for name in dict.fromkeys(mode.name for mode in modes):
        own = [mode for mode in modes if mode.name == name]
        blocks = sorted(set().union(*(mode.blocks for mode in own)))
        factors = [mode.factor for mode in own]
        rests = [mode.rest for mode in own if mode.rest is not None]
        arms = ", ".join(f"{mode.arm} ({len(mode.blocks)})" for mode in own)
        span = f"{min(factors):.3g}" + (f" to {max(factors):.3g}" if len(own) > 1 else "")
        line = (
            f"Mode: {name} takes {span} times as long in {len(blocks)} of "
            f"{max(mode.measured for mode in own)} blocks ({', '.join(map(str, blocks))}), with "
            f"{arms}"
        )
        if rests:
            worst = max(rests, key=lambda rest: abs(rest - 1))
            line += f"; the rest of the token moves by {worst - 1:+.1%} there"
        lines.append(line + ".")
    return lines


def _point_sections(points: Sequence[Point], tolerance: float) -> list[Section]:
    return [
        _point_section([point for point in points if point.source == source], tolerance)
        for source in dict.fromkeys(point.source for point in points)
    ]


def _point_section(points: Sequence[Point], tolerance: float) -> Section:
    """One earlier record: shares of the roof side by side, and the one word on it."""
    bad = [point for point in points if not point.confirmed]
    word = "unconfirmed" if bad else "confirmed"
    first = points[0]
    return Section(
        title=f"Operating point: regime {first.regime} of {first.source} is {word}",
        columns=("layers", "arm", f"of roof, {first.regime}", "of roof, decode", "ratio", "says"),
        rows=tuple(
            (
                point.name,
                point.arm,
                units.share(point.isolated),
                units.share(point.decode),
                units.ratio(point.decode / point.isolated),
                _says(point),
            )
            for point in points
        ),
        notes=(
            f"confirmed: shares of the roof within {tolerance:.0%} of each other, and every arm "
            "that is faster than another alone is so in the decode. token: what the shapes add "
            "up to.",
        ),
    )


def _says(point: Point) -> str:
    if point.confirmed:
        return "confirmed"
    reasons = [*([] if point.agrees else ["another share"]), *filter(None, [point.ranking])]
    return f"unconfirmed: {', '.join(reasons)}"


def _lengths(summary: Summary) -> str:
    lengths = summary.run.header.settings.lengths
    if lengths is None:
        return "Lengths in tokens are chosen by time."
    return (
        f"Token: a run of {lengths[1]} tokens less one of {lengths[0]}, over "
        f"{lengths[1] - lengths[0]}; classes of layers by time."
    )
