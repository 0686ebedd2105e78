"""Colours by name, for light and for dark. Marks differ from both papers by 3 : 1, text by 4.5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemvbench.plan import TWIN

LIGHT: Mapping[str, str] = {
    "paper": "#fefefe",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "grid": "#d5d9de",
    "shade": "#f1f3f5",
    "band": "#dfe5ec",
    "faster": "#116329",
    "slower": "#b3261e",
    "same": "#0b5cad",
    "undecided": "#7a5200",
}
DARK: Mapping[str, str] = {
    "paper": "#15181c",
    "ink": "#e6e8ea",
    "muted": "#a3adb7",
    "grid": "#3a4149",
    "shade": "#1e2328",
    "band": "#2d3640",
    "faster": "#6fd08c",
    "slower": "#ff8a80",
    "same": "#7db8ff",
    "undecided": "#e3b341",
}
BASELINE_COLOR, TWIN_COLOR, ROOF_COLOR = "#767b81", "#8f959b", "#8a6d3b"
ARM_COLORS = (
    "#1f78b4",
    "#d95f02",
    "#1b9e77",
    "#7570b3",
    "#e7298a",
    "#008b9b",
    "#a6761d",
    "#c23b2e",
    "#5f8f1f",
    "#8c5ac8",
)
"""Of arms, on both papers; a raster inside a picture cannot change its colours."""

_VERDICTS = {
    "FASTER": "faster",
    "SLOWER": "slower",
    "SAME": "same",
    "UNDECIDED": "undecided",
    "WRONG": "slower",
    "FAILED": "slower",
    "INVALID": "slower",
    "PASSED": "faster",
    "UNCLEAR": "undecided",
}


def verdict_name(verdict: str) -> str:
    """The colour of a verdict by name; muted where it has none."""
    return _VERDICTS.get(verdict, "muted")


def arm_colors(labels: Iterable[str], baseline: str) -> dict[str, str]:
    """A colour for each arm, the same in all pictures of a run; they come again after ten."""
    others = [label for label in dict.fromkeys(labels) if label not in (baseline, TWIN)]
    colors = {label: ARM_COLORS[place % len(ARM_COLORS)] for place, label in enumerate(others)}
    return {baseline: BASELINE_COLOR, TWIN: TWIN_COLOR} | colors


def variables(colors: Mapping[str, str]) -> str:
    """Declarations of CSS variables."""
    return " ".join(f"--{name}: {value};" for name, value in colors.items())
