"""What one night leaves for the next: a lock, and a state that is always whole."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gemvbench.folders import write_whole

SCHEMA = 1


class NightError(Exception):
    """The night cannot go on: one paragraph for whoever reads the log, and nothing is lost."""


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """One night as far as it got; `codes` are those of finished steps, by name."""

    commit: str
    base: str | None
    folder: str
    dirty: bool = False
    codes: dict[str, int] = {}
    ended: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is known between nights. Commits are whole hashes."""

    schema: int = SCHEMA
    last_good: str | None = None
    """The newest commit that the gate found no regression in: tomorrow's base."""
    last_history: str | None = None
    """Up to here asv has measured."""
    night: Night | None = None


def load_state(folder: Path) -> State:
    """The state of a folder, or that of a first night.

    Raises:
        NightError: a file that is no state, or one of another version.
    """
    path = _state_file(folder)
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (OSError, msgspec.MsgspecError) as error:
        raise NightError(
            f"{path} cannot be read ({error}). Move it away for a first night, without a good "
            "commit; history and records stay."
        ) from error
    if state.schema != SCHEMA:
        raise NightError(f"{path} has schema {state.schema}, and this is schema {SCHEMA}.")
    return state


def save_state(folder: Path, state: State) -> None:
    """In one step: a night killed here leaves the old state or the new one."""
    encoded = msgspec.json.format(msgspec.json.encode(state), indent=2)
    write_whole(_state_file(folder), encoded + b"\n")


def _state_file(folder: Path) -> Path:
    return folder / "state.json"


@contextmanager
def lock(folder: Path) -> Iterator[int]:
    """The descriptor of the lock, for steps to inherit: the lock lasts as long as any of them.

    The system gives it back when the last of them ends, however that happens.

    Raises:
        NightError: another night is at work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 200).decode(errors="replace").strip()
        os.close(handle)
        raise NightError(
            f"Another night is at work ({holder or 'unknown'}), or a step of one that was killed: "
            f"it holds {path}. Nothing was started; wait for it to end."
        ) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} since {time.strftime('%F %T')}\n".encode(), 0)
    try:
        yield handle
    finally:
        os.close(handle)
