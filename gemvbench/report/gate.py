"""The report of `gate`: what became slower, what was not looked at and why; fit to be pasted."""

from __future__ import annotations

from typing import Any

import msgspec

from gemvbench.gate import Conclusion, conclude
from gemvbench.record import SCHEMA, Gate, LeftOut
from gemvbench.report import units
from gemvbench.report.closing import closing
from gemvbench.report.document import Document, Section
from gemvbench.report.pull_request import pull_request
from gemvbench.result import Result
from gemvbench.results import Summary

_COLUMNS = ("case", "arm", "verdict", "ratio", "interval", "time at base", "time now", "flags")


class _Json(msgspec.Struct, kw_only=True):
    """The stable object of `--format json`."""

    schema: int
    base: str
    base_name: str
    head: str
    dirty: bool
    device: str
    regime: str
    confidence: float
    min_effect: float
    family: int | None
    conclusion: str
    regressions: tuple[str, ...]
    """Case and arm, with a space between."""
    ended: str
    void: str
    damage: tuple[str, ...]
    noise_floor: float | None
    results: tuple[Result, ...]
    left_out: tuple[LeftOut, ...]


def gate_document(summary: Summary) -> Document:
    """One table for all cases, and what was left out."""
    header = summary.run.header
    gate, settings, found = header.gate, header.settings, conclude(summary)
    assert gate is not None
    claim = " ".join(_claim(gate, found))
    table = Section(
        title=f"gate against {_short(gate.base, gate.base_name)} on {_devices(summary)}",
        columns=_COLUMNS if found.results else (),
        rows=tuple(_row(result, summary) for result in found.results),
        notes=tuple(_notes(summary, found)),
    )
    left_out = Section(
        title="Left out" if found.left_out else "",
        columns=("case", "arm", "reason"),
        rows=tuple((each.case, each.arm, each.reason) for each in found.left_out),
    )
    below = Section("", (), (), notes=tuple(closing(summary)))
    return Document(
        sections=(Section(claim, (), ()), table, left_out, below),
        markdown=pull_request(
            summary,
            [section for section in (table, left_out) if section.rows],
            f"**Gate: {found.word}.** {claim}",
        ),
        data=_Json(
            schema=SCHEMA,
            base=gate.base,
            base_name=gate.base_name,
            head=gate.head,
            dirty=gate.dirty,
            device=header.devices[0].id,
            regime=settings.regime,
            confidence=settings.confidence,
            min_effect=settings.min_effect,
            family=settings.family,
            conclusion=found.word,
            regressions=tuple(f"{r.case} {r.arm}" for r in found.regressions),
            ended=summary.ended,
            void=summary.void,
            damage=summary.run.damage,
            noise_floor=summary.noise_floor,
            results=found.results,
            left_out=found.left_out,
        ),
        records=[*map(_flat, found.results), *map(_flat_left_out, found.left_out)],
    )


def _claim(gate: Gate, found: Conclusion) -> list[str]:
    """What the gate says, in sentences."""
    tree = f"{gate.head[:8]}{' with uncommitted changes' if gate.dirty else ''}"
    against = f"{tree} against {_short(gate.base, gate.base_name)}:"
    if found.word == "unchanged":
        return [f"{against} no kernel to compare, all of {len(found.left_out)} are left out."]
    said = [against]
    if found.of("WRONG", "FAILED"):
        said.append(f"{_names(found.of('WRONG', 'FAILED'))}.")
    if found.why_void:
        said.append(f"nothing is judged: {found.why_void}.")
    if found.regressions:
        slower = [
            f"{r.arm} on {r.case} takes {units.effect(_slowdown(r))} longer"
            for r in found.regressions
        ]
        said.append(f"{'; '.join(slower)}.")
    if found.word in ("clean", "undecided"):
        decided = len(found.results) - len(found.of("UNDECIDED"))
        said.append(f"no regression, {decided} of {len(found.results)} comparisons decided.")
    if found.of("UNDECIDED"):
        said.append(f"{_names(found.of('UNDECIDED'))}.")
    return said


def _slowdown(result: Result) -> float:
    """Log of time now over time at the base."""
    import math

    return -math.log(result.ratio or 1.0)


def _names(results: list[Result]) -> str:
    return ", ".join(f"{r.arm} on {r.case} {r.verdict}" for r in results)


def _short(commit: str, name: str) -> str:
    return commit[:8] if commit.startswith(name) else f"{name} ({commit[:8]})"


def _devices(summary: Summary) -> str:
    return ", ".join(device.id for device in summary.run.header.devices)


def _row(result: Result, summary: Summary) -> tuple[str, ...]:
    times = {r.arm: r.seconds_per_call for r in summary.of_case(result.case)}
    return (
        result.case,
        result.arm,
        result.verdict,
        units.ratio(result.ratio),
        units.interval(result.ci),
        units.seconds(times.get(result.baseline)),
        units.seconds(result.seconds_per_call),
        ", ".join(result.flags),
    )


def _notes(summary: Summary, found: Conclusion) -> list[str]:
    """Reasons, and what is wrong with a kernel of the base, which is no fault of today's."""
    reasons = [f"{r.arm} on {r.case} {r.verdict}: {r.reason}" for r in found.results if r.reason]
    bases = {(r.case, r.baseline) for r in found.results}
    return reasons + [
        f"{r.arm} on {r.case} {r.verdict}: {r.reason}"
        for r in summary.results
        if (r.case, r.arm) in bases and r.reason
    ]


def _flat(result: Result) -> dict[str, Any]:
    """One CSV row."""
    low, high = result.ci or (None, None)
    names = ("case", "arm", "device", "baseline", "verdict", "ratio", "seconds_per_call", "reason")
    record = {name: getattr(result, name) for name in names}
    return record | {"ci_low": low, "ci_high": high, "flags": "; ".join(result.flags)}


def _flat_left_out(each: LeftOut) -> dict[str, Any]:
    return msgspec.structs.asdict(each) | {"verdict": "LEFT OUT"}
