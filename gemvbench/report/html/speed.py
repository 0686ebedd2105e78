"""Pictures of speed: shares of the roof, bytes against time, and where a token's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemvbench.breakdown import Breakdown, break_down
from gemvbench.plan import TWIN
from gemvbench.report import units
from gemvbench.report.html.palette import ARM_COLORS, LIGHT, ROOF_COLOR
from gemvbench.report.html.picture import Picture, legend, name_case, plain
from gemvbench.result import Result
from gemvbench.results import Summary
from gemvbench.token_case import Token

_ROW = 0.23
_MOST_ROWS = 40

Colors = Mapping[str, str]


def roof_shares(summary: Summary, colors: Colors) -> list[Picture]:
    """A bar for each arm of each case: its share of the fastest bare read."""
    pictures: list[Picture] = []
    page: list[Result] = []
    for case in summary.run.header.cases:
        own = [
            r
            for r in summary.of_case(case.id)
            if r.roof_fraction is not None and r.arm != TWIN and r.gbps is not None
        ]
        if page and len(page) + len(own) > _MOST_ROWS:
            pictures.append(_shares(summary, page, colors, len(pictures)))
            page = []
        page += own
    return [*pictures, _shares(summary, page, colors, len(pictures))] if page else []


def _shares(summary: Summary, results: Sequence[Result], colors: Colors, number: int) -> Picture:
    regime = summary.run.header.settings.regime
    cases = len({result.case for result in results})
    return Picture(
        name=f"roof-{number + 1}",
        title="Share of the roof" + (", continued" if number else ""),
        caption="Bytes of the operands over time, as a share of the fastest bare read in the "
        f"same blocks, regime {regime}; GB/s at the right.",
        height=0.6 + _ROW * (len(results) + cases),
        draw=lambda figure: _draw_shares(figure, results, colors),
    )


def _draw_shares(figure: Any, results: Sequence[Result], colors: Colors) -> None:
    axes = figure.subplots()
    row, case = -1, ""
    ticks = list[tuple[int, str]]()
    for result in results:
        row += 1
        if result.case != case:
            case = result.case
            name_case(axes, row, case)
            row += 1
        ticks.append((row, plain(result.arm)))
        share = 100 * (result.roof_fraction or 0)
        axes.barh(row, share, height=0.62, color=colors[result.arm], linewidth=0)
        axes.annotate(f"{share:.1f} %, {units.rate(result.gbps)} GB/s", (1.01, row),
                      xycoords=("axes fraction", "data"), va="center", fontsize=8,
                      annotation_clip=False)  # fmt: skip
    most = max((100 * (result.roof_fraction or 0) for result in results), default=100)
    axes.axvline(100, color=ROOF_COLOR, linewidth=1.2)
    axes.set_xlim(0, max(104, min(most * 1.04, 400)))
    axes.set_ylim(row + 0.6, -0.6)
    axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:g} %")
    axes.grid(axis="x")


def roofline(summary: Summary, colors: Colors) -> list[Picture]:
    """Bytes a call moves against its time, where cases differ in size."""
    sizes = {case.id: case.bytes_moved for case in summary.run.header.cases}
    points = [r for r in summary.results if r.seconds_per_call is not None and r.arm != TWIN]
    if len({sizes[point.case] for point in points}) < 2:
        return []
    return [
        Picture(
            name="roofline",
            title="Bytes against time",
            caption="Each point is an arm on a case. The line is the roof, a bare read of as many "
            "bytes: nothing that reads memory lies below it.",
            height=3.3,
            draw=lambda figure: _draw_roofline(figure, summary, points, sizes, colors),
        )
    ]


def _draw_roofline(
    figure: Any,
    summary: Summary,
    points: Sequence[Result],
    sizes: Mapping[str, int],
    colors: Colors,
) -> None:
    axes = figure.subplots()
    handles, labels = [], []
    for device in summary.run.header.devices:
        roofs = sorted((sizes[r.case], r.gbps) for r in summary.roofs if r.device == device.id)
        if roofs:
            x = [size for size, _ in roofs]
            y = [size / gbps / 1e9 for size, gbps in roofs]
            handles += axes.plot(x, y, "-", color=ROOF_COLOR, lw=1.6, marker="_")
            labels.append(f"roof of {device.id}")
    for arm in dict.fromkeys(point.arm for point in points):
        own = [point for point in points if point.arm == arm]
        handles += axes.plot(
            [sizes[point.case] for point in own],
            [point.seconds_per_call for point in own],
            "o", color=colors[arm], ms=4, mew=0,
        )  # fmt: skip
        labels.append(arm)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: units.size(round(value)))
    axes.yaxis.set_major_formatter(lambda value, _: units.seconds(value))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("bytes a call moves")
    axes.set_ylabel("time of a call")
    axes.grid()
    legend(figure, handles, labels)


def token_bars(summary: Summary) -> list[Picture]:
    """For each arm of a decode one bar: the classes of layers, and what they leave over."""
    cases = summary.run.header.cases
    if summary.run.header.settings.command != "decode" or not isinstance(cases[0], Token):
        return []
    tokens = break_down(summary)
    if not tokens:
        return []
    names = 1 + max(len(token.parts) for token in tokens)
    return [
        Picture(
            name="token",
            title="Where a token's time goes",
            caption="Milliseconds per token: each class of layers as measured by itself, then "
            "what they leave of the whole token. A line marks the whole.",
            height=0.9 + 0.42 * len(tokens) + 0.17 * (names // 3 + 1),
            draw=lambda figure: _draw_tokens(figure, tokens),
        )
    ]


def _draw_tokens(figure: Any, tokens: Sequence[Breakdown]) -> None:
    axes = figure.subplots()
    names = list(dict.fromkeys(part.name for token in tokens for part in token.parts))
    colors = {name: ARM_COLORS[n % len(ARM_COLORS)] for n, name in enumerate(names)}
    for row, token in enumerate(tokens):
        left = 0.0
        for part in token.parts:
            width = 1e3 * (part.result.seconds_per_call or 0)
            axes.barh(row, width, left=left, height=0.6, color=colors[part.name], linewidth=0)
            left += width
        rest = 1e3 * max(token.rest, 0)
        axes.barh(row, rest, left=left, height=0.6, color=LIGHT["grid"], linewidth=0)
        whole = 1e3 * token.seconds
        axes.plot([whole, whole], [row - 0.4, row + 0.4], color=LIGHT["ink"], lw=1.5)
        axes.annotate(f"{whole:.4g} ms", (1.01, row), xycoords=("axes fraction", "data"),
                      va="center", fontsize=8, annotation_clip=False)  # fmt: skip
    axes.set_yticks(range(len(tokens)), [plain(token.arm) for token in tokens])
    axes.set_ylim(len(tokens) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:g} ms")
    axes.grid(axis="x")
    handles = [axes.barh(0, 0, color=color, linewidth=0) for color in colors.values()]
    handles.append(axes.barh(0, 0, color=LIGHT["grid"], linewidth=0))
    legend(figure, handles, [*names, "launch gaps, rest"])
