"""Tables of a simulation: how often each method is right, model by model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemvbench.report.document import Document, Section
from gemvbench.simulation import competitors, noise
from gemvbench.simulation.noise import MODELS
from gemvbench.simulation.study import METHODS, RULE, Cell, Plan

_COLUMNS = ("model", *METHODS, "coverage", "blocks", "timed", "wall")


def simulation_document(plan: Plan, cells: Sequence[Cell]) -> Document:
    """One table for no difference and one for each planted effect."""
    effects = sorted({cell.effect for cell in cells})
    sections = [_section(plan, [c for c in cells if c.effect == effect]) for effect in effects]
    records = [_record(cell) for cell in cells]
    return Document(tuple(sections), {"plan": plan, "cells": cells}, records)


def _section(plan: Plan, cells: Sequence[Cell]) -> Section:
    effect, runs = cells[0].effect, cells[0].runs
    if effect:
        title = f"An arm that is {effect:.1%} faster: found in so many of {runs} runs"
        return _table(title, cells, Cell.found, ())
    title = f"No difference: false alarms in {runs} runs"
    return _table(title, cells, Cell.alarms, _notes(plan))


def _table(
    title: str, cells: Sequence[Cell], share: Callable[[Cell, str], float], notes: tuple[str, ...]
) -> Section:
    rows = tuple(
        (
            MODELS[cell.model].title,
            *(f"{share(cell, method):.2%}" for method in METHODS),
            f"{cell.coverage:.2%}",
            f"{cell.mean_blocks:.1f}",
            f"{cell.seconds:.1f} s",
            f"{cell.wall_seconds:.1f} s",
        )
        for cell in cells
    )
    return Section(title, _COLUMNS, rows, notes=notes)


def _notes(plan: Plan) -> tuple[str, ...]:
    offset = noise.OFFSET if plan.offset is None else plan.offset
    told = " where not said otherwise" if plan.offset is None else ", whatever a title says"
    return (
        f"Noise {plan.noise:.2%} a measurement of {noise.SLOT_SECONDS:g} s; offsets by arm and "
        f"process {offset:.2%}{told}.",
        f"{RULE}: stops by itself at a look; coverage, blocks, timed seconds (all arms "
        "together) and wall time are those of its mean run. min-effect is half of what is "
        "planted, 0 for none.",
        f"Welch: unpaired t test at {competitors.WELCH_LEVEL:.0%}; Mann-Whitney: as asv has it, "
        f"p < {competitors.ASV_LEVEL:g}; both on all blocks of the same runs, stopped or not.",
        "medians: as many measurements, each arm's one after the other in a process of its own; "
        f"a difference is what exceeds {competitors.MEDIANS_THRESHOLD:.0%}.",
    )


def _record(cell: Cell) -> dict[str, object]:
    """Flat: counts by method."""
    counts = {
        f"{method} {side}": count
        for method in METHODS
        for side, count in (("faster", cell.faster[method]), ("slower", cell.slower[method]))
    }
    return {
        "model": cell.model,
        "effect": cell.effect,
        "runs": cell.runs,
        **counts,
        "covered": cell.covered,
        "blocks": cell.mean_blocks,
        "timed_seconds": cell.seconds,
        "wall_seconds": cell.wall_seconds,
    }
