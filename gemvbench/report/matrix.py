"""The sweep's matrix: one axis down, one across, ratios to the first cell."""

from __future__ import annotations

from collections.abc import Sequence

from gemvbench.report import units
from gemvbench.report.document import Section
from gemvbench.results import Result

Grid = tuple[tuple[str, Sequence[int]], ...]
"""(axis, values) pairs in the order given on the command line."""

_MARKS = {"FASTER": "+", "SLOWER": "-", "SAME": "=", "UNDECIDED": "?", "BASELINE": ""}


def matrix_section(
    case: str, device: str, results: Sequence[Result], cells: dict[tuple[str, str], str]
) -> Section:
    """A matrix of ratios with a mark for each verdict.

    Args:
        cells: label of the arm by (row, column).
    """
    by_label = {result.arm: result for result in results}
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    body = tuple(
        (row, *(_cell(by_label.get(cells.get((row, column), ""))) for column in columns))
        for row in rows
    )
    return Section(
        title=f"{case} on {device}: ratio to {results[0].baseline}, more is faster",
        columns=("", *columns),
        rows=body,
        notes=("+ FASTER, - SLOWER, = SAME, ? UNDECIDED, by the intervals below.",),
    )


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if result.ratio is None:
        return result.verdict
    return f"{units.ratio(result.ratio)} {_MARKS.get(result.verdict, result.verdict)}".rstrip()
