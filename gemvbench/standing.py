"""Where the arms of a run stand while it goes on. Decides nothing: only looks do.

Ratios are over all blocks measured until now, which no look may have seen; verdicts are those of
the last look that was reached, and a later one may say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemvbench.case_results import CaseView
from gemvbench.cases import is_part
from gemvbench.plan import TWIN
from gemvbench.record import Run
from gemvbench.stats import Interval

_SETTLED = {"FASTER", "SLOWER", "SAME"}
_OUT = {"WRONG", "FAILED", "DECLINED", "INVALID"}


@dataclass(frozen=True)
class Standing:
    """One arm on one case."""

    case: str
    arm: str
    interval: Interval | None
    """Over all blocks until now; None where no pass has both."""
    verdict: str = ""
    """At the last look; "" before the first, and of what is not compared."""
    decides: bool = True
    """Whether the run goes on for its sake: not the twin, nor a part of a token."""

    @property
    def is_out(self) -> bool:
        return self.verdict in _OUT

    @property
    def is_open(self) -> bool:
        """Whether more blocks could decide it."""
        return self.decides and not self.is_out and self.verdict not in _SETTLED


def standings(run: Run, look: int) -> tuple[Standing, ...]:
    """All arms but baselines, case by case; `look` is the last one reached, 0 before the first."""
    found: list[Standing] = []
    for case in run.header.cases:
        found += _of_case(CaseView(run, case), look)
    return tuple(found)


def _of_case(view: CaseView, look: int) -> Iterator[Standing]:
    decides = not is_part(view.case)
    for result in view.results():
        if result.arm in view.baselines:
            continue
        is_known = result.arm != TWIN and (look > 0 or result.verdict in _OUT)
        yield Standing(
            case=result.case,
            arm=result.arm,
            interval=view.so_far(result.arm),
            verdict=result.verdict if is_known else "",
            decides=decides and result.arm != TWIN,
        )
