"""Inputs from a counter-based generator; kernels/*/inputs.* make the same bits on devices.

Any element follows from (seed, stream, index) alone, so that a matrix too large for the
host can be filled on the device and any part of it known here. Kinds of values:

    random   like uniform in (-1, 1): every mantissa bit random, magnitude >= 2**-9; one
             stream of values, which narrower types truncate
    small    integers -3 .. 3 without 0
    sparse   +1 or -1 where index % period == phase, else 0
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

KINDS = ("random", "small", "sparse")
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
}
_MANY = 1 << 22
"""Elements that are worth threads."""
_PIECE = 1 << 15
"""Elements at a time: all temporaries stay in the L2 cache, and pieces never straddle 2**32."""

_MASK = 0xFFFFFFFF
_EXPONENTS = np.array([118 + int(byte).bit_length() for byte in range(256)], np.uint32) << 23

U32 = npt.NDArray[np.uint32]


def element(seed: int, stream: int, index: int) -> int:
    """The 32 random bits of one element."""
    key = _stream_key(seed, stream)
    return _mix((_mix((index & _MASK) ^ _high_key(key, index)) + key) & _MASK)


def values(
    kind: str,
    dtype: str,
    count: int,
    seed: int,
    stream: int,
    first: int = 0,
    period: int = 1,
    phase: int = 0,
) -> npt.NDArray[Any]:
    """Elements `first` to `first + count` of a stream as values of `dtype` (f16, bf16, f32)."""
    if kind == "sparse":
        out = np.zeros(count, DTYPES[dtype])
        _put_sparse(out, seed, stream, first, period, phase)
        return out
    bits = np.empty(count, np.uint32 if dtype == "f32" else np.uint16)

    def fill(start: int, end: int) -> None:
        for part, h in _pieces(end - start, seed, stream, first + start):
            if kind == "random":
                bits[start:end][part] = _narrow(_random_bits(h), dtype)
            else:
                bits[start:end][part] = np.take(_SMALL_BITS[dtype], _six(h))

    if count < _MANY:
        fill(0, count)
    else:
        edges = np.linspace(0, count, (os.cpu_count() or 1) + 1).astype(int).tolist()
        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, edges[:-1], edges[1:]))
    return bits.view(DTYPES[dtype])


def integers(
    kind: str, count: int, seed: int, stream: int, first: int = 0, period: int = 1, phase: int = 0
) -> npt.NDArray[np.int32]:
    """The elements of kind small or sparse as integers."""
    if kind == "sparse":
        out = np.zeros(count, np.int32)
        _put_sparse(out, seed, stream, first, period, phase)
        return out
    out = np.empty(count, np.int32)
    for part, h in _pieces(count, seed, stream, first):
        out[part] = np.take(_SMALL, _six(h))
    return out


def exact_rows(
    k: int,
    rows: range,
    seed: int,
    w_stream: int,
    x_stream: int,
    x_kind: str = "small",
    period: int = 1,
    phase: int = 0,
) -> npt.NDArray[np.int64]:
    """Integer sums over j of small w[row, j] * x[j], for some of the rows of a matrix."""
    x = integers(x_kind, k, seed, x_stream, 0, period, phase).astype(np.int64)
    sums = (integers("small", k, seed, w_stream, row * k) @ x for row in rows)
    return np.fromiter(sums, np.int64, len(rows))


def _pieces(count: int, seed: int, stream: int, first: int) -> Iterator[tuple[slice, U32]]:
    """Slices of the output with their random bits; the array is used again for the next."""
    key = _stream_key(seed, stream)
    lows = np.arange(_PIECE, dtype=np.uint32)
    whole, spare = np.empty_like(lows), np.empty_like(lows)
    done = 0
    while done < count:
        index = first + done
        skip = index % _PIECE
        size = min(_PIECE - skip, count - done)
        h, other = whole[:size], spare[:size]
        base = (index - skip) & _MASK
        np.bitwise_or(lows[skip : skip + size], np.uint32(base), out=h)
        h ^= np.uint32(_high_key(key, index))
        _mix_array(h, other)
        h += np.uint32(key)
        _mix_array(h, other)
        yield slice(done, done + size), h
        done += size


def _put_sparse(
    out: npt.NDArray[Any], seed: int, stream: int, first: int, period: int, phase: int
) -> None:
    """Write the non-zero elements of kind sparse into zeros."""
    if phase >= period:
        return
    for part, h in _pieces(len(out), seed, stream, first):
        chosen = slice((phase - first - part.start) % period, None, period)
        out[part][chosen] = 1 - 2 * (h[chosen] >> np.uint32(31)).astype(np.int8)


def _stream_key(seed: int, stream: int) -> int:
    return _mix(_mix((seed + 0x9E3779B9) & _MASK) ^ (stream & _MASK))


def _high_key(key: int, index: int) -> int:
    return _mix((key + (index >> 32) * 0x85EBCA6B) & _MASK)


def _mix(h: int) -> int:
    h = ((h ^ h >> 16) * 0x7FEB352D) & _MASK
    h = ((h ^ h >> 15) * 0x846CA68B) & _MASK
    return h ^ h >> 16


def _mix_array(h: U32, spare: U32) -> None:
    """`_mix` in place."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        np.right_shift(h, np.uint32(shift), out=spare)
        h ^= spare
        h *= np.uint32(factor)
    np.right_shift(h, np.uint32(16), out=spare)
    h ^= spare


def _six(h: U32) -> U32:
    return (h >> np.uint32(16)) * np.uint32(6) >> np.uint32(16)


def _random_bits(h: U32) -> U32:
    """Bits of a float: exponent by the leading zeros of the low byte, mantissa from the rest."""
    f = np.take(_EXPONENTS, h & np.uint32(255))
    f |= h & np.uint32(0x80000000)
    f |= h >> np.uint32(8) & np.uint32(0x7FFFFF)
    return f


def _narrow(f: U32, dtype: str) -> npt.NDArray[Any]:
    """Bits of the float truncated to `dtype`, in which it must be a normal number."""
    if dtype == "f32":
        return f
    if dtype == "bf16":
        return f >> np.uint32(16)
    magnitude = (f & np.uint32(0x7FFFFFFF)) - np.uint32(112 << 23)
    return magnitude >> np.uint32(13) | f >> np.uint32(16) & np.uint32(0x8000)


_SMALL = np.array([-3, -2, -1, 1, 2, 3], np.int32)
_SMALL_BITS = {
    name: _SMALL.astype(dtype).view(np.uint32 if name == "f32" else np.uint16)
    for name, dtype in DTYPES.items()
}
