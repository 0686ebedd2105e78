"""The records that runs left in this program's folder, without reading all of each."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gemvbench.errors import UserError
from gemvbench.folders import records_folder
from gemvbench.record import Ended, Header, Line


@dataclass(frozen=True)
class KeptRun:
    """A record by its ends: what was run, and how that ended. `problem` where it is none."""

    path: Path
    header: Header | None = None
    ended: str = ""
    problem: str = ""


def kept_runs() -> list[KeptRun]:
    """Every record of the folder, the newest first."""
    return [_read_ends(path) for path in _newest_first()]


def latest_record() -> Path:
    """Raises UserError where no run left a record."""
    paths = _newest_first()
    if not paths:
        raise UserError(f"There is no record in {records_folder()} yet; name a RECORD.")
    return paths[0]


def _newest_first() -> list[Path]:
    paths = [*records_folder().glob("*.jsonl"), *records_folder().glob("*.jsonl.gz")]
    return sorted(paths, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)


def _read_ends(path: Path) -> KeptRun:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            first = last = next(iter(lines), b"")
            for line in lines:
                last = line
        header = msgspec.json.decode(first, type=Header)
    except (OSError, EOFError, msgspec.MsgspecError, UserError, ValueError) as error:
        return KeptRun(path, problem=f"not a record of this version ({error})")
    try:
        end = msgspec.json.decode(last, type=Line)
    except (msgspec.MsgspecError, UserError, ValueError):
        end = header
    return KeptRun(path, header, end.reason if isinstance(end, Ended) else "cut short")
