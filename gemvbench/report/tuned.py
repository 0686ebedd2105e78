"""The report of `tune`: the arm that was chosen for each shape, and how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.device import DeviceInfo
from gemvbench.report import units
from gemvbench.report.document import Document, Section
from gemvbench.results import Summary
from gemvbench.tune_plan import Found

_COLUMNS = ("shape", "arm", "ratio", "interval", "rule's arm", "rounds", "time")
_BAD = ("WRONG", "FAILED")


def tuned_document(found: Sequence[Found], device: DeviceInfo, path: Path | None) -> Document:
    """A row for each shape; `path` is the table that the rows went into."""
    stored = f"`auto` takes these arms on {device.id} from now on: {path}." if path else ""
    section = Section(
        title=f"Tuned arms of {device.id}",
        columns=_COLUMNS,
        rows=tuple(_cells(each) for each in found),
        lead=tuple(_claim(each) for each in found),
        notes=(
            "Ratio: time of the rule's arm over time of the arm, more is faster; paired, in the "
            "last round, decided as `gemvbench ab` does. Rounds: how many arms took part in each.",
            *_faults(found),
            *filter(None, (stored,)),
            device.title,
        ),
    )
    records = [_record(each) for each in found]
    return Document((section,), {"device": device.id, "shapes": records}, records)


def _claim(found: Found) -> str:
    row, shape = found.row, _shape(found)
    if row is None:
        return f"{shape}: no arm chosen: {found.why}."
    if row.arm == row.rule:
        return f"{shape}: {row.arm}, the rule's; none of {row.tried - 1} other arms was FASTER."
    return (
        f"{shape}: {row.arm}, {row.ratio:.3f}x the speed of the rule's {row.rule} (interval "
        f"{units.interval((row.low, row.high))}), found among {row.tried - 1} arms."
    )


def _cells(found: Found) -> tuple[str, ...]:
    row = found.row
    counts = " -> ".join(str(_count(summary)) for summary in found.summaries)
    shape, spent = _shape(found), units.seconds(found.seconds)
    if row is None:
        return (shape, "", "", "", "", counts, spent)
    interval = "" if row.arm == row.rule else units.interval((row.low, row.high))
    return (shape, row.arm, units.ratio(row.ratio), interval, row.rule, counts, spent)


def _count(summary: Summary) -> int:
    """Arms of a round beside the rule's."""
    return len(summary.run.header.choices) - 1


def _faults(found: Sequence[Found]) -> list[str]:
    """Arms that are wrong or failed, each once for a shape."""
    return [
        f"{each.case.id}: {result.arm} {result.verdict}: {result.reason}"
        for each in found
        for result in {r.arm: r for s in each.summaries for r in s.results}.values()
        if result.verdict in _BAD
    ]


def _shape(found: Found) -> str:
    case = found.case
    return case.id if isinstance(case, Attention) else f"{case.k}x{case.n}"


def _record(found: Found) -> dict[str, Any]:
    row, case = msgspec.to_builtins(found.row) if found.row else {}, found.case
    rounds = [_count(summary) for summary in found.summaries]
    own: dict[str, Any] = {"case": case.id}
    if not isinstance(case, Attention):
        own = {"k": case.k, "n": case.n, "w": case.w, "x": case.x}
    return own | row | {"rounds": rounds, "why": found.why, "seconds": found.seconds}
