"""Device memory of a whole token, and the runner whose one call is one token. Used in workers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gemvbench import oracle
from gemvbench.attention_case import Attention
from gemvbench.attention_space import AttentionCalls, AttentionSpace
from gemvbench.backend.base import Backend, Buffer, Kernel, Launch
from gemvbench.case import Gemv
from gemvbench.errors import CompileError
from gemvbench.gpu_state import GpuState
from gemvbench.layer_table import layer_table
from gemvbench.messages import (
    DeviceJob,
    Job,
    KernelJob,
    Layout,
    Leg,
    LibraryJob,
    TokenJob,
    TokenLayout,
)
from gemvbench.models import ATTENTION
from gemvbench.quant_space import gemv_space
from gemvbench.runners import Runner, build_kernel, make_leg
from gemvbench.token_case import Token
from gemvbench.workspace import Workspace

_Space = Workspace | AttentionSpace


class TokenSpace:
    """Distinct weights and caches for every layer, an input and an output for each class."""

    def __init__(
        self, backend: Backend, case: Token, layout: TokenLayout, seed: int, padding: int
    ) -> None:
        self.backend, self.case, self.seed = backend, case, seed
        self._copies = layout.copies
        self._padding = backend.alloc(padding) if padding else None
        self.shelves = [
            [_make_space(backend, layer, chunk, seed) for chunk in shelf]
            for layer, shelf in zip(case.layers, layout.shelves, strict=True)
        ]
        self._matrices = [own.matrices for own in case.classes]
        self._ring = math.lcm(layout.copies, case.choices)
        if case.growth:
            self._ring = len(case.contexts)
        self._next_token = 0

    def fill(self) -> None:
        """The operands that are verified too: every matrix of a class holds the same values."""
        for space in self._spaces():
            space.fill()

    def make_runner(self, job: Job) -> Runner:
        """Build an arm for all classes.

        Raises:
            CompileError: with the class and the compiler's log.
        """
        assert isinstance(job, TokenJob)
        if job.whole is not None:
            return WholeTokenRunner(self, build_kernel(self.backend, job.whole), job.whole)
        kernels: dict[tuple[str, str], Kernel] = {}
        for operation, layer in zip(self.case.operations, job.layers, strict=True):
            try:
                if _source(layer) not in kernels:
                    kernels[_source(layer)] = build_kernel(self.backend, layer)
            except CompileError as error:
                raise CompileError(f"{operation.name}: {error}") from error
        return TokenRunner(self, [kernels[_source(layer)] for layer in job.layers], job)

    def pools(self) -> list[tuple[Buffer, int]]:
        return [(space.pool, space.layout.pool_bytes) for space in self._spaces()]

    def poison_outputs(self) -> None:
        for space in self._spaces():
            space.poison_output()

    def next_tokens(self, count: int) -> list[int]:
        """Places in the ring of the next tokens, going on where the last ones ended.

        Where caches grow, the ring is a run, and every run begins at its first token.
        """
        start = 0 if self.case.growth else self._next_token
        self._next_token = (start + count) % self._ring
        return [(start + step) % self._ring for step in range(count)]

    def is_full(self, token: int) -> bool:
        """Whether a token of the ring is the last of a run over which caches grow."""
        return self.case.growth is not None and token == self._ring - 1

    def places(self, token: int) -> list[tuple[int, int, int]]:
        """(class, buffer of the class, turn in it) for each layer of a token of the ring."""
        found = []
        for place, matrix in self.case.matrices(self.seed, token):
            matrix += token % self._copies * self._matrices[place]
            chunk, turn = divmod(matrix, self.shelves[place][0].layout.turns)
            found.append((place, chunk, turn))
        return found

    def _spaces(self) -> Iterator[_Space]:
        for shelf in self.shelves:
            yield from shelf


class _Runner(ABC):
    """One call is one token: all layers in order, each waiting for the one before."""

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._tokens: dict[int, list[Launch]] = {}
        self._touched: set[tuple[int, int]] = set()
        self._full: str | None = None
        self.bytes_per_call = space.case.bytes_moved

    def run(self, calls: int) -> None:
        self._space.backend.run(self._launches(self._space.next_tokens(calls)))

    def time(self, calls: int) -> Leg:
        self._space.poison_outputs()
        tokens = self._space.next_tokens(calls)
        leg = make_leg(calls, self._space.backend.time(self._launches(tokens)))
        if self._space.is_full(tokens[-1]):
            self._full = self._digest_outputs()
        return leg

    def output_digest(self) -> str | None:
        """Of the last outputs; where caches grow, of the last run that ended with full ones.

        Attention was verified to full caches: the long runs end so, others at contexts of their
        own.
        """
        return self._full if self._space.case.growth else self._digest_outputs()

    def state(self) -> GpuState | None:
        return self._space.backend.state()

    def _digest_outputs(self) -> str:
        """Of the last output of each class; where it has several, as one if they are equal."""
        found: dict[int, dict[str, None]] = {}
        for place, chunk in sorted(self._touched):
            found.setdefault(place, {})[oracle.digest(self._output(place, chunk))] = None
        return " ".join("|".join(found[place]) for place in sorted(found))

    def _output(self, place: int, chunk: int) -> NDArray[np.float32]:
        return self._space.shelves[place][chunk].output()

    def _launches(self, tokens: list[int]) -> list[Launch]:
        self._touched = {
            (place, chunk)
            for token in dict.fromkeys(tokens)
            for place, chunk, _ in self._space.places(token)
        }
        return [launch for token in tokens for launch in self._token(token)]

    def _token(self, token: int) -> list[Launch]:
        """The same objects each time a token comes again, so that the period can be seen."""
        if token not in self._tokens:
            self._tokens[token] = self._make_token(token)
        return self._tokens[token]

    @abstractmethod
    def _make_token(self, token: int) -> list[Launch]:
        """The launches of a token of the ring."""


class TokenRunner(_Runner):
    """A launch for each layer, and those of attention."""

    def __init__(self, space: TokenSpace, kernels: list[Kernel], job: TokenJob) -> None:
        super().__init__(space)
        self._kernels, self._job = kernels, job
        self._attention = _build_attention(space, job)

    def _make_token(self, token: int) -> list[Launch]:
        places = self._space.places(token)
        return [x for at in places for x in self._layer(token, *at)]

    def _output(self, place: int, chunk: int) -> NDArray[np.float32]:
        space = self._space.shelves[place][chunk]
        if isinstance(space, Workspace):
            return space.output(dtype=self._job.layers[place].y)
        return space.output()

    def _layer(self, token: int, place: int, chunk: int, turn: int) -> list[Launch]:
        space = self._space.shelves[place][chunk]
        if isinstance(space, Workspace):
            layer = self._job.layers[place]
            return [space.launch(self._kernels[place], layer, turn, kind=place)]
        if self._job.attention is None:
            return []
        calls = self._job.attention.calls
        call = calls[token % len(calls)]
        kinds = range(place, place + len(call.stages))  # the last of the classes
        return self._attention[chunk].launches(turn, call, kinds)


class WholeTokenRunner(_Runner):
    """One launch for all layers of a token; it takes them from a table in device memory."""

    def __init__(self, space: TokenSpace, kernel: Kernel, job: KernelJob) -> None:
        super().__init__(space)
        self._kernel, self._job = kernel, job
        self._arrived = space.backend.upload(np.zeros(1, np.uint64))

    def _make_token(self, token: int) -> list[Launch]:
        layers = []
        for place, chunk, turn in self._space.places(token):
            own = self._space.shelves[place][chunk]
            assert isinstance(own, Workspace)
            layers.append((*own.addresses(turn), own.case.k, own.case.n))
        table = layer_table(layers, self._job.workgroups)
        args = (self._space.backend.upload(table), np.uint32(len(table)), self._arrived)
        job = self._job
        return [Launch(self._kernel, job.workgroups, job.workgroup_size, args, 0, job.local_bytes)]


def _make_space(
    backend: Backend, layer: Gemv | Attention, layout: Layout, seed: int
) -> Workspace | AttentionSpace:
    if isinstance(layer, Attention):
        return AttentionSpace(backend, layer, layout, seed)
    return gemv_space(backend, layer, layout, seed)


def _build_attention(space: TokenSpace, job: TokenJob) -> list[AttentionCalls]:
    """The arm's attention on each buffer of caches."""
    if job.attention is None:
        return []
    spaces = [each for each in space.shelves[-1] if isinstance(each, AttentionSpace)]
    try:
        return [AttentionCalls(each, job.attention) for each in spaces]
    except CompileError as error:
        raise CompileError(f"{ATTENTION}: {error}") from error


def _source(job: DeviceJob) -> tuple[str, str]:
    """What tells one kernel from another: classes that share one are built once."""
    return (job.library, job.w) if isinstance(job, LibraryJob) else (job.text, job.entry)
