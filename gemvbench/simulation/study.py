"""How often the rule is right, and what others say: many runs of each model and effect.

Work is cut into parts of a fixed size with a seed each, so that results do not depend on how
many processes share it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import msgspec
import numpy as np
from numpy.typing import NDArray

from gemvbench import stats
from gemvbench.interrupts import ignore_interrupts
from gemvbench.simulation import competitors, noise
from gemvbench.simulation.noise import ARMS, MODELS, Floats

EFFECTS = (0.003, 0.005, 0.01, 0.02)
CONFIDENCE = 0.99
RULE, WELCH, MANN_WHITNEY, MEDIANS = METHODS = (
    "gemvbench",
    "Welch",
    "Mann-Whitney",
    "medians",
)
_PART = 250

Signs = dict[str, NDArray[np.int64]]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to simulate."""

    models: tuple[str, ...] = tuple(MODELS)
    runs: int = 10_000
    """A/A runs of each model."""
    effect_runs: int = 2_000
    """Runs of each model and planted effect."""
    seed: int = 1
    noise: float = noise.NOISE
    offset: float | None = None
    """In place of the models' own."""


class Part(msgspec.Struct, frozen=True):
    """Some of the runs of one model and effect."""

    model: str
    effect: float
    number: int
    runs: int
    seed: int
    noise: float
    offset: float | None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the runs of one model and effect; 0 is A/A."""

    model: str
    effect: float
    runs: int
    faster: dict[str, int]
    slower: dict[str, int]
    covered: int
    """Runs whose last interval holds the true ratio."""
    blocks: int
    """Blocks of all runs together, each until it stopped."""

    def alarms(self, method: str = RULE) -> float:
        """Share of runs with a difference that is not there."""
        return (self.faster[method] + self.slower[method]) / self.runs

    def found(self, method: str = RULE) -> float:
        """Share of runs in which the planted effect is found; the arm is faster."""
        return self.faster[method] / self.runs

    @property
    def coverage(self) -> float:
        return self.covered / self.runs

    @property
    def mean_blocks(self) -> float:
        return self.blocks / self.runs

    @property
    def seconds(self) -> float:
        """Of timed device intervals in the mean run, all arms together."""
        return self.mean_blocks * noise.PASSES * len(ARMS) * noise.SLOT_SECONDS

    @property
    def wall_seconds(self) -> float:
        """Of the mean run, the start of its processes included."""
        return self.seconds + self.mean_blocks * noise.START_SECONDS


@dataclass(frozen=True)
class Example:
    """One simulated run, to be drawn: its one row of logs, and what the rule said of it."""

    schedule: noise.Schedule
    logs: Floats
    effects: Floats
    """One for each block, on the log scale."""
    judgement: stats.Judgement
    blocks: int
    """Blocks at the stop."""
    effect: float


def make_rule(effect: float) -> stats.Rule:
    """The product's rule with min-effect at half of a planted effect.

    In A/A it is 0: SAME then never ends a run, and every look is one more chance to be wrong.
    """
    level = stats.family_level(CONFIDENCE, 1, len(stats.LOOKS))
    return stats.Rule(level=level, looks=stats.LOOKS, min_effect=effect / 2)


def run_rule(
    rule: stats.Rule, base: Floats, twin: Floats, arm: Floats
) -> tuple[stats.Judgement, int]:
    """The judgement at which a run [blocks, passes] stops, and how many blocks it took."""
    for look in rule.looks:
        judgement = stats.judge(arm[:look], base[:look], twin[:look], rule)
        if judgement.verdict != "UNDECIDED":
            break
    return judgement, look


def measure(part: Part) -> Cell:
    """One part. The others get all blocks of every run, stopped or not."""
    model, draw = _model(part), _draw(part)
    schedule = noise.interleaved(draw.integers(0, 2**31, part.runs))
    logs = noise.simulate(model, draw, schedule, effect=part.effect, noise=part.noise)
    base, twin, arm = noise.by_arm(logs, schedule)
    rule, truth = make_rule(part.effect), math.log1p(part.effect)
    stops = [run_rule(rule, *run) for run in zip(base, twin, arm, strict=True)]
    signs = _others(part, base, twin, arm, draw)
    verdicts = [judgement.verdict for judgement, _ in stops]
    return Cell(
        model=part.model,
        effect=part.effect,
        runs=part.runs,
        faster={RULE: verdicts.count("FASTER")}
        | {name: int((sign > 0).sum()) for name, sign in signs.items()},
        slower={RULE: verdicts.count("SLOWER")}
        | {name: int((sign < 0).sum()) for name, sign in signs.items()},
        covered=sum(j.interval.low <= truth <= j.interval.high for j, _ in stops),
        blocks=sum(blocks for _, blocks in stops),
    )


def _add(one: Cell, more: Cell) -> Cell:
    return Cell(
        model=one.model,
        effect=one.effect,
        runs=one.runs + more.runs,
        faster={name: count + more.faster[name] for name, count in one.faster.items()},
        slower={name: count + more.slower[name] for name, count in one.slower.items()},
        covered=one.covered + more.covered,
        blocks=one.blocks + more.blocks,
    )


def study(plan: Plan, jobs: int, advance: Callable[[], None]) -> list[Cell]:
    """All cells of a plan, models in their order, effects from 0 up.

    Args:
        jobs: processes that share the work.
        advance: called once for each part of `parts(plan)`.
    """
    cells: dict[tuple[str, float], Cell] = {}
    for cell in _work(parts(plan), jobs):
        place = cell.model, cell.effect
        cells[place] = _add(cells[place], cell) if place in cells else cell
        advance()
    return list(cells.values())


def example(seed: int) -> Example:
    """A run on a drifting machine, with an arm that is 1 % faster."""
    effect = EFFECTS[2]
    draw = np.random.default_rng(seed)
    schedule = noise.interleaved(np.array([seed]))
    logs = noise.simulate(MODELS["drift"], draw, schedule, effect=effect)
    base, twin, arm = (array[0] for array in noise.by_arm(logs, schedule))
    judgement, blocks = run_rule(make_rule(effect), base, twin, arm)
    effects = stats.clean_effects(arm, [base, twin])
    return Example(schedule, logs, stats.block_effects(effects), judgement, blocks, effect)


def parts(plan: Plan) -> list[Part]:
    found = []
    for model in plan.models:
        for effect in (0.0, *EFFECTS):
            left = plan.effect_runs if effect else plan.runs
            for number in range(math.ceil(left / _PART)):
                runs = min(_PART, left - number * _PART)
                found.append(Part(model, effect, number, runs, plan.seed, plan.noise, plan.offset))
    return found


def _work(todo: Sequence[Part], jobs: int) -> Iterable[Cell]:
    if jobs == 1:
        yield from map(measure, todo)
        return
    # A fork would copy threads of numerical libraries in the middle of their work.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=ignore_interrupts)
    try:
        yield from pool.map(measure, todo)
    finally:
        pool.shutdown(cancel_futures=True)


def _model(part: Part) -> noise.Model:
    model = MODELS[part.model]
    return model if part.offset is None else replace(model, offset=part.offset)


def _draw(part: Part) -> np.random.Generator:
    words = (part.seed, zlib.crc32(part.model.encode()), round(part.effect * 1e6), part.number)
    return np.random.default_rng(words)


def _others(part: Part, base: Floats, twin: Floats, arm: Floats, draw: noise.Draw) -> Signs:
    """Signs by method: on the very samples unpaired, and on as many taken consecutively."""
    own = np.exp(arm).reshape(part.runs, -1)
    theirs = np.exp(np.concatenate([base, twin], axis=2)).reshape(part.runs, -1)
    schedule = noise.consecutive(part.runs)
    logs = noise.simulate(_model(part), draw, schedule, effect=part.effect, noise=part.noise)
    first, second = np.moveaxis(np.exp(logs[..., 0]), 1, 0)
    return {
        WELCH: competitors.welch(theirs, own),
        MANN_WHITNEY: competitors.mann_whitney(theirs, own),
        MEDIANS: competitors.medians(first, second),
    }
