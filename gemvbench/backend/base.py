"""The interface every back end has, and the plain values that cross it.

Events, queues and graphs stay inside a back end. Grids are counted in workgroups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from gemvbench.attention_case import Attention
from gemvbench.device import DeviceInfo
from gemvbench.gpu_state import GpuState

Buffer = Any
"""A back end's own handle of device memory."""

Argument = Any
"""A Buffer, or a NumPy scalar of the kernel's exact type."""

POISON = 0x7FC1_7FC1
"""Fills outputs and unused memory: a NaN as FP32, FP16 and BF16, so that any use shows."""


@dataclass(frozen=True)
class Kernel:
    """A compiled entry. `handle` belongs to the back end that made it."""

    entry: str
    handle: Any
    binary: bytes = b""
    arguments: int | None = None
    """How many it takes, where the back end can tell."""


@dataclass(frozen=True)
class Launch:
    """One kernel call: geometry and arguments."""

    kernel: Kernel
    workgroups: int
    workgroup_size: int
    args: tuple[Argument, ...]
    kind: int = 0
    """Launches of one kind cost alike: where only some are timed one by one, some of each are."""
    local_bytes: int = 0
    """Shared memory beside what the kernel's text declares; CUDA alone."""
    is_dependent: bool = False
    """It may begin before the launch before it has ended, and waits for that itself; CUDA alone."""


@dataclass(frozen=True)
class Timing:
    """One timed sequence, in seconds.

    timeline: first start to last end on the device's clock.
    kernel: sum of the kernels' own times (scaled up where only some were sampled), or None.
    host: from the release of the queue to its end, on the host's clock.
    enqueue: what the host took to queue everything.
    queued_ahead: nothing had started before the last launch was queued.
    """

    timeline: float
    kernel: float | None
    host: float
    enqueue: float
    queued_ahead: bool


class Backend(Protocol):
    """One open device. Everything runs in order; errors are raised where they are noticed."""

    info: DeviceInfo

    def compile(self, text: str, entry: str) -> Kernel:
        """Compile, or raise CompileError with the compiler's log."""

    def load_library(self, name: str, dtype: str) -> Kernel:
        """A vendor library's product y = W x for operands of a type, called like a kernel.

        Raises:
            CompileError: it is not here.
        """

    def load_attention(self, name: str, case: Attention) -> Kernel:
        """A library's attention for shapes of a case, called with the arguments of every stage.

        Its handle has a method `store`, which copies the last output into a buffer.

        Raises:
            CompileError: it is not here, or does not take the shapes.
        """

    def alloc(self, size: int) -> Buffer:
        """Uninitialised device memory of `size` bytes."""

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A new buffer that holds a copy of `array`."""

    def write(self, buffer: Buffer, array: NDArray[Any], offset: int) -> None:
        """Copy `array` into a buffer from byte `offset` on."""

    def download(self, buffer: Buffer, dtype: Any, count: int, offset: int = 0) -> NDArray[Any]:
        """`count` elements from byte `offset` on."""

    def address(self, buffer: Buffer) -> int:
        """Where a buffer lies, for kernels that take addresses from memory; CUDA alone."""

    def fill(self, buffer: Buffer, pattern: int, size: int) -> None:
        """Fill `size` bytes (a multiple of 4) with a 32-bit pattern."""

    def copy(self, buffer: Buffer, source: int, target: int, size: int) -> None:
        """Copy within one buffer; offsets and size in bytes, regions disjoint."""

    def run(self, launches: Sequence[Launch]) -> None:
        """Run and wait, untimed."""

    def time(self, launches: Sequence[Launch]) -> Timing:
        """Queue everything ahead of the device, release it, and time it."""

    def state(self) -> GpuState | None:
        """Clocks, temperature, power and throttle reasons now; None where nobody tells."""
