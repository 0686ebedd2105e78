"""How a long sequence of launches is cut into few graphs that come again. Pure.

Launches rotate over copies of the weights: a sequence is a ring, entered somewhere and gone
round many times. Cut where the ring begins, its whole turns are the same graphs whatever the
entry, so that they are captured once and launched in every leg; only the turns that a
sequence enters and leaves in the middle differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_NODES = 2048
"""Launches in one graph: few graphs a leg, so that what lies between two of them is little
(a few us in some ms), and none that takes long to build."""


@dataclass(frozen=True)
class Piece:
    """`count` launches of a ring from position `first` on, going round where it ends."""

    first: int
    count: int


def find_period(items: Sequence[int]) -> int:
    """The smallest distance at which a sequence repeats itself; its length where it does not."""
    for period in range(1, len(items)):
        if items[period] == items[0] and items[period:] == items[:-period]:
            return period
    return len(items)


def cut(count: int, period: int, entry: int, most: int = MOST_NODES) -> list[Piece]:
    """`count` launches round a ring of `period`, entered at `entry`.

    First to the ring's beginning, then as many turns as fit a graph, the turns that are left,
    and the rest. A turn longer than `most` is cut at its multiples.
    """
    pieces: list[Piece] = []
    done = 0
    if entry:
        done = min(count, period - entry)
        pieces += _chop(entry, done, most)
    turns = (count - done) // period
    if period <= most:
        at_once = most // period
        pieces += [Piece(0, at_once * period)] * (turns // at_once)
        if turns % at_once:
            pieces.append(Piece(0, turns % at_once * period))
    else:
        pieces += _chop(0, period, most) * turns
    return pieces + _chop(0, count - done - turns * period, most)


def _chop(first: int, count: int, most: int) -> list[Piece]:
    """A stretch within one turn, cut at the multiples of `most`."""
    pieces = []
    end = first + count
    while first < end:
        stop = min(end, (first // most + 1) * most)
        pieces.append(Piece(first, stop - first))
        first = stop
    return pieces
