"""`gemvbench tune`: search the best arm for shapes on a device, for `auto` to take."""

from __future__ import annotations

import argparse
from pathlib import Path

from gemvbench.attention_case import Attention
from gemvbench.budget import TOO_SMALL, Budget
from gemvbench.case import Gemv
from gemvbench.commands.ab import exit_code
from gemvbench.commands.output import Bar, check_output, emit, warn
from gemvbench.commands.selection import (
    choose_cases,
    choose_device,
    find_devices,
    parse_seconds,
    parse_share,
)
from gemvbench.commands.setup import check_seed
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.folders import tables_folder
from gemvbench.record import Settings
from gemvbench.report.tuned import tuned_document
from gemvbench.tune_plan import Found
from gemvbench.tuner import Tuner
from gemvbench.tuning_files import read_table, store_row, table_path

_SHAPE_SECONDS = 120.0
"""The budget of a shape, where none is given."""


def run_tune(options: argparse.Namespace) -> Exit:
    """Search shape by shape; what was found is stored at once."""
    check_output(options)
    check_seed(options.seed)
    device = choose_device(find_devices(), options.device)
    cases = [c for c in choose_cases(options, device) if isinstance(c, Gemv | Attention)]
    seconds = parse_seconds(options.budget) if options.budget else _SHAPE_SECONDS * len(cases)
    _check_table(device)
    settings = Settings(
        command="tune",
        seed=options.seed,
        confidence=parse_share("--confidence", options.confidence, 0.5, 1.0),
        min_effect=parse_share("--min-effect", options.min_effect, 0.0, 1.0),
    )
    found, path, budget = list[Found](), None, Budget(seconds)
    with Bar() as bar:
        tuner = Tuner(device, settings, options.arguments, bar, warn)
        for case in cases:
            found.append(tuner.search(case, budget, afresh=options.afresh))
            row = found[-1].row
            path = store_row(row, device) if row else path
            if _ended(found[-1]) not in ("complete", "budget", TOO_SMALL):
                break
    emit(tuned_document(found, device, path), options)
    return _exit_code(found)


def _check_table(device: DeviceInfo) -> None:
    """Refuse before any work a table into which nothing can be stored."""
    path: Path = table_path(tables_folder(), device)
    try:
        read_table(path, device)
    except UserError as error:
        raise UserError(f"tune has no place for what it finds. {error}") from error


def _ended(found: Found) -> str:
    return found.summaries[-1].ended if found.summaries else "complete"


def _exit_code(found: list[Found]) -> Exit:
    """The worst of all rounds; a budget that left something for the next time is no fault."""
    codes = [exit_code(summary) for each in found for summary in each.summaries]
    for code in (Exit.WRONG, Exit.NO_DEVICE):
        if code in codes:
            return code
    return Exit.OK if any(each.row for each in found) else Exit.USAGE
