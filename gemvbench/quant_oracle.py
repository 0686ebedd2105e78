"""What right products of quantised weights are: as `oracle` has it, over all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs, quant_inputs
from gemvbench.case import Gemv
from gemvbench.oracle import BOUND, ROUNDOFF, RandomReference
from gemvbench.quant_inputs import PERIOD, TOP, parts
from gemvbench.quant_weights import Bytes, pack_q4_0, pack_q4_k, pack_q8_0

_SPECIAL_SCALES = (1.0, 2.0**-24, -(2.0**-3), 2.0**-14, 2.0**15)
_ODD_SCALES = (1023 * 2.0**-24, 65504.0, 1365 * 2.0**-12, 0.0, 2047 * 2.0**-14)
"""All eleven bits of a scale, the smallest and the largest."""


class Exact(NamedTuple):
    """An integer x, and what the integer rows give with it."""

    name: str
    x: NDArray[Any]
    sums: NDArray[np.float64]


def exact_trials(case: Gemv, seed: int) -> Iterator[Exact]:
    """All columns together, then the first and the last alone."""
    w, _ = parts(case, quant_inputs.integer_rows(case, seed))
    x = inputs.integers("small", case.k, seed, quant_inputs.X_STREAM)
    x[::32] = TOP * np.sign(x[::32])
    x *= np.repeat(1 + np.arange(case.k // 32) % 2, 32).astype(np.int32)
    for name, values in (
        ("exact", x),
        ("first column", unit(case, 0)),
        ("last column", unit(case, case.k - 1)),
    ):
        yield Exact(name, values.astype(inputs.DTYPES[case.x]), tile(w @ values, case.n))


def unit(case: Gemv, column: int) -> NDArray[np.float64]:
    """127 in a column, which is one quant at a scale of 1, or 127 of them."""
    x = np.zeros(case.k)
    x[column] = TOP
    return x


def tile(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """What belongs to distinct rows, for all n."""
    return np.resize(values, n)


def random_reference(case: Gemv, seed: int, *, quantises_x: bool) -> RandomReference:
    """Float64 results of all rows, with `oracle`'s bound on rounding."""
    w, size = parts(case, quant_inputs.random_rows(case, seed))
    stored = quant_inputs.vector(case, seed)
    x = (quant_inputs.quantise_vector(stored) if quantises_x else stored).astype(np.float64)
    norm = np.sqrt((size * size) @ (x * x))
    bound = BOUND * ROUNDOFF[32] * np.sqrt(case.k) * norm
    return RandomReference(np.arange(case.n), tile(w @ x, case.n), tile(bound, case.n), False)


def special_rows(case: Gemv) -> Bytes:
    """Rows of blocks that conversions get wrong: all quants, subnormal, largest and zero scales.

    Where a scale has all its bits, quants have few, so that a product with 127 is exact in FP32.
    """
    rows, k = min(case.n, PERIOD), case.k
    count = 37 * np.arange(rows)[:, None] + 11 * np.arange(k)
    if case.w == "q4_K":
        return _special_q4_k(rows, count)
    place = 3 * np.arange(rows)[:, None] + np.arange(k // 32)
    scales = np.array(_SPECIAL_SCALES + _ODD_SCALES)
    scale = scales[place % len(scales)].astype(np.float32)
    if case.w == "q4_0":
        return pack_q4_0(scale, (count % 16).astype(np.uint8))
    is_odd = np.repeat(place % len(scales) >= len(_SPECIAL_SCALES), 32, axis=1)
    quants = count % 255 - 127
    return pack_q8_0(scale, np.where(is_odd, quants & ~1, quants).astype(np.int8))


def _special_q4_k(rows: int, count: NDArray[np.int64]) -> Bytes:
    """Blocks in turn: all scales, mins and quants; any d alone; any dmin alone."""
    blocks = count.shape[1] // 256
    turn = np.arange(rows)[:, None] + np.arange(blocks)
    odd = np.array(_ODD_SCALES + _SPECIAL_SCALES)[turn // 3 % 10].astype(np.float32)
    d = np.choose(turn % 3, [1, odd, 0]).astype(np.float32)
    dmin = np.choose(turn % 3, [1, 0, odd]).astype(np.float32)
    groups = 5 * np.arange(rows)[:, None] + np.arange(blocks * 8)
    few = np.repeat(turn % 3 > 0, 8, axis=1)
    scale = np.where(few, 1 << groups % 6, groups % 64)
    least = np.where(few, 1 << groups // 3 % 6, groups * 7 % 64)
    quants = np.where(np.repeat(few, 32, axis=1), 1 << count % 4, count % 16)
    return pack_q4_k(d, dmin, *(part.astype(np.uint8) for part in (scale, least, quants)))
