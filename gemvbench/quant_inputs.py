"""Operands of quantised GEMV: rows of blocks, and x.

After PERIOD rows the same come again, a prime number that no tile shares: so a large matrix is
made on the device by copies, and every row of it is known here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs
from gemvbench.case import BLOCKS, Gemv
from gemvbench.quant_weights import Bytes, Floats, dequantise, pack_q4_0, pack_q4_k, pack_q8_0

PERIOD = 257
W_STREAM, X_STREAM = 31, 32
_SCALES = 8
"""Streams of scales lie so far behind those of quants."""
_BASE = {"q8_0": 1 / 128, "q4_0": 1 / 8, "q4_K": 2.0**-10}
"""Scales are one to two times this: weights of about 1."""
_BASE_MIN = 2.0**-7
TOP = 127
"""In every 32 elements of an integer x, and 127/128 in every 32 of a random one, times powers of
two that tell blocks apart: their scales in 8 bits are exact, however a device divides."""

Doubles = NDArray[np.float64]


def distinct_rows(case: Gemv) -> int:
    return min(case.stored_rows, PERIOD)


def random_rows(case: Gemv, seed: int) -> Bytes:
    """Rows [distinct, row_bytes]: every bit of quants, 6-bit scales and mins is random."""
    block, rows = BLOCKS[case.w], distinct_rows(case)
    shape = rows, case.k // block.weights
    count = rows * case.row_bytes // 2
    bits = inputs.values("random", "f32", count, seed, W_STREAM).view(np.uint32)
    blocks = bits.astype(np.uint16).view(np.uint8).reshape(*shape, block.size)
    blocks[..., 0:2] = _scales(_BASE[case.w], shape, seed, 0, signed=case.w == "q4_0")
    if case.w == "q4_K":
        blocks[..., 2:4] = _scales(_BASE_MIN, shape, seed, 1)
    if case.w == "q8_0":
        blocks[..., 2:][blocks[..., 2:] == 0x80] = 0x81  # no quantiser makes -128
    return blocks.reshape(rows, -1)


def _scales(
    base: float, shape: tuple[int, int], seed: int, stream: int, *, signed: bool = False
) -> Bytes:
    """Bytes of FP16 scales."""
    count = shape[0] * shape[1]
    drawn = inputs.values("random", "f32", count, seed, W_STREAM + _SCALES + stream)
    size = (1 + np.abs(drawn)) * np.float32(base)
    scale = (np.copysign(size, drawn) if signed else size).astype(np.float16)
    halves: Bytes = scale.reshape(*shape, 1).view(np.uint8)
    return halves


def integer_rows(case: Gemv, seed: int) -> Bytes:
    """Small integers; scales of 1 and 2 tell blocks apart."""
    rows, k = distinct_rows(case), case.k
    flat = inputs.integers("small", rows * k, seed, W_STREAM).reshape(rows, k)
    blocks = k // BLOCKS[case.w].weights
    scale = (1 + np.arange(rows * blocks) % 2).reshape(rows, blocks).astype(np.float32)
    if case.w == "q8_0":
        return pack_q8_0(scale, flat.astype(np.int8))
    if case.w == "q4_0":
        return pack_q4_0(scale, (flat + 8).astype(np.uint8))
    groups = np.arange(rows * k // 32).reshape(rows, -1)
    steps, starts = (1 + groups % 2).astype(np.uint8), (groups % 3).astype(np.uint8)
    return pack_q4_k(scale, scale, steps, starts, (np.abs(flat) - 1).astype(np.uint8))


def make_rows(case: Gemv, kind: str, seed: int) -> Bytes:
    return random_rows(case, seed) if kind == "random" else integer_rows(case, seed)


def vector(case: Gemv, seed: int) -> NDArray[Any]:
    """The x that is timed."""
    x = inputs.values("random", case.x, case.k, seed, X_STREAM).astype(np.float32)
    top = np.float32(TOP / 128)
    x = np.clip(x, -top, top)
    x[::32] = np.copysign(top, x[::32])
    x *= np.repeat(np.exp2(-(np.arange(case.k // 32) % 3)), 32).astype(np.float32)
    return x.astype(inputs.DTYPES[case.x])


def quantise_vector(x: NDArray[Any]) -> Floats:
    """x in 8 bits, 32 to a scale, as the kernels see it: scales in FP32."""
    blocks = x.astype(np.float32).reshape(-1, 32)
    most = np.abs(blocks).max(axis=1, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    rounded: Floats = np.rint(blocks * inverse) * (most / np.float32(127))
    return rounded.reshape(-1)


def parts(case: Gemv, rows: Bytes) -> tuple[Doubles, Doubles]:
    """Weights [m, k] without their rounding, and their sizes as the sums of kernels meet them.

    Kernels add up quants as floats, those of four bits with up to 16 added, and take mins and what
    was added off again: rounding is that of the larger numbers.
    """
    if case.w == "q8_0":
        exact = dequantise(case.w, rows, case.k).astype(np.float64)
        return exact, np.abs(exact)
    if case.w == "q4_0":
        exact = dequantise(case.w, rows, case.k).astype(np.float64)
        return exact, np.abs(exact) + 48 * _steps(case, rows)
    # A weight as one float would be rounded; its two products are not.
    least, plain = _blocks(case, rows), _blocks(case, rows)
    least[..., 0:2] = 0
    plain[..., 2:4] = 0
    product, start = (
        dequantise(case.w, part.reshape(rows.shape), case.k).astype(np.float64)
        for part in (plain, least)
    )
    return product + start, np.abs(product) + np.abs(start) + 32 * _steps(case, rows)


def _steps(case: Gemv, rows: Bytes) -> Doubles:
    """What one more quant adds, for each weight: |d|, times the 6-bit scale in q4_K."""
    blocks = _blocks(case, rows)
    if case.w == "q4_0":
        blocks[..., 2:] = 0x99
    else:
        blocks[..., 2:4] = 0
        blocks[..., 16:] = 0x11
    return np.abs(dequantise(case.w, blocks.reshape(rows.shape), case.k)).astype(np.float64)


def _blocks(case: Gemv, rows: Bytes) -> Bytes:
    """A copy by blocks, to change parts of it."""
    return rows.reshape(len(rows), -1, BLOCKS[case.w].size).copy()
