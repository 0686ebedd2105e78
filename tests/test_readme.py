"""CI runs the very command that the README tells people to run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
START = "python3 -m venv .venv && "


def code_lines(markdown: str) -> list[str]:
    """The lines of the fenced code blocks, without a prompt."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, flags=re.MULTILINE | re.DOTALL)
    return [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]


def set_up_lines() -> list[str]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return [line for line in code_lines(readme) if line.startswith(START)]


def test_readme_has_two_set_up_lines() -> None:
    first, second = set_up_lines()
    assert re.search(r"&& \.venv/bin/gemvbench ab --arm pack2$", first)
    assert re.search(r"&& \.venv/bin/pytest -n 2$", second)


def test_ci_runs_the_second_line() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line.startswith(START)]
    assert commands == [set_up_lines()[1]]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("failing", ["python3", "pip", "pytest", "ruff", "mypy", "asv", None])
def test_ci_stops_at_the_first_failure(failing: str | None, tmp_path: Path) -> None:
    """The script itself, with stand-ins for its tools that note their names."""
    steps = ["python3", "pip", "pytest", "ruff", "mypy", "asv"]
    tools, local = tmp_path / "bin", tmp_path / ".venv" / "bin"
    for name in steps:
        tool = (tools if name == "python3" else local) / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        fails = f'[ "$1" = -c ] || exit {int(name == failing)}'
        tool.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/log\n{fails}\n")
        tool.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    called = list(dict.fromkeys((tmp_path / "log").read_text().split()))
    assert (done.returncode == 0) == (failing is None)
    assert called == (steps if failing is None else steps[: steps.index(failing) + 1])
