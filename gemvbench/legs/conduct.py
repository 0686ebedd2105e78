"""Runs the legs, pair by pair, until the rule has decided or the pairs are used up."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gemvbench.legs.findings import find
from gemvbench.legs.lines import LegDone, LegsEnded, LegsRun, Metric
from gemvbench.legs.metrics import BUILT_IN, MetricError, read_metric
from gemvbench.legs.process import Ran, end_tree, run_process
from gemvbench.legs.record import LegsRecorder
from gemvbench.legs.schedule import Pair, plan_pairs

MOST_FAILURES = 3
"""Failed legs in a row, of one side or of both, that stop a run."""

RunProcess = Callable[..., Ran]


class Conductor:
    """`run` is what starts a process: tests put another in its place."""

    def __init__(self, recorder: LegsRecorder, run: RunProcess = run_process) -> None:
        self._recorder, self._run = recorder, run
        self._settings = recorder.header.settings
        self._number = 0
        self._failed = {"A": 0, "B": 0, "": 0}
        """Failures in a row by side, and of all legs."""

    def conduct(self, advance: Callable[[], None]) -> LegsRun:
        """All pairs; what was measured until an interrupt is kept and returned."""
        started = time.monotonic()
        reason = "complete"
        try:
            for pair in plan_pairs(self._settings):
                reason = self._pair(pair) or "complete"
                advance()
                if reason != "complete" or self._is_decided(pair):
                    break
        except KeyboardInterrupt:
            reason = "interrupted"
        self._recorder.add(LegsEnded(reason=reason, seconds=time.monotonic() - started))
        self._recorder.close()
        return self._recorder.run()

    def _pair(self, pair: Pair) -> str:
        """Both legs; returns why the run has to stop, or ""."""
        for place, side in enumerate(pair.order):
            leg = self._leg(pair, side, first=place == 0)
            self._recorder.add(leg)
            program = "A" if pair.kind == "aa" else side
            if problem := self._count_failure(program, leg.reason):
                return problem
        return ""

    def _leg(self, pair: Pair, side: str, *, first: bool) -> LegDone:
        settings, number = self._settings, self._number
        self._number += 1
        if settings.pause and number:
            time.sleep(settings.pause)
        program = self._recorder.header.side("A" if pair.kind == "aa" else side)
        logs = self._recorder.logs(number, side)
        ran = _before(settings.before, settings.timeout)
        if ran is None:
            try:
                ran = self._run(program.argv, program.environment, settings.timeout, logs)
            except OSError as error:
                ran = Ran(0.0, 0.0, 0, f"cannot be started: {error.strerror}")
        values: dict[str, float] = {}
        matches: dict[str, int] = {}
        reason = ran.reason
        if not reason:
            try:
                values, matches = self._read(ran, logs)
            except MetricError as error:
                reason = str(error)
        return LegDone(
            number=number,
            pair=pair.number,
            kind=pair.kind,
            side=side,
            first=first,
            wall=ran.wall,
            cpu=ran.cpu,
            memory=ran.memory,
            values=values,
            matches=matches,
            reason=reason,
        )

    def _read(self, ran: Ran, logs: tuple[Path, Path]) -> tuple[dict[str, float], dict[str, int]]:
        """(values, how often those are there that are there more than once)."""
        out, err = (path.read_text(errors="replace") for path in logs)
        values, matches = {}, {}
        for metric in self._settings.metrics:
            if metric.source in BUILT_IN:
                values[metric.name] = _measured(metric, ran)
                continue
            values[metric.name], count = read_metric(metric, out, err)
            if count > 1:
                matches[metric.name] = count
        return values, matches

    def _count_failure(self, program: str, reason: str) -> str:
        for name in (program, ""):
            self._failed[name] = self._failed[name] + 1 if reason else 0
        if max(self._failed.values()) < MOST_FAILURES:
            return ""
        whose = f"of {program} " if self._failed[program] >= MOST_FAILURES else ""
        return f"{MOST_FAILURES} legs {whose}in a row failed; the last one: {reason}"

    def _is_decided(self, pair: Pair) -> bool:
        """At a planned look, whether every metric has its verdict; else the run goes on.

        Not while pairs of A with itself are still to come: the floor is part of the answer.
        """
        settings = self._settings
        if pair.number + 1 >= settings.pairs + settings.aa:
            return False
        run = self._recorder.run()
        if len({leg.pair for leg in run.legs if leg.kind == "aa"}) < settings.aa:
            return False
        found = find(run)
        return found.usable_pairs in settings.looks and all(
            metric.judgement.verdict != "UNDECIDED" for metric in found.metrics
        )


def _measured(metric: Metric, ran: Ran) -> float:
    """A metric that is measured from outside.

    Raises:
        MetricError: the program ended too soon for it.
    """
    value = float({"wall": ran.wall, "cpu": ran.cpu, "memory": ran.memory}[metric.source])
    if value <= 0:
        raise MetricError(f"metric {metric.name}: the program ended too soon to have one")
    return value


def _before(command: Sequence[str], timeout: float) -> Ran | None:
    """What the command before a leg did wrong; None where it is well or there is none."""
    if not command:
        return None
    try:
        code, errors = _run_before(command, timeout)
    except subprocess.TimeoutExpired:
        return Ran(0.0, 0.0, 0, f"--before was stopped after {timeout:g} s")
    except OSError as error:
        return Ran(0.0, 0.0, 0, f"--before cannot be started: {error.strerror}")
    if code == 0:
        return None
    said = errors.decode(errors="replace").strip().splitlines()
    words = f": {said[-1]}" if said else ""
    return Ran(0.0, 0.0, 0, f"--before ended with exit code {code}{words}")


def _run_before(command: Sequence[str], timeout: float) -> tuple[int, bytes]:
    """(exit code, standard error). It stays in our process group, so that sudo can ask."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            _, errors = process.communicate(timeout=timeout)
        except BaseException:
            end_tree(process)
            raise
    return process.returncode, errors
