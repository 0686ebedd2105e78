"""Quantised weights against the gguf package, and against the layouts as they are written down."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from gemvbench import quant_weights as qw
from gemvbench.case import BLOCKS, row_bytes

TYPES = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_K": gguf.GGMLQuantizationType.Q4_K,
}


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_quantised_as_gguf_does(kind: str) -> None:
    values = draw(7, 512)
    values[2, :32] = 0
    np.testing.assert_array_equal(
        qw.quantise(kind, values), gguf.quants.quantize(values, TYPES[kind])
    )


@pytest.mark.parametrize("kind", TYPES)
def test_random_bytes_are_dequantised_as_gguf_does(kind: str) -> None:
    """Every bit pattern of quants, scales and mins; d and dmin are finite."""
    block = BLOCKS[kind]
    rows = np.random.default_rng(5).integers(0, 256, (9, 4, block.size), dtype=np.uint8)
    halves = 4 if kind == "q4_K" else 2
    rows[..., 1:halves:2] &= 0x3F
    rows = rows.reshape(9, -1)
    n = 4 * block.weights
    expected = gguf.quants.dequantize(rows, TYPES[kind])
    np.testing.assert_array_equal(qw.dequantise(kind, rows, n), expected)
    assert row_bytes(kind, n) == rows.shape[1]


def test_q4_k_is_packed_as_it_is_read() -> None:
    rng = np.random.default_rng(7)
    d, dmin = (rng.integers(1, 64, (3, 2)).astype(np.float32) / 64 for _ in range(2))
    scale, least = (rng.integers(0, 64, (3, 16), dtype=np.uint8) for _ in range(2))
    nibbles = rng.integers(0, 16, (3, 512), dtype=np.uint8)
    rows = qw.pack_q4_k(d, dmin, scale, least, nibbles)
    groups = nibbles.reshape(3, 16, 32).astype(np.float32)
    steps = np.repeat(d, 8, axis=1) * scale
    starts = np.repeat(dmin, 8, axis=1) * least
    expected = (steps[..., None] * groups - starts[..., None]).reshape(3, 512)
    np.testing.assert_array_equal(qw.dequantise("q4_K", rows, 512), expected)


def test_what_is_no_whole_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole blocks of 256 in q4_K"):
        row_bytes("q4_K", 128)
    with pytest.raises(ValueError, match="packed from its parts"):
        qw.quantise("q4_K", draw(1, 256))


@pytest.mark.parametrize(("kind", "size"), [("q8_0", 34), ("q4_0", 18)])
def test_repacked_rows_are_all_quants_then_all_scales(kind: str, size: int) -> None:
    rows = np.random.default_rng(9).integers(0, 256, (5, 4 * size), dtype=np.uint8)
    quants, scales = qw.repack(rows, size)
    assert (quants.shape, scales.shape) == ((5, 4 * (size - 2)), (5, 8))
    np.testing.assert_array_equal(scales[3, 2:4], rows[3, size : size + 2])
    np.testing.assert_array_equal(quants[3, size - 2 : 2 * size - 4], rows[3, size + 2 : 2 * size])
    np.testing.assert_array_equal(qw.unpack(quants, scales), rows)
