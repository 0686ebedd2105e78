"""The report of `ab` and `sweep`: the claim first, then the table, then how sure it is."""

from __future__ import annotations

from typing import Any

import msgspec

from gemvbench.arm import AUTO
from gemvbench.best import Best
from gemvbench.cases import verified_as
from gemvbench.contamination import Contamination
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import recommend
from gemvbench.flags import COMPUTE_BOUND, COMPUTE_BOUND_FLAG
from gemvbench.messages import Verified
from gemvbench.plan import TWIN, roof_label
from gemvbench.record import SCHEMA
from gemvbench.report import units
from gemvbench.report.claims import claim, claimed
from gemvbench.report.closing import closing
from gemvbench.report.contexts import context_sections
from gemvbench.report.document import Document, Section, TextPlot
from gemvbench.report.matrix import matrix_sections
from gemvbench.report.pull_request import pull_request
from gemvbench.report.text_plots import forest, ratio_of, spreads
from gemvbench.result import Result, Roof
from gemvbench.results import Summary

_COLUMNS = ("arm", "verdict", "ratio", "interval", "time", "kernel", "GB/s", "of roof", "flags")


class ComparisonJson(msgspec.Struct, kw_only=True):
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
    smallest_budget: float | None
    void: str
    flags: tuple[str, ...]
    device_seconds: float
    wall_seconds: float | None
    contamination: Contamination | None
    damage: tuple[str, ...]
    noise_floor: float | None
    min_detectable_effect: float | None
    results: tuple[Result, ...]
    roofs: tuple[Roof, ...]
    best: tuple[Best, ...]


def comparison_document(summary: Summary) -> Document:
    """All cases of a run, each a section."""
    header = summary.run.header
    sections = context_sections(summary) + [
        section
        for case in header.cases
        for section in (*matrix_sections(summary, case.id), case_section(summary, case.id))
    ]
    below = Section(title="", columns=(), rows=(), notes=tuple(closing(summary)))
    return Document(
        sections=(*sections, below),
        markdown=pull_request(summary, sections),
        data=ComparisonJson(
            schema=SCHEMA,
            device=header.devices[0].id,
            devices=header.devices,
            regime=header.settings.regime,
            confidence=header.settings.confidence,
            min_effect=header.settings.min_effect,
            seed=header.settings.seed,
            baseline=header.baseline,
            ended=summary.ended,
            smallest_budget=summary.smallest_budget,
            void=summary.void,
            flags=summary.flags,
            device_seconds=summary.device_seconds,
            wall_seconds=summary.wall_seconds,
            contamination=summary.contamination,
            damage=summary.run.damage,
            noise_floor=summary.noise_floor,
            min_detectable_effect=summary.min_detectable_effect,
            results=tuple(summary.results),
            roofs=summary.roofs,
            best=summary.best,
        ),
        records=[_flat(result) for result in summary.results],
    )


def case_section(summary: Summary, case: str) -> Section:
    """One case: claims, the table, and what to know of single rows."""
    header = summary.run.header
    results = summary.of_case(case)
    arms = claimed(results)
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
            *_cycles(results),
            *_sampling(summary, case),
            *_advice(summary, case),
        ),
        plots=_plots(summary, case),
    )


def _plots(summary: Summary, case: str) -> tuple[TextPlot, ...]:
    """Ratios, and how times spread: a row for each arm, then one for each roof."""
    results, devices = summary.of_case(case), len(summary.run.header.devices)
    roofs = [roof_label(roof.device, devices) for roof in summary.roofs if roof.case == case]
    logs = summary.views[case].logs
    ratios = [*map(ratio_of, results), *(None for _ in roofs)]
    return (
        forest(ratios, "interval"),
        spreads([logs.of(arm) for arm in (*(r.arm for r in results), *roofs)], "kernel"),
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
                f"{result.arm}: {result.removed} of {result.pairs} pairs mix a slow measurement "
                "with others and carry no verdict; over all pairs the ratio is "
                f"{units.ratio(result.all_pairs_ratio)}, interval "
                f"{units.interval(result.all_pairs_ci)}."
            )
    return notes


def _cycles(results: tuple[Result, ...]) -> list[str]:
    """The ratio in cycles of arms that ran at another clock than the baseline."""
    return [
        f"{r.arm} and {r.baseline} ran at different SM clocks: the ratio of their cycles is "
        f"{units.ratio(r.cycles_ratio)}, that of their times {units.ratio(r.ratio)}."
        for r in results
        if r.cycles_ratio is not None
    ]


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


def _advice(summary: Summary, case: str) -> list[str]:
    """What to try where arms are far from the roof and the recommended one is not among them."""
    header = summary.run.header
    (shape,) = [each for each in header.cases if each.id == case]
    results = summary.of_case(case)
    slow = {r.device for r in results if COMPUTE_BOUND_FLAG in r.flags}
    tried = {choice.device for choice in header.choices if choice.arm == AUTO}
    return [
        f"compute-bound: under {COMPUTE_BOUND:.0%} of the roof, so memory is not the limit; "
        f"on {device.id} try --arm auto ({recommend(verified_as(shape)[0], device).name})."
        for device in header.devices
        if device.id in slow - tried
    ]


def _flat(result: Result) -> dict[str, Any]:
    """One CSV row; nested values become columns or joined text."""
    record = msgspec.to_builtins(result)
    low, high = result.ci or (None, None)
    record |= {"ci_low": low, "ci_high": high}
    record["constants"] = " ".join(f"{k}={v}" for k, v in result.constants.items())
    record["flags"] = "; ".join(result.flags)
    record["steps"] = "; ".join(result.steps)
    for name in ("ci", "block_seconds", "block_ratios"):
        del record[name]
    return dict(record)
