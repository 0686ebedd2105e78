"""What a command has to say, apart from the format it is said in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TextPlot:
    """A column of small pictures in text, which only a wide terminal shows."""

    title: str
    cells: tuple[str, ...]
    """One for each row; all as wide as the title, or empty."""
    after: str
    """The column that it stands behind."""
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A titled table of ready cells, with lines of text above and below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    plots: tuple[TextPlot, ...] = ()


@dataclass(frozen=True)
class Document:
    """Sections for people, an object for JSON, and flat records for CSV."""

    sections: tuple[Section, ...]
    data: Any
    records: Sequence[dict[str, Any]]
    markdown: str = ""
    """The whole text as Markdown, where that is not the sections as they stand."""
