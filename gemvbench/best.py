"""The fastest arm of a case, claimed only where it is separated from every other. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gemvbench import stats
from gemvbench.case_results import CaseView
from gemvbench.plan import TWIN
from gemvbench.result import Result

_RANKED = ("BASELINE", "FASTER", "SLOWER", "SAME", "UNDECIDED")


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of a case, and the arms that its interval does not exclude."""

    case: str
    arm: str
    not_separated: tuple[str, ...]


def find_best(view: CaseView, results: Sequence[Result]) -> Best | None:
    """The leader by ratio, held against each other arm at a level divided by the pairs of arms.

    The leader is chosen by the same data, so every pair that could have been compared counts.
    None where fewer than two arms besides the baseline can be ranked, or each has its own.
    """
    ranked = [
        r
        for r in results
        if r.verdict in _RANKED and r.ratio is not None and r.arm != TWIN
        if not view.unknown(r.arm)
    ]
    if len(ranked) < 3 or len(view.baselines) > 1:
        return None
    leader = max(ranked, key=lambda result: result.ratio or 0)
    settings = view.header.settings
    pairs = math.comb(len(ranked), 2)
    level = stats.family_level(settings.confidence, pairs, len(settings.looks))
    others = [result.arm for result in ranked if result is not leader]
    near = [arm for arm in others if not view.beats(leader.arm, arm, level)]
    return Best(case=view.case.id, arm=leader.arm, not_separated=tuple(near))
