"""Quantised weights as bytes, in NumPy: the layouts of common model files.

    q8_0  34 bytes per 32 weights: f16 scale, 32 int8
    q4_0  18 bytes per 32: f16 scale d, 16 bytes; byte j has weights j (low nibble) and j + 16,
          value (nibble - 8) * d
    q4_K  144 bytes per 256: f16 d and dmin, 12 bytes of eight 6-bit scales and mins, 128 bytes of
          nibbles; value d * scale * nibble - dmin * min, scale and min by 32 weights

Weights are arrays [..., n] of float32, or bytes [..., row_bytes]. q8_0 is `quant`'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemvbench import quant

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


_GROUPS = 8
"""Of a q4_K block: 32 weights with a scale and a min."""


def quantise(kind: str, values: Floats) -> Bytes:
    """Rows of float32 as rows of q8_0 or q4_0, as ggml's reference rounds them."""
    if kind == "q8_0":
        return quant.quantise(kind, values)
    if kind != "q4_0":
        raise ValueError(f"{kind} is packed from its parts here, not from weights")
    blocks = np.ascontiguousarray(values, np.float32).reshape(*values.shape[:-1], -1, 32)
    largest = np.abs(blocks).argmax(axis=-1)[..., None]
    scale = np.take_along_axis(blocks, largest, axis=-1) / np.float32(-8)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    # In float64, as adding 8.5 rounds in FP32.
    nibbles = np.trunc(blocks.astype(np.float64) * inverse + 8.5).clip(0, 15).astype(np.uint8)
    return pack_q4_0(scale[..., 0], nibbles.reshape(values.shape))


def dequantise(kind: str, rows: Bytes, n: int) -> Floats:
    """Rows of bytes, each of n weights, as float32."""
    if kind == "q8_0":
        return quant.dequantise(kind, rows, n)
    return _dequantise_q4_0(rows, n) if kind == "q4_0" else _dequantise_q4_k(rows, n)


def repack(rows: Bytes, size: int) -> tuple[Bytes, Bytes]:
    """Rows of blocks of `size` bytes, a scale first, as quants and scales: [..., bytes] each."""
    blocks = rows.reshape(*rows.shape[:-1], -1, size)
    quants, scales = blocks[..., 2:], blocks[..., :2]
    return (
        np.ascontiguousarray(quants).reshape(*rows.shape[:-1], -1),
        np.ascontiguousarray(scales).reshape(*rows.shape[:-1], -1),
    )


def unpack(quants: Bytes, scales: Bytes) -> Bytes:
    """Rows of blocks from what `repack` made."""
    shape = (*scales.shape[:-1], scales.shape[-1] // 2, -1)
    blocks = np.concatenate([scales.reshape(shape), quants.reshape(shape)], axis=-1)
    return blocks.reshape(*quants.shape[:-1], -1)


def pack_q8_0(scale: Floats, quants: NDArray[np.int8]) -> Bytes:
    """Rows from scales [..., n / 32] and quants [..., n]."""
    return quant.pack("q8_0", scale, quants)


def pack_q4_0(scale: Floats, nibbles: Bytes) -> Bytes:
    """Rows from scales [..., n / 32] and nibbles [..., n] of 0 to 15."""
    halves = nibbles.reshape(*nibbles.shape[:-1], -1, 2, 16)
    blocks = np.empty((*halves.shape[:-2], 18), np.uint8)
    blocks[..., :2] = scale.astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:] = halves[..., 0, :] | halves[..., 1, :] << 4
    return blocks.reshape(*nibbles.shape[:-1], -1)


def pack_q4_k(d: Floats, dmin: Floats, scale: Bytes, least: Bytes, nibbles: Bytes) -> Bytes:
    """Rows: d, dmin [..., n / 256], 6-bit scales and mins [..., n / 32], nibbles [..., n]."""
    shape = nibbles.shape[:-1]
    blocks = np.empty((*shape, nibbles.shape[-1] // 256, 144), np.uint8)
    blocks[..., 0:2] = d.astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:4] = dmin.astype(np.float16)[..., None].view(np.uint8)
    s, m = (part.reshape(*shape, -1, _GROUPS) for part in (scale, least))
    blocks[..., 4:8] = s[..., :4] | s[..., 4:] >> 4 << 6
    blocks[..., 8:12] = m[..., :4] | m[..., 4:] >> 4 << 6
    blocks[..., 12:16] = s[..., 4:] & 15 | (m[..., 4:] & 15) << 4
    # Two groups of 32 share 32 bytes: the first has the low nibbles.
    pairs = nibbles.reshape(*shape, -1, _GROUPS // 2, 2, 32)
    blocks[..., 16:] = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(*shape, -1, 128)
    return blocks.reshape(*shape, -1)


def _halves(blocks: Bytes, start: int) -> Floats:
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)


def _dequantise_q4_0(rows: Bytes, n: int) -> Floats:
    blocks = rows.reshape(*rows.shape[:-1], -1, 18)
    packed = blocks[..., 2:]
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)
    values: Floats = (nibbles - 8) * _halves(blocks, 0)
    return values.reshape(*rows.shape[:-1], n)


def _dequantise_q4_k(rows: Bytes, n: int) -> Floats:
    blocks = rows.reshape(*rows.shape[:-1], -1, 144)
    low, high, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], axis=-1)
    least = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], axis=-1)
    packed = blocks[..., 16:].reshape(*blocks.shape[:-1], _GROUPS // 2, 1, 32)
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=-2)
    nibbles = nibbles.reshape(*blocks.shape[:-1], _GROUPS, 32).astype(np.float32)
    steps = (_halves(blocks, 0) * scale)[..., None]
    starts = (_halves(blocks, 2) * least)[..., None]
    values: Floats = steps * nibbles - starts
    return values.reshape(*rows.shape[:-1], n)
