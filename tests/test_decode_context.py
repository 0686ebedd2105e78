"""`decode --context` on the scripted fake: attention's row, its arms, and what users get wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer
from tiny import TINY, use_catalogue

pytestmark = pytest.mark.usefixtures("in_process", "tiny_models")

Run = Callable[..., Answer]
Write = Callable[..., Path]

WHOLE = "token-tiny-f16-f16-n25to56"
ALONE = "token-tiny-f16-f16-n41/attention"
WINDOWED = TINY.replace('title = "Tiny"\n', 'title = "Tiny"\nwindow = "all layers see 8 tokens"\n')
QUIET: dict[str, Any] = {"noise": 0.0005, "offset": 0.0002}


@pytest.fixture
def tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalogue(WINDOWED, tmp_path, monkeypatch)


def decode(gemvbench: Run, *words: object, form: str = "json", context: object = 20) -> Answer:
    head = ("decode", "--model", "tiny", "--quick", "--context", context)
    return gemvbench(*head, "--format", form, *words)


def of(answer: Answer, case: str, arm: str) -> dict[str, Any]:
    (found,) = [r for r in answer.json["results"] if (r["case"], r["arm"]) == (case, arm)]
    return dict(found)


def text(answer: Answer) -> str:
    return " ".join(answer.out.split())


def test_attention_has_a_row_and_the_parts_add_up(
    gemvbench: Run, script: Write, tmp_path: Path
) -> None:
    script([QUIET])
    record = tmp_path / "r"
    answer = decode(gemvbench, "--arm", "pack2", "--record", record)
    assert answer.code == 0
    assert "Tiny: all layers see 8 tokens; here all that attend see the whole cache." in answer.err
    assert answer.json["lengths"] == [4, 36]
    for found in answer.json["tokens"]:
        parts = {part["name"]: part for part in found["parts"]}
        assert list(parts) == ["q+k+v", "attention", "o", "gate+up", "down", "lm_head"]
        assert parts["attention"]["calls"] == 3
        assert abs(found["rest"]) < 0.02 * found["seconds"]
        assert found["whole"]["verified"] is True
        bytes_ = [
            part["result"]["seconds_per_call"] * part["result"]["gbps"] for part in parts.values()
        ]
        whole = found["whole"]
        assert whole["seconds_per_call"] * whole["gbps"] == pytest.approx(sum(bytes_), rel=0.002)
    assert parts["attention"]["result"]["case"] == ALONE
    # K and V of 41 tokens, one KV head of 32 elements in 2 bytes; Q in FP16, output in FP32.
    moved = 3 * (2 * 41 * 32 * 2 + 2 * 32 * 2 + 2 * 32 * 4)
    assert bytes_[1] == pytest.approx(moved / 1e9, rel=1e-6)
    assert "token_major" in of(answer, WHOLE, "pack2")["steps"][0]
    assert gemvbench("report", record, "--format", "json").json == answer.json
    shown = text(gemvbench("report", record))
    assert "3 layers attend, 2 heads of 32 over 1 of K and V in f16" in shown
    assert "attends to 25 to 56; K and V count once, at the mean of 40.5" in shown
    first = json.loads(record.read_text().splitlines()[0])
    assert [call["context"] for call in first["choices"][0]["outcome"]["calls"]] == [*range(21, 57)]


def test_time_grows_with_the_cache(gemvbench: Run, script: Write) -> None:
    """A token takes the time of its own context, not of the longest."""
    script([QUIET])
    words = ("--arm", "pack2", "--lengths", "1,100")
    found = decode(gemvbench, *words, context=1).json["tokens"][0]
    row = 3 * 2 * 32 * 2 / 0.02e9  # seconds by which three layers take longer with each token
    linear = sum(
        p["result"]["seconds_per_call"] for p in found["parts"] if p["name"] != "attention"
    )
    assert found["seconds"] - linear == pytest.approx(52 * row, rel=0.1)


def test_arms_of_attention_are_compared_in_a_token(gemvbench: Run, script: Write) -> None:
    """Only attention differs, and is twice as fast; nothing else moves."""
    script([{"match": {"SHARED": "0"}, "gbps": 0.04}, QUIET])
    words = ("--attention-arm", "token_major", "--attention-baseline", "per_head")
    answer = decode(gemvbench, "--baseline", "pack2", "--arm", "pack2", *words, context=500)
    assert answer.code == 0
    arm = "pack2/token_major"
    alone = of(answer, ALONE.replace("41", "521"), arm)
    assert (alone["baseline"], alone["verdict"]) == ("pack2/per_head", "FASTER")
    assert alone["ratio"] == pytest.approx(2, rel=0.01)
    whole = of(answer, WHOLE.replace("25to56", "505to536"), arm)
    assert whole["verdict"] == "FASTER"
    assert 1.1 < whole["ratio"] < 1.9
    assert of(answer, "token-tiny-f16-f16/down", arm)["verdict"] == "SAME"
    assert "identical to pack2/per_head" in of(answer, "token-tiny-f16-f16/down", arm)["flags"]
    assert "identical to pack2/per_head" not in whole["flags"]


def test_launches_are_counted_by_arm(gemvbench: Run, script: Write, tmp_path: Path) -> None:
    script([QUIET])
    words = ("--attention-arm", "splitkv+splits1", "--attention-baseline", "per_head+splits4")
    record = tmp_path / "r"
    answer = decode(gemvbench, "--arm", "base", *words, "--record", record)
    base, arm = answer.json["tokens"]
    assert (base["launch_count"], arm["launch_count"]) == (13 + 3 * 4, 13 + 3)
    assert base["launches"] / arm["launches"] == pytest.approx(25 / 16)
    assert "launches alone: 16 launches of an empty" in text(gemvbench("report", record))


def test_caches_have_a_type(gemvbench: Run) -> None:
    answer = decode(gemvbench, "--arm", "pack2", "--kv", "q8_0", "--lengths", "1,5")
    assert answer.code == 0
    whole = of(answer, "token-tiny-f16-f16-n22to25-q8_0", "pack2")
    assert whole["verified"] is True
    assert "K_TYPE" not in whole["constants"]["attention"]


def test_an_arm_that_cannot_attend_is_named(gemvbench: Run, script: Write) -> None:
    fault = {"match": {"entry": "attn_av"}, "fault": "compile_error", "stage": "compile"}
    script([], faults=[fault])
    words = ("--attention-arm", "token_major", "--attention-baseline", "splitkv")
    answer = decode(gemvbench, "--arm", "base", *words)
    assert answer.code == 3
    failed = of(answer, WHOLE, "base/token_major")
    assert failed["verdict"] == "FAILED"
    assert failed["reason"].startswith("attention-2x1x32-f16-tkd-n56: compile: ")


def test_a_plan_shows_caches(gemvbench: Run) -> None:
    out = text(decode(gemvbench, "--arm", "pack2", "--dry-run", form="table"))
    assert "weights and caches in 16 buffers" in out
    assert "caches in " in out.partition(ALONE)[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--context", "0"), "has to begin at 1"),
        (("--context", "many"), "is no number of tokens"),
        (("--context", "16,32"), "takes one number of tokens"),
        (("--context", "999999"), "context is 1000035"),
        (("--context", "16", "--kv", "q4_0"), "'q4_0' is no type of K"),
        (("--kv", "q8_0"), "--kv is for a token that attends: give --context"),
        (("--attention-arm", "splitkv"), "--attention-arm is for a token that attends"),
        (("--context", "16", "--attention-arm", "pack2"), "computes gemv, not attention"),
        (("--context", "16", "--attention-baseline", "splitkw"), "did you mean splitkv?"),
        (("--context", "16", "--attention-arm", "fake0:splitkv"), "leave fake0: out"),
    ],
)
def test_bad_input_is_one_paragraph(gemvbench: Run, words: tuple[str, ...], said: str) -> None:
    answer = gemvbench("decode", "--model", "tiny", "--arm", "pack2", *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err.splitlines()[-1]


def test_a_model_whose_attention_is_unknown(gemvbench: Run) -> None:
    answer = gemvbench("decode", "--model", "tiny-moe", "--arm", "pack2", "--context", 16)
    assert answer.code == 2
    assert "no attention of tiny-moe; leave --context out" in answer.err


def test_caches_that_do_not_fit_are_refused(gemvbench: Run, script: Write) -> None:
    script([], devices=[{"memory": 4_000_000}])
    answer = decode(gemvbench, "--arm", "pack2", context=20_000)
    assert (answer.code, answer.out) == (4, "")
    assert "The weights of tiny with caches of 20036 tokens take 0.01 GB" in answer.err
    assert decode(gemvbench, "--arm", "pack2", "--dry-run").code == 0
