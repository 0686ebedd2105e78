"""What a machine can resolve, from the record of a selftest. Pure.

A/A arms may not be told apart; planted effects have to show at their exact share; `stream` has
to be uncached and the event clock right. From the spread of the blocks follows what an
ordinary run resolves, in how long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from gemvbench import stats
from gemvbench.case import Gemv
from gemvbench.clocks import EVENT_CLOCK, measured_clocks
from gemvbench.errors import Exit
from gemvbench.jobs import Choice
from gemvbench.logs import Logs
from gemvbench.messages import Failed, RoofMeasured
from gemvbench.outcome import Specialization
from gemvbench.plan import TWIN, doubled, plan_layout
from gemvbench.record import Charged, PoolRead, Run
from gemvbench.result import Result
from gemvbench.results import Summary, summarise
from gemvbench.selftest_plan import DOUBLE, STREAM, pool_case

SHARE_TOLERANCE = 0.1
"""Of a planted share: launches, and the last wave of workgroups, do not grow with the rows."""

CACHED = 0.03
"""The pool of `stream` may read so much faster than one twice its size."""

POOL_LEVEL = 0.99
SLOTS_OF_AB = 4
"""Baseline, twin, one arm and the roof."""


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """An arm with an exact extra share of bytes. Effects are shares of time."""

    arm: str
    share: float
    effect: float
    """Measured, with `ci`."""
    ci: tuple[float, float]
    found: bool
    """SLOWER, and by at least half of the share."""
    excluded: bool
    """The interval holds nothing within a tenth of the share."""
    wrong_sign: bool
    """FASTER by its estimate, though twice the minimum detectable effect was planted."""

    @property
    def is_wrong(self) -> bool:
        return self.excluded or self.wrong_sign


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """Bare reads of pools: bytes per second by label, and `stream` over `double`."""

    sizes: dict[str, int]
    bandwidths: dict[str, float]
    ratio: float
    ci: tuple[float, float]

    @property
    def is_cached(self) -> bool:
        return self.ci[0] > 1 + CACHED

    @property
    def is_clear(self) -> bool:
        """Whether the interval is narrow enough to say that nothing is cached."""
        return self.ci[1] < (1 + CACHED) ** 2


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The effect that one arm against a baseline shows nine times in ten, and what it costs.

    `blocks` are those that hold an undisturbed pair; the others cost their time as well.
    """

    blocks: int
    effect: float
    device_seconds: float
    """Timed device intervals."""
    wall_seconds: float


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a selftest found."""

    summary: Summary
    blocks: int
    same: tuple[str, ...]
    """Identical arms that were compared, the twin among them."""
    alarms: tuple[str, ...]
    """Those that were told apart."""
    planted: tuple[Planted, ...]
    broken: tuple[Result, ...]
    """Arms that are wrong, failed or have no result."""
    unclean: tuple[Result, ...]
    """Arms that have clean pairs in fewer than six blocks."""
    event_clock: float | None
    """Event span over host span of half a second or more."""
    pools: Pools | None
    pool_fault: str
    """Why the pools could not be read, where something failed."""
    pools_fit: bool
    """Whether memory holds twice the pool of `stream`."""
    roof: RoofMeasured | None
    resolutions: tuple[Resolution, ...]
    block_device_seconds: float
    block_wall_seconds: float

    @property
    def clock_is_right(self) -> bool:
        return self.event_clock is not None and abs(self.event_clock - 1) <= EVENT_CLOCK


def examine(run: Run) -> Selftest:
    """Everything from a record, also of a run that was cut short."""
    summary = summarise(run)
    results = {result.arm: result for result in summary.results}
    choices = {choice.label: choice for choice in run.header.choices}
    usable = {arm: result for arm, result in results.items() if _is_usable(result)}
    planted = {a: c for a, c in choices.items() if _extra(c)}
    same = [arm for arm in usable if arm not in planted and arm != run.header.baseline]
    roofs = run.of(RoofMeasured)
    rows = _case(run).n
    device, wall = _block_seconds(summary)
    return Selftest(
        summary=summary,
        blocks=max((result.blocks for result in results.values()), default=0),
        same=tuple(same),
        alarms=tuple(arm for arm in same if _is_alarm(arm, usable[arm], summary)),
        planted=tuple(
            _examine(_extra(choice) / rows, usable[arm])
            for arm, choice in planted.items()
            if arm in usable
        ),
        broken=tuple(r for r in results.values() if not (_is_usable(r) or _is_unclean(r))),
        unclean=tuple(r for r in results.values() if _is_unclean(r)),
        event_clock=measured_clocks(run).get(run.header.devices[0].id),
        pools=_examine_pools(run),
        pool_fault=_pool_fault(run),
        pools_fit=_pools_fit(run),
        roof=max(roofs, key=lambda roof: roof.bandwidth, default=None),
        resolutions=_resolutions(summary, [a for a in usable if a in choices], device, wall),
        block_device_seconds=device,
        block_wall_seconds=wall,
    )


def exit_code(found: Selftest) -> Exit:
    """A broken arm, then what makes the run worthless, then what it says of effects."""
    if any(r.verdict in ("WRONG", "FAILED") for r in found.broken):
        return Exit.WRONG
    worthless = (
        bool(found.summary.void),
        found.summary.ended != "complete",
        bool(found.broken or found.unclean),
        not found.clock_is_right,
        bool(found.pool_fault),
        found.pools.is_cached if found.pools else found.pools_fit,
    )
    if any(worthless):
        return Exit.NO_DEVICE
    if found.alarms or any(planted.is_wrong for planted in found.planted):
        return Exit.WRONG
    return Exit.OK


def _is_usable(result: Result) -> bool:
    bad = result.verdict in ("WRONG", "FAILED", "DECLINED", "INVALID")
    return not bad and result.ci is not None and result.blocks >= stats.MIN_BLOCKS


def _is_unclean(result: Result) -> bool:
    return result.verdict == "UNDECIDED" and result.pairs > 0 and not _is_usable(result)


def _is_alarm(arm: str, result: Result, summary: Summary) -> bool:
    """An interval that excludes a ratio of 1; the twin has the level of its own alarm."""
    low, high = result.ci or (0.0, math.inf)
    return bool(summary.void) if arm == TWIN else low > 1 or high < 1


def _examine(share: float, result: Result) -> Planted:
    assert result.ratio is not None
    assert result.ci is not None
    low, high = (1 / bound - 1 for bound in reversed(result.ci))
    effect = 1 / result.ratio - 1
    near = share * (1 - SHARE_TOLERANCE), share * (1 + SHARE_TOLERANCE)
    detectable = math.expm1(result.min_detectable_effect or math.inf)
    return Planted(
        arm=result.arm,
        share=share,
        effect=effect,
        ci=(low, high),
        found=low > 0 and effect >= share / 2,
        excluded=high < near[0] or low > near[1],
        wrong_sign=effect < 0 and share >= 2 * detectable,
    )


def _extra(choice: Choice) -> int:
    return choice.outcome.extra if isinstance(choice.outcome, Specialization) else 0


def _case(run: Run) -> Gemv:
    (case,) = run.header.cases
    assert isinstance(case, Gemv)
    return case


def _examine_pools(run: Run) -> Pools | None:
    """Paired within passes, over blocks that are fresh processes, as arms are."""
    samples = [read.sample for read in run.of(PoolRead) if read.sample.is_usable]
    sizes = {sample.arm: sample.bytes_per_call for sample in samples}
    if not {STREAM, DOUBLE} <= set(sizes):
        return None
    logs = Logs(samples)
    pairs = stats.clean_effects(logs.of(STREAM), [logs.of(DOUBLE)])
    effects = stats.block_effects(pairs) + math.log(sizes[STREAM] / sizes[DOUBLE])
    interval = stats.t_interval(effects, POOL_LEVEL)
    return Pools(
        sizes=sizes,
        bandwidths={
            arm: size / statistics.median(s.seconds for s in samples if s.arm == arm)
            for arm, size in sizes.items()
        },
        ratio=interval.ratio,
        ci=interval.ci,
    )


def _pool_fault(run: Run) -> str:
    name = pool_case(_case(run)).id
    faults: list[Charged | Failed] = [*run.of(Charged), *run.of(Failed)]
    return next((line.reason for line in faults if line.case == name), "")


def _pools_fit(run: Run) -> bool:
    case, device = _case(run), run.header.devices[0]
    return doubled(plan_layout(case, STREAM, device), case, device) is not None


def _block_seconds(summary: Summary) -> tuple[float, float]:
    """(timed device intervals, wall) of a block of the comparison, in seconds."""
    (view,) = summary.views.values()
    blocks = len(view.logs.blocks)
    if not blocks:
        return 0.0, 0.0
    return summary.device_seconds / blocks, (summary.wall_seconds or 0.0) / blocks


def _resolutions(
    summary: Summary, arms: Sequence[str], device: float, wall: float
) -> tuple[Resolution, ...]:
    """By the observed spread of a block's effect: what `ab` with one arm finds, and when.

    A block of `ab` has four slots a pass; its device time is that share of this run's, and its
    wall time lies as much above it as here, start of the process included. Blocks that held no
    undisturbed pair here will be as many there.
    """
    header = summary.run.header
    (view,) = summary.views.values()
    others = [arm for arm in arms if arm != header.baseline]
    if not others:
        return ()
    effects = [view.effects(arm, [header.baseline, TWIN]).values() for arm in others]
    spread = statistics.median(statistics.stdev(values) for values in effects)
    tried = len(view.logs.blocks) / statistics.median(len(values) for values in effects)
    share = SLOTS_OF_AB / len(view.samples)
    found = []
    for blocks in (stats.LOOKS[0], stats.LOOKS[-1]):
        looks = [look for look in stats.LOOKS if look <= blocks]
        level = stats.family_level(header.settings.confidence, 1, len(looks))
        interval = stats.Interval(0.0, 0.0, 0.0, blocks, spread)
        found.append(
            Resolution(
                blocks=blocks,
                effect=math.expm1(stats.min_detectable_effect(interval, level)),
                device_seconds=blocks * tried * device * share,
                wall_seconds=blocks * tried * max(wall - device * (1 - share), device * share),
            )
        )
    return tuple(found)
