"""The command line on real OpenCL runtimes for CPUs: PoCL and Intel's, where installed."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import run_command as run

KERNELS = Path(__file__).parent / "kernels"
PACKAGES = {"pocl": "pocl-binary-distribution", "intel": "intel-opencl-rt"}

pytestmark = pytest.mark.opencl


def installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(params=["pocl", pytest.param("intel", marks=pytest.mark.intel)])
def device(request: pytest.FixtureRequest) -> str:
    if not installed(PACKAGES[request.param]):
        pytest.skip(f"{PACKAGES[request.param]} is not installed")
    return str(request.param)


def results(answer: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {result["arm"]: result for result in json.loads(answer.stdout)["results"]}


def test_devices_finds_every_runtime_that_is_installed() -> None:
    found = run("devices", "--format", "json")
    assert found.returncode == 0, found.stderr
    wanted = {name for name, package in PACKAGES.items() if installed(package)}
    assert wanted <= {device["id"] for device in json.loads(found.stdout)}


def test_ab_tells_a_clear_difference(device: str) -> None:
    answer = run(
        "ab", "--device", device, "--quick", "--arm", "auto", "--shape", "1024x512",
        "--format", "json",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    auto = results(answer)["auto"]
    assert auto["ratio"] > 2
    # On a shared machine one arm may be disturbed more often, or a block have no clean pair.
    assert auto["verdict"] == "FASTER" or auto["reason"].startswith(("modes", "only"))
    assert auto["passes"] in (18, 24)
    assert auto["verified"] is True
    assert results(answer)["aa"]["verdict"] in ("SAME", "UNDECIDED")


def test_a_planted_effect_shows_at_its_size(device: str) -> None:
    """Within what a shared machine can tell: a tenth more rows, a tenth more time."""
    answer = run(
        "ab", "--device", device, "--quick", "--baseline", "cpu", "--arm", "cpu+extra100",
        "--shape", "1024x3000", "--format", "json",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    planted = results(answer)["cpu+extra100"]
    assert (planted["verified"], planted["constants"]["EXTRA"]) == (True, 300)
    assert planted["verdict"] != "FASTER"
    low, high = planted["all_pairs_ci"]
    assert low - 0.03 < 1 / 1.1 < high + 0.03


def test_verify_planted_rows(device: str) -> None:
    shapes = ("1x33", "7x101", "250x33", "1000x301")
    arms = ("pack0+extra100", "pack1+rows2+extra30", "pack2+rows4+extra100", "pack3+extra50",
            "pack3+rows4+block64+extra100", "cpu+extra100", "cpu+pack4+extra30",
            "cpu+pack0+accs1+items2+extra50", "cpu")  # fmt: skip
    words = [w for arm in arms for w in ("--arm", arm)]
    words += [w for shape in shapes for w in ("--shape", shape)]
    answer = run("verify", "--device", device, *words, "--format", "json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    records = json.loads(answer.stdout)
    assert len(records) == len(arms) * len(shapes)
    for record in records:
        assert record["verdict"] == "RIGHT"
        assert ("extra rows" in record["detail"]) == (record["arm"] != "cpu")


def test_a_file_that_writes_no_extra_rows_is_no_planted_arm(device: str) -> None:
    """A workgroup a row follows the grid; one that stops at n does not plant anything."""
    arms = [f"{user_arm(name)}+extra100" for name in ("all_right", "last_row_missing")]
    words = [w for arm in arms for w in ("--arm", arm)]
    answer = run("verify", "--device", device, "--shape", "96x40", *words, "--format", "json")
    assert answer.returncode == 3, answer.stderr
    right, wrong = json.loads(answer.stdout)
    assert (right["verdict"], wrong["verdict"]) == ("RIGHT", "WRONG")
    assert "extra rows" in right["detail"]
    assert "extra rows" in wrong["detail"]


def test_two_runtimes_in_the_same_blocks() -> None:
    if not all(map(installed, PACKAGES.values())):
        pytest.skip("needs PoCL and Intel's runtime")
    answer = run(
        "ab", "--quick", "--shape", "512x256", "--baseline", "pocl:auto", "--arm", "intel:auto",
        "--format", "json",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    arm = results(answer)["intel:auto"]
    assert (arm["device"], arm["baseline"], arm["verified"]) == ("intel", "pocl:auto", True)
    assert arm["passes"] in (18, 24)
    assert {roof["device"] for roof in json.loads(answer.stdout)["roofs"]} == {"pocl", "intel"}


@pytest.mark.parametrize("x", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("weights", ["f16", "bf16"])
def test_verify_whole_ladder(device: str, weights: str, x: str) -> None:
    """Odd k, n = 1, rows that do not divide n: every arm is right or declines."""
    shapes = ("1x1", "7x5", "64x1", "250x33", "1000x301")
    arms = ("pack0", "pack1", "pack2", "pack3", "pack3+rows2", "pack2+rows4+block64", "blockauto",
            "cpu", "cpu+pack4", "cpu+pack0+accs1+items2", "auto", "frozen", "numpy")  # fmt: skip
    words = [w for shape in shapes for w in ("--shape", shape)]
    words += [w for arm in arms for w in ("--arm", arm)]
    answer = run("verify", "--device", device, "--weights", weights, "--x", x, *words,
                 "--format", "json")  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    verdicts = [record["verdict"] for record in json.loads(answer.stdout)]
    assert set(verdicts) <= {"RIGHT", "DECLINED"}
    declined = 3 + 2 if x == "f32" else 0  # a pack asked for by name, on FP32 x
    assert verdicts.count("DECLINED") == declined * len(shapes)


@pytest.mark.parametrize("offsets", [("2", "0"), ("0", "2"), ("4", "8"), ("16", "16")])
def test_verify_offsets(device: str, offsets: tuple[str, str]) -> None:
    answer = run(
        "verify", "--device", device, "--shape", "512x9", "--w-offset", offsets[0],
        "--x-offset", offsets[1],
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_verify_exact_sums_on_the_device(device: str) -> None:
    """Over 2**26 elements the device makes the sums, and reads no weights for it."""
    answer = run("verify", "--device", device, "--shape", "4096x16400", "--arm", "auto")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "64 sampled rows, first and last included" in " ".join(answer.stdout.split())


WRONG = {
    "last_row_missing": "(last)",
    "last_column_missing": "last column",
    "one_row_too_many": "bounds",
    "one_column_too_many": "exact",
    "no_zeros": "special values",
    "writes_weights": "NaN",
    "no_w_offset": "NaN",
    "no_x_offset": "NaN",
}


def test_wrong_kernels_are_wrong_and_named(device: str) -> None:
    # A right one last too: the wrong ones before it may have written to the weights.
    names = ("all_right", *WRONG)
    words = [w for name in names for w in ("--arm", user_arm(name))]
    words += ["--arm", "pack2"]
    answer = run("verify", "--device", device, "--shape", "96x40", *words, "--format", "json")
    assert answer.returncode == 3, answer.stderr
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for record in json.loads(answer.stdout):
        by_arm.setdefault(record["arm"], []).append(record)
    assert by_arm["all_right+block64"][0]["verdict"] == "RIGHT"
    assert by_arm["pack2"][0]["verdict"] == "RIGHT"
    for name, sign in WRONG.items():
        records = by_arm[f"{name}+block64"]
        assert {record["verdict"] for record in records} == {"WRONG"}
        assert any(sign in record["detail"] for record in records), records


def test_crash_hang_and_wrong_cost_only_their_arm(device: str) -> None:
    names = ("wild_pointer", "endless", "last_row_missing")
    words = [w for arm in ("pack2", *map(user_arm, names)) for w in ("--arm", arm)]
    answer = run(
        "ab", "--device", device, "--quick", "--shape", "256x512", *words, "--format", "json",
        GEMVBENCH_LIMIT_SCALE="0.1",
    )  # fmt: skip
    assert answer.returncode == 3, answer.stderr
    assert "Traceback" not in answer.stderr
    found = results(answer)
    assert found["pack2"]["passes"] in (18, 24)  # six blocks or eight, disturbed or not
    crashed, hung, wrong = (found[f"{name}+block64"] for name in names)
    assert [r["verdict"] for r in (crashed, hung, wrong)] == ["FAILED", "FAILED", "WRONG"]
    assert "SIGSEGV" in crashed["reason"]
    assert "no sign of life" in hung["reason"]


def test_a_compiler_that_aborts_costs_only_its_arm() -> None:
    if not installed(PACKAGES["pocl"]):
        pytest.skip("needs PoCL")
    arm = f"fma16={KERNELS}/fma16.cl:gemv_fma16+block64"
    answer = run("verify", "--device", "pocl", "--shape", "64x8", "--arm", arm, "--arm", "pack2",
                 "--format", "json")  # fmt: skip
    verdicts = {record["arm"]: record for record in json.loads(answer.stdout)}
    assert verdicts["pack2"]["verdict"] == "RIGHT"
    # Not every CPU's PoCL has the fault; where it has, the arm alone is charged.
    assert verdicts["fma16+block64"]["verdict"] in ("RIGHT", "FAILED")


def user_arm(entry: str) -> str:
    return f"{entry}={KERNELS}/faulty.cl:{entry}+block64"


def test_rows_between_the_samples_are_held_against_the_frozen_kernel(device: str) -> None:
    arms = ("--arm", user_arm("coarse_between_samples"), "--arm", "auto", "--arm", "numpy")
    answer = run("verify", "--device", device, "--shape", "4096x8448", *arms, "--format", "json")
    assert answer.returncode == 3, answer.stdout + answer.stderr
    found = {record["arm"]: record for record in json.loads(answer.stdout)}
    coarse = found["coarse_between_samples+block64"]
    assert coarse["verdict"] == "WRONG"
    assert "random, all rows: 63 rows wrong" in coarse["detail"]
    assert [found[arm]["verdict"] for arm in ("auto", "numpy")] == ["RIGHT", "RIGHT"]
