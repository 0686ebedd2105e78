"""`gemvbench legs`: two programs, run whole and in pairs."""

from __future__ import annotations

import argparse
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from gemvbench import __version__
from gemvbench.commands.ab import record_path
from gemvbench.commands.output import Bar, check_output, emit, warn
from gemvbench.commands.selection import parse_seconds, parse_share
from gemvbench.commands.setup import check_seed
from gemvbench.environment import describe_environment
from gemvbench.errors import Exit, UserError
from gemvbench.interrupts import ignore_interrupts
from gemvbench.legs.conduct import Conductor
from gemvbench.legs.findings import Findings, find
from gemvbench.legs.lines import LegsHeader, Settings, Side
from gemvbench.legs.metrics import parse_metrics
from gemvbench.legs.record import LegsRecorder
from gemvbench.legs.schedule import plan_looks, plan_pairs
from gemvbench.report.document import Document, Section
from gemvbench.report.legs_document import legs_document

_MOST_PAIRS = 10_000


def run_legs(options: argparse.Namespace) -> Exit:
    """Run both programs in pairs and judge what they print or take."""
    check_output(options)
    check_seed(options.seed)
    a, b = parse_sides(options)
    settings = make_settings(options)
    if options.dry_run:
        emit(_plan(settings, a, b), options)
        return Exit.OK
    header = LegsHeader(
        version=__version__,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        arguments=options.arguments,
        settings=settings,
        environment=describe_environment(),
        a=a,
        b=b,
    )
    path = record_path(options)
    recorder = _open(header, path)
    with Bar() as bar:
        bar.stage("legs", settings.pairs + settings.aa)
        run = Conductor(recorder).conduct(bar.advance)
    ignore_interrupts()  # what was measured is shown, whatever is pressed now
    if recorder.is_kept:
        warn(
            f"legs are in {path}, their output in {recorder.outputs}; `gemvbench report {path}` "
            "shows them again."
        )
    found = find(run)
    emit(legs_document(found), options)
    return exit_code(found, fail_on_slower=options.fail_on_slower)


def exit_code(found: Findings, *, fail_on_slower: bool) -> Exit:
    """Legs that stopped the run weigh most, then a run that is void or was cut short."""
    ended = found.run.ended
    reason = ended.reason if ended else "killed"
    if reason not in ("complete", "interrupted"):
        return Exit.WRONG
    if reason == "interrupted" or found.void or not found.usable_pairs:
        return Exit.NO_DEVICE
    slower = any(each.judgement.verdict == "SLOWER" for each in found.metrics)
    return Exit.REGRESSION if fail_on_slower and slower else Exit.OK


def parse_sides(options: argparse.Namespace) -> tuple[Side, Side]:
    """A and B: two command lines, or one whose environment differs.

    Raises:
        UserError: neither of these, a command line that cannot be read, or a missing program.
    """
    if not options.a or bool(options.b) == bool(options.env):
        raise UserError(
            "legs needs --a 'CMD' and either --b 'CMD', or --env VAR=0,1 for one command line with "
            "an environment variable that differs."
        )
    one, other = _parse_env(options.env or ())
    argv = _parse_command("--a", options.a)
    return (
        Side(argv=argv, environment=one),
        Side(argv=_parse_command("--b", options.b) if options.b else argv, environment=other),
    )


def _parse_env(given: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    a, b = {}, {}
    for text in given:
        name, equals, values = text.partition("=")
        both = values.split(",")
        if not (name and equals and len(both) == 2) or both[0] == both[1]:
            raise UserError(f"--env {text!r}: write VAR=0,1, the value for A and another for B.")
        a[name], b[name] = both
    return a, b


def _parse_command(option: str, text: str) -> tuple[str, ...]:
    """Words as a shell would split them; no shell runs, so nothing in them is expanded."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{option} {text!r} cannot be split into words: {error}.") from error
    if not words:
        raise UserError(f"{option} is empty; give a command line.")
    if shutil.which(words[0]) is None:
        raise UserError(
            f"{option} {text!r}: there is no program {words[0]!r} here, or it cannot be executed. "
            "For pipes or a shell's own commands write sh -c '...'."
        )
    return words


def make_settings(options: argparse.Namespace) -> Settings:
    """The numbers of a run.

    Raises:
        UserError: one outside its range, or too few pairs to decide anything.
    """
    if not 1 <= options.pairs <= _MOST_PAIRS:
        raise UserError(f"--pairs {options.pairs} has to lie between 1 and {_MOST_PAIRS}.")
    if not 0 <= options.aa <= _MOST_PAIRS:
        raise UserError(f"--aa {options.aa} is no number of pairs.")
    confidence = parse_share("--confidence", options.confidence, 0.5, 1.0)
    metrics = parse_metrics(options.metric or (), options.better or ())
    return Settings(
        pairs=options.pairs,
        looks=plan_looks(options.pairs, confidence, len(metrics)),
        metrics=metrics,
        aa=options.aa,
        confidence=confidence,
        min_effect=parse_share("--min-effect", options.min_effect, 0.0, 1.0),
        seed=options.seed,
        timeout=parse_seconds(options.timeout, "--timeout"),
        pause=parse_seconds(options.pause, "--pause") if options.pause else 0.0,
        before=_parse_command("--before", options.before) if options.before else (),
    )


def _open(header: LegsHeader, path: Path) -> LegsRecorder:
    try:
        return LegsRecorder(header, path)
    except OSError as error:
        raise UserError(
            f"The output of legs cannot be kept beside {path} ({error.strerror}); name another "
            "place with --record."
        ) from error


def _plan(settings: Settings, a: Side, b: Side) -> Document:
    pairs = {
        str(pair.number): "A against itself" if pair.kind == "aa" else "".join(pair.order)
        for pair in plan_pairs(settings)
    }
    notes = (
        f"A: {shlex.join(a.argv)}",
        f"B: {shlex.join(b.argv)}",
        f"Looks after {', '.join(map(str, settings.looks))} pairs. Nothing was run.",
    )
    section = Section("Legs", ("pair", "order"), tuple(pairs.items()), notes=notes)
    records = [{"pair": pair, "order": order} for pair, order in pairs.items()]
    return Document((section,), {"pairs": records}, records)
