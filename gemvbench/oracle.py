"""What a right output is: exact integer checks and a float64 reference with a bound.

Exact: small integers whose sum FP32 holds in any order, compared for equality, over all
rows. Random: values with full mantissas against float64; alone it would not do, since one
lost element of a long row hides in any honest bound.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs
from gemvbench.case import Gemv
from gemvbench.messages import Check

W_STREAM, X_STREAM = 1, 2

HOST_ELEMENTS = 1 << 26
"""Larger matrices get their exact sums from the generator on the device."""

SAMPLED_BYTES = 64 << 20
SAMPLED_ROWS = 64
_PIECE = 1 << 22

ROUNDOFF = {32: 2.0**-24, 16: 2.0**-11}
STORED = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Relative error of storing y in a type, by rounding to nearest; of FP32 the sums' own."""
_SMALLEST = 2.0**-25
"""Absolute error of storing a subnormal FP16."""
BOUND = 6.0


@dataclass(frozen=True)
class XPattern:
    """An integer-valued x: all of it ("small"), or +-1 at index % period == phase ("sparse")."""

    name: str
    kind: str
    period: int = 1
    phase: int = 0

    def values(self, case: Gemv, seed: int) -> NDArray[Any]:
        return inputs.values(self.kind, case.x, case.k, seed, X_STREAM, 0, self.period, self.phase)

    def integers(self, k: int, seed: int) -> NDArray[np.int32]:
        return inputs.integers(self.kind, k, seed, X_STREAM, 0, self.period, self.phase)


@dataclass(frozen=True)
class RandomReference:
    """Float64 results and error bounds of some rows; `sampled` where not of all."""

    rows: NDArray[np.int64]
    y: NDArray[np.float64]
    bound: NDArray[np.float64]
    """For FP32 accumulation; scale by the ratio of roundoffs for another."""
    sampled: bool


def exact_patterns(k: int, accumulate: int) -> tuple[XPattern, ...]:
    """x vectors that together touch every column, and the first and last column alone.

    FP32 accumulation is exact below 2**24 (k is limited for that). FP16 is exact below
    2**11, so there x is +-1 in so few places that sums of at most 3 each stay below.
    """
    columns = (
        XPattern("first column", "sparse", k, 0),
        XPattern("last column", "sparse", k, k - 1),
    )
    if accumulate == 32:
        return (XPattern("exact", "small"), *columns)
    period = -(-3 * k // 2047)
    return (*(XPattern("exact", "sparse", period, p) for p in range(period)), *columns)


def special_rows(case: Gemv) -> NDArray[Any]:
    """Rows [m, k] of the values that conversions get wrong: zeros, subnormals, the extremes.

    Each column runs through all of them. Subnormals of BF16 are left out: as FP32 they are
    subnormal too, and a device may flush those.
    """
    dtype = inputs.DTYPES[case.w]
    smallest, largest = (2.0**-14, 65504.0) if case.w == "f16" else (2.0**-126, 2.0**127)
    values = [0.0, 1.0, smallest, largest, largest / 3, 2.0**-13]
    if case.w == "f16":
        values += [2.0**-24, 2.0**-15, 1023 * 2.0**-24]
    both = np.array([sign * value for value in values for sign in (1.0, -1.0)]).astype(dtype)
    rows = min(case.n, len(both))
    made: NDArray[Any] = both[(np.arange(rows)[:, None] + np.arange(case.k)) % len(both)]
    return made


def check_special(y: NDArray[np.float32], rows: NDArray[Any], column: int) -> Check:
    """x is +1 in one column and 0 elsewhere, so y is that column, whatever it holds."""
    expected = rows[:, column].astype(np.float64)
    wrong = np.flatnonzero(~(y[: len(rows)] == expected))
    return _verdict("special values", wrong, len(y), y, expected)


def exact_sums(case: Gemv, patterns: tuple[XPattern, ...], seed: int) -> NDArray[np.int64]:
    """Integer results [len(patterns), n] on the host; float64 holds every partial sum."""
    x = np.stack([pattern.integers(case.k, seed) for pattern in patterns], 1).astype(np.float64)
    sums = np.empty((len(patterns), case.n), np.int64)
    for start, stop in _row_pieces(case):
        count = (stop - start) * case.k
        w = inputs.integers("small", count, seed, W_STREAM, start * case.k)
        sums[:, start:stop] = (w.reshape(-1, case.k).astype(np.float64) @ x).T
    return sums


def sampled_exact_sums(
    case: Gemv, pattern: XPattern, seed: int, rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Integer results of some rows, to check sums that a device made from the generator."""
    return np.array(
        [
            inputs.exact_rows(
                case.k,
                range(int(row), int(row) + 1),
                seed,
                W_STREAM,
                X_STREAM,
                pattern.kind,
                pattern.period,
                pattern.phase,
            )[0]
            for row in rows
        ]
    )


def sample_rows(n: int, seed: int) -> NDArray[np.int64]:
    """First and last row and others drawn in between, sorted."""
    if n <= SAMPLED_ROWS:
        return np.arange(n)
    draw = np.random.default_rng(seed)
    inner = draw.choice(np.arange(1, n - 1), SAMPLED_ROWS - 2, replace=False)
    return np.sort(np.concatenate([[0, n - 1], inner]))


def random_reference(case: Gemv, seed: int) -> RandomReference:
    """Float64 results with a probabilistic bound for FP32 accumulation in any order.

    With zero-mean data the error of a sum of k products p grows like sqrt(k) u ||p||
    (Higham and Mary, SIAM J. Sci. Comput. 42(5), 2020, random data); a serial sum has a
    standard deviation of about 0.4 of that, and `BOUND` times it is never reached by rounding.
    """
    sampled = case.weight_bytes > SAMPLED_BYTES
    rows = sample_rows(case.n, seed) if sampled else np.arange(case.n)
    x = inputs.values("random", case.x, case.k, seed, X_STREAM).astype(np.float64)
    y, norm = np.empty(len(rows)), np.empty(len(rows))
    step = max(1, _PIECE // case.k)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        w = _random_rows(case, rows[part], seed)
        y[part] = w @ x
        norm[part] = np.sqrt((w * w) @ (x * x))
    bound = BOUND * ROUNDOFF[32] * np.sqrt(case.k) * norm
    return RandomReference(rows, y, bound, sampled)


def stored(sums: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """Exact sums as an arm has them that stores y in a type: rounded once, to nearest."""
    exact = sums.astype(np.float32)  # below 2**24
    return sums if dtype == "f32" else exact.astype(inputs.DTYPES[dtype]).astype(np.float32)


def check_exact(name: str, y: NDArray[np.float32], sums: NDArray[Any]) -> Check:
    """Equality over all rows; the detail names the first wrong one, and whether it is an end."""
    wrong = np.flatnonzero(~(y == sums))
    return _verdict(name, wrong, len(y), y, sums)


def check_extra(y: NDArray[np.float32], rows: NDArray[np.int64], sums: NDArray[np.int64]) -> Check:
    """The extra rows of a planted arm: all of them written, and those in `rows` exact."""
    expected = np.full(len(y), np.nan)
    expected[rows] = sums
    bad = np.isnan(y)
    bad[rows] |= y[rows] != sums
    return _verdict("extra rows", np.flatnonzero(bad), len(y), y, expected)


def check_random(
    y: NDArray[np.float32], reference: RandomReference, accumulate: int, dtype: str = "f32"
) -> Check:
    """Against float64, by the bound of the sums and what storing y in `dtype` costs."""
    bound = reference.bound * ROUNDOFF[accumulate] / ROUNDOFF[32]
    picked = y[reference.rows]
    bad = ~(np.abs(picked - reference.y) <= bound + _rounding(reference.y, bound, dtype))
    expected = np.full(len(y), np.nan)
    expected[reference.rows] = reference.y
    check = _verdict("random", reference.rows[bad], len(y), y, expected)
    if check.passed and reference.sampled:
        return Check("random", True, f"{len(reference.rows)} sampled rows, first and last included")
    return check


def check_all_rows(
    y: NDArray[np.float32],
    frozen: NDArray[np.float32],
    reference: RandomReference,
    accumulate: int,
    dtype: str = "f32",
) -> Check:
    """Every row against the frozen kernel's, which float64 has confirmed in the sampled ones.

    Both may be off by their bound; norms of unsampled rows are near those of sampled ones.
    """
    slack = 3 * reference.bound.max() * ROUNDOFF[accumulate] / ROUNDOFF[32]
    allowed = slack + _rounding(frozen, slack, dtype)
    wrong = np.flatnonzero(~(np.abs(y.astype(np.float64) - frozen) <= allowed))
    return _verdict("random, all rows", wrong, len(y), y, frozen)


def _rounding(y: NDArray[Any], bound: NDArray[np.float64] | float, dtype: str) -> NDArray[Any]:
    """How far y may move when it is stored in a type."""
    rounded: NDArray[Any] = STORED[dtype] * (np.abs(y) + bound)
    return rounded + (_SMALLEST if dtype == "f16" else 0.0)


def digest(y: NDArray[Any]) -> str:
    """A hash over the full output, bit for bit."""
    return hashlib.sha256(y.tobytes()).hexdigest()[:32]


def _verdict(
    name: str, wrong: NDArray[np.int64], n: int, got: NDArray[Any], expected: NDArray[Any]
) -> Check:
    if len(wrong) == 0:
        return Check(name, True)
    row = int(wrong[0])
    shown = f"row {row}{_end(row, n)} is {got[row]:g}, expected {expected[row]:g}"
    unwritten = int(np.count_nonzero(np.isnan(got)))
    nan = f"; {unwritten} rows are NaN (never written, or read from unused memory)"
    last = "" if row == n - 1 or wrong[-1] != n - 1 else "; the last row is wrong too"
    return Check(name, False, f"{len(wrong)} rows wrong; {shown}{last}{nan if unwritten else ''}")


def _end(row: int, n: int) -> str:
    if n == 1:
        return " (the only one)"
    return {0: " (first)", n - 1: " (last)"}.get(row, "")


def _random_rows(case: Gemv, rows: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        flat = inputs.values("random", case.w, len(rows) * case.k, seed, W_STREAM, first * case.k)
        return flat.astype(np.float64).reshape(len(rows), case.k)
    return np.stack(
        [inputs.values("random", case.w, case.k, seed, W_STREAM, int(row) * case.k) for row in rows]
    ).astype(np.float64)


def _row_pieces(case: Gemv) -> list[tuple[int, int]]:
    step = max(1, _PIECE // case.k)
    return [(start, min(start + step, case.n)) for start in range(0, case.n, step)]
