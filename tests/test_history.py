"""What a gate decided, in asv's results: written beside what is there, and on asv's page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asv_site import publish, save_benchmarks
from conftest import Answer
from scratch import Scratch, make_scratch

from gemvbench.asv_machine import MACHINE_FILE
from gemvbench.history import BENCHMARK

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]
SHAPE = "1024x3072"


@pytest.fixture
def repo(gemvbench: Run, script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """A commit that makes the CPU's kernel 10 % slower, on a device that asv's suite knows."""
    monkeypatch.setenv(MACHINE_FILE, str(tmp_path / "machine.json"))
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}], devices=[{"id": "pocl"}])
    made = make_scratch(tmp_path, monkeypatch)
    (made.root / ".gitignore").write_text("/.asv/\n")
    path = made.path("opencl/gemv_cpu.cl")
    path.write_text(f"#define SLOW 1\n{path.read_text()}")
    made.commit()
    return made


def gate(gemvbench: Run, *words: object) -> Answer:
    fixed = (
        "--base",
        "HEAD~1",
        "--budget",
        "9h",
        "--quick",
        "--blocks",
        "6",
        "--asv",
        ".asv/results",
    )
    return gemvbench("gate", *fixed, "--shape", SHAPE, *words)


def result_files(repo: Scratch) -> list[Path]:
    found = (repo.root / ".asv" / "results").rglob("*.json")
    return [path for path in found if path.name not in ("machine.json", "benchmarks.json")]


def ratios(path: Path) -> dict[tuple[str, ...], float]:
    """Values of the gate's benchmark by device, case and arm."""
    document = json.loads(path.read_text())
    columns = dict(zip(document["result_columns"], document["results"][BENCHMARK], strict=False))
    values: list[Any] = columns["result"]
    axes = columns["params"]
    rows = [(d, c, a) for d in axes[0] for c in axes[1] for a in axes[2]]
    return {
        tuple(text.strip("'") for text in row): value
        for row, value in zip(rows, values, strict=True)
        if value is not None
    }


def test_the_ratio_is_in_the_results_of_the_commit_and_on_the_page(
    gemvbench: Run, repo: Scratch
) -> None:
    assert gate(gemvbench, "--arm", "auto").code == 1
    (path,) = result_files(repo)
    assert path.name.startswith(repo.git("rev-parse", "HEAD")[:8])
    (found,) = ratios(path).items()
    assert found[0] == ("pocl", f"gemv-{SHAPE}-f16-f16", "auto")
    assert found[1] == pytest.approx(1 / 0.9, rel=0.02)
    save_benchmarks(repo.root, "gate.Gate")
    html = publish(repo.root)
    graphs = [json.loads(graph.read_text()) for graph in html.rglob(f"{BENCHMARK}.json")]
    assert any(str(round(found[1], 4))[:5] in json.dumps(graph) for graph in graphs)


def test_another_gate_of_the_commit_is_added_to_the_first(gemvbench: Run, repo: Scratch) -> None:
    gate(gemvbench, "--arm", "auto")
    gate(gemvbench, "--arm", "cpu+pack2")
    gate(gemvbench, "--arm", "cpu+pack2", "--seed", "3")
    (path,) = result_files(repo)
    assert {arm for _, _, arm in ratios(path)} == {"auto", "cpu+pack2"}


def test_results_of_asv_stay(gemvbench: Run, repo: Scratch) -> None:
    gate(gemvbench, "--arm", "auto")
    (path,) = result_files(repo)
    document = json.loads(path.read_text())
    document["results"]["other.Thing.track"] = document["results"][BENCHMARK]
    path.write_text(json.dumps(document))
    gate(gemvbench, "--arm", "cpu+pack2")
    assert "other.Thing.track" in json.loads(path.read_text())["results"]


def test_a_corrupt_file_of_results_is_left_as_it_is(gemvbench: Run, repo: Scratch) -> None:
    gate(gemvbench, "--arm", "auto")
    (path,) = result_files(repo)
    path.write_text("{broken")
    answer = gate(gemvbench, "--arm", "auto")
    assert answer.code == 1  # the verdict stands
    assert "cannot be written into asv's results" in " ".join(answer.err.split())
    assert path.read_text() == "{broken"


def test_a_dirty_tree_is_no_commits_history(gemvbench: Run, repo: Scratch) -> None:
    path = repo.path("opencl/gemv_cpu.cl")
    path.write_text(f"#define MORE 1\n{path.read_text()}")
    answer = gate(gemvbench, "--arm", "auto")
    assert "nothing goes to asv" in answer.err
    assert result_files(repo) == []


def test_a_file_in_place_of_the_folder_is_refused(gemvbench: Run, repo: Scratch) -> None:
    (repo.root / ".asv").mkdir()
    (repo.root / ".asv" / "results").write_text("x")
    answer = gate(gemvbench, "--arm", "auto")
    assert answer.code == 2
    assert "is no folder" in answer.err
