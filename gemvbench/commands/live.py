"""Progress on a terminal: a bar, and over it the table of a run that goes on.

Drawn by the main thread at the moments it is told of, between processes that measure: a thread
that redraws would take time from a machine with few cores while it is measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from gemvbench.progress import Pace
from gemvbench.record import Run
from gemvbench.report.document import Section

_BETWEEN = 0.1
"""Seconds between two drawings of a bar that advances often."""


class Display:
    """On standard error where that is a terminal that rich can redraw, and nothing elsewhere."""

    def __init__(self) -> None:
        self._live: Any = None
        self._bar: Any = None
        self._section: Section | None = None
        self._drawn = 0.0

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeElapsedColumn as Elapsed

            console = Console(stderr=True, highlight=False)
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, Elapsed(), console=console, auto_refresh=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            with _terminal_may_be_gone():
                self._live.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._live is not None:
            with _terminal_may_be_gone():
                self._live.update("")  # what is taller than the terminal could not be taken back
                self._live.stop()

    def stage(self, text: str, total: int) -> None:
        """A new bar, and no table."""
        if self._live is None:
            return
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(text, total=total)
        self._section = None
        self._draw()

    def advance(self) -> None:
        if self._live is None or not self._bar.task_ids:
            return
        self._bar.advance(self._bar.task_ids[-1])
        if self._bar.finished or time.monotonic() - self._drawn >= _BETWEEN:
            self._draw()

    def block(self, run: Run, pace: Pace) -> None:
        """The table as it stands before the first block and after each."""
        if self._live is None:
            return
        from gemvbench.report.live import live_section

        self._section = live_section(run, pace, self._live.console.height)
        self._bar.update(self._bar.task_ids[-1], completed=pace.done)
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        from gemvbench.report.formats import rich_table

        parts: list[Any] = [self._bar]
        if self._section is not None:
            section = self._section
            title = [Text(section.title, "bold")] if section.title else []
            notes = [Text(note, "dim") for note in section.notes]
            parts = [*title, rich_table(section), *notes, self._bar]
        with _terminal_may_be_gone():
            self._live.update(Group(*parts), refresh=True)
        self._drawn = time.monotonic()


@contextlib.contextmanager
def _terminal_may_be_gone() -> Iterator[None]:
    """A terminal that was closed costs no run its result."""
    with contextlib.suppress(OSError, ValueError):
        yield
