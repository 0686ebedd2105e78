"""The search for the best arm of a shape, whole, on the scripted fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Answer, make_device

from gemvbench import run, tune_plan
from gemvbench.arm import FAMILIES
from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.dispatch import recommend
from gemvbench.folders import tables_folder
from gemvbench.messages import Block, Message, Request, Verify
from gemvbench.tune_plan import GRIDS, ROUNDS, entrants, round_settings, survivors, winner
from gemvbench.tuning_files import load_tuning

pytestmark = pytest.mark.usefixtures("in_process")

GPU: dict[str, Any] = {"kind": "gpu", "memory": 1 << 26}
ROOF: dict[str, Any] = {"match": {"entry": "read_strided"}, "gbps": 100}
BEST: dict[str, Any] = {"match": {"PACK": "3", "ROWS": "2", "BLOCK": "128"}, "gbps": 0.022}
SMALL: Any = {"row": ({"pack": (3,), "rows": (1, 2, 4), "block": (64, 128)},)}
ARM = "pack3+rows2+block128"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, in_process: None) -> list[Request]:
    """What workers are asked for, on a small grid."""
    monkeypatch.setattr(tune_plan, "GRIDS", SMALL)
    asked: list[Request] = []
    answer = run.converse

    def converse(request: Request) -> Iterator[Message]:
        asked.append(request)
        return answer(request)

    monkeypatch.setattr(run, "converse", converse)
    return asked


@pytest.fixture
def tune(
    gemvbench: Callable[..., Answer], script: Callable[..., Path], requests: list[Request]
) -> Callable[..., Answer]:
    script([ROOF, BEST], devices=[GPU])

    def call(*words: str) -> Answer:
        requests.clear()
        return gemvbench("tune", "--shape", "512x64", "--format", "json", *words)

    return call


def test_the_planted_arm_is_found_and_taken(
    tune: Callable[..., Answer], gemvbench: Callable[..., Answer]
) -> None:
    answer = tune()
    assert answer.code == 0, answer.err
    (shape,) = answer.json["shapes"]
    assert (shape["arm"], shape["rule"], shape["rounds"]) == (ARM, "pack3+blockauto", [5, 3, 3])
    assert shape["low"] < 1.1 < shape["high"]
    assert shape["low"] > 1.0
    assert "round 1 of 3: 5 arms" in answer.err

    def first_step(shape: str) -> Any:
        words = ("ab", "--arm", "auto", "--shape", shape, "--dry-run", "--format", "json")
        outcome = gemvbench(*words).json[1]["outcome"]
        return dict(outcome["constants"])["ROWS"], outcome["steps"][0]["reason"]

    rows, source = first_step("512x96")
    assert rows == 2
    assert source.startswith("the user's table, 512x64 of ")
    assert "the nearest to 512x96" in source
    assert first_step("512x640") == (1, "the rule for a gpu device; no tuned shape is near")


def test_an_arm_of_attention_is_found_and_taken(
    gemvbench: Callable[..., Answer],
    script: Callable[..., Path],
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune_plan, "ATTENTION_GRIDS", {"splitkv": ({"block": (64, 128, 256)},)})
    script([ROOF, {"match": {"BLOCK": "64"}, "gbps": 0.022}], devices=[GPU])
    shape = ("--op", "attention", "--heads", "4", "--kv-heads", "2", "--head-dim", "32")
    answer = gemvbench("tune", *shape, "--context", "100", "--format", "json")
    assert answer.code == 0, answer.err
    (found,) = answer.json["shapes"]
    assert (found["arm"], found["rule"], found["context"]) == ("splitkv+block64", "splitkv", 100)
    assert found["low"] > 1

    def first_step(context: str) -> str:
        words = ("ab", *shape, "--context", context, "--arm", "auto", "--dry-run")
        step = gemvbench(*words, "--format", "json").json[1]["outcome"]["steps"][0]
        return f"{step['built']}: {step['reason']}"

    assert first_step("150").startswith("splitkv+block64: the user's table, 100 tokens of ")
    assert first_step("250").endswith("a gpu; no tuned shape is near")


def test_attention_has_arms_to_search_on_every_kind_of_device() -> None:
    case = Attention(heads=32, kv_heads=8, head_dim=128, context=4096)
    hopper = make_device(**GPU, capabilities=("async_copy", "dependent_launch"))
    hopper = msgspec.structs.replace(hopper, backend="cuda", local_bytes=232448)
    for device, families in (
        (hopper, {"flashdecode", "splitkv", "gqa", "token_major", "per_head"}),
        (make_device(**GPU), {"splitkv", "gqa", "token_major", "per_head"}),
        (make_device(), {"splitkv", "gqa", "token_major", "per_head"}),
    ):
        found = entrants(case, device)
        assert {entrant.arm.family for entrant in found} == families
        assert found[0].arm == recommend(case, device)
        assert len({entrant.label for entrant in found}) == len(found)


def test_a_second_run_measures_nothing_again(
    tune: Callable[..., Answer], requests: list[Request]
) -> None:
    first, second = tune(), tune()
    assert requests == []
    rows = [{**answer.json["shapes"][0], "seconds": 0} for answer in (first, second)]
    assert rows[0] == rows[1]
    assert tune("--afresh").code == 0
    assert any(isinstance(request, Block) for request in requests)
    # Another seed is another run.
    assert tune("--seed", "5").code == 0
    assert any(isinstance(request, Verify) for request in requests)


def test_a_search_that_was_cut_short_goes_on(
    tune: Callable[..., Answer], requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = run.converse

    def stop(request: Request) -> Iterator[Message]:
        if sum(isinstance(each, Block) for each in requests) == 2:
            raise KeyboardInterrupt
        return answer(request)

    monkeypatch.setattr(run, "converse", stop)
    cut = tune()
    assert cut.code == 4
    assert "round 3 of 3 was not finished (interrupted); the same command goes on" in cut.out
    assert not tables_folder().exists()
    monkeypatch.setattr(run, "converse", answer)
    assert tune().json["shapes"][0]["arm"] == ARM
    blocks = [request for request in requests if isinstance(request, Block)]
    assert len(blocks) == len(requests) == 6
    # Timed runs are still held against what was verified.
    assert all(all(block.cases[0].digests.values()) for block in blocks)


def test_a_budget_too_small_is_refused_with_one_that_works(tune: Callable[..., Answer]) -> None:
    answer = tune("--budget", "2s")
    assert answer.code == 2
    why = answer.json["shapes"][0]["why"]
    assert "was not finished (budget too small; it needs about" in why
    assert not tables_folder().exists()
    assert tune().code == 0


def test_no_time_left_for_a_shape_is_said(
    tune: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemvbench.budget.Budget.spent", lambda self: 1000.0)
    answer = tune()
    assert answer.code == 2
    assert "round 1 of 3 was not finished (no time left)" in answer.out


def test_where_nothing_is_faster_the_rules_arm_is_stored(
    tune: Callable[..., Answer], script: Callable[..., Path]
) -> None:
    script([ROOF], devices=[GPU])
    (shape,) = tune().json["shapes"]
    assert (shape["arm"], shape["ratio"]) == ("pack3+blockauto", 1.0)
    step = load_tuning(make_device(**GPU)).find(Gemv(k=512, n=64))
    assert step is not None
    assert step.row.arm == step.row.rule


def test_a_wrong_arm_is_out_and_said(
    tune: Callable[..., Answer], script: Callable[..., Path]
) -> None:
    fault = {"match": BEST["match"], "fault": "wrong_last_row"}
    script([ROOF, BEST], devices=[GPU], faults=[fault])
    answer = tune("--format", "table")
    assert answer.code == 3
    assert f"{ARM} WRONG: " in answer.out
    assert "none of 5 other arms was FASTER" in answer.out


def test_a_void_run_stores_nothing(
    tune: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemvbench.results._void", lambda twins: "the twin differs")
    answer = tune()
    assert answer.code == 4
    assert answer.json["shapes"][0]["why"] == "the twin differs"
    assert not tables_folder().exists()


def test_a_table_that_cannot_be_used_is_refused_before_any_work(
    tune: Callable[..., Answer], requests: list[Request]
) -> None:
    tables_folder().mkdir(parents=True)
    path = tables_folder() / "opencl-scripted-gpu.json"
    path.write_text("{")
    answer = tune()
    assert answer.code == 2
    assert f"tune has no place for what it finds. Tuning table {path} cannot be used" in answer.err
    assert requests == []
    assert path.read_text() == "{"


def test_a_shape_with_no_other_arm_is_said(gemvbench: Callable[..., Answer]) -> None:
    answer = gemvbench("tune", "--shape", "512x64", "--x", "f32", "--weights", "zz")
    assert answer.code == 2
    assert "no type for weights" in answer.err


# The plan.


def test_candidates_are_distinct_and_build() -> None:
    gpu = make_device(**GPU)
    labels = [e.label for e in entrants(Gemv(k=4096, n=4096), gpu)]
    assert labels[0] == "pack3+blockauto"
    assert len(labels) == len(set(labels)) > 30
    # blockauto is one of the blocks, so one of the grid is the rule's arm itself.
    assert "pack3+block128" not in labels
    assert "pack3" in labels  # rows1, block256 and unroll1 are the family's own
    narrow = entrants(Gemv(k=4095, n=64), gpu)  # all packs fall to 0
    assert {dict(e.arm.axes).get("pack") for e in narrow[1:]} == {3}
    cpu = make_device()
    assert all(e.arm.family == "cpu" for e in entrants(Gemv(k=4096, n=64), cpu))


def test_the_grids_are_of_known_axes_and_values() -> None:
    for name, grids in GRIDS.items():
        for grid in grids:
            for axis, values in grid.items():
                assert set(values) <= set(FAMILIES[name].axes[axis])


def test_rounds_rank_and_the_last_one_decides() -> None:
    settings = [round_settings(number, 0, 0.01, 0.99) for number in range(len(ROUNDS))]
    assert [s.looks[-1] for s in settings] == [1, 1, 8]
    assert settings[-1].looks[0] == 6
    assert {s.budget for s in settings} == {None}


def result(arm: str, ratio: float | None, verdict: str = "UNDECIDED") -> Any:
    from gemvbench.result import Result

    return Result(
        case="c", arm=arm, baseline="b", device="d", constants={}, verdict=verdict, ratio=ratio
    )


def test_a_quarter_goes_on_and_then_three() -> None:
    results = [result(f"a{n}", 1 + n / 100) for n in range(40)]
    results += [result("b", 1.0, "BASELINE"), result("aa", 9.0), result("bad", None, "FAILED")]
    assert survivors(results, 0) == tuple(f"a{n}" for n in range(39, 29, -1))
    assert survivors(results, 1) == ("a39", "a38", "a37")
    assert survivors(results[:2], 0) == ("a1", "a0")


def test_the_winner_is_the_first_of_those_that_are_faster() -> None:
    fast = [result("x", 1.05, "FASTER"), result("y", 1.2), result("z", 1.1, "FASTER")]
    found = winner(fast)
    assert found is not None
    assert found.arm == "z"
    assert winner([result("y", 1.2), result("w", 0.9, "SLOWER")]) is None
