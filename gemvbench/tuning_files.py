"""Tables of tuned arms as files: those of the package, and the user's own. For the parent alone."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from gemvbench.arm import FAMILIES, Arm, parse_arm
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo
from gemvbench.errors import UserError
from gemvbench.folders import tables_folder
from gemvbench.jobs import short_digest
from gemvbench.source import assemble, kernel_interface
from gemvbench.tuning import AnyRow, Row, Table, Tuned, TunedAttention, Tuning

SHIPPED = Path(__file__).parent / "tables"
SCHEMA = 1


def load_tuning(device: DeviceInfo) -> Tuning:
    """All that is known for a device: the user's rows, then the package's.

    A table or row that cannot be used is left out and named in `refused`.
    """
    rows: list[Tuned] = []
    attention: list[TunedAttention] = []
    refused: list[str] = []
    interface = kernel_interface()
    for source, folder in (("user's", tables_folder()), ("shipped", SHIPPED)):
        path = table_path(folder, device)
        try:
            table = read_table(path, device)
        except UserError as error:
            refused.append(str(error))
            continue
        good = [row for row in table.all_rows if row.interface == interface]
        for row in good:
            note = _note(row, device)
            if isinstance(row, Row):
                rows.append(Tuned(row=row, source=source, note=note))
            else:
                attention.append(TunedAttention(row=row, source=source, note=note))
        if len(good) < len(table.all_rows):
            refused.append(_other_interface(path, len(table.all_rows) - len(good)))
    return Tuning(rows=tuple(rows), attention=tuple(attention), refused=tuple(refused))


def table_path(folder: Path, device: DeviceInfo) -> Path:
    slug = re.sub(r"[^a-z0-9]+", "-", f"{device.language} {device.name}".lower()).strip("-")
    return folder / f"{slug}.json"


def read_table(path: Path, device: DeviceInfo) -> Table:
    """The table in a file; an empty one where there is no file.

    Raises:
        UserError: it cannot be read, is of another schema or device, or says what no table says.
    """
    empty = Table(device=device.name, language=device.language, rows=())
    try:
        table = msgspec.json.decode(path.read_bytes(), type=Table)
    except FileNotFoundError:
        return empty
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(_corrupt(path, str(error))) from error
    if table.schema != SCHEMA:
        raise UserError(
            f"Tuning table {path} has schema {table.schema}, and this version reads {SCHEMA}; "
            f"`auto` takes the rule. Remove the file and run `gemvbench tune` again."
        )
    if (table.device, table.language) != (device.name, device.language):
        raise UserError(
            f"Tuning table {path} is for {table.device} in {table.language}, not for {device.name} "
            f"in {device.language}; `auto` takes the rule. Remove it, or give it its device's name."
        )
    for row in table.all_rows:
        if problem := _row_problem(row):
            raise UserError(_corrupt(path, problem))
    return table


def store_row(row: AnyRow, device: DeviceInfo) -> Path:
    """Put a row into the user's table, in place of an earlier one of its shape and types.

    The file is replaced as a whole, so that nobody reads half of it.

    Raises:
        UserError: the table there cannot be used, or cannot be written.
    """
    path = table_path(tables_folder(), device)
    table = read_table(path, device)
    data = msgspec.json.format(msgspec.json.encode(_with_row(table, row)), indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_bytes(data + b"\n")
        half.replace(path)
    except OSError as error:
        raise UserError(f"Tuning table {path} cannot be written: {error.strerror}.") from error
    return path


def _with_row(table: Table, row: AnyRow) -> Table:
    if isinstance(row, Row):
        kept = [other for other in table.rows if other.shape != row.shape]
        rows = sorted((*kept, row), key=lambda r: (r.w, r.x, r.k, r.n))
        return msgspec.structs.replace(table, rows=tuple(rows))
    others = [other for other in table.attention if other.shape != row.shape]
    made = sorted((*others, row), key=lambda r: (r.heads, r.kv_heads, r.head_dim, r.shape))
    return msgspec.structs.replace(table, attention=tuple(made))


@cache
def kernel_digest(family: str, language: str) -> str:
    """Of the packaged kernel file of a family with its includes."""
    suffix = "cu" if language == "cuda" else "cl"
    text = assemble(f"{language}/{FAMILIES[family].file}.{suffix}")
    return short_digest(text.encode())


def _note(row: AnyRow, device: DeviceInfo) -> str:
    """What has changed since a row was measured."""
    changes = []
    if row.driver != device.driver:
        changes.append(f"driver {row.driver}, now {device.driver}")
    if row.kernel != kernel_digest(parse_arm(row.arm).family, device.language):
        changes.append("kernels that have changed since")
    return f"measured with {' and '.join(changes)}" if changes else ""


def _row_problem(row: AnyRow) -> str:
    """What no `tune` writes, or ""; the arm of another interface need not be known here."""
    try:
        op = "gemv"
        if isinstance(row, Row):
            Gemv(k=row.k, n=row.n, w=row.w, x=row.x)
        else:
            op = row.case.op
        for text in (row.arm, row.rule) if row.interface == kernel_interface() else ():
            arm = parse_arm(text)
            if arm != Arm(family=arm.family, axes=arm.axes) or arm.family not in _tunable(op):
                return f"{row.shape}: {text!r} is no arm for a table"
    except UserError as error:
        return str(error)
    numbers = row.low, row.ratio, row.high
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        return f"{row.shape}: ratio {row.ratio} with interval {row.low} to {row.high}"
    if row.low <= row.ratio <= row.high:
        return ""
    return f"{row.shape}: its ratio lies outside its interval"


def _tunable(op: str) -> Sequence[str]:
    return [name for name, family in FAMILIES.items() if op in family.operations]


def _corrupt(path: Path, why: str) -> str:
    return (
        f"Tuning table {path} cannot be used ({why}); `auto` takes the rule. Mend the file, or "
        "remove it and run `gemvbench tune` again."
    )


def _other_interface(path: Path, count: int) -> str:
    rows = "1 row" if count == 1 else f"{count} rows"
    return (
        f"Tuning table {path}: {rows} made for another kernel interface than "
        f"{kernel_interface()} cannot be used; `auto` takes the rule there. "
        "Run `gemvbench tune` again."
    )
