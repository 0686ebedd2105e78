"""Cache types: bytes, rounding, and agreement with ggml's own quantiser."""

from __future__ import annotations

import numpy as np
import pytest

from gemvbench import quant
from gemvbench.attention_case import CACHE_TYPES, row_bytes

RNG = np.random.default_rng(3)


def rows(n: int = 96, count: int = 50) -> np.ndarray:
    made = RNG.standard_normal((count, 3, n)).astype(np.float32) * np.float32(3)
    made[0] = 0
    made[1, 0, -1] = 60000
    return made


def test_q8_0_is_ggmls() -> None:
    gguf = pytest.importorskip("gguf")
    values = rows()
    kind = gguf.GGMLQuantizationType.Q8_0
    theirs = gguf.quants.quantize(values, kind)
    ours = quant.quantise("q8_0", values)
    np.testing.assert_array_equal(ours, theirs)
    back = quant.dequantise("q8_0", ours, values.shape[-1])
    np.testing.assert_array_equal(back, gguf.quants.dequantize(theirs, kind))


def test_bf16_is_ggmls() -> None:
    gguf = pytest.importorskip("gguf")
    values = rows()
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    np.testing.assert_array_equal(quant.quantise("bf16", values), theirs.view(np.uint8))


def test_q8_kv_is_one_scale_the_sum_and_the_quants() -> None:
    values = rows(64)
    raw = quant.quantise("q8_KV", values)
    assert raw.shape == (50, 3, 72)
    scale, total = raw[..., :4].copy().view(np.float32), raw[..., 4:8].copy().view(np.int32)
    quants = raw[..., 8:].view(np.int8)
    np.testing.assert_array_equal(scale[..., 0], np.abs(values).max(-1) / np.float32(127))
    np.testing.assert_array_equal(total[..., 0], quants.astype(np.int64).sum(-1))
    assert np.abs(quants[2:]).max(-1).min() == 127  # the largest of each row
    assert not quants[0].any()


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_what_comes_back_is_within_half_a_step(kind: str) -> None:
    values = rows(256)[2:]
    raw = quant.quantise(kind, values)
    assert raw.shape[-1] == row_bytes(kind, 256)
    error = np.abs(quant.dequantise(kind, raw, 256) - values)
    step = {"f16": 2.0**-10, "bf16": 2.0**-7}.get(kind, 1 / 127)
    # The scale of q8_0 is itself rounded to f16.
    rounded = 2.0**-11 if kind == "q8_0" else 0
    assert (error <= (0.51 * step + rounded) * np.abs(values).max(-1, keepdims=True)).all()


@pytest.mark.parametrize("kind", ["q8_0", "q8_KV"])
def test_packed_parts_come_back(kind: str) -> None:
    groups = 3 if kind == "q8_0" else 1
    scale = np.exp2(RNG.integers(-3, 4, (7, groups))).astype(np.float32)
    quants = RNG.integers(-127, 128, (7, 96)).astype(np.int8)
    found = quant.unpack(kind, quant.pack(kind, scale, quants), 96)
    np.testing.assert_array_equal(found[0], scale)
    np.testing.assert_array_equal(found[1], quants)


def test_rounding_is_half_away_from_zero() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, 126.5], np.float32)
    np.testing.assert_array_equal(quant.round_away(values), [1, 2, 3, -1, -3, 0, 127])
