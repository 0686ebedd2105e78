"""`decode` on the scripted fake: parts and whole, modes, operating point, what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer
from tiny import TINY, use_catalogue

from gemvbench.commands.decode import parse_lengths
from gemvbench.errors import UserError

pytestmark = pytest.mark.usefixtures("in_process", "tiny_models")

Run = Callable[..., Answer]
Write = Callable[..., Path]

WHOLE = "token-tiny-f16-f16"
CLASSES = ["q+k+v", "o", "gate+up", "down", "lm_head"]
HEAD = {"k": "64", "n": "512"}
QUIET: dict[str, Any] = {"noise": 0.0005, "offset": 0.0002}


@pytest.fixture
def tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalogue(TINY, tmp_path, monkeypatch)


def decode(gemvbench: Run, *words: object, form: str = "json", model: str = "tiny") -> Answer:
    return gemvbench("decode", "--model", model, "--format", form, *words)


def of(answer: Answer, case: str, arm: str) -> dict[str, Any]:
    (found,) = [r for r in answer.json["results"] if (r["case"], r["arm"]) == (case, arm)]
    return dict(found)


def token(answer: Answer, arm: str) -> dict[str, Any]:
    (found,) = [t for t in answer.json["tokens"] if t["arm"] == arm]
    return dict(found)


def test_a_token_is_compared_whole_and_by_class(gemvbench: Run, script: Write) -> None:
    """pack2 gains 10 % in all classes but lm_head, where it loses as much."""
    script(
        [{"match": HEAD | {"PACK": "2"}, "gbps": 0.018}, {"match": {"PACK": "2"}, "gbps": 0.022}]
    )
    answer = decode(gemvbench, "--arm", "pack2")
    assert answer.code == 0
    whole = of(answer, WHOLE, "pack2")
    assert whole["verdict"] == "FASTER"
    assert whole["verified"] is True
    parts = {part["name"]: part for part in token(answer, "pack2")["parts"]}
    assert list(parts) == CLASSES
    assert [part["calls"] for part in parts.values()] == [3, 3, 3, 3, 1]
    for name, part in parts.items():
        wanted = 0.9 if name == "lm_head" else 1.1
        assert part["result"]["ratio"] == pytest.approx(wanted, abs=0.006)
        assert part["result"]["roof_fraction"] == pytest.approx(0.5 * wanted, rel=0.01)
    bytes_ = {
        name: part["result"]["seconds_per_call"] * part["result"]["gbps"]
        for name, part in parts.items()
    }
    assert whole["seconds_per_call"] * whole["gbps"] == pytest.approx(
        sum(bytes_.values()), rel=1e-6
    )


def test_the_parts_add_up_and_launches_are_shown(gemvbench: Run, script: Write) -> None:
    script([QUIET])
    answer = decode(gemvbench, "--arm", "pack2", "--quick")
    for arm in ("base", "pack2"):
        found = token(answer, arm)
        assert abs(found["rest"]) < 0.02 * found["seconds"]
        assert sum(part["share"] for part in found["parts"]) == pytest.approx(1, abs=0.02)
        assert found["tokens_per_second"] == pytest.approx(1 / found["seconds"])
        assert found["ci"][0] < found["seconds"] < found["ci"][1]
    text = " ".join(decode(gemvbench, "--arm", "pack2", "--quick", form="table").out.split())
    assert "base: the parts add up to 100." in text or "base: the parts add up to 99." in text
    assert "tokens/s by these layers alone" in text
    assert "launches alone: 13 launches of an empty kernel" in text


def test_gaps_between_kernels_have_a_row(gemvbench: Run, script: Write) -> None:
    script([{"match": {"entry": "gemv_row"}, "overhead": 1e-4}, QUIET])
    answer = decode(gemvbench, "--arm", "pack2", "--quick")
    found = token(answer, "base")
    assert found["gap"] == pytest.approx(13 * 1e-4, rel=0.01)
    assert found["launches"] == pytest.approx(13 * 1 / 0.02e9, rel=0.1)
    table = decode(gemvbench, "--arm", "pack2", "--quick", form="table").out
    assert "no kernel running" in table


def test_lengths_are_tokens_for_the_whole_and_on_the_record(
    gemvbench: Run, script: Write, tmp_path: Path
) -> None:
    record = tmp_path / "r"
    decode(gemvbench, "--arm", "pack2", "--quick", "--lengths", "2,7", "--record", record)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    samples = [line for line in lines if line["type"] == "Sample"]
    whole = [s for s in samples if s["case"] == WHOLE and s["arm"] in ("base", "aa", "pack2")]
    assert {(s["short"]["calls"], s["long"]["calls"]) for s in whole} == {(2, 7)}
    assert lines[0]["settings"]["lengths"] == [2, 7]
    script([], devices=[{"kind": "gpu"}])
    assert decode(gemvbench, "--arm", "pack2", "--quick").json["lengths"] == [4, 36]


def test_a_report_shows_a_decode_again(gemvbench: Run, tmp_path: Path) -> None:
    record = tmp_path / "r"
    first = decode(gemvbench, "--arm", "pack2", "--quick", "--record", record)
    assert gemvbench("report", record, "--format", "json").json == first.json
    markdown = gemvbench("report", record, "--format", "md").out
    assert "### pack2 against base, by class of layers" in markdown
    assert "| launch gaps, rest |" in markdown
    assert len(gemvbench("report", record, "--format", "csv").out.splitlines()) == 1 + 6 * 3


def test_experts_are_decoded_too(gemvbench: Run) -> None:
    answer = decode(gemvbench, "--arm", "pack2", "--quick", model="tiny-moe")
    assert answer.code == 0
    assert "Tiny-MoE: everything not verified" in answer.err
    calls = {part["name"]: part["calls"] for part in token(answer, "base")["parts"]}
    assert calls == {"qkv": 3, "router": 3, "expert up": 6, "expert down": 6, "lm_head": 1}
    assert abs(token(answer, "base")["rest"]) < 0.02 * token(answer, "base")["seconds"]


def test_the_run_stops_when_the_whole_token_is_decided(gemvbench: Run, script: Write) -> None:
    """lm_head is too noisy to be decided, and nobody waits for it."""
    script(
        [
            {"match": HEAD | {"entry": "gemv_row"}, "noise": 0.05},
            {"match": {"PACK": "2"}, "gbps": 0.03},
        ]
    )
    answer = decode(gemvbench, "--arm", "pack2", "--min-effect", "0.1%")
    assert of(answer, WHOLE, "pack2")["blocks"] == 6


# Modes.


def test_a_class_that_collapses_in_some_blocks_is_named(gemvbench: Run, script: Write) -> None:
    slow = {"slow_process_probability": 0.4, "slow_factor": 19.6}
    script([{"match": HEAD | {"entry": "gemv_row"}, **slow}, QUIET], seed=3)
    answer = decode(gemvbench, "--arm", "pack2", "--blocks", "8")
    modes = answer.json["modes"]
    assert {mode["name"] for mode in modes} == {"lm_head"}
    assert {mode["arm"] for mode in modes} == {"base", "aa", "pack2"}  # arm-symmetric, as S2's
    blocks = {tuple(mode["blocks"]) for mode in modes}
    assert len(blocks) == 1
    assert 1 <= len(blocks.pop()) < 8
    for mode in modes:
        assert mode["factor"] == pytest.approx(19.6, rel=0.02)
        assert mode["rest"] == pytest.approx(1, abs=0.01)
    text = " ".join(decode(gemvbench, "--arm", "pack2", "--blocks", "8", form="table").out.split())
    assert (
        "Mode: lm_head takes 19.6 to 19.6 times as long in" in text
        or "Mode: lm_head takes 19." in text
    )
    assert "the rest of the token moves by" in text


def test_a_mode_of_one_arm_names_that_arm(gemvbench: Run, script: Write) -> None:
    slow = {"slow_process_probability": 0.4, "slow_factor": 3}
    script([{"match": HEAD | {"PACK": "2"}, **slow}, QUIET], seed=3)
    modes = decode(gemvbench, "--arm", "pack2", "--blocks", "8").json["modes"]
    assert {(mode["name"], mode["arm"]) for mode in modes} == {("lm_head", "pack2")}


# The operating point.


def ab_record(gemvbench: Run, path: Path, *words: object) -> Path:
    shapes = ("64x128", "64x64", "64x256", "128x64", "64x512")
    given = [word for shape in shapes for word in ("--shape", shape)]
    assert gemvbench("ab", "--arm", "pack2", *given, "--record", path, *words).code == 0
    return path


def test_the_same_shares_confirm_a_ranking(gemvbench: Run, script: Write, tmp_path: Path) -> None:
    script([{"match": {"PACK": "2"}, "gbps": 0.022}])
    record = ab_record(gemvbench, tmp_path / "ab")
    answer = decode(gemvbench, "--arm", "pack2", "--ab", record)
    points = answer.json["operating_point"]
    assert {point["name"] for point in points} == {*CLASSES, "token"}
    assert all(point["agrees"] and not point["ranking"] for point in points)
    assert {point["source"] for point in points} == {"ab"}
    table = decode(gemvbench, "--arm", "pack2", "--ab", record, form="table").out
    assert "regime stream of ab is confirmed" in table


def test_a_sweep_in_the_wrong_regime_is_unconfirmed(
    gemvbench: Run, script: Write, tmp_path: Path
) -> None:
    """S2's lesson: alone pack2 gains 10 %, in a token it loses, at another share of the roof."""
    script([{"match": {"PACK": "2"}, "gbps": 0.022}])
    record = ab_record(gemvbench, tmp_path / "hot", "--regime", "hot")
    script([{"match": {"PACK": "2"}, "gbps": 0.016}])
    answer = decode(gemvbench, "--arm", "pack2", "--ab", record)
    points = {(point["name"], point["arm"]): point for point in answer.json["operating_point"]}
    assert points["down", "base"]["agrees"]
    assert not points["down", "pack2"]["agrees"]
    assert points["down", "pack2"]["ranking"] == "not faster than base"
    assert points["down", "pack2"]["isolated"] == pytest.approx(0.55, rel=0.01)
    assert points["down", "pack2"]["decode"] == pytest.approx(0.40, rel=0.01)
    assert points["token", "pack2"]["isolated"] == pytest.approx(0.55, rel=0.02)
    text = " ".join(decode(gemvbench, "--arm", "pack2", "--ab", record, form="table").out.split())
    assert "regime hot of hot is unconfirmed" in text
    wide = decode(gemvbench, "--arm", "pack2", "--ab", record, "--tolerance", "50%").json
    found = {(p["name"], p["arm"]): p for p in wide["operating_point"]}
    assert found["down", "pack2"]["agrees"]
    assert found["down", "pack2"]["ranking"]


def test_records_that_cannot_be_held_against_it(
    gemvbench: Run, script: Write, tmp_path: Path
) -> None:
    record = tmp_path / "d"
    decode(gemvbench, "--arm", "pack2", "--quick", "--record", record)
    own = decode(gemvbench, "--arm", "pack2", "--ab", record)
    assert (own.code, own.out) == (2, "")
    assert "is a record of `decode`" in own.err
    other = tmp_path / "other"
    gemvbench("ab", "--arm", "pack2", "--shape", "32x32", "--quick", "--record", other)
    none = decode(gemvbench, "--arm", "pack2", "--ab", other)
    assert none.code == 4
    assert "holds no arm of this decode on a shape of its token" in none.err
    script([], devices=[{"id": "another"}])
    gemvbench("ab", "--arm", "pack2", "--shape", "64x64", "--quick", "--record", tmp_path / "x")
    script()
    foreign = decode(gemvbench, "--arm", "pack2", "--ab", tmp_path / "x")
    assert foreign.code == 4
    assert "was measured on another" in foreign.err
    assert decode(gemvbench, "--arm", "pack2", "--ab", tmp_path / "none").code == 2


def test_ab_says_that_its_regime_is_unconfirmed(gemvbench: Run) -> None:
    out = gemvbench("ab", "--arm", "pack2", "--shape", "64x64", "--quick").out
    assert "Regime stream is unconfirmed" in out
    assert "is unconfirmed" not in decode(gemvbench, "--arm", "pack2", "--quick", form="table").out


# What goes wrong.


@pytest.mark.parametrize("text", ["4,4", "36,4", "0,4", "-1,4", "4", "4,x", "", "4,36,40"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="two numbers of tokens, the shorter first"):
        parse_lengths(text)


def test_lengths_are_two_numbers_of_tokens() -> None:
    assert parse_lengths(" 4, 36 ") == (4, 36)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "tinny"), "did you mean tiny?"),
        (("--model", "shapes"), "no token to decode"),
        (("--lengths", "4,4"), "cannot be equal"),
        (("--launches", "fast"), "use graph or stream"),
        (("--tolerance", "0"), "--tolerance '0'"),
        (("--x", "f64"), "f64"),
    ],
)
def test_bad_input_is_one_paragraph(gemvbench: Run, words: tuple[str, ...], said: str) -> None:
    answer = gemvbench("decode", "--model", "tiny", "--arm", "pack2", *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_model_and_an_arm_are_needed(gemvbench: Run) -> None:
    assert "needs a --model" in gemvbench("decode", "--arm", "pack2").err
    assert "at least one --arm" in gemvbench("decode", "--model", "tiny").err
    same = gemvbench("decode", "--model", "tiny", "--arm", "base")
    assert "is the baseline itself" in same.err


def test_a_model_that_does_not_fit_is_refused(gemvbench: Run, script: Write) -> None:
    script([], devices=[{"memory": 450_000}])
    answer = decode(gemvbench, "--arm", "pack2", model="tiny-moe")
    assert (answer.code, answer.out) == (4, "")
    assert "The weights of tiny-moe take 0.00 GB" in answer.err
    assert "The largest model of the catalogue that fits is tiny (" in answer.err


def test_an_arm_that_declines_is_named_with_its_class(gemvbench: Run) -> None:
    answer = decode(gemvbench, "--arm", "pack2", "--arm", "cublas", "--quick")
    assert answer.code == 0
    declined = of(answer, WHOLE, "cublas")
    assert declined["verdict"] == "DECLINED"
    assert declined["reason"] == "q+k+v: cublas needs CUDA, and fake0 is fake"
    assert of(answer, WHOLE, "pack2")["blocks"] == 6


def test_an_arm_wrong_in_one_shape_is_wrong_for_the_token(gemvbench: Run, script: Write) -> None:
    fault = {"match": {"PACK": "2", "k": "128"}, "fault": "wrong_last_row"}
    script([], faults=[fault])
    answer = decode(gemvbench, "--arm", "pack2", "--arm", "pack0", "--quick")
    assert answer.code == 3
    wrong = of(answer, WHOLE, "pack2")
    assert wrong["verdict"] == "WRONG"
    assert wrong["reason"].startswith("gemv-128x64-f16-f16: exact: 1 rows wrong; row 63 (last)")
    assert of(answer, f"{WHOLE}/down", "pack2")["verdict"] == "WRONG"
    assert of(answer, f"{WHOLE}/o", "pack2")["ratio"] is not None
    assert of(answer, WHOLE, "pack0")["blocks"] == 6


def test_a_token_that_computes_something_else_when_timed_is_wrong(
    gemvbench: Run, script: Write
) -> None:
    fault = {"match": {"PACK": "2", "n": "512"}, "fault": "wrong_when_timed"}
    script([], faults=[fault])
    answer = decode(gemvbench, "--arm", "pack2", "--arm", "pack0", "--quick")
    assert answer.code == 3
    assert "differs from the verified one" in of(answer, WHOLE, "pack2")["reason"]
    assert of(answer, WHOLE, "base")["verdict"] == "BASELINE"


def test_a_budget_too_small_says_what_is_enough(gemvbench: Run) -> None:
    answer = decode(gemvbench, "--arm", "pack2", "--budget", "0.1s")
    assert (answer.code, answer.out) == (2, "")
    assert "The budget of 0.1 s cannot hold 6 blocks" in answer.err
    assert "the smallest budget that works is" in answer.err


def test_a_dry_run_shows_layers_and_memory(gemvbench: Run) -> None:
    out = " ".join(decode(gemvbench, "--arm", "pack2", "--dry-run", form="table").out.split())
    assert "weights in 13 buffers" in out
    assert "PACK=2" in out
    assert f"{WHOLE}/lm_head" in out
    assert "Nothing was measured" in out


def test_arms_are_identical_only_if_they_are_so_in_every_class(gemvbench: Run) -> None:
    answer = decode(gemvbench, "--arm", "pack1", "--arm", "pack2", "--quick")
    assert "identical to base" in of(answer, WHOLE, "pack1")["flags"]
    assert not [flag for flag in of(answer, WHOLE, "pack2")["flags"] if "identical" in flag]
