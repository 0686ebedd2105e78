"""`gemvbench simulate`: how often the rule is right, by simulated runs. No device is opened."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gemvbench.commands.output import Bar, check_output, emit, warn
from gemvbench.commands.selection import parse_share
from gemvbench.errors import Exit, UserError
from gemvbench.report.html.picture import require_plots
from gemvbench.report.plots import draw_power, draw_run
from gemvbench.report.simulated import simulation_document
from gemvbench.simulation.noise import MODELS, NOISE
from gemvbench.simulation.study import Plan, example, parts, study


def run_simulate(options: argparse.Namespace) -> Exit:
    """Simulate the models and print false alarms, coverage and power."""
    check_output(options)
    plan = make_plan(options)
    jobs = _at_least("--jobs", _cores() if options.jobs is None else options.jobs, 1)
    folder = Path(options.plots) if options.plots else None
    if folder is not None:
        require_plots("--plots", options.plots)
    with Bar() as bar:
        bar.stage("simulating", len(parts(plan)))
        cells = study(plan, jobs, bar.advance)
    if folder is not None:
        draw_run(example(plan.seed), folder / "run.svg")
        draw_power(cells, folder / "power.svg")
        warn(f"run.svg and power.svg are in {folder}.")
    emit(simulation_document(plan, cells), options)
    return Exit.OK


def make_plan(options: argparse.Namespace) -> Plan:
    """What to simulate.

    Raises:
        UserError: an unknown model or a number outside its range.
    """
    models = tuple(dict.fromkeys(options.noise_model or MODELS))
    for name in models:
        if name not in MODELS:
            raise UserError(f"--model {name!r} is unknown; use {', '.join(MODELS)}.")
    return Plan(
        models=models,
        runs=_at_least("--runs", options.runs, 1),
        effect_runs=_at_least("--effect-runs", options.effect_runs, 0),
        seed=_at_least("--seed", options.seed, 0),
        noise=parse_share("--noise", options.noise, 0.0, 1.0) if options.noise else NOISE,
        offset=parse_share("--offset", options.offset, 0.0, 1.0) if options.offset else None,
    )


def _at_least(option: str, value: int, least: int) -> int:
    if value < least:
        raise UserError(f"{option} {value} has to be {least} or more.")
    return value


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
