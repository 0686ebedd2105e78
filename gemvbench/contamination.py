"""Whether arms disturb each other: one arm measured alone against the same arm in company.

A clean twin does not prove it: base and twin share whatever the other arms do to them. So once
per run, one process holds nothing but an arm and the roof, a second one nothing but the
baseline and the roof. Pure; made from a record.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from gemvbench.case_results import CaseView
from gemvbench.logs import Logs
from gemvbench.messages import Sample
from gemvbench.record import Alone, Run
from gemvbench.stats import Interval, block_effects, pair_effects, t_quantile

MATTERS = math.log(1.02)


class Contamination(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios baseline / arm, each over the roof of its own process."""

    case: str
    arm: str
    alone: float
    together: float
    tolerance: float
    """Half-width, on the log scale, of the interval in which `alone` is to be expected."""
    contaminated: bool
    """Whether the two differ by more than that, and by more than 2 %."""

    @property
    def flag(self) -> str:
        """How much larger the ratio is in company."""
        return f"contaminated ({self.together / self.alone - 1:+.1%})"


def find_contamination(run: Run, views: Mapping[str, CaseView]) -> Contamination | None:
    """The check of a run; None where it was not made, or not to its end."""
    lines = run.of(Alone)
    by_arm: dict[str, list[Sample]] = defaultdict(list)
    for line in lines:
        by_arm[line.arm].append(line.sample)
    if len(by_arm) != 2:
        return None
    view = views[lines[0].sample.case]
    arm = next((label for label in view.contestants if label in by_arm), "")
    against = view.opponent(arm)
    if not arm or against not in by_arm:
        return None
    one = _against_roof(view, arm, by_arm[arm])
    other = _against_roof(view, against, by_arm[against])
    if one is None or other is None:
        return None
    together, alone = one[0].estimate - other[0].estimate, one[1] - other[1]
    tolerance = _tolerance([one[0], other[0]], run.header.settings.confidence)
    return Contamination(
        case=view.case.id,
        arm=arm,
        alone=math.exp(alone),
        together=math.exp(together),
        tolerance=tolerance,
        contaminated=abs(alone - together) > max(tolerance, MATTERS),
    )


def _against_roof(
    view: CaseView, arm: str, samples: Sequence[Sample]
) -> tuple[Interval, float] | None:
    """log(roof / arm) over the run's blocks, and in the process that the arm had to itself."""
    roofs = {sample.arm for sample in samples} - {arm}
    if len(roofs) != 1:
        return None
    (roof,) = roofs
    together, logs = view.pair(arm, roof), Logs(samples)
    alone = block_effects(pair_effects(logs.of(arm), [logs.of(roof)]))
    if together is None or together.blocks < 2 or not len(alone):
        return None
    return together, float(alone[0])


def _tolerance(intervals: Sequence[Interval], confidence: float) -> float:
    """Half-width of the prediction interval of one more block: t s sqrt(1 + 1/B).

    s holds the spreads of both roof ratios, as if they were independent: alone, they are.
    """
    blocks = min(interval.blocks for interval in intervals)
    spread = math.hypot(*(interval.spread for interval in intervals))
    return t_quantile((1 + confidence) / 2, blocks - 1) * spread * math.sqrt(1 + 1 / blocks)
