"""Operands of attention that are timed, and verified as they are timed: random values.

K and V are streams of elements in the order in which their caches lie in memory, so that a
device can make 16-bit ones itself. Quantised ones are made here, as scales and quants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs, quant
from gemvbench.attention_case import QUANTISED, QUANTS, Attention

STREAMS = {"k": 11, "v": 12}
Q_STREAM, SCORE_STREAM = 13, 14

_SCALES = 8
"""Streams of scales lie so far behind those of quants."""

TOP = np.float32(127 / 128)
"""Largest magnitude in every 32 elements of Q: quantised, it is 127 at a scale of 1/128, so that
what a device rounds does not depend on how it divides."""


def memory_rows(case: Attention, side: str, seed: int) -> NDArray[np.uint8]:
    """All rows of a cache ("k" or "v"), unused ones too, in the order of memory."""
    kind, dim = case.side(side)
    stream = STREAMS[side]
    rows = case.tokens_stored * case.kv_heads
    if kind not in QUANTISED:
        flat = inputs.values("random", kind, rows * dim, seed, stream)
        return flat.reshape(rows, dim).view(np.uint8)
    groups = quant.scale_groups(kind, dim)
    bits = inputs.values("random", "f32", rows * dim // 2, seed, stream).view(np.uint32)
    quants = np.maximum(bits.astype(np.uint16).view(np.int8), -127).reshape(rows, dim)
    size = np.abs(inputs.values("random", "f32", rows * groups, seed, stream + _SCALES))
    scale = ((1 + size) / 256).astype(np.float16).astype(np.float32)
    return quant.pack(kind, scale.reshape(rows, groups), quants)


def token_rows(case: Attention, side: str, seed: int) -> NDArray[np.uint8]:
    """The same rows as [context, kv_heads, bytes], whatever the layout."""
    rows = memory_rows(case, side, seed)
    if case.layout == "tkd":
        return rows.reshape(case.tokens_stored, case.kv_heads, -1)[: case.context]
    by_head = rows.reshape(case.kv_heads, case.tokens_stored, -1)[:, : case.context]
    return np.ascontiguousarray(by_head.transpose(1, 0, 2))


def query(case: Attention, seed: int) -> NDArray[np.float32]:
    """Q [heads, head_dim], with values that case.q holds; see TOP."""
    flat = inputs.values("random", "f16", case.heads * case.head_dim, seed, Q_STREAM)
    q = np.clip(flat.astype(np.float32), -TOP, TOP).reshape(case.heads, case.head_dim)
    q[:, ::QUANTS] = np.where(q[:, ::QUANTS] < 0, -TOP, TOP)
    return q


def quantise_query(kind: str, q: NDArray[np.float32]) -> NDArray[np.float32]:
    """Q as an arm with the axis q8 sees it: quantised as K's type groups it, FP32 scales."""
    blocks = q.reshape(len(q), quant.scale_groups(kind, q.shape[1]), -1)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    rounded: NDArray[np.float32] = np.rint(blocks * inverse) * (most / np.float32(127))
    return rounded.reshape(q.shape)


def weights(case: Attention, seed: int) -> NDArray[np.float32]:
    """p [heads, context] as softmax leaves it, for av alone: positive, with sum 1."""
    count = case.heads * case.context
    flat = np.abs(inputs.values("random", "f32", count, seed, SCORE_STREAM))
    p = flat.reshape(case.heads, case.context)
    made: NDArray[np.float32] = p / p.sum(axis=1, keepdims=True, dtype=np.float64)
    return made.astype(np.float32)


def stored_query(case: Attention, q: NDArray[np.float32]) -> NDArray[Any]:
    """Q in the type that kernels read."""
    return q.astype(np.float16) if case.q == "f16" else q
