"""Device memory of a whole token, and the runner whose one call is one token. Used in workers."""

from __future__ import annotations

import math

from gemvbench import oracle
from gemvbench.backend.base import Backend, Buffer, Kernel, Launch
from gemvbench.errors import CompileError
from gemvbench.gpu_state import GpuState
from gemvbench.messages import DeviceJob, Job, Leg, LibraryJob, TokenJob, TokenLayout
from gemvbench.runners import Runner, build_kernel, make_leg
from gemvbench.token_case import Token
from gemvbench.workspace import Workspace


class TokenSpace:
    """Distinct weights for every layer, an x and a y for each class of layers."""

    def __init__(
        self, backend: Backend, case: Token, layout: TokenLayout, seed: int, padding: int
    ) -> None:
        self.backend, self.case, self.seed = backend, case, seed
        self._copies = layout.copies
        self._padding = backend.alloc(padding) if padding else None
        self.shelves = [
            [Workspace(backend, layer, chunk, seed) for chunk in shelf]
            for layer, shelf in zip(case.layers, layout.shelves, strict=True)
        ]
        self._ring = math.lcm(layout.copies, case.choices)
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
        """Places in the ring of the next tokens, going on where the last ones ended."""
        start = self._next_token
        self._next_token = (start + count) % self._ring
        return [(start + step) % self._ring for step in range(count)]

    def places(self, token: int) -> list[tuple[int, int, int]]:
        """(class, buffer of the class, turn in it) for each layer of a token of the ring."""
        found = []
        for place, matrix in self.case.matrices(self.seed, token):
            matrix += token % self._copies * self.case.operations[place].matrices
            chunk, turn = divmod(matrix, self.shelves[place][0].layout.turns)
            found.append((place, chunk, turn))
        return found

    def _spaces(self) -> list[Workspace]:
        return [space for shelf in self.shelves for space in shelf]


class TokenRunner:
    """One call is one token: all layers in order, each waiting for the one before."""

    def __init__(self, space: TokenSpace, kernels: list[Kernel], job: TokenJob) -> None:
        self._space, self._kernels, self._job = space, kernels, job
        self._tokens: dict[int, list[Launch]] = {}
        self._touched: set[tuple[int, int]] = set()
        self.bytes_per_call = space.case.bytes_moved

    def run(self, calls: int) -> None:
        self._space.backend.run(self._launches(calls))

    def time(self, calls: int) -> Leg:
        self._space.poison_outputs()
        return make_leg(calls, self._space.backend.time(self._launches(calls)))

    def output_digest(self) -> str | None:
        """Of the last output of each class; where it has several, as one if they are equal."""
        found: dict[int, dict[str, None]] = {}
        for place, chunk in sorted(self._touched):
            y = self._space.shelves[place][chunk].output()
            found.setdefault(place, {})[oracle.digest(y)] = None
        return " ".join("|".join(found[place]) for place in sorted(found))

    def state(self) -> GpuState | None:
        return self._space.backend.state()

    def _launches(self, calls: int) -> list[Launch]:
        tokens = self._space.next_tokens(calls)
        self._touched = {
            (place, chunk)
            for token in dict.fromkeys(tokens)
            for place, chunk, _ in self._space.places(token)
        }
        return [launch for token in tokens for launch in self._token(token)]

    def _token(self, token: int) -> list[Launch]:
        """The same objects each time a token comes again, so that the period can be seen."""
        if token not in self._tokens:
            self._tokens[token] = [self._launch(*at) for at in self._space.places(token)]
        return self._tokens[token]

    def _launch(self, place: int, chunk: int, turn: int) -> Launch:
        space = self._space.shelves[place][chunk]
        return space.launch(self._kernels[place], self._job.layers[place], turn, kind=place)


def _source(job: DeviceJob) -> tuple[str, str]:
    """What tells one kernel from another: classes that share one are built once."""
    return (job.library, job.w) if isinstance(job, LibraryJob) else (job.text, job.entry)
