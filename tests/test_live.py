"""What a terminal shows while a run goes on, and that it costs the run nothing."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conftest import SHAPE, Answer
from records import make_header, make_run, make_samples, times, verified
from tiny import TINY, use_catalogue

from gemvbench import run as running
from gemvbench.budget import Budget
from gemvbench.commands.live import Display
from gemvbench.messages import Block, Message, Request, Sample
from gemvbench.plan import TWIN
from gemvbench.progress import Pace
from gemvbench.record import Run
from gemvbench.report.live import live_section
from gemvbench.standing import standings

Gemvbench = Callable[..., Answer]
LOOKS = (6, 8)
AB = ("ab", "--shape", SHAPE, "--arm", "pack2")
SHOWN, HIDDEN = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    """A standard error that says it is a terminal; it may be gone after some writes."""

    def __init__(self, writes: int = 10**9) -> None:
        super().__init__()
        self.left = writes

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """Put a terminal in the place of standard error, from now on."""

    def put(writes: int = 10**9) -> Terminal:
        fake = Terminal(writes)
        monkeypatch.setattr(sys, "stderr", fake)
        return fake

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return put


def pace(done: int, seconds: float | None = 2.0, budget: float | None = None) -> Pace:
    return Pace(done, LOOKS, seconds, Budget(budget))


def part_of_run(blocks: int, min_effect: float = 0.01, **arms: float) -> Run:
    """A run that has come so far; seconds by arm."""
    header = make_header(arms, looks=LOOKS, min_effect=min_effect)
    return make_run(header, make_samples(times(**arms), blocks))


def rows(run: Run, at: Pace, lines: int = 40) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in live_section(run, at, lines).rows}


def test_no_verdict_before_the_first_look_however_clear_it_is() -> None:
    ratio, interval, verdict, state = rows(part_of_run(5, pack2=9e-4), pace(5))["pack2"]
    assert ratio.startswith("1.11")
    assert float(interval.split(" .. ")[0]) > 1.05
    assert (verdict, state) == ("", "open")


def test_a_verdict_is_so_far_and_of_the_last_look() -> None:
    """After the look at six blocks the arm turns around: a ratio sees it, a verdict does not."""
    six, turned = part_of_run(6, pack2=0.95e-3), part_of_run(7, pack2=1.05e-3)
    later = [sample for sample in turned.of(Sample) if sample.block == 6]
    seven = make_run(six.header, [*six.of(Sample), *later])
    before, after = rows(six, pace(6))["pack2"], rows(seven, pace(7))["pack2"]
    assert before[2:] == after[2:] == ("FASTER so far", "settled")
    assert float(after[0]) < float(before[0]) - 0.01
    assert live_section(seven, pace(7), 40).columns[-2] == "verdict at look 6"
    assert rows(seven, pace(7))[TWIN][2:] == ("", "")


def test_only_looks_that_are_planned_are_named() -> None:
    section = live_section(part_of_run(2, pack2=9e-4), pace(2), 40)
    assert "Only looks decide, after 6, 8 blocks" in section.notes[-1]
    assert section.columns[-2] == "verdict"


def test_an_arm_that_is_out_says_so_at_once() -> None:
    run = part_of_run(2, pack2=9e-4)
    run = make_run(run.header, [*run.of(Sample), verified("pack2", passed=False)])
    assert rows(run, pace(2))["pack2"][2:] == ("WRONG", "out")
    (found,) = [each for each in standings(run, 0) if each.arm == "pack2"]
    assert not found.is_open


@pytest.mark.parametrize(
    ("done", "seconds", "budget", "says"),
    [
        (0, None, None, "0 of 8 blocks, look after 6"),
        (4, 2.0, None, "look after 6 in about 4 s, at "),
        (4, 2.0, None, "at most 8 s to go"),
        (6, 100.0, None, "look after 8 in about 3.3 min"),
        (8, 2.0, None, "8 of 8 blocks"),
        (4, 999.0, 7300.0, "2.0 h of the budget of 2.0 h left"),
        (4, 999.0, 900.0, "at most 15.0 min to go"),
    ],
)
def test_the_title_has_what_is_done_and_what_remains(
    done: int, seconds: float | None, budget: float | None, says: str
) -> None:
    run = part_of_run(done, pack2=9e-4)
    assert says in live_section(run, pace(done, seconds, budget), 40).title


def test_where_not_all_fit_open_arms_are_shown_first() -> None:
    run = part_of_run(6, 0.0001, pack2=9e-4, rows2=1e-3, rows4=1e-3, pack1=1e-3)
    assert list(rows(run, pace(6))) == [TWIN, "pack2", "rows2", "rows4", "pack1"]
    section = live_section(run, pace(6), 11)
    assert [row[0] for row in section.rows] == ["rows2", "rows4", "pack1"]
    assert "2 more arms do not fit" in section.notes[0]


@pytest.mark.usefixtures("in_process")
def test_a_terminal_has_a_table_that_nothing_draws_while_a_block_is_measured(
    gemvbench: Gemvbench, terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal()
    answer, threads = running.converse, set[int]()
    lengths: list[set[int]] = []

    def watched(request: Request) -> Iterator[Message]:
        """Notes how much the terminal has at each message."""
        seen = {len(screen.getvalue())}
        for message in answer(request):
            yield message
            seen.add(len(screen.getvalue()))
            threads.add(threading.active_count())
        if isinstance(request, Block):
            lengths.append(seen)

    monkeypatch.setattr(running, "converse", watched)
    before = threading.active_count()
    done = gemvbench(*AB, "--budget", "10000s", "--blocks", "6")
    assert done.code == 0
    assert threads == {before}
    assert list(map(len, lengths)) == [1] * 8  # six blocks, and each arm alone
    text = screen.getvalue()
    assert text.count("ratio so far") == 7
    assert "FASTER so far" not in text[: text.index("6 of 6 blocks")]
    assert "of the budget of 2.8 h left" in text
    assert text.rindex(SHOWN) > text.rindex(HIDDEN)
    assert "ratio so far" not in done.out


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("words", [AB, ("decode", "--model", "tiny", "--arm", "pack2")], ids=str)
def test_a_pseudo_terminal_is_drawn_on_and_left_clean(
    gemvbench: Gemvbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: Sequence[str]
) -> None:
    """One of the system's, with a size of its own, read as a terminal would."""
    use_catalogue(TINY, tmp_path, monkeypatch)
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 90))
    seen = bytearray()
    reader = threading.Thread(target=_drain, args=(ours, seen))
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as stderr:
        patch.setattr(sys, "stderr", stderr)
        answer = gemvbench(*words, "--quick", "--record", "r.jsonl")
    reader.join(10)
    os.close(ours)
    text = seen.decode()
    assert answer.code == 0
    assert text.count("ratio so far") >= 7  # before the first block and after each
    assert "blocks, look after 6 in about" in text
    assert "FASTER so far" not in text[: text.index("6 of 8 blocks")]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    assert max(map(len, shown)) <= 90
    last = text[text.rindex("blocks, ") :]
    assert last.count("\x1b[2K") >= 5  # every line of the table is taken back
    assert "samples are in r.jsonl" in last.partition(SHOWN)[2]
    assert "\x1b" not in answer.out


def _drain(terminal: int, into: bytearray) -> None:
    """All that is written, until the other side is closed."""
    with contextlib.suppress(OSError):
        while some := os.read(terminal, 1 << 16):
            into += some


@pytest.mark.usefixtures("in_process")
def test_an_interrupt_leaves_the_terminal_clean_and_loses_nothing(
    gemvbench: Gemvbench, terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Display.block

    def interrupted(self: Display, run: Run, at: Pace) -> None:
        draw(self, run, at)
        if at.done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Display, "block", interrupted)
    screen = terminal()
    answer = gemvbench(*AB, "--record", "r.jsonl")
    assert answer.code == 4
    assert "The run ended early: interrupted" in answer.out
    _, drawn, end = screen.getvalue().rpartition("3 of 16 blocks")
    assert drawn
    table, cursor, rest = end.partition(SHOWN)
    assert cursor
    assert "ratio so far" in table
    assert table.count("\x1b[2K") >= 5  # every line of the table is taken back
    assert "samples are in r.jsonl" in rest
    results = gemvbench("report", "r.jsonl", "--format", "json").json["results"]
    assert {result["blocks"] for result in results} == {3}


@pytest.mark.usefixtures("in_process")
def test_a_terminal_that_is_closed_costs_no_run_its_result(
    gemvbench: Gemvbench, terminal: Callable[..., Terminal]
) -> None:
    terminal(12)
    answer = gemvbench(*AB, "--quick", "--format", "json", "--record", "r.jsonl")
    assert answer.code == 0
    assert answer.json["ended"] == "complete"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("words", [AB, ("sweep", "--shape", SHAPE, "--pack", "0,2")])
def test_nothing_but_plain_lines_where_it_is_no_terminal(
    gemvbench: Gemvbench, words: Sequence[str]
) -> None:
    answer = gemvbench(*words, "--quick")
    assert answer.code == 0
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("gemvbench: samples are in ")
    assert "\x1b" not in answer.err + answer.out


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("variable", "value", "drawn"), [("TERM", "dumb", 0), ("NO_COLOR", "1", 7)]
)
def test_a_terminal_gets_what_it_can_show(
    gemvbench: Gemvbench,
    terminal: Callable[..., Terminal],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    drawn: int,
) -> None:
    monkeypatch.setenv(variable, value)
    screen = terminal()
    assert gemvbench(*AB, "--blocks", "6", "--quick").code == 0
    assert screen.getvalue().count("ratio so far") == drawn
    assert "\x1b[3" not in screen.getvalue()  # no colour
    assert drawn or len(screen.getvalue().splitlines()) == 1
