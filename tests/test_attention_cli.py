"""Attention on the command line, on the scripted fake: tables, models, and what users get wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]
SHAPE = ("--op", "attention", "--heads", 8, "--head-dim", 32)


def text(answer: Answer) -> str:
    return " ".join(answer.out.split())


def test_the_context_table_shows_where_an_arm_starts_to_win(gemvbench: Run, script: Write) -> None:
    """token_major moves bytes faster and has a launch cost: it loses when there is little."""
    script(
        [
            {"match": {"SHARED": "0"}, "gbps": 0.03, "overhead": 0.0003},
            {"match": {"entry": "attn_kq"}, "gbps": 0.02},
        ]
    )
    answer = gemvbench("ab", *SHAPE, "--arm", "token_major", "--context", "16:256", "--quick")
    assert answer.code == 0
    assert "by context: us per call, and speed-up over per_head" in answer.out
    assert "token_major is FASTER than per_head from 128 tokens on." in text(answer)
    table = answer.out.partition("context ")[2].splitlines()[1:6]
    assert [line.split()[0] for line in table] == ["16", "32", "64", "128", "256"]
    marks = [line.split()[-1] for line in table]
    assert marks[0] == "-"
    assert marks[-2:] == ["+", "+"]


def test_ab_has_its_own_baseline_and_shape(gemvbench: Run) -> None:
    answer = gemvbench(
        "ab",
        "--op",
        "attention",
        "--arm",
        "splitkv",
        "--context",
        16,
        "--quick",
        "--format",
        "json",
    )
    found = answer.results()
    assert set(found) == {"per_head", "aa", "splitkv"}
    assert found["splitkv"]["case"] == "attention-16x16x192v128-f16-tkd-n16"
    assert found["splitkv"]["verified"] is True
    assert found["splitkv"]["constants"]["K_DIM"] == 192
    assert found["splitkv"]["constants"]["splits"] == 1
    assert answer.code == 0


@pytest.mark.parametrize("op", ["kq", "av"])
def test_products_are_operations_too(gemvbench: Run, op: str) -> None:
    words = ("--op", op, "--heads", 8, "--kv-heads", 2, "--head-dim", 32, "--context", 20)
    answer = gemvbench("verify", *words, "--kv", "q8_0", "--kv-layout", "ktd")
    assert answer.code == 0
    assert answer.out.count("RIGHT") == 4  # three families and auto
    assert f"{op}-8x2x32-q8_0-ktd-n20" in answer.out


def test_types_of_k_and_v_may_differ(gemvbench: Run) -> None:
    words = ("--context", 20, "--kv", "bf16", "--k-type", "q8_KV", "--q-type", "f32")
    answer = gemvbench("verify", *SHAPE, *words, "--arm", "token_major+q8")
    assert answer.code == 0
    assert "attention-8x8x32-q8_KV-bf16-tkd-qf32-n20" in answer.out


@pytest.mark.parametrize(
    ("model", "shape"),
    [("qwen3.6-27b", "24x4x256"), ("llama-3.1-8b", "32x8x128"), ("gpt-oss-20b", "64x8x64")],
)
def test_models_give_the_shape(gemvbench: Run, model: str, shape: str) -> None:
    words = ("--op", "attention", "--model", model, "--context", "64,100", "--dry-run")
    answer = gemvbench("ab", *words, "--arm", "gqa")
    assert answer.code == 0
    assert f"attention-{shape}-f16-tkd-n64," in answer.out
    assert f"attention-{shape}-f16-tkd-n100," in answer.out


def test_all_is_the_full_product(gemvbench: Run) -> None:
    answer = gemvbench(
        "verify", "--op", "kq", "--all", "--context", 9, "--arm", "gqa", "-k", "256-q8_0-ktd",
        "--format", "json",
    )  # fmt: skip
    assert answer.code == 0
    verdicts = [record["verdict"] for record in answer.json]
    assert verdicts.count("DECLINED") == 1  # where no heads share
    assert verdicts.count("RIGHT") == 5
    answer = gemvbench("verify", "--op", "kq", "--all", "-k", "nothing")
    assert answer.err.count("kq-") == 5 * 6 * 4 * 2


def test_a_capacity_is_room_that_is_not_read(gemvbench: Run) -> None:
    answer = gemvbench("verify", *SHAPE, "--context", 20, "--capacity", 64, "--arm", "per_head")
    assert answer.code == 0
    assert "n20-of64" in answer.out


def test_a_case_that_does_not_fit_is_refused_by_name(gemvbench: Run, script: Write) -> None:
    script(devices=[{"memory": 1 << 20}])
    answer = gemvbench("ab", *SHAPE, "--context", 100_000, "--arm", "token_major")
    assert answer.code == 4
    assert "attention-8x8x32-f16-tkd-n100000 needs" in answer.err


def test_an_arm_that_declines_says_so_and_the_others_go_on(gemvbench: Run) -> None:
    words = (*SHAPE, "--context", 16, "--quick", "--format", "json")
    found = gemvbench("ab", *words, "--arm", "gqa", "--arm", "token_major").results()
    assert found["gqa"]["verdict"] == "DECLINED"
    assert found["token_major"]["ratio"] == pytest.approx(1, abs=0.02)


def test_a_compiler_error_of_one_arm_is_its_own(gemvbench: Run, script: Write) -> None:
    script(faults=[{"match": {"SHARED": "0"}, "fault": "compile_error", "stage": "compile"}])
    answer = gemvbench("verify", *SHAPE, "--context", 16)
    assert answer.code == 3
    assert answer.out.count("FAILED") == 2  # token_major, and auto, which stands for it here
    assert answer.out.count("RIGHT") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arm", "pack2"), "Arm pack2 computes gemv, not attention"),
        (("--arm", "numpy"), "Arm numpy computes gemv"),
        (("--arm", "gqa", "--baseline", "base"), "Arm base computes gemv"),
        (("--arm", "gqa", "--kv-heads", "3"), "8 query heads cannot share 3 KV heads"),
        (("--arm", "gqa", "--kv-heads", "0"), "kv_heads is 0"),
        (("--arm", "gqa", "--context", "0"), "--context 0"),
        (("--arm", "gqa", "--context", "9:4"), "--context 9:4"),
        (("--arm", "gqa", "--context", "many"), "is no number of tokens"),
        (("--arm", "gqa", "--context", "100", "--capacity", "50"), "does not fit a cache of 50"),
        (("--arm", "gqa", "--kv", "q4_0"), "'q4_0' is no type of K"),
        (("--arm", "gqa", "--kv-layout", "dkt"), "'dkt' is no cache layout"),
        (("--arm", "gqa", "--shape", "8x8"), "--shape is for gemv"),
        (("--arm", "gqa", "--model", "gpt-oss-20b"), "--model and --heads exclude each other"),
        (("--arm", "gqa+rows2"), "no axis of family gqa"),
    ],
)
def test_mistakes_are_one_paragraph(gemvbench: Run, words: Any, said: str) -> None:
    answer = gemvbench("ab", *SHAPE, *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert answer.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ab", "--arm", "gqa"), "Arm gqa computes kq, av, attention, not gemv"),
        (("ab", "--arm", "pack2", "--context", "5"), "--context is for attention"),
        (("verify", "--all"), "--all is for attention"),
        (("ab", "--op", "softmax", "--arm", "gqa"), "--op 'softmax' is unknown"),
        (("ab", "--op", "kq", "--arm", "splitkv"), "Arm splitkv computes attention, not kq"),
        (("ab", "--op", "kq", "--arm", "gqa", "--head-dim", "64"), "needs --heads and --head-dim"),
        (("ab", "--op", "kq", "--arm", "gqa", "--model", "s2-seven"), "no attention of s2-seven"),
        (("verify", "--op", "kq", "--all", "--kv", "f16"), "leave --kv out"),
    ],
)
def test_options_of_another_operation_are_refused(gemvbench: Run, words: Any, said: str) -> None:
    answer = gemvbench(*words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_list_shows_the_families(gemvbench: Run) -> None:
    answer = gemvbench("list")
    for family in ("per_head", "gqa", "token_major", "splitkv"):
        assert family in answer.out
