"""Classes of layers that collapse in some blocks and not in others. Pure.

What S2 met: one kernel, 19 times as slow in some runs, whatever the arm, while the rest of the
token did not move. Averaged away it looks like noise, in a ratio like an effect. A class is held
against the other classes in the same block, so that a slow machine is no mode of a class.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import msgspec
import numpy as np

from gemvbench.plan import TWIN
from gemvbench.results import Summary
from gemvbench.token_case import Token

COLLAPSE = 1.5
"""A block counts where a class is slower than usual by this many times as much as most others."""
_LEAST_BLOCKS = 4


Times = dict[int, float]
"""Seconds per token by block."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A class of layers of one arm that takes much more of its token in some blocks."""

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
    """Every class and arm, the twin too, in the order of the token."""
    parts = [c for c in summary.run.header.cases if isinstance(c, Token) and c.only]
    arms = [choice.label for choice in summary.run.header.choices if parts]
    found = []
    for arm in dict.fromkeys((*arms[:1], TWIN, *arms[1:])):
        times = {part.only: _block_times(summary, part, arm) for part in parts}
        found += [_find(name, arm, times) for name in times]
    names = [part.only for part in parts]
    return tuple(sorted(filter(None, found), key=lambda mode: names.index(mode.name)))


def _find(name: str, arm: str, times: Mapping[str, Times]) -> Mode | None:
    others = [its for other, its in times.items() if other != name and len(its) >= _LEAST_BLOCKS]
    own = times[name]
    blocks = [block for block in own if all(block in its for its in others)]
    if len(blocks) < _LEAST_BLOCKS:
        return None
    usual = [_slowness(its) for its in others]
    slow = [
        block
        for block in blocks
        if _slowness(own)[block]
        > COLLAPSE * statistics.median(its[block] for its in usual or [dict.fromkeys(blocks, 1.0)])
    ]
    fast = [block for block in blocks if block not in slow]
    if not slow or not fast:
        return None
    rest = {block: sum(its[block] for its in others) for block in blocks}
    return Mode(
        name=name,
        arm=arm,
        blocks=tuple(slow),
        measured=len(blocks),
        factor=_ratio(own, slow, fast),
        rest=_ratio(rest, slow, fast) if others else None,
    )


def _slowness(times: Times) -> Times:
    """Each block over the lower quartile of all."""
    usual = float(np.quantile(list(times.values()), 0.25))
    return {block: value / usual for block, value in times.items()}


def _block_times(summary: Summary, part: Token, arm: str) -> Times:
    """Seconds per token by block."""
    logs = summary.views[part.id].logs
    return {
        block: math.exp(float(np.median(row[np.isfinite(row)])))
        for block, row in zip(logs.blocks, logs.of(arm), strict=True)
        if np.isfinite(row).any()
    }


def _ratio(times: Times, slow: list[int], fast: list[int]) -> float:
    above, below = (statistics.median(times[b] for b in blocks) for blocks in (slow, fast))
    return above / below
