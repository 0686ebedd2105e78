"""How PyCLBlast is called, held against a stand-in on PoCL that does what its source says."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gemvbench.backend.base import Launch
from gemvbench.errors import CompileError

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def backend() -> Any:
    from gemvbench.backend.opencl import OpenCLBackend
    from gemvbench.backend.opencl_devices import describe, find_devices

    found = next(each for each in find_devices() if each.id == "pocl")
    return OpenCLBackend(describe(found), found.device)


@pytest.fixture
def pyclblast(monkeypatch: pytest.MonkeyPatch) -> Any:
    import pyopencl as cl

    made: Any = ModuleType("pyclblast")

    def gemv(
        queue: Any, m: int, n: int, a: Any, x: Any, y: Any, a_ld: int, x_inc: int = 1,
        y_inc: int = 1, alpha: float = 1.0, beta: float = 0.0, a_transp: bool = False,
        a_offset: int = 0, x_offset: int = 0, y_offset: int = 0,
    ) -> Any:  # fmt: skip
        """Row-major A [m, n]; offsets in elements. Queued behind what is queued already."""
        assert {array.dtype for array in (a, x, y)} == {np.dtype(np.float16)}
        assert (a.ndim, x.ndim, y.ndim) == (2, 1, 1)
        if made.reads:
            rows, vector = np.empty((m, a_ld), np.float16), np.empty(n, np.float16)
            cl.enqueue_copy(queue, rows, a.base_data, src_offset=2 * a_offset)
            cl.enqueue_copy(queue, vector, x.base_data, src_offset=2 * x_offset)
            product = (rows[:, :n] @ vector).astype(np.float16)
            cl.enqueue_copy(queue, y.base_data, product)
        return cl.enqueue_marker(queue)

    made.gemv, made.reads = gemv, True
    monkeypatch.setitem(sys.modules, "pyclblast", made)
    return made


def test_the_call_is_a_row_major_product(backend: Any, pyclblast: Any) -> None:
    k, n, w_offset, x_offset = 24, 7, 16, 8
    draw = np.random.default_rng(1)
    w = np.concatenate([np.full(w_offset, np.nan), draw.integers(-3, 4, k * n)]).astype(np.float16)
    x = np.concatenate([np.full(x_offset, np.nan), draw.integers(-3, 4, k)]).astype(np.float16)
    y = backend.upload(np.full(2 * n, 99, np.float16))
    sizes = (np.uint32(k), np.uint32(n), np.uint64(w_offset), np.uint32(x_offset))
    kernel = backend.load_library("clblast", "f16")
    launch = Launch(kernel, 1, 1, (backend.upload(w), backend.upload(x), y, *sizes))
    backend.run([launch])
    rows = w[w_offset:].reshape(n, k).astype(np.float32)
    found = backend.download(y, np.float16, 2 * n)
    np.testing.assert_array_equal(found[:n], rows @ x[x_offset:].astype(np.float32))
    assert (found[n:] == 99).all()
    # Timed calls wait for the gate, although CLBlast takes nothing to wait for.
    pyclblast.reads = False
    timing = backend.time([launch] * 3)
    assert timing.queued_ahead
    assert 0 <= timing.timeline <= timing.host


def test_another_library_is_refused(backend: Any) -> None:
    with pytest.raises(CompileError, match="OpenCL has no cublas"):
        backend.load_library("cublas", "f16")


def test_one_that_does_not_import_says_so(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyclblast", None)
    with pytest.raises(CompileError, match="PyCLBlast is installed and cannot be imported"):
        backend.load_library("clblast", "f16")
