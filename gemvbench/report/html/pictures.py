"""Which pictures a run has, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Mapping

from gemvbench.messages import Sample
from gemvbench.plan import TWIN
from gemvbench.report.html import ratios, samples, speed
from gemvbench.report.html.palette import ROOF_COLOR, arm_colors
from gemvbench.report.html.picture import Picture
from gemvbench.results import Summary

MOST_CASES = 6
"""Of more cases than these a page draws the measurements of the others together."""
FEWER_CASES, MANY_CASES = 1, 24
"""Of so many cases it draws fewer by themselves: six say little of them, and take seconds each."""


def picture_groups(summary: Summary) -> dict[str, list[Picture]]:
    """Pictures by heading: of results, of speed, of single measurements."""
    header = summary.run.header
    colors = arm_colors((choice.label for choice in header.choices), header.baseline)
    most = MOST_CASES if len(summary.views) <= MANY_CASES else min(MOST_CASES, FEWER_CASES)
    drawn = samples.drawn_together(summary, most)
    return {
        "Ratios": [
            *ratios.forests(summary),
            *ratios.heat_maps(summary),
            *ratios.context_pictures(summary, colors),
        ],
        "Speed": [
            *speed.token_bars(summary),
            *speed.roof_shares(summary, colors),
            *speed.roofline(summary, colors),
        ],
        "Measurements": [
            *(
                draw(case, of, _present(of, colors), number)
                for number, (case, of) in enumerate(drawn.items())
                for draw in (samples.over_time, samples.distributions)
            ),
            *samples.slots(summary),
            *samples.clocks(summary),
        ],
    }


def _present(of: list[Sample], colors: Mapping[str, str]) -> dict[str, str]:
    """The arms of a case with their colours, and its bare reads."""
    arms = {sample.arm for sample in of}
    order = [*list(colors)[:1], TWIN, *(arm for arm in colors if arm != TWIN)]
    known = {arm: colors[arm] for arm in dict.fromkeys(order) if arm in arms}
    return known | dict.fromkeys(sorted(arms - set(known)), ROOF_COLOR)
