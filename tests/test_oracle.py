"""The oracle: its references, and that it sees what is lost and says where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import make_device
from numpy.typing import NDArray

from gemvbench import inputs, oracle
from gemvbench.backend.fake import FakeBackend
from gemvbench.backend.script import Script
from gemvbench.case import Gemv
from gemvbench.messages import Layout
from gemvbench.oracle import W_STREAM, X_STREAM, Check, XPattern, check_exact, check_random
from gemvbench.workspace import Workspace

SEED = 3
TYPES = [(w, x) for w in ("f16", "bf16") for x in ("f16", "bf16", "f32")]


def operands(case: Gemv, kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    w = inputs.values(kind, case.w, case.k * case.n, SEED, W_STREAM)
    x = inputs.values(kind, case.x, case.k, SEED, X_STREAM)
    return w.astype(np.float64).reshape(case.n, case.k), x.astype(np.float64)


def exact_checks(case: Gemv, spoil: Any, accumulate: int = 32) -> dict[str, Check]:
    """Checks of a product whose weights, x or result `spoil` changes."""
    w, _ = operands(case, "small")
    patterns = oracle.exact_patterns(case.k, accumulate)
    checks = {}
    for pattern, sums in zip(patterns, oracle.exact_sums(case, patterns, SEED), strict=True):
        x = pattern.values(case, SEED).astype(np.float64)
        y = spoil(w.copy(), x.copy()).astype(np.float32)
        check = check_exact(pattern.name, y, sums)
        if pattern.name not in checks or not check.passed:  # several patterns have one name
            checks[pattern.name] = check
    return checks


def product(w: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    y: NDArray[Any] = w @ x
    return y


@pytest.mark.parametrize(("w", "x"), TYPES)
@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 5), (513, 33), (2880, 64)])
def test_references_are_plain_float64(w: str, x: str, k: int, n: int) -> None:
    case = Gemv(k=k, n=n, w=w, x=x)
    w_values, x_values = operands(case, "random")
    reference = oracle.random_reference(case, SEED)
    np.testing.assert_allclose(reference.y, w_values @ x_values, rtol=1e-12, atol=1e-12)
    assert not reference.sampled
    assert all(check.passed for check in exact_checks(case, product).values())
    small_w, small_x = operands(case, "small")
    (sums,) = oracle.exact_sums(case, (XPattern("exact", "small"),), SEED)
    np.testing.assert_array_equal(sums, small_w @ small_x)


@pytest.mark.parametrize(("w", "x"), TYPES)
@pytest.mark.parametrize("k", [1, 5120, 17408])
def test_a_serial_fp32_sum_passes_the_random_check(w: str, x: str, k: int) -> None:
    case = Gemv(k=k, n=64, w=w, x=x)
    w_values, x_values = operands(case, "random")
    products = w_values.astype(np.float32) * x_values.astype(np.float32)
    serial = np.cumsum(products, axis=1, dtype=np.float32)[:, -1]
    check = check_random(serial, oracle.random_reference(case, SEED), 32)
    assert check.passed, check.detail


def lose_last_row(w: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    y = product(w, x)
    y[-1] = np.nan
    return y


def lose_last_column(w: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    return product(w[:, :-1], x[:-1])


def lose_one_element(w: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    w[11, 4000] = 0
    return product(w, x)


def test_a_lost_last_row_is_named() -> None:
    check = exact_checks(Gemv(k=5120, n=33), lose_last_row)["exact"]
    assert not check.passed
    assert "1 rows wrong; row 32 (last) is nan" in check.detail
    assert "1 rows are NaN (never written" in check.detail


def test_a_lost_last_column_is_named() -> None:
    checks = exact_checks(Gemv(k=17408, n=33), lose_last_column)
    assert not checks["exact"].passed
    assert not checks["last column"].passed
    assert "row 0 (first)" in checks["last column"].detail
    assert checks["first column"].passed


def test_one_lost_element_is_found_by_the_exact_check_alone() -> None:
    """The reason for two checks: the honest random bound is wider than one product."""
    case = Gemv(k=17408, n=33)
    check = exact_checks(case, lose_one_element)["exact"]
    assert not check.passed
    assert "1 rows wrong; row 11 is" in check.detail
    w, x = operands(case, "random")
    smallest = int(np.argmin(np.abs(w[11] * x)))
    w[11, smallest] = 0
    lost = product(w, x).astype(np.float32)
    assert check_random(lost, oracle.random_reference(case, SEED), 32).passed


@pytest.mark.parametrize("place", [0, 16, 32])
def test_nan_never_passes(place: int) -> None:
    case = Gemv(k=64, n=33)
    y = product(*operands(case, "random")).astype(np.float32)
    reference = oracle.random_reference(case, SEED)
    assert check_random(y, reference, 32).passed
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = y.copy()
        spoilt[place] = bad
        assert not check_random(spoilt, reference, 32).passed
        assert not check_exact("exact", spoilt, y.astype(np.int64)).passed
    everywhere = check_exact("exact", np.full(33, np.nan, np.float32), y.astype(np.int64))
    assert "33 rows wrong" in everywhere.detail
    assert "the last row is wrong too" in everywhere.detail


@pytest.mark.parametrize("k", [1, 3, 682, 683, 5120, 17408])
def test_patterns_for_fp16_stay_exact(k: int) -> None:
    """Sums of at most 3 a place stay below 2048, and together they touch every column."""
    patterns = oracle.exact_patterns(k, 16)
    touched = np.zeros(k, int)
    for pattern in patterns:
        x = pattern.integers(k, SEED)
        assert 3 * np.abs(x).sum() < 2048
        if pattern.name == "exact":
            touched += np.abs(x)
    assert (touched == 1).all()
    assert {p.name for p in patterns} == {"exact", "first column", "last column"}


def test_fp32_sums_stay_exact() -> None:
    assert 9 * 17408 < 2**24
    names = [pattern.name for pattern in oracle.exact_patterns(17408, 32)]
    assert names == ["exact", "first column", "last column"]


def test_lost_elements_are_found_with_fp16_sums_too() -> None:
    check = exact_checks(Gemv(k=5120, n=33), lose_one_element, accumulate=16)["exact"]
    assert "1 rows wrong; row 11 is" in check.detail


def test_a_large_reference_is_sampled_and_says_so() -> None:
    case = Gemv(k=8192, n=4200)
    assert case.weight_bytes > oracle.SAMPLED_BYTES
    reference = oracle.random_reference(case, SEED)
    assert reference.sampled
    assert {0, 4199} <= set(reference.rows)
    assert len(reference.rows) == oracle.SAMPLED_ROWS
    y = np.zeros(4200, np.float32)
    y[reference.rows] = reference.y
    assert check_random(y, reference, 32) == Check(
        "random", True, "64 sampled rows, first and last included"
    )
    y[4199] += 1
    assert "row 4199 (last)" in check_random(y, reference, 32).detail


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 10_000])
def test_sampled_rows_hold_the_ends(n: int) -> None:
    rows = oracle.sample_rows(n, 0)
    assert rows[0] == 0
    assert rows[-1] == n - 1
    assert len(set(rows)) == len(rows) == min(n, 64)


def test_sums_made_on_the_device_equal_those_of_the_host() -> None:
    case = Gemv(k=300, n=17)
    space = Workspace(FakeBackend(make_device(), Script()), case, Layout(turns=1, stride=65536), 3)
    for pattern in oracle.exact_patterns(case.k, 32):
        (sums,) = oracle.exact_sums(case, (pattern,), SEED)
        np.testing.assert_array_equal(space.exact_sums_on_device(pattern), sums)
        rows = np.array([0, 5, 16])
        known = oracle.sampled_exact_sums(case, pattern, SEED, rows)
        np.testing.assert_array_equal(sums[rows], known)


def test_digests_see_every_bit() -> None:
    y = np.zeros(100, np.float32)
    other = y.copy()
    other[99] = -0.0
    assert oracle.digest(y) == oracle.digest(y.copy())
    assert oracle.digest(y) != oracle.digest(other)


def test_rows_that_are_not_sampled_are_held_against_the_frozen_kernel() -> None:
    case = Gemv(k=1024, n=200)
    reference = oracle.random_reference(case, 1)
    frozen = reference.y.astype(np.float32)
    assert oracle.check_all_rows(frozen, frozen, reference, 32).passed
    near = frozen + np.float32(reference.bound.max())
    assert oracle.check_all_rows(near, frozen, reference, 32).passed
    for bad in (np.nan, frozen[77] + 10 * np.float32(reference.bound.max())):
        y = frozen.copy()
        y[77] = bad
        check = oracle.check_all_rows(y, frozen, reference, 32)
        assert (check.name, check.passed) == ("random, all rows", False)
        assert "row 77" in check.detail
    half = frozen + np.float32(1000 * reference.bound.max())
    assert oracle.check_all_rows(half, frozen, reference, 16).passed


def test_extra_rows_have_to_be_written_and_right() -> None:
    case = Gemv(k=64, n=20, spare=100)
    (pattern, *_) = oracle.exact_patterns(case.k, 32)
    rows = oracle.sample_rows(100, 0)
    assert len(rows) == 64
    sums = oracle.sampled_exact_sums(case, pattern, SEED, 20 + rows)
    w, x = operands(Gemv(k=64, n=120), "small")
    y = (w @ x)[20:].astype(np.float32)
    assert oracle.check_extra(y, rows, sums).passed
    between = int(np.setdiff1d(np.arange(100), rows)[0])
    for place, bad in ((99, y[99] + 1), (0, np.nan), (between, np.nan)):
        spoilt = y.copy()
        spoilt[place] = bad
        check = oracle.check_extra(spoilt, rows, sums)
        assert (check.name, check.passed) == ("extra rows", False)
        assert f"row {place} " in check.detail


def test_special_rows_run_every_value_through_both_ends() -> None:
    for w in ("f16", "bf16"):
        rows = oracle.special_rows(Gemv(k=37, n=100, w=w)).astype(np.float64)
        assert np.isfinite(rows).all()
        for column in (0, 36):
            values = set(rows[:, column])
            assert {0.0, 1.0, -1.0} <= values
            assert len(values) == len(set(rows.ravel()))
            y = rows[:, column].astype(np.float32)
            assert oracle.check_special(y, rows, column).passed
            y[0] += 1
            assert not oracle.check_special(y, rows, column).passed
    assert len(oracle.special_rows(Gemv(k=5, n=1))) == 1
