"""`ab`, `sweep` and the others on the scripted fake: verdicts, formats, exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SHAPE, Answer

from gemvbench import __version__, cli

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]

TOP_KEYS = {
    "schema",
    "device",
    "regime",
    "confidence",
    "noise_floor",
    "min_detectable_effect",
    "results",
}
RESULT_KEYS = {
    "case",
    "arm",
    "baseline",
    "constants",
    "verdict",
    "ratio",
    "ci",
    "blocks",
    "passes",
    "seconds_per_call",
    "gbps",
    "roof_fraction",
    "verified",
    "flags",
}
PLANTED: list[dict[str, Any]] = [
    {"match": {"PACK": "2"}, "gbps": 0.022},
    {"match": {"PACK": "3"}, "gbps": 0.018},
    {"match": {"BLOCK": "64"}, "gbps": 0.045},
]


def ab(gemvbench: Run, *words: object, form: str = "json") -> Answer:
    return gemvbench("ab", "--shape", SHAPE, "--format", form, *words)


def test_planted_effects_are_found(gemvbench: Run, script: Write) -> None:
    script(PLANTED)
    arms = ("pack2", "pack3", "rows2", "block64", "acc16", "auto")
    answer = ab(gemvbench, *(word for arm in arms for word in ("--arm", arm)))
    found = answer.results()
    assert [found[arm]["verdict"] for arm in arms] == [
        "FASTER",
        "SLOWER",
        found["rows2"]["verdict"],
        "INVALID",
        "DECLINED",
        "SLOWER",
    ]
    assert found["rows2"]["verdict"] in ("SAME", "UNDECIDED")
    assert found["aa"]["verdict"] in ("SAME", "UNDECIDED")
    for arm, ratio in (("pack2", 1.1), ("pack3", 0.9), ("rows2", 1.0), ("aa", 1.0)):
        assert found[arm]["ratio"] == pytest.approx(ratio, abs=0.006)
        low, high = found[arm]["ci"]
        assert low < ratio < high
    assert found["pack2"]["gbps"] == pytest.approx(0.022, rel=0.01)
    assert found["pack2"]["roof_fraction"] == pytest.approx(0.55, rel=0.01)
    assert (found["pack2"]["blocks"], found["pack2"]["passes"]) == (6, 36)
    assert found["pack2"]["constants"]["PACK"] == 2
    assert found["auto"]["constants"]["workgroup_size"] == 1
    assert found["acc16"]["ratio"] is None
    assert all(r["verified"] for arm, r in found.items() if arm != "acc16")
    assert answer.code == 4  # one is INVALID


def test_planted_rows_are_an_arm_like_any_other(gemvbench: Run) -> None:
    """The case gets the spare rows of the arm with most; the exact share is in the constants."""
    words = ("--baseline", "pack3", "--arm", "pack3+extra50", "--arm", "cpu+extra100")
    found = ab(gemvbench, *words).results()
    assert {result["case"] for result in found.values()} == {"gemv-512x64-f16-f16-spare6"}
    for arm, extra in (("pack3+extra50", 3), ("cpu+extra100", 6)):
        assert found[arm]["verdict"] == "SLOWER"
        assert found[arm]["constants"]["EXTRA"] == extra
        assert found[arm]["ratio"] == pytest.approx(1 / (1 + extra / 64), abs=0.004)
        assert found[arm]["verified"] is True
        assert found[arm]["gbps"] < found["pack3"]["gbps"]  # useful bytes alone
    assert "EXTRA" not in found["pack3"]["constants"]


def test_a_planted_arm_whose_extra_rows_are_wrong_is_wrong(gemvbench: Run, script: Write) -> None:
    script([], faults=[{"match": {"EXTRA": "3"}, "fault": "written_past_end"}])
    answer = gemvbench("verify", "--shape", SHAPE, "--arm", "extra50", "--arm", "extra100")
    assert answer.code == 3
    assert answer.out.count("WRONG") == 1
    assert "extra rows: 1 rows wrong; row 0 (first) is 0" in " ".join(answer.out.split())


def test_json_has_the_keys_of_the_design(gemvbench: Run) -> None:
    answer = ab(gemvbench, "--arm", "pack2", "--quick")
    assert answer.code == 0
    assert set(answer.json) >= TOP_KEYS
    assert answer.json["schema"] == 1
    assert (answer.json["device"], answer.json["regime"]) == ("fake0", "stream")
    assert answer.json["confidence"] == 0.99
    assert 0 < answer.json["noise_floor"] < 0.05
    assert 0 < answer.json["min_detectable_effect"] < 0.05
    for result in answer.json["results"]:
        assert set(result) >= RESULT_KEYS
        assert isinstance(result["flags"], list)
        assert len(result["ci"]) == 2
    assert "aa" in answer.results()
    assert answer.results()["pack2"]["passes"] == 18


def test_every_format_says_the_same(gemvbench: Run, script: Write, tmp_path: Path) -> None:
    script(PLANTED)
    record, target = tmp_path / "r.jsonl", tmp_path / "out"
    measured = ab(gemvbench, "--arm", "pack2", "--record", record, "-o", target)
    assert (measured.code, measured.out) == (0, "")
    assert f"gemvbench report {record}" in measured.err
    ratio = next(r["ratio"] for r in json.loads(target.read_text())["results"][2:])
    assert gemvbench("report", record, "--format", "json").json == json.loads(target.read_text())
    rows = list(csv.DictReader(io.StringIO(gemvbench("report", record, "--format", "csv").out)))
    assert [row["arm"] for row in rows] == ["base", "aa", "pack2"]
    assert float(rows[2]["ratio"]) == ratio
    markdown = gemvbench("report", record, "--format", "md").out
    table = gemvbench("report", record).out
    for text in (markdown, table):
        assert f"{ratio:.3f}" in text
        assert "FASTER" in text
        assert "Noise floor" in text
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert re.fullmatch(r"[| -]+", lines[1])
    assert "\x1b[" not in table


def test_regressions_fail_only_where_asked(gemvbench: Run, script: Write) -> None:
    script(PLANTED)
    assert ab(gemvbench, "--arm", "pack3").code == 0
    assert ab(gemvbench, "--arm", "pack3", "--fail-on-slower").code == 1
    assert ab(gemvbench, "--arm", "pack2", "--fail-on-slower").code == 0


def test_seeds_make_runs_repeatable(gemvbench: Run) -> None:
    def numbers(seed: int) -> Any:
        return ab(gemvbench, "--arm", "pack2", "--quick", "--seed", seed).json["results"]

    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)


def test_dry_run_prints_the_plan_and_measures_nothing(gemvbench: Run, tmp_path: Path) -> None:
    words = ("ab", "--shape", SHAPE, "--arm", "pack2", "--seed", 5)
    dry = gemvbench(*words, "--dry-run")
    assert dry.code == 0
    orders = [tuple(o.split()) for o in re.findall(r"^pass \d: (.*)$", dry.out, re.MULTILINE)]
    assert len(orders) == 6
    assert all(sorted(order) == ["aa", "base", "pack2", "roof"] for order in orders)
    assert "PACK=2" in dry.out
    assert "Nothing was measured" in dry.out
    assert not (tmp_path / "home").exists()
    record = tmp_path / "r"
    gemvbench(*words, "--record", record)
    samples = [json.loads(line) for line in record.read_text().splitlines()]
    first = [s["arm"] for s in samples if s["type"] == "Sample" and s["block"] == 0]
    assert [tuple(first[i : i + 4]) for i in range(0, 24, 4)] == orders


def test_hot_is_another_regime(gemvbench: Run, script: Write) -> None:
    script(PLANTED)
    answer = ab(gemvbench, "--arm", "block64", "--regime", "hot", "--quick")
    assert (answer.code, answer.json["regime"]) == (0, "hot")
    assert answer.results()["block64"]["verdict"] == "FASTER"  # above the roof is no fault here


def test_sweep_shows_its_matrix(gemvbench: Run, script: Write) -> None:
    script([{"match": {"PACK": "2", "ROWS": "4"}, "gbps": 0.03}])
    answer = gemvbench("sweep", "--shape", SHAPE, "--quick")
    assert answer.code == 0
    matrix = answer.out.splitlines()[:5]
    assert re.split(r"\s+", matrix[1].strip()) == ["pack0", "pack1", "pack2"]
    assert [line.split()[0] for line in matrix[2:]] == ["rows1", "rows2", "rows4"]
    assert re.search(r"1\.\d\d\d \+$", matrix[4])
    rows = gemvbench("sweep", "--shape", SHAPE, "--quick", "--pack", "0,2", "--format", "csv")
    assert len(rows.out.splitlines()) == 1 + 3


def test_a_sweep_against_another_baseline(gemvbench: Run, script: Write) -> None:
    script([{"match": {"device": "b"}, "gbps": 0.03}], devices=[{"id": "a"}, {"id": "b"}])
    words = ("sweep", "--pack", "0,2", "--baseline", "b:base", "--shape", SHAPE, "--quick")
    lines = gemvbench(*words).out.splitlines()
    assert lines[0].endswith("on a: ratio to b:base, more is faster")
    assert re.fullmatch(r" *0\.6\d\d - +0\.6\d\d -", lines[2])


def test_models_shapes_and_types(gemvbench: Run) -> None:
    def cases(*words: str) -> set[str]:
        return {r["case"] for r in gemvbench("ab", *words, "--dry-run", "--format", "json").json}

    one = ("--arm", "pack2")
    assert len(cases(*one, "--model", "s2-seven")) == 7
    assert cases(*one, "--model", "Qwen3.6-27B", "-k", "x96") == {"gemv-5120x96-f16-f16"}
    assert cases(*one) == {"gemv-1024x3072-f16-f16"}
    assert cases(*one, "--shape", "8x1", "--shape", "7X3") == {
        "gemv-8x1-f16-f16",
        "gemv-7x3-f16-f16",
    }
    offsets = ("--weights", "bf16", "--x", "f32", "--w-offset", "16", "--x-offset", "4")
    assert cases(*one, *offsets) == {"gemv-1024x3072-bf16-f32-w+16-x+4"}


def test_unverified_models_are_said_to_be(gemvbench: Run) -> None:
    answer = gemvbench("ab", "--arm", "pack2", "--model", "qwen3-14b", "-k", "q", "--dry-run")
    assert "Qwen3-14B: all dimensions not verified" in answer.err
    assert "qwen3-14b u" in gemvbench("list").out


def test_arms_on_several_devices(gemvbench: Run, script: Write) -> None:
    devices = [{"id": "gpu0", "kind": "gpu"}, {"id": "cpu0"}]
    rules = [
        {"match": {"entry": "read_strided"}, "gbps": 0.1},
        {"match": {"device": "gpu0"}, "gbps": 0.06},
    ]
    script(rules, devices=devices)
    assert [d["id"] for d in gemvbench("devices", "--format", "json").json] == ["gpu0", "cpu0"]
    words = ("--arm", "gpu0:base", "--baseline", "cpu0:base", "--quick")
    dry = ab(gemvbench, *words, "--dry-run", form="table").out
    assert re.search("pass 1:.* gpu0:roof", dry)
    assert re.search("pass 1:.* cpu0:roof", dry)
    found = ab(gemvbench, *words).results()
    assert found["gpu0:base"]["verdict"] == "FASTER"
    assert found["gpu0:base"]["ratio"] == pytest.approx(3, rel=0.02)
    assert found["gpu0:base"]["roof_fraction"] == pytest.approx(0.6, rel=0.02)


def test_flags_of_a_scripted_device(gemvbench: Run, script: Write) -> None:
    gaps = {"match": {"PACK": "2"}, "overhead": 1e-3}
    host = {"match": {"PACK": "3"}, "queued_ahead": False, "kernel_times": False}
    slow = {"match": {"PACK": "0"}, "gbps": 0.005}
    script([gaps, host, slow])
    words = [word for arm in ("pack0", "pack2", "pack3") for word in ("--arm", arm)]
    found = ab(gemvbench, *words, "--quick").results()
    assert any("launch gaps" in flag for flag in found["pack2"]["flags"])
    assert any("host-bound" in flag for flag in found["pack3"]["flags"])
    assert any("compute-bound" in flag for flag in found["pack0"]["flags"])
    assert found["base"]["flags"] == []


def test_verify_and_roof(gemvbench: Run, script: Write) -> None:
    answer = gemvbench("verify", "--shape", SHAPE)
    assert answer.code == 0
    assert "RIGHT" in answer.out
    assert "WRONG" not in answer.out
    script([], faults=[{"match": {"PACK": "2"}, "fault": "wrong_last_row"}])
    wrong = gemvbench("verify", "--shape", SHAPE, "--format", "json")
    assert wrong.code == 3
    named = [r for r in wrong.json if r["verdict"] == "WRONG"]
    assert {r["arm"] for r in named} == {"pack2"}
    assert "row 63 (last)" in named[0]["detail"]
    roof = gemvbench("roof", "--format", "json")
    assert roof.code == 0
    assert [r["bandwidth"] for r in roof.json["roofs"]] == pytest.approx([0.04e9] * 3, rel=0.01)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"gemvbench {__version__}\n"
