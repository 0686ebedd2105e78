"""Where documents go, and progress on standard error."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gemvbench.errors import Exit, UserError
from gemvbench.report.document import Document
from gemvbench.report.formats import FORMATS, HTML, render


def check_output(options: argparse.Namespace, formats: Iterable[str] = tuple(FORMATS)) -> None:
    """Refuse an unknown format or an output that cannot be written, before any work.

    Raises:
        UserError: with what to do.
    """
    if options.format not in formats:
        raise UserError(f"--format {options.format!r} is unknown; use {', '.join(formats)}.")
    if options.output is None:
        return
    target = Path(options.output)
    try:
        is_folder, has_folder = target.is_dir(), target.absolute().parent.is_dir()
    except OSError as error:
        raise UserError(f"-o {target} cannot be written ({error.strerror}).") from error
    if not has_folder:
        raise UserError(f"-o {target}: there is no such folder; create it first.")
    if is_folder:
        raise UserError(f"-o {target} is a folder; name a file in it.")


def emit(
    document: Document, options: argparse.Namespace, page: Callable[[], str] | None = None
) -> None:
    """Print, or write to -o; what cannot be written is printed, so that it is not lost.

    `page` makes what a document itself has no format for.
    """
    if options.output is None:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        _print(_rendered(document, options, page, color=color))
        return
    text = _rendered(document, options, page)
    try:
        Path(options.output).write_text(text)
    except OSError as error:
        if options.format == HTML:
            raise UserError(f"-o {options.output} cannot be written ({error.strerror}).") from error
        _print(text)
        raise UserError(
            f"-o {options.output} cannot be written ({error.strerror}); the result was printed "
            "to standard output instead.",
            Exit.USAGE,
        ) from error


def _rendered(
    document: Document,
    options: argparse.Namespace,
    page: Callable[[], str] | None,
    *,
    color: bool = False,
) -> str:
    if options.format == HTML and page is not None:
        return page()
    return render(document, options.format, color=color)


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What the interpreter would flush at its exit goes nowhere either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UserError(
            f"Standard output cannot be written ({error.strerror}). A run keeps its samples in a "
            "record; `gemvbench report RECORD` shows its result again."
        ) from error


def warn(text: str) -> None:
    """A line on standard error; where that is closed or full, nothing else is lost for it."""
    with contextlib.suppress(OSError, AttributeError):
        print(f"gemvbench: {text}", file=sys.stderr)


class Bar:
    """A progress bar on standard error where that is a terminal, and nothing elsewhere."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeElapsedColumn as Elapsed

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                Elapsed(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str, total: int) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(text, total=total)

    def advance(self, text: str = "") -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)
