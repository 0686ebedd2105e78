"""CLBlast's half gemv through PyCLBlast, on buffers and on a queue of ours."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from gemvbench.errors import CompileError


def is_clblast_installed() -> bool:
    """Whether there is a package pyclblast; it is not imported."""
    return find_spec("pyclblast") is not None


class ClblastGemv:
    """y = W x with FP16 operands, sums and y; W is row-major [n, k].

    Raises:
        CompileError: PyCLBlast does not import here.
    """

    def __init__(self) -> None:
        try:
            import pyclblast
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            raise CompileError(f"PyCLBlast is installed and cannot be imported: {error}") from error
        self._gemv = pyclblast.gemv
        self._operands: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}

    def enqueue(self, queue: Any, args: tuple[Any, ...], wait: Any) -> Any:
        """Queue one product; returns its event. `wait` are events that come first, or None."""
        import pyopencl as cl

        buffers = args[:3]
        k, n, w_offset, x_offset = (int(argument) for argument in args[3:])
        if wait:
            cl.enqueue_barrier(queue, wait_for=wait)  # CLBlast itself takes no events to wait for
        w, x, y = self._arrays(queue, buffers, k, n)
        return self._gemv(queue, n, k, w, x, y, a_ld=k, a_offset=w_offset, x_offset=x_offset)

    def _arrays(self, queue: Any, buffers: tuple[Any, ...], k: int, n: int) -> tuple[Any, Any, Any]:
        """The buffers as arrays of FP16; offsets are arguments of the call."""
        key = (*(buffer.int_ptr for buffer in buffers), k, n)
        if key not in self._operands:
            from pyopencl.array import Array

            w, x, y = (
                Array(queue, shape, np.float16, data=buffer)
                for buffer, shape in zip(buffers, ((n, k), (k,), (n,)), strict=True)
            )
            self._operands[key] = w, x, y
        return self._operands[key]
