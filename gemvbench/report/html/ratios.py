"""Pictures of ratios: intervals over arms, a sweep's matrix, attention over contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gemvbench.attention_case import Attention
from gemvbench.plan import TWIN
from gemvbench.report import units
from gemvbench.report.contexts import by_context, shape_name
from gemvbench.report.html.palette import LIGHT, verdict_name
from gemvbench.report.html.picture import Picture, legend, name_case, plain
from gemvbench.report.matrix import Matrix, matrices
from gemvbench.result import Result
from gemvbench.results import Summary, noise_floor

_ROW = 0.21
"""Inches of a line in a picture."""
_MOST_ROWS = 44
_LEAST, _FURTHEST = 1e-4, 0.04
"""Ratios below (or above the inverse) are drawn at it, and do not widen the axis."""

Colors = Mapping[str, str]


def forests(summary: Summary) -> list[Picture]:
    """Ratio and interval of every arm, case by case, as many cases a picture as fit."""
    groups = [
        (case.id, [r for r in summary.of_case(case.id) if r.verdict != "BASELINE"])
        for case in summary.run.header.cases
    ]
    groups = [(case, drawn) for case, results in groups if (drawn := [r for r in results if r.ci])]
    pictures: list[Picture] = []
    page: list[tuple[str, list[Result]]] = []
    for case, results in groups:
        if page and _count_rows([*page, (case, results)]) > _MOST_ROWS:
            pictures.append(_forest(summary, page, len(pictures)))
            page = []
        page.append((case, results))
    return [*pictures, _forest(summary, page, len(pictures))] if page else []


def _count_rows(groups: Sequence[tuple[str, list[Result]]]) -> int:
    return sum(len(results) + 1 for _, results in groups)


def _forest(summary: Summary, groups: Sequence[tuple[str, list[Result]]], number: int) -> Picture:
    against = {result.baseline for _, results in groups for result in results}
    baseline = min(against) if len(against) == 1 else "its baseline"
    return Picture(
        name=f"ratios-{number + 1}",
        title="Ratios, continued" if number else "Ratios",
        caption=f"Time of {baseline} over time of the arm: right of 1 is faster. "
        f"Lines are {summary.run.header.settings.confidence:.0%} intervals, small dots "
        "are blocks. The band is the noise floor of the case, by its twin.",
        height=0.75 + _ROW * _count_rows(groups),
        draw=lambda figure: _draw_forest(figure, groups),
    )


def _draw_forest(figure: Any, groups: Sequence[tuple[str, list[Result]]]) -> None:
    axes = figure.subplots()
    axes.axvline(1, color=LIGHT["muted"], linewidth=0.8, zorder=1)
    row, ticks = 0, list[tuple[float, str]]()
    for case, results in groups:
        floor = _floor(results)
        if floor:
            ends = ([math.exp(-floor)], [math.exp(floor)])
            y = [row - 0.45, row + len(results) + 0.45]
            axes.fill_betweenx(
                y, *(2 * end for end in ends), color=LIGHT["band"], linewidth=0, zorder=0
            )
        name_case(axes, row, case)
        for result in results:
            row += 1
            ticks.append((row, plain(result.arm)))
            _draw_interval(axes, row, result)
        row += 1
    low, high = _limits(groups)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(row - 0.4, -0.6)
    axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _ratio_axis(axes.xaxis, low, high)
    axes.grid(axis="x")
    axes.set_xlabel("ratio")


def _draw_interval(axes: Any, row: float, result: Result) -> None:
    assert result.ci is not None
    assert result.ratio is not None
    color = LIGHT[verdict_name(result.verdict)]
    low, high = (min(max(end, _LEAST), 1 / _LEAST) for end in result.ci)
    ratios = list(result.block_ratios)
    axes.plot(ratios, [row] * len(ratios), ".", color=color, alpha=0.35, markersize=4, mew=0)
    axes.plot([low, high], [row, row], color=color, linewidth=2, solid_capstyle="round")
    axes.plot([result.ratio], [row], "o", color=color, markersize=5, mew=0)
    axes.annotate(
        f"{units.ratio(result.ratio)} {result.verdict}",
        (1.01, row),
        xycoords=("axes fraction", "data"),
        va="center",
        color=color,
        fontsize=8,
        annotation_clip=False,
    )


def _floor(results: Sequence[Result]) -> float | None:
    """The noise floor of a case by its twin, as a log; none where it is far too wide to draw."""
    floors = [noise_floor(result) for result in results if result.arm == TWIN]
    return next((floor for floor in floors if floor is not None and floor < 3), None)


def _limits(groups: Sequence[tuple[str, list[Result]]]) -> tuple[float, float]:
    """Of all intervals, ratios and 1, with room; what lies very far out does not count."""
    results = [result for _, own in groups for result in own]
    ends = [1.0, *(end for r in results for end in (*(r.ci or ()), r.ratio or 1.0))]
    ends += [math.exp(floor) for _, own in groups if (floor := _floor(own))]
    ends += [math.exp(-floor) for _, own in groups if (floor := _floor(own))]
    logs = [math.log(min(max(end, _FURTHEST), 1 / _FURTHEST)) for end in ends]
    room = max((max(logs) - min(logs)) * 0.06, 0.002)
    return math.exp(min(logs) - room), math.exp(max(logs) + room)


def _ratio_axis(axis: Any, low: float, high: float) -> None:
    """A few round ratios on a log axis, as plain numbers."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    if high / low > 3:
        wanted = (0.05, 0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
        ticks = [t for t in wanted if low <= t <= high]
    else:
        ticks = [t for t in MaxNLocator(6).tick_values(low, high) if low <= t <= high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:.4g}")


def heat_maps(summary: Summary) -> list[Picture]:
    """The matrices of a sweep; none of any other run."""
    pictures: list[Picture] = []
    for case in summary.run.header.cases:
        for matrix in matrices(summary, case.id):
            pictures.append(_heat_map(matrix, len(pictures)))
    return pictures


def _heat_map(matrix: Matrix, number: int) -> Picture:
    return Picture(
        name=f"matrix-{number + 1}",
        title=matrix.title,
        caption="+ FASTER, - SLOWER, = SAME, ? UNDECIDED; blue is faster, orange slower.",
        height=0.55 + 0.42 * len(matrix.rows),
        draw=lambda figure: _draw_heat_map(figure, matrix),
    )


def _draw_heat_map(figure: Any, matrix: Matrix) -> None:
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    logs = [abs(math.log(e.ratio)) for e in matrix.entries.values() if e.ratio]
    ends = ["#d9772b", "#f3f1ec", "#3d8bc9"]
    colors = LinearSegmentedColormap.from_list("ratio", ends)
    scale = Normalize(-(max(logs, default=0) or 1), max(logs, default=0) or 1)
    for (row, column), entry in matrix.entries.items():
        x, y = matrix.columns.index(column), matrix.rows.index(row)
        fill = colors(scale(math.log(entry.ratio))) if entry.ratio else "#e3e3e3"
        axes.add_patch(Rectangle((x - 0.49, y - 0.47), 0.98, 0.94, facecolor=fill, linewidth=0))
        size = 9 if len(matrix.columns) < 7 else 6.5
        axes.text(x, y, entry.text, ha="center", va="center", color="#101418", fontsize=size)
    axes.set_xlim(-0.5, len(matrix.columns) - 0.5)
    axes.set_ylim(len(matrix.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(matrix.columns)), [plain(c, 18) for c in matrix.columns])
    axes.set_yticks(range(len(matrix.rows)), [plain(r, 24) for r in matrix.rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def context_pictures(summary: Summary, colors: Colors) -> list[Picture]:
    """Speed-up of attention's arms against the tokens in the cache, for each shape."""
    return [
        Picture(
            name=f"contexts-{number + 1}",
            title=f"Speed-up by context, {shape_name(cases)}",
            caption="Ratio to the baseline with its interval, against the tokens attended to. "
            "The band is the noise floor of each, by its twin.",
            height=3.1,
            draw=lambda figure, cases=cases: _draw_contexts(figure, summary, cases, colors),  # type: ignore[misc]
        )
        for number, cases in enumerate(by_context(summary))
    ]


def _draw_contexts(figure: Any, summary: Summary, cases: list[Attention], colors: Colors) -> None:
    axes = figure.subplots()
    floors = [(case.context, _floor(summary.of_case(case.id))) for case in cases]
    bands = [(context, math.exp(floor)) for context, floor in floors if floor]
    x, tops = [context for context, _ in bands], [top for _, top in bands]
    axes.fill_between(x, [1 / top for top in tops], tops, color=LIGHT["band"], linewidth=0)
    axes.axhline(1, color=LIGHT["muted"], linewidth=0.8)
    found = [{r.arm: r for r in summary.of_case(case.id)} for case in cases]
    handles, labels = [], []
    for arm in found[0]:
        points = [
            (case.context, of[arm].ratio, of[arm].ci)
            for case, of in zip(cases, found, strict=True)
            if arm in of and of[arm].ratio is not None and of[arm].ci is not None
        ]
        if arm == TWIN or found[0][arm].verdict == "BASELINE" or not points:
            continue
        y = [p[1] for p in points]
        below = [max(p[1] - p[2][0], 0) for p in points if p[1] and p[2]]
        above = [max(p[2][1] - p[1], 0) for p in points if p[1] and p[2]]
        handles.append(
            axes.errorbar(
                [p[0] for p in points],
                y,
                (below, above),
                color=colors[arm],
                marker="o",
                ms=4,
                lw=1.4,
                capsize=2,
            )
        )
        labels.append(arm)
    axes.set_xscale("log", base=2)
    axes.set_xticks([case.context for case in cases], [_tokens(case.context) for case in cases])
    axes.minorticks_off()
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("speed-up")
    axes.grid(axis="y")
    if handles:
        legend(figure, handles, labels)


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)
