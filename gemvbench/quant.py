"""Cache types as bytes: quantise and dequantise rows in NumPy.

    f16, bf16  2 bytes per element
    q8_0       34 bytes per 32 elements: f16 scale max/127, 32 int8
    q8_KV      8 + n bytes per row: f32 scale max/127, i32 sum of the quants, n int8

Rows are arrays [..., n] of float32 or bytes [..., row_bytes]; q8_0 rounds as ggml does, half
away from zero.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gemvbench.attention_case import QUANTS, row_bytes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

FLOATS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def quantise(kind: str, values: Floats) -> Bytes:
    """Rows of float32 as rows of bytes."""
    values = np.ascontiguousarray(values, np.float32)
    if kind in FLOATS:
        return values.astype(FLOATS[kind]).view(np.uint8)
    blocks = values.reshape(*values.shape[:-1], scale_groups(kind, values.shape[-1]), -1)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    quants = round_away(blocks * inverse).astype(np.int8)
    return pack(kind, scale[..., 0], quants.reshape(values.shape))


def dequantise(kind: str, rows: Bytes, n: int) -> Floats:
    """Rows of bytes, each of `n` elements, as float32."""
    if kind in FLOATS:
        return rows.view(FLOATS[kind]).astype(np.float32)
    scale, quants = unpack(kind, rows, n)
    return quants.astype(np.float32) * np.repeat(scale, n // scale.shape[-1], axis=-1)


def scale_groups(kind: str, n: int) -> int:
    """Scales of a quantised row of `n` elements."""
    return n // QUANTS if kind == "q8_0" else 1


def pack(kind: str, scale: Floats, quants: NDArray[np.int8]) -> Bytes:
    """Rows from scales [..., groups] and quants [..., n]; one group in q8_KV, else n / 32."""
    n = quants.shape[-1]
    rows = np.empty((*quants.shape[:-1], row_bytes(kind, n)), np.uint8)
    if kind == "q8_0":
        blocks = rows.reshape(*rows.shape[:-1], -1, 2 + QUANTS)
        blocks[..., :2] = scale.astype(np.float16)[..., None].view(np.uint8)
        blocks[..., 2:] = quants.view(np.uint8).reshape(*blocks.shape[:-1], QUANTS)
        return rows
    rows[..., :4] = np.ascontiguousarray(scale, np.float32).view(np.uint8)
    rows[..., 4:8] = quants.sum(axis=-1, dtype=np.int32)[..., None].view(np.uint8)
    rows[..., 8:] = quants.view(np.uint8)
    return rows


def unpack(kind: str, rows: Bytes, n: int) -> tuple[Floats, NDArray[np.int8]]:
    """Scales [..., groups] and quants [..., n] of rows."""
    if kind == "q8_0":
        blocks = rows.reshape(*rows.shape[:-1], -1, 2 + QUANTS)
        scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
        quants = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
        return scale, quants.reshape(*rows.shape[:-1], n)
    scale = np.ascontiguousarray(rows[..., :4]).view(np.float32)
    return scale, np.ascontiguousarray(rows[..., 8:]).view(np.int8)


def round_away(values: Floats) -> Floats:
    """To the nearest integer, half away from zero, as C's roundf."""
    whole = np.floor(np.abs(values))
    rounded: Floats = np.sign(values) * (whole + np.floor(2 * (np.abs(values) - whole)))
    return rounded
