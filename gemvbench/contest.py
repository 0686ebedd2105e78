"""What is compared on one case: baseline, twin and arms, as jobs for workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from gemvbench.arm import Arm
from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.cases import Case, Single, verified_as
from gemvbench.checkout import Commit
from gemvbench.device import DeviceInfo, find_device
from gemvbench.dispatch import specialize
from gemvbench.errors import UserError
from gemvbench.jobs import Choice, choose, launches_job, make_job, rows1_sibling
from gemvbench.messages import AnyLayout, Job, KernelJob, TokenJob
from gemvbench.outcome import Declined
from gemvbench.plan import TWIN, launches_label
from gemvbench.token_case import Token
from gemvbench.token_plan import plan_memory

Devices = Mapping[str, DeviceInfo]


@dataclass(frozen=True)
class Entrant:
    """An arm as it takes part in a run: with its device, and the label it goes by."""

    arm: Arm
    device: DeviceInfo
    label: str
    attention: Arm | None = None
    """What attends in its token, where that has attention."""
    against: str = ""
    """Label of its own baseline, where that is not the baseline of all."""


@dataclass(frozen=True)
class Contest:
    """One case with everything that is to be built for it, baseline first."""

    case: Case
    baseline: str
    choices: tuple[Choice, ...]
    jobs: tuple[Job, ...]
    siblings: tuple[tuple[str, KernelJob], ...]
    layouts: dict[str, AnyLayout]
    references: dict[str, KernelJob] = field(default_factory=dict)
    """The frozen kernel by device, for verification."""
    probes: tuple[Job, ...] = ()
    """What is measured beside the arms and is none: a token's launches without work."""
    proofs: tuple[Contest, ...] = ()
    """Contests in which its arms are verified, where that is not done in its own case."""
    refusal: str = ""
    """Why the case does not fit its device; "" where it does."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(job.arm for job in self.jobs)

    def opponent(self, label: str) -> str:
        """The arm that one is compared with."""
        own = {choice.label: choice.against for choice in self.choices}
        return own.get(label) or self.baseline

    def baselines(self) -> set[str]:
        """Every arm that something is compared with."""
        return {self.baseline, *(choice.against for choice in self.choices)} - {""}

    def without(self, label: str) -> Contest:
        """The contest without an arm that failed.

        The twin goes with its baseline. Where each arm has a baseline of its own, an arm goes with
        that, a baseline that nothing is left to compare with goes too, and the others go on.
        """
        pairs = {c.label: c.against for c in self.choices if c.against}
        gone = {label, TWIN} if label == self.baseline else {label}
        gone |= {arm for arm, against in pairs.items() if against == label}
        left = [pairs[arm] for arm in self.labels if arm in pairs and arm not in gone]
        gone |= set(pairs.values()) - {self.baseline, *left}
        moved = bool(left) and label == self.baseline
        return replace(
            self,
            baseline=left[0] if moved else self.baseline,
            jobs=tuple(job for job in self.jobs if job.arm not in gone),
            probes=tuple(job for job in self.probes if job.arm not in gone),
        )

    def with_twin(self) -> Contest:
        """The baseline a second time, built for itself: the A/A arm."""
        twins = [
            msgspec.structs.replace(job, arm=TWIN) for job in self.jobs if job.arm == self.baseline
        ]
        return replace(self, jobs=(*self.jobs[:1], *twins, *self.jobs[1:]))

    def can_be_compared(self) -> bool:
        """Whether the baseline and at least one arm are left to compare."""
        labels = set(self.labels) - {TWIN}
        return self.baseline in labels and len(labels) > 1


def make_entrants(
    arms: Sequence[Arm],
    default: DeviceInfo,
    devices: Devices,
    attention: Sequence[Arm] = (),
) -> tuple[Entrant, ...]:
    """The arms in their order, each once; labels name devices where there are several.

    `attention` has the arm of attention for each; labels name those where they differ.

    Raises:
        UserError: an arm on a device that is not here, or two files of one name.
    """
    pairs = [(arm, _device_of(arm, default, devices)) for arm in arms]
    several = len({device.id for _, device in pairs}) > 1
    differ = len(set(attention)) > 1
    entrants: dict[str, Entrant] = {}
    attending: Sequence[Arm | None] = attention or [None] * len(pairs)
    for (arm, device), attends in zip(pairs, attending, strict=True):
        label = f"{device.id}:{arm.label}" if several else arm.label
        label += f"/{attends.label}" if differ and attends else ""
        entrant = entrants.setdefault(label, Entrant(arm, device, label, attends))
        if entrant.arm.file != arm.file:
            raise UserError(f"Two files are both named {label!r}; give each a name of its own.")
    return tuple(entrants.values())


def pair_with_revision(entrants: Sequence[Entrant], commit: Commit) -> tuple[Entrant, ...]:
    """Each arm behind itself as it stood in a commit, which is its baseline.

    Raises:
        UserError: an arm without a kernel in the checkout, or one that names this revision.
    """
    pairs: dict[str, Entrant] = {}
    for entrant in entrants:
        arm = entrant.arm
        if not arm.has_revisions:
            raise UserError(
                f"Arm {arm.full_name} has no kernel in the checkout, so it cannot be compared with "
                f"itself at {commit.name}; leave it out."
            )
        old = msgspec.structs.replace(arm, revision=commit.name, commit=commit.hash)
        label = entrant.label.removesuffix(arm.label) + old.label
        if label == entrant.label:
            raise UserError(f"Arm {arm.full_name} is at {commit.name} itself; leave @... out.")
        attends = entrant.attention
        attention = None if attends is None else attends.at_revision_of(old)
        pairs[label] = Entrant(old, entrant.device, label, attention)
        pairs[entrant.label] = replace(entrant, against=label)
    return tuple(pairs.values())


def make_contest(case: Case, entrants: Sequence[Entrant], regime: str) -> Contest:
    """Specialise every arm for a case; where it does not fit the device, all decline."""
    choices, jobs, siblings = [], [], []
    for entrant in entrants:
        choice, job = choose(entrant.arm, entrant.label, case, entrant.device, entrant.attention)
        choices.append(msgspec.structs.replace(choice, against=entrant.against))
        if job is None:
            continue
        jobs.append(job)
        if not isinstance(case, Gemv):
            continue
        sibling = rows1_sibling(entrant.arm, case, entrant.device)
        if sibling is not None:
            siblings.append((entrant.label, sibling))
    try:
        layouts = _plan_layouts(case, regime, [entrant.device for entrant in entrants], jobs)
    except UserError as refusal:
        return _declined_contest(case, entrants, str(refusal))
    contest = Contest(
        case=case,
        baseline=entrants[0].label,
        choices=tuple(choices),
        jobs=tuple(jobs),
        siblings=tuple(siblings),
        layouts=layouts,
    )
    devices = {entrant.device.id: entrant.device for entrant in entrants}
    if isinstance(case, Attention):
        return contest
    if isinstance(case, Gemv):
        return replace(contest, references=_frozen_jobs(case, tuple(devices.values())))
    return replace(
        contest,
        probes=_launch_jobs(case, tuple(devices.values())),
        proofs=tuple(
            make_contest(layer, [_for_layer(entrant, layer) for entrant in entrants], "hot")
            for layer in verified_as(case)
        ),
    )


def _for_layer(entrant: Entrant, layer: Single) -> Entrant:
    """An entrant of a token as one of a layer, under the same label."""
    if isinstance(layer, Attention) and entrant.attention is not None:
        return replace(entrant, arm=entrant.attention)
    return entrant


def _launch_jobs(case: Token, devices: Sequence[DeviceInfo]) -> tuple[Job, ...]:
    if case.only:
        return ()
    return tuple(launches_job(case, d, launches_label(d.id, len(devices))) for d in devices)


def _frozen_jobs(case: Gemv, devices: Sequence[DeviceInfo]) -> dict[str, KernelJob]:
    frozen = Arm(family="frozen")
    jobs = {d.id: make_job(specialize(frozen, case, d), "frozen", d) for d in devices}
    return {name: job for name, job in jobs.items() if isinstance(job, KernelJob)}


def _plan_layouts(
    case: Case, regime: str, devices: Sequence[DeviceInfo], jobs: Sequence[Job]
) -> dict[str, AnyLayout]:
    """A layout for each device; all of them are in memory at once, and repacked weights too."""
    distinct = {device.id: device for device in devices}
    sharers = Counter(device.memory for device in distinct.values())
    sharers.update({distinct[job.device].memory for job in jobs if _reads_repacked(job)})
    return {
        name: plan_memory(case, regime, device, sharers[device.memory])
        for name, device in distinct.items()
    }


def _reads_repacked(job: Job) -> bool:
    """Whether a second pool of weights is made for it."""
    if isinstance(job, TokenJob):
        return any(map(_reads_repacked, job.layers))
    return isinstance(job, KernelJob) and job.is_repacked


def _declined_contest(case: Case, entrants: Sequence[Entrant], reason: str) -> Contest:
    choices = tuple(
        Choice(
            label=entrant.label,
            arm=entrant.arm.name,
            device=entrant.device.id,
            case=case.id,
            outcome=Declined(entrant.arm.name, "the case does not fit the device"),
            against=entrant.against,
        )
        for entrant in entrants
    )
    return Contest(case, entrants[0].label, choices, (), (), {}, refusal=reason)


def _device_of(arm: Arm, default: DeviceInfo, devices: Devices) -> DeviceInfo:
    if arm.device is None:
        return default
    return find_device(devices, arm.device)
