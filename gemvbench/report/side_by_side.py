"""Several runs beside each other: the same case and arm, a column for each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemvbench.plan import TWIN
from gemvbench.report import units
from gemvbench.report.document import Document, Section
from gemvbench.report.matrix import MARKED, MARKS
from gemvbench.result import Result
from gemvbench.results import Summary


@dataclass(frozen=True)
class Shown:
    """A run with the name it is shown by, and what its own command says of it."""

    name: str
    summary: Summary
    document: Document


def side_by_side(runs: Sequence[Shown]) -> list[Section]:
    """What the runs are, and a table of the cases and arms that more than one of them has."""
    return [_overview(runs), *_shared(runs)]


def _overview(runs: Sequence[Shown]) -> Section:
    rows = []
    for number, run in enumerate(runs, 1):
        header = run.summary.run.header
        devices = ", ".join(device.title for device in header.devices)
        rows.append((str(number), run.name, header.settings.command, header.started, devices))
    machines = {
        tuple((d.name, d.platform, d.driver) for d in run.summary.run.header.devices)
        for run in runs
    }
    notes = () if len(machines) == 1 else (
        "These runs are of different devices or drivers: times and ratios stand beside each other, "
        "and no verdict compares one run with another (`gemvbench compare` does, where it can).",
    )  # fmt: skip
    return Section("Runs", ("run", "record", "command", "started", "devices"), tuple(rows),
                   notes=notes)  # fmt: skip


def _shared(runs: Sequence[Shown]) -> list[Section]:
    found: dict[tuple[str, str], dict[int, Result]] = {}
    for number, run in enumerate(runs):
        for result in run.summary.results:
            if result.arm != TWIN:
                name = result.arm.removeprefix(f"{result.device}:")
                found.setdefault((result.case, name), {})[number] = result
    shared = {place: of for place, of in found.items() if len(of) > 1}
    if not shared:
        return []
    columns = [f"{n} ({_devices(run)})" for n, run in enumerate(runs, 1)]
    return [
        Section(
            "The same case and arm in each run: time, share of the roof, ratio to its baseline",
            ("case", "arm", *columns),
            tuple(
                (case, arm, *(_entry(of.get(number)) for number in range(len(runs))))
                for (case, arm), of in shared.items()
            ),
            notes=(MARKED,),
        )
    ]


def _devices(run: Shown) -> str:
    return ", ".join(device.id for device in run.summary.run.header.devices)


def _entry(result: Result | None) -> str:
    if result is None:
        return ""
    if result.seconds_per_call is None:
        return result.verdict
    texts = [units.seconds(result.seconds_per_call), units.share(result.roof_fraction)]
    if result.verdict != "BASELINE" and result.ratio is not None:
        mark = MARKS.get(result.verdict, result.verdict)
        texts.append(f"{units.ratio(result.ratio)} {mark}")
    return ", ".join(texts)
