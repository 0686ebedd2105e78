"""Device memory of one attention case, and the runner of its stages. Used inside workers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import attention_inputs, inputs, oracle
from gemvbench.attention_case import QUANTISED, Attention
from gemvbench.backend.base import POISON, Backend, Buffer, Kernel, Launch
from gemvbench.errors import CompileError
from gemvbench.filling import copy_turns, fill_values
from gemvbench.gpu_state import GpuState
from gemvbench.messages import AttentionJob, Job, Layout, Leg
from gemvbench.runners import Runner, make_leg
from gemvbench.stages import Call

ARGUMENTS = 18
"""Of every attention entry: see `AttentionSpace.arguments`."""
_GUARD_BYTES = 1 << 12
_LEAD = 1 << 16
"""Bytes of NaN before caches that are verified: whoever ignores an offset reads them."""


class AttentionSpace:
    """Caches in `layout.turns` rotated copies (K before V), Q, scores and output of one case.

    With `guarded`, all memory around the operands holds NaN.
    """

    def __init__(
        self,
        backend: Backend,
        case: Attention,
        layout: Layout,
        seed: int,
        *,
        padding: int = 0,
        guarded: bool = False,
    ) -> None:
        self.backend, self.case, self.layout, self.seed = backend, case, layout, seed
        self.scale = case.factor
        self._lead = _LEAD if guarded else 0
        self._padding = backend.alloc(padding) if padding else None
        self.pool: Buffer = backend.alloc(self._lead + layout.pool_bytes)
        self._score_bytes = 4 * case.heads * case.score_stride
        self._out_bytes = 4 * case.heads * case.v_size + _GUARD_BYTES
        self._scores = backend.alloc(self._score_bytes)
        self._out = backend.alloc(self._out_bytes)
        self._q = backend.alloc(4 * case.heads * case.head_dim)
        self._next_turn = 0

    def fill(self) -> None:
        """Operands as they are timed: 16-bit caches are made on the device."""
        case = self.case
        for side, there, start in (("k", case.has_k, 0), ("v", case.has_v, case.k_bytes)):
            if not there:
                continue
            kind, dim = case.side(side)
            if kind in QUANTISED:
                rows = attention_inputs.memory_rows(case, side, self.seed)
                self.backend.write(self.pool, rows, start)
                continue
            fill_values(
                self.backend,
                self.pool,
                kind,
                case.tokens_stored * case.kv_heads * dim,
                offset=start,
                seed=self.seed,
                stream=attention_inputs.STREAMS[side],
            )
        copy_turns(self.backend, self.pool, self.layout)
        self.set_query(attention_inputs.query(case, self.seed))
        if case.op == "av":
            self.set_weights(attention_inputs.weights(case, self.seed))

    def set_caches(self, k: NDArray[np.uint8] | None, v: NDArray[np.uint8] | None) -> None:
        """Rows [context, kv_heads, bytes] into the first copy, and NaN everywhere else."""
        case = self.case
        self.backend.fill(self.pool, POISON, self._lead + self.layout.pool_bytes)
        for rows, start in ((k, 0), (v, case.k_bytes)):
            if rows is None:
                continue
            start += self._lead
            if case.layout == "tkd":
                self.backend.write(self.pool, rows, start)
                continue
            for head in range(case.kv_heads):
                place = start + head * case.tokens_stored * rows.shape[-1]
                self.backend.write(self.pool, rows[:, head], place)

    def set_query(self, q: NDArray[np.float32]) -> None:
        self.backend.write(self._q, attention_inputs.stored_query(self.case, q), 0)

    def set_weights(self, p: NDArray[np.float32]) -> None:
        """Given p of av; NaN in what pads a head's scores."""
        whole = np.full((self.case.heads, self.case.score_stride), np.nan, np.float32)
        whole[:, : self.case.context] = p
        self.backend.write(self._scores, whole, 0)

    def poison_output(self) -> None:
        """NaN in the output, and in scores that a stage is to write."""
        self.backend.fill(self._out, POISON, self._out_bytes)
        if self.case.op != "av":
            self.backend.fill(self._scores, POISON, self._score_bytes)

    def output(self, dtype: str = "f32") -> NDArray[np.float32]:
        """[heads, outputs]: scores of kq, rows of the others, which are stored as `dtype`."""
        case = self.case
        if case.op != "kq":
            count = case.heads * case.v_size
            flat = self.backend.download(self._out, inputs.DTYPES[dtype], count)
            return flat.astype(np.float32).reshape(case.heads, case.v_size)
        return np.ascontiguousarray(self._all_scores()[:, : case.context])

    def is_guard_intact(self, dtype: str = "f32") -> bool:
        """Whether nothing was written behind the output, nor between the scores of two heads."""
        case, size = self.case, inputs.DTYPES[dtype].itemsize
        start = _whole_words(size * case.heads * case.v_size) if case.op != "kq" else 0
        out = self.backend.download(self._out, np.uint32, (self._out_bytes - start) // 4, start)
        between = self._all_scores()[:, case.context :]
        return bool((out == POISON).all() and np.isnan(between).all())

    def take_output(self, kernel: Kernel) -> None:
        """The last output of a library that keeps it elsewhere."""
        kernel.handle.store(self._out)

    def make_runner(self, job: Job) -> Runner:
        """Build an arm.

        Raises:
            CompileError: with the compiler's log.
        """
        assert isinstance(job, AttentionJob)
        return AttentionRunner(self, job)

    def pools(self) -> list[tuple[Buffer, int]]:
        """Buffers that hold what the arms read, with their sizes in bytes: for a bare read."""
        return [(self.pool, self.layout.pool_bytes)]

    def take_turns(self, calls: int) -> list[int]:
        """The copies that the next calls read, going on where the last ones ended."""
        start, size = self._next_turn, self.layout.turns
        self._next_turn = (start + calls) % size
        return [turn % size for turn in range(start, start + calls)]

    def arguments(self, turn: int, partial: Buffer, call: Call) -> tuple[Any, ...]:
        """What every stage gets (docs/kernels.md). Offsets and strides are in bytes."""
        case, ranges = self.case, call.ranges
        start = self._lead + turn * self.layout.stride
        k = case.strides(case.k_type, case.head_dim, case.tokens_stored)
        v = case.strides(case.v_type, case.v_size, case.tokens_stored)
        counts = (call.context, ranges.k_chunk, ranges.v_chunk, ranges.splits, case.score_stride)
        return (
            self.pool,
            self.pool,
            self._q,
            self._scores,
            partial,
            self._out,
            *map(np.uint32, counts),
            *map(np.uint64, (start, start + case.k_bytes, *k, *v)),
            np.float32(self.scale),
        )

    def partial_results(self, splits: int) -> Buffer:
        """Room for counts of workgroups that are done, which are 0, and for the sums of all ranges
        with maximum and sum of each; nothing for one range."""
        if splits == 1:
            return self._out
        counters = 4 * self.case.counters
        sums = 4 * splits * self.case.heads * (self.case.v_size + 2)
        made = self.backend.alloc(counters + sums)
        self.backend.fill(made, 0, counters)
        return made

    def _all_scores(self) -> NDArray[np.float32]:
        flat = self.backend.download(self._scores, np.float32, self._score_bytes // 4)
        return flat.reshape(self.case.heads, self.case.score_stride)


class AttentionCalls:
    """An arm's kernels, with room for the partial results of its calls on one space.

    Raises:
        CompileError: with the compiler's log.
    """

    def __init__(self, space: AttentionSpace, job: AttentionJob) -> None:
        self._space = space
        stages = [*job.stages, *(stage for call in job.calls for stage in call.stages)]
        self._kernels = {
            entry: _compile(space, job, entry)
            for entry in dict.fromkeys(stage.entry for stage in stages)
        }
        self.library = self._kernels.get(job.library)
        ranges = [job.ranges, *(call.ranges for call in job.calls)]
        self._partial = space.partial_results(max(each.splits for each in ranges))

    def launches(self, turn: int, call: Call, kinds: Iterable[int] | None = None) -> list[Launch]:
        """One call on one copy of the caches; its stages are of the kinds given, or count."""
        args = self._space.arguments(turn, self._partial, call)
        return [
            Launch(
                self._kernels[stage.entry],
                stage.workgroups,
                stage.workgroup_size,
                args,
                kind,
                local_bytes=stage.local_bytes,
                is_dependent=stage.is_dependent,
            )
            for stage, kind in zip(call.stages, kinds or count(), strict=False)
        ]


class AttentionRunner:
    """An arm of several stages: a call is all of them, in order."""

    def __init__(self, space: AttentionSpace, job: AttentionJob) -> None:
        self._space = space
        self._calls, self._dtype = AttentionCalls(space, job), job.precision.y
        self._call = Call(context=space.case.context, stages=job.stages, ranges=job.ranges)
        self._by_turn: dict[tuple[int, float], list[Launch]] = {}
        self.bytes_per_call = space.case.bytes_moved

    def run(self, calls: int) -> None:
        self._space.backend.run(self._launches(calls))
        self._take_output()

    def time(self, calls: int) -> Leg:
        self._space.poison_output()
        timing = self._space.backend.time(self._launches(calls))
        self._take_output()
        return make_leg(calls, timing)

    def output_digest(self) -> str | None:
        return oracle.digest(self._space.output(self._dtype))

    def state(self) -> GpuState | None:
        return self._space.backend.state()

    def _take_output(self) -> None:
        if self._calls.library:
            self._space.take_output(self._calls.library)

    def _launches(self, calls: int) -> list[Launch]:
        return [x for turn in self._space.take_turns(calls) for x in self._of_turn(turn)]

    def _of_turn(self, turn: int) -> list[Launch]:
        """The launches of one call, always the same objects for one copy."""
        key = turn, self._space.scale
        if key not in self._by_turn:
            self._by_turn[key] = self._calls.launches(turn, self._call)
        return self._by_turn[key]


def _whole_words(size: int) -> int:
    return -(-size // 4) * 4


def _compile(space: AttentionSpace, job: AttentionJob, entry: str) -> Kernel:
    if job.library:
        return space.backend.load_attention(job.library, space.case)
    kernel = space.backend.compile(job.text, entry)
    if kernel.arguments not in (None, ARGUMENTS):
        raise CompileError(
            f"{entry} takes {kernel.arguments} arguments, and the calling convention of attention "
            f"has {ARGUMENTS} (docs/kernels.md)"
        )
    return kernel
