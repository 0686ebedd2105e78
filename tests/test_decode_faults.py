"""A device that is lost in the middle of a token: real worker processes, and nothing lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer
from tiny import TINY, use_catalogue

WHOLE = "token-tiny-f16-f16"


@pytest.fixture(autouse=True)
def tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalogue(TINY, tmp_path, monkeypatch)


def by_case(answer: Answer, arm: str) -> dict[str, dict[str, Any]]:
    return {r["case"]: r for r in answer.json["results"] if r["arm"] == arm}


def test_an_arm_that_loses_the_device_half_way_loses_nothing_else(
    gemvbench: Callable[..., Answer], script: Callable[..., Path], tmp_path: Path
) -> None:
    crash = {"match": {"PACK": "2"}, "fault": "crash", "stage": "time", "after": 20}
    script([], faults=[crash])
    record = tmp_path / "record"
    words = ("--model", "tiny", "--arm", "pack2", "--arm", "pack0", "--quick", "--blocks", "6")
    words += ("--record", str(record))
    answer = gemvbench("decode", *words, "--format", "json")
    assert answer.code == 3
    assert "Traceback" not in answer.err
    assert by_case(answer, "pack0")[WHOLE]["blocks"] == 6
    lost = by_case(answer, "pack2")[WHOLE]
    assert lost["verdict"] == "FAILED"
    assert "measure: the process ended with signal SIGABRT" in lost["reason"]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    charged = next(i for i, line in enumerate(lines) if line["type"] == "Charged")
    assert any(line["type"] == "Sample" for line in lines[:charged])
    assert lines[-1]["type"] == "Ended"
    shown = gemvbench("report", record)
    assert shown.code == 0
    assert "pack0 against base, by class of layers" in shown.out


def test_a_device_that_is_gone_for_good_ends_the_run(
    gemvbench: Callable[..., Answer], script: Callable[..., Path]
) -> None:
    fault = {"match": {"KIND": "KIND_RANDOM"}, "fault": "crash", "stage": "launch", "after": 5}
    script([], faults=[fault])
    words = ("--model", "tiny", "--arm", "pack2", "--quick", "--format", "json")
    answer = gemvbench("decode", *words)
    assert answer.code == 3
    assert answer.json["ended"] == "the device failed without an arm to charge"
    assert answer.json["tokens"] == []
    assert "SIGABRT" in by_case(answer, "pack2")[f"{WHOLE}/q+k+v"]["reason"]
