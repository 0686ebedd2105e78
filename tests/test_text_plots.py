"""Small pictures in text: where they point, and who gets to see them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Answer

from gemvbench.report.formats import WIDE
from gemvbench.report.text_plots import Ratio, forest, spreads

Gemvbench = Callable[..., Answer]
RECORDS = Path(__file__).resolve().parents[1] / "docs" / "records"
SWEEP = RECORDS / "20261130-sweep-pocl.jsonl.gz"
MARKS = "●├┤▁█"


@pytest.mark.parametrize(
    ("ratio", "cell"),
    [
        ((1.0, (0.5, 2.0)), " ├──────────●──────────┤ "),
        ((1.5, (1.2, 2.0)), "            │  ├──●────┤ "),
        ((0.5, (0.5, 0.5)), " ●          │            "),
        ((1.1, (0.9, 1.2)), "          ├─┼●─┤         "),
        ((math.inf, (0.0, math.inf)), "├───────────┼───────────●"),
        (None, ""),
    ],
)
def test_an_interval_points_at_its_ratios(ratio: Ratio | None, cell: str) -> None:
    """Beside one from a half to two, with room at both ends."""
    plot = forest([(1.0, (0.5, 2.0)), ratio] if ratio != (math.inf, (0.0, math.inf))
                  else [ratio], "interval")  # fmt: skip
    assert plot.cells[-1] == cell


def test_the_axis_of_ratios_names_its_ends_and_1() -> None:
    title = forest([(1.0, (0.5, 2.0))], "interval").title
    assert title == "0.460       1       2.173"
    assert len(title) == len(forest([None], "interval").title)
    near = forest([(2.0, (1.9, 2.1))], "interval")
    assert near.title.split() == ["0.956", "2.196"]  # no room for 1 beside the end
    assert near.cells[0][1] == "│"


def test_bars_are_counts_off_the_own_median() -> None:
    quiet, slow = np.log([1e-3] * 9), np.log([2e-3] * 8 + [2.2e-3])
    plot = spreads([quiet, slow, np.full(4, np.nan)], "time")
    assert plot.title.split() == ["+0", "%", "+10", "%"]
    assert plot.cells[0].rstrip() == "█"
    assert (plot.cells[1][0], plot.cells[1].strip()[-1]) == ("█", "▁")
    assert plot.cells[1].rstrip()[1:-1].strip() == ""
    assert len(plot.cells[1]) == len(plot.title) == 17
    assert not plot.cells[2].strip()


def test_what_was_not_measured_has_no_bars() -> None:
    assert spreads([np.array([]), np.array([1.0])], "time").cells == ("", "")


@pytest.fixture
def shown(gemvbench: Gemvbench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `report` prints on a terminal of some width, or in a pipe (0)."""

    def show(width: int, *words: object, record: Path = SWEEP) -> str:
        monkeypatch.setenv("COLUMNS", str(width or 200))
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: width > 0)
        return gemvbench("report", record, *words).out

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    return show


def test_a_wide_terminal_has_them_in_its_table(shown: Callable[..., str]) -> None:
    text = shown(WIDE)
    table = text[text.index("\narm ") :].splitlines()
    assert max(map(len, table)) <= WIDE
    row = next(line for line in table if line.startswith("pack2+rows1"))
    assert "●" in row
    assert "█" in row
    assert "Lines: the interval" in text


@pytest.mark.parametrize(
    ("width", "words"),
    [(WIDE - 1, ()), (0, ()), *((WIDE, ("--format", form)) for form in ("md", "csv", "json"))],
)
def test_nobody_else_sees_them(
    shown: Callable[..., str], width: int, words: tuple[str, ...]
) -> None:
    assert not set(MARKS) & set(shown(width, *words))


def test_files_and_dumb_terminals_have_none(
    shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert shown(WIDE, "-o", tmp_path / "r.txt") == ""
    assert not set(MARKS) & set((tmp_path / "r.txt").read_text())
    monkeypatch.setenv("TERM", "dumb")
    assert not set(MARKS) & set(shown(WIDE))


def test_a_decode_has_them_by_class_of_layers(shown: Callable[..., str]) -> None:
    text = shown(160, record=RECORDS / "20261201-decode-cuda-h200.jsonl.gz")
    table = text[text.index("by class of layers") : text.index("Operating point")]
    rows = {line.split("  ")[0]: line for line in table.splitlines()}
    assert "●" in rows["lm_head"]
    assert next(line for name, line in rows.items() if name.startswith("token")).count("●") == 1
    assert "●" not in rows["launch gaps, rest"]
