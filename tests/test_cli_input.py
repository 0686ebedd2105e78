"""Bad input, bad places and project defaults: one clear paragraph, the right code, no work."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, SHAPE, Answer, finish, start, write_script

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]

AB = ("ab", "--shape", SHAPE)
PACK2 = (*AB, "--arm", "pack2")
MISTAKES: list[tuple[tuple[str, ...], int, str]] = [
    ((), 2, "the following arguments are required"),
    (("bake",), 2, "invalid choice: 'bake'"),
    (("ab", "--frobnicate"), 2, "--frobnicate"),
    (AB, 2, "ab needs at least one --arm"),
    ((*AB, "--arm", "pakc2"), 2, "did you mean"),
    ((*AB, "--arm", "row+speed3"), 2, "'speed3' is no axis"),
    ((*AB, "--arm", "pack7"), 2, "'pack7' is not available"),
    ((*AB, "--arm", "base"), 2, "is the baseline itself"),
    ((*PACK2, "--baseline", "nope"), 2, "no family 'nope'"),
    ((*AB, "--arm", "gpu7:pack2"), 2, "no device 'gpu7'"),
    ((*PACK2, "--device", "gpu7"), 2, "Found: fake0"),
    (("ab", "--arm", "pack2", "--model", "qwen9"), 2, "no model 'qwen9'"),
    ((*PACK2, "--model", "qwen3-8b"), 2, "exclude each other"),
    (("ab", "--arm", "pack2", "--shape", "512"), 2, "is not a shape"),
    (("ab", "--arm", "pack2", "--shape", "5x5x5"), 2, "Write KxN"),
    (("ab", "--arm", "pack2", "--shape", "0x64"), 2, "k (in_features) is 0"),
    (("ab", "--arm", "pack2", "--shape", "64x0"), 2, "n (out_features) is 0"),
    (("ab", "--arm", "pack2", "--shape=-64x64"), 2, "k (in_features) is -64"),
    (("ab", "--arm", "pack2", "--shape", "64x-1"), 2, "n (out_features) is -1"),
    (("ab", "--arm", "pack2", "--shape", "1864136x1"), 2, "between 1 and 1864135"),
    (("ab", "--arm", "pack2", "--shape", f"8x{2**31}"), 2, "between 1 and 16777216"),
    (("ab", "--arm", "pack2", "--shape", "9" * 5000 + "x1"), 2, "is not a shape"),
    (("ab", "--arm", "pack2", "--shape", "1864135x16777216"), 4, "smaller --shape"),
    ((*PACK2, "--weights", "int4"), 2, "'int4' is no type for weights"),
    ((*PACK2, "--x", "f64"), 2, "'f64' is no type for x"),
    ((*PACK2, "--x-offset", "3"), 2, "has to be a multiple of 2"),
    ((*PACK2, "--w-offset", "-2"), 2, "not negative"),
    ((*PACK2, "-k", "("), 2, "is not a regular expression"),
    ((*PACK2, "-k", "zzz"), 2, "matches no case"),
    ((*PACK2, "--regime", "cold"), 2, "use stream or hot"),
    ((*PACK2, "--seed", "-1"), 2, "--seed -1"),
    ((*PACK2, "--seed", "x"), 2, "invalid int value"),
    ((*PACK2, "--budget", "soon"), 2, "write for example 60s"),
    ((*PACK2, "--budget", "0s"), 2, "is no time"),
    ((*PACK2, "--confidence", "1.5"), 2, "--confidence '1.5'"),
    ((*PACK2, "--min-effect", "-1%"), 2, "--min-effect"),
    ((*PACK2, "--format", "xml"), 2, "use table, md, csv, json"),
    ((*PACK2, "-o", "/nowhere/at/all"), 2, "there is no such folder"),
    ((*PACK2, "-o", "/tmp"), 2, "is a folder"),
    ((*AB, "--arm", "mine=absent.cl:entry"), 2, "absent.cl cannot be read"),
    ((*AB, "--arm", "pack2@v0"), 2, "needs a git checkout"),
    (("sweep", "--pack", "0,x"), 2, "'packx'"),
    (("sweep", "--family", "nope"), 2, "--family 'nope' is unknown"),
    (("sweep", "--family", "cpu"), 2, "needs the axes to vary"),
    (("report", "absent.jsonl"), 2, "cannot be read"),
    (("simulate", "--model", "calm"), 2, "--model 'calm' is unknown; use iid-0.1"),
    (("simulate", "--runs", "0"), 2, "--runs 0 has to be 1 or more"),
    (("simulate", "--jobs", "0"), 2, "--jobs 0"),
    (("simulate", "--noise", "nil"), 2, "--noise 'nil'"),
    (("simulate", "--offset", "-1%"), 2, "--offset"),
    (("simulate", "--plots", "/nowhere"), 2, "there is no such folder"),
]


@pytest.mark.parametrize(
    ("words", "code", "says"), MISTAKES, ids=[" ".join(m[0])[-40:] or "-" for m in MISTAKES]
)
def test_mistakes_are_one_paragraph(
    gemvbench: Run, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    answer = gemvbench(*words)
    assert answer.code == code
    assert says in answer.err
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("gemvbench: ")
    assert len(answer.err) < 1000
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("shape", ["5119x64", "1x64", "3x5", "4x1", "513x1", "1x1", "2x2"])
@pytest.mark.parametrize("x", ["f16", "f32"])
def test_odd_and_tiny_shapes_are_right(gemvbench: Run, shape: str, x: str) -> None:
    """Odd k, k smaller than a load, a single row: the ladder falls, nothing fails."""
    answer = gemvbench("verify", "--shape", shape, "--x", x)
    assert answer.code == 0, answer.out
    assert "RIGHT" in answer.out


def test_a_step_down_is_shown(gemvbench: Run) -> None:
    answer = gemvbench("ab", "--arm", "pack3", "--shape", "514x64", "--quick")
    assert answer.code == 0
    assert "pack 3 -> 2: k = 514 is not a multiple of 8" in answer.out
    assert "identical to base" in answer.out


def test_a_declined_arm_is_shown(gemvbench: Run) -> None:
    answer = gemvbench("ab", "--arm", "pack2", "--arm", "rows2", "--x", "f32", "--shape", SHAPE)
    assert answer.code == 0
    assert "an FP32 x declines load width" in answer.out


def test_no_device_at_all(gemvbench: Run, script: Write) -> None:
    script([], devices=[])
    for words in (("devices",), PACK2, ("roof",), ("verify",), ("sweep",)):
        answer = gemvbench(*words)
        assert answer.code == 4
        assert "No OpenCL or CUDA device was found. Install one: `pip install" in answer.err
        assert answer.out == ""


@pytest.mark.parametrize("text", ["{", '{"rules": [{"gpbs": 1}]}'])
def test_a_script_that_is_none(gemvbench: Run, script: Write, text: str) -> None:
    script().write_text(text)
    answer = gemvbench("devices")
    assert answer.code == 2
    assert "which is no script" in answer.err


def test_output_that_cannot_be_written_is_printed(gemvbench: Run) -> None:
    answer = gemvbench(*PACK2, "--quick", "--format", "json", "-o", "/dev/full")
    assert answer.code == 2
    assert "cannot be written (No space left on device)" in answer.err
    assert answer.results()["pack2"]["blocks"] == 6


def test_a_record_that_cannot_be_written_costs_only_itself(gemvbench: Run) -> None:
    answer = gemvbench(*PACK2, "--quick", "--format", "json", "--record", "/dev/full")
    assert answer.code == 0
    assert "the record /dev/full cannot be written" in answer.err
    assert "samples are in" not in answer.err
    assert answer.results()["pack2"]["blocks"] == 6


def test_a_full_standard_output(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gemvbench", "list"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("gemvbench: Standard output cannot be written (No space left")
    assert done.stderr.count("\n") == 1


def test_project_defaults(gemvbench: Run) -> None:
    Path("pyproject.toml").write_text(
        '[tool.gemvbench]\nconfidence = 0.95\nmin-effect = "5%"\nformat = "json"\n'
        f'seed = 7\nquick = true\narm = "pack2"\nshape = ["{SHAPE}"]\nbudget = 600\n'
    )
    answer = gemvbench("ab")
    data = answer.json
    assert (data["confidence"], data["min_effect"], data["seed"]) == (0.95, 0.05, 7)
    assert "The budget of 0.01 s" in gemvbench("ab", "--budget", "0.01").err
    assert set(answer.results()) == {"base", "aa", "pack2"}
    assert gemvbench("ab", "--format", "csv", "--confidence", "0.9").out.startswith("case,arm")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.gemvbench", "cannot be read"),
        ("[tool.gemvbench]\nspeed = 1", "'speed', which is no option"),
        ("[tool.gemvbench]\nquick = 'no'", "quick has to be true or false"),
        ("[tool.gemvbench]\narm = 5", "arm has to be a list of texts"),
        ("[tool.gemvbench]\nregime = ['hot']", "regime has to be a text or a number"),
        ("[tool.gemvbench]\nseed = 'x'", "invalid int value: 'x'"),
        ("[tool.gemvbench]\nregime = 'warm'", "use stream or hot"),
    ],
)
def test_project_defaults_that_make_no_sense(gemvbench: Run, text: str, says: str) -> None:
    Path("pyproject.toml").write_text(text)
    answer = gemvbench(*PACK2)
    assert answer.code == 2
    assert says in answer.err
    assert answer.err.count("\n") == 1


def on_terminal(folder: Path, **env: str) -> str:
    """What `devices` prints where standard output is a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"} | env
    script = write_script(folder)
    subprocess.run(
        [sys.executable, "-m", "gemvbench", "devices"],
        cwd=folder,
        env=environment | {"GEMVBENCH_FAKE": str(script)},
        stdout=theirs,
        check=True,
    )
    os.close(theirs)
    out = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "fake0" in out
    return out


def test_no_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in on_terminal(tmp_path)
    assert "\x1b[" not in on_terminal(tmp_path, NO_COLOR="1")


def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    process = start(tmp_path, write_script(tmp_path), "list")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    answer = finish(process)
    assert (answer.code, answer.err) == (0, "")
