"""Documents as text: a table for a terminal, markdown, CSV, JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Literal

import msgspec

from gemvbench.report.document import Document, Section

HTML = "html"
"""A page with pictures, which `report` makes of whole runs."""

VERDICT_STYLES = {
    "FASTER": "green",
    "SLOWER": "red",
    "SAME": "cyan",
    "UNDECIDED": "yellow",
    "WRONG": "bold red",
    "FAILED": "bold red",
    "INVALID": "bold red",
    "DECLINED": "dim",
    "PASSED": "green",
    "UNCLEAR": "yellow",
}


def render(document: Document, form: str, *, color: bool = False) -> str:
    """The document in one of FORMATS, ending in a newline."""
    if form == "table":
        return _as_table(document, color)
    return FORMATS[form](document)


def _as_table(document: Document, color: bool) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out, force_terminal=color, no_color=not color, width=_width(), highlight=False
    )
    for number, section in enumerate(document.sections):
        if number:
            console.print()
        _print_lines(console, (section.title, *section.lead), bold=True)
        if section.rows:
            table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
            for index, column in enumerate(section.columns):
                numbers = all(_is_number(row[index]) for row in section.rows)
                justify: Literal["left", "right"] = "right" if numbers else "left"
                table.add_column(column, justify=justify, overflow="fold")
            for row in section.rows:
                table.add_row(*(Text(cell, VERDICT_STYLES.get(cell, "")) for cell in row))
            console.print(table)
        _print_lines(console, section.notes)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-+"


def _print_lines(console: object, lines: tuple[str, ...], *, bold: bool = False) -> None:
    from rich.console import Console
    from rich.text import Text

    assert isinstance(console, Console)
    for number, line in enumerate(filter(None, lines)):
        console.print(Text(line, "bold" if bold and number == 0 else ""))


def _width() -> int:
    import shutil

    return max(100, shutil.get_terminal_size((120, 24)).columns)


def _as_markdown(document: Document) -> str:
    if document.markdown:
        return document.markdown
    return "\n\n".join(filter(None, map(section_markdown, document.sections))) + "\n"


def section_markdown(section: Section) -> str:
    """Its title as a heading, then text and table."""
    parts = [f"### {section.title}" if section.title else "", *section.lead]
    if section.rows:
        lines = [section.columns, tuple("---" for _ in section.columns), *section.rows]
        parts.append("\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines))
    return "\n\n".join(filter(None, [*parts, *section.notes]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _as_csv(document: Document) -> str:
    out = io.StringIO()
    fields = list(dict.fromkeys(name for record in document.records for name in record))
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(document.records)
    return out.getvalue()


def _as_json(document: Document) -> str:
    encoded = msgspec.json.encode(document.data)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


FORMATS: dict[str, Callable[[Document], str]] = {
    "table": lambda document: _as_table(document, False),
    "md": _as_markdown,
    "csv": _as_csv,
    "json": _as_json,
}
