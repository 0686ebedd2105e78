"""What runs inside a block's fresh process: allocate, compile, and measure every slot."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from gemvbench.backend.base import Backend
from gemvbench.errors import CompileError
from gemvbench.messages import (
    Block,
    BlockDone,
    Calibrate,
    Calibrated,
    CaseBlock,
    Doing,
    Failed,
    Job,
    KernelJob,
    Message,
    RoofMeasured,
    Sample,
    Slot,
)
from gemvbench.plan import LONG_LEG_SECONDS
from gemvbench.rest import rest
from gemvbench.runners import RoofRunner, Runner
from gemvbench.spaces import Space, make_space
from gemvbench.verify import COMPILE_LIMIT

_SLOT_LIMIT = 120.0
_CLOCK_CHECK_SECONDS = 0.5
"""Events are held against the host's clock over at least this long."""


class Stopwatch:
    """Wall time by part: what a block spends outside measurement is reported by name."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.parts[name] += time.perf_counter() - started


Backends = dict[str, Backend]
"""Open back ends by device id."""


def run_block(backends: Backends, request: Block, watch: Stopwatch) -> Iterator[Message]:
    """Measure all cases of a block; samples come as they are taken."""
    for case_block in request.cases:
        bench = Bench(backends, case_block, request.seed, watch)
        yield from bench.prepare()
        for slot in case_block.slots:
            if slot.arm in bench.runners:
                yield bench.doing("measure", slot.arm, _SLOT_LIMIT)
                if request.rests:
                    bench.rest(slot)
                yield bench.measure(request.block, slot)
    yield BlockDone(block=request.block, parts=dict(watch.parts))


def calibrate(backends: Backends, request: Calibrate, watch: Stopwatch) -> Iterator[Message]:
    """Each arm's rough time per call; each roof candidate's bandwidth, on the first case."""
    for index, case_block in enumerate(request.cases):
        bench = Bench(backends, case_block, request.seed, watch)
        yield from bench.prepare()
        roofs = {job.arm: job for job in case_block.roofs}
        for arm, runner in bench.runners.items():
            yield bench.doing("calibrate", arm, _SLOT_LIMIT)
            seconds = _rough_seconds(runner)
            if arm not in roofs:
                yield Calibrated(case=case_block.case.id, arm=arm, seconds=seconds)
            elif index == 0:
                yield measure_roof(roofs[arm], runner, seconds)


class Bench:
    """One case: a workspace on each of its devices and a runner for each arm that builds."""

    def __init__(
        self, backends: Backends, case_block: CaseBlock, seed: int, watch: Stopwatch
    ) -> None:
        self.runners: dict[str, Runner] = {}
        self._backends, self._watch = backends, watch
        self._spaces: dict[str, Space] = {}
        self._plan, self._case = case_block, case_block.case
        self._seed = seed

    def prepare(self) -> Iterator[Message]:
        case, plan = self._case, self._plan
        yield self.doing("inputs", "", _SLOT_LIMIT)
        with self._watch.part("inputs"):
            for device, layout in plan.layouts.items():
                backend = self._backends[device]
                space = make_space(backend, case, layout, self._seed, plan.padding)
                space.fill()
                self._spaces[device] = space
        for job in (*plan.jobs, *plan.roofs):
            yield self.doing("compile", job.arm, COMPILE_LIMIT)
            try:
                with self._watch.part("compile"):
                    runner = self._make_runner(job)
                    runner.run(1)  # some compilers do their work at the first call
            except CompileError as error:
                yield Failed(case=case.id, arm=job.arm, stage="compile", reason=str(error))
            else:
                self.runners[job.arm] = runner

    def rest(self, slot: Slot) -> None:
        with self._watch.part("rest"):
            rest(self.runners[slot.arm].state)

    def measure(self, block: int, slot: Slot) -> Sample:
        runner = self.runners[slot.arm]
        with self._watch.part("warm-up"):
            runner.run(slot.short)
        with self._watch.part("state"):
            before = runner.state()
        with self._watch.part("measure"):
            if slot.long_first:
                long, short = runner.time(slot.long), runner.time(slot.short)
            else:
                short, long = runner.time(slot.short), runner.time(slot.long)
            middle = runner.time(slot.middle) if slot.middle else None
        with self._watch.part("state"):
            after = runner.state()
        with self._watch.part("check"):
            correct = self._is_correct(slot.arm, runner)
        return Sample(
            block=block,
            case=self._case.id,
            pass_=slot.pass_,
            slot=slot.slot,
            arm=slot.arm,
            long=long,
            short=short,
            middle=middle,
            correct=correct,
            before=before,
            after=after,
            bytes_per_call=runner.bytes_per_call,
        )

    def doing(self, stage: str, arm: str, limit: float) -> Doing:
        return Doing(stage=stage, arm=arm, case=self._case.id, limit=limit)

    def _make_runner(self, job: Job) -> Runner:
        space = self._spaces[job.device]
        if job not in self._plan.roofs:
            return space.make_runner(job)
        assert isinstance(job, KernelJob)
        backend = self._backends[job.device]
        kernel = backend.compile(job.text, job.entry)
        return RoofRunner(backend, space.pools(), kernel, job)

    def _is_correct(self, arm: str, runner: Runner) -> bool | None:
        expected, got = self._plan.digests.get(arm), runner.output_digest()
        return None if not expected or got is None else got == expected


def measure_roof(job: KernelJob, runner: Runner, seconds: float) -> RoofMeasured:
    """A read kernel over half a second or more; `seconds` is a rough time per call."""
    leg = runner.time(max(2, int(_CLOCK_CHECK_SECONDS / seconds) + 1))
    while leg.host < _CLOCK_CHECK_SECONDS:  # short runs had promised more
        leg = runner.time(int(leg.calls * 1.1 * _CLOCK_CHECK_SECONDS / leg.host) + 1)
    return RoofMeasured(
        arm=job.arm,
        device=job.device,
        bandwidth=runner.bytes_per_call * leg.calls / leg.timeline,
        event_clock=leg.timeline / leg.host,
    )


def _rough_seconds(runner: Runner) -> float:
    """Seconds per call from growing runs, until one lasts a fair part of a long leg."""
    calls = 1
    runner.run(1)
    while True:
        seconds = runner.time(calls).timeline / calls
        if seconds * calls >= LONG_LEG_SECONDS / 4 or calls >= 1 << 16:
            return max(seconds, 1e-9)
        calls = min(calls * 8, max(calls + 1, int(LONG_LEG_SECONDS / 3 / max(seconds, 1e-9))))
