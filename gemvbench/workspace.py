"""Device memory of one GEMV case, and the runner of its kernels. Used inside workers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs, oracle
from gemvbench.backend.base import POISON, Backend, Buffer, Kernel, Launch
from gemvbench.case import ITEM_BYTES, Gemv
from gemvbench.filling import copy_turns, fill_values, inputs_text
from gemvbench.gpu_state import GpuState
from gemvbench.messages import AttentionJob, DeviceJob, HostJob, Job, Layout, Leg, TokenJob
from gemvbench.runners import Runner, build_kernel, make_host_runner, make_leg

ARGUMENTS = 7
"""Of every GEMV entry: see `Workspace._args`."""

Arguments = tuple[tuple[Any, ...], ...]
"""Of an entry, for each turn."""

_GUARD_BYTES = 1 << 14
W_LEAD = 1 << 16
"""Bytes of NaN before the weights that are verified: whoever ignores w_offset reads them."""


class Workspace:
    """Weights in `layout.turns` rotated copies, x and y of one case.

    With `guarded`, all memory around the operands holds NaN, so that a read outside them
    shows in the output.
    """

    def __init__(
        self,
        backend: Backend,
        case: Gemv,
        layout: Layout,
        seed: int,
        *,
        padding: int = 0,
        guarded: bool = False,
    ) -> None:
        self.backend, self.case, self.layout, self.seed = backend, case, layout, seed
        self._guarded = guarded
        self._lead = W_LEAD if guarded else 0
        self._padding = backend.alloc(padding) if padding else None
        self.pool: Buffer = backend.alloc(self._lead + layout.pool_bytes)
        self._y_bytes = 4 * case.stored_rows + _GUARD_BYTES
        self._y = backend.alloc(self._y_bytes)
        self._w_item = ITEM_BYTES.get(case.w, 1)
        self._turn_args: Arguments = ()
        self._next_turn = 0

    def fill_weights(self, kind: str) -> None:
        """Make the first copy on the device, spare rows included, and the others from it."""
        case = self.case
        if self._guarded:
            self.backend.fill(self.pool, POISON, self._lead + self.layout.pool_bytes)
        fill_values(
            self.backend,
            self.pool,
            case.w,
            case.k * case.stored_rows,
            kind=kind,
            offset=self._lead + case.w_offset,
            seed=self.seed,
            stream=oracle.W_STREAM,
        )
        copy_turns(self.backend, self.pool, self.layout, self._lead)

    def write_rows(self, rows: NDArray[Any]) -> None:
        """Put other values in place of the first rows of the first copy."""
        self.backend.write(self.pool, rows, self._lead + self.case.w_offset)

    def set_x(self, x: NDArray[Any]) -> None:
        """Upload x at its offset, with NaN before and after it."""
        start = _GUARD_BYTES + self.case.x_offset
        end = start + x.nbytes
        raw = np.full(-(-end // 4) + _GUARD_BYTES // 4, POISON, np.uint32)
        raw.view(np.uint8)[start:end] = x.view(np.uint8)
        self._x = self.backend.upload(raw)
        self._turn_args = self._make_args(self.pool)

    def poison_output(self) -> None:
        self.backend.fill(self._y, POISON, self._y_bytes)

    def output(self, extra: int = 0, dtype: str = "f32") -> NDArray[np.float32]:
        """y as FP32, with the first `extra` scratch rows behind it; in memory it is a `dtype`."""
        stored = self.backend.download(self._y, inputs.DTYPES[dtype], self.case.n + extra)
        return stored.astype(np.float32, copy=False)

    def output_guard_intact(self, extra: int = 0, dtype: str = "f32") -> bool:
        """Whether nothing was written behind the last row, or the last of `extra` more."""
        start = ITEM_BYTES[dtype] * (self.case.n + extra)
        guard = self.backend.download(self._y, np.uint16, (self._y_bytes - start) // 2, start)
        return bool((guard == POISON & 0xFFFF).all())

    def launches(self, kernel: Kernel, job: DeviceJob, calls: int) -> list[Launch]:
        """`calls` launches on rotating weights, going on where the last ones ended."""
        start, size = self._next_turn, self.layout.turns
        self._next_turn = (start + calls) % size
        turns = [
            self.launch(kernel, job, turn % size) for turn in range(start, start + min(calls, size))
        ]
        return [turns[index % size] for index in range(calls)]

    def launch(self, kernel: Kernel, job: DeviceJob, turn: int, kind: int = 0) -> Launch:
        """One launch on the weights of a turn."""
        args = self._args_of(job)[turn]
        size = job.workgroup_size
        return Launch(kernel, job.workgroups, size, args, kind, job.local_bytes, job.is_dependent)

    def addresses(self, turn: int) -> tuple[int, int, int]:
        """Where w, x and y of a turn lie on the device."""
        pool, x, y, _, _, w_offset, x_offset = self._turn_args[turn]
        at = self.backend.address
        w_start = at(pool) + int(w_offset) * self._w_item
        return w_start, at(x) + int(x_offset) * ITEM_BYTES[self.case.x], at(y)

    def fill(self) -> None:
        """Operands as they are timed: random weights and x."""
        case = self.case
        self.fill_weights("random")
        self.set_x(inputs.values("random", case.x, case.k, self.seed, oracle.X_STREAM))

    def make_runner(self, job: Job) -> Runner:
        """Build an arm.

        Raises:
            CompileError: with the compiler's log.
        """
        if isinstance(job, HostJob):
            return make_host_runner(job, self.case, self.layout, self.seed)
        assert not isinstance(job, TokenJob | AttentionJob)
        return KernelRunner(self, build_kernel(self.backend, job), job)

    def pools(self) -> list[tuple[Buffer, int]]:
        """Buffers that hold what the arms read, with their sizes in bytes: for a bare read."""
        return [(self.pool, self.layout.pool_bytes)]

    def exact_sums_on_device(self, pattern: oracle.XPattern) -> NDArray[np.int64]:
        """Sums made by the device from the generator alone; W in memory is not read."""
        case = self.case
        kernel = self.backend.compile(inputs_text(self.backend, "f32"), "exact_rows")
        sums = self.backend.alloc(4 * case.n)
        args = (
            sums,
            np.uint32(case.k),
            np.uint32(case.n),
            np.uint32(self.seed),
            np.uint32(oracle.W_STREAM),
            np.uint32(oracle.X_STREAM),
            np.uint32(inputs.KINDS.index(pattern.kind)),
            np.uint32(pattern.period),
            np.uint32(pattern.phase),
        )
        self.backend.run([Launch(kernel, math.ceil(case.n / 64), 64, args)])
        return self.backend.download(sums, np.int32, case.n).astype(np.int64)

    def _args_of(self, job: DeviceJob) -> Arguments:
        """Arguments of each turn, on the weights as an arm reads them."""
        return self._turn_args

    def _make_args(self, pool: Buffer) -> Arguments:
        return tuple(self._args(pool, turn) for turn in range(self.layout.turns))

    def _args(self, pool: Buffer, turn: int) -> tuple[Any, ...]:
        case = self.case
        w_offset = self._lead + turn * self.layout.stride + case.w_offset
        return (
            pool,
            self._x,
            self._y,
            np.uint32(case.k),
            np.uint32(case.n),
            np.uint64(w_offset // self._w_item),
            np.uint32((_GUARD_BYTES + case.x_offset) // ITEM_BYTES[case.x]),
        )


class KernelRunner:
    """An arm that is a kernel."""

    def __init__(self, space: Workspace, kernel: Kernel, job: DeviceJob) -> None:
        self._space, self._kernel, self._job = space, kernel, job
        self.bytes_per_call = space.case.bytes_moved

    def run(self, calls: int) -> None:
        self._space.backend.run(self._space.launches(self._kernel, self._job, calls))

    def time(self, calls: int) -> Leg:
        self._space.poison_output()
        launches = self._space.launches(self._kernel, self._job, calls)
        return make_leg(calls, self._space.backend.time(launches))

    def output_digest(self) -> str | None:
        return oracle.digest(self._space.output(self._job.extra, self._job.y))

    def state(self) -> GpuState | None:
        return self._space.backend.state()
