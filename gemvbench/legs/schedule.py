"""The order of legs, and after how many pairs a run may stop. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from gemvbench import stats
from gemvbench.errors import UserError
from gemvbench.legs.lines import SIDES, Settings


@dataclass(frozen=True)
class Pair:
    """Two legs, one after the other."""

    number: int
    kind: str
    order: tuple[str, str]


def least_pairs(level: float) -> int:
    """Pairs from which a decision at a two-sided level can come.

    As many as an exact sign test needs where every pair points the same way: 2 * 2**-n <= 1 -
    level. The interval may decide with fewer, but then by the shape of noise alone.
    """
    return max(stats.MIN_BLOCKS, math.ceil(1 - math.log2(1 - level) - 1e-9))


def plan_looks(pairs: int, confidence: float, metrics: int) -> tuple[int, ...]:
    """Numbers of pairs after which a run looks: three where there is room, else two or one.

    Raises:
        UserError: so many pairs cannot decide at that confidence; names how many can.
    """
    for count in (3, 2, 1):
        least = least_pairs(stats.family_level(confidence, metrics, count))
        if least + 2 * (count - 1) <= pairs:
            step = (pairs - least) / max(1, count - 1)
            return (*(least + round(step * look) for look in range(count - 1)), pairs)
    raise UserError(
        f"--pairs {pairs} cannot decide {metrics} metric{'s' * (metrics > 1)} at {confidence:.4g} "
        f"confidence, however clear they are: it takes {least} pairs. Give as many, or a lower "
        "--confidence."
    )


def plan_pairs(settings: Settings) -> tuple[Pair, ...]:
    """AB and BA in turn, after a lead that is drawn.

    Pairs of A with itself are drawn among those before the first look, so that a run can stop
    there. They have the same two places, and what the place does shows in them too.
    """
    pairs, aa = settings.pairs, settings.aa
    draw = random.Random(f"legs {settings.seed}")
    lead = draw.randrange(2)
    places = set(draw.sample(range(1, settings.looks[0] + aa), aa))
    kinds = ["aa" if place in places else "ab" for place in range(pairs + aa)]
    found, turns = [], {"ab": lead, "aa": draw.randrange(2)}
    for number, kind in enumerate(kinds):
        order = SIDES if turns[kind] % 2 == 0 else (SIDES[1], SIDES[0])
        turns[kind] += 1
        found.append(Pair(number, kind, (order[0], order[1])))
    return tuple(found)
