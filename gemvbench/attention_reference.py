"""What attention gives in float64, with the bounds that FP32 arithmetic has to keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import attention_inputs, quant
from gemvbench.attention_case import QUANTISED, Attention
from gemvbench.oracle import BOUND, ROUNDOFF
from gemvbench.stages import Precision

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Rows = NDArray[np.uint8]

_U = ROUNDOFF[32]
_LEAST = 2.0**-126
"""Smaller weights than the least normal FP32 may be 0."""


class Reference:
    """Float64 results with bounds, made when they are asked for."""

    def __init__(
        self, case: Attention, *, k: Rows, q: Floats, scale: float, v: Rows | None = None
    ) -> None:
        self._case, self._k, self._v, self._q, self._scale = case, k, v, q, scale

    @cached_property
    def quantised(self) -> Reference:
        """The same with Q as an arm that quantises it sees it."""
        q = attention_inputs.quantise_query(self._case.k_type, self._q)
        return Reference(self._case, k=self._k, v=self._v, q=q, scale=self._scale)

    @property
    def scores(self) -> Doubles:
        """[heads, context]"""
        return self._scored[0]

    @property
    def score_bound(self) -> Doubles:
        """As in `oracle.random_reference`, and the roundings of the scales and of the result."""
        return self._scored[1]

    @cached_property
    def _scored(self) -> tuple[Doubles, Doubles]:
        case = self._case
        raw, squares = _by_head(case, "k", self._k, _sums_and_squares, self._q)
        scores = self._scale * raw
        sums = BOUND * _U * math.sqrt(case.head_dim) * self._scale * np.sqrt(squares)
        return scores, sums + 4 * _U * np.abs(scores)

    def softmax(self, precision: Precision) -> tuple[Doubles, Doubles]:
        """Outputs [heads, v_size] of an arm and their bounds."""
        out, bound, whole, every = self._weighted
        added = precision.weight * whole + (precision.least - _LEAST) * every
        return out, bound + added + rounding(precision.y, out)

    @cached_property
    def _weighted(self) -> tuple[Doubles, Doubles, Doubles, Doubles]:
        """Outputs, bounds in FP32, and sums of p |v| and of |v|.

        An error e of a score, of the difference to the maximum, or of exp() changes its weight
        by a factor 1 + e; the sums add what those of `value_bound` do, rescaling included.
        """
        case, v = self._case, self._v
        assert v is not None
        below = self.scores - self.scores.max(axis=1, keepdims=True)
        p = np.exp(below)
        p /= p.sum(axis=1, keepdims=True)
        error = self.score_bound + _U * (np.abs(below) + 8)
        # exp() of a bound that is no longer small: such weights may come out as anything up to it.
        factor = np.expm1(np.minimum(2 * error, 700.0))
        drift = (p * factor).sum(axis=1, keepdims=True)
        out, squares, size, whole, every = _by_head(case, "v", v, _all_sums, p, p * factor)
        roundings = _U * (8 + math.sqrt(case.context)) * whole + _LEAST * every
        bound = size + drift * np.abs(out) + roundings + _value_bound(case, squares)
        return out, bound, whole, every


def rounding(stored: str, values: Doubles, scale: int = 1) -> Doubles:
    """Half a unit of a type in which values over a scale are stored, times the scale; 0 for FP32,
    whose roundings are in all bounds."""
    if stored == "f32":
        return np.zeros_like(values)
    return 2.0**-11 * np.abs(values) + 2.0**-25 * scale


def raw_scores(case: Attention, k: Rows, q: Floats) -> Doubles:
    """Sums over i of q[h, i] k[t, g, i], unscaled, [heads, context]."""
    (made,) = _by_head(case, "k", k, lambda rows, q: (q @ rows.T,), q)
    return made


def weighted_rows(case: Attention, v: Rows, p: NDArray[Any]) -> Doubles:
    """Sums over t of p[h, t] v[t, g], [heads, v_size]."""
    (made,) = _by_head(case, "v", v, lambda rows, p: (p @ rows,), p)
    return made


def value_bound(case: Attention, v: Rows, p: NDArray[Any]) -> Doubles:
    """As in `oracle.random_reference`: FP32 sums over tokens in any order, V of mean zero."""
    (made,) = _by_head(case, "v", v, lambda rows, p: (p**2 @ rows**2,), p)
    return _value_bound(case, made)


def _value_bound(case: Attention, squares: Doubles) -> Doubles:
    tokens = max(16, case.context)  # a product of three has roundings of its own
    return BOUND * _U * math.sqrt(tokens) * np.sqrt(squares)


def _sums_and_squares(rows: Doubles, q: Doubles) -> tuple[Doubles, ...]:
    raw = q @ rows.T
    rows *= rows
    return raw, (q * q) @ rows.T


def _all_sums(rows: Doubles, p: Doubles, error: Doubles) -> tuple[Doubles, ...]:
    """Of p v, p^2 v^2, error |v|, p |v| and |v|."""
    out = p @ rows
    np.abs(rows, out=rows)
    sums = error @ rows, p @ rows, np.broadcast_to(rows.sum(axis=0), out.shape)
    rows *= rows
    return out, (p * p) @ rows, *sums


def _by_head(
    case: Attention,
    side: str,
    rows: Rows,
    compute: Callable[..., tuple[Doubles, ...]],
    *operands: NDArray[Any],
) -> tuple[Doubles, ...]:
    """What `compute` makes of a KV head's rows and its heads' parts of operands, for all heads.

    In one pass over each head's rows: a long cache is hundreds of millions of elements.
    """
    kind, dim = case.side(side)
    parts = [each.reshape(case.kv_heads, case.ratio, -1) for each in operands]

    def one(head: int) -> tuple[Doubles, ...]:
        own = (part[head].astype(np.float64) for part in parts)
        return compute(_doubles(kind, rows[:, head], dim), *own)

    made = [one(head) for head in range(case.kv_heads)]
    return tuple(np.concatenate(each) for each in zip(*made, strict=True))


def _doubles(kind: str, rows: Rows, n: int) -> Doubles:
    """Rows as float64: a scale times a quant is exact here."""
    rows = np.ascontiguousarray(rows)
    if kind not in QUANTISED:
        return rows.view(quant.FLOATS[kind]).astype(np.float64)
    scale, quants = quant.unpack(kind, rows, n)
    return quants.astype(np.float64) * np.repeat(scale, n // scale.shape[-1], axis=-1)
