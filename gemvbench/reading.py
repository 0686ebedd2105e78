"""Reading a record back: every line that can be read is kept, and what is not is said.

What comes out holds only what a run writes, so that nothing after it has to guess: one sample
for each place of the plan, of arms and cases that the header names.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path

import msgspec

from gemvbench.cases import Case
from gemvbench.errors import Exit, UserError
from gemvbench.messages import Sample
from gemvbench.plan import TWIN, launches_label, roof_label
from gemvbench.record import SCHEMA, GridCell, Header, Line, PoolRead, Run
from gemvbench.token_case import Token, split_token

_GZIP_MAGIC = b"\x1f\x8b"
_NO_LINE = (msgspec.MsgspecError, UserError, ValueError, RecursionError)
"""What decoding raises for something that is no line of a record."""

_SHOWN = 5
_MOST_PASSES = 10_000
_MOST = 10**9
"""Calls, blocks or seconds of a leg: far beyond any run, and far from where numbers overflow."""


class _Stamp(msgspec.Struct, frozen=True):
    """What tells records of different schemas apart."""

    schema: int
    version: str


def read_record(path: Path) -> Run:
    """Read a record; lines that cannot be read or used are left out and named in its `damage`.

    Raises:
        UserError: no such file, another schema, no header, or one that no run writes.
    """
    raw = read_lines(path)
    if raw:
        _check_schema(path, raw[0])
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    unreadable: list[int] = []
    for number, text in enumerate(raw, 1):
        try:
            lines.append(decoder.decode(text))
        except _NO_LINE as error:
            if number == 1:
                raise UserError(
                    f"{path}, line 1 is not part of a gemvbench record ({error}). Give a file "
                    "that `gemvbench ab` or `sweep` wrote with this version."
                ) from error
            unreadable.append(number)
    if not lines or not isinstance(lines[0], Header):
        raise UserError(f"{path} does not start with a header; it is not a gemvbench record.")
    header, rest = lines[0], lines[1:]
    if problem := _header_problem(header) or _second_header(rest):
        raise UserError(f"{path} is no gemvbench record of one run: {problem}.")
    samples, damage = _usable_samples(header, [line for line in rest if isinstance(line, Sample)])
    reads = [line for line in rest if isinstance(line, PoolRead)]
    kept = {id(read) for read in reads if _is_sound(read.sample, header.settings.passes)}
    kept.update(map(id, samples))
    return Run(
        header=header,
        lines=tuple(
            line for line in rest if not isinstance(line, Sample | PoolRead) or id(line) in kept
        ),
        damage=(*_name_unreadable(path, unreadable, len(raw)), *damage, *_name_gaps(samples)),
    )


def read_lines(path: Path) -> list[bytes]:
    """The lines of a file, unpacked where it is packed; UserError where it cannot be read."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"Record {path} cannot be read: {error}.") from error


def _check_schema(path: Path, first: bytes) -> None:
    """Read apart from the rest of the header, which another schema may have otherwise."""
    try:
        stamp = msgspec.json.decode(first, type=_Stamp)
    except _NO_LINE:
        return  # no header at all, which the reader says better
    if stamp.schema != SCHEMA:
        raise UserError(
            f"{path} has schema {stamp.schema} and this version reads {SCHEMA}; use the "
            f"gemvbench that wrote it ({stamp.version}).",
            Exit.NO_DEVICE,
        )


def _header_problem(header: Header) -> str:
    """What no run writes into a header, or ""."""
    settings = header.settings
    looks = settings.looks
    if not header.devices or not header.cases:
        return "its header names no device or no case"
    if settings.command == "selftest" and len(header.cases) + len(header.devices) > 2:
        return "a selftest has one case on one device"
    if not looks or looks[0] < 1 or sorted(set(looks)) != list(looks):
        return f"its looks {looks} do not rise"
    if not 1 <= settings.passes <= _MOST_PASSES:
        return f"it has {settings.passes} passes a block"
    if not (0 < settings.confidence < 1 and 0 < settings.min_effect < 1):
        return "its confidence or smallest effect is no share"
    if len({case.id for case in header.cases}) < len(header.cases):
        return "its header names a case twice"
    if settings.command == "decode" and (problem := _token_problem(header)):
        return problem
    return next(filter(None, (_case_problem(header, case) for case in header.cases)), "")


def _token_problem(header: Header) -> str:
    """A decode has a whole token and its parts, the same arms for all, and shares to confirm."""
    whole, *parts = header.cases
    if not isinstance(whole, Token) or whole.only or tuple(parts) != split_token(whole):
        return "a decode has a whole token and each class of its layers"
    labels = [[c.label for c in header.choices if c.case == case.id] for case in header.cases]
    if any(own != labels[0] for own in labels):
        return "a decode has the same arms for all of its cases"
    shapes = {layer.id for layer in whole.layers}
    for line in header.isolated:
        if line.shape not in shapes or min(line.share, line.seconds) <= 0:
            return "it names shares of the roof that no run has"
    return ""


def _case_problem(header: Header, case: Case) -> str:
    choices = [choice for choice in header.choices if choice.case == case.id]
    labels = [choice.label for choice in choices]
    against = {choice.against for choice in choices} - {""}
    own = [header.baseline, *(choice.against for choice in choices[1:2])]
    if not labels or labels[0] not in own:
        return f"the first arm of {case.id} is not its baseline {header.baseline!r}"
    if against - set(labels):
        return f"{case.id} does not have the arm {min(against - set(labels))!r} to compare with"
    if len({*labels, TWIN}) <= len(labels):
        return f"{case.id} has two arms of one name"
    strange = {choice.device for choice in choices} - {device.id for device in header.devices}
    if strange:
        return f"it does not describe device {min(strange)!r}"
    return "" if _fits(header.grid, set(labels)) else "its grid does not fit its arms"


def _fits(grid: Sequence[GridCell], labels: set[str]) -> bool:
    """Whether a sweep's cells are arms, and every device has each row and column."""
    cells = {(cell.device, cell.row, cell.column) for cell in grid}
    whole = product(*({place[axis] for place in cells} for axis in range(3)))
    return {cell.label for cell in grid} <= labels and cells == set(whole)


def _second_header(lines: Iterable[Line]) -> str:
    return "it has a second header" if any(isinstance(line, Header) for line in lines) else ""


def _usable_samples(
    header: Header, samples: Sequence[Sample]
) -> tuple[list[Sample], tuple[str, ...]]:
    """Samples with a place in the run, each place once, and what is said of the others."""
    labels = {(choice.case, choice.label) for choice in header.choices}
    extra = [
        TWIN,
        *(
            label(device.id, len(header.devices))
            for device in header.devices
            for label in (roof_label, launches_label)
        ),
    ]
    labels |= {(case.id, label) for case in header.cases for label in extra}
    known = [sample for sample in samples if (sample.case, sample.arm) in labels]
    sound = [sample for sample in known if _is_sound(sample, header.settings.passes)]
    places: dict[tuple[int, str, int, str], list[Sample]] = defaultdict(list)
    for sample in sound:
        places[sample.block, sample.case, sample.pass_, sample.arm].append(sample)
    again = [found for found in places.values() if len(found) > 1]
    torn = [found for found in again if any(other != found[0] for other in found)]
    kept = [found[0] for found in places.values() if found not in torn]
    counted = (
        (len(samples) - len(known), "of arms or cases that the header does not name"),
        (len(known) - len(sound), "with a pass, calls, bytes or times that no run has"),
        (sum(len(found) - 1 for found in again if found not in torn), "there twice"),
        (sum(map(len, torn)), "that contradict each other about the same pass"),
    )
    return kept, tuple(f"Left out: {count} samples {what}." for count, what in counted if count)


def _is_sound(sample: Sample, passes: int) -> bool:
    """Whether a run has such a place, such lengths and such times; a negative time it may have."""
    low, high = sample.short.calls, sample.long.calls
    legs = [leg for leg in (sample.short, sample.middle, sample.long) if leg is not None]
    return (
        0 < low < high < _MOST
        and (sample.middle is None or low < sample.middle.calls < high)
        and 0 <= sample.pass_ < passes
        and 0 <= sample.block < _MOST
        and 0 < sample.bytes_per_call < _MOST**2
        and all(leg.timeline <= 0 or 1 / _MOST < leg.timeline < _MOST for leg in legs)
    )


def _name_unreadable(path: Path, numbers: Sequence[int], count: int) -> list[str]:
    """A last line cut short is a crash or a run that goes on; any other is damage."""
    middle = [number for number in numbers if number < count]
    said = []
    if middle:
        shown = ", ".join(map(str, middle[:_SHOWN]))
        more = f" and {len(middle) - _SHOWN} more" if len(middle) > _SHOWN else ""
        what = "line" if len(middle) == 1 else "lines"
        said.append(f"Left out: {path}, {what} {shown}{more}: not part of a gemvbench record.")
    if len(middle) < len(numbers):
        said.append(f"Left out: the last line of {path}, number {count}, which is cut short.")
    return said


def _name_gaps(samples: Iterable[Sample]) -> list[str]:
    """Blocks that are not there although later ones are."""
    blocks = sorted({-1, *(sample.block for sample in samples)})
    gaps = [
        str(last + 1) if block - last == 2 else f"{last + 1} to {block - 1}"
        for last, block in pairwise(blocks)
        if block - last > 1
    ]
    if not gaps:
        return []
    return [f"No samples of block {', '.join(gaps)}; verdicts are over the blocks that are there."]
