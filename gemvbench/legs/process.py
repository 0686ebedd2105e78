"""One leg: a process in a group of its own, timed from start to exit, its whole tree watched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIRST_WATCH, _LAST_WATCH = 0.002, 0.2
"""Seconds between two looks at the memory: each goes through all processes of the machine, so they
become rarer."""
_GRACE_SECONDS = 2.0
"""Between a polite end and the other one."""


@dataclass(frozen=True)
class Ran:
    """How a process ended and what it took."""

    wall: float
    cpu: float
    memory: int
    """Peak of the tree; 0 where it ended before the first look."""
    reason: str
    """Why it counts for nothing; "" where it ended well."""


def run_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    logs: tuple[Path, Path],
) -> Ran:
    """Run to its end, or to `timeout` seconds; standard output and error go to `logs`.

    The exit is waited for by a thread that does nothing else, so that watching the memory adds
    nothing to the time.
    """
    with _open_logs(logs) as (out, err):
        started = time.perf_counter()
        process = subprocess.Popen(
            argv,
            env=os.environ | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        waiter = _Waiter(process.pid)
        memory, late, step = 0, False, _FIRST_WATCH
        try:
            while not waiter.done.wait(min(step, timeout)):
                memory = max(memory, _tree_memory(process.pid))
                step = min(2 * step, _LAST_WATCH)
                if time.perf_counter() - started > timeout:
                    late = True
                    _end(process.pid, waiter)
        except BaseException:
            _end(process.pid, waiter)
            raise
        finally:
            process.returncode = 0  # the waiter has reaped it
            # What a leg leaves running would take its share of the machine from the next legs.
            _signal_group(process.pid, signal.SIGKILL)
    usage = waiter.usage
    return Ran(
        wall=waiter.ended - started,
        cpu=usage.ru_utime + usage.ru_stime,
        memory=memory,  # not ru_maxrss, which counts what was there before exec: this process
        reason=f"stopped after {timeout:g} s" if late else _ending(waiter.status),
    )


class _Waiter:
    """Waits for a child and notes when it ended."""

    def __init__(self, pid: int) -> None:
        self.done = threading.Event()
        self.status, self.ended = 0, 0.0
        self.usage: Any = None
        self._pid = pid
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        _, self.status, self.usage = os.wait4(self._pid, 0)
        self.ended = time.perf_counter()
        self.done.set()


@contextlib.contextmanager
def _open_logs(logs: tuple[Path, Path]) -> Iterator[tuple[Any, Any]]:
    with logs[0].open("wb") as out, logs[1].open("wb") as err:
        yield out, err


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return ""
    return f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"


def _tree_memory(pid: int) -> int:
    """Resident bytes of a process and all below it; what ends meanwhile counts nothing."""
    import psutil

    total = 0
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _end(pid: int, waiter: _Waiter) -> None:
    """End the group, and what left it; politely first."""
    below = _below(pid)
    _signal_group(pid, signal.SIGTERM)
    waiter.done.wait(_GRACE_SECONDS)
    _signal_group(pid, signal.SIGKILL)
    _kill(below)
    waiter.done.wait()


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process that has no group of its own, and all below it."""
    below = _below(process.pid)
    process.kill()
    _kill(below)


def _below(pid: int) -> list[Any]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _kill(processes: Sequence[Any]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
