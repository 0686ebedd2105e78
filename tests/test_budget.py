"""A budget too small is refused with the smallest that works, or says so at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SHAPE, Answer
from records import make_header

from gemvbench import run
from gemvbench.budget import round_up
from gemvbench.case import Gemv
from gemvbench.commands.live import Display
from gemvbench.messages import Calibrate, Calibrated, CaseBlock, Doing, KernelJob
from gemvbench.planner import Planner
from gemvbench.record import Recorder, Settings

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
WORDS = ("ab", "--arm", "pack2", "--shape", SHAPE, "--quick", "--format", "json")


def smallest(text: str) -> float:
    said = r"the smallest budget that works is ([\d.]+) s"
    found = re.search(said, " ".join(text.split()), re.IGNORECASE)
    assert found, text
    return float(found[1])


def lines_of(record: Path) -> list[Any]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_refused_before_the_first_block(gemvbench: Run, tmp_path: Path) -> None:
    record = tmp_path / "r"
    answer = gemvbench(*WORDS, "--budget", "4s", "--record", record)
    assert (answer.code, answer.out) == (2, "")
    assert "The budget of 4 s cannot hold 6 blocks" in answer.err
    needed = gemvbench(*WORDS).json["device_seconds"]  # warm-up and some margin come on top
    assert needed < smallest(answer.err) < 1.6 * needed
    kinds = [line["type"] for line in lines_of(record)]
    assert {"Verified", "Calibrated", "RoofMeasured"} <= set(kinds)
    assert not {"Sample", "Alone"} & set(kinds)
    shown = gemvbench("report", record)
    assert shown.code == 0
    assert smallest(shown.out) == smallest(answer.err)


def test_the_budget_that_is_named_works(gemvbench: Run) -> None:
    enough = smallest(gemvbench(*WORDS, "--budget", "1s").err)
    answer = gemvbench(*WORDS, "--budget", f"{enough}s")
    assert (answer.code, answer.json["ended"]) == (0, "complete")
    assert answer.results()["pack2"]["blocks"] == 6
    assert answer.json["smallest_budget"] is None


def test_wrong_arms_weigh_more_than_a_small_budget(
    gemvbench: Run, script: Callable[..., Path]
) -> None:
    script([], faults=[{"match": {"PACK": "3"}, "fault": "wrong_everywhere"}])
    answer = gemvbench(*WORDS, "--arm", "pack3", "--budget", "1s")
    assert answer.code == 3
    assert answer.json["ended"] == "budget too small"
    assert answer.results()["pack3"]["verdict"] == "WRONG"


def test_too_small_only_in_the_end(gemvbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate that was too low: what was measured stands, and a better budget is named."""
    monkeypatch.setattr(Planner, "block_seconds", lambda *_: -60.0)
    answer = gemvbench(*WORDS, "--budget", "0.01s", "--record", "r")
    assert (answer.code, answer.json["ended"]) == (0, "budget")
    found = answer.results()["pack2"]
    assert (found["verdict"], 1 <= found["blocks"] < 6) == ("UNDECIDED", True)
    assert answer.json["smallest_budget"] == 1
    assert smallest(gemvbench("report", "r").out) == 1


def test_no_budget_is_no_limit(gemvbench: Run) -> None:
    assert gemvbench(*WORDS).json["smallest_budget"] is None


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.1, 1), (9.2, 10), (10.1, 15), (58, 60), (61, 70), (601, 660)]
)
def test_budgets_are_told_in_round_numbers(seconds: float, told: float) -> None:
    assert round_up(seconds) == told


def test_seconds_of_the_device_and_of_the_wall(gemvbench: Run) -> None:
    """Scripted times pass in no time, so the two cannot be mixed up."""
    answer = gemvbench(*WORDS, "--record", "r")
    legs = [
        sample[name]["timeline"]
        for sample in lines_of(Path("r"))
        if sample["type"] == "Sample"
        for name in ("long", "short", "middle")
        if sample[name]
    ]
    assert answer.json["device_seconds"] == pytest.approx(sum(legs))
    assert 0 < answer.json["wall_seconds"] < sum(legs)
    assert re.search(
        r"\d s of timed device intervals in \S+ m?s of measuring",
        gemvbench("report", "r").out,
    )


def test_start_up_is_what_passes_before_arms_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that goes on by a second with each message."""
    clock = iter(range(100))
    steps = (
        Doing(stage="inputs"),
        Doing(stage="compile", arm="base"),
        Doing(stage="compile", arm="read"),
        Doing(stage="calibrate", arm="base"),
        Calibrated(case="c", arm="base", seconds=1.0),
        Doing(stage="calibrate", arm="read"),
        Doing(stage="inputs"),
        Doing(stage="calibrate", arm="base"),
    )
    monkeypatch.setattr(run, "converse", lambda _: iter(steps))
    monkeypatch.setattr(run.time, "monotonic", lambda: float(next(clock)))
    roof = KernelJob(arm="read", device="d", text="", entry="", workgroups=1, workgroup_size=1)
    case = CaseBlock(case=Gemv(k=8, n=8), layouts={}, jobs=(), roofs=(roof,))
    conductor = run.Conductor(Settings(command="ab"), (), Recorder(make_header(), None), Display())
    list(conductor._time_start_up(Calibrate(devices=(), cases=(case,), seed=0)))
    # Until the inputs, the inputs, the compilation of base; then the inputs of another case.
    assert conductor._planner.start_up == 4.0
