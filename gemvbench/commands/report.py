"""`gemvbench report`: results of records again, as text or as a page with pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gemvbench.commands.output import check_output, emit
from gemvbench.errors import Exit, UserError
from gemvbench.kept_runs import latest_record
from gemvbench.legs.findings import find
from gemvbench.legs.record import is_legs_record, read_legs
from gemvbench.reading import read_lines, read_record
from gemvbench.report.comparison import comparison_document
from gemvbench.report.decode import decode_document
from gemvbench.report.document import Document
from gemvbench.report.formats import FORMATS, HTML
from gemvbench.report.gate import gate_document
from gemvbench.report.html.page import make_page
from gemvbench.report.html.picture import require_plots, save_pictures
from gemvbench.report.html.pictures import picture_groups
from gemvbench.report.legs_document import legs_document
from gemvbench.report.selftest_document import selftest_document
from gemvbench.report.side_by_side import Shown, side_by_side
from gemvbench.results import summarise
from gemvbench.selftest import examine

_ENDINGS = (".html", ".htm")


def run_report(options: argparse.Namespace) -> Exit:
    """The results of one record or several; nothing is measured."""
    to_page = options.output and options.output.lower().endswith(_ENDINGS)
    if to_page and options.format == "table":
        options.format = HTML
    check_output(options, (*FORMATS, HTML))
    if options.output and Path(options.output).exists() and not options.force:
        raise UserError(f"-o {options.output} exists; name a new file, or give --force.")
    if options.plots or options.format == HTML:
        require_plots("--plots" if options.plots else "--format html", options.plots)
    paths = _paths(options)
    if _has_legs(paths):
        return _report_legs(paths, options)
    runs = [_read(path) for path in paths]
    if options.plots:
        _save_plots(runs, Path(options.plots), force=options.force)
    emit(_together(runs), options, page=lambda: make_page(runs))
    return Exit.OK


def _paths(options: argparse.Namespace) -> list[Path]:
    if options.latest and options.records:
        raise UserError("Give records or --latest, not both.")
    if options.latest:
        return [latest_record()]
    if not options.records:
        raise UserError(
            "report needs a RECORD, or --latest; `gemvbench list runs` shows those kept."
        )
    return [Path(name) for name in options.records]


def _has_legs(paths: Sequence[Path]) -> bool:
    return any(lines and is_legs_record(lines[0]) for lines in map(read_lines, paths))


def _report_legs(paths: Sequence[Path], options: argparse.Namespace) -> Exit:
    """A record of `legs` by itself, as text: it holds no comparison to draw."""
    if len(paths) > 1 or options.plots or options.format == HTML:
        raise UserError(
            "A record of `gemvbench legs` is shown by itself and as text: leave out other "
            "records, --plots and HTML."
        )
    emit(legs_document(find(read_legs(paths[0], read_lines(paths[0])))), options)
    return Exit.OK


def _read(path: Path) -> Shown:
    run = read_record(path)
    summary = summarise(run)
    if run.header.settings.command == "selftest":
        document = selftest_document(examine(run))
    elif run.header.gate is not None:
        document = gate_document(summary)
    elif run.header.settings.command == "decode":
        document = decode_document(summary)
    else:
        document = comparison_document(summary)
    return Shown(path.name, summary, document)


def _together(runs: Sequence[Shown]) -> Document:
    """One document of all runs: side by side first, then each by itself."""
    if len(runs) == 1:
        return runs[0].document
    sections = [*side_by_side(runs), *(s for run in runs for s in run.document.sections)]
    records = [{"record": run.name, **row} for run in runs for row in run.document.records]
    return Document(tuple(sections), [run.document.data for run in runs], records)


def _save_plots(runs: Sequence[Shown], folder: Path, *, force: bool) -> None:
    """Pictures of each run as files; with several runs, each name begins with the run's number."""
    for number, run in enumerate(runs, 1):
        prefix = f"run{number}-" if len(runs) > 1 else ""
        pictures = {
            prefix + picture.name: picture
            for group in picture_groups(run.summary).values()
            for picture in group
        }
        save_pictures(pictures, folder, force=force)
