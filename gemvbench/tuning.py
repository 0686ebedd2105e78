"""What `gemvbench tune` found, and which of it holds for a case. Pure; the parent loads it.

A table belongs to one device in one language. `auto` takes the arm of the row that is near enough
to its case, and else the rule; nobody but the parent reads a file.
"""

from __future__ import annotations

import math

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.case import Gemv

NEAR_K, NEAR_N = 1.25, 2.0
"""Factors within which a row holds: k decides the loads of an item, n (or tokens) how many rows."""

_LOADS = 8
"""Elements of the widest load: rows whose k has other divisors up to here take other loads."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arm to take for a case, and how it compared with the rule's own arm."""

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


class Row(Finding, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found for a product y = W x."""

    k: int
    n: int
    w: str
    x: str

    @property
    def shape(self) -> str:
        return f"{self.k}x{self.n}-{self.w}-{self.x}"

    @property
    def where(self) -> str:
        return f"{self.k}x{self.n}"


class AttentionRow(Finding, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found for attention: a case but for its capacity and scale."""

    op: str
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    context: int
    layout: str
    k_type: str
    v_type: str
    q: str

    @property
    def case(self) -> Attention:
        return Attention(
            op=self.op,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_dim=self.v_dim,
            context=self.context,
            layout=self.layout,
            k_type=self.k_type,
            v_type=self.v_type,
            q=self.q,
        )

    @property
    def shape(self) -> str:
        return self.case.id

    @property
    def where(self) -> str:
        return f"{self.context} tokens"


AnyRow = Row | AttentionRow


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rows for one device in one language."""

    schema: int = 1
    device: str
    language: str
    rows: tuple[Row, ...]
    attention: tuple[AttentionRow, ...] = ()

    @property
    def all_rows(self) -> tuple[AnyRow, ...]:
        return (*self.rows, *self.attention)


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A row that can be used here, with the table it is from and what to know of it."""

    row: Row
    source: str
    """Whose table it is from: "user's" or "shipped"."""
    note: str = ""
    """What is not as it was when the row was measured; "" where all is."""


class TunedAttention(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a row of attention."""

    row: AttentionRow
    source: str
    note: str = ""


AnyTuned = Tuned | TunedAttention


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """All rows for a device, the user's own first, and why others are not among them."""

    rows: tuple[Tuned, ...] = ()
    attention: tuple[TunedAttention, ...] = ()
    refused: tuple[str, ...] = ()

    def find(self, case: Gemv) -> Tuned | None:
        """The nearest row that holds for a case; of equally near ones the first."""
        near = [(d, tuned) for tuned in self.rows if (d := distance(tuned.row, case)) is not None]
        return min(near, key=lambda pair: pair[0])[1] if near else None

    def find_attention(self, case: Attention) -> TunedAttention | None:
        """The same for attention: of one shape, types and layout the nearest context."""
        same = [tuned for tuned in self.attention if _kind(tuned.row.case) == _kind(case)]
        near = [(_octaves(tuned.row.context, case.context), tuned) for tuned in same]
        near = [pair for pair in near if pair[0] <= math.log2(NEAR_N)]
        return min(near, key=lambda pair: pair[0])[1] if near else None


def make_row(case: Gemv | Attention, found: Finding) -> AnyRow:
    """What was found as the row of a case."""
    values = msgspec.structs.asdict(found)
    if isinstance(case, Gemv):
        return Row(k=case.k, n=case.n, w=case.w, x=case.x, **values)
    return AttentionRow(
        op=case.op,
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        v_dim=case.v_size,
        context=case.context,
        layout=case.layout,
        k_type=case.k_type,
        v_type=case.v_type,
        q=case.q,
        **values,
    )


def distance(row: Row, case: Gemv) -> float | None:
    """How far the row's shape is, in octaves of k and n together; None where it does not hold."""
    if (row.w, row.x) != (case.w, case.x) or _k_class(row.k) != _k_class(case.k):
        return None
    apart_k, apart_n = _octaves(row.k, case.k), _octaves(row.n, case.n)
    if apart_k > math.log2(NEAR_K) or apart_n > math.log2(NEAR_N):
        return None
    return apart_k + apart_n


def _kind(case: Attention) -> tuple[object, ...]:
    """All that has to be the same where a row is to hold."""
    shape = case.op, case.heads, case.kv_heads, case.head_dim, case.v_size
    return *shape, case.layout, case.k_type, case.v_type, case.q


def _k_class(k: int) -> int:
    return math.gcd(k, _LOADS)


def _octaves(one: int, other: int) -> float:
    return abs(math.log2(one / other))
