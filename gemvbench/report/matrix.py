"""The sweep's matrices: one axis across, the others down, one for each device.

Each matrix has ratios to its own first cell, or all to a baseline that was asked for; with two
devices a last one has the ratio of the second to the first, cell by cell. All of them are paired
within passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemvbench.record import GridCell
from gemvbench.report import units
from gemvbench.report.document import Section
from gemvbench.result import Result
from gemvbench.results import Summary
from gemvbench.stats import decide

MARKS = {"FASTER": "+", "SLOWER": "-", "SAME": "=", "UNDECIDED": "?", "BASELINE": ""}
MARKED = "+ FASTER, - SLOWER, = SAME, ? UNDECIDED."


@dataclass(frozen=True)
class Entry:
    """What one cell says, and the ratio in it; None where it has no ratio."""

    text: str
    ratio: float | None = None


@dataclass(frozen=True)
class Matrix:
    """Entries by (row, column), in the order of the grid."""

    title: str
    entries: dict[tuple[str, str], Entry]

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.entries))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.entries))


def matrices(summary: Summary, case: str) -> list[Matrix]:
    """The matrices of one case; none where the run was no sweep."""
    grid = summary.run.header.grid
    devices = list(dict.fromkeys(cell.device for cell in grid))
    found = [_of_device(summary, case, device) for device in devices]
    if len(devices) == 2:
        found.append(_of_devices(summary, case, *devices))
    return found


def matrix_sections(summary: Summary, case: str) -> list[Section]:
    """The same as tables."""
    return [
        Section(
            matrix.title,
            ("", *matrix.columns),
            tuple(
                (row, *(matrix.entries[row, column].text for column in matrix.columns))
                for row in matrix.rows
            ),
            notes=(MARKED,),
        )
        for matrix in matrices(summary, case)
    ]


def _of_device(summary: Summary, case: str, device: str) -> Matrix:
    cells = [cell for cell in summary.run.header.grid if cell.device == device]
    baseline = summary.run.header.baseline
    results = {result.arm: result for result in summary.of_case(case)}
    asked_for = all(cell.label != baseline for cell in summary.run.header.grid)
    own = baseline if asked_for or results[baseline].device == device else cells[0].label

    def entry(cell: GridCell) -> Entry:
        if own == baseline:
            return _of_result(results[cell.label])
        return _of_pair(summary, case, cell.label, own)

    several = len(summary.views[case].baselines) > 1
    title = f"{case} on {device}: ratio to {'its own baseline' if several else own}, more is faster"
    return _matrix(title, cells, entry)


def _of_devices(summary: Summary, case: str, first: str, second: str) -> Matrix:
    grid = summary.run.header.grid
    labels = {(cell.device, cell.row, cell.column): cell.label for cell in grid}

    def entry(cell: GridCell) -> Entry:
        return _of_pair(summary, case, labels[second, cell.row, cell.column], cell.label)

    cells = [cell for cell in grid if cell.device == first]
    return _matrix(f"{case}: speed of {second} over {first}, arm by arm", cells, entry)


def _matrix(title: str, cells: list[GridCell], entry: Callable[[GridCell], Entry]) -> Matrix:
    return Matrix(title, {(cell.row, cell.column): entry(cell) for cell in cells})


def _of_result(result: Result) -> Entry:
    if result.ratio is None:
        return Entry(result.verdict)
    mark = MARKS.get(result.verdict, result.verdict)
    return Entry(f"{units.ratio(result.ratio)} {mark}".rstrip(), result.ratio)


def _of_pair(summary: Summary, case: str, arm: str, against: str) -> Entry:
    verdicts = {result.arm: result.verdict for result in summary.of_case(case)}
    refused = {verdicts[arm], verdicts[against]} & {"WRONG", "FAILED", "DECLINED", "INVALID"}
    if refused:
        return Entry(min(refused))
    if arm == against:
        return Entry("1.000", 1.0)
    view = summary.views[case]
    interval = view.pair(arm, against)
    if interval is None:
        return Entry("-")
    if view.unknown(arm) or view.unknown(against):
        return Entry(f"{units.ratio(interval.ratio)} {MARKS['UNDECIDED']}", interval.ratio)
    verdict, _ = decide(interval, summary.run.header.settings.min_effect)
    return Entry(f"{units.ratio(interval.ratio)} {MARKS[verdict]}", interval.ratio)
