"""Classes of layers that collapse in some blocks and not in others. Pure.

What S2 met: one kernel, 19 times as slow in some runs, whatever the arm, while the rest of the
token did not move. Averaged away it looks like noise, in a ratio like an effect.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from gemvbench import stats
from gemvbench.plan import TWIN
from gemvbench.results import Summary
from gemvbench.token_case import Token

COLLAPSE = 1.5
"""A class is named where it slows down this many times as much as the rest of its token."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A class of layers of one arm that is slow in most measurements of some blocks."""

    name: str
    arm: str
    blocks: tuple[int, ...]
    measured: int
    """Blocks in all."""
    factor: float
    """Its time in those blocks over its time in the others."""
    rest: float | None
    """The same of all other classes together; 1 where only this one collapses."""


def find_modes(summary: Summary) -> tuple[Mode, ...]:
    """Every class and arm, the twin too, in the order of the token.

    A block in which all of the token is slow says nothing of one class: flags and drift show it.
    """
    parts = [c for c in summary.run.header.cases if isinstance(c, Token) and c.only]
    arms = [choice.label for choice in summary.run.header.choices if parts]
    found = []
    for part in parts:
        for arm in dict.fromkeys((*arms[:1], TWIN, *arms[1:])):
            mode = _find(summary, parts, part, arm)
            if mode is not None:
                found.append(mode)
    return tuple(found)


def _find(summary: Summary, parts: list[Token], part: Token, arm: str) -> Mode | None:
    times = _block_times(summary, part, arm)
    logs = summary.views[part.id].logs
    slow = stats.is_slow(logs.of(arm))
    known = np.isfinite(logs.of(arm))
    counts = zip(logs.blocks, slow.sum(axis=1), known.sum(axis=1), strict=True)
    blocks = [block for block, some, of in counts if block in times and 2 * some > of]
    others = [block for block in times if block not in blocks]
    if not blocks or not others:
        return None
    others_of = [_block_times(summary, other, arm) for other in parts if other is not part]
    factor, rest = _ratio([times], blocks, others), _ratio(others_of, blocks, others)
    if factor is None or factor / (rest or 1.0) < COLLAPSE:
        return None
    return Mode(
        name=part.only,
        arm=arm,
        blocks=tuple(blocks),
        measured=len(times),
        factor=factor,
        rest=rest,
    )


def _block_times(summary: Summary, part: Token, arm: str) -> dict[int, float]:
    """Seconds per token by block."""
    logs = summary.views[part.id].logs
    return {
        block: math.exp(float(np.median(row[np.isfinite(row)])))
        for block, row in zip(logs.blocks, logs.of(arm), strict=True)
        if np.isfinite(row).any()
    }


def _ratio(times: list[dict[int, float]], slow: list[int], fast: list[int]) -> float | None:
    """Median of the sums in some blocks over that in others; None where none holds them all."""

    def median(blocks: list[int]) -> float | None:
        sums = [sum(t[b] for t in times) for b in blocks if all(b in t for t in times)]
        return float(np.median(sums)) if sums and times else None

    above, below = median(slow), median(fast)
    return above / below if above and below else None
