"""Pictures of a simulation, as SVG files by Matplotlib (the extra `plots`)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemvbench.plan import TWIN
from gemvbench.simulation.noise import ARMS, MODELS, SLOT_SECONDS
from gemvbench.simulation.study import METHODS, RULE, Cell, Example

_ARM_COLORS = {"base": "#0072b2", TWIN: "#56b4e9", "arm": "#d55e00"}
_STYLES = {
    "gemvbench": ("#0072b2", "o", "-"),
    "Welch": ("#e69f00", "s", "--"),
    "Mann-Whitney": ("#009e73", "^", "-."),
    "medians": ("#cc79a7", "D", ":"),
}
_PANELS = ("iid-0.2", "drift", "slow-arms")
_ZOOMED = 2
"""The block that is drawn large."""


def draw_run(example: Example, path: Path) -> None:
    """One run over time, one of its blocks, and the block effects with the interval."""
    figure = _figure(8.6, 6.2)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.1), width_ratios=(1.1, 1))
    _draw_samples(figure.add_subplot(grid[0, :]), example)
    _draw_block(figure.add_subplot(grid[1, 0]), example)
    _draw_effects(figure.add_subplot(grid[1, 1]), example)
    _save(figure, path)


def draw_power(cells: Sequence[Cell], path: Path) -> None:
    """How often each method finds an effect, for a few models side by side."""
    present = list(dict.fromkeys(cell.model for cell in cells))
    models = [name for name in _PANELS if name in present] or present[: len(_PANELS)]
    figure = _figure(8.6, 4.2)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        _draw_model(axes, [cell for cell in cells if cell.model == model])
    panels[0].set_ylabel("runs that find it")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
    _save(figure, path)


def _draw_samples(axes: Any, example: Example) -> None:
    seconds, change = example.schedule.seconds[: example.blocks], _change(example)
    for number, block in enumerate(seconds, 1):
        _shade(axes, block)
        axes.text(block.mean(), 1, f"block {number}", **_above(axes))
    _scatter(axes, example.schedule.order[0], seconds, change, size=9)
    axes.set_title("What is measured: every block is a fresh process", pad=20, loc="left")
    axes.set_xlabel("seconds since the start of the run")
    axes.set_ylabel("time per call, off the mean")
    axes.yaxis.set_major_formatter("{x:+g} %")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.08), ncols=3, markerscale=2)


def _draw_block(axes: Any, example: Example) -> None:
    change = _change(example)[_ZOOMED]
    seconds = example.schedule.seconds[_ZOOMED] - example.schedule.seconds[_ZOOMED].min()
    for number, pass_ in enumerate(seconds, 1):
        if number % 2:
            _shade(axes, pass_)
        axes.text(pass_.mean(), 1, f"pass {number}", **_above(axes))
    axes.plot(seconds.ravel(), change.ravel(), color="#bbbbbb", linewidth=0.8, zorder=1)
    _scatter(axes, example.schedule.order[0, _ZOOMED], seconds, change, size=26)
    axes.set_title(f"Block {_ZOOMED + 1}: passes in rotated orders", pad=20, loc="left")
    axes.set_xlabel("seconds since the start of the block")
    axes.set_ylabel("time per call, off the mean")
    axes.yaxis.set_major_formatter("{x:+g} %")


def _draw_effects(axes: Any, example: Example) -> None:
    interval = example.judgement.interval
    color = _ARM_COLORS["arm"]
    low, middle, high = (_percent(x) for x in (interval.low, interval.estimate, interval.high))
    numbers = range(1, example.blocks + 1)
    axes.axhspan(low, high, color=color, alpha=0.15, linewidth=0, label="interval")
    axes.axhline(middle, color=color, linewidth=1.2, label="estimate")
    axes.axhline(100 * example.effect, color="#333333", linestyle=":", label="planted")
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.plot(numbers, _percent(example.effects[: example.blocks]), "o", color=color, label="block")
    verdict = f"{example.judgement.verdict}, {low:.2f} .. {high:.2f} %"
    axes.set_title(f"Paired, block by block: {verdict}", pad=20, loc="left")
    axes.set_xlabel("block")
    axes.set_ylabel("arm is faster by")
    axes.set_xticks(numbers)
    axes.yaxis.set_major_formatter("{x:+g} %")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=4, columnspacing=1)


def _draw_model(axes: Any, cells: Sequence[Cell]) -> None:
    alarms, *planted = sorted(cells, key=lambda cell: cell.effect)
    effects = [100 * cell.effect for cell in planted]
    for method in METHODS:
        color, marker, line = _STYLES[method]
        style = {"color": color, "marker": marker, "markersize": 5, "clip_on": False}
        found = [100 * cell.found(method) for cell in planted]
        width = 2.2 if method == RULE else 1.3
        axes.plot(effects, found, linestyle=line, linewidth=width, label=method, **style)
        false = 100 * alarms.alarms(method)
        axes.plot([0], [false], linestyle="", markerfacecolor="white", zorder=3, **style)
    axes.set_title("\n".join(textwrap.wrap(MODELS[alarms.model].title, 30)), loc="left")
    lines = [f"{method} {alarms.alarms(method):.1%}" for method in METHODS]
    told = f"{', '.join(lines[:2])}\n{', '.join(lines[2:])}"
    axes.set_xlabel(f"planted effect\n\nfalse alarms (open markers at 0):\n{told}")
    axes.set_ylim(0, 100)
    axes.set_xlim(-0.08, 2.05)
    axes.set_xticks([0, *effects], ["0", "0.3", "0.5", "1 %", "2 %"][: len(effects) + 1])
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.grid(color="#e5e5e5", linewidth=0.6)


def _scatter(axes: Any, order: Any, seconds: Any, change: Any, size: int) -> None:
    for number, arm in enumerate(ARMS):
        mine = order[: len(seconds)] == number
        label = {TWIN: f"{TWIN}: base again"}.get(arm, arm)
        color = _ARM_COLORS[arm]
        axes.scatter(seconds[mine], change[mine], s=size, color=color, linewidth=0, label=label)


def _shade(axes: Any, seconds: Any) -> None:
    half = SLOT_SECONDS / 2
    axes.axvspan(seconds.min() - half, seconds.max() + half, color="#eeeeee", linewidth=0)


def _above(axes: Any) -> dict[str, Any]:
    """Small text centred on the upper edge, x in data."""
    place = axes.get_xaxis_transform()
    return {"transform": place, "ha": "center", "va": "bottom", "fontsize": 7, "color": "#555555"}


def _change(example: Example) -> Any:
    """Percent off the mean of what was run until the stop, in the order of time."""
    logs = example.logs[0, : example.blocks]
    return _percent(logs - logs.mean())


def _percent(log: Any) -> Any:
    return 100 * np.expm1(log)


def _figure(width: float, height: float) -> Any:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(
        {
            "svg.hashsalt": "gemvbench",
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "legend.fontsize": 8,
        }
    )
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _save(figure: Any, path: Path) -> None:
    """Without a date, so that the same run is the same file."""
    figure.savefig(path, format="svg", metadata={"Date": None})
