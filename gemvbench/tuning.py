"""What `gemvbench tune` found, and which of it holds for a case. Pure; the parent loads it.

A table belongs to one device in one language. `auto` takes the arm of the row that is near enough
to its case, and else the rule; nobody but the parent reads a file.
"""

from __future__ import annotations

import math

import msgspec

from gemvbench.case import Gemv

NEAR_K, NEAR_N = 1.25, 2.0
"""Factors within which a row holds: k decides the loads of an item, n only how many rows."""

_LOADS = 8
"""Elements of the widest load: rows whose k has other divisors up to here take other loads."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arm to take for a shape, and how it compared with the rule's own arm."""

    k: int
    n: int
    w: str
    x: str
    arm: str
    rule: str
    """The arm that it was measured against."""
    ratio: float
    low: float
    high: float
    """Time of the rule's arm over time of this one, with its interval; 1 where they are one arm."""
    tried: int
    """Arms that were measured."""
    driver: str
    interface: str
    """Of the kernels that were measured (kernels/INTERFACE); of another one a row is refused."""
    kernel: str
    """Digest of the kernel file that the arm is built from."""
    version: str
    """Of gemvbench."""
    date: str

    @property
    def shape(self) -> str:
        return f"{self.k}x{self.n}-{self.w}-{self.x}"


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rows for one device in one language."""

    schema: int = 1
    device: str
    language: str
    rows: tuple[Row, ...]


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A row that can be used here, with the table it is from and what to know of it."""

    row: Row
    source: str
    """Whose table it is from: "user's" or "shipped"."""
    note: str = ""
    """What is not as it was when the row was measured; "" where all is."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """All rows for a device, the user's own first, and why others are not among them."""

    rows: tuple[Tuned, ...] = ()
    refused: tuple[str, ...] = ()

    def find(self, case: Gemv) -> Tuned | None:
        """The nearest row that holds for a case; of equally near ones the first."""
        near = [(d, tuned) for tuned in self.rows if (d := distance(tuned.row, case)) is not None]
        return min(near, key=lambda pair: pair[0])[1] if near else None


def distance(row: Row, case: Gemv) -> float | None:
    """How far the row's shape is, in octaves of k and n together; None where it does not hold."""
    if (row.w, row.x) != (case.w, case.x) or _k_class(row.k) != _k_class(case.k):
        return None
    apart_k, apart_n = _octaves(row.k, case.k), _octaves(row.n, case.n)
    if apart_k > math.log2(NEAR_K) or apart_n > math.log2(NEAR_N):
        return None
    return apart_k + apart_n


def _k_class(k: int) -> int:
    return math.gcd(k, _LOADS)


def _octaves(one: int, other: int) -> float:
    return abs(math.log2(one / other))
