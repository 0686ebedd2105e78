"""What runs an arm a number of times and tells how long it took. Used inside workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs, oracle
from gemvbench.backend.base import Backend, Buffer, Kernel, Launch, Timing
from gemvbench.case import Gemv
from gemvbench.gpu_state import GpuState
from gemvbench.messages import DeviceJob, HostJob, KernelJob, Layout, Leg, LibraryJob


class Runner(Protocol):
    """Something that runs an arm a number of times and tells how long it took."""

    bytes_per_call: int

    def run(self, calls: int) -> None: ...

    def time(self, calls: int) -> Leg: ...

    def output_digest(self) -> str | None:
        """Digest of the last output, where an arm's output is reproducible."""

    def state(self) -> GpuState | None:
        """What the arm's device says of itself now."""


def build_kernel(backend: Backend, job: DeviceJob) -> Kernel:
    """What computes a layer on the device.

    Raises:
        CompileError: with the compiler's log, or what is missing of a library.
    """
    if isinstance(job, LibraryJob):
        return backend.load_library(job.library, job.w)
    return backend.compile(job.text, job.entry)


class RoofRunner:
    """A bare read of all pools of weights, or of the first part of each, in one launch each."""

    def __init__(
        self, backend: Backend, pools: Sequence[tuple[Buffer, int]], kernel: Kernel, job: KernelJob
    ) -> None:
        self._backend = backend
        sizes = [min(size, job.read_bytes or size) // 4 * 4 for _, size in pools]
        sink = backend.alloc(4 * job.workgroups * job.workgroup_size)
        self._launches = [
            Launch(
                kernel,
                job.workgroups,
                job.workgroup_size,
                (pool, sink, np.uint64(size // 4), np.uint64(0)),
            )
            for (pool, _), size in zip(pools, sizes, strict=True)
        ]
        self.bytes_per_call = sum(sizes)

    def run(self, calls: int) -> None:
        self._backend.run(self._launches * calls)

    def time(self, calls: int) -> Leg:
        return make_leg(calls, self._backend.time(self._launches * calls))

    def output_digest(self) -> str | None:
        return None

    def state(self) -> GpuState | None:
        return self._backend.state()


class HostRunner:
    """NumPy's product in FP32 on the host: what a user without a kernel has."""

    def __init__(self, case: Gemv, layout: Layout, seed: int) -> None:
        self._case, self._seed = case, seed
        self._turns = max(1, -(-layout.turns // 2))  # FP32 is twice the bytes
        self.y = np.empty(case.n, np.float32)
        self.bytes_per_call = 4 * (case.k * case.n + case.k + case.n)
        self._kind = ""
        x = inputs.values("random", case.x, case.k, seed, oracle.X_STREAM)
        self.set_operands("random", x)

    def set_operands(self, kind: str, x: NDArray[Any]) -> None:
        """Another x; other weights only where the kind is another one: they take long."""
        case = self._case
        if kind != self._kind:
            flat = inputs.values(kind, case.w, case.k * case.n, self._seed, oracle.W_STREAM)
            w = flat.astype(np.float32).reshape(case.n, case.k)
            self._w = [w, *(w.copy() for _ in range(self._turns - 1))]
            self._kind = kind
        self._x = x.astype(np.float32)
        self._next_turn = 0

    def run(self, calls: int) -> None:
        for _ in range(calls):
            np.matmul(self._w[self._next_turn], self._x, out=self.y)
            self._next_turn = (self._next_turn + 1) % len(self._w)

    def time(self, calls: int) -> Leg:
        self.y.fill(np.nan)
        started = time.perf_counter()
        self.run(calls)
        spent = time.perf_counter() - started
        return make_leg(calls, Timing(spent, None, spent, 0.0, True))

    def output_digest(self) -> str | None:
        return None

    def state(self) -> GpuState | None:
        return None


def make_host_runner(job: HostJob, case: Gemv, layout: Layout, seed: int) -> HostRunner:
    if job.family != "numpy":
        raise ValueError(f"no host arm {job.family}")
    return HostRunner(case, layout, seed)


def make_leg(calls: int, timing: Timing) -> Leg:
    return Leg(
        calls=calls,
        timeline=timing.timeline,
        kernel=timing.kernel,
        host=timing.host,
        enqueue=timing.enqueue,
        queued_ahead=timing.queued_ahead,
    )
