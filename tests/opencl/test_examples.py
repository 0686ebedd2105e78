"""The example kernels of the documentation are right, and they are what the README shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT, run_command

EXAMPLES = ROOT / "docs" / "examples"


def test_the_readme_shows_the_example() -> None:
    assert (EXAMPLES / "mine.cl").read_text() in (ROOT / "README.md").read_text()


@pytest.mark.opencl
def test_the_opencl_example_is_verified(tmp_path: Path) -> None:
    arm = f"mine={EXAMPLES / 'mine.cl'}:gemv_mine+block64"
    words = ("--device", "pocl", "--shape", "1000x77", "--shape", "7x5", "--arm", arm)
    answer = run_command("verify", *words, "--format", "csv")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("RIGHT") == 2


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_the_cuda_example_compiles(architecture: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from gemvbench.backend import nvrtc

    text = "#define BLOCK 128\n" + (EXAMPLES / "mine.cu").read_text()
    assert nvrtc.compile_cubin(text, architecture).startswith(b"\x7fELF")
