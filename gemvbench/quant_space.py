"""Device memory of GEMV with quantised weights: blocks as in files, and repacked ones if asked."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gemvbench import quant_inputs
from gemvbench.backend.base import POISON, Backend, Buffer
from gemvbench.case import BLOCKS, Gemv
from gemvbench.filling import copy_turns, repeat
from gemvbench.messages import DeviceJob, KernelJob, Layout
from gemvbench.quant_weights import Bytes, repack
from gemvbench.workspace import Arguments, Workspace


def gemv_space(
    backend: Backend,
    case: Gemv,
    layout: Layout,
    seed: int,
    *,
    padding: int = 0,
    guarded: bool = False,
) -> Workspace:
    """Memory for the operands of a GEMV, whatever its weights are."""
    kind = QuantSpace if case.is_quantised else Workspace
    return kind(backend, case, layout, seed, padding=padding, guarded=guarded)


class QuantSpace(Workspace):
    """The first copy comes from the host, as far as its rows differ; the rest is copied there.

    A pool of repacked weights is made once an arm that reads it is run.
    """

    _repacked: Buffer | None = None
    _repacked_args: Arguments = ()
    _rows: Bytes

    def fill_weights(self, kind: str) -> None:
        self._rows = quant_inputs.make_rows(self.case, kind, self.seed)
        for pool in (self.pool, self._repacked):
            if pool is not None:
                self._fill_pool(pool)

    def write_rows(self, rows: NDArray[Any]) -> None:
        for pool in (self.pool, self._repacked):
            for start, part in self._planes(pool, rows) if pool is not None else ():
                self.backend.write(pool, part, start)

    def set_x(self, x: NDArray[Any]) -> None:
        super().set_x(x)
        if self._repacked is not None:
            self._repacked_args = self._make_args(self._repacked)

    def fill(self) -> None:
        self.fill_weights("random")
        self.set_x(quant_inputs.vector(self.case, self.seed))

    def _args_of(self, job: DeviceJob) -> Arguments:
        if not (isinstance(job, KernelJob) and job.is_repacked):
            return self._turn_args
        if self._repacked is None:
            self._repacked = self.backend.alloc(self._lead + self.layout.pool_bytes)
            self._fill_pool(self._repacked)
            self._repacked_args = self._make_args(self._repacked)
        return self._repacked_args

    def _fill_pool(self, pool: Buffer) -> None:
        if self._guarded:
            self.backend.fill(pool, POISON, self._lead + self.layout.pool_bytes)
        for start, part in self._planes(pool, self._rows):
            self.backend.write(pool, part, start)
            repeat(self.backend, pool, start, part.shape[1], len(part), self.case.stored_rows)
        copy_turns(self.backend, pool, self.layout, self._lead)

    def _planes(self, pool: Buffer | None, rows: Bytes) -> list[tuple[int, Bytes]]:
        """What of the first rows lies where in a pool: rows as they are, or their two parts."""
        start = self._lead + self.case.w_offset
        if pool is self.pool:
            return [(start, rows)]
        quants, scales = repack(rows, BLOCKS[self.case.w].size)
        return [(start, quants), (start + self.case.stored_rows * quants.shape[1], scales)]
