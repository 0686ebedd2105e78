"""What calibration found of arms and roofs, and the blocks that are planned from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from gemvbench.cases import is_part
from gemvbench.contest import Contest
from gemvbench.device import DeviceInfo
from gemvbench.messages import Block, Calibrate, CaseBlock, KernelJob, RoofMeasured
from gemvbench.plan import (
    PROBE_LENGTHS,
    PROBE_SECONDS,
    TWIN,
    draw_load_order,
    draw_padding,
    plan_lengths,
    plan_slots,
    roof_label,
)
from gemvbench.record import Settings


@dataclass
class Planner:
    """Makes the requests of a run; lengths by time, orders going on from block to block."""

    settings: Settings
    devices: Sequence[DeviceInfo]
    start_up: float = 0.0
    """Seconds from the start of a worker until its first measurement, as calibration took them."""
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """Rough seconds per call by case and arm."""
    digests: dict[tuple[str, str], str] = field(default_factory=dict)
    """Verified outputs by case and arm."""
    _roofs: dict[str, KernelJob] = field(default_factory=dict)
    _bandwidths: dict[str, float] = field(default_factory=dict)

    def calibration(self, contests: Sequence[Contest], roofs: Sequence[KernelJob]) -> Calibrate:
        """Every arm once; candidates for the roof on the first case. Forgets earlier roofs."""
        self._bandwidths.clear()
        cases = [self._case_block(c, tuple(roofs) if c is contests[0] else ()) for c in contests]
        return Calibrate(
            devices=self._devices_of(contests),
            cases=tuple(cases),
            seed=self.settings.seed,
            graphs=self.settings.launches == "graph",
        )

    def block(self, contests: Sequence[Contest], number: int) -> Block:
        """One block of all cases."""
        return Block(
            devices=self._devices_of(contests),
            block=number,
            cases=tuple(self._planned(contest, number) for contest in contests),
            seed=self.settings.seed,
            rests=self.settings.rests,
            graphs=self.settings.launches == "graph",
        )

    def alone(self, contest: Contest, arm: str) -> Block:
        """One arm of one case beside nothing but the roof of its device."""
        own = tuple(job for job in contest.jobs if job.arm == arm)
        return self.block([replace(contest, jobs=own, probes=())], self.settings.looks[-1])

    def block_seconds(self, contests: Sequence[Contest]) -> float:
        """About how long a block takes: start-up, legs and the untimed runs before them."""
        total = self.start_up
        for contest in contests:
            rates = self._rates(contest)
            for slot in self._planned(contest, 0).slots:
                total += (slot.long + 2 * slot.short + slot.middle) * rates[slot.arm]
        return total

    def has_roof(self, device: str) -> bool:
        return device in self._roofs

    def keep_fastest(self, message: RoofMeasured, candidates: Sequence[KernelJob]) -> None:
        """Take a read kernel as its device's roof if none was faster."""
        if message.bandwidth <= self._bandwidths.get(message.device, 0.0):
            return
        self._bandwidths[message.device] = message.bandwidth
        (job,) = [
            job for job in candidates if (job.arm, job.device) == (message.arm, message.device)
        ]
        label = roof_label(job.device, len(self.devices))
        self._roofs[job.device] = msgspec.structs.replace(job, arm=label)

    def drop_roof(self, label: str) -> None:
        self._roofs = {d: job for d, job in self._roofs.items() if job.arm != label}

    def _planned(self, contest: Contest, block: int) -> CaseBlock:
        """The plan of one case in one block."""
        case_block = self._case_block(contest, tuple(self._roofs.values()))
        jobs = {job.arm: job for job in (*contest.jobs, *contest.probes)}
        arms = (*jobs, *(roof.arm for roof in case_block.roofs))
        lengths = self._lengths(contest)
        settings = self.settings
        slots = plan_slots(arms, lengths, block=block, passes=settings.passes, seed=settings.seed)
        digests = {arm: self.digests.get((contest.case.id, arm), "") for arm in contest.labels}
        digests[TWIN] = digests.get(contest.baseline, "")
        loaded = draw_load_order(tuple(jobs), settings.seed, block, contest.case)
        return msgspec.structs.replace(
            case_block,
            jobs=tuple(jobs[label] for label in loaded),
            slots=slots,
            digests=digests,
            padding=draw_padding(settings.seed, block, contest.case),
        )

    def _lengths(self, contest: Contest) -> dict[str, tuple[int, int]]:
        """(long, short) calls: as asked for the arms of a whole token, and else by time."""
        lengths = {arm: plan_lengths(seconds) for arm, seconds in self._rates(contest).items()}
        asked = self.settings.lengths
        if asked is not None and not is_part(contest.case):
            lengths |= dict.fromkeys(contest.labels, (asked[1], asked[0]))
        return lengths | {probe.arm: PROBE_LENGTHS for probe in contest.probes}

    def _rates(self, contest: Contest) -> dict[str, float]:
        """Seconds per call of the arms of a case, of its probes and of all roofs it has."""
        rates = {arm: self.seconds[contest.case.id, arm] for arm in contest.labels}
        rates |= {probe.arm: PROBE_SECONDS for probe in contest.probes}
        for device, roof in self._roofs.items():
            if device in contest.layouts:
                rates[roof.arm] = contest.layouts[device].pool_bytes / self._bandwidths[device]
        return rates

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
