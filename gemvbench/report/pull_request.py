"""A run as text for a pull request: the claim, the tables, how sure, on what, and the command."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gemvbench.device import DeviceInfo
from gemvbench.record import Header
from gemvbench.report.claims import claimed, headline
from gemvbench.report.closing import how_it_ended, how_sure
from gemvbench.report.document import Section
from gemvbench.report.formats import section_markdown
from gemvbench.results import Summary

_WORDS: Mapping[str, str] = {
    "aa": "base and its identical twin differ in this case",
    "clocks differ": "the SM clock of the arm against that of the baseline",
    "compute-bound": "so far below the roof that memory is not the limit",
    "contaminated": "what the other arms in the process add to the ratio it has alone",
    "event clock": "so that times of this device may be off by as much",
    "host-bound": "where the device waited for the host",
    "identical to": "with the same kernel text, constants and geometry",
    "launch gaps": "the share of the timeline in which no kernel ran",
    "measurements not positive": "where a long run took no longer than a short one",
    "non-linear": "a call early in a run against one over all of it",
    "slow in": "measurements far above the arm's lower quartile",
    "small": "decided, but less than the least effect that matters",
    "throttled": "where the GPU held its clock back",
}
_NO_PACKAGES = ("system", "cpu", "cpus", "load", "commit")


def pull_request(summary: Summary, sections: Iterable[Section], claim: str = "") -> str:
    """Markdown, ready to be pasted; `sections` are the tables, `claim` stands above them."""
    header = summary.run.header
    single = len(claimed(summary.results)) == 1
    tables = [replace(each, lead=()) if single else each for each in sections]
    claim = claim or headline(summary)
    parts = [
        f"**VOID.** {claim}" if summary.void else claim,
        *map(section_markdown, tables),
        _list("How sure", [*how_sure(summary), *how_it_ended(summary)]),
        _list("Flagged", flagged(summary)),
        _list("Measured on", measured_on(header)),
        f"**To repeat it**\n\n```sh\ngemvbench {shlex.join(header.arguments)}\n```",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def explain(flag: str) -> str:
    """A flag with what it means; one that explains itself is left as it is."""
    meanings = [words for part, words in _WORDS.items() if part in flag]
    return f"{flag}, {meanings[0]}" if meanings else flag


def _list(title: str, items: Sequence[str]) -> str:
    """With nothing to list there is no title either."""
    if not items:
        return ""
    return "\n".join([f"**{title}**", "", *(f"- {item}" for item in items)])


def flagged(summary: Summary) -> list[str]:
    """Each flag once, with the arms that have it."""
    several = len(summary.run.header.cases) > 1
    arms: dict[str, list[str]] = defaultdict(list)
    for result in summary.results:
        for flag in result.flags:
            arms[flag].append(f"{result.arm} on {result.case}" if several else result.arm)
    lines = [explain(flag) for flag in summary.flags]
    lines += [f"{', '.join(names)}: {explain(flag)}" for flag, names in arms.items()]
    return lines or ["Nothing."]


def measured_on(header: Header) -> list[str]:
    """Devices, notes, software and machine, a line each."""
    return [*map(_device, header.devices), *header.notes, *_software(header)]


def _device(device: DeviceInfo) -> str:
    """With what its driver says of itself: there OpenCL names the compiler."""
    more = [text for text in (device.version, device.architecture) if text]
    return " ".join(", ".join([device.title, *more]).split())


def _software(header: Header) -> list[str]:
    known = header.environment
    packages = [f"{name} {text}" for name, text in known.items() if name not in _NO_PACKAGES]
    machine = [known[name] for name in ("cpu", "system") if name in known]
    if "cpus" in known:
        machine.append(f"{known['cpus']} CPUs")
    if "load" in known:
        machine.append(f"load {known['load']}")
    lines = [f"gemvbench {header.version}, {_commit(known)}", ", ".join(packages)]
    return [line for line in (*lines, ", ".join(machine)) if line]


def _commit(environment: Mapping[str, str]) -> str:
    commit = environment.get("commit", "")
    if not commit:
        return "no commit known (not run from a checkout)"
    name = commit.removesuffix("-dirty")
    return f"commit {name}, {'clean' if name == commit else 'with uncommitted changes'}"
