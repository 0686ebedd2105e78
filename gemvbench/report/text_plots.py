"""Small pictures in text, a column of a table each: ratios with intervals, and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gemvbench.report import units
from gemvbench.report.axis import ratio_limits, window
from gemvbench.report.document import TextPlot
from gemvbench.result import Result
from gemvbench.stats import Array

_FOREST, _SPREAD = 25, 17
"""Characters of a cell."""
_STEPS = " ▁▂▃▄▅▆▇█"

Ratio = tuple[float, tuple[float, float]]
"""A ratio with its interval."""


def ratio_of(result: Result) -> Ratio | None:
    """Of an arm that was compared; none of a baseline, whose ratio is 1 by itself."""
    if result.ratio is None or result.ci is None or result.verdict == "BASELINE":
        return None
    return result.ratio, result.ci


def forest(ratios: Sequence[Ratio | None], after: str) -> TextPlot:
    """Ratios with intervals on a log axis that all rows share, with 1 marked; None has none."""
    known = [one for one in ratios if one is not None]
    low, high = ratio_limits(end for ratio, ci in known for end in (ratio, *ci))
    scale = (_FOREST - 1) / math.log(high / low)

    def place(ratio: float) -> int:
        at = math.log(max(ratio, 1e-9) / low) * scale
        return round(min(max(at, 0), _FOREST - 1))

    cells = ["" if one is None else _interval(one, place) for one in ratios]
    title = _ends(units.ratio(low), "1", units.ratio(high), place(1))
    return TextPlot(
        title, tuple(cells), after, "Lines: the interval, ● the ratio, │ no difference."
    )


def _interval(one: Ratio, place: Callable[[float], int]) -> str:
    ratio, (low, high) = one
    cells = [" "] * _FOREST
    first, last, mark = place(low), place(high), place(1)
    cells[first : last + 1] = "─" * (last + 1 - first)
    cells[first], cells[last] = "├", "┤"
    cells[mark] = "┼" if first < mark < last else "│"
    cells[place(ratio)] = "●"
    return "".join(cells)


def spreads(logs: Sequence[Array], after: str) -> TextPlot:
    """A histogram for each row: log seconds off their own median, on an axis that rows share."""
    changes = [_percent(row[np.isfinite(row)]) for row in logs]
    known = [change for change in changes if len(change) > 1]
    if not known:
        return TextPlot("", ("",) * len(logs), after)
    low, high = window(np.concatenate(known))
    edges = np.linspace(low, high + 1e-9, _SPREAD + 1)
    cells = [_bars(np.histogram(np.clip(c, low, high), edges)[0]) for c in changes]
    title = _ends(f"{low:+.2g} %", "", f"{high:+.2g} %", 0, _SPREAD)
    return TextPlot(title, tuple(cells), after, "Bars: an arm's times off its own median.")


def _percent(logs: Array) -> Array:
    if not len(logs):
        return logs
    percent: Array = 100 * np.expm1(logs - np.median(logs))
    return percent


def _bars(counts: NDArray[np.intp]) -> str:
    """The lowest step stands for any count but none."""
    steps = np.ceil((len(_STEPS) - 1) * counts / max(int(counts.max()), 1)).astype(int)
    return "".join(_STEPS[step] for step in steps)


def _ends(low: str, middle: str, high: str, at: int, width: int = _FOREST) -> str:
    """The head of a column: its ends, and what lies between where there is room."""
    head = low + " " * (width - len(low) - len(high)) + high
    start = at - len(middle) // 2
    room = head[max(0, start - 1) : start + len(middle) + 1]
    return head if room.strip() else head[:start] + middle + head[start + len(middle) :]
