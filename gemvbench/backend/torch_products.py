"""Torch's products y = W x on memory and on a stream of ours, called like a CuPy kernel.

Torch is imported by the worker that runs such an arm, and by nobody else. What it needs besides,
it allocates at its first call, before any launch is captured.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from gemvbench.errors import CompileError


def is_torch_installed() -> bool:
    """Whether there is a package torch; it is not imported, which takes seconds."""
    return find_spec("torch") is not None


class TorchProduct:
    """`torch.nn.functional.linear` or `torch.mv`: y of the type of W and x, sums in FP32.

    Sums of partial results in 16 bits, which torch allows by default, are switched off: they are
    no sums in FP32, and verification would find them.

    Args:
        name: "torch_linear" or "torch_mv".
        dtype: "f16" or "bf16", of W, x and y.
        ordinal: CUDA's number of the device.
        stream: all calls go there.

    Raises:
        CompileError: torch does not import here, or cannot use CUDA.
    """

    def __init__(self, name: str, dtype: str, ordinal: int, stream: Any) -> None:
        self._torch = torch = import_torch()
        self._dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        self._device = torch.device("cuda", ordinal)
        self._stream = torch.cuda.ExternalStream(stream.ptr, device=self._device)
        self._multiply = {"torch_linear": self._linear, "torch_mv": self._mv}[name]
        self._operands: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False
        self.ptr = id(self)
        """Tells this product from any kernel where launches are compared by value."""

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
        where = w.ptr + 2 * w_offset, x.ptr + 2 * x_offset, y.ptr, k, n
        if where not in self._operands:
            self._operands[where] = self._tensors(*where)
        with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
            self._multiply(*self._operands[where])

    def _linear(self, w: Any, x: Any, y: Any) -> None:
        """As a model calls it: a row of x for each token, here one."""
        self._torch.nn.functional.linear(x[None], w, out=y[None])

    def _mv(self, w: Any, x: Any, y: Any) -> None:
        self._torch.mv(w, x, out=y)

    def _tensors(self, w: int, x: int, y: int, k: int, n: int) -> tuple[Any, Any, Any]:
        views = (View(w, (n, k)), View(x, (k,)), View(y, (n,)))
        made = [self._torch.as_tensor(view, device=self._device) for view in views]
        tensor_w, tensor_x, tensor_y = (tensor.view(self._dtype) for tensor in made)
        return tensor_w, tensor_x, tensor_y


class View:
    """Device memory as 16-bit integers, by CUDA's array interface: it has no BF16.

    Not by DLPack, which would have streams wait for each other, also inside a capture.
    """

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
    ) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": "<i2",
            "data": (address, False),
            "version": 2,
        }


def import_torch() -> Any:
    """Torch where it can use CUDA.

    Raises:
        CompileError: it cannot, or does not import.
    """
    try:
        import torch
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise CompileError(f"torch is installed and cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise CompileError(f"torch {torch.__version__} cannot use CUDA here")
    return torch
