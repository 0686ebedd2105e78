"""Noise as machines make it: log seconds of many runs at once, in the order of time. Pure.

A run is that of the product: blocks that are processes, passes in a block, and in each pass a
slot for the baseline, its twin and one arm, in the plan's own orders. To every measurement come
noise of its own, an offset of its arm in its process, and what the model adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gemvbench.plan import TWIN, orders
from gemvbench.stats import LOOKS

ARMS = ("base", TWIN, "arm")
BASE, ARM = 0, 2
BLOCKS = LOOKS[-1]
PASSES = 6
SLOT_SECONDS = 0.1
START_SECONDS = 2.5
"""From the end of a block to the first slot of the next: a process, its inputs, its kernels."""

NOISE = 0.003 * math.sqrt(3)
"""Standard deviation of the log of one slot, 0.52 %: what averages to 0.3 % over three of them."""

OFFSET = 0.002
DRIFT_SECONDS = 30.0
DRIFT = 0.0587
"""Standard deviation that gives the median run 15 % from peak to peak."""

RAMP = 0.10
COLD, COLD_SECONDS = 0.05, 0.5
SPIKE, SPIKE_SHARE = math.log(1.5), 0.01
SLOW = math.log(1.8)
SLOW_SAMPLES, SLOW_BLOCKS, SLOW_ARMS = 0.05, 0.2, 0.1
SLOT_EFFECT = 0.003
CARRY_OVER = 0.003
CARRIED_THROUGH = 0.1
"""Share of it that is left after the untimed run which goes before every timed one."""

_PLANS = 1000

Floats = NDArray[np.float64]
Draw = np.random.Generator


@dataclass(frozen=True)
class Schedule:
    """Who runs when. `order` [runs, blocks, passes, slots] holds indices into ARMS, `seconds`
    [blocks, passes, slots] the middle of each slot since the start of the run."""

    order: NDArray[np.int64]
    seconds: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        return self.order.shape

    def spread(self, values: Floats) -> Floats:
        """Values [runs, arms, blocks] to the slots in which those arms run."""
        runs, blocks = np.ogrid[: self.shape[0], : self.shape[1]]
        picked: Floats = values[runs[..., None, None], self.order, blocks[..., None, None]]
        return picked


def _nothing(draw: Draw, schedule: Schedule) -> Floats:
    return np.zeros(schedule.shape)


def _normal(draw: Draw, shape: tuple[int, ...]) -> Floats:
    return draw.standard_normal(shape)


def _student3(draw: Draw, shape: tuple[int, ...]) -> Floats:
    return draw.standard_t(3, shape) / math.sqrt(3)


@dataclass(frozen=True)
class Model:
    """What a machine adds to measurements. `unit` is noise of unit variance."""

    name: str
    title: str
    disturb: Callable[[Draw, Schedule], Floats] = _nothing
    unit: Callable[[Draw, tuple[int, ...]], Floats] = _normal
    offset: float = OFFSET
    """Standard deviation of an arm's offset in one process."""

    guarded: bool = True
    """Whether the product's protocol is followed; if not, the model shows why it is."""


def interleaved(seeds: NDArray[np.int64]) -> Schedule:
    """The product's orders, one run for each seed."""
    order = np.stack([_plan(int(seed) % _PLANS) for seed in seeds])
    return Schedule(order, _seconds(BLOCKS, PASSES, len(ARMS)))


def consecutive(runs: int) -> Schedule:
    """As many measurements, all of the baseline in one process, then all of the arm in another."""
    samples = BLOCKS * PASSES * len(ARMS) // 2
    order = np.empty((runs, 2, samples, 1), np.int64)
    order[:, 0], order[:, 1] = BASE, ARM
    return Schedule(order, _seconds(2, samples, 1))


def simulate(
    model: Model, draw: Draw, schedule: Schedule, *, effect: float = 0.0, noise: float = NOISE
) -> Floats:
    """Log seconds [runs, blocks, passes, slots] in the order of time.

    Args:
        effect: how much faster than the baseline the arm is, as a ratio less 1.
        noise: standard deviation of one slot's own noise.
    """
    runs, blocks = schedule.shape[:2]
    offsets = schedule.spread(draw.normal(0, model.offset, (runs, len(ARMS), blocks)))
    planted = np.where(schedule.order == ARM, math.log1p(effect), 0.0)
    own = noise * model.unit(draw, schedule.shape)
    return own + offsets + model.disturb(draw, schedule) - planted


def by_arm(logs: Floats, schedule: Schedule) -> Floats:
    """From the order of time to [arms, runs, blocks, passes]; every arm runs once a pass."""
    where = np.argsort(schedule.order, axis=-1)
    return np.moveaxis(np.take_along_axis(logs, where, axis=-1), -1, 0)


@cache
def _plan(seed: int) -> NDArray[np.int64]:
    rows = list(islice(orders(ARMS, seed), BLOCKS * PASSES))
    indices = [[ARMS.index(arm) for arm in row] for row in rows]
    return np.array(indices, np.int64).reshape(BLOCKS, PASSES, len(ARMS))


def _seconds(blocks: int, passes: int, slots: int) -> Floats:
    within = (np.arange(passes * slots) + 0.5) * SLOT_SECONDS
    starts = START_SECONDS + np.arange(blocks) * (START_SECONDS + passes * slots * SLOT_SECONDS)
    return (starts[:, None] + within).reshape(blocks, passes, slots)


def _drift(draw: Draw, schedule: Schedule) -> Floats:
    """AR(1) in continuous time, going on between blocks."""
    steps = np.diff(schedule.seconds.ravel(), prepend=-math.inf)
    values = draw.standard_normal((len(steps), schedule.shape[0]))
    for number, kept in enumerate(np.exp(-steps / DRIFT_SECONDS)):
        values[number] *= math.sqrt(1 - kept**2)
        if number:
            values[number] += kept * values[number - 1]
    return DRIFT * values.T.reshape(schedule.shape)


def _ramp(draw: Draw, schedule: Schedule) -> Floats:
    """Slower all the time, and every process starts cold."""
    run = schedule.seconds / schedule.seconds[-1, -1, -1]
    block = schedule.seconds - schedule.seconds[:, :1, :1]
    shape = RAMP * run + COLD * np.exp(-block / COLD_SECONDS)
    return np.broadcast_to(shape, schedule.shape)


def _spikes(draw: Draw, schedule: Schedule) -> Floats:
    return np.where(draw.random(schedule.shape) < SPIKE_SHARE, SPIKE, 0.0)


def _slow_samples(draw: Draw, schedule: Schedule) -> Floats:
    return np.where(draw.random(schedule.shape) < SLOW_SAMPLES, SLOW, 0.0)


def _slow_blocks(draw: Draw, schedule: Schedule) -> Floats:
    slow = draw.random((*schedule.shape[:2], 1, 1)) < SLOW_BLOCKS
    return np.broadcast_to(np.where(slow, SLOW, 0.0), schedule.shape)


def _slow_arms(draw: Draw, schedule: Schedule) -> Floats:
    runs, blocks = schedule.shape[:2]
    slow = draw.random((runs, len(ARMS), blocks)) < SLOW_ARMS
    return schedule.spread(np.where(slow, SLOW, 0.0))


def _slot(draw: Draw, schedule: Schedule) -> Floats:
    """The first slot of each pass is slower."""
    effect = np.zeros(schedule.shape)
    effect[..., 0] = SLOT_EFFECT
    return effect


def _carry_over(draw: Draw, schedule: Schedule) -> Floats:
    """Whatever runs after the arm is slower, but not the arm itself."""
    runs, blocks, *_ = schedule.shape
    order = schedule.order.reshape(runs, blocks, -1)
    after = np.zeros(order.shape, bool)
    after[..., 1:] = (order[..., :-1] == ARM) & (order[..., 1:] != ARM)
    return np.where(after.reshape(schedule.shape), CARRY_OVER, 0.0)


def _carried_through(draw: Draw, schedule: Schedule) -> Floats:
    return CARRIED_THROUGH * _carry_over(draw, schedule)


MODELS = {
    model.name: model
    for model in (
        Model("iid-0.1", "independent noise, offsets of 0.1 %", offset=0.001),
        Model("iid-0.2", "independent noise, offsets of 0.2 %"),
        Model("iid-0.3", "independent noise, offsets of 0.3 %", offset=0.003),
        Model("drift", "AR(1) drift, 15 % peak to peak, over 30 s", _drift),
        Model("ramp", "ramp of 10 %, each process starts 5 % slow", _ramp),
        Model("tails", "t3 tails, 1 % spikes of +50 %", _spikes, _student3),
        Model("slow-samples", "slow mode (1.8x), 5 % of measurements", _slow_samples),
        Model("slow-blocks", "slow mode, 20 % of blocks", _slow_blocks),
        Model("slow-arms", "slow mode, 10 % of arms by block", _slow_arms),
        Model("slot", "first slot of a pass 0.3 % slower", _slot),
        Model("carry-over", "carry-over of 0.3 %", _carried_through),
        Model(
            "no-warm-up",
            "carry-over of 0.3 % without the untimed run",
            _carry_over,
            guarded=False,
        ),
    )
}
"""By name; offsets are 0.2 % where a title does not say otherwise."""
