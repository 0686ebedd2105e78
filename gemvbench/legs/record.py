"""Records of legs on disk, and the output of every leg beside them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gemvbench.errors import Exit, UserError
from gemvbench.legs.lines import SCHEMA, LegDone, LegsEnded, LegsHeader, LegsLine, LegsRun
from gemvbench.line_file import LineFile

_NO_LINE = (msgspec.MsgspecError, ValueError, RecursionError)


class LegsRecorder:
    """Keeps every line in memory and in a file."""

    def __init__(self, header: LegsHeader, path: Path) -> None:
        self.header, self.path = header, path
        self._legs: list[LegDone] = []
        self._ended: LegsEnded | None = None
        self._file = LineFile(path)
        self._file.write(header)
        self.outputs = output_folder(path)
        self.outputs.mkdir(parents=True, exist_ok=True)

    def add(self, line: LegDone | LegsEnded) -> None:
        if isinstance(line, LegDone):
            self._legs.append(line)
        else:
            self._ended = line
        self._file.write(line)

    def logs(self, number: int, side: str) -> tuple[Path, Path]:
        """Where standard output and error of a leg go."""
        stem = self.outputs / f"{number:04d}-{side}"
        return stem.with_suffix(".out"), stem.with_suffix(".err")

    @property
    def is_kept(self) -> bool:
        return self._file.is_whole

    def run(self) -> LegsRun:
        return LegsRun(header=self.header, legs=tuple(self._legs), ended=self._ended)

    def close(self) -> None:
        self._file.close()


def output_folder(path: Path) -> Path:
    """Beside the record, under its name."""
    return path.with_suffix(".outputs")


def is_legs_record(first: bytes) -> bool:
    """Whether the first line of a record begins one of legs."""
    try:
        return bool(msgspec.json.decode(first).get("type") == LegsHeader.__name__)
    except (*_NO_LINE, AttributeError):
        return False


def read_legs(path: Path, lines: list[bytes]) -> LegsRun:
    """A record of legs; lines that cannot be read are left out and named in its `damage`.

    Raises:
        UserError: another schema, or a header that cannot be read.
    """
    decoder = msgspec.json.Decoder(LegsLine)
    try:
        schema = msgspec.json.decode(lines[0]).get("schema")
        if schema != SCHEMA:
            raise UserError(
                f"{path} has schema {schema} and this version reads {SCHEMA}; use the gemvbench "
                "that wrote it.",
                Exit.NO_DEVICE,
            )
        header = decoder.decode(lines[0])
    except _NO_LINE as error:
        raise UserError(f"{path}, line 1 is no header of a gemvbench record ({error}).") from error
    assert isinstance(header, LegsHeader)
    legs: list[LegDone] = []
    ended, bad = None, []
    for number, text in enumerate(lines[1:], 2):
        try:
            line = decoder.decode(text)
        except _NO_LINE:
            bad.append(number)
            continue
        if isinstance(line, LegDone):
            legs.append(line)
        elif isinstance(line, LegsEnded):
            ended = line
    damage = (
        (f"Left out: {path}, lines {', '.join(map(str, bad))}: not part of a record.",)
        if bad
        else ()
    )
    return LegsRun(header=header, legs=tuple(legs), ended=ended, damage=damage)
