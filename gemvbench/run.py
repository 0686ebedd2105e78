"""A run from the parent's side: verify, calibrate, then block after block, all in workers.

Whatever kills a worker is charged to the arm that was running, and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gemvbench.cases import Case
from gemvbench.contest import Contest
from gemvbench.device import DeviceInfo
from gemvbench.jobs import roof_jobs
from gemvbench.messages import (
    Block,
    BlockDone,
    Calibrate,
    Calibrated,
    CaseBlock,
    Doing,
    Failed,
    KernelJob,
    RoofMeasured,
    Sample,
    Verified,
    Verify,
)
from gemvbench.plan import (
    TWIN,
    draw_load_order,
    draw_padding,
    plan_lengths,
    plan_slots,
    roof_label,
)
from gemvbench.process import WorkerDiedError, converse
from gemvbench.record import Charged, Ended, Recorder, Run, Settings
from gemvbench.results import all_decided, summarise

_UNEXPLAINED_DEATHS = 3
"""A run ends when this many workers died without an arm to charge."""


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
    _seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)
    _roofs: dict[str, KernelJob] = field(default_factory=dict)
    _bandwidths: dict[str, float] = field(default_factory=dict)
    _deaths: int = 0

    def compare(self, contests: Sequence[Contest]) -> Run:
        """Everything an A/B comparison needs; what was measured is kept whatever happens."""
        started = time.monotonic()
        reason = "an error"
        try:
            ready = [contest.with_twin() for contest in self.verify(contests)]
            ready = self.calibrate([c for c in ready if c.can_be_compared()])
            reason = self.measure([c for c in ready if c.can_be_compared()], started)
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            self.recorder.add(Ended(reason=reason, seconds=time.monotonic() - started))
            self.recorder.close()
        return self.recorder.run()

    def verify(self, contests: Sequence[Contest]) -> list[Contest]:
        """The contests with only the arms that are right."""
        self.progress.stage("verify", sum(len(contest.jobs) for contest in contests))
        return [self._verify_contest(contest) for contest in contests]

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

    def measure(self, contests: Sequence[Contest], started: float) -> str:
        """Block after block until all arms are decided or no look is left; returns why it ended."""
        left = list(contests)
        looks = self.settings.looks
        self.progress.stage("measure", looks[-1])
        block, done, longest = 0, 0, 0.0
        while left and done < looks[-1]:
            begun = time.monotonic()
            budget = self.settings.budget
            if budget is not None and done and begun - started + longest > budget:
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
            left = [contest for contest in left if contest.can_be_compared()]
        failed = self._deaths >= _UNEXPLAINED_DEATHS
        return "the device failed without an arm to charge" if failed else "complete"

    def _verify_contest(self, contest: Contest) -> Contest:
        for device in self.devices:
            passed: set[str] = set()
            waiting = [job for job in contest.jobs if job.device == device.id]
            while waiting:
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
                    self._digests[message.case, message.arm] = message.digest
                elif isinstance(message, Failed | Verified):
                    out.add(message.arm)
        except WorkerDiedError as death:
            self._charge(death, request.case)
            out |= {death.doing.arm} if death.doing.arm else {job.arm for job in request.jobs}
            passed -= out
        return out

    def _calibrate_once(self, contests: list[Contest], candidates: list[KernelJob]) -> bool:
        """One worker's calibration; False if it died: try again without what killed it."""
        cases = [
            self._case_block(c, tuple(candidates) if c is contests[0] else ()) for c in contests
        ]
        self._bandwidths.clear()
        request = Calibrate(
            devices=self._devices_of(contests), cases=tuple(cases), seed=self.settings.seed
        )
        try:
            for message in converse(request):
                if isinstance(message, Calibrated):
                    self._seconds[message.case, message.arm] = message.seconds
                elif isinstance(message, RoofMeasured):
                    self._keep_fastest(message, candidates)
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

    def _keep_fastest(self, message: RoofMeasured, candidates: list[KernelJob]) -> None:
        if message.bandwidth <= self._bandwidths.get(message.device, 0.0):
            return
        self._bandwidths[message.device] = message.bandwidth
        (job,) = [
            job for job in candidates if (job.arm, job.device) == (message.arm, message.device)
        ]
        label = roof_label(job.device, len(self.devices))
        self._roofs[job.device] = msgspec.structs.replace(job, arm=label)

    def _run_block(self, contests: list[Contest], block: int) -> bool:
        """One fresh process; True if it ended well."""
        cases = tuple(self._planned(contest, block) for contest in contests)
        request = Block(
            devices=self._devices_of(contests), block=block, cases=cases, seed=self.settings.seed
        )
        try:
            for message in converse(request):
                if isinstance(message, Sample | BlockDone | Failed):
                    self.recorder.add(message)
                if isinstance(message, Failed):
                    self._drop(contests, message.case, message.arm)
                if isinstance(message, Sample) and message.correct is False:
                    self._drop(contests, message.case, message.arm)
        except WorkerDiedError as death:
            self._charge(death, contests[0].case)
            self._roofs = {d: job for d, job in self._roofs.items() if job.arm != death.doing.arm}
            self._drop(contests, death.doing.case, death.doing.arm)
            return False
        return True

    def _planned(self, contest: Contest, block: int) -> CaseBlock:
        """The plan of one case in one block: lengths by time, orders going on from the last."""
        case_block = self._case_block(contest, tuple(self._roofs.values()))
        arms = (*contest.labels, *(roof.arm for roof in case_block.roofs))
        case = contest.case.id
        lengths = {arm: plan_lengths(self._seconds[case, arm]) for arm in contest.labels}
        for roof in case_block.roofs:
            pool = contest.layouts[roof.device].pool_bytes
            lengths[roof.arm] = plan_lengths(pool / self._bandwidths[roof.device])
        settings = self.settings
        slots = plan_slots(arms, lengths, block=block, passes=settings.passes, seed=settings.seed)
        digests = {arm: self._digests.get((case, arm), "") for arm in contest.labels}
        digests[TWIN] = digests.get(contest.baseline, "")
        loaded = draw_load_order(contest.labels, settings.seed, block, contest.case)
        by_label = {job.arm: job for job in contest.jobs}
        return msgspec.structs.replace(
            case_block,
            jobs=tuple(by_label[label] for label in loaded),
            slots=slots,
            digests=digests,
            padding=draw_padding(settings.seed, block, contest.case),
        )

    def _case_block(self, contest: Contest, roofs: tuple[KernelJob, ...]) -> CaseBlock:
        used = {job.device for job in contest.jobs}
        return CaseBlock(
            case=contest.case,
            layouts={d: layout for d, layout in contest.layouts.items() if d in used},
            jobs=contest.jobs,
            roofs=tuple(roof for roof in roofs if roof.device in used),
        )

    def _devices_of(self, contests: Iterable[Contest]) -> tuple[DeviceInfo, ...]:
        used = {job.device for contest in contests for job in contest.jobs}
        return tuple(device for device in self.devices if device.id in used)

    def _drop(self, contests: list[Contest], case: str, arm: str) -> None:
        contests[:] = [
            contest.without(arm) if contest.case.id == case else contest for contest in contests
        ]

    def _charge(self, death: WorkerDiedError, case: Case) -> None:
        doing: Doing = death.doing
        if not doing.arm:
            self._deaths += 1
        self.recorder.add(
            Charged(
                stage=doing.stage, case=doing.case or case.id, arm=doing.arm, reason=death.reason
            )
        )
