"""A file of JSON lines that grows while things happen; a full disk loses the file, not the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import msgspec


class LineFile:
    """Appends a line for each value, flushed at once; without a path it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._file: IO[bytes] | None = None
        self.is_whole = path is not None
        """Whether every line so far is in the file."""
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("xb")
            except OSError as error:
                self._give_up(error)

    def write(self, line: object) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self._encoder.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _give_up(self, error: OSError) -> None:
        self._file, self.is_whole = None, False
        print(
            f"gemvbench: the record {self.path} cannot be written ({error.strerror}). The run "
            "goes on and its result is printed at the end; free space or name another place "
            "with --record to keep the samples too.",
            file=sys.stderr,
        )
