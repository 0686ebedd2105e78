"""A search for the best arm of a shape: rounds of paired runs, each on fewer arms than the last.

Every round is a run with a record of its own. A round whose record is already there, of the same
arms on the same device, is not measured again: so a search that was cut short goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gemvbench import __version__
from gemvbench.budget import Budget
from gemvbench.cases import Single
from gemvbench.contest import Contest, Entrant, make_contest
from gemvbench.device import DeviceInfo
from gemvbench.environment import describe_environment
from gemvbench.errors import UserError
from gemvbench.folders import records_folder
from gemvbench.reading import read_record
from gemvbench.record import Ended, Header, Recorder, Run, Settings
from gemvbench.results import Summary, summarise
from gemvbench.run import Conductor, Progress
from gemvbench.source import kernel_interface
from gemvbench.tune_plan import ROUNDS, Found, entrants, rank, round_settings, survivors, winner
from gemvbench.tuning import AnyRow, Finding, make_row
from gemvbench.tuning_files import kernel_digest

Say = Callable[[str], None]


@dataclass(frozen=True)
class Tuner:
    """Searches on one device, with the numbers that the rounds share."""

    device: DeviceInfo
    settings: Settings
    """Seed, smallest effect, confidence; passes and looks are each round's own."""
    arguments: tuple[str, ...]
    progress: Progress
    say: Say

    def search(self, case: Single, budget: Budget, *, afresh: bool = False) -> Found:
        """All rounds of one shape within what is left of a budget.

        Args:
            afresh: measure again what earlier searches measured.
        """
        left: Sequence[Entrant] = entrants(case, self.device)
        if len(left) < 2:
            return Found(case, (), why="no other arm than the rule's computes it")
        started, summaries = time.monotonic(), list[Summary]()
        earlier: Run | None = None
        for number in range(len(ROUNDS)):
            contest = make_contest(case, left, "stream")
            if contest.refusal:
                return Found(case, (), why=contest.refusal)
            run = self._round(contest, number, earlier, budget, afresh)
            summary = summarise(run) if run else None
            spent = time.monotonic() - started
            if run is None or summary is None:
                return Found(case, tuple(summaries), why=_cut(number, None), seconds=spent)
            summaries.append(summary)
            if not _is_whole(run):
                return Found(case, tuple(summaries), why=_cut(number, summary), seconds=spent)
            going = set(survivors(summary.results, number))
            left = [left[0], *(entrant for entrant in left[1:] if entrant.label in going)]
            earlier = run
            if not going:
                return Found(case, tuple(summaries), why="no arm could be compared", seconds=spent)
            self.say(_describe_round(case, number, summary, len(left) - 1))
        spent = time.monotonic() - started
        if summaries[-1].void:
            return Found(case, tuple(summaries), why=summaries[-1].void, seconds=spent)
        return Found(case, tuple(summaries), self._row(case, summaries), seconds=spent)

    def _round(
        self, contest: Contest, number: int, earlier: Run | None, budget: Budget, afresh: bool
    ) -> Run | None:
        """A round as it was measured before, or now; None where no time is left."""
        header = self._header(contest, number)
        if not afresh and (known := find_round(header, number)):
            return known
        if budget.seconds is not None:
            rest = budget.seconds - budget.spent()
            if rest <= 0:
                return None
            settings = msgspec.structs.replace(header.settings, budget=round(rest, 1) or 0.1)
            header = msgspec.structs.replace(header, settings=settings)
        recorder = Recorder(header, round_path(header, number))
        conductor = Conductor(header.settings, header.devices, recorder, self.progress)
        return conductor.compare([contest], earlier)

    def _header(self, contest: Contest, number: int) -> Header:
        shared = self.settings
        return Header(
            version=__version__,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            arguments=self.arguments,
            settings=round_settings(number, shared.seed, shared.min_effect, shared.confidence),
            environment=describe_environment(),
            devices=(self.device,),
            cases=(contest.case,),
            choices=contest.choices,
            baseline=contest.baseline,
        )

    def _row(self, case: Single, summaries: Sequence[Summary]) -> AnyRow:
        """The fastest arm that is FASTER than the rule's, or the rule's."""
        last, device = summaries[-1], self.device
        best, rule = winner(last.results), last.run.header.baseline
        arm = best.arm if best else rule
        low, high = best.ci if best and best.ci else (1.0, 1.0)
        family = {e.label: e.arm.family for e in entrants(case, device)}[arm]
        found = Finding(
            arm=arm,
            rule=rule,
            ratio=best.ratio or 1.0 if best else 1.0,
            low=low,
            high=high,
            tried=len(summaries[0].run.header.choices),
            driver=device.driver,
            interface=kernel_interface(),
            kernel=kernel_digest(family, device.language),
            version=__version__,
            date=last.run.header.started[:10],
        )
        return make_row(case, found)


def round_path(header: Header, number: int) -> Path:
    """Where a round's record goes: a name of its own, by device, case and time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return _folder() / f"{_stem(header, number)}-{stamp}-{time.time_ns() % 10**6:06}.jsonl"


def find_round(header: Header, number: int) -> Run | None:
    """The latest whole record of the same round, if there is one."""
    for path in sorted(_folder().glob(f"{_stem(header, number)}-*.jsonl"), reverse=True):
        try:
            run = read_record(path)
        except UserError:
            continue
        if not run.damage and _is_same(run.header, header) and _is_whole(run):
            return run
    return None


def _folder() -> Path:
    return records_folder() / "tune"


def _stem(header: Header, number: int) -> str:
    return f"{header.devices[0].id}-{header.cases[0].id}-{number + 1}of{len(ROUNDS)}"


def _is_same(one: Header, other: Header) -> bool:
    """Whether two rounds measure the same arms in the same way on the same device."""

    def facts(header: Header) -> tuple[object, ...]:
        (device,) = header.devices
        settings = msgspec.structs.replace(header.settings, budget=None)
        known = device.name, device.language, device.driver, device.version
        return header.version, settings, known, header.cases, header.choices, header.baseline

    return facts(one) == facts(other)


def _is_whole(run: Run) -> bool:
    """Whether a round has as many blocks as it needs to rank or to decide."""
    ended, fewest = run.of(Ended), run.header.settings.looks[0]
    if not ended or ended[-1].reason not in ("complete", "budget"):
        return False
    blocks = max((result.blocks for result in summarise(run).results), default=0)
    return ended[-1].reason == "complete" or blocks >= fewest


def _cut(number: int, summary: Summary | None) -> str:
    """Why a search ended before its last round."""
    why = summary.ended if summary else "no time left"
    enough = summary.smallest_budget if summary else None
    more = f"; it needs about {enough:g} s" if enough else ""
    return (
        f"round {number + 1} of {len(ROUNDS)} was not finished ({why}{more}); the same command "
        "goes on from there"
    )


def _describe_round(case: Single, number: int, summary: Summary, left: int) -> str:
    count = len(summary.run.header.choices) - 1
    best = rank(summary.results)[0]
    text = f"{case.id}, round {number + 1} of {len(ROUNDS)}: {count} arms, first {best.arm} at "
    text += f"{best.ratio:.3f}x"
    return text if number == len(ROUNDS) - 1 else f"{text}; {left} go on"
