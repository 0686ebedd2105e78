"""The input generator: its values, its statistics, and that any part stands alone."""

from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from gemvbench import inputs

COUNT = 1 << 18


def bits(seed=1, stream=2, count=COUNT, first=0):
    """The generator's words: 24 bits are in the float, the low byte shows in its exponent."""
    return np.fromiter(
        (inputs.element(seed, stream, first + i) for i in range(count)), np.uint32, count
    )


@pytest.fixture(scope="module")
def words():
    return bits()


def test_known_elements():
    """The bits are a contract: results name inputs by seed, and kernels hold copies."""
    assert [hex(inputs.element(1, 2, i)) for i in (0, 1, 2**32, 2**40 + 5)] == [
        "0x3d26391e",
        "0x48956f64",
        "0x673f4340",
        "0xd2ccaa29",
    ]


def test_every_bit_is_fair(words):
    ones = np.array([(words >> bit & 1).sum() for bit in range(32)])
    assert (np.abs(ones - COUNT / 2) < 5 * math.sqrt(COUNT) / 2).all()


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(words, shift):
    counts = np.bincount(words >> np.uint32(shift) & np.uint32(255), minlength=256)
    expected = COUNT / 256
    chi = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi - 255) < 5 * math.sqrt(2 * 255)


def test_neighbours_differ_in_half_their_bits(words):
    """For neighbouring indices, seeds and streams, and across 2**32."""
    near = 1 << 13
    for other in (
        words[1 : near + 1],
        words[4096 : near + 4096],
        bits(seed=2, count=near),
        bits(stream=3, count=near),
        bits(count=near, first=2**32),
    ):
        flips = np.array([((words[:near] ^ other) >> bit & 1).mean() for bit in range(32)])
        assert (np.abs(flips - 0.5) < 5 * 0.5 / math.sqrt(near)).all()


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 255, 256, 4096])
def test_values_do_not_correlate(lag):
    for kind in ("random", "small"):
        v = inputs.values(kind, "f32", COUNT, 3, 4).astype(np.float64)
        assert abs(np.corrcoef(v[:-lag], v[lag:])[0, 1]) < 5 / math.sqrt(COUNT)


def test_streams_do_not_correlate():
    v = [inputs.values("random", "f32", COUNT, seed, s) for seed in (1, 2) for s in (0, 1)]
    correlation = np.corrcoef(v) - np.eye(4)
    assert (np.abs(correlation) < 5 / math.sqrt(COUNT)).all()


@pytest.mark.parametrize("dtype", inputs.DTYPES)
def test_random_is_like_uniform(dtype):
    v = inputs.values("random", dtype, COUNT, 5, 6).astype(np.float64)
    assert np.abs(v).min() >= 2**-9
    assert np.abs(v).max() < 1
    slack = 2.0**-8 if dtype == "bf16" else 2.0**-11  # truncated towards 0
    for edge in (-0.75, -0.5, -0.1, 0.1, 0.5, 0.75, 0.9):
        assert abs((v < edge).mean() - (edge + 1) / 2) < 5 * 0.5 / math.sqrt(COUNT) + slack
    # All bits of the mantissa are in use.
    assert len(np.unique(np.abs(v)[(np.abs(v) >= 0.5)])) > {"f16": 1000, "bf16": 127}.get(
        dtype, 1e5
    )


def test_narrow_types_truncate_the_same_numbers():
    f32 = inputs.values("random", "f32", 10_000, 5, 6)
    bf16 = inputs.values("random", "bf16", 10_000, 5, 6)
    f16 = inputs.values("random", "f16", 10_000, 5, 6)
    np.testing.assert_array_equal(bf16.view(np.uint16), f32.view(np.uint32) >> 16)
    truncated = (f32.view(np.uint32) & 0xFFFFE000).view(np.float32)
    np.testing.assert_array_equal(f16.astype(np.float32), truncated)


@pytest.mark.parametrize("dtype", inputs.DTYPES)
def test_small_values_equal_the_integers(dtype):
    v = inputs.integers("small", COUNT, 7, 8)
    np.testing.assert_array_equal(inputs.values("small", dtype, COUNT, 7, 8).astype(int), v)
    values, counts = np.unique(v, return_counts=True)
    assert values.tolist() == [-3, -2, -1, 1, 2, 3]
    assert (np.abs(counts - COUNT / 6) < 5 * math.sqrt(COUNT * 5 / 36)).all()


@pytest.mark.parametrize("dtype", inputs.DTYPES)
@pytest.mark.parametrize(("period", "phase", "first"), [(1, 0, 0), (7, 3, 0), (64, 63, 2**33 + 1)])
def test_sparse(dtype, period, phase, first):
    v = inputs.integers("sparse", 100_000, 7, 8, first, period, phase)
    at = (first + np.arange(100_000)) % period == phase
    assert (np.abs(v) == at).all()
    assert abs(v.sum()) < 5 * math.sqrt(at.sum())
    same = inputs.values("sparse", dtype, 100_000, 7, 8, first, period, phase)
    np.testing.assert_array_equal(same.astype(int), v)


def test_a_phase_past_the_period_is_all_zero():
    assert not inputs.integers("sparse", 100, 7, 8, 0, 4, 4).any()


@pytest.mark.parametrize("kind", inputs.KINDS)
@pytest.mark.parametrize("dtype", inputs.DTYPES)
def test_any_part_stands_alone(kind, dtype):
    start = 2**32 - 50_000
    whole = inputs.values(kind, dtype, 100_000, 9, 1, start, 5, 2)
    expected = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
    assert whole.dtype == expected[dtype]
    for first, count in ((0, 1), (1, 32_767), (49_999, 2), (99_999, 1), (7, 0)):
        part = inputs.values(kind, dtype, count, 9, 1, start + first, 5, 2)
        np.testing.assert_array_equal(part, whole[first : first + count])


def test_the_pieces_are_the_elements():
    f = inputs.values("random", "f32", 100, 11, 12, 2**32 - 50).view(np.uint32)
    words = bits(11, 12, 100, 2**32 - 50)
    np.testing.assert_array_equal(f & 0x807FFFFF, words & 0x80000000 | words >> 8 & 0x7FFFFF)


def test_exact_rows_is_the_product():
    w = inputs.integers("small", 5 * 300, 1, 2).reshape(5, 300)
    for kind, period, phase in (("small", 1, 0), ("sparse", 9, 4)):
        x = inputs.integers(kind, 300, 1, 3, 0, period, phase)
        y = inputs.exact_rows(300, range(1, 5, 3), 1, 2, 3, kind, period, phase)
        np.testing.assert_array_equal(y, (w @ x)[1:5:3])


def test_memory_is_the_result_and_little_more():
    tracemalloc.start()
    inputs.values("random", "f16", 1 << 22, 1, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (1 << 22) * 2 + (4 << 20)
