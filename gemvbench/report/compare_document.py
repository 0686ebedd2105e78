"""The report of `compare`: what is faster or slower in B, against what, and what is unlike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gemvbench.compare import Row, Terms
from gemvbench.likeness import find_left_out, find_notes
from gemvbench.record import SCHEMA
from gemvbench.report import units
from gemvbench.report.document import Document, Section
from gemvbench.results import Summary

_COLUMNS = (
    "arm",
    "verdict",
    "ratio",
    "interval",
    "reference",
    "blocks",
    "time A",
    "time B",
    "times alone",
    "flags",
)


@dataclass(frozen=True)
class Side:
    """A record under the name it was given by."""

    name: str
    summary: Summary


@dataclass(frozen=True)
class Comparison:
    """Everything that `compare` has to say."""

    a: Side
    b: Side
    earlier: tuple[Side, ...]
    differences: tuple[str, ...]
    terms: Terms
    rows: Sequence[Row]


class _Origin(msgspec.Struct, frozen=True):
    """Where a side comes from."""

    record: str
    started: str
    version: str
    ended: str


class _Json(msgspec.Struct, kw_only=True):
    """The stable object of `--format json`."""

    schema: int
    a: _Origin
    b: _Origin
    earlier: tuple[_Origin, ...]
    confidence: float
    min_effect: float
    differences: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    results: Sequence[Row]


def compare_document(found: Comparison) -> Document:
    """A section for each case, and what holds for all."""
    one, other = found.a.summary.run, found.b.summary.run
    left_out = find_left_out(one, other, found.terms.cases)
    notes = (*find_notes(one, other), *_of_sides(found))
    sections = [_case_section(found, case) for case in found.terms.cases]
    closing = (*_differences(found), *_legend(found), *_left_out(left_out), *notes)
    return Document(
        sections=(*sections, Section(title="", columns=(), rows=(), notes=closing)),
        data=_Json(
            schema=SCHEMA,
            a=_origin(found.a),
            b=_origin(found.b),
            earlier=tuple(map(_origin, found.earlier)),
            confidence=found.terms.confidence,
            min_effect=found.terms.min_effect,
            differences=found.differences,
            left_out=left_out,
            notes=notes,
            results=found.rows,
        ),
        records=[_flat(row) for row in found.rows],
    )


def _case_section(found: Comparison, case: str) -> Section:
    rows = [row for row in found.rows if row.case == case]
    return Section(
        title=f"{case}: B against A",
        columns=_COLUMNS,
        rows=tuple(map(_cells, rows)),
        notes=tuple(f"{row.arm} {row.verdict}: {row.reason}" for row in rows if row.reason),
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.arm,
        row.verdict,
        units.ratio(row.ratio),
        units.interval(row.ci),
        row.reference or "-",
        "{}, {}".format(*row.blocks) if any(row.blocks) else "-",
        *map(units.seconds, row.seconds),
        units.ratio(row.times_ratio),
        ", ".join(row.flags),
    )


def _differences(found: Comparison) -> list[str]:
    """What was forced comes first: whoever reads the verdicts has to know."""
    if not found.differences:
        return []
    return [
        f"FORCED, although A and B are unlike: {'; '.join(found.differences)}. With another driver "
        "or compiler the same source need not be the same code."
    ]


def _legend(found: Comparison) -> list[str]:
    if not found.rows:
        return ["Nothing to compare: no arm of these cases is in both records."]
    looks = [len(side.summary.run.header.settings.looks) for side in (found.a, found.b)]
    stopped = (
        f", and all {looks[0]} x {looks[1]} pairs of looks at which the runs could have ended"
        if max(looks) > 1
        else ""
    )
    lines = [
        "Ratio: time in A over time in B, more is faster in B, both against the reference, which "
        "is the same code in both; times alone: without it, which is no verdict.",
        f"{found.terms.confidence:.0%} intervals (Welch) over blocks, for all arms and cases "
        f"together{stopped}. SAME means inside {found.terms.min_effect:.1%}.",
    ]
    if any(row.identical and row.ci for row in found.rows):
        lines.append(
            "Identical in both: the same code, so its ratio shows how well a run repeats itself."
        )
    return lines


def _left_out(left_out: tuple[str, ...]) -> list[str]:
    return [f"Left out: {'; '.join(left_out)}."] if left_out else []


def _of_sides(found: Comparison) -> tuple[str, ...]:
    """Where A and B come from, how they ended, and what could not be read of them."""
    lines = []
    for letter, side in (("A", found.a), ("B", found.b)):
        origin = _origin(side)
        end = "" if origin.ended == "complete" else f", ended: {origin.ended}"
        lines.append(f"{letter}: {origin.record} of {origin.started}{end}.")
        lines += [f"{letter}: {text}" for text in side.summary.run.damage]
    if found.earlier:
        lines.append(f"Earlier runs: {', '.join(side.name for side in found.earlier)}.")
    return tuple(lines)


def _origin(side: Side) -> _Origin:
    header = side.summary.run.header
    return _Origin(side.name, header.started, header.version, side.summary.ended)


def _flat(row: Row) -> dict[str, Any]:
    """One CSV row."""
    record = dict(msgspec.to_builtins(row))
    low, high = record.pop("ci") or (None, None)
    record |= {"ci_low": low, "ci_high": high}
    for name in ("blocks", "seconds"):
        record[f"{name}_a"], record[f"{name}_b"] = record.pop(name)
    record["flags"] = "; ".join(row.flags)
    return record
