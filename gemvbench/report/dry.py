"""What --dry-run prints: the plan, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

from gemvbench.case import Gemv
from gemvbench.cases import Case
from gemvbench.contest import Contest
from gemvbench.device import DeviceInfo
from gemvbench.jobs import Choice
from gemvbench.outcome import Declined, LibraryArm, Specialization
from gemvbench.plan import first_orders, roof_label
from gemvbench.record import Settings
from gemvbench.report import units
from gemvbench.report.document import Document, Section
from gemvbench.token_arm import DeviceOutcome, TokenArm
from gemvbench.token_case import Token


def dry_document(
    contests: Sequence[Contest], settings: Settings, devices: Sequence[DeviceInfo]
) -> Document:
    """Each case with the constants its arms get, its memory and its first orders."""
    roofs = [roof_label(device.id, len(devices)) for device in devices]
    sections = tuple(_section(contest, settings, roofs) for contest in contests)
    closing = Section(
        "",
        (),
        (),
        notes=(
            f"Blocks of {settings.passes} passes, looks after {_looks(settings)} of them, "
            f"seed {settings.seed}; lengths are chosen by time when the arms have been timed "
            "once. Nothing was measured.",
            *(device.title for device in devices),
        ),
    )
    choices = [choice for contest in contests for choice in contest.choices]
    return Document((*sections, closing), choices, [_record(choice) for choice in choices])


def _section(contest: Contest, settings: Settings, roofs: Sequence[str]) -> Section:
    what = _what(contest.case)
    memory = [
        f"{device}: {what} in {layout.turns} buffers, {units.size(layout.pool_bytes)} in all"
        for device, layout in contest.layouts.items()
    ]
    probes = [probe.arm for probe in contest.probes]
    labels = (*contest.with_twin().labels, *probes, *roofs)
    count = settings.passes if contest.can_be_compared() else 0
    orders = first_orders(labels, settings.seed, count)
    return Section(
        title=f"{contest.case.id}, regime {settings.regime}",
        columns=("arm", "workgroups", "size", "constants"),
        rows=tuple(_row(choice) for choice in contest.choices),
        notes=(*memory, *(f"pass {i}: {' '.join(order)}" for i, order in enumerate(orders, 1))),
    )


def _what(case: Case) -> str:
    """What of a case lies in memory in many copies or layers."""
    if isinstance(case, Token) and case.operations:
        return "weights and caches" if case.attention else "weights"
    return "weights" if isinstance(case, Gemv) else "caches"


def _looks(settings: Settings) -> str:
    return ", ".join(map(str, settings.looks))


def _row(choice: Choice) -> tuple[str, ...]:
    outcome = choice.outcome
    if isinstance(outcome, Specialization):
        constants = " ".join(f"{name}={value}" for name, value in outcome.constants)
        steps = "".join(f"; {step}" for step in outcome.steps)
        return (
            choice.label,
            str(outcome.workgroups),
            str(outcome.workgroup_size),
            constants + steps,
        )
    if isinstance(outcome, TokenArm):
        kernels = dict.fromkeys(_kernel(layer.outcome) for layer in outcome.layers)
        return (choice.label, "", "", "; ".join((*kernels, *outcome.steps)))
    if isinstance(outcome, LibraryArm):
        return (choice.label, "", "", outcome.library)
    reason = f"DECLINED: {outcome.reason}" if isinstance(outcome, Declined) else "on the host"
    return (choice.label, "", "", reason)


def _kernel(outcome: DeviceOutcome) -> str:
    if isinstance(outcome, LibraryArm):
        return outcome.library
    return " ".join(f"{name}={value}" for name, value in outcome.constants)


def _record(choice: Choice) -> dict[str, object]:
    label, workgroups, size, constants = _row(choice)
    return {
        "case": choice.case,
        "arm": label,
        "device": choice.device,
        "workgroups": workgroups,
        "workgroup_size": size,
        "constants": constants,
    }
