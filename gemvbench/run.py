"""A run from the parent's side: verify, calibrate, then block after block, all in workers.

Whatever kills a worker is charged to the arm that was running, and the rest goes on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gemvbench.budget import TOO_SMALL, Budget, round_up
from gemvbench.cases import Case
from gemvbench.contest import Contest
from gemvbench.device import DeviceInfo
from gemvbench.jobs import roof_jobs
from gemvbench.messages import (
    Block,
    BlockDone,
    Calibrate,
    Calibrated,
    Doing,
    Failed,
    KernelJob,
    Message,
    RoofMeasured,
    Sample,
    Verified,
    Verify,
)
from gemvbench.plan import TWIN
from gemvbench.planner import Planner
from gemvbench.process import WorkerDiedError, converse
from gemvbench.record import Alone, Charged, Ended, Recorder, Run, Settings, Shed
from gemvbench.results import all_decided, summarise
from gemvbench.stats import MIN_BLOCKS
from gemvbench.token_case import Token

_UNEXPLAINED_DEATHS = 3
"""A run ends when this many workers died without an arm to charge."""

_CHANGED = "a timed run gave another output than the verified one"
_MARGIN = 1.1
"""What a budget is told to have beyond an estimate."""


class Progress(Protocol):
    """Whoever shows how far a run is."""

    def stage(self, text: str, total: int) -> None: ...

    def advance(self, text: str = "") -> None: ...


@dataclass
class Conductor:
    """Runs contests on their devices and records all that happens."""

    settings: Settings
    devices: Sequence[DeviceInfo]
    recorder: Recorder
    progress: Progress
    _planner: Planner = field(init=False)
    _measuring: float | None = None
    _smallest_budget: float | None = None
    _deaths: int = 0

    def __post_init__(self) -> None:
        self._planner = Planner(self.settings, self.devices)

    def compare(self, contests: Sequence[Contest], earlier: Run | None = None) -> Run:
        """Everything an A/B comparison needs; what was measured is kept whatever happens.

        With an `earlier` run of the same arms and more, on the same devices, its verification and
        calibration serve again.
        """
        budget = Budget(self.settings.budget)
        reason = "an error"
        try:
            if earlier is None:
                ready = [contest.with_twin() for contest in self.verify(contests)]
                ready = self.calibrate([c for c in ready if c.can_be_compared()])
            else:
                ready = [contest.with_twin() for contest in contests]
                self.take_over(ready, earlier)
            ready = [c for c in ready if c.can_be_compared()]
            reason = self.measure(ready, budget)
            if reason == "complete":
                self.check_alone(ready, budget)
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            self.recorder.add(
                Ended(
                    reason=reason,
                    seconds=budget.spent(),
                    measuring_seconds=self._measuring,
                    smallest_budget=self._smallest_budget,
                )
            )
            self.recorder.close()
        return self.recorder.run()

    def verify(self, contests: Sequence[Contest]) -> list[Contest]:
        """The contests with only the arms that are right."""
        proofs = {
            proof.case.id: proof for contest in contests for proof in contest.proofs or (contest,)
        }
        self.progress.stage("verify", sum(len(proof.jobs) for proof in proofs.values()))
        right = {name: self._verify_contest(proof) for name, proof in proofs.items()}
        return [
            self._proven(contest, right) if contest.proofs else right[contest.case.id]
            for contest in contests
        ]

    def calibrate(self, contests: Sequence[Contest]) -> list[Contest]:
        """Rough times of all arms, and the fastest read kernel of each device as its roof."""
        candidates = [job for device in self.devices for job in roof_jobs(device)]
        left = list(contests)
        self.progress.stage("calibrate", sum(len(c.jobs) for c in left) + len(candidates))
        while left and not self._calibrate_once(left, candidates):
            if self._deaths >= _UNEXPLAINED_DEATHS:
                return []
            left = [contest for contest in left if contest.can_be_compared()]
        return left

    def take_over(self, contests: Sequence[Contest], earlier: Run) -> None:
        """What an earlier run found of these arms, as if it had been found now."""
        arms = {(contest.case.id, label) for contest in contests for label in contest.labels}
        candidates = [job for device in self.devices for job in roof_jobs(device)]
        for line in earlier.lines:
            if isinstance(line, RoofMeasured):
                self._planner.keep_fastest(line, candidates)
            elif not isinstance(line, Verified | Calibrated) or (line.case, line.arm) not in arms:
                continue
            elif isinstance(line, Verified):
                self._planner.digests[line.case, line.arm] = line.digest
            else:
                self._planner.seconds[line.case, line.arm] = line.seconds
            self.recorder.add(line)

    def measure(self, contests: list[Contest], budget: Budget) -> str:
        """Blocks until all arms are decided or no look is left; returns why it ended.

        Arms that fail leave `contests`. Nothing is begun that cannot reach a verdict within the
        budget, by what calibration took.
        """
        if contests and budget.seconds is not None:
            fewest = min(MIN_BLOCKS, self.settings.looks[-1])
            needed = fewest * self._planner.block_seconds(contests)
            while self.settings.sheds and len(contests) > 1 and not budget.holds(needed):
                self.recorder.add(Shed(case=contests.pop().case.id))
                needed = fewest * self._planner.block_seconds(contests)
            if not budget.holds(needed):
                self._smallest_budget = round_up(budget.spent() + _MARGIN * needed)
                return TOO_SMALL
        begun = time.monotonic()
        try:
            return self._measure_blocks(contests, budget)
        finally:
            self._measuring = time.monotonic() - begun

    def check_alone(self, contests: Sequence[Contest], budget: Budget) -> None:
        """One arm, drawn, and the baseline, each in a process that holds nothing but the roof.

        Not with --quick, nor where the budget cannot hold it.
        """
        candidates = [
            (contest, job.arm)
            for contest in contests
            if all(self._planner.has_roof(job.device) for job in contest.jobs)
            for job in contest.jobs
            if job.arm not in {*contest.baselines(), TWIN}
        ]
        if self.settings.quick or not candidates:
            return
        contest, drawn = random.Random(f"alone {self.settings.seed}").choice(candidates)
        pair = (drawn, contest.opponent(drawn))
        requests = {arm: self._planner.alone(contest, arm) for arm in pair}
        if not budget.holds(self._planner.block_seconds([contest]) * len(requests)):
            return
        self.progress.stage("alone", len(requests))
        for arm, request in requests.items():
            if not self._measure_alone(contest.case, arm, request):
                return
            self.progress.advance(arm)

    def _measure_blocks(self, left: list[Contest], budget: Budget) -> str:
        looks, before = self.settings.looks, budget.spent()
        self.progress.stage("measure", looks[-1])
        block, done, longest = 0, 0, 0.0
        while left and done < looks[-1]:
            begun = time.monotonic()
            if done and not budget.holds(longest):
                if done < MIN_BLOCKS:
                    self._smallest_budget = round_up(before + MIN_BLOCKS * longest)
                return "budget"
            if done in looks and all_decided(summarise(self.recorder.run())):
                break
            if self._run_block(left, block):
                done += 1
                self.progress.advance(f"block {done}")
            elif self._deaths >= _UNEXPLAINED_DEATHS:
                break
            block += 1
            longest = max(longest, time.monotonic() - begun)
            left[:] = [contest for contest in left if contest.can_be_compared()]
        failed = self._deaths >= _UNEXPLAINED_DEATHS
        return "the device failed without an arm to charge" if failed else "complete"

    def _proven(self, contest: Contest, right: dict[str, Contest]) -> Contest:
        """A token with the arms that are right in every layer, and what its output has to be."""
        assert isinstance(contest.case, Token)
        layers, digests = [layer.id for layer in contest.case.layers], self._planner.digests
        for label in contest.labels:
            if all(label in right[layer].labels for layer in layers):
                found = [digests.get((layer, label), "") for layer in layers]
                digests[contest.case.id, label] = " ".join(found) if all(found) else ""
            else:
                contest = contest.without(label)
        return contest

    def _verify_contest(self, contest: Contest) -> Contest:
        for device in self.devices:
            passed: set[str] = set()
            waiting = [job for job in contest.jobs if job.device == device.id]
            while waiting:
                assert not isinstance(contest.case, Token)
                request = Verify(
                    device=device,
                    case=contest.case,
                    jobs=tuple(waiting),
                    siblings=contest.siblings,
                    reference=contest.references.get(device.id),
                    seed=self.settings.seed,
                )
                gone = self._listen_to_verifier(request, passed)
                waiting = [job for job in waiting if job.arm not in gone | passed]
            for job in contest.jobs:
                if job.device == device.id and job.arm not in passed:
                    contest = contest.without(job.arm)
        return contest

    def _listen_to_verifier(self, request: Verify, passed: set[str]) -> set[str]:
        """Records what one worker finds; returns the arms that are out, adds those that passed."""
        out: set[str] = set()
        try:
            for message in converse(request):
                if isinstance(message, Failed | Verified):
                    self.recorder.add(message)
                    self.progress.advance(f"{message.case} {message.arm}")
                if isinstance(message, Verified) and message.passed:
                    passed.add(message.arm)
                    self._planner.digests[message.case, message.arm] = message.digest
                elif isinstance(message, Failed | Verified):
                    out.add(message.arm)
        except WorkerDiedError as death:
            self._charge(death, request.case)
            out |= {death.doing.arm} if death.doing.arm else {job.arm for job in request.jobs}
            passed -= out
        return out

    def _calibrate_once(self, contests: list[Contest], candidates: list[KernelJob]) -> bool:
        """One worker's calibration; False if it died: try again without what killed it."""
        request = self._planner.calibration(contests, candidates)
        try:
            for message in self._time_start_up(request):
                if isinstance(message, Calibrated):
                    self._planner.seconds[message.case, message.arm] = message.seconds
                elif isinstance(message, RoofMeasured):
                    self._planner.keep_fastest(message, candidates)
                if isinstance(message, Calibrated | RoofMeasured | Failed):
                    self.recorder.add(message)
                    self.progress.advance()
                if isinstance(message, Failed):
                    self._drop(contests, message.case, message.arm)
        except WorkerDiedError as death:
            self._charge(death, contests[0].case)
            candidates[:] = [job for job in candidates if job.arm != death.doing.arm]
            self._drop(contests, death.doing.case, death.doing.arm)
            return False
        return True

    def _time_start_up(self, request: Calibrate) -> Iterator[Message]:
        """A calibration's messages; what passes before arms are timed, a block needs as well."""
        roofs = {roof.arm for case in request.cases for roof in case.roofs}
        since, starting = time.monotonic(), True
        self._planner.start_up = 0.0
        for message in converse(request):
            now = time.monotonic()
            self._planner.start_up += now - since if starting else 0.0
            since = now
            if isinstance(message, Doing):
                starting = message.stage != "calibrate" and message.arm not in roofs
            yield message

    def _run_block(self, contests: list[Contest], block: int) -> bool:
        """One fresh process; True if it ended well."""
        try:
            for message in converse(self._planner.block(contests, block)):
                if isinstance(message, Sample | BlockDone | Failed):
                    self.recorder.add(message)
                if isinstance(message, Failed):
                    self._drop(contests, message.case, message.arm)
                if isinstance(message, Sample) and message.correct is False:
                    self._drop(contests, message.case, message.arm)
        except WorkerDiedError as death:
            self._charge(death, contests[0].case)
            self._planner.drop_roof(death.doing.arm)
            self._drop(contests, death.doing.case, death.doing.arm)
            return False
        return True

    def _measure_alone(self, case: Case, arm: str, request: Block) -> bool:
        """Its samples are kept apart from those of blocks; what fails here has failed."""
        try:
            for message in converse(request):
                if isinstance(message, Sample):
                    self.recorder.add(Alone(arm=arm, sample=message))
                    if message.correct is False:
                        message = Failed(case=case.id, arm=arm, stage="alone", reason=_CHANGED)
                if isinstance(message, Failed):
                    self.recorder.add(message)
                    return False
        except WorkerDiedError as death:
            self._charge(death, case, " alone")
            return False
        return True

    def _drop(self, contests: list[Contest], case: str, arm: str) -> None:
        contests[:] = [
            contest.without(arm) if contest.case.id == case else contest for contest in contests
        ]

    def _charge(self, death: WorkerDiedError, case: Case, how: str = "") -> None:
        doing: Doing = death.doing
        if not doing.arm:
            self._deaths += 1
        self.recorder.add(
            Charged(
                stage=doing.stage + how,
                case=doing.case or case.id,
                arm=doing.arm,
                reason=death.reason,
            )
        )
