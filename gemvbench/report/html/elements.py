"""Parts of a page. Every text is escaped here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape as escape

from gemvbench.report.document import Section
from gemvbench.report.html.palette import verdict_name

_NUMBER = re.compile(r"$|-$|[-+]?\d[\d.,]*(%|\s|$)")
"""What stands at the right of its column: a number with its unit, or nothing."""
_COLORED = {"FASTER", "SLOWER", "SAME", "UNDECIDED", "WRONG", "FAILED", "INVALID"}


def heading(level: int, text: str, place: str = "") -> str:
    name = f' id="{escape(place)}"' if place else ""
    return f"<h{level}{name}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_kind(kind)}>{escape(text)}</p>"


def items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def command(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def section(of: Section) -> str:
    """Its title, lines above, table and lines below."""
    parts = [heading(3, of.title)] if of.title else []
    parts += [paragraph(line, "lead") for line in of.lead]
    if of.rows:
        parts.append(table(of.columns, of.rows))
    parts += [paragraph(line, "notes") for line in of.notes]
    return "\n".join(parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """On a phone each row becomes a block, with the column's name before each cell."""
    numbers = [all(_NUMBER.match(row[n]) for row in rows) for n in range(len(columns))]
    head = "".join(
        f'<th role="columnheader"{_kind("number" if number else "")}>{escape(column)}</th>'
        for column, number in zip(columns, numbers, strict=True)
    )
    body = "\n".join(
        f'<tr role="row">{"".join(map(_cell, columns, row, numbers))}</tr>' for row in rows
    )
    return (
        f'<table role="table"><thead><tr role="row">{head}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table>"
    )


def _cell(column: str, text: str, number: bool) -> str:
    kind = "number" if number else verdict_name(text) if text in _COLORED else ""
    return f'<td role="cell" data-label="{escape(column)}"{_kind(kind)}>{escape(text)}</td>'


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
