"""The report of `ab` and `sweep`: the claim first, then the table, then how sure it is."""

from __future__ import annotations

from typing import Any

import msgspec

from gemvbench.arm import AUTO
from gemvbench.best import Best
from gemvbench.case_results import Result, Roof
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import recommend
from gemvbench.disturbance import drift, slot_effect
from gemvbench.flags import CLOCK_TOLERANCE, COMPUTE_BOUND, COMPUTE_BOUND_FLAG
from gemvbench.messages import BlockDone, RoofMeasured, Sample, Verified
from gemvbench.plan import TWIN, roof_label
from gemvbench.record import SCHEMA, Charged, Ended
from gemvbench.report import units
from gemvbench.report.document import Document, Section
from gemvbench.report.matrix import matrix_sections
from gemvbench.results import Summary
from gemvbench.stats import MIN_BLOCKS

_COLUMNS = ("arm", "verdict", "ratio", "interval", "time", "kernel", "GB/s", "of roof", "flags")
_NOT_CLAIMED = ("BASELINE",)


class _Json(msgspec.Struct, kw_only=True):
    """The stable object of `--format json`."""

    schema: int
    device: str
    devices: tuple[DeviceInfo, ...]
    regime: str
    confidence: float
    min_effect: float
    seed: int
    baseline: str
    ended: str
    void: str
    noise_floor: float | None
    min_detectable_effect: float | None
    results: tuple[Result, ...]
    roofs: tuple[Roof, ...]
    best: tuple[Best, ...]


def comparison_document(summary: Summary) -> Document:
    """All cases of a run, each a section."""
    header = summary.run.header
    sections = [
        section
        for case in header.cases
        for section in (*matrix_sections(summary, case.id), _case_section(summary, case.id))
    ]
    sections.append(Section(title="", columns=(), rows=(), notes=tuple(_closing(summary))))
    return Document(
        sections=tuple(sections),
        data=_Json(
            schema=SCHEMA,
            device=header.devices[0].id,
            devices=header.devices,
            regime=header.settings.regime,
            confidence=header.settings.confidence,
            min_effect=header.settings.min_effect,
            seed=header.settings.seed,
            baseline=header.baseline,
            ended=ended(summary),
            void=summary.void,
            noise_floor=summary.noise_floor,
            min_detectable_effect=summary.min_detectable_effect,
            results=tuple(summary.results),
            roofs=summary.roofs,
            best=summary.best,
        ),
        records=[_flat(result) for result in summary.results],
    )


def claim(result: Result) -> str:
    """One sentence a kernel author can repeat."""
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


def _case_section(summary: Summary, case: str) -> Section:
    header = summary.run.header
    results = summary.of_case(case)
    arms = [r for r in results if r.arm != TWIN and r.verdict not in _NOT_CLAIMED]
    rows = [_row(result) for result in results]
    rows += [_roof_row(roof, len(header.devices)) for roof in summary.roofs if roof.case == case]
    devices = ", ".join(device.id for device in header.devices)
    return Section(
        title=f"{case} on {devices}, regime {header.settings.regime}",
        columns=_COLUMNS,
        rows=tuple(rows),
        lead=tuple(claim(result) for result in arms) if len(arms) <= 3 else (),
        notes=(
            *_best(summary, case),
            *_notes(results),
            *_sampling(summary, case),
            *_advice(summary, case),
        ),
    )


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.arm,
        result.verdict,
        units.ratio(result.ratio),
        units.interval(result.ci) if result.verdict != "BASELINE" else "",
        units.seconds(result.seconds_per_call),
        units.seconds(result.kernel_seconds) if result.kernel_seconds else "",
        units.rate(result.gbps),
        units.share(result.roof_fraction),
        ", ".join(result.flags),
    )


def _roof_row(roof: Roof, devices: int) -> tuple[str, ...]:
    name = roof_label(roof.device, devices)
    return (name, "", "", "", "", "", units.rate(roof.gbps), "100.0%", "a bare read, same blocks")


def _notes(results: tuple[Result, ...]) -> list[str]:
    """Steps of the ladder and reasons, each under the arm it belongs to."""
    notes = []
    for result in results:
        if result.arm == TWIN:
            continue
        notes += [f"{result.arm}: {step}" for step in result.steps]
        if result.reason:
            notes.append(f"{result.arm} {result.verdict}: {result.reason}")
        if result.removed:
            notes.append(
                f"{result.arm}: {result.removed} of {result.pairs} pairs hold a slow measurement "
                "and carry no verdict; over all pairs the ratio is "
                f"{units.ratio(result.all_pairs_ratio)}, interval "
                f"{units.interval(result.all_pairs_ci)}."
            )
    return notes


def _best(summary: Summary, case: str) -> list[str]:
    """Who leads, and whether the data say so or only its rank."""
    found = [best for best in summary.best if best.case == case]
    return [
        f"Best: {best.arm}, separated from every other arm."
        if not best.not_separated
        else f"{best.arm} leads, but is not separated from {', '.join(best.not_separated)}."
        for best in found
    ]


def _sampling(summary: Summary, case: str) -> list[str]:
    """What verification did not look at in full."""
    checks = [c for line in summary.run.of(Verified) if line.case == case for c in line.checks]
    details = dict.fromkeys(c.detail for c in checks if c.passed and c.detail)
    return [f"Verified against float64 in {detail}; exactly in all rows." for detail in details]


def _disturbances(summary: Summary) -> list[str]:
    """Drift and slot effect, the largest of all cases."""
    header = summary.run.header
    samples = summary.run.of(Sample)
    cases = [[s for s in samples if s.case == case.id] for case in header.cases]
    drifts = [drift(each, header.baseline) for each in cases if each]
    slots = [slot_effect(each) for each in cases if each]
    if not drifts:
        return []
    return [
        f"Between passes {header.baseline} drifted {max(drifts) - 1:.1%} peak to peak, which "
        f"pairing takes out; slots of a pass differ by {max(slots) - 1:.2%}, which the orders "
        "balance."
    ]


def _clocks(summary: Summary) -> list[str]:
    """Devices whose event clock does not go like the host's, over half a second."""
    return [
        f"The event clock of {roof.device} ran at {roof.event_clock:.3f} of the host's while "
        f"{roof.arm} was timed: its times may be off by as much."
        for roof in summary.run.of(RoofMeasured)
        if abs(roof.event_clock - 1) > CLOCK_TOLERANCE
    ]


def _advice(summary: Summary, case: str) -> list[str]:
    """What to try where arms are far from the roof and the recommended one is not among them."""
    header = summary.run.header
    (shape,) = [each for each in header.cases if each.id == case]
    results = summary.of_case(case)
    slow = {r.device for r in results if COMPUTE_BOUND_FLAG in r.flags}
    tried = {choice.device for choice in header.choices if choice.arm == AUTO}
    return [
        f"compute-bound: under {COMPUTE_BOUND:.0%} of the roof, so memory is not the limit; "
        f"on {device.id} try --arm auto ({recommend(shape, device).name})."
        for device in header.devices
        if device.id in slow - tried
    ]


def _closing(summary: Summary) -> list[str]:
    header = summary.run.header
    settings = header.settings
    blocks = max((result.blocks for result in summary.results), default=0)
    lines = [f"VOID: {summary.void}"] if summary.void else []
    if blocks:
        lines.append(
            f"Ratio: time of {header.baseline} over time of arm, more is faster; "
            f"{settings.confidence:.0%} interval over {blocks} blocks of {settings.passes} passes, "
            "arms of a case together. aa is the baseline a second time."
        )
    if blocks >= MIN_BLOCKS:
        lines.append(
            f"Noise floor {units.effect(summary.noise_floor)}; effects from "
            f"{units.effect(summary.min_detectable_effect)} on are found nine times in ten "
            f"(median arm); SAME means inside {settings.min_effect:.1%}."
        )
    lines += _disturbances(summary)
    lines += [device.title for device in header.devices]
    lines += header.notes
    lines += _clocks(summary)
    overhead = _overhead(summary)
    lines += [overhead] if overhead else []
    end = ended(summary)
    if end == "budget":
        lines.append(f"The budget of {settings.budget:g} s ended the run after {blocks} blocks.")
    elif end != "complete":
        lines.append(f"The run ended early: {end}. What was measured until then is above.")
    if 0 < blocks < MIN_BLOCKS:
        lines.append(
            f"No verdict is given from fewer than {MIN_BLOCKS} blocks, however clear it looks: "
            "a block is the unit of replication. Give the run more time."
        )
    labels = {result.arm for result in summary.results}
    lines += [
        f"A worker died ({line.stage}): {line.reason}"
        for line in summary.run.of(Charged)
        if line.arm not in labels
    ]
    return lines


def _overhead(summary: Summary) -> str:
    """Where the blocks' time went, in percent by part."""
    parts: dict[str, float] = {}
    for done in summary.run.of(BlockDone):
        for name, spent in done.parts.items():
            parts[name] = parts.get(name, 0.0) + spent
    total = sum(parts.values())
    if not total:
        return ""
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{n} {spent / total:.0%}" for n, spent in ranked if spent >= total / 200)
    return f"Blocks spent {total:.1f} s after process start: {shares}."


def ended(summary: Summary) -> str:
    """How the run ended, by its own last line."""
    lines = summary.run.of(Ended)
    return lines[-1].reason if lines else "without an end: the record is cut short"


def _flat(result: Result) -> dict[str, Any]:
    """One CSV row; nested values become columns or joined text."""
    record = msgspec.to_builtins(result)
    low, high = result.ci or (None, None)
    record |= {"ci_low": low, "ci_high": high}
    record["constants"] = " ".join(f"{k}={v}" for k, v in result.constants.items())
    record["flags"] = "; ".join(result.flags)
    record["steps"] = "; ".join(result.steps)
    del record["ci"]
    return dict(record)
