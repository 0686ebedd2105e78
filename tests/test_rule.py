"""The decision rule with its stopping rule on: false alarms, coverage, and the twin's alarm.

The noise is that of docs/method.md: 0.3 % a measurement, offsets by arm and process, drift,
spikes and slow modes. 1,000 A/A runs a model; at most 18 alarms at 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from records import CASE, make_header, make_run, make_samples, times

from gemvbench.case_results import Result
from gemvbench.commands.ab import exit_code
from gemvbench.errors import Exit
from gemvbench.plan import TWIN
from gemvbench.results import all_decided, summarise
from gemvbench.stats import LOOKS, at_look, decide, family_level, hodges_lehmann, t_interval

PASSES = 6
Draw = np.random.Generator
Model = Callable[[Draw], Any]
"""Effects [blocks, passes] of one A/A run."""


def measured(draw: Draw, offset: float, extra: Any = 0.0) -> Any:
    """log(base and twin) - log(arm): three arms with an offset each, in 16 blocks."""
    shape = (LOOKS[-1], 1)
    arms = [draw.normal(0, offset, shape) + draw.normal(0, 0.003, (16, PASSES)) for _ in range(3)]
    return (arms[0] + arms[1]) / 2 - arms[2] + extra


def drift(draw: Draw) -> Any:
    """AR drift of 15 % peak to peak: what pairing leaves of it between slots 0.1 s apart."""
    steps = draw.normal(0, 0.04 * math.sqrt(2 * 0.1 / 30), (16, PASSES))
    return measured(draw, 0.002, steps)


def spikes(draw: Draw) -> Any:
    heavy = 0.003 * draw.standard_t(3, (16, PASSES))
    return measured(draw, 0.002, heavy - 0.4 * (draw.random((16, PASSES)) < 0.01))


def slow_blocks(draw: Draw) -> Any:
    """Whole blocks 1.8 times slower, all arms alike, with noise in proportion."""
    noise = np.where(draw.random((16, 1)) < 0.2, 1.8, 1.0)
    return measured(draw, 0.002) * noise


MODELS: dict[str, Model] = {
    "iid": lambda draw: measured(draw, 0.0),
    "offsets of 0.1 %": lambda draw: measured(draw, 0.001),
    "offsets of 0.3 %": lambda draw: measured(draw, 0.003),
    "drift": drift,
    "spikes": spikes,
    "slow blocks": slow_blocks,
}


def run_rule(effects: Any, min_effect: float = 0.01) -> tuple[str, float, float]:
    """Verdict and interval of a run that stops at the first look with a verdict."""
    level = family_level(0.99, 1, len(LOOKS))
    blocks = [hodges_lehmann(list(row)) for row in effects]
    verdict, interval = "UNDECIDED", t_interval(blocks[:6], level)
    for look in LOOKS:
        interval = t_interval(blocks[:look], level)
        verdict, _ = decide(interval, min_effect)
        if verdict != "UNDECIDED":
            break
    return verdict, interval.low, interval.high


@pytest.mark.parametrize("model", MODELS)
def test_false_alarms_and_coverage_with_stopping(model: str) -> None:
    draw = np.random.default_rng(11)
    runs = [run_rule(MODELS[model](draw)) for _ in range(1000)]
    assert sum(verdict in ("FASTER", "SLOWER") for verdict, _, _ in runs) <= 18
    assert sum(low <= 0 <= high for _, low, high in runs) >= 980


def test_a_plain_interval_at_every_block_would_fail() -> None:
    """The simulation can tell: without the looks' share of the level, alarms are many."""
    draw = np.random.default_rng(12)
    alarms = 0
    for _ in range(1000):
        blocks = [hodges_lehmann(list(row)) for row in MODELS["offsets of 0.3 %"](draw)]
        plain = [t_interval(blocks[:count], 0.99) for count in range(6, 17)]
        alarms += any(interval.low > 0 or interval.high < 0 for interval in plain)
    assert alarms > 24


def test_real_effects_are_found() -> None:
    draw = np.random.default_rng(13)
    """0.5 %, with the bound of SAME at half of it."""
    found = [run_rule(measured(draw, 0.002, 0.005), 0.0025)[0] for _ in range(200)]
    assert found.count("FASTER") >= 180
    assert "SLOWER" not in found


def test_blocks_beyond_a_look_wait_for_the_next() -> None:
    effects = list(range(20))
    assert [len(at_look(effects[:n], LOOKS)) for n in (0, 5, 6, 7, 8, 11, 12, 15, 16, 20)] == [
        0, 5, 6, 6, 8, 8, 12, 12, 16, 16,
    ]  # fmt: skip


def summary(twin: float, pack2: float = 0.8e-3, looks: tuple[int, ...] = LOOKS) -> Any:
    samples = make_samples(times(pack2=pack2) | {TWIN: twin}, looks[0])
    return summarise(make_run(make_header(looks=looks), samples))


def by_arm(found: Any) -> dict[str, Result]:
    return {result.arm: result for result in found.results}


def test_a_twin_that_differs_voids_the_run() -> None:
    found = summary(twin=1.02e-3)
    assert "differ by -1.97%" in found.void
    assert exit_code(found) == Exit.NO_DEVICE
    assert summary(twin=1e-3).void == ""
    assert exit_code(summary(twin=1e-3)) == Exit.OK


def test_no_verdict_smaller_than_twice_the_twins_effect() -> None:
    small = by_arm(summary(twin=1.02e-3, pack2=0.98e-3))["pack2"]
    assert (small.verdict, "aa" in small.flags) == ("UNDECIDED", True)
    large = by_arm(summary(twin=1.02e-3, pack2=0.8e-3))["pack2"]
    assert (large.verdict, "aa" in large.flags) == ("FASTER", True)


def test_only_arms_are_waited_for() -> None:
    assert all_decided(summary(twin=1e-3))
    close = summary(twin=1e-3, pack2=1.0095e-3)
    assert all_decided(close) == (by_arm(close)["pack2"].verdict != "UNDECIDED")


def test_a_slower_twin_is_no_regression() -> None:
    """--fail-on-slower looks at arms, and at this one there is nothing slower."""
    found = summary(twin=1.004e-3)
    assert exit_code(found, fail_on_slower=True) in (Exit.OK, Exit.NO_DEVICE)
    assert CASE.id == found.results[0].case
