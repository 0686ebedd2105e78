"""Records of legs: JSON lines, a header first, written as legs end."""

from __future__ import annotations

import msgspec

SCHEMA = 1
SIDES = ("A", "B")


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A number that every leg gives.

    Args:
        name: as it is shown.
        source: "wall", "cpu" or "memory", which are measured from outside; "regex" or "json",
            which read what the program printed.
        pattern: the regular expression, or the path into the JSON object.
        more: whether more is better.
    """

    name: str
    source: str
    pattern: str = ""
    more: bool = False


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two command lines, with what it has in its environment beside what is there."""

    argv: tuple[str, ...]
    environment: dict[str, str] = {}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was fixed before the run."""

    pairs: int
    looks: tuple[int, ...]
    """Numbers of pairs after which the run may stop."""
    metrics: tuple[Metric, ...]
    """Those that are judged."""
    aa: int = 0
    """Pairs of A against itself, among the others."""
    confidence: float = 0.99
    min_effect: float = 0.01
    seed: int = 0
    timeout: float = 600.0
    pause: float = 0.0
    before: tuple[str, ...] = ()
    """A command that runs before every leg, untimed."""


class LegsHeader(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    schema: int = SCHEMA
    version: str
    started: str
    arguments: tuple[str, ...]
    settings: Settings
    environment: dict[str, str]
    a: Side
    b: Side

    def side(self, name: str) -> Side:
        return self.a if name == "A" else self.b


class LegDone(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One leg. In a pair of A against itself the sides are two runs of A."""

    number: int
    pair: int
    kind: str
    """"ab", or "aa" for a pair of A against itself."""
    side: str
    first: bool
    """Whether it was the first of its pair."""
    wall: float
    cpu: float
    """User and system seconds of the process and all that it waited for."""
    memory: int
    """Peak resident bytes of the process tree, sampled."""
    values: dict[str, float] = {}
    """Judged metrics by name; empty where the leg failed."""
    matches: dict[str, int] = {}
    """How often a metric was found, where that is more than once: the last one counts."""
    reason: str = ""
    """Why it gives no numbers; "" where it does."""


class LegsEnded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How it ended: "complete", "interrupted", or what stopped it."""

    reason: str
    seconds: float


LegsLine = LegsHeader | LegDone | LegsEnded


class LegsRun(msgspec.Struct, frozen=True, kw_only=True):
    """A whole record, in memory."""

    header: LegsHeader
    legs: tuple[LegDone, ...] = ()
    ended: LegsEnded | None = None
    damage: tuple[str, ...] = ()
