"""The page: the verdict first, then pictures and tables, how sure, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources
from string import Template

from gemvbench import __version__
from gemvbench.jobs import Choice
from gemvbench.report import units
from gemvbench.report.claims import headline
from gemvbench.report.closing import how_it_ended, how_sure
from gemvbench.report.document import Document, Section
from gemvbench.report.html import elements
from gemvbench.report.html.palette import DARK, LIGHT, variables
from gemvbench.report.html.picture import Picture, inline_svg
from gemvbench.report.html.pictures import picture_groups
from gemvbench.report.pull_request import flagged, measured_on
from gemvbench.report.side_by_side import Shown, side_by_side
from gemvbench.result import constants_of
from gemvbench.results import Summary
from gemvbench.token_arm import TokenArm

_Parts = list[str]


def make_page(runs: Sequence[Shown]) -> str:
    """One HTML document of one run or of several, complete without scripts or network."""
    several = len(runs) > 1
    title = f"gemvbench: {runs[0].name}" if not several else f"gemvbench: {len(runs)} runs"
    parts = [elements.heading(1, title)]
    if several:
        parts += [elements.section(section) for section in side_by_side(runs)]
    for number, run in enumerate(runs, 1):
        parts += _run(run, f"run{number}-" if several else "", several)
    fill = resources.files("gemvbench.report.html")
    style = Template((fill / "page.css").read_text()).substitute(
        light=variables(LIGHT), dark=variables(DARK)
    )
    return Template((fill / "page.html").read_text()).substitute(
        version=elements.escape(__version__),
        title=elements.escape(title),
        style=style,
        body="\n".join(parts),
    )


def _run(run: Shown, prefix: str, several: bool) -> _Parts:
    summary = run.summary
    groups = {name: pictures for name, pictures in picture_groups(summary).items() if pictures}
    content = {name: [_figures(pictures)] for name, pictures in groups.items()}
    measurements = {name: content.pop(name) for name in ("Measurements",) if name in content}
    content |= {
        "Tables": _tables(run.document),
        "How sure": _how_sure(summary),
        **measurements,
        "What was built": _built(summary),
        "Environment": _environment(summary),
        "Repeat it": _repeat(summary),
    }
    places = {name: prefix + name.lower().replace(" ", "-") for name in content}
    links = (f'<a href="#{place}">{elements.escape(name)}</a>' for name, place in places.items())
    parts = [elements.heading(2, run.name, f"{prefix}top")] if several else []
    parts += [*_verdict(summary), f"<nav>{' '.join(links)}</nav>"]
    for name, own in content.items():
        parts += [elements.heading(2, name, places[name]), *own]
    return parts


def _figures(pictures: Sequence[Picture]) -> str:
    return f'<div class="figures">{"".join(map(_figure, pictures))}</div>'


def _verdict(summary: Summary) -> _Parts:
    header = summary.run.header
    said = headline(summary)
    alarms = [f"VOID: {summary.void}"] if summary.void else []
    alarms += [*summary.run.damage, *how_it_ended(summary)]
    devices = ", ".join(device.title for device in header.devices)
    about = f"{header.started}, {devices}, regime {header.settings.regime}"
    parts = [elements.paragraph(said, "verdict")]
    if alarms:
        parts.append(f'<div class="alarm">{"".join(map(elements.paragraph, alarms))}</div>')
    return [*parts, elements.paragraph(about, "muted")]


def _figure(picture: Picture) -> str:
    return (
        f"<figure>{elements.heading(3, picture.title)}{inline_svg(picture)}"
        f"<figcaption>{elements.escape(picture.caption)}</figcaption></figure>"
    )


def _tables(document: Document) -> _Parts:
    """All sections with a title; what stands below them is said under the next heading."""
    return [elements.section(section) for section in document.sections if section.title]


def _how_sure(summary: Summary) -> _Parts:
    said = [line for line in how_sure(summary) if line not in summary.run.damage]
    return [elements.items(said), elements.heading(3, "Flags"), elements.items(flagged(summary))]


def _built(summary: Summary) -> _Parts:
    """The ladder's choices and the constants, arm by arm."""
    rows = dict.fromkeys(row for c in summary.run.header.choices for row in _choice_rows(c))
    columns = ("arm", "case", "built", "steps of the ladder")
    return [elements.section(Section("", columns, tuple(rows)))]


def _choice_rows(choice: Choice) -> list[tuple[str, ...]]:
    outcome = choice.outcome
    built = constants_of(choice)
    steps = "; ".join(map(str, getattr(outcome, "steps", ()))) or "none"
    if isinstance(outcome, TokenArm):
        texts = "; ".join(f"{name}: {value}" for name, value in built.items())
    else:
        texts = " ".join(f"{name}={value}" for name, value in built.items())
    reason = getattr(outcome, "reason", "")
    return [(choice.label, choice.case, texts or f"declined: {reason}", steps)]


def _environment(summary: Summary) -> _Parts:
    header = summary.run.header
    devices = [
        (
            device.id,
            device.name,
            f"{device.platform}, driver {device.driver}",
            str(device.compute_units),
            units.size(device.memory_bytes),
            units.size(device.cache_bytes),
            ", ".join(device.capabilities),
        )
        for device in header.devices
    ]
    columns = ("device", "name", "platform", "units", "memory", "cache", "capabilities")
    return [
        elements.section(Section("", columns, tuple(devices))),
        elements.items(measured_on(header)),
    ]


def _repeat(summary: Summary) -> _Parts:
    header = summary.run.header
    return [elements.command(f"gemvbench {shlex.join(header.arguments)}")]
