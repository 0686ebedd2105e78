"""cuBLAS by ctypes: a half GEMM with one column and a half gemv, called like CuPy kernels.

CuPy's own wrapper of it sets the stream at every call, which takes the workspace away from the
handle, and refuses a stream that is being captured; timed legs are captured.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from gemvbench.errors import CompileError

# Numbers of cublasOperation_t, cudaDataType_t, cublasComputeType_t and cublasGemmAlgo_t.
_NORMAL, _TRANSPOSED = 0, 1
_TYPES = {"f16": 2, "bf16": 14}
_F32 = 0
_COMPUTE_F32 = 68
_DEFAULT_ALGORITHM = -1

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS takes by itself on Hopper; given to the handle, nothing is allocated in a capture."""

_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (ctypes.POINTER(_POINTER),),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasGemmEx": (
        *(_POINTER, _INT, _INT),  # handle, operations on A and B
        *(_INT, _INT, _INT),  # m, n, k
        *(_POINTER, _POINTER, _INT, _INT),  # alpha; A, its type and leading dimension
        *(_POINTER, _INT, _INT),  # B
        *(_POINTER, _POINTER, _INT, _INT),  # beta; C
        *(_INT, _INT),  # type of the sums, algorithm
    ),
}


_GEMV = (
    *(_POINTER, _INT, _INT, _INT),  # handle, operation on A; rows and columns of A
    *(_POINTER, _POINTER, _INT, ctypes.c_longlong),  # alpha; A, its leading dimension and stride
    *(_POINTER, _INT, ctypes.c_longlong),  # x, its increment and stride
    *(_POINTER, _POINTER, _INT, ctypes.c_longlong),  # beta; y, its increment and stride
    _INT,  # batch
)
_GEMV_NAMES = {"f16": "cublasHSSgemvStridedBatched", "bf16": "cublasTSSgemvStridedBatched"}
"""16-bit A and x, FP32 y and sums; since CUDA 11.6."""


@cache
def load_cublas() -> ctypes.CDLL | None:
    """The library from a pip package or the system; None where there is none.

    Raises:
        CompileError: there is one, and it cannot be loaded or lacks what is needed.
    """
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        library = ctypes.CDLL(str(load_nvidia_dynamic_lib("cublas").abs_path))
    except DynamicLibNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        raise CompileError(f"cuBLAS is installed and cannot be loaded: {error}") from error
    for name, arguments in _SIGNATURES.items():
        declare(library, name, arguments)
    return library


def declare(library: ctypes.CDLL, name: str, arguments: tuple[Any, ...]) -> None:
    """Give a function its types.

    Raises:
        CompileError: the library does not have it.
    """
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise CompileError(f"this cuBLAS has no {name}; a newer one is needed") from error
    function.argtypes, function.restype = arguments, _INT


class _Product:
    """y = W x: row-major W [n, k] is column-major [k, n], transposed; FP32 y and sums.

    Args:
        dtype: "f16" or "bf16", of W and x.
        stream: all calls go there.
        workspace: address of WORKSPACE_BYTES bytes of device memory that outlive this.

    Raises:
        CompileError: no cuBLAS here, or it does not start.
    """

    def __init__(self, dtype: str, stream: Any, workspace: Any) -> None:
        library = load_cublas()
        if library is None:
            raise CompileError("cuBLAS is not installed")
        self._library, self._dtype, self._workspace = library, dtype, workspace
        handle = _POINTER()
        self._check("cublasCreate_v2", ctypes.byref(handle))
        self.ptr = int(handle.value or 0)
        """Tells this product from any kernel where launches are compared by value."""
        self._check("cublasSetStream_v2", self.ptr, stream.ptr)
        # After the stream, which would take it away again.
        self._check("cublasSetWorkspace_v2", self.ptr, workspace.ptr, WORKSPACE_BYTES)
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        shared_mem: int,
        stream: Any,
    ) -> None:
        w, x, y = args[:3]
        k, n, w_offset, x_offset = (int(argument) for argument in args[3:])
        self._multiply(w.ptr + 2 * w_offset, x.ptr + 2 * x_offset, y.ptr, k, n)

    def _multiply(self, w: int, x: int, y: int, k: int, n: int) -> None:
        raise NotImplementedError

    def _check(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CompileError(f"cuBLAS: {name} failed with status {status}")


class CublasGemm(_Product):
    """By a GEMM with one column."""

    def _multiply(self, w: int, x: int, y: int, k: int, n: int) -> None:
        kind = _TYPES[self._dtype]
        self._check(
            "cublasGemmEx",
            *(self.ptr, _TRANSPOSED, _NORMAL),
            *(n, 1, k),
            *(ctypes.byref(self._one), w, kind, k),
            *(x, kind, k),
            *(ctypes.byref(self._zero), y, _F32, n),
            *(_COMPUTE_F32, _DEFAULT_ALGORITHM),
        )


class CublasGemv(_Product):
    """By a batch of one gemv: for 16-bit operands there is no other."""

    def __init__(self, dtype: str, stream: Any, workspace: Any) -> None:
        super().__init__(dtype, stream, workspace)
        self._name = _GEMV_NAMES[dtype]
        declare(self._library, self._name, _GEMV)

    def _multiply(self, w: int, x: int, y: int, k: int, n: int) -> None:
        self._check(
            self._name,
            *(self.ptr, _TRANSPOSED, k, n),
            *(ctypes.byref(self._one), w, k, k * n),
            *(x, 1, k),
            *(ctypes.byref(self._zero), y, 1, n),
            1,
        )
