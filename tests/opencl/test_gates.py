"""A gate on a real device: a planted slowdown is found by name, what only looks new is not."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from scratch import Scratch, make_scratch

from gemvbench import cli

pytestmark = [pytest.mark.opencl, pytest.mark.slow]

KERNEL = "opencl/gemv_cpu.cl"
STORE = "y[row] = dot_row(w + (size_t)row * k, xs, k);"
TENTH = f"""{{
        {STORE}
        // A tenth of the rows once more, from where no cache has them.
        if (row % 10 == 0 && dot_row(w + (size_t)((row + n / 2) % n) * k, xs, k) == 1e30f)
            y[row] = 0;
    }}"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    try:
        metadata.version("pocl-binary-distribution")
    except metadata.PackageNotFoundError:
        pytest.skip("pocl-binary-distribution is not installed")
    return make_scratch(tmp_path, monkeypatch)


def gate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    fixed = ("gate", "--base", "HEAD~1", "--device", "pocl", "--shape", "1024x3072")
    code = cli.main([*fixed, "--arm", "auto", "--format", "json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_a_tenth_more_rows_fail_the_build(
    repo: Scratch, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.edit(KERNEL, STORE, TENTH)
    repo.commit()
    code, found = gate(capsys, "--blocks", "32")
    assert code == 1, found
    assert found["regressions"] == ["gemv-1024x3072-f16-f16 auto"]
    (result,) = found["results"]
    assert result["verified"]
    # Rows from elsewhere cost more than their bytes: 0.77 to 0.82 in six runs on two busy cores.
    assert 0.6 < result["ratio"] < 0.98


def test_new_code_of_the_same_speed_passes(
    repo: Scratch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night without a change that matters; what is only written otherwise is not measured."""
    text = repo.path(KERNEL).read_text()
    repo.path(KERNEL).write_text(f"// Anew.\n{text.replace('    ', '  ')}")
    repo.commit()
    code, found = gate(capsys)
    assert (code, found["conclusion"], found["results"]) == (0, "unchanged", [])
    repo.edit(KERNEL, "const uint whole", "const uint unused = 1, whole")
    repo.commit()
    code, found = gate(capsys, "--quick", "--blocks", "6")
    # A machine as busy as one that runs tests may void a night; an alarm it may not raise.
    assert code in (0, 4), found
    assert found["regressions"] == []
    assert len(found["results"]) == 1
