"""Records: JSON lines, written as things happen, so that nothing measured is lost.

The first line is the Header; after it come the worker's messages as they were sent, a
Charged line for each death, and Ended. Reports are made from a record alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from gemvbench.cases import Case
from gemvbench.device import DeviceInfo
from gemvbench.folders import records_folder
from gemvbench.jobs import Choice
from gemvbench.line_file import LineFile
from gemvbench.messages import (
    BlockDone,
    Calibrated,
    Failed,
    RoofMeasured,
    Sample,
    Verified,
)

SCHEMA = 1
T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a user chose, or the defaults in its place."""

    command: str
    regime: str = "stream"
    seed: int = 0
    passes: int = 6
    looks: tuple[int, ...] = (6,)
    """Numbers of blocks after which the run may stop; the last is the most it takes."""
    confidence: float = 0.99
    family: int | None = None
    """Comparisons whose intervals hold together, where not those of each case by itself."""
    min_effect: float = 0.01
    budget: float | None = None
    sheds: bool = False
    """Whether cases are left out, the last first, until the others fit the budget."""
    quick: bool = False
    lengths: tuple[int, int] | None = None
    """(short, long) numbers of tokens of `decode`; None where they are chosen by time."""
    launches: str = "graph"
    """CUDA: "graph" or "stream"."""
    tolerance: float = 0.05
    """How far shares of the roof in `ab` and `decode` may differ, as a ratio."""
    rests: bool = True
    """Whether measurements wait while a device is near its power limit."""


class GridCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a sweep's matrix, and the label of its arm."""

    row: str
    column: str
    device: str
    label: str


class Isolated(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier `ab` or `sweep` says of an arm on one shape of a decode's token."""

    source: str
    """File name of its record."""
    regime: str
    shape: str
    arm: str
    share: float
    """Of the roof."""
    seconds: float
    beats: tuple[str, ...]
    """Arms that it is faster than, by the interval of their pair."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An arm on a case that a gate does not compare, with the reason."""

    case: str
    arm: str
    device: str
    reason: str


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate compares: the working tree with a commit. Commits are whole hashes."""

    base: str
    base_name: str
    """As the user wrote it."""
    head: str
    dirty: bool
    """Whether the tree had changes beyond `head`; they are what was measured."""
    left_out: tuple[LeftOut, ...] = ()
    fail_on_undecided: bool = False


class Header(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What was run, on what, by what: the part of a record that does not depend on luck."""

    schema: int = SCHEMA
    version: str
    started: str
    arguments: tuple[str, ...]
    settings: Settings
    environment: dict[str, str]
    devices: tuple[DeviceInfo, ...]
    cases: tuple[Case, ...]
    choices: tuple[Choice, ...]
    baseline: str
    """Label of the baseline; its identical twin is labelled `aa`."""
    grid: tuple[GridCell, ...] = ()
    """Cells of a sweep, row by row, device by device; empty for any other run."""
    notes: tuple[str, ...] = ()
    isolated: tuple[Isolated, ...] = ()
    """Of a decode: what it is to confirm."""
    gate: Gate | None = None


class Charged(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A worker that died: what it was at, and the arm that is charged ("" where none)."""

    stage: str
    case: str
    arm: str
    reason: str


class Shed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A case that was verified and not measured, as the budget could not hold it too."""

    case: str


class Alone(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A sample of a process that held nothing but `arm` and the roof: no part of any block."""

    arm: str
    sample: Sample


class PoolRead(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A bare read of a part of one pool, which `sample.arm` names: no part of any case."""

    sample: Sample


class Ended(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the run ended: "complete", "budget", "interrupted", or what stopped it."""

    reason: str
    seconds: float
    measuring_seconds: float | None = None
    """Wall time of the blocks, workers' start and end included."""
    smallest_budget: float | None = None
    """Where the budget did not reach for a verdict: one that does, in seconds."""


Line = (
    Header
    | Verified
    | Failed
    | Calibrated
    | RoofMeasured
    | Sample
    | BlockDone
    | Charged
    | Shed
    | Alone
    | PoolRead
    | Ended
)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole record, in memory."""

    header: Header
    lines: tuple[Line, ...] = ()
    damage: tuple[str, ...] = ()
    """What was left out when the record was read, a sentence each."""

    def of(self, kind: type[T]) -> list[T]:
        return [line for line in self.lines if isinstance(line, kind)]


class Recorder:
    """Keeps every line in memory and appends it to a file; a full disk loses only the file."""

    def __init__(self, header: Header, path: Path | None) -> None:
        self.header, self.path = header, path
        self._lines: list[Line] = []
        self._file = LineFile(path)
        self._file.write(header)

    def add(self, line: Line) -> None:
        self._lines.append(line)
        self._file.write(line)

    def run(self) -> Run:
        return Run(header=self.header, lines=tuple(self._lines))

    @property
    def is_kept(self) -> bool:
        """Whether every line so far is in the file."""
        return self._file.is_whole

    def close(self) -> None:
        self._file.close()


def default_path(command: str) -> Path:
    """A fresh file in the records folder."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return records_folder() / f"{stamp}-{command}-{os.getpid()}.jsonl"
