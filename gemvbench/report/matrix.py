"""The sweep's matrices: one axis across, the others down, one for each device.

Each matrix has ratios to its own first cell, or all to a baseline that was asked for; with two
devices a last one has the ratio of the second to the first, cell by cell. All of them are paired
within passes.
"""

from __future__ import annotations

from collections.abc import Callable

from gemvbench.record import GridCell
from gemvbench.report import units
from gemvbench.report.document import Section
from gemvbench.result import Result
from gemvbench.results import Summary
from gemvbench.stats import decide

MARKS = {"FASTER": "+", "SLOWER": "-", "SAME": "=", "UNDECIDED": "?", "BASELINE": ""}
MARKED = "+ FASTER, - SLOWER, = SAME, ? UNDECIDED."


def matrix_sections(summary: Summary, case: str) -> list[Section]:
    """The matrices of one case; none where the run was no sweep."""
    grid = summary.run.header.grid
    devices = list(dict.fromkeys(cell.device for cell in grid))
    sections = [_device_section(summary, case, device) for device in devices]
    if len(devices) == 2:
        sections.append(_ratio_section(summary, case, *devices))
    return sections


def _device_section(summary: Summary, case: str, device: str) -> Section:
    cells = [cell for cell in summary.run.header.grid if cell.device == device]
    baseline = summary.run.header.baseline
    results = {result.arm: result for result in summary.of_case(case)}
    asked_for = all(cell.label != baseline for cell in summary.run.header.grid)
    own = baseline if asked_for or results[baseline].device == device else cells[0].label
    if own == baseline:
        text = {cell.label: _of_result(results[cell.label]) for cell in cells}
    else:
        text = {cell.label: _of_pair(summary, case, cell.label, own) for cell in cells}
    several = len(summary.views[case].baselines) > 1
    title = f"{case} on {device}: ratio to {'its own baseline' if several else own}, more is faster"
    return _section(title, cells, lambda cell: text[cell.label])


def _ratio_section(summary: Summary, case: str, first: str, second: str) -> Section:
    grid = summary.run.header.grid
    labels = {(cell.device, cell.row, cell.column): cell.label for cell in grid}

    def text(cell: GridCell) -> str:
        return _of_pair(summary, case, labels[second, cell.row, cell.column], cell.label)

    cells = [cell for cell in grid if cell.device == first]
    return _section(f"{case}: speed of {second} over {first}, arm by arm", cells, text)


def _section(title: str, cells: list[GridCell], text: Callable[[GridCell], str]) -> Section:
    at = {(cell.row, cell.column): text(cell) for cell in cells}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    body = tuple((row, *(at[row, column] for column in columns)) for row in rows)
    return Section(title, ("", *columns), body, notes=(MARKED,))


def _of_result(result: Result) -> str:
    if result.ratio is None:
        return result.verdict
    return f"{units.ratio(result.ratio)} {MARKS.get(result.verdict, result.verdict)}".rstrip()


def _of_pair(summary: Summary, case: str, arm: str, against: str) -> str:
    verdicts = {result.arm: result.verdict for result in summary.of_case(case)}
    refused = {verdicts[arm], verdicts[against]} & {"WRONG", "FAILED", "DECLINED", "INVALID"}
    if refused:
        return min(refused)
    if arm == against:
        return "1.000"
    view = summary.views[case]
    interval = view.pair(arm, against)
    if interval is None:
        return "-"
    if view.unknown(arm) or view.unknown(against):
        return f"{units.ratio(interval.ratio)} {MARKS['UNDECIDED']}"
    verdict, _ = decide(interval, summary.run.header.settings.min_effect)
    return f"{units.ratio(interval.ratio)} {MARKS[verdict]}"
