"""What kills or spoils an arm is charged to it, and the rest goes on. Real worker processes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SHAPE, Answer, finish, start, write_script

Run = Callable[..., Answer]
Write = Callable[..., Path]

FAULTS: list[dict[str, Any]] = [
    {"match": {"PACK": "0"}, "fault": "compile_error", "stage": "compile"},
    {"match": {"PACK": "2"}, "fault": "crash", "stage": "compile"},
    {"match": {"PACK": "3", "ROWS": "1"}, "fault": "crash", "stage": "launch"},
    {"match": {"BLOCK": "64"}, "fault": "hang", "stage": "compile"},
    {"match": {"BLOCK": "128"}, "fault": "hang", "stage": "launch"},
    {"match": {"BLOCK": "512"}, "fault": "crash", "stage": "time", "after": 8},
    {"match": {"ROWS": "2"}, "fault": "wrong_last_row"},
    {"match": {"ROWS": "4"}, "fault": "wrong_when_timed"},
    {"match": {"entry": "gemv_frozen"}, "fault": "out_of_memory", "stage": "time"},
    {"match": {"entry": "gemv_cpu", "ACCS": "1"}, "fault": "unwritten_row"},
    {"match": {"entry": "gemv_cpu", "ACCS": "2"}, "fault": "written_past_end"},
]
ARMS = ("pack0", "pack2", "pack3", "block64", "block128", "block512", "rows2", "rows4", "frozen")
CPU_ARMS = ("cpu+accs1", "cpu+accs2", "cpu")
FAST = {"GEMVBENCH_LIMIT_SCALE": "0.05"}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, list[Any]]:
    """One run in which every arm but one fails in its own way, and its record."""
    folder = tmp_path_factory.mktemp("faulty")
    path = write_script(folder, [{"match": {"entry": "gemv_cpu"}, "gbps": 0.03}], faults=FAULTS)
    words = [word for arm in (*ARMS, *CPU_ARMS) for word in ("--arm", arm)]
    record = folder / "record"
    common = ("--shape", SHAPE, "--format", "json", "--record", record)
    answer = finish(start(folder, path, "ab", *words, *common, **FAST))
    return answer, [json.loads(line) for line in record.read_text().splitlines()]


@pytest.mark.parametrize(
    ("arm", "verdict", "reason"),
    [
        ("pack0", "FAILED", "compile: opencl/gemv.cl:12:5: error: scripted"),
        (
            "pack2",
            "FAILED",
            "compile: the process ended with signal SIGABRT; last words: scripted: the driver",
        ),
        ("pack3", "FAILED", "exact check: the process ended with signal SIGABRT"),
        ("block64", "FAILED", "compile: no sign of life for 6 s"),
        ("block128", "FAILED", "exact check: no sign of life for 3 s"),
        ("block512", "FAILED", "measure: the process ended with signal SIGABRT"),
        ("rows2", "WRONG", "row 63 (last)"),
        ("rows4", "WRONG", "the output of a timed run differs"),
        ("frozen", "FAILED", "calibrate: the process ended with exit code 1"),
        ("cpu+accs1", "WRONG", "1 rows are NaN (never written"),
        ("cpu+accs2", "WRONG", "memory behind the last row was written"),
        ("cpu", "FASTER", ""),
        ("base", "BASELINE", ""),
    ],
)
def test_each_fault_is_charged_to_its_arm(
    faulty: tuple[Answer, list[Any]], arm: str, verdict: str, reason: str
) -> None:
    found = faulty[0].results()[arm]
    assert found["verdict"] == verdict
    assert reason in found["reason"]


def test_the_rest_goes_on(faulty: tuple[Answer, list[Any]]) -> None:
    answer, _ = faulty
    assert answer.code == 3
    assert answer.json["ended"] == "complete"
    assert answer.results()["cpu"]["ratio"] == pytest.approx(1.5, rel=0.01)
    assert answer.results()["cpu"]["blocks"] >= 6


def test_wrong_arms_are_not_timed(faulty: tuple[Answer, list[Any]]) -> None:
    timed = {line["arm"] for line in faulty[1] if line["type"] == "Sample"}
    assert timed == {"base", "aa", "roof", "cpu", "rows4", "block512"}
    assert not {line["arm"] for line in faulty[1] if line["type"] == "Calibrated"} & {"rows2"}


def test_nothing_measured_is_lost(faulty: tuple[Answer, list[Any]]) -> None:
    """The block that block512 crashed is in the record up to there."""
    record = faulty[1]
    charged = next(i for i, line in enumerate(record) if line.get("arm") == "block512"
                   and line["type"] == "Charged")  # fmt: skip
    before = [line for line in record[:charged] if line["type"] == "Sample"]
    assert before
    assert record[-1]["type"] == "Ended"


def test_all_arms_gone_is_no_traceback(gemvbench: Run, script: Write) -> None:
    script([], faults=[{"match": {"entry": "gemv_row"}, "fault": "wrong_everywhere"}])
    answer = gemvbench("ab", "--arm", "pack2", "--shape", SHAPE)
    assert answer.code == 3
    assert answer.out.count("WRONG") >= 3


def test_a_failed_baseline_is_told(gemvbench: Run, script: Write) -> None:
    script([], faults=[{"match": {"PACK": "1"}, "fault": "compile_error", "stage": "compile"}])
    answer = gemvbench("ab", "--arm", "pack2", "--shape", SHAPE, "--format", "json")
    assert answer.code == 3
    assert answer.results()["base"]["verdict"] == "FAILED"
    assert answer.results()["pack2"]["reason"] == "the baseline base is FAILED"


def test_a_device_that_fails_without_an_arm(gemvbench: Run, script: Write) -> None:
    match = {"entry": "fill_values", "KIND": "KIND_RANDOM"}
    script([], faults=[{"match": match, "fault": "crash", "stage": "compile"}])
    answer = gemvbench("ab", "--arm", "pack2", "--shape", SHAPE, "--format", "json")
    assert answer.code == 3
    assert "SIGABRT" in answer.results()["pack2"]["reason"]


def test_memory_that_is_not_there(gemvbench: Run, script: Write) -> None:
    """`stream` needs more than verification did; nobody is to blame, and the run ends."""
    script([], devices=[{"memory": 2 << 20, "free": 64 << 20}])
    answer = gemvbench("ab", "--arm", "pack2", "--shape", SHAPE, "--format", "json")
    assert answer.code == 3
    assert answer.json["ended"] == "the device failed without an arm to charge"
    assert "fake0 is out of memory" in answer.results()["pack2"]["reason"]


def test_memory_that_runs_out_in_some_blocks(gemvbench: Run, script: Write) -> None:
    """The padding drawn for a block may be too much; what other blocks measured stays."""
    script([], devices=[{"memory": 16 << 20}])
    answer = gemvbench("ab", "--arm", "pack2", "--shape", SHAPE, "--format", "json")
    assert answer.code == 4
    assert answer.json["ended"] == "the device failed without an arm to charge"
    assert answer.results()["pack2"]["blocks"] >= 1


def test_a_run_goes_on_without_its_roof(gemvbench: Run, script: Write) -> None:
    fault = {"match": {"entry": "read_chunked"}, "fault": "crash", "stage": "time"}
    script([], faults=[fault])
    answer = gemvbench("ab", "--arm", "pack2", "--shape", SHAPE, "--format", "json", "--quick")
    assert answer.code == 0
    assert answer.results()["pack2"]["roof_fraction"] is None
    assert answer.results()["pack2"]["blocks"] == 6


def test_drivers_that_crash_at_listing(gemvbench: Run, script: Write) -> None:
    script([], listing="crash")
    answer = gemvbench("devices")
    assert answer.code == 4
    assert "drivers cannot all be listed" in answer.err
    assert "No OpenCL or CUDA device was found. Install one" in answer.err


def test_drivers_that_hang_at_listing(
    gemvbench: Run, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMVBENCH_LIMIT_SCALE", "0.02")
    script([], listing="hang")
    assert gemvbench("devices").code == 4


def test_reading_the_pools_of_a_selftest_kills_the_worker(gemvbench: Run, script: Write) -> None:
    """Charged, said, and the comparison goes on."""
    half = {"entry": "read_chunked", "words": str((1 << 19) // 4)}
    speeds = [{"match": {"entry": "read_chunked"}, "gbps": 0.6}, {"gbps": 0.3}]
    script(speeds, faults=[{"match": half, "fault": "crash"}])
    answer = gemvbench("selftest", "--shape", "512x1000", "--budget", "1s", "--format", "json")
    assert answer.code == 4
    texts = {finding["check"]: finding["text"] for finding in answer.json["findings"]}
    assert "could not be read: the process ended with signal SIGABRT" in texts["regime"]
    assert [each["found"] for each in answer.json["planted"]][-1] is True


def wait_for(text: bytes, record: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not (record.exists() and text in record.read_bytes()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_summarised(tmp_path: Path, sent: signal.Signals) -> None:
    hang = {"match": {"PACK": "2"}, "fault": "hang", "stage": "time", "after": 10}
    script, record = write_script(tmp_path, faults=[hang]), tmp_path / "record"
    words = ("ab", "--arm", "pack2", "--shape", SHAPE, "--format", "json", "--record", record)
    process = start(tmp_path, script, *words)
    wait_for(b'"Sample"', record, process)
    time.sleep(0.3)
    process.send_signal(sent)
    answer = finish(process)
    assert answer.code == 4
    assert answer.json["ended"] == "interrupted"
    found = answer.results()["pack2"]
    assert (found["verdict"], found["blocks"]) == ("UNDECIDED", 1)
    assert found["ratio"] == pytest.approx(1, abs=0.02)
    assert found["reason"] == "only 1 of at least 6 blocks"
    assert json.loads(record.read_text().splitlines()[-1])["type"] == "Ended"


def test_interrupted_before_anything_was_measured(tmp_path: Path) -> None:
    hang = {"match": {"PACK": "2"}, "fault": "hang"}
    script, record = write_script(tmp_path, faults=[hang]), tmp_path / "record"
    words = ("ab", "--arm", "pack2", "--shape", SHAPE, "--record", record)
    process = start(tmp_path, script, *words)
    wait_for(b'"Header"', record, process)
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert answer.code == 4
    assert "nothing was measured" in answer.out
    assert "interrupted" in answer.out
