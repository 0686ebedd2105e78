"""The report of `selftest`: one sentence for each finding, and what the machine resolves last."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from gemvbench.device import DeviceInfo
from gemvbench.messages import RoofMeasured
from gemvbench.record import SCHEMA
from gemvbench.report import units
from gemvbench.report.document import Document, Section
from gemvbench.selftest import CACHED, Planted, Pools, Resolution, Selftest, exit_code
from gemvbench.selftest_plan import CACHE, DOUBLE, STREAM
from gemvbench.stats import MIN_BLOCKS

PASSED, FAILED, UNCLEAR = "PASSED", "FAILED", "UNCLEAR"


class Finding(msgspec.Struct, frozen=True):
    """One check of a machine, what came of it, and one sentence on it."""

    check: str
    verdict: str
    text: str


class _Json(msgspec.Struct, kw_only=True):
    """The stable object of `--format json`."""

    schema: int
    device: DeviceInfo
    case: str
    code: int
    ended: str
    blocks: int
    noise_floor: float | None
    findings: tuple[Finding, ...]
    planted: tuple[Planted, ...]
    pools: Pools | None
    event_clock: float | None
    roof: RoofMeasured | None
    resolutions: tuple[Resolution, ...]
    block_device_seconds: float
    block_wall_seconds: float


def selftest_document(found: Selftest) -> Document:
    """Findings as a table, then how it was measured, and the resolution as the last line."""
    header = found.summary.run.header
    (device,) = header.devices
    all_findings = tuple(findings(found))
    section = Section(
        title=f"Selftest of {device.id}, {header.cases[0].id}, baseline {header.baseline}",
        columns=("check", "verdict", "finding"),
        rows=tuple((each.check, each.verdict, each.text) for each in all_findings),
        notes=(
            device.title,
            *found.summary.run.damage,
            *_how(found),
            *map(_resolved, found.resolutions),
        ),
    )
    return Document(
        sections=(section,),
        data=_Json(
            schema=SCHEMA,
            device=device,
            case=header.cases[0].id,
            code=int(exit_code(found)),
            ended=found.summary.ended,
            blocks=found.blocks,
            noise_floor=found.summary.noise_floor,
            findings=all_findings,
            planted=found.planted,
            pools=found.pools,
            event_clock=found.event_clock,
            roof=found.roof,
            resolutions=found.resolutions,
            block_device_seconds=found.block_device_seconds,
            block_wall_seconds=found.block_wall_seconds,
        ),
        records=[dict[str, Any](msgspec.to_builtins(each)) for each in all_findings],
    )


def findings(found: Selftest) -> list[Finding]:
    """Everything that was checked, in a fixed order."""
    return [
        *_broken(found),
        *_identical_arms(found),
        *(_planted(each) for each in found.planted),
        _clock(found),
        _regime(found),
        *_roof(found),
    ]


def _broken(found: Selftest) -> list[Finding]:
    """Arms without a result, each with its reason, and a run that did not end."""
    arms = [
        Finding("arms", FAILED, f"{r.arm} is {r.verdict}: {r.reason or 'nothing was measured'}.")
        for r in found.broken
    ]
    if found.unclean:
        clean = sorted(result.blocks for result in found.unclean)
        names = ", ".join(result.arm for result in found.unclean)
        arms.append(
            Finding(
                "arms",
                FAILED,
                f"Of {found.blocks} blocks only {clean[0]} to {clean[-1]} hold an undisturbed pair "
                f"of {names}, and {MIN_BLOCKS} are needed: the machine is too busy, or give it "
                "more --budget.",
            )
        )
    if found.summary.ended != "complete":
        said = f"The run did not end by itself: {found.summary.ended}."
        arms.append(Finding("run", FAILED, said))
    return arms


def _identical_arms(found: Selftest) -> list[Finding]:
    if not found.same:
        return []
    if found.summary.void:
        return [Finding("A/A", FAILED, f"VOID: {found.summary.void}")]
    floor = units.effect(found.summary.noise_floor)
    count = f"{len(found.alarms)} of {len(found.same)} identical arms"
    if found.alarms:
        return [
            Finding(
                "A/A",
                FAILED,
                f"{count} ({', '.join(found.alarms)}) were told apart from the baseline, which "
                "chance does in one run of a hundred: run it again, and if it comes back, believe "
                "no small effect of this machine.",
            )
        ]
    return [
        Finding("A/A", PASSED, f"{count} were told apart from the baseline; noise floor {floor}.")
    ]


def _planted(each: Planted) -> Finding:
    low, high = each.ci
    name = f"planted {each.share:.2%}"
    measured = f"measured {each.effect:.2%} ({low:.2%} .. {high:.2%})"
    if each.wrong_sign:
        return Finding(name, FAILED, f"Has the wrong sign: {measured}.")
    if each.excluded:
        return Finding(
            name, FAILED, f"Does not show at its size: {measured}, which excludes what was planted."
        )
    if each.found:
        return Finding(name, PASSED, f"Found: {measured}.")
    return Finding(name, UNCLEAR, f"Not found, too small for this machine: {measured}.")


def _clock(found: Selftest) -> Finding:
    if found.event_clock is None:
        return Finding("event clock", FAILED, "No read kernel ran, so that it was not checked.")
    said = f"{found.event_clock:.3f} of the host's over half a second"
    if found.clock_is_right:
        return Finding("event clock", PASSED, f"Goes like the host's: {said}.")
    return Finding(
        "event clock", FAILED, f"Goes at {said}: every time of this device is off by as much."
    )


def _regime(found: Selftest) -> Finding:
    pools = found.pools
    if found.pool_fault:
        return Finding("regime", FAILED, f"The pools could not be read: {found.pool_fault}.")
    if pools is None and found.pools_fit:
        return Finding("regime", FAILED, "The run ended before the pools were read.")
    if pools is None:
        return Finding(
            "regime",
            UNCLEAR,
            "Twice the pool of `stream` does not fit: whether it is cached is open.",
        )
    said = (
        f"its pool of {units.size(pools.sizes[STREAM])} reads at {_gbps(pools, STREAM)}, "
        f"{units.ratio(pools.ratio)} ({units.interval(pools.ci)}) of the speed of one of "
        f"{units.size(pools.sizes[DOUBLE])}"
    )
    if CACHE in pools.sizes:
        said += f"; cached, {units.size(pools.sizes[CACHE])} read at {_gbps(pools, CACHE)}"
    if pools.is_cached:
        return Finding("regime", FAILED, f"`stream` is served from a cache in part: {said}.")
    if pools.is_clear:
        return Finding("regime", PASSED, f"`stream` is uncached: {said}.")
    return Finding(
        "regime",
        UNCLEAR,
        f"Noise hides whether more than {CACHED:.0%} of `stream` is cached: {said}.",
    )


def _gbps(pools: Pools, label: str) -> str:
    return f"{units.rate(pools.bandwidths[label] / 1e9)} GB/s"


def _roof(found: Selftest) -> list[Finding]:
    if found.roof is None:
        return []
    speed = units.rate(found.roof.bandwidth / 1e9)
    return [Finding("roof", PASSED, f"{speed} GB/s, read by {found.roof.arm}.")]


def _how(found: Selftest) -> list[str]:
    header = found.summary.run.header
    if not found.blocks:
        return []
    arms = [r for r in found.summary.results if r.pairs]
    kept = round(statistics.median(result.blocks for result in arms)) if arms else 0
    return [
        f"{found.blocks} blocks of {header.settings.passes} passes, "
        f"{header.settings.confidence:.0%} intervals for all arms together; a block took "
        f"{units.seconds(found.block_wall_seconds)}, of which "
        f"{units.seconds(found.block_device_seconds)} were timed; {kept} of them hold an "
        "undisturbed pair of the median arm. A planted arm reads so much more than the baseline, "
        "and takes so much more time."
    ]


def _resolved(each: Resolution) -> str:
    return (
        f"This machine resolves {each.effect:.2%} in {units.seconds(round(each.wall_seconds, 1))} "
        f"({each.blocks} undisturbed blocks of `ab` with one arm, "
        f"{units.seconds(round(each.device_seconds, 1))} of timed device intervals)."
    )
