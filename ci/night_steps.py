"""The steps of a night: each a command with a log, done once, its code kept at once."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from night_state import Night, State, save_state

CLEAN, REGRESSION, WRONG, VOID = 0, 1, 3, 4
_KNOWN = (CLEAN, REGRESSION, WRONG, VOID)
_ASV_FAILURES = 2
"""asv's code for benchmarks that failed; it went through all of them."""

_GRACE = 20.0


class Runner:
    """Runs the steps of one night, and writes down how far it got after each."""

    def __init__(self, root: Path, folder: Path, state: State, lock: int) -> None:
        assert state.night is not None
        self.root, self.folder, self.state, self._lock = root, folder, state, lock
        self.night: Night = state.night
        self.records = Path(self.night.folder)
        self.records.mkdir(parents=True, exist_ok=True)
        save_state(folder, state)

    def step(self, name: str, command: list[str]) -> None:
        """Run a command unless the night has done so before; its output goes to NAME.log."""
        if name in self.night.codes:
            return
        log = self.records / f"{name}.log"
        with log.open("a") as out:
            print(f"$ {' '.join(command)}", file=out, flush=True)
            raw = _start(command, self.root, out.fileno(), self._lock)
        code = read_code(name, raw)
        print(f"nightly: {name} ended with {raw}; {log}")
        if code not in (CLEAN, REGRESSION):
            print(_tail(log))
        codes = {**self.night.codes, name: code}
        self.night = msgspec.structs.replace(self.night, codes=codes)
        self.state = msgspec.structs.replace(self.state, night=self.night)
        save_state(self.folder, self.state)


def read_code(name: str, raw: int) -> int:
    """A command's exit code as one of the night's; what a step is not known to say is VOID."""
    if name == "gate":
        return raw if raw in _KNOWN else VOID
    if name == "history" and raw == _ASV_FAILURES:
        return WRONG
    return CLEAN if raw == 0 else VOID


def gate_command(base: str, records: Path, results: Path, options: argparse.Namespace) -> list[str]:
    """`gemvbench gate`, with a record that no earlier try has begun."""
    tries = len(list(records.glob("gate*.jsonl")))
    chosen = [
        word
        for name in ("device", "budget")
        if (value := getattr(options, name))
        for word in (f"--{name}", value)
    ]
    return [
        *(sys.executable, "-m", "gemvbench", "gate", "--base", base, *chosen),
        *("--format", "md", "-o", str(records / "gate.md")),
        *("--record", str(records / f"gate{tries or ''}.jsonl"), "--asv", str(results)),
    ]


def asv_command(commits: str, options: argparse.Namespace) -> list[str]:
    """`asv run` on a range; what an earlier try measured is not measured again."""
    return [
        *(sys.executable, "-m", "asv", "run", "--skip-existing-successful", "--record-samples"),
        *("--steps", str(options.steps), *(["--quick"] if options.quick else [])),
        *(["--bench", options.bench] if options.bench else []),
        commits,
    ]


def _start(command: list[str], root: Path, out: int, lock: int) -> int:
    """The exit code of a command in a group of its own, which ends with this process.

    It inherits the lock: should this process be killed outright, no other night starts beside
    what is left of it.
    """
    process = subprocess.Popen(
        command,
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        pass_fds=(lock,),
        start_new_session=True,
    )
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        return process.wait()
    except BaseException:
        _end_group(process)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-15:])
