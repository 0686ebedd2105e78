"""How cuBLAS is called, held against a stand-in that does what its documentation says."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.backend import cublas
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError, UserError
from gemvbench.jobs import choose
from gemvbench.messages import LibraryJob
from gemvbench.outcome import Declined, LibraryArm

TYPES = {2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}


def view(address: int, dtype: Any, count: int) -> Any:
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


class StandIn:
    """Column-major GEMM in NumPy: C [m, n] = alpha op(A) op(B) + beta C."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def cublasCreate_v2(self, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 4711
        return 0

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:  # noqa: N802
        self.calls.append(f"stream {stream}")
        return 0

    def cublasSetWorkspace_v2(self, handle: int, address: int, size: int) -> int:  # noqa: N802
        self.calls.append(f"workspace {address} {size}")
        return 0

    def cublasGemmEx(  # noqa: N802
        self, handle: int, trans_a: int, trans_b: int, m: int, n: int, k: int, alpha: Any, a: int,
        a_type: int, lda: int, b: int, b_type: int, ldb: int, beta: Any, c: int, c_type: int,
        ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        assert (handle, c_type, compute, algorithm) == (4711, 0, 68, -1)
        assert (trans_a, trans_b, n) == (1, 0, 1)
        columns = view(a, TYPES[a_type], m * lda).reshape(m, lda)[:, :k]  # k x m, by columns
        vector = view(b, TYPES[b_type], ldb)[:k]
        out = view(c, np.float32, ldc)
        product = columns.astype(np.float32) @ vector.astype(np.float32)
        out[:m] = alpha._obj.value * product + beta._obj.value * out[:m]
        return 0

    def gemv(
        self, dtype: int, handle: int, trans: int, m: int, n: int, alpha: Any, a: int, lda: int,
        stride_a: int, x: int, incx: int, stride_x: int, beta: Any, y: int, incy: int,
        stride_y: int, batch: int,
    ) -> int:  # fmt: skip
        """Column-major A [m, n], transposed: y [n] = alpha A^T x + beta y."""
        assert (handle, trans, incx, incy, batch) == (4711, 1, 1, 1, 1)
        columns = view(a, TYPES[dtype], n * lda).reshape(n, lda)[:, :m]
        out = view(y, np.float32, n)
        product = columns.astype(np.float32) @ view(x, TYPES[dtype], m).astype(np.float32)
        out[:] = alpha._obj.value * product + beta._obj.value * out
        return 0

    def cublasHSSgemvStridedBatched(self, *args: Any) -> int:  # noqa: N802
        return self.gemv(2, *args)

    def cublasTSSgemvStridedBatched(self, *args: Any) -> int:  # noqa: N802
        return self.gemv(14, *args)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(cublas, "load_cublas", lambda: made)
    monkeypatch.setattr(cublas, "declare", lambda library, name, arguments: getattr(library, name))
    return made


def memory(array: Any) -> Any:
    return SimpleNamespace(ptr=array.ctypes.data, array=array)


@pytest.mark.parametrize("kind", [cublas.CublasGemm, cublas.CublasGemv])
@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_the_call_is_a_row_major_product(
    library: StandIn, name: str, dtype: Any, kind: type[cublas.CublasGemm | cublas.CublasGemv]
) -> None:
    k, n, w_offset, x_offset = 24, 7, 16, 8
    draw = np.random.default_rng(1)
    w = np.concatenate([np.full(w_offset, np.nan), draw.integers(-3, 4, k * n)]).astype(dtype)
    x = np.concatenate([np.full(x_offset, np.nan), draw.integers(-3, 4, k)]).astype(dtype)
    y = np.full(n + 1, 99, np.float32)
    stream = SimpleNamespace(ptr=5)
    product = kind(name, stream, memory(np.zeros(1)))
    sizes = (np.uint32(k), np.uint32(n), np.uint64(w_offset), np.uint32(x_offset))
    product((1,), (1,), (memory(w), memory(x), memory(y), *sizes), shared_mem=0, stream=stream)
    rows = w[w_offset:].reshape(n, k).astype(np.float32)
    np.testing.assert_array_equal(y[:n], rows @ x[x_offset:].astype(np.float32))
    assert y[n] == 99
    assert product.ptr == 4711


def test_the_workspace_is_set_after_the_stream(library: StandIn) -> None:
    """The other way round the stream would take it away again."""
    cublas.CublasGemm("f16", SimpleNamespace(ptr=5), SimpleNamespace(ptr=6))
    assert library.calls == ["stream 5", f"workspace 6 {cublas.WORKSPACE_BYTES}"]


def test_a_library_that_fails_says_where(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cublasSetStream_v2", lambda *_: 7)
    with pytest.raises(CompileError, match="cublasSetStream_v2 failed with status 7"):
        cublas.CublasGemm("f16", SimpleNamespace(ptr=5), SimpleNamespace(ptr=6))


def test_no_library_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "load_cublas", lambda: None)
    with pytest.raises(CompileError, match="cuBLAS is not installed"):
        cublas.CublasGemm("f16", SimpleNamespace(ptr=5), SimpleNamespace(ptr=6))


def test_a_library_without_gemv_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old one: the GEMM goes on."""
    old = SimpleNamespace(
        **{name: lambda *_: 0 for name in ("cublasCreate_v2", "cublasSetStream_v2")},
        cublasSetWorkspace_v2=lambda *_: 0,
    )
    monkeypatch.setattr(cublas, "load_cublas", lambda: old)
    cublas.CublasGemm("f16", SimpleNamespace(ptr=5), SimpleNamespace(ptr=6))
    with pytest.raises(CompileError, match="has no cublasHSSgemvStridedBatched"):
        cublas.CublasGemv("f16", SimpleNamespace(ptr=5), SimpleNamespace(ptr=6))


def test_a_broken_library_is_no_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as installed, so that the arm fails with the reason, and nothing else does."""
    import cuda.pathfinder

    from gemvbench.backend import cuda_devices

    def broken(name: str) -> Any:
        raise RuntimeError(f"Failed to dlopen lib{name}")

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", broken)
    cublas.load_cublas.cache_clear()
    try:
        with pytest.raises(CompileError, match="installed and cannot be loaded: Failed to dlopen"):
            cublas.load_cublas()
        assert cuda_devices._has_cublas()
    finally:
        cublas.load_cublas.cache_clear()


# What the ladder makes of it.


def cuda(*capabilities: str) -> DeviceInfo:
    import msgspec

    device = make_device(id="cuda0", kind="gpu", capabilities=capabilities)
    return msgspec.structs.replace(device, backend="cuda")


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_cublas_is_an_arm_where_cuda_and_it_are(kind: str) -> None:
    case = Gemv(k=64, n=32, w=kind, x=kind)
    choice, job = choose(parse_arm("cublas"), "cublas", case, cuda("cublas"))
    assert choice.outcome == LibraryArm(arm="cublas", library="cublas", w=kind)
    assert job == LibraryJob(arm="cublas", device="cuda0", library="cublas", w=kind)


@pytest.mark.parametrize(
    ("case", "device", "reason"),
    [
        (Gemv(k=64, n=32), make_device(), "cublas needs CUDA, and fake0 is fake"),
        (Gemv(k=64, n=32, x="f32"), cuda("cublas"), "no product of f16 weights and f32 x"),
        (Gemv(k=64, n=32, w="bf16"), cuda("cublas"), "no product of bf16 weights and f16 x"),
        (Gemv(k=64, n=32), cuda(), "pip install 'gemvbench[cublas]'"),
    ],
)
def test_it_declines_elsewhere(case: Gemv, device: DeviceInfo, reason: str) -> None:
    choice, job = choose(parse_arm("cublas"), "cublas", case, device)
    assert job is None
    assert isinstance(choice.outcome, Declined)
    assert reason in choice.outcome.reason


def test_it_has_no_axes_and_no_revision() -> None:
    for text in ("cublas+pack2", "cublas@v1"):
        with pytest.raises(UserError):
            parse_arm(text)
