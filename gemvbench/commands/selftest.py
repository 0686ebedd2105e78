"""`gemvbench selftest`: what this machine can resolve, in about three minutes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gemvbench.case import parse_shape
from gemvbench.commands.ab import record_path
from gemvbench.commands.live import Display
from gemvbench.commands.output import check_output, emit, warn
from gemvbench.commands.roof import measure_roofs
from gemvbench.commands.selection import choose_device, find_devices, parse_seconds
from gemvbench.commands.setup import Setup, check_seed
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.interrupts import ignore_interrupts
from gemvbench.messages import Block, Failed, RoofMeasured, Sample
from gemvbench.process import WorkerDiedError, converse
from gemvbench.record import Charged, Ended, PoolRead, Recorder, Run, Settings
from gemvbench.report.selftest_document import selftest_document
from gemvbench.run import Conductor
from gemvbench.selftest import examine, exit_code
from gemvbench.selftest_plan import (
    PLANTED,
    choose_blocks,
    choose_case,
    pool_blocks,
    selftest_contest,
)

_ROOF_SECONDS = 0.6
"""Of a read kernel: half a second by its clock, and what calibrates it."""


def run_selftest(options: argparse.Namespace) -> Exit:
    """Identical arms, planted effects, the event clock, the regime and the roof of a device."""
    started = time.monotonic()
    check_output(options)
    check_seed(options.seed)
    budget, path = parse_seconds(options.budget), record_path(options)
    device = choose_device(find_devices(), options.device)
    shape = parse_shape(options.one_shape) if options.one_shape else None
    contest = selftest_contest(choose_case(device, shape), device)
    roofs, start_up = _time_roofs(device)
    passes, blocks = choose_blocks(budget, time.monotonic() - started, start_up)
    settings = Settings(
        command=options.command,
        seed=options.seed,
        passes=passes,
        looks=(blocks,),
        min_effect=min(PLANTED) / 2000,
    )
    setup = Setup(settings, (contest,), (device,), contest.baseline)
    recorder = Recorder(setup.header(options.arguments), path)
    for roof in roofs:
        recorder.add(roof)
    run = _Measurement(setup, recorder).run(pool_blocks(contest, device, roofs[0], options.seed))
    ignore_interrupts()  # what was measured is shown, whatever is pressed now
    if recorder.is_kept:
        warn(f"samples are in {path}; `gemvbench report {path}` shows them again.")
    found = examine(run)
    emit(selftest_document(found), options)
    return exit_code(found)


def _time_roofs(device: DeviceInfo) -> tuple[list[RoofMeasured], float]:
    """All read kernels, fastest first, and about what a worker takes to start, in seconds."""
    begun = time.monotonic()
    roofs = measure_roofs(device)
    if not roofs:
        raise UserError(f"No read kernel ran on {device.id}, so nothing can be tested.", Exit.WRONG)
    return roofs, max(0.0, time.monotonic() - begun - _ROOF_SECONDS * len(roofs))


@dataclass(frozen=True)
class _Measurement:
    """Reads of the pools, then the comparison, all of it in one record."""

    setup: Setup
    recorder: Recorder

    def run(self, reads: Sequence[Block]) -> Run:
        begun = time.monotonic()
        with Display() as display:
            try:
                self._read_pools(reads, display)
            except KeyboardInterrupt:
                self.recorder.add(Ended(reason="interrupted", seconds=time.monotonic() - begun))
                self.recorder.close()
                return self.recorder.run()
            setup = self.setup
            conductor = Conductor(setup.settings, setup.devices, self.recorder, display)
            return conductor.compare(setup.contests)

    def _read_pools(self, reads: Sequence[Block], display: Display) -> None:
        """Block after block; one that fails is charged, and no other is tried."""
        display.stage("regime", len(reads))
        for request in reads:
            case = request.cases[0].case.id
            try:
                for message in converse(request):
                    if isinstance(message, Sample):
                        self.recorder.add(PoolRead(sample=message))
                    elif isinstance(message, Failed):
                        self.recorder.add(message)
            except WorkerDiedError as death:
                reason, arm = death.reason, death.doing.arm
            except UserError as refusal:
                reason, arm = str(refusal), ""
            else:
                display.advance()
                continue
            self.recorder.add(Charged(stage="regime", case=case, arm=arm, reason=reason))
            return
