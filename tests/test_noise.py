"""Simulated noise is what its model says it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gemvbench.plan import TWIN
from gemvbench.simulation.noise import (
    ARM,
    ARMS,
    BASE,
    BLOCKS,
    MODELS,
    NOISE,
    PASSES,
    Floats,
    Schedule,
    by_arm,
    consecutive,
    interleaved,
    simulate,
)

RUNS = 400
SCHEDULE = interleaved(np.arange(RUNS))


def added(name: str, schedule: Schedule = SCHEDULE, *, effect: float = 0.0) -> Floats:
    """What a model alone adds, in the order of time: no noise, no offsets."""
    model = replace(MODELS[name], offset=0.0)
    return simulate(model, np.random.default_rng(5), schedule, effect=effect, noise=0.0)


def test_time_runs_as_in_the_product() -> None:
    seconds = SCHEDULE.seconds.ravel()
    assert np.diff(SCHEDULE.seconds.reshape(BLOCKS, -1)) == pytest.approx(0.1)
    assert np.diff(SCHEDULE.seconds[:, 0, 0]) == pytest.approx(2.5 + PASSES * len(ARMS) * 0.1)
    assert seconds[-1] == pytest.approx(16 * 2.5 + 28.8 - 0.05)


def test_orders_are_the_plans_and_balanced() -> None:
    assert (np.sort(SCHEDULE.order, axis=-1) == np.arange(len(ARMS))).all()
    for slot in range(len(ARMS)):
        counts = np.bincount(SCHEDULE.order[0, ..., slot].ravel())
        assert (counts == BLOCKS * PASSES // len(ARMS)).all()
    assert (SCHEDULE.order[0] != SCHEDULE.order[1]).any()


def test_samples_come_back_to_their_arms() -> None:
    values = SCHEDULE.order + 10.0 * np.arange(PASSES)[:, None]
    for arm, found in enumerate(by_arm(values, SCHEDULE)):
        assert (found == arm + 10.0 * np.arange(PASSES)).all()


def test_only_the_arm_is_planted_faster() -> None:
    base, twin, arm = by_arm(added("iid-0.2", effect=0.02), SCHEDULE)
    assert not base.any()
    assert not twin.any()
    assert arm == pytest.approx(-math.log(1.02))
    assert ARMS == ("base", TWIN, "arm")


@pytest.mark.parametrize("name", ["iid-0.2", "tails"])
def test_own_noise_has_its_size(name: str) -> None:
    model = replace(MODELS[name], offset=0.0, disturb=MODELS["iid-0.2"].disturb)
    values = simulate(model, np.random.default_rng(6), SCHEDULE)
    low, high = np.quantile(values, [0.159, 0.841])
    # A t3 of the same variance has two thirds of a normal's middle, and long tails.
    middle = {"iid-0.2": 1.0, "tails": 0.69}[name]
    assert values.std() == pytest.approx(NOISE, rel=0.05)
    assert (high - low) / 2 == pytest.approx(middle * NOISE, rel=0.03)


@pytest.mark.parametrize(("name", "size"), [("iid-0.1", 0.001), ("iid-0.3", 0.003)])
def test_offsets_belong_to_an_arm_in_a_process(name: str, size: float) -> None:
    values = by_arm(simulate(MODELS[name], np.random.default_rng(7), SCHEDULE, noise=0), SCHEDULE)
    assert np.ptp(values, axis=-1).max() == pytest.approx(0, abs=1e-12)
    offsets = values[..., 0]
    assert offsets.std() == pytest.approx(size, rel=0.03)
    assert abs(np.corrcoef(offsets[BASE].ravel(), offsets[ARM].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(offsets[ARM, :, 0], offsets[ARM, :, 1])[0, 1]) < 0.15


def test_drift_has_its_size_and_its_correlation_time() -> None:
    schedule = interleaved(np.arange(2000))
    values = added("drift", schedule).reshape(2000, -1)
    assert np.median(np.ptp(values, axis=1)) == pytest.approx(0.15, abs=0.01)
    seconds = schedule.seconds.ravel()
    # Within a block, from one to the next, and over half of the run.
    for first, second in ((0, 10), (17, 18), (0, 126)):
        gap = seconds[second] - seconds[first]
        found = np.corrcoef(values[:, first], values[:, second])[0, 1]
        assert found == pytest.approx(math.exp(-gap / 30), abs=0.06)


def test_ramp_goes_up_and_processes_start_cold() -> None:
    first, *_, last = added("ramp")[0].reshape(BLOCKS, -1)
    assert last[-1] - first[-1] == pytest.approx(0.10, abs=0.01)
    assert first[0] - first[-1] == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ("name", "factor", "share"),
    [
        ("tails", 1.5, 0.01),
        ("slow-samples", 1.8, 0.05),
        ("slow-blocks", 1.8, 0.2),
        ("slow-arms", 1.8, 0.1),
    ],
)
def test_modes_have_their_factor_and_share(name: str, factor: float, share: float) -> None:
    values = by_arm(added(name), SCHEDULE)
    assert np.unique(values) == pytest.approx([0, math.log(factor)])
    assert (values > 0).mean() == pytest.approx(share, rel=0.1)
    whole_arm = (np.ptp(values, axis=3) == 0).all()
    whole_block = (np.ptp(values, axis=(0, 3)) == 0).all()
    assert (whole_arm, whole_block) == (
        name in ("slow-arms", "slow-blocks"),
        name == "slow-blocks",
    )


def test_slot_effect() -> None:
    assert added("slot")[..., 0] == pytest.approx(0.003)
    assert not added("slot")[..., 1:].any()


def test_carry_over_meets_whoever_follows_the_arm() -> None:
    values = added("no-warm-up").reshape(RUNS, BLOCKS, -1)
    order = SCHEDULE.order.reshape(RUNS, BLOCKS, -1)
    assert not values[..., 0].any()
    hit = (order[..., :-1] == ARM) & (order[..., 1:] != ARM)
    assert values[..., 1:][hit] == pytest.approx(0.003)
    assert not values[..., 1:][~hit].any()
    assert added("carry-over") == pytest.approx(0.1 * added("no-warm-up"))


def test_consecutive_runs_have_as_many_samples_in_two_processes() -> None:
    schedule = consecutive(3)
    assert schedule.order.size == 3 * BLOCKS * PASSES * len(ARMS)
    assert (schedule.order[:, 0] == BASE).all()
    assert (schedule.order[:, 1] == ARM).all()
    gap = schedule.seconds[1, 0, 0] - schedule.seconds[0, -1, 0]
    assert gap == pytest.approx(2.5 + 0.1)
