"""What attention gives in float64, with the bounds that FP32 arithmetic has to keep."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import attention_inputs, quant
from gemvbench.attention_case import QUANTISED, Attention
from gemvbench.oracle import BOUND, ROUNDOFF

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

    @cached_property
    def scores(self) -> Doubles:
        """[heads, context]"""
        return self._scale * raw_scores(self._case, self._k, self._q)

    @cached_property
    def score_bound(self) -> Doubles:
        """As in `oracle.random_reference`, and the roundings of the scales and of the result."""
        norm = np.sqrt(raw_scores(self._case, self._k, self._q, power=2))
        sums = BOUND * _U * math.sqrt(self._case.head_dim) * self._scale * norm
        made: Doubles = sums + 4 * _U * np.abs(self.scores)
        return made

    @cached_property
    def softmax(self) -> tuple[Doubles, Doubles]:
        """Outputs [heads, v_size] and their bounds.

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
        out = weighted_rows(case, v, p)
        size = weighted_rows(case, v, p * factor, absolute=True)
        whole = weighted_rows(case, v, p, absolute=True)
        roundings = _U * (8 + math.sqrt(case.context)) * whole
        roundings += _LEAST * weighted_rows(case, v, np.ones_like(p), absolute=True)
        return out, size + drift * np.abs(out) + roundings + value_bound(case, v, p)


def raw_scores(case: Attention, k: Rows, q: Floats, power: int = 1) -> Doubles:
    """Sums over i of (q[h, i] k[t, g, i]) ** power, unscaled, [heads, context], by KV head."""
    by_head = q.reshape(case.kv_heads, case.ratio, -1).astype(np.float64) ** power
    out = np.empty((case.kv_heads, case.ratio, case.context))
    for head in range(case.kv_heads):
        rows = _doubles(case.k_type, k[:, head], case.head_dim) ** power
        out[head] = by_head[head] @ rows.T
    return out.reshape(case.heads, case.context)


def weighted_rows(case: Attention, v: Rows, p: NDArray[Any], *, absolute: bool = False) -> Doubles:
    """Sums over t of p[h, t] v[t, g], [heads, v_size]; of magnitudes with `absolute`."""
    by_head = p.reshape(case.kv_heads, case.ratio, -1).astype(np.float64)
    out = np.empty((case.kv_heads, case.ratio, case.v_size))
    for head in range(case.kv_heads):
        rows = _doubles(case.v_type, v[:, head], case.v_size)
        out[head] = by_head[head] @ (np.abs(rows) if absolute else rows)
    return out.reshape(case.heads, case.v_size)


def value_bound(case: Attention, v: Rows, p: NDArray[Any]) -> Doubles:
    """As in `oracle.random_reference`: FP32 sums over tokens in any order, V of mean zero."""
    by_head = p.reshape(case.kv_heads, case.ratio, -1).astype(np.float64) ** 2
    norm = np.empty((case.kv_heads, case.ratio, case.v_size))
    for head in range(case.kv_heads):
        norm[head] = by_head[head] @ _doubles(case.v_type, v[:, head], case.v_size) ** 2
    tokens = max(16, case.context)  # a product of three has roundings of its own
    made: Doubles = BOUND * _U * math.sqrt(tokens) * np.sqrt(norm)
    return made.reshape(case.heads, case.v_size)


def _doubles(kind: str, rows: Rows, n: int) -> Doubles:
    """Rows as float64: a scale times a quant is exact here."""
    rows = np.ascontiguousarray(rows)
    if kind not in QUANTISED:
        return quant.dequantise(kind, rows, n).astype(np.float64)
    scale, quants = quant.unpack(kind, rows, n)
    return quants.astype(np.float64) * np.repeat(scale, n // scale.shape[-1], axis=-1)
