"""Worker processes as the parent sees them: ask, listen, and say what killed one."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.errors import Exit, UserError
from gemvbench.messages import Doing, Message, Refused, Request, Verify

START_LIMIT = 120.0
LIMIT_SCALE = "GEMVBENCH_LIMIT_SCALE"
"""Environment variable, a factor of all time limits: tests of hangs then take seconds."""
_LAST_WORDS = 600


class WorkerDiedError(Exception):
    """A worker ended without finishing: a crash, a hang, an error it could not handle.

    `doing` is what it had announced; the arm in it is charged.
    """

    def __init__(self, doing: Doing, reason: str) -> None:
        super().__init__(reason)
        self.doing, self.reason = doing, reason


def converse(request: Request) -> Iterator[Message]:
    """Messages of a fresh worker, announcements (Doing) included, as they come.

    Raises:
        WorkerDiedError: with what it was doing and its last words.
        UserError: what the worker refused.
    """
    doing = Doing(stage="start", limit=START_LIMIT)
    decoder = msgspec.json.Decoder(Message)
    scale = _limit_scale()
    with _scratch() as (folder, errors), _spawn(request, folder, errors) as process:
        lines = _read_in_background(process)
        _send(process, msgspec.json.encode(request))
        while True:
            try:
                line = lines.get(timeout=doing.limit * scale)
            except queue.Empty:
                reason = f"no sign of life for {doing.limit * scale:.0f} s"
                raise WorkerDiedError(doing, reason) from None
            if line is None or not line.endswith(b"\n"):
                break  # the end, or a message cut short by it
            message = decoder.decode(line)
            if isinstance(message, Refused):
                raise UserError(message.text, Exit(message.code))
            if isinstance(message, Doing):
                doing = message
            yield message
        if process.wait() != 0:
            last_words = _tail(errors, doing.said)
            raise WorkerDiedError(doing, _describe_end(process.returncode, last_words))


@contextmanager
def _scratch() -> Iterator[tuple[str, IO[bytes]]]:
    """A folder for one worker's temporary files, since compilers leave some, and its stderr."""
    try:
        folder = tempfile.mkdtemp(prefix="gemvbench-")
        errors = Path(folder, "stderr").open("w+b")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(
            f"No temporary file can be made ({error.strerror}). Free some space, or point TMPDIR "
            "at a folder that can be written."
        ) from error
    try:
        with errors:
            yield folder, errors
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _limit_scale() -> float:
    text = os.environ.get(LIMIT_SCALE, "1")
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{LIMIT_SCALE}={text!r} is not a number.") from None


def _math_threads(request: Request) -> dict[str, str]:
    """OpenBLAS spends ten times as long on the reference of attention where it has threads.

    Its products are of a few rows by tens of thousands.
    """
    is_attention = isinstance(request, Verify) and isinstance(request.case, Attention)
    return {"OPENBLAS_NUM_THREADS": "1"} if is_attention else {}


@contextmanager
def _spawn(request: Request, folder: str, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in its own process group, ended with all its children whatever happens."""
    package_root = str(Path(__file__).resolve().parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "gemvbench.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=_math_threads(request)
        | os.environ
        | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": folder},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _send(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at once; its end is described where its output ends


def _read_in_background(process: subprocess.Popen[bytes]) -> queue.Queue[bytes | None]:
    lines: queue.Queue[bytes | None] = queue.Queue()
    stream = process.stdout
    assert stream is not None

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _describe_end(code: int, last_words: str) -> str:
    how = f"exit code {code}"
    if code < 0:
        how = f"signal {signal.Signals(-code).name}"
    words = f"; last words: {last_words}" if last_words else ""
    return f"the process ended with {how}{words}"


def _tail(errors: IO[bytes], start: int) -> str:
    """The last lines a dead worker wrote since it announced what killed it."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(start, size - 4096))
    text = errors.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = lines[-1:]
    return " | ".join(lines[-6:])[-_LAST_WORDS:]
