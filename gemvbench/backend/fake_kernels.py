"""Memory and kernels of the fake device, in NumPy.

A kernel writes the rows that its geometry covers, refuses what the real one could not load,
and sums in float64: its output does not depend on pack, rows or where the weights lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs
from gemvbench.backend import fake_attention, fake_quant
from gemvbench.backend.base import Launch

Array = NDArray[Any]

_PIECE = 1 << 20
_KEPT = 64
_TYPES = {f"TYPE_{name.upper()}": name for name in inputs.DTYPES}


class Memory:
    """Bytes that are only touched where they are used; copies wait until one is written over."""

    def __init__(self, size: int) -> None:
        self.size, self.version = size, 0
        self._bytes = np.zeros(size, np.uint8)
        self._copies: list[tuple[int, int, int]] = []
        self._deferred: Callable[[], Array] | None = None
        self.outputs: dict[tuple[object, ...], Array] = {}
        """What kernels made of this memory as weights, in its present version."""

    def read(self, offset: int, dtype: Any, count: int) -> Array:
        dtype = np.dtype(dtype)
        size = count * dtype.itemsize
        if self._deferred is not None:
            make, self._deferred = self._deferred, None
            self.write(0, make())
        offset = self.find(offset, size)
        return self._bytes[offset : offset + size].view(dtype)

    def write(self, offset: int, values: Array) -> None:
        self._settle()
        raw = values.reshape(-1).view(np.uint8)
        self._check(offset, len(raw))
        self._bytes[offset : offset + len(raw)] = raw
        self.version += 1
        self.outputs.clear()

    def copy(self, source: int, target: int, size: int) -> None:
        self._check(source, size)
        self._check(target, size)
        self._copies.append((source, target, size))

    def defer(self, make: Callable[[], Array]) -> None:
        """Write what `make` returns, if anyone ever looks."""
        self._deferred = make

    def find(self, offset: int, size: int) -> int:
        """Where bytes that may be a pending copy really are."""
        self._check(offset, size)
        for source, target, length in reversed(self._copies):
            if target <= offset and offset + size <= target + length:
                offset += source - target
            elif offset < target + length and target < offset + size:
                self._settle()
                break
        return offset

    def _settle(self) -> None:
        for source, target, size in self._copies:
            self._bytes[target : target + size] = self._bytes[source : source + size]
        self._copies.clear()

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise RuntimeError(f"bytes {offset} to {offset + size} lie outside {self.size}")


class Entry(NamedTuple):
    """A kernel: what it does, which argument it writes, and the names of its numbers."""

    execute: Callable[[Mapping[str, str], Launch], None]
    output: int
    names: tuple[str, ...]
    moved: Callable[[Mapping[str, str], Launch], int] | None = None
    """Bytes that a launch moves, where k and n do not tell."""


@dataclass(frozen=True)
class Programme:
    """An entry with its constants."""

    entry: Entry
    constants: Mapping[str, str]

    @property
    def is_gemv(self) -> bool:
        return self.entry.names == _SIZES

    def execute(self, launch: Launch) -> None:
        self.entry.execute(self.constants, launch)

    def sizes(self, launch: Launch) -> dict[str, str]:
        """k, n and words of a launch, where it has them."""
        numbers = self.numbers(launch)
        return {name: str(numbers[name]) for name in ("k", "n", "words") if name in numbers}

    def numbers(self, launch: Launch) -> dict[str, int]:
        values = launch.args[len(launch.args) - len(self.entry.names) :]
        return {name: int(value) for name, value in zip(self.entry.names, values, strict=True)}

    def bytes_moved(self, launch: Launch) -> int:
        if self.entry.moved is not None:
            return self.entry.moved(self.constants, launch)
        numbers = self.numbers(launch)
        if "words" in numbers:
            return 4 * numbers["words"]
        if "n" not in numbers or self.entry.output == 0 or self.entry.execute is _nothing:
            return 1
        k, n = numbers["k"], numbers["n"] + _extra(self.constants)
        w, x = (inputs.DTYPES[_type(self.constants, name)].itemsize for name in ("W", "X"))
        return k * n * w + k * x + 4 * n


def _gemv(constants: Mapping[str, str], launch: Launch, rows: int, pack: int) -> None:
    """y for the first `rows` rows, planted ones behind the last included.

    k and offsets count elements, as in the kernels.
    """
    launch.args[2].write(0, _rows(constants, launch, rows, pack))


def _rows(constants: Mapping[str, str], launch: Launch, rows: int, pack: int) -> Array:
    """The first rows of y in FP32."""
    w, x = launch.args[:2]
    k, n, w_offset, x_offset = map(int, launch.args[3:])
    for what, count in (("k", k), ("w_offset", w_offset), ("x_offset", x_offset)):
        if count % (1 << pack):
            raise RuntimeError(f"misaligned load: {what} is {count} and PACK {pack}")
    w_type, x_type = (inputs.DTYPES[_type(constants, name)] for name in ("W", "X"))
    n += _extra(constants)
    rows = min(rows, n)
    start = w.find(w_offset * w_type.itemsize, k * n * w_type.itemsize)
    key = (start, k, rows, w_type, x, x.version, x_offset, x_type)
    if key not in w.outputs:
        if len(w.outputs) >= _KEPT:
            w.outputs.clear()
        xs = x.read(x_offset * x_type.itemsize, x_type, k).astype(np.float64)
        ws = w.read(w_offset * w_type.itemsize, w_type, k * n).reshape(n, k)
        w.outputs[key] = _product(ws[:rows], xs)
    found: Array = w.outputs[key]
    return found


def _product(w: Array, x: Array) -> Array:
    """Sums by NumPy alone, whose order does not depend on alignment."""
    out = np.empty(len(w), np.float32)
    step = max(1, _PIECE // w.shape[1])
    for start in range(0, len(w), step):
        part = slice(start, start + step)
        out[part] = np.multiply(w[part].astype(np.float32), x).sum(axis=1)
    return out


def _row(constants: Mapping[str, str], launch: Launch) -> None:
    _check_size(launch, int(constants.get("BLOCK", launch.workgroup_size)))
    rows = launch.workgroups * int(constants.get("ROWS", 1))
    _gemv(constants, launch, rows, int(constants.get("PACK", 0)))


def _cpu(constants: Mapping[str, str], launch: Launch) -> None:
    rows = int(launch.args[4]) + _extra(constants)
    _gemv(constants, launch, rows, int(constants["PACK"]))


def _frozen(constants: Mapping[str, str], launch: Launch) -> None:
    _check_size(launch, 128)
    _gemv(constants, launch, launch.workgroups, 0)


def _library(constants: Mapping[str, str], launch: Launch) -> None:
    """A library that stores y in the type of W."""
    y = _rows(constants, launch, int(launch.args[4]), 0)
    launch.args[2].write(0, y.astype(inputs.DTYPES[_type(constants, "W")]))


def _nothing(constants: Mapping[str, str], launch: Launch) -> None:
    """A launch without work."""


def _fill(constants: Mapping[str, str], launch: Launch) -> None:
    out: Memory = launch.args[0]
    count, first, offset, seed, stream, period, phase = map(int, launch.args[1:])
    dtype, kind = _type(constants, ""), constants["KIND"].removeprefix("KIND_").lower()
    made = inputs.values(kind, dtype, count, seed, stream, first, period, phase)
    out.write(offset * made.itemsize, made)


def _exact(constants: Mapping[str, str], launch: Launch) -> None:
    sums: Memory = launch.args[0]
    k, n, seed, w_stream, x_stream, kind, period, phase = map(int, launch.args[1:])
    made = inputs.exact_rows(
        k, range(n), seed, w_stream, x_stream, inputs.KINDS[kind], period, phase
    )
    sums.write(0, made.astype(np.int32))


def _read(constants: Mapping[str, str], launch: Launch) -> None:
    """The XOR of all words in the first item's place: the fold over the sink is right."""
    data, sink = launch.args[:2]
    words, offset = map(int, launch.args[2:])
    items = launch.workgroups * launch.workgroup_size

    def fold() -> Array:
        found = np.zeros(items, np.uint32)
        found[0] = np.bitwise_xor.reduce(data.read(4 * offset, np.uint32, words))
        return found

    sink.defer(fold)


def _check_size(launch: Launch, block: int) -> None:
    if launch.workgroup_size != block:
        raise RuntimeError(f"a workgroup of {launch.workgroup_size} for a kernel built for {block}")


def _extra(constants: Mapping[str, str]) -> int:
    return int(constants.get("EXTRA", 0))


def _type(constants: Mapping[str, str], operand: str) -> str:
    return _TYPES[constants[f"{operand}_TYPE".lstrip("_")]]


_SIZES = ("k", "n", "w_offset", "x_offset")
_SUMS = ("k", "n", "seed", "w_stream", "x_stream", "x_kind", "period", "phase")
_VALUES = ("count", "first_index", "out_offset", "seed", "stream", "period", "phase")

ENTRIES: Mapping[str, Entry] = {
    "gemv_row": Entry(_row, 2, _SIZES),
    "gemv_cpu": Entry(_cpu, 2, _SIZES),
    "gemv_frozen": Entry(_frozen, 2, _SIZES),
    "clblast": Entry(_library, 2, _SIZES),
    **{
        name: Entry(fake_quant.multiply, 2, _SIZES, fake_quant.bytes_moved)
        for name in ("gemv_quant", "gemv_quant_cpu")
    },
    "launch_only": Entry(_nothing, 2, _SIZES),
    "fill_values": Entry(_fill, 0, _VALUES),
    "exact_rows": Entry(_exact, 0, _SUMS),
    "read_chunked": Entry(_read, 1, ("words", "word_offset")),
    "read_strided": Entry(_read, 1, ("words", "word_offset")),
    **{
        name: Entry(execute, output, (), moved)
        for name, (execute, output, moved) in fake_attention.STAGES.items()
    },
}
