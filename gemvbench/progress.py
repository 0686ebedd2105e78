"""How far a run is: what whoever shows it is told. Nothing here is measured or decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gemvbench.budget import Budget
from gemvbench.record import Run


@dataclass(frozen=True)
class Pace:
    """Blocks done, what a block takes in seconds (None before the first), and what is left."""

    done: int
    looks: tuple[int, ...]
    block_seconds: float | None
    budget: Budget

    @property
    def most(self) -> int:
        """Blocks that the run takes if no look before the last ends it."""
        return self.looks[-1]

    @property
    def last_look(self) -> int:
        """The last look that was reached; 0 before the first."""
        return max((look for look in self.looks if look <= self.done), default=0)

    @property
    def next_look(self) -> int | None:
        return next((look for look in self.looks if look > self.done), None)

    def seconds_to(self, blocks: int) -> float | None:
        """About how long until so many blocks are done; the budget may end it before."""
        return None if self.block_seconds is None else (blocks - self.done) * self.block_seconds


class Progress(Protocol):
    """Whoever shows how far a run is."""

    def stage(self, text: str, total: int) -> None: ...

    def advance(self) -> None: ...

    def block(self, run: Run, pace: Pace) -> None:
        """Told before the first block and after each: never while something is measured."""
