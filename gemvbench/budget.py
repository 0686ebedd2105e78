"""A run's budget of time: what is left, and the smallest that would have been enough."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

TOO_SMALL = "budget too small"
"""How a run ended whose budget could not hold the fewest blocks that decide: none was begun."""


@dataclass(frozen=True)
class Budget:
    """Seconds of wall time from now on, or no limit (None)."""

    seconds: float | None
    started: float = field(default_factory=time.monotonic)

    def spent(self) -> float:
        return time.monotonic() - self.started

    def holds(self, more: float) -> bool:
        """Whether so many seconds more still fit."""
        return self.seconds is None or self.spent() + more <= self.seconds


def round_up(seconds: float) -> float:
    """A budget to tell a user: whole seconds to 10 s, then steps of 5 s, 10 s and a minute."""
    steps = ((10, 1), (60, 5), (600, 10))
    step = next((step for end, step in steps if seconds <= end), 60)
    return float(math.ceil(seconds / step) * step)
