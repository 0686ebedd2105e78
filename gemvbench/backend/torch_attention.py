"""Torch's scaled_dot_product_attention on memory and on a stream of ours, called like a kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from gemvbench.attention_case import Attention
from gemvbench.backend.torch_products import View, import_torch
from gemvbench.errors import CompileError

_PROBED = 64
"""Tokens of the call that finds out whether a back end takes a shape."""
_ENDS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION"}


class TorchAttention:
    """One of torch's back ends: FP16 operands, sums in FP32, weights and output in FP16.

    Torch allocates the output itself. No copy of it is timed: it lies where the allocator puts it,
    which is one place as long as nothing of a call before is left, and `store` copies it from there
    afterwards. Whatever else a call allocates is there from the first one on, which is made
    before any launch is captured.

    Args:
        name: "sdpa_flash" or "sdpa_cudnn".
        case: decides shapes; context, offsets and strides are arguments of a call.
        ordinal: CUDA's number of the device.
        stream: all calls go there.

    Raises:
        CompileError: torch does not import here, cannot use CUDA, or has no kernel for the shape.
    """

    def __init__(self, name: str, case: Attention, ordinal: int, stream: Any) -> None:
        self._torch = torch = import_torch()
        self._case = case
        self._device = torch.device("cuda", ordinal)
        self._stream = torch.cuda.ExternalStream(stream.ptr, device=self._device)
        self._end = getattr(torch.nn.attention.SDPBackend, _ENDS[name])
        self._operands: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}
        self._result: Any = None
        self._place = 0
        self.ptr = id(self)
        """Tells it from any kernel where launches are compared by value."""
        self._probe(name)

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        shared_mem: int,
        stream: Any,
    ) -> None:
        pool, q = args[0], args[2]
        where = pool.ptr, q.ptr, int(args[6]), *(int(argument) for argument in args[11:17])
        if where not in self._operands:
            self._operands[where] = self._tensors(*where)
        self._attend(self._operands[where], float(args[17]))

    def store(self, out: Any) -> None:
        """Copy the last call's output to the start of a buffer, and wait."""
        size = self._case.heads * self._case.v_size
        target = self._view(out.ptr, (size,), (2,))
        with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
            target.copy_(self._result.reshape(size))
        self._stream.synchronize()

    def _attend(self, operands: tuple[Any, Any, Any], scale: float) -> None:
        torch, case = self._torch, self._case
        self._result = None
        with torch.no_grad(), torch.cuda.stream(self._stream), self._back_end():
            self._result = torch.nn.functional.scaled_dot_product_attention(
                *operands, scale=scale, enable_gqa=case.ratio > 1
            )
        place = self._result.data_ptr()
        if self._place not in (0, place):
            raise RuntimeError("torch put the output of two calls in two places")
        self._place = place

    def _back_end(self) -> AbstractContextManager[None]:
        made: AbstractContextManager[None] = self._torch.nn.attention.sdpa_kernel(self._end)
        return made

    def _probe(self, name: str) -> None:
        torch, case = self._torch, self._case
        shapes = (
            (1, case.heads, 1, case.head_dim),
            (1, case.kv_heads, _PROBED, case.head_dim),
            (1, case.kv_heads, _PROBED, case.v_size),
        )
        q, k, v = (torch.zeros(s, dtype=torch.float16, device=self._device) for s in shapes)
        try:
            self._attend((q, k, v), case.factor)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise CompileError(
                f"torch {torch.__version__} has no {name} for {case.id}: {reason}"
            ) from error
        self._result, self._place = None, 0

    def _tensors(
        self, pool: int, q: int, tokens: int, k_at: int, v_at: int, *strides: int
    ) -> tuple[Any, Any, Any]:
        """[1, heads, 1, D], and caches [1, kv_heads, tokens, D] as they lie."""
        case = self._case
        k_token, k_head, v_token, v_head = strides
        row = 2 * case.head_dim
        query = self._view(q, (1, case.heads, 1, case.head_dim), (case.heads * row, row, row, 2))
        k_shape = (1, case.kv_heads, tokens, case.head_dim)
        v_shape = (1, case.kv_heads, tokens, case.v_size)
        k = self._view(pool + k_at, k_shape, (k_head * case.kv_heads, k_head, k_token, 2))
        v = self._view(pool + v_at, v_shape, (v_head * case.kv_heads, v_head, v_token, 2))
        return query, k, v

    def _view(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        made = self._torch.as_tensor(View(address, shape, strides), device=self._device)
        return made.view(self._torch.float16)
