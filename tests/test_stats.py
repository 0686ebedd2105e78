"""Statistics against naive code, SciPy, and small seeded simulations."""

from __future__ import annotations

import math
import statistics
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy import stats as scipy_stats

from gemvbench.logs import Logs
from gemvbench.messages import Leg, Sample
from gemvbench.stats import (
    MIN_BLOCKS,
    Array,
    Interval,
    Rule,
    block_effects,
    decide,
    family_level,
    hodges_lehmann,
    is_slow,
    judge,
    min_detectable_effect,
    modes_differ,
    pair_effects,
    t_interval,
)


def leg(calls: int, seconds: float) -> Leg:
    return Leg(
        calls=calls, timeline=seconds, kernel=None, host=seconds, enqueue=0.0, queued_ahead=True
    )


def sample(arm: str, seconds: float, block: int = 0, pass_: int = 0) -> Sample:
    """A measurement of `seconds` a call, with a set-up of 1 ms that cancels."""
    return Sample(
        block=block,
        case="c",
        pass_=pass_,
        slot=0,
        arm=arm,
        long=leg(9, 0.001 + 9 * seconds),
        short=leg(1, 0.001 + seconds),
    )


def interval(low: float, high: float, blocks: int = 6) -> Interval:
    return Interval((low + high) / 2, low, high, blocks, 0.01)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 11])
def test_hodges_lehmann_is_the_median_of_walsh_averages(size: int) -> None:
    values = list(np.random.default_rng(size).standard_t(3, size))
    walsh = [(a + b) / 2 for a, b in combinations_with_replacement(values, 2)]
    assert hodges_lehmann(values) == pytest.approx(statistics.median(walsh), abs=1e-15)


def test_hodges_lehmann_bears_an_outlier() -> None:
    assert abs(hodges_lehmann([0.0, 0.01, -0.01, 0.0, 0.005, 9.0])) < 0.02
    assert hodges_lehmann([x + 5 for x in (1.0, 2.0, 4.0)]) == pytest.approx(
        5 + hodges_lehmann([1.0, 2.0, 4.0])
    )


@pytest.mark.parametrize("level", [0.9, 0.99, 0.9975])
def test_t_interval_is_scipys(level: float) -> None:
    effects = list(np.random.default_rng(1).normal(0.02, 0.01, 6))
    found = t_interval(effects, level)
    low, high = scipy_stats.t.interval(
        level, 5, loc=np.mean(effects), scale=scipy_stats.sem(effects)
    )
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.blocks == 6
    assert found.ratio == pytest.approx(math.exp(np.mean(effects)))
    assert found.ci == pytest.approx((math.exp(low), math.exp(high)))


@pytest.mark.parametrize("effects", [[], [0.1]])
def test_too_few_blocks_bound_nothing(effects: list[float]) -> None:
    found = t_interval(effects, 0.99)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert min_detectable_effect(found, 0.99) == math.inf
    assert decide(found, 0.01)[0] == "UNDECIDED"


def simulate(effect: float, offset: float, runs: int, seed: int) -> list[Interval]:
    """Runs of 6 blocks of 6 passes with noise of 0.5 % a pass and offsets by block."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        passes = effect + draw.normal(0, offset, (6, 1)) + draw.normal(0, 0.005, (6, 6))
        found.append(t_interval([hodges_lehmann(list(row)) for row in passes], 0.99))
    return found


@pytest.mark.parametrize("offset", [0.0, 0.003])
def test_coverage_and_false_alarms(offset: float) -> None:
    """At 1 %, at most 18 alarms in 1,000 (3 standard deviations over); offsets or not."""
    runs = simulate(0.0, offset, 1000, seed=5)
    assert sum(decide(run, 0.01)[0] in ("FASTER", "SLOWER") for run in runs) <= 18
    shifted = simulate(0.01, offset, 1000, seed=6)
    assert sum(run.low <= 0.01 <= run.high for run in shifted) >= 980


def test_a_real_effect_is_found() -> None:
    runs = simulate(0.02, 0.003, 200, seed=7)
    assert sum(decide(run, 0.01)[0] == "FASTER" for run in runs) >= 190
    assert not any(decide(run, 0.01)[0] == "SLOWER" for run in runs)


def test_min_detectable_effect_is_found_nine_times_in_ten() -> None:
    sd, level = 0.004, 0.99
    typical = Interval(0.0, 0.0, 0.0, 6, sd)
    effect = min_detectable_effect(typical, level)
    draw = np.random.default_rng(8)
    effects = draw.normal(effect, sd, (2000, 6))
    found = sum(t_interval(list(row), level).low > 0 for row in effects)
    assert 0.82 <= found / 2000 <= 0.98


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.2, "FASTER"),
        (0.001, 0.002, "FASTER"),
        (-0.2, -0.001, "SLOWER"),
        (-0.009, 0.009, "SAME"),
        (0.0, 0.009, "SAME"),
        (-0.009, 0.011, "UNDECIDED"),
        (-0.011, 0.009, "UNDECIDED"),
        (-math.inf, math.inf, "UNDECIDED"),
    ],
)
def test_decide(low: float, high: float, verdict: str) -> None:
    assert decide(interval(low, high), 0.01) == (verdict, None)


def test_the_bound_of_same_is_a_ratio() -> None:
    """Inside +-1 % means ratios 1/1.01 to 1.01."""
    edge = math.log1p(0.01)
    assert decide(interval(-edge, edge), 0.01)[0] == "SAME"
    assert decide(interval(-edge, edge + 1e-9), 0.01)[0] == "UNDECIDED"


@pytest.mark.parametrize("blocks", range(2, MIN_BLOCKS))
def test_fewer_than_six_blocks_decide_nothing(blocks: int) -> None:
    verdict, reason = decide(interval(0.1, 0.2, blocks), 0.01)
    assert verdict == "UNDECIDED"
    assert reason == f"only {blocks} of at least 6 blocks"
    assert MIN_BLOCKS == 6


def test_family_level_is_bonferronis() -> None:
    assert family_level(0.99, 1) == pytest.approx(0.99)
    assert family_level(0.99, 4) == pytest.approx(0.9975)
    assert family_level(0.99, 0) == pytest.approx(0.99)


def effects(samples: list[Sample], arm: str, *baselines: str) -> list[float]:
    logs = Logs(samples)
    pairs = pair_effects(logs.of(arm), [logs.of(name) for name in baselines])
    return list(block_effects(pairs))


def test_effects_are_paired_within_passes() -> None:
    """A drift that is common to a pass cancels; the baseline is the mean of base and twin."""
    samples = [
        sample(arm, seconds * drift, block, pass_)
        for block in range(2)
        for pass_, drift in enumerate((1.0, 1.5, 3.0))
        for arm, seconds in (("base", 1e-3), ("aa", 1.1e-3), ("x", 0.5e-3))
    ]
    expected = math.log(2) + math.log(1.1) / 2
    assert effects(samples, "x", "base", "aa") == pytest.approx([expected] * 2)
    assert effects(samples, "base", "x") == pytest.approx([-math.log(2)] * 2)


def test_a_missing_leg_removes_its_pair_only() -> None:
    samples = [sample("base", 1e-3, pass_=p) for p in range(3)]
    samples += [sample("x", 1e-3, pass_=0), sample("x", -1e-3, pass_=1), sample("x", 2e-3, pass_=2)]
    assert np.isnan(Logs(samples).of("x")).tolist() == [[False, True, False]]
    assert effects(samples, "x", "base") == pytest.approx([-math.log(2) / 2])
    assert effects(samples, "gone", "base") == []


def test_blocks_keep_their_numbers() -> None:
    logs = Logs([sample("base", 1e-3, block) for block in (7, 2, 9)])
    assert logs.blocks == (2, 7, 9)


RULE = Rule(level=0.9975, looks=(6, 8, 12, 16), min_effect=0.01)


def logs_of(draw: np.random.Generator, blocks: int = 16, sd: float = 0.003) -> Array:
    return math.log(1e-3) + draw.normal(0, sd, (blocks, 6))


def test_slow_measurements_carry_no_verdict_but_stand_beside_it() -> None:
    """The arm is 2 % faster; three of its measurements are twice as slow."""
    draw = np.random.default_rng(1)
    arm, base, twin = (logs_of(draw) for _ in range(3))
    arm -= 0.02
    arm[[1, 5, 9], [0, 2, 3]] += math.log(2)
    found = judge(arm, base, twin, RULE)
    assert (found.verdict, found.pairs, found.removed) == ("FASTER", 96, 3)
    assert found.interval.estimate == pytest.approx(0.02, abs=0.002)
    assert found.all_pairs.estimate < found.interval.estimate


def test_slow_baselines_remove_pairs_too() -> None:
    draw = np.random.default_rng(2)
    arm, base, twin = (logs_of(draw) for _ in range(3))
    base[0, 0] += 1
    twin[0, 1] += 1
    assert judge(arm, base, twin, RULE).removed == 2
    assert judge(arm, base, None, RULE).removed == 1


def test_an_arm_slow_more_often_is_undecided() -> None:
    """Slow once in every block: what is left of it is faster, and that is not the whole truth."""
    draw = np.random.default_rng(3)
    arm, base, twin = (logs_of(draw) for _ in range(3))
    arm -= 0.02
    arm[:, 3] += math.log(1.5)
    found = judge(arm, base, twin, RULE)
    assert (found.verdict, found.removed) == ("UNDECIDED", 16)
    assert found.reason.startswith("modes")
    assert found.interval.low > 0
    twin[:, 2] += math.log(1.5)
    base[:, 4] += math.log(1.5)
    assert judge(arm, base, twin, RULE).verdict == "FASTER", "both are slow equally often"


@pytest.mark.parametrize(("blocks", "differ"), [(5, False), (6, True)])
def test_the_sign_test_counts_blocks(blocks: int, differ: bool) -> None:
    """Exact: 5 of 5 blocks are chance at 6 %, 6 of 6 at 3 %; how often in a block is no matter."""
    draw = np.random.default_rng(4)
    arm, base = logs_of(draw), logs_of(draw)
    arm[:blocks, :1] += 1
    assert modes_differ(arm, [base]) == differ
    assert modes_differ(base, [arm]) == differ
    assert not modes_differ(base, [base])


def test_a_block_slow_throughout_is_drift_and_kept() -> None:
    draw = np.random.default_rng(5)
    arm, base, twin = (logs_of(draw, 6) for _ in range(3))
    for logs in (arm, base, twin):
        logs[2] += 0.5
    found = judge(arm - 0.02, base, twin, RULE)
    assert (found.verdict, found.interval.blocks, found.removed) == ("FASTER", 6, 0)
    arm[2] -= 0.5
    found = judge(arm - 0.02, base, twin, RULE)
    assert (found.verdict, found.interval.blocks, found.removed) == ("UNDECIDED", 5, 6)
    assert found.all_pairs.blocks == 6


def test_a_look_counts_the_blocks_that_were_run() -> None:
    """Of twelve blocks one has no clean pair: eleven effects, not the eight of an earlier look."""
    draw = np.random.default_rng(6)
    arm, base, twin = (logs_of(draw, 12) for _ in range(3))
    arm[3] += 1
    found = judge(arm, base, twin, RULE)
    assert (found.interval.blocks, found.all_pairs.blocks, found.pairs) == (11, 12, 72)
    cut = judge(arm[:11], base[:11], twin[:11], RULE)
    assert (cut.interval.blocks, cut.pairs) == (7, 48), "of eleven blocks the look at eight"


def test_equal_arms_are_slow_equally_often() -> None:
    """More often and less often are told at the same rate, with two baselines as with one."""
    draw = np.random.default_rng(7)
    more = less = 0
    for _ in range(300):
        arm, base, twin = (
            logs_of(draw) + math.log(2) * (draw.random((16, 6)) < 0.1) for _ in range(3)
        )
        if modes_differ(arm, [base, twin]):
            counts = [int(is_slow(logs).sum()) for logs in (arm, base)]
            more, less = more + (counts[0] > counts[1]), less + (counts[0] < counts[1])
    assert more + less <= 300 * 0.05
    assert abs(more - less) <= 8


def test_nothing_measured_is_undecided() -> None:
    none = np.full((6, 6), np.nan)
    found = judge(none, none, None, RULE)
    assert (found.verdict, found.pairs, found.removed) == ("UNDECIDED", 0, 0)
