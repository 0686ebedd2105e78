"""What `ab`, `sweep` and `verify` do before they open a worker: choose, specialise, refuse."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gemvbench import __version__
from gemvbench.arm import Arm
from gemvbench.cases import Case
from gemvbench.checkout import Commit, resolve
from gemvbench.commands.attention import check_operation
from gemvbench.commands.output import warn
from gemvbench.commands.selection import (
    choose_cases,
    choose_device,
    find_devices,
    with_spare_rows,
)
from gemvbench.contest import Contest, make_contest, make_entrants, pair_with_revision
from gemvbench.device import DeviceInfo
from gemvbench.environment import describe_environment
from gemvbench.errors import Exit, UserError
from gemvbench.record import Header, Settings
from gemvbench.token_case import Token


@dataclass(frozen=True)
class Setup:
    """A run that can start: its contests, the devices they need, and the numbers."""

    settings: Settings
    contests: tuple[Contest, ...]
    devices: tuple[DeviceInfo, ...]
    baseline: str

    def header(self, arguments: tuple[str, ...]) -> Header:
        """The first line of the record."""
        return Header(
            version=__version__,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            arguments=arguments,
            settings=self.settings,
            environment=describe_environment(),
            devices=self.devices,
            cases=tuple(contest.case for contest in self.contests),
            choices=tuple(choice for contest in self.contests for choice in contest.choices),
            baseline=self.baseline,
        )


CaseChooser = Callable[[argparse.Namespace, DeviceInfo], Sequence[Case]]


@dataclass(frozen=True)
class Beside:
    """What goes with the arms of a run: what attends in the token of each, and a commit in which
    each has its baseline."""

    attention: Sequence[Arm] = ()
    against: Commit | None = None


def prepare(
    options: argparse.Namespace,
    arms: Sequence[Arm],
    settings: Settings,
    choose: CaseChooser | None = None,
    beside: Beside = Beside(),
) -> Setup:
    """Devices, cases and specialised arms of a run; the first arm is the baseline.

    Without `choose` the cases are shapes, from the options of `ab`.

    Raises:
        UserError: whatever a user got wrong, or no case that fits its device.
    """
    check_seed(settings.seed)
    check_operation(arms, getattr(options, "op", "gemv"))
    arms = resolve_revisions(arms)
    devices = find_devices()
    device = choose_device(devices, options.device)
    if choose is None:
        cases: Sequence[Case] = with_spare_rows(choose_cases(options, device), arms)
    else:
        cases = choose(options, device)
    entrants = make_entrants(arms, device, devices, beside.attention)
    if beside.against is not None:
        entrants = pair_with_revision(entrants, beside.against)
    contests = tuple(make_contest(case, entrants, settings.regime) for case in cases)
    _refuse_if_nothing_fits(contests)
    used = {entrant.device.id: entrant.device for entrant in entrants}
    return Setup(settings, contests, tuple(used.values()), entrants[0].label)


def resolve_revisions(arms: Sequence[Arm]) -> list[Arm]:
    """The arms with the commits that their revisions name, each name asked for once.

    Raises:
        UserError: a revision that is not here, or no checkout.
    """
    names = {arm.revision for arm in arms if arm.revision is not None}
    commits = {name: resolve(name).hash for name in sorted(names)}
    return [
        msgspec.structs.replace(arm, commit=commits[arm.revision]) if arm.revision else arm
        for arm in arms
    ]


def check_seed(seed: int) -> None:
    """Raises UserError for one that the generator of inputs does not take."""
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed {seed} has to lie between 0 and {2**32 - 1}.")


def _refuse_if_nothing_fits(contests: Sequence[Contest]) -> None:
    refused = [contest for contest in contests if not contest.layouts]
    if len(refused) == len(contests) or any(isinstance(c.case, Token) for c in refused):
        raise UserError(refused[0].refusal, Exit.NO_DEVICE)
    for contest in refused:
        warn(f"left out: {contest.refusal}")
