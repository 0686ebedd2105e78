"""`gemvbench compare A B`: what is faster or slower in B than in A. Nothing is measured."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gemvbench.commands.output import check_output, emit
from gemvbench.commands.selection import parse_share, pick_cases
from gemvbench.compare import Row, Terms, compare
from gemvbench.errors import Exit, UserError
from gemvbench.likeness import find_differences
from gemvbench.reading import read_record
from gemvbench.report.compare_document import Comparison, Side, compare_document
from gemvbench.results import Summary, summarise


def run_compare(options: argparse.Namespace) -> Exit:
    """Compare two records, arm by arm; refuse what is unlike unless forced."""
    check_output(options)
    confidence = parse_share("--confidence", options.confidence, 0.5, 1.0)
    min_effect = parse_share("--min-effect", options.min_effect, 0.0, 1.0)
    a, b = _read(options.a), _read(options.b)
    earlier = [_read(name) for name in options.earlier or ()]
    differences = _differences(a, b, earlier)
    if differences and not options.force:
        raise UserError(
            f"{a.name} (A) and {b.name} (B) cannot be compared: {'; '.join(differences)}. Measure "
            "them alike, or give --force to compare them all the same.",
            Exit.NO_DEVICE,
        )
    ids = {case.id for case in b.summary.run.header.cases}
    common = [case for case in a.summary.run.header.cases if case.id in ids]
    cases = tuple(case.id for case in (pick_cases(common, options.pick) if common else ()))
    terms = Terms(cases=cases, confidence=confidence, min_effect=min_effect)
    rows = compare(a.summary, b.summary, [side.summary for side in earlier], terms)
    emit(compare_document(Comparison(a, b, tuple(earlier), differences, terms, rows)), options)
    return exit_code(rows)


def exit_code(rows: Sequence[Row]) -> Exit:
    """Newly wrong or failed arms weigh most, then that nothing was compared, then a regression."""
    if any(row.newly_broken for row in rows):
        return Exit.WRONG
    if not any(row.is_compared for row in rows):
        return Exit.NO_DEVICE
    slower = (row.verdict == "SLOWER" and "small" not in row.flags for row in rows)
    return Exit.REGRESSION if any(slower) else Exit.OK


def _read(name: str) -> Side:
    """A record with its results.

    Raises:
        UserError: it cannot be read, or is of a run that is not to be believed.
    """
    summary = summarise(read_record(Path(name)))
    if summary.void:
        raise UserError(f"{name} is void: {summary.void}", Exit.NO_DEVICE)
    return Side(name, summary)


def _differences(a: Side, b: Side, earlier: Sequence[Side]) -> tuple[str, ...]:
    """All that forbids the comparison; each earlier record has to be like A, and another run."""
    found = list(find_differences(a.summary.run, b.summary.run))
    for number, side in enumerate(earlier):
        unlike = find_differences(a.summary.run, side.summary.run)
        twice = any(_same(side.summary, other.summary) for other in (b, *earlier[:number]))
        found += [f"{side.name} against A: {text}" for text in unlike]
        found += [f"{side.name} is given twice"] if twice else []
    return tuple(found)


def _same(one: Summary, other: Summary) -> bool:
    return (one.run.header, one.run.lines) == (other.run.header, other.run.lines)
