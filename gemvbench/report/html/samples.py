"""Pictures of single measurements: over time, by arm, by slot, and what the GPU said meanwhile."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench.gpu_state import GpuState
from gemvbench.messages import Sample
from gemvbench.report.html.palette import LIGHT
from gemvbench.report.html.picture import MOST_MARKS, Picture, legend, plain
from gemvbench.results import Summary
from gemvbench.stats import is_slow

_FURTHEST = 4.0
"""Times the spread of most: what lies further out is drawn at the edge."""
_MOST_PASSES = 130
_READINGS = (
    ("sm_mhz", "SM clock, MHz"),
    ("temperature_c", "temperature, °C"),
    ("power_w", "power, W"),
)

Array = NDArray[np.float64]
Colors = Mapping[str, str]


def by_case(summary: Summary) -> dict[str, list[Sample]]:
    """Usable samples in the order they were taken."""
    found: dict[str, list[Sample]] = {case.id: [] for case in summary.run.header.cases}
    for sample in summary.run.of(Sample):
        if sample.is_usable:
            found[sample.case].append(sample)
    return {case: samples for case, samples in found.items() if samples}


def over_time(case: str, samples: Sequence[Sample], colors: Colors, number: int) -> Picture:
    """Every measurement of a case in the order they were taken."""
    arms = [arm for arm in colors if any(s.arm == arm for s in samples)]
    return Picture(
        name=f"time-{number + 1}",
        title=f"Every measurement, {case}",
        caption="Each arm's time off its own median, in the order taken. Shaded stripes are "
        "blocks, each a fresh process; thin lines part passes.",
        height=2.7 + 0.16 * math.ceil(len(arms) / 4),
        draw=lambda figure: _draw_time(figure, samples, {arm: colors[arm] for arm in arms}),
    )


def _draw_time(figure: Any, samples: Sequence[Sample], colors: Colors) -> None:
    axes = figure.subplots()
    own: dict[str, list[int]] = defaultdict(list)
    for place, sample in enumerate(samples):
        own[sample.arm].append(place)
    seconds = np.array([s.seconds for s in samples])
    change = np.empty(len(samples))
    for places in own.values():
        change[places] = 100 * (seconds[places] / np.median(seconds[places]) - 1)
    low, high = _window(change)
    _mark_blocks(axes, samples)
    dense = len(samples) > MOST_MARKS
    size = 6 if len(samples) < 300 else 4 if not dense else 1.5
    handles = []
    for arm, color in colors.items():
        shown = np.clip(change[own[arm]], low, high)
        x = np.array(own[arm]) + 1
        axes.plot(x, shown, ".", color=color, ms=size, mew=0, rasterized=dense)
        handles.append(axes.plot([], [], "o", color=color, ms=5, mew=0)[0])
    beyond = int(((change < low) | (change > high)).sum())
    if beyond:
        axes.set_title(f"{beyond} of {len(samples)} lie beyond, at the edge", loc="right",
                       fontsize=7.5, color=LIGHT["muted"])  # fmt: skip
    room = 0.05 * (high - low)
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(0, len(samples) + 1)
    axes.set_xlabel("measurement")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.4g} %")
    axes.grid(axis="y")
    legend(figure, handles, list(colors))


def _window(change: Array) -> tuple[float, float]:
    """Where most of it lies, and all of it if that is not much more."""
    low, high = (float(end) for end in np.quantile(change, (0.02, 0.98)))
    most = max(abs(low), abs(high), 0.2)
    return max(float(change.min()), -_FURTHEST * most), min(float(change.max()), _FURTHEST * most)


def _mark_blocks(axes: Any, samples: Sequence[Sample]) -> None:
    """Stripes of blocks, and lines where a pass begins unless there are too many."""
    starts = _starts(samples, lambda s: (s.block,))
    passes = _starts(samples, lambda s: (s.block, s.pass_))
    every = math.ceil(len(starts) / 16)
    for number, (begin, end) in enumerate(pairwise([*starts, len(samples)])):
        if number % 2 == 0:
            axes.axvspan(begin + 0.5, end + 0.5, color=LIGHT["shade"], linewidth=0, zorder=0)
        if number % every == 0:
            axes.annotate(
                str(samples[begin].block), ((begin + end) / 2 + 0.5, 1),
                xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=7,
                color=LIGHT["muted"],
            )  # fmt: skip
    axes.set_title("block", loc="left", fontsize=7.5, color=LIGHT["muted"], pad=10)
    if len(passes) <= _MOST_PASSES:
        for begin in set(passes) - set(starts):
            axes.axvline(begin + 0.5, color=LIGHT["grid"], linewidth=0.5, zorder=0)


def _starts(samples: Sequence[Sample], key: Any) -> list[int]:
    places, at = [], 0
    for _, group in groupby(samples, key):
        places.append(at)
        at += sum(1 for _ in group)
    return places


def distributions(case: str, samples: Sequence[Sample], colors: Colors, number: int) -> Picture:
    """A histogram of each arm's measurements, with the slow ones set apart."""
    arms = [arm for arm in colors if sum(s.arm == arm for s in samples) > 1]
    return Picture(
        name=f"distribution-{number + 1}",
        title=f"Distributions, {case}",
        caption="How often an arm took how long, off its own median; dots are block medians. "
        "Slow measurements, a mode of their own, are drawn in the colour of SLOWER and counted.",
        height=0.6 + 0.4 * max(len(arms), 1),
        draw=lambda figure: _draw_distributions(figure, samples, arms, colors),
    )


def _draw_distributions(
    figure: Any, samples: Sequence[Sample], arms: Sequence[str], colors: Colors
) -> None:
    axes = figure.subplots()
    own: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        own[sample.arm].append(sample)
    changes, slow, blocks = {}, {}, {}
    for arm in arms:
        seconds = np.array([s.seconds for s in own[arm]])
        changes[arm] = 100 * (seconds / np.median(seconds) - 1)
        slow[arm] = is_slow(np.log(seconds))
        places = np.array([s.block for s in own[arm]])
        blocks[arm] = [float(np.median(changes[arm][places == b])) for b in np.unique(places)]
    if not arms:
        return
    low, high = _window(np.concatenate(list(changes.values())))
    edges = np.linspace(low, high + 1e-9, 61)
    for row, arm in enumerate(arms):
        shown = np.clip(changes[arm], low, high)
        most = np.histogram(shown, edges)[0].max()
        for part, color in ((~slow[arm], colors[arm]), (slow[arm], LIGHT["slower"])):
            if part.any():
                heights = np.histogram(shown[part], edges)[0] / most
                _draw_steps(axes, row, edges, heights, color)
        medians = np.clip(blocks[arm], low, high)
        axes.plot(medians, [row + 0.2] * len(medians), ".", color=colors[arm], ms=4, mew=0)
        if slow[arm].any():
            axes.annotate(
                f"slow {int(slow[arm].sum())} of {len(slow[arm])}", (1.01, row),
                xycoords=("axes fraction", "data"), va="center", fontsize=8,
                color=LIGHT["slower"], annotation_clip=False,
            )  # fmt: skip
    axes.axvline(0, color=LIGHT["muted"], linewidth=0.8)
    axes.set_yticks(range(len(arms)), [plain(arm) for arm in arms])
    axes.set_ylim(len(arms) - 0.6, -0.95)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.4g} %")
    axes.grid(axis="x")


def _draw_steps(axes: Any, row: int, edges: Array, heights: Array, color: str) -> None:
    """A histogram that stands on its row; the axis points down."""
    tops = row - 0.85 * heights
    used = np.flatnonzero(heights)
    for first, last in _stretches(used):
        axes.fill_between(
            edges[first : last + 2], row, [*tops[first : last + 1], tops[last]],
            step="post", color=color, linewidth=0, alpha=0.8,
        )  # fmt: skip


def _stretches(used: NDArray[np.intp]) -> list[tuple[int, int]]:
    """(first, last) of each run of neighbours."""
    parts = np.split(used, np.flatnonzero(np.diff(used) > 1) + 1)
    return [(int(part[0]), int(part[-1])) for part in parts if len(part)]


def slots(summary: Summary) -> list[Picture]:
    """What the place in a pass costs by itself, in each case."""
    means = [view.slot_means for view in summary.views.values() if len(view.slot_means) > 1]
    if not means:
        return []
    return [
        Picture(
            name="slots",
            title="Effect of the slot",
            caption="Mean time of a place in the pass, with arms and passes taken out; one line "
            "for each case. Orders are balanced, so that it moves no ratio.",
            height=2.3,
            draw=lambda figure: _draw_slots(figure, means),
        )
    ]


def _draw_slots(figure: Any, cases: Sequence[Mapping[int, float]]) -> None:
    axes = figure.subplots()
    axes.axhline(0, color=LIGHT["muted"], linewidth=0.8)
    for means in cases:
        values = [100 * math.expm1(value) for value in means.values()]
        axes.plot([slot + 1 for slot in means], values, "o-", color=LIGHT["same"], ms=3.5, lw=1)
    axes.set_xlabel("slot of a pass")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.3g} %")
    axes.grid(axis="y")


def clocks(summary: Summary) -> list[Picture]:
    """Clocks, temperature and power around each measurement, where the driver tells."""
    states = [sample.after or sample.before for sample in summary.run.of(Sample)]
    known = [state for state in states if state is not None]
    shown = [
        (name, text)
        for name, text in _READINGS
        if any(getattr(state, name) is not None for state in known)
    ]
    if not shown:
        return []
    held = sum(bool(state.throttle_reasons) for state in known)
    return [
        Picture(
            name="clocks",
            title="Clocks, temperature and power",
            caption="Read after each measurement, in the order taken. The driver named a reason to "
            f"hold the clock back in {held} of {len(known)} readings.",
            height=0.5 + 1.15 * len(shown),
            draw=lambda figure: _draw_clocks(figure, known, shown),
        )
    ]


def _draw_clocks(figure: Any, states: Sequence[GpuState], shown: Sequence[tuple[str, str]]) -> None:
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, text) in zip(panels, shown, strict=True):
        points = [(n, getattr(state, name)) for n, state in enumerate(states, 1)]
        points = [(n, value) for n, value in points if value is not None]
        dense = len(points) > MOST_MARKS
        axes.plot(*zip(*points, strict=True), ".", color="#1f78b4", ms=3, mew=0, rasterized=dense)
        axes.set_ylabel(text)
        axes.grid(axis="y")
    panels[-1].set_xlabel("measurement")
