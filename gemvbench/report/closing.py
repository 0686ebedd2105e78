"""What stands below the tables of a run: how sure it is, what disturbed it, how it ended."""

from __future__ import annotations

from gemvbench.budget import TOO_SMALL
from gemvbench.clocks import event_clocks
from gemvbench.disturbance import drift, slot_effect
from gemvbench.messages import BlockDone
from gemvbench.plan import REGIMES
from gemvbench.record import Alone, Charged
from gemvbench.report import units
from gemvbench.results import Summary
from gemvbench.stats import MIN_BLOCKS


def closing(summary: Summary) -> list[str]:
    """All of it, a paragraph each."""
    header = summary.run.header
    return [
        *how_sure(summary),
        *(device.title for device in header.devices),
        *header.notes,
        *_overhead(summary),
        *how_it_ended(summary),
    ]


def how_sure(summary: Summary) -> list[str]:
    """What the ratios are, what they resolve, and what was found to disturb them."""
    header = summary.run.header
    settings = header.settings
    blocks = _blocks(summary)
    lines = [f"VOID: {summary.void}"] if summary.void else []
    lines += summary.run.damage
    if blocks:
        lines.append(
            f"Ratio: time of {_baseline(summary)} over time of arm, more is faster; "
            f"{settings.confidence:.0%} interval over {_looked(summary)} blocks of "
            f"{settings.passes} passes, {_family(summary)} together. aa is the baseline a second "
            "time."
        )
    if blocks >= MIN_BLOCKS:
        lines.append(
            f"Noise floor {units.effect(summary.noise_floor)}; effects from "
            f"{units.effect(summary.min_detectable_effect)} on are found nine times in ten "
            f"(median arm); SAME means inside {settings.min_effect:.1%}."
        )
    if settings.regime in REGIMES and blocks:
        lines.append(
            f"Regime {settings.regime} is unconfirmed: whether a whole token shows this ranking "
            "tells `gemvbench decode --model MODEL --arm ARM --ab RECORD`."
        )
    return [*lines, *_disturbances(summary), *_alone(summary), *_clocks(summary), *_time(summary)]


def how_it_ended(summary: Summary) -> list[str]:
    """Nothing where the run is complete."""
    blocks = _blocks(summary)
    lines = []
    if summary.ended == TOO_SMALL:
        lines.append(refusal(summary))
    elif summary.ended == "budget":
        budget = summary.run.header.settings.budget
        lines.append(f"The budget of {budget:g} s ended the run after {blocks} blocks.")
    elif summary.ended != "complete":
        lines.append(
            f"The run ended early: {summary.ended}. What was measured until then is above."
        )
    if 0 < blocks < MIN_BLOCKS:
        enough = summary.smallest_budget
        more = (
            f"The smallest budget that works is {enough:g} s." if enough else "Give it more time."
        )
        lines.append(
            f"No verdict is given from fewer than {MIN_BLOCKS} blocks, however clear it looks: "
            f"a block is the unit of replication. {more}"
        )
    labels = {result.arm for result in summary.results}
    lines += [
        f"A worker died ({line.stage}): {line.reason}"
        for line in summary.run.of(Charged)
        if line.arm not in labels
    ]
    return lines


def refusal(summary: Summary) -> str:
    """Why nothing was measured: a budget that cannot hold the fewest blocks that decide."""
    return (
        f"The budget of {summary.run.header.settings.budget:g} s cannot hold {MIN_BLOCKS} blocks, "
        "and fewer decide nothing, so none was begun: by what calibration took, the smallest "
        f"budget that works is {summary.smallest_budget:g} s. Give that, or choose fewer arms or "
        "cases, or --quick."
    )


def _baseline(summary: Summary) -> str:
    """By name, where all arms of a run have the same."""
    several = any(len(view.baselines) > 1 for view in summary.views.values())
    return "each arm's baseline" if several else summary.run.header.baseline


def _family(summary: Summary) -> str:
    """The comparisons whose intervals hold together."""
    family = summary.run.header.settings.family
    return f"all {family} comparisons" if family else "arms of a case"


def _blocks(summary: Summary) -> int:
    return max((result.blocks for result in summary.results), default=0)


def _looked(summary: Summary) -> int:
    """Blocks that the last look reached has seen: those behind the intervals."""
    blocks = _blocks(summary)
    reached = [look for look in summary.run.header.settings.looks if look <= blocks]
    return reached[-1] if reached else blocks


def _disturbances(summary: Summary) -> list[str]:
    """Drift and slot effect, the largest of all cases."""
    measured = [view for view in summary.views.values() if view.samples]
    if not measured:
        return []
    drifted, baseline = max(
        (drift(view.usable_of(view.baseline), view.baseline), view.baseline) for view in measured
    )
    slots = [slot_effect(view.slot_means) for view in measured]
    return [
        f"Between passes {baseline} drifted {drifted - 1:.1%} peak to peak, which "
        f"pairing takes out; slots of a pass differ by {max(slots) - 1:.2%}, which the orders "
        "balance."
    ]


def _alone(summary: Summary) -> list[str]:
    """What the check for contamination found, or that it was not made."""
    found, header = summary.contamination, summary.run.header
    if found is None:
        if summary.run.of(Alone):
            return ["The check of an arm alone did not come to a comparison."]
        quick = " (--quick)" if header.settings.quick else ""
        return [f"No arm was measured alone{quick}."] if _blocks(summary) else []
    where = f" on {found.case}" if len(header.cases) > 1 else ""
    said = (
        f"{found.arm} alone{where}: ratio {units.ratio(found.alone)} against "
        f"{units.ratio(found.together)} together"
    )
    within = units.effect(found.tolerance)
    if found.contaminated:
        return [
            f"{said}, and processes differ by {within} at most: arms disturb each other, and the "
            "ratios above hold only in this company."
        ]
    return [f"{said} (processes differ by up to {within})."]


def _clocks(summary: Summary) -> list[str]:
    return [
        f"The event clock of {device} ran at {ratio:.3f} of the host's: its times may be off by "
        "as much."
        for device, ratio in event_clocks(summary.run).items()
    ]


def _time(summary: Summary) -> list[str]:
    if not summary.device_seconds or summary.wall_seconds is None:
        return []
    return [
        f"{units.seconds(summary.device_seconds)} of timed device intervals in "
        f"{units.seconds(summary.wall_seconds)} of measuring."
    ]


def _overhead(summary: Summary) -> list[str]:
    """Where the blocks' time went, in percent by part."""
    parts: dict[str, float] = {}
    for done in summary.run.of(BlockDone):
        for name, spent in done.parts.items():
            parts[name] = parts.get(name, 0.0) + spent
    total = sum(parts.values())
    if not total:
        return []
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{n} {spent / total:.0%}" for n, spent in ranked if spent >= total / 200)
    return [f"Blocks spent {total:.1f} s after process start: {shares}."]
