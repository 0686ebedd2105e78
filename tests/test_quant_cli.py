"""Quantised weights on the command line, whole, on the scripted fake: every command, bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Answer, make_device
from tiny import use_catalogue

from gemvbench import quant_inputs, quant_oracle, tune_plan
from gemvbench.arm import parse_arm
from gemvbench.backend import fake_quant
from gemvbench.case import QUANT_TYPES, Gemv
from gemvbench.contest import make_contest, make_entrants
from gemvbench.quant_weights import dequantise

Run = Callable[..., Answer]
pytestmark = pytest.mark.usefixtures("in_process")

SMALL = """
[small]
title = "Small"
hidden = 256
ffn = 512
heads = 4
kv_heads = 2
head_dim = 64
layers = 2
vocab = 512
"""
ARMS = ("base", "quant", "quant+pack1", "quant+xq8", "quant+repack1", "auto")
REPACKED: dict[str, Any] = {"match": {"REPACK": "1"}, "gbps": 0.025}


def verify(gemvbench: Run, *words: str) -> dict[str, Any]:
    answer = gemvbench("verify", "--format", "json", *words)
    return {found["arm"]: found for found in answer.json}


@pytest.mark.parametrize("x", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("w", QUANT_TYPES)
def test_all_arms_are_right(gemvbench: Run, w: str, x: str) -> None:
    for shape in ("512x300", "256x1"):
        found = verify(gemvbench, "--weights", w, "--x", x, "--shape", shape)
        declined = {arm for arm, one in found.items() if one["verdict"] == "DECLINED"}
        assert declined == ({arm for arm in found if "repack1" in arm} if w == "q4_K" else set())
        rest = {one["verdict"] for arm, one in found.items() if arm not in declined}
        assert rest == {"RIGHT"}
        assert set(ARMS) <= set(found)


def test_offsets_and_peers(gemvbench: Run) -> None:
    peers = ["--arm", "numpy", "--arm", "clblast", "--arm", "pack2"]
    found = verify(
        gemvbench, "--weights", "q4_0", "--shape", "512x9", "--w-offset", "6", "--x-offset", "2",
        "--arm", "quant", "--arm", "base", *peers,
    )  # fmt: skip
    assert [found[arm]["verdict"] for arm in ("quant", "base")] == ["RIGHT", "RIGHT"]
    assert {found[arm]["verdict"] for arm in peers[1::2]} == {"DECLINED"}


@pytest.mark.parametrize("w", QUANT_TYPES)
@pytest.mark.parametrize("change", ["nibbles", "scale", "rows", "x", "x scale"])
def test_a_wrong_kernel_is_seen(
    gemvbench: Run, monkeypatch: pytest.MonkeyPatch, w: str, change: str
) -> None:
    """A quant, a scale and a row that are others', and an x that is not quantised as it should."""

    def broken(kind: str, rows: Any, k: int) -> Any:
        rows = rows.copy()
        if change == "nibbles":
            rows[:, [-1, -2]] = rows[:, [-2, -1]]
        elif change == "scale":
            rows[:, 0] ^= 1
        elif change == "rows":
            rows[-1] = rows[-2]
        return dequantise(kind, rows, k)

    def one_scale(x: Any) -> Any:
        tops = np.abs(x.astype(np.float32).reshape(-1, 32)).max(axis=1)
        own = np.where(tops > 0, tops, 1)
        return quant_inputs.quantise_vector(x) * (tops[0] / own).repeat(32)

    if change == "x":
        monkeypatch.setattr(fake_quant, "quantise_vector", lambda x: x.astype(np.float32))
    elif change == "x scale":
        monkeypatch.setattr(fake_quant, "quantise_vector", one_scale)
    else:
        monkeypatch.setattr(fake_quant, "dequantise", broken)
    arm = "quant+xq8"
    found = verify(gemvbench, "--weights", w, "--shape", "512x300", "--arm", arm)[arm]
    assert found["verdict"] == "WRONG"
    assert "random" in found["detail"]


@pytest.mark.parametrize("w", QUANT_TYPES)
def test_operands_are_what_the_checks_rely_on(w: str) -> None:
    case = Gemv(k=1024, n=300, w=w)
    exact, _ = quant_inputs.parts(case, quant_inputs.integer_rows(case, 3))
    assert (exact == np.rint(exact)).all()
    assert 0 < np.abs(exact).max() <= 12
    for rows in (quant_inputs.random_rows(case, 3), quant_oracle.special_rows(case)):
        weights, size = quant_inputs.parts(case, rows)
        np.testing.assert_allclose(weights, dequantise(w, rows, case.k), rtol=1e-6, atol=1e-6)
        assert (size >= np.abs(weights)).all()
    # 127 times a special weight is exact in FP32, and so are 8 bits of what is timed.
    special, _ = quant_inputs.parts(case, quant_oracle.special_rows(case))
    assert (127 * special == (127 * special).astype(np.float32)).all()
    x = quant_inputs.vector(case, 3).astype(np.float32)
    assert np.abs(quant_inputs.quantise_vector(x) - x).max() <= 2**-8
    rows = quant_inputs.random_rows(case, 3)
    assert len(np.unique(rows, axis=0)) == quant_inputs.PERIOD


def test_ab_has_a_base_and_judges_a_repacked_arm(gemvbench: Run, script: Any) -> None:
    script([REPACKED])
    words = ("--shape", "512x600", "--weights", "q4_0", "--quick", "--format", "json")
    answer = gemvbench("ab", *words, "--arm", "auto", "--arm", "quant+repack1")
    assert answer.code == 0
    found = answer.results()
    assert (found["auto"]["verdict"], found["quant+repack1"]["verdict"]) == ("SAME", "FASTER")
    assert found["quant+repack1"]["ratio"] == pytest.approx(1.25, rel=0.02)
    assert found["base"]["gbps"] == pytest.approx(0.02, rel=0.02)


def test_a_sweep_over_the_axes(gemvbench: Run) -> None:
    answer = gemvbench(
        "sweep", "--shape", "512x64", "--weights", "q8_0", "--quick", "--format", "json"
    )  # fmt: skip
    assert answer.code == 0
    assert {"quant+repack0+xq0", "quant+repack1+xq8"} <= set(answer.results())


def test_tune_searches_and_auto_takes_what_it_found(
    gemvbench: Run, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_plan, "GRIDS", {"quant": ({"items": (2, 4, 8)},)})
    script([{"match": {"entry": "read_chunked"}, "gbps": 100}])
    words = ("--shape", "512x64", "--weights", "q4_0")
    answer = gemvbench("tune", *words, "--format", "json")
    assert answer.code == 0, answer.out[-1500:]
    ab = gemvbench("ab", *words, "--arm", "auto", "--quick", "--format", "json", "--dry-run")
    assert "table, 512x64" in ab.out


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalogue(SMALL, tmp_path, monkeypatch)


@pytest.mark.usefixtures("small")
def test_a_token_of_mixed_weights(gemvbench: Run) -> None:
    words = ("decode", "--model", "small", "--quick", "--format", "json", "--arm", "auto")
    sizes = {}
    for mix in ("f16", "q4_0", "q4_K,lm_head=q8_0"):
        answer = gemvbench(*words, "--weights", mix)
        assert answer.code == 0, answer.err
        whole = answer.json["results"][0]
        assert whole["case"] == f"token-small-{mix.replace(',', '+')}-f16"
        sizes[mix] = whole["gbps"] * whole["seconds_per_call"] * 1e9
    layers = 256 * (4 * 64 + 4 * 64 + 1024 + 512) + 256 * 256
    layers, head = 2 * layers, 256 * 512
    moved = sizes["f16"] - 2 * (layers + head)
    assert sizes["q4_0"] == pytest.approx((layers + head) * 18 / 32 + moved, rel=1e-3)
    wanted = layers * 144 / 256 + head * 34 / 32 + moved
    assert sizes["q4_K,lm_head=q8_0"] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.usefixtures("small")
def test_arms_without_a_kernel_for_a_class_decline(gemvbench: Run) -> None:
    answer = gemvbench(
        "decode", "--model", "small", "--weights", "f16,lm_head=q8_0", "--arm", "pack2",
        "--arm", "quant", "--arm", "auto", "--quick", "--format", "json",
    )  # fmt: skip
    found = {r["arm"]: r for r in answer.json["results"] if r["case"].endswith("q8_0-f16")}
    assert found["pack2"]["reason"].startswith("lm_head: family row has no q8_0")
    assert found["quant"]["reason"].startswith("q+k+v: family quant computes")
    assert found["auto"]["verdict"] in ("SAME", "UNDECIDED", "FASTER", "SLOWER")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ("q4_0,head=q8_0", "did you mean lm_head? "),
        ("q4_0,q8_0", "gives no class of layers a type"),
        ("q4_0,down=q8_0,down=q4_K", "names down twice"),
        ("down=q4_0", "the first type is for all classes"),
        ("q4_0,down=q9", "'q9' is no type for weights"),
    ],
)
def test_a_mix_that_is_none(gemvbench: Run, weights: str, text: str) -> None:
    for command in ("decode", "ab"):
        answer = gemvbench(command, "--model", "small", "--weights", weights, "--arm", "auto")
        assert (answer.code, answer.out) == (2, "")
        assert text in answer.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--shape", "500x64", "--weights", "q4_0"), "not a multiple of 32"),
        (("--shape", "1056x64", "--weights", "q4_K"), "not a multiple of 256"),
        (("--shape", "512x64", "--weights", "q5_0"), "is no type for weights"),
        (("--shape", "512x64", "--weights", "q8_0", "--w-offset", "3"), "multiple of 2"),
    ],
)
def test_bad_input(gemvbench: Run, words: tuple[str, ...], text: str) -> None:
    answer = gemvbench("ab", "--arm", "auto", *words)
    assert (answer.code, answer.out) == (2, "")
    assert text in answer.err


def test_an_odd_row_declines_repacking_and_the_rest_goes_on(gemvbench: Run) -> None:
    arms = ("--arm", "auto", "--arm", "quant+repack1")
    words = ("--shape", "96x640", "--weights", "q8_0", "--quick", "--format", "json")
    answer = gemvbench("ab", *arms, *words)
    assert answer.code == 0
    found = answer.results()
    assert found["quant+repack1"]["verdict"] == "DECLINED"
    assert "rows of 3 blocks" in found["quant+repack1"]["reason"]
    assert found["auto"]["verdict"] != "DECLINED"


def test_memory_for_repacked_weights_is_planned() -> None:
    """What fits once does not fit twice, and is refused before anything is allocated."""
    case = Gemv(k=512, n=1 << 16, w="q8_0")
    device = make_device(kind="gpu", memory=int(case.weight_bytes * 1.6))
    arms = [parse_arm(name) for name in ("base", "quant+repack1")]
    entrants = make_entrants(arms, device, {device.id: device}, ())
    assert make_contest(case, entrants[:1], "hot").layouts
    refused = make_contest(case, entrants, "hot")
    assert not refused.layouts
    assert "for each of 2 (devices and repackings)" in refused.refusal
