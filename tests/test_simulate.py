"""`gemvbench simulate`: its tables, its formats, its pictures."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Answer

from gemvbench.simulation.noise import MODELS

Run = Callable[..., Answer]
QUICK = ("simulate", "--runs", 20, "--effect-runs", 10, "--jobs", 1)
ROOT = Path(__file__).resolve().parents[1]


def test_all_formats_tell_the_same(gemvbench: Run) -> None:
    words = (*QUICK, "--model", "ramp", "--model", "iid-0.1")
    table, data = gemvbench(*words), json.loads(gemvbench(*words, "--format", "json").out)
    assert (table.code, table.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(gemvbench(*words, "--format", "csv").out)))
    assert len(rows) == len(data["cells"]) == 2 * 5
    assert table.out.count("An arm that is") == 4
    for row, cell in zip(rows, data["cells"], strict=True):
        assert (row["model"], float(row["effect"])) == (cell["model"], cell["effect"])
        assert int(row["medians slower"]) == cell["slower"]["medians"]
        assert int(row["runs"]) == (10 if cell["effect"] else 20)
    # A ramp makes whatever runs second slower; nothing else here is wrong about nothing.
    alarms = {c["model"]: c["slower"]["medians"] for c in data["cells"] if not c["effect"]}
    assert alarms == {"ramp": 20, "iid-0.1": 0}
    line = next(line for line in table.out.splitlines() if line.startswith("ramp of 10 %"))
    assert "100.00%" in line


def test_the_seed_decides(gemvbench: Run) -> None:
    words = (*QUICK, "--model", "slow-arms", "--format", "csv")
    first = gemvbench(*words).out
    assert gemvbench(*words).out == first
    assert gemvbench(*words, "--seed", 2).out != first


def test_noise_and_offset_can_be_ones_own(gemvbench: Run) -> None:
    words = (*QUICK, "--model", "iid-0.2")
    quiet = gemvbench(*words, "--noise", "0.01%", "--offset", "0.01%").out
    assert "Noise 0.01% a measurement" in quiet
    assert "offsets by arm and process 0.01%, whatever a title says" in quiet
    found = json.loads(
        gemvbench(*words, "--noise", "0.01%", "--offset", "0.01%", "--format", "json").out
    )
    assert all(c["faster"]["gemvbench"] == 10 for c in found["cells"] if c["effect"])


def test_pictures(gemvbench: Run, tmp_path: Path) -> None:
    answer = gemvbench(*QUICK, "--model", "drift", "--plots", tmp_path)
    assert answer.code == 0
    assert "run.svg and power.svg are in" in answer.err
    for name in ("run.svg", "power.svg"):
        text = (tmp_path / name).read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert len(text) < 150_000
    again = tmp_path / "again"
    again.mkdir()
    gemvbench(*QUICK, "--model", "drift", "--plots", again)
    assert (again / "run.svg").read_bytes() == (tmp_path / "run.svg").read_bytes()


def test_pictures_without_matplotlib(gemvbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer = gemvbench(*QUICK, "--plots", ".")
    assert answer.code == 2
    assert "pip install 'gemvbench[plots]'" in answer.err


def test_the_manual_has_every_model() -> None:
    manual = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    assert all(f"| {model.title} |" in manual for model in MODELS.values())
    for name in ("run.svg", "power.svg"):
        assert f"pictures/{name}" in manual
        assert (ROOT / "docs" / "pictures" / name).stat().st_size < 150_000
