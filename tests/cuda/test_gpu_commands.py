"""The command line on a GPU: NVIDIA's OpenCL, and one GPU seen by both back ends."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from conftest import run_command as run

pytestmark = pytest.mark.cuda


@cache
def gpus() -> dict[str, dict[str, Any]]:
    answer = run("devices", "--format", "json")
    found = json.loads(answer.stdout) if answer.returncode == 0 else []
    return {device["id"]: device for device in found if device["kind"] == "gpu"}


@pytest.fixture(params=["cuda0", "nvcl0"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param not in gpus():
        pytest.skip(f"no {request.param} here")
    return str(request.param)


@pytest.fixture
def both() -> None:
    if not {"cuda0", "nvcl0"} <= set(gpus()):
        pytest.skip("needs a GPU that CUDA and NVIDIA's OpenCL both see")


@pytest.mark.parametrize("x", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("weights", ["f16", "bf16"])
def test_verify_whole_ladder(device: str, weights: str, x: str) -> None:
    shapes = ("1x1", "7x5", "64x1", "250x33", "1000x301")
    arms = ("pack0", "pack1", "pack2", "pack3", "pack3+rows2", "pack2+rows4+block64", "blockauto",
            "pack3+unrollauto", "acc16+pack0", "acc16+pack3", "auto", "frozen")  # fmt: skip
    words = [w for shape in shapes for w in ("--shape", shape)]
    words += [w for arm in arms for w in ("--arm", arm)]
    answer = run("verify", "--device", device, "--weights", weights, "--x", x, *words,
                 "--format", "json")  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    verdicts = [record["verdict"] for record in json.loads(answer.stdout)]
    assert set(verdicts) <= {"RIGHT", "DECLINED"}
    declined = 0
    if x == "f32":
        declined = 8  # a pack asked for by name, and FP16 sums
    elif (weights, x) != ("f16", "f16") or "half_arithmetic" not in gpus()[device]["capabilities"]:
        declined = 2  # FP16 sums
    assert verdicts.count("DECLINED") == declined * len(shapes)


@pytest.mark.parametrize("offsets", [("2", "0"), ("0", "2"), ("4", "8"), ("16", "16")])
def test_verify_offsets(device: str, offsets: tuple[str, str]) -> None:
    words = ("--w-offset", offsets[0], "--x-offset", offsets[1])
    answer = run("verify", "--device", device, "--shape", "512x9", *words)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_one_gpu_is_known_as_one(both: None) -> None:
    cuda, opencl = gpus()["cuda0"], gpus()["nvcl0"]
    assert cuda["uuid"] == opencl["uuid"] is not None
    assert cuda["pci"] == opencl["pci"] is not None


def test_both_back_ends_in_the_same_blocks(both: None) -> None:
    answer = run("ab", "--quick", "--shape", "4096x4096", "--baseline", "nvcl0:pack3", "--arm",
                 "cuda0:pack3", "--format", "json")  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = {result["arm"]: result for result in json.loads(answer.stdout)["results"]}
    assert found["cuda0:pack3"]["blocks"] == 6
    assert found["cuda0:pack3"]["verdict"] == "FASTER"  # launches cost OpenCL some us each
    assert found["aa"]["device"] == "nvcl0"


def test_a_case_too_large_is_refused_by_name(device: str) -> None:
    answer = run("ab", "--device", device, "--shape", "1800000x200000", "--arm", "pack2")
    assert answer.returncode == 4
    assert "gemv-1800000x200000" in answer.stderr
    assert "GB free" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_hidden_gpus_leave_the_cpu_path_alone() -> None:
    if "cuda0" not in gpus():
        pytest.skip("no cuda0 here")
    answer = run("devices", CUDA_VISIBLE_DEVICES="")
    assert "Traceback" not in answer.stderr
    assert "CUDA_VISIBLE_DEVICES" in answer.stderr
