"""Other people's libraries as arms on a GPU, and a search for the best arm there."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import run_command as run

pytestmark = pytest.mark.cuda

PEERS = ("cublas", "cublas_gemv", "torch_linear", "torch_mv")
SHAPES = ("8x1", "64x33", "2880x5760", "5120x96", "4096x1024", "17408x513")


@pytest.fixture(scope="module")
def gpu() -> Any:
    answer = run("devices", "--format", "json")
    found = json.loads(answer.stdout) if answer.returncode == 0 else []
    devices = {device["id"]: device for device in found}
    if "cuda0" not in devices:
        pytest.skip("no cuda0 here")
    return devices["cuda0"]


def installed(gpu: Any) -> set[str]:
    packages = {"cublas": ("cublas", "cublas_gemv"), "torch": ("torch_linear", "torch_mv")}
    return {arm for name, arms in packages.items() if name in gpu["capabilities"] for arm in arms}


def test_torch_is_found_where_it_is(gpu: Any) -> None:
    assert ("torch" in gpu["capabilities"]) == (find_spec("torch") is not None)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_peers_are_right_or_decline(gpu: Any, kind: str) -> None:
    words = [w for shape in SHAPES for w in ("--shape", shape)]
    words += [w for arm in PEERS for w in ("--arm", arm)]
    answer = run("verify", "--device", "cuda0", "--weights", kind, "--x", kind, *words,
                 "--format", "json")  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = {(r["case"], r["arm"]): r["verdict"] for r in json.loads(answer.stdout)}
    expected = {arm: "RIGHT" if arm in installed(gpu) else "DECLINED" for arm in PEERS}
    assert {arm: v for (_, arm), v in found.items()} == expected
    assert len(found) == len(SHAPES) * len(PEERS)
    assert set(found.values()) <= {"RIGHT", "DECLINED"}


@pytest.mark.parametrize("shape", ["5120x96", "4096x4096"])
def test_peers_are_timed_in_graphs_in_the_same_blocks(gpu: Any, shape: str) -> None:
    """Their output in timed runs is that of the verification, or they would be WRONG."""
    words = [w for arm in PEERS for w in ("--arm", arm)]
    answer = run("ab", "--quick", "--device", "cuda0", "--shape", shape, "--baseline", "auto",
                 *words, "--format", "json")  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    results = {r["arm"]: r for r in json.loads(answer.stdout)["results"]}
    for arm in installed(gpu):
        assert results[arm]["blocks"] >= 6, results[arm]
        assert not {f for f in results[arm]["flags"] if f.startswith("host-bound")}


@pytest.mark.parametrize("heads", [(24, 4, 256), (32, 8, 128), (16, 16, 128)], ids=str)
def test_attention_of_torch_is_right_and_timed(gpu: Any, heads: tuple[int, int, int]) -> None:
    """Its output in timed runs is that of the verification, or it would be WRONG."""
    if "torch" not in gpu["capabilities"]:
        pytest.skip("torch is not installed here")
    q, kv, dim = heads
    shape = ("--heads", str(q), "--kv-heads", str(kv), "--head-dim", str(dim), "--context", "1000")
    answer = run("ab", "--quick", "--device", "cuda0", "--op", "attention", *shape, "--arm",
                 "sdpa_flash", "--arm", "sdpa_cudnn", "--format", "json")  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    results = {r["arm"]: r for r in json.loads(answer.stdout)["results"]}
    for arm in ("sdpa_flash", "sdpa_cudnn"):
        assert results[arm]["blocks"] >= 6, results[arm]


@pytest.mark.slow
def test_tune_ends_within_two_minutes(gpu: Any, tmp_path: Path) -> None:
    started = time.monotonic()
    home = {"GEMVBENCH_HOME": str(tmp_path)}
    words = ("--device", "cuda0", "--shape", "5120x17408", "--format", "json")
    answer = run("tune", *words, **home)
    spent = time.monotonic() - started
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (shape,) = json.loads(answer.stdout)["shapes"]
    assert shape["low"] > 1 or shape["arm"] == shape["rule"]
    assert spent < 120
    plan = run("ab", "--device", "cuda0", "--arm", "auto", "--shape", "5120x17408", "--dry-run",
               **home)  # fmt: skip
    assert f"arm auto -> {shape['arm']}: the user's table" in " ".join(plan.stdout.split())
