"""`gemvbench ab` and `gemvbench sweep`: paired comparison on one machine."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gemvbench.arm import ALL_AXES, FAMILIES, Arm, parse_arm
from gemvbench.budget import TOO_SMALL
from gemvbench.case import WEIGHT_TYPES
from gemvbench.checkout import Commit, resolve
from gemvbench.commands.attention import default_baseline
from gemvbench.commands.live import Display
from gemvbench.commands.output import check_output, emit, warn
from gemvbench.commands.selection import parse_seconds, parse_share
from gemvbench.commands.setup import Beside, Setup, prepare
from gemvbench.errors import Exit, UserError
from gemvbench.interrupts import ignore_interrupts
from gemvbench.plan import REGIMES, TWIN
from gemvbench.record import GridCell, Header, Recorder, Settings, default_path
from gemvbench.report.closing import refusal
from gemvbench.report.comparison import comparison_document
from gemvbench.report.document import Document
from gemvbench.report.dry import dry_document
from gemvbench.results import Summary, summarise
from gemvbench.run import Conductor
from gemvbench.stats import LOOKS, MORE_LOOKS

Cells = dict[tuple[str, str], Arm]
"""Arms of a grid by (row, column)."""

_SWEEPS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "row": {"pack": (0, 1, 2), "rows": (1, 2, 4)},
    "quant": {"repack": (0, 1), "xq": (0, 8)},
}


def run_ab(options: argparse.Namespace) -> Exit:
    """Compare arms with a baseline."""
    check_output(options)
    if not options.arm:
        raise UserError("ab needs at least one --arm, for example `gemvbench ab --arm pack2`.")
    against = against_commit(options)
    arms = [parse_arm(text) for text in options.arm]
    if against is None:
        arms = [parse_arm(options.baseline or default_baseline(options.op)), *arms]
    path = record_path(options)
    setup = prepare(options, arms, make_settings(options), beside=Beside(against=against))
    return conduct(options, setup, path, comparison_document)


def run_sweep(options: argparse.Namespace) -> Exit:
    """Compare a grid of arms with its first cell, or with --baseline."""
    check_output(options)
    cells = grid_cells(options)
    names = options.device.split(",") if options.device else [None]
    options.device = names[0]
    arms = [msgspec.structs.replace(arm, device=name) for name in names for arm in cells.values()]
    against = against_commit(options)
    if against is None:
        arms = [parse_arm(options.baseline) if options.baseline else arms[0], *arms]
    path = record_path(options)
    setup = prepare(options, arms, make_settings(options), beside=Beside(against=against))
    return conduct(options, setup, path, comparison_document, grid=_make_grid(setup, cells))


def against_commit(options: argparse.Namespace) -> Commit | None:
    """The commit of --against, whose arms are the baselines.

    Raises:
        UserError: it is not here, or there is a --baseline too.
    """
    if options.against is None:
        return None
    if options.baseline:
        raise UserError(
            f"--against {options.against} makes each arm's baseline the arm itself as it stood "
            "there; leave --baseline out, or compare with one arm, as in --baseline "
            f"pack2@{options.against}."
        )
    return resolve(options.against)


def grid_cells(options: argparse.Namespace) -> Cells:
    """Arms by (row, column): the first axis across, all others down, as S2 prints it."""
    given = {axis: getattr(options, axis) for axis in ALL_AXES if getattr(options, axis)}
    family = options.family or ("row" if options.weights in WEIGHT_TYPES else "quant")
    if family not in FAMILIES:
        raise UserError(f"--family {family!r} is unknown; known are {', '.join(FAMILIES)}.")
    if not given and family not in _SWEEPS:
        raise UserError(f"sweep --family {family} needs the axes to vary, as in --pack 0,1")
    axes = {axis: text.split(",") for axis, text in given.items()} or {
        axis: [str(value) for value in values] for axis, values in _SWEEPS[family].items()
    }
    across, *down = axes
    cells = {}
    for lower in itertools.product(*(axes[axis] for axis in down)):
        row = "+".join(f"{axis}{value.strip()}" for axis, value in zip(down, lower, strict=True))
        for value in axes[across]:
            column = f"{across}{value.strip()}"
            text = "+".join(filter(None, (family, row, column)))
            cells[row, column] = parse_arm(text)
    return cells


def conduct(
    options: argparse.Namespace,
    setup: Setup,
    path: Path,
    document: Callable[[Summary], Document],
    **marks: Any,
) -> Exit:
    """Run what was prepared, or show its plan; `marks` go into the record's header.

    Raises:
        UserError: there is nothing to compare with the baseline, or a budget too small.
    """
    if len({choice.label for choice in setup.contests[0].choices}) == 1:
        raise UserError(
            f"Arm {setup.baseline} is the baseline itself, which every run already measures "
            "twice (the twin `aa`). Name another --arm or another --baseline."
        )
    if options.dry_run:
        emit(dry_document(setup.contests, setup.settings, setup.devices), options)
        return Exit.OK
    summary = measure(setup, setup.header(options.arguments), path, **marks)
    code = exit_code(summary, fail_on_slower=options.fail_on_slower)
    if code == Exit.USAGE:
        raise UserError(refusal(summary))
    emit(document(summary), options)
    return code


def measure(setup: Setup, header: Header, path: Path, **marks: Any) -> Summary:
    """Run what was prepared; `marks` go into the record's header."""
    recorder = Recorder(msgspec.structs.replace(header, **marks), path)
    with Display() as display:
        run = Conductor(setup.settings, setup.devices, recorder, display).compare(setup.contests)
        ignore_interrupts()  # what was measured is shown, whatever is pressed now
    if recorder.is_kept:
        warn(f"samples are in {path}; `gemvbench report {path}` shows them again.")
    return summarise(run)


def record_path(options: argparse.Namespace) -> Path:
    """Where the samples go. Raises UserError rather than write over an earlier record."""
    if not options.record:
        return default_path(options.command)
    path = Path(options.record)
    if not path.absolute().parent.is_dir():
        raise UserError(f"--record {path}: there is no such folder; create it first.")
    if path.is_file():
        raise UserError(f"--record {path} exists; name a new file, or remove it first.")
    return path


def _make_grid(setup: Setup, cells: Cells) -> tuple[GridCell, ...]:
    """The sweep's cells with the labels that its arms got, device by device."""
    places = {arm.name: place for place, arm in cells.items()}
    return tuple(
        GridCell(
            row=places[choice.arm][0],
            column=places[choice.arm][1],
            device=choice.device,
            label=choice.label,
        )
        for choice in setup.contests[0].choices
        if choice.arm in places
    )


def make_settings(options: argparse.Namespace, regimes: Sequence[str] = REGIMES) -> Settings:
    """The numbers of a run in one of some regimes.

    Raises:
        UserError: an unknown regime or a number outside its range.
    """
    if options.regime not in regimes:
        raise UserError(f"--regime {options.regime!r} is unknown; use {' or '.join(regimes)}.")
    return Settings(
        command=options.command,
        regime=options.regime,
        seed=options.seed,
        passes=3 if options.quick else 6,
        looks=_looks(options),
        confidence=parse_share("--confidence", options.confidence, 0.5, 1.0),
        min_effect=parse_share("--min-effect", options.min_effect, 0.0, 1.0),
        budget=parse_seconds(options.budget) if options.budget else None,
        quick=options.quick,
        rests=not options.no_rest,
    )


def _looks(options: argparse.Namespace) -> tuple[int, ...]:
    """The looks up to --blocks; where the run is to be quick, two.

    The second is there for blocks that disturbances left without a clean pair.
    """
    possible = LOOKS + MORE_LOOKS
    most = int(options.blocks) if options.blocks else LOOKS[1 if options.quick else -1]
    if most not in possible:
        raise UserError(
            f"--blocks {options.blocks!r}: a run is planned to "
            f"{', '.join(map(str, possible[:-1]))} or {possible[-1]} blocks."
        )
    return tuple(count for count in possible if count <= most)


def exit_code(summary: Summary, *, fail_on_slower: bool = False) -> Exit:
    """Wrong or failed arms weigh most, then a run cut short, then a regression if asked for."""
    arms = [r for r in summary.results if r.arm not in (TWIN, r.baseline)]
    verdicts = {result.verdict for result in summary.results}
    if verdicts & {"WRONG", "FAILED"}:
        return Exit.WRONG
    if summary.ended == TOO_SMALL:
        return Exit.USAGE
    compared = any(result.ratio is not None for result in arms)
    stopped = summary.ended not in ("complete", "budget")
    if stopped or summary.void or "INVALID" in verdicts or not compared:
        return Exit.NO_DEVICE
    slower = (r.verdict == "SLOWER" and "small" not in r.flags for r in arms)
    return Exit.REGRESSION if fail_on_slower and any(slower) else Exit.OK
