"""An arm alone against the same arm in company: planted contamination is found, none is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import SHAPE, Answer

from gemvbench.contest import Contest
from gemvbench.messages import Block
from gemvbench.planner import Planner

Run = Callable[..., Answer]
Write = Callable[..., Path]
PACK2: dict[str, Any] = {"match": {"PACK": "2"}, "gbps": 0.022}
WORDS = ("ab", "--arm", "pack2", "--shape", SHAPE)

inside = pytest.mark.usefixtures("in_process")


def check(gemvbench: Run, *words: object) -> tuple[Any, Answer]:
    answer = gemvbench(*WORDS, "--format", "json", *words)
    return answer.json["contamination"], answer


@inside
def test_company_that_makes_an_arm_faster(gemvbench: Run, script: Write) -> None:
    """Alone it would have lost: 0.83x, and 1.75x together."""
    script([PACK2 | {"gbps": 0.83 * 0.02, "company": 0.83 / 1.75}])
    found, answer = check(gemvbench, "--record", "r")
    assert found["contaminated"]
    assert found["alone"] == pytest.approx(0.83, rel=0.01)
    assert found["together"] == pytest.approx(1.75, rel=0.01)
    result = answer.results()["pack2"]
    assert result["ratio"] == pytest.approx(1.75, rel=0.01)
    (flag,) = [flag for flag in result["flags"] if flag.startswith("contaminated (+11")]
    for form in ("table", "md"):
        text = gemvbench("report", "r", "--format", form).out
        assert re.search(r"pack2 alone: ratio 0\.8\d+ against 1\.7\d+ together", text)
        assert "arms disturb each other" in text
        assert flag in text
    assert not any("contaminated" in f for f in answer.results()["aa"]["flags"])


@inside
def test_a_small_contamination_is_found_too(gemvbench: Run, script: Write) -> None:
    script([PACK2 | {"company": 1.04}])
    found, answer = check(gemvbench)
    assert found["contaminated"]
    assert any(flag.startswith("contaminated (-") for flag in answer.results()["pack2"]["flags"])


@inside
@pytest.mark.parametrize("company", [1.0, 1.015])
def test_nothing_to_speak_of_is_no_flag(gemvbench: Run, script: Write, company: float) -> None:
    script([PACK2 | {"company": company, "noise": 0.0005, "offset": 0.0001}])
    found, answer = check(gemvbench, "--record", "r")
    assert not found["contaminated"]
    assert found["alone"] == pytest.approx(1.1, rel=0.01)
    assert found["together"] == pytest.approx(1.1 / company, rel=0.01)
    assert answer.results()["pack2"]["flags"] == []
    assert "pack2 alone: ratio 1." in gemvbench("report", "r").out


@inside
def test_the_spread_of_processes_is_allowed_for(gemvbench: Run, script: Write) -> None:
    """5 % that are not to be told from what processes differ by anyway."""
    script([PACK2 | {"company": 1.05, "offset": 0.03}])
    found, _ = check(gemvbench)
    assert found["tolerance"] > 0.08
    assert not found["contaminated"]


@inside
def test_its_samples_are_in_the_record_and_in_nothing_else(gemvbench: Run, script: Write) -> None:
    script([PACK2])
    _, answer = check(gemvbench, "--record", "r")
    lines = [json.loads(line) for line in Path("r").read_text().splitlines()]
    alone = [line for line in lines if line["type"] == "Alone"]
    assert [(line["arm"], line["sample"]["arm"]) for line in alone[:2]] in (
        [("pack2", "pack2"), ("pack2", "roof")],
        [("pack2", "roof"), ("pack2", "pack2")],
    )
    by_arm = {arm: sum(line["arm"] == arm for line in alone) for arm in ("pack2", "base")}
    assert by_arm == {"pack2": 12, "base": 12}
    assert {line["sample"]["arm"] for line in alone} == {"pack2", "base", "roof"}
    found = answer.results()["pack2"]
    assert found["passes"] == 6 * found["blocks"]
    kept = [line for line in lines if line["type"] != "Alone"]
    Path("without").write_text("".join(json.dumps(line) + "\n" for line in kept))
    bare = gemvbench("report", "without", "--format", "json")
    assert bare.json["contamination"] is None
    assert bare.results() == answer.results()
    assert bare.json["device_seconds"] == answer.json["device_seconds"]
    assert "No arm was measured alone." in gemvbench("report", "without").out
    half = [line for line in lines if line["type"] != "Alone" or line["arm"] == "pack2"]
    Path("half").write_text("".join(json.dumps(line) + "\n" for line in half))
    assert "did not come to a comparison" in gemvbench("report", "half").out


@inside
def test_one_arm_is_drawn_by_seed(gemvbench: Run) -> None:
    def drawn(seed: int) -> tuple[str, str]:
        words = ("--arm", "pack3", "--shape", "512x96", "--seed", seed)
        found, _ = check(gemvbench, *words)
        return found["case"], found["arm"]

    pairs = [drawn(seed) for seed in (1, 1, 2, 3, 4)]
    assert pairs[0] == pairs[1]
    assert len(set(pairs)) > 1
    assert {arm for _, arm in pairs} <= {"pack2", "pack3"}


@inside
def test_not_in_a_quick_run_nor_beyond_the_budget(
    gemvbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = check(gemvbench, "--quick", "--record", "r")
    assert found is None
    assert "No arm was measured alone (--quick)." in gemvbench("report", "r").out
    estimates = iter([1.0, 1e9])
    monkeypatch.setattr(Planner, "block_seconds", lambda *_: next(estimates))
    found, answer = check(gemvbench, "--budget", "60s")
    assert found is None
    assert answer.json["ended"] == "complete"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("crash", "measure alone: the process ended with signal SIGABRT"),
        ("wrong_when_timed", "alone: a timed run gave another output than the verified one"),
    ],
)
def test_what_goes_wrong_alone_goes_wrong(
    gemvbench: Run, script: Write, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    """The fault waits for more timed runs than a block has; the check is made to have more."""
    plan = Planner.alone

    def longer(planner: Planner, contest: Contest, arm: str) -> Block:
        block = plan(planner, contest, arm)
        (case,) = block.cases
        twice = msgspec.structs.replace(case, slots=case.slots * 2)
        return msgspec.structs.replace(block, cases=(twice,))

    monkeypatch.setattr(Planner, "alone", longer)
    faults = [{"match": {"PACK": "2"}, "fault": fault, "stage": "time", "after": 16}]
    script([PACK2], faults=faults)
    found, answer = check(gemvbench)
    assert found is None
    assert answer.code == 3
    result = answer.results()["pack2"]
    assert (result["verdict"], result["ratio"]) == ("FAILED", pytest.approx(1.1, rel=0.01))
    assert reason in result["reason"]
