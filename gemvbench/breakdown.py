"""Where the time of a token goes: its classes of layers beside the whole, arm by arm. Pure."""

from __future__ import annotations

import math
import statistics

import msgspec

from gemvbench import stats
from gemvbench.case_results import CaseView
from gemvbench.plan import TWIN, launches_label
from gemvbench.result import Result
from gemvbench.results import Summary
from gemvbench.token_arm import TokenArm
from gemvbench.token_case import Token, split_token

CLOSED = 0.02
"""The parts of a token are said to add up where they come this near to the whole."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One class of layers of one arm; times in seconds per token."""

    name: str
    calls: int
    result: Result
    share: float | None
    """Of the token's time."""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: the whole token, its parts, and what they leave over. Seconds per token."""

    arm: str
    whole: Result
    seconds: float
    ci: tuple[float, float] | None
    """Where the arm's own time lies, over blocks."""
    tokens_per_second: float
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    """Classes that were not measured by themselves."""
    rest: float
    """What the parts leave of the whole; negative where they take longer by themselves."""
    gap: float | None
    """Part of the time line in which no kernel ran, where the device tells."""
    launches: float | None
    """As many launches of a kernel that does nothing."""
    launch_count: int = 0
    """Launches of a token, those of all stages of attention."""

    @property
    def closes(self) -> bool:
        return not self.missing and abs(self.rest) <= CLOSED * self.seconds


def break_down(summary: Summary) -> tuple[Breakdown, ...]:
    """Every arm whose whole token was timed, the baseline first."""
    case = summary.run.header.cases[0]
    assert isinstance(case, Token)
    return tuple(
        _of_arm(summary, case, result)
        for result in summary.of_case(case.id)
        if result.arm != TWIN and result.seconds_per_call is not None
    )


def _of_arm(summary: Summary, case: Token, whole: Result) -> Breakdown:
    seconds = whole.seconds_per_call
    assert seconds is not None
    parts = [_part(summary, part, whole) for part in split_token(case)]
    times = {part.name: part.result.seconds_per_call for part in parts}
    known = [value for value in times.values() if value is not None]
    kernel = whole.kernel_seconds
    count = _launch_count(summary, case, whole.arm)
    each = _launch_seconds(summary, case, whole.device)
    return Breakdown(
        arm=whole.arm,
        whole=whole,
        seconds=seconds,
        ci=time_interval(summary.views[case.id], whole.arm),
        tokens_per_second=1 / seconds,
        parts=tuple(parts),
        missing=tuple(name for name, value in times.items() if value is None),
        rest=seconds - sum(known),
        gap=None if kernel is None else seconds - kernel,
        launches=None if each is None else count * each,
        launch_count=count,
    )


def _part(summary: Summary, part: Token, whole: Result) -> Part:
    (result,) = [r for r in summary.of_case(part.id) if r.arm == whole.arm]
    own, total = result.seconds_per_call, whole.seconds_per_call
    share = own / total if own is not None and total else None
    return Part(name=part.only, calls=len(part.order), result=result, share=share)


def _launch_count(summary: Summary, case: Token, arm: str) -> int:
    """By what was built; an arm that has no launches here counts one for each layer."""
    (outcome,) = [c.outcome for c in summary.views[case.id].choices if c.label == arm]
    if isinstance(outcome, TokenArm) and outcome.whole:
        return 1
    counts = outcome.launches if isinstance(outcome, TokenArm) else {}
    return sum(own.times * counts.get(own.name, 1) for own in case.classes)


def _launch_seconds(summary: Summary, case: Token, device: str) -> float | None:
    """Of a launch without work, of which there were as many as linear layers."""
    label = launches_label(device, len(summary.run.header.devices))
    samples = summary.views[case.id].usable_of(label)
    if not samples:
        return None
    linear = sum(operation.times for operation in case.operations)
    return statistics.median(s.seconds for s in samples) / linear


def time_interval(view: CaseView, arm: str) -> tuple[float, float] | None:
    """The t interval of an arm's own time over blocks; wide where a machine drifts."""
    effects = stats.block_effects(view.logs.of(arm))
    if len(effects) < stats.MIN_BLOCKS:
        return None
    interval = stats.t_interval(effects, view.header.settings.confidence)
    return math.exp(interval.low), math.exp(interval.high)
