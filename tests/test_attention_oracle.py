"""The oracle of attention: right outputs pass, and each kind of mistake shows in some check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemvbench import attention_inputs, quant
from gemvbench.attention_case import CACHE_TYPES, Attention
from gemvbench.attention_oracle import Trial, trials
from gemvbench.stages import Precision

FP32 = Precision()
Compute = Callable[[Attention, Trial], Any]


def make(op: str = "attention", **fields: Any) -> Attention:
    given = {"heads": 4, "kv_heads": 2, "head_dim": 64, "v_dim": 32, "context": 37} | fields
    return Attention(op=op, **given)


def rows(case: Attention, trial: Trial, side: str) -> Any:
    kind, dim = (case.k_type, case.head_dim) if side == "k" else (case.v_type, case.v_size)
    raw = trial.k if side == "k" else trial.v
    assert raw is not None
    assert raw.shape[:2] == (case.context, case.kv_heads)
    return np.repeat(quant.dequantise(kind, raw, dim), case.ratio, axis=1).astype(np.float64)


def right(case: Attention, trial: Trial, lost: int | None = None, peak: bool = True) -> Any:
    """Attention as it is written down; without a token, or without the maximum."""
    p: Any = trial.p
    if case.op != "av":
        q = np.float32(trial.q).astype(np.float64)
        s = trial.scale * np.einsum("hi,thi->ht", q, rows(case, trial, "k"))
        if case.op == "kq":
            return s.astype(np.float32)
        with np.errstate(all="ignore"):
            p = np.exp((s - s.max(1, keepdims=True)).astype(np.float32) if peak else np.float32(s))
            p = p / p.sum(1, keepdims=True)
    p = np.array(p, np.float64)
    if lost is not None:
        p[:, lost] = 0
    with np.errstate(all="ignore"):
        return np.einsum("ht,thi->hi", p, rows(case, trial, "v")).astype(np.float32)


def failed(case: Attention, compute: Compute, precision: Precision = FP32) -> list[str]:
    bad = []
    for trial in trials(case, seed=3):
        with np.errstate(all="ignore"):
            if not trial.compare(compute(case, trial), precision).passed:
                bad.append(trial.name)
    return bad


@pytest.mark.parametrize("op", ["kq", "av", "attention"])
@pytest.mark.parametrize("kind", CACHE_TYPES)
@pytest.mark.parametrize("context", [1, 37, 300])
def test_right_outputs_pass(op: str, kind: str, context: int) -> None:
    assert failed(make(op, k_type=kind, v_type=kind, context=context), right) == []


@pytest.mark.parametrize("token", [0, 17, 36])
def test_a_lost_token_shows(token: int) -> None:
    assert "exact" in failed(make("av"), lambda c, t: right(c, t, lost=token))
    assert "every token" in failed(make(), lambda c, t: right(c, t, lost=token))


def test_a_lost_token_shows_in_a_long_context() -> None:
    case = make(context=20_000, heads=1, kv_heads=1, head_dim=32)
    assert "every token" in failed(case, lambda c, t: right(c, t, lost=11_111))


def test_a_softmax_without_its_maximum_shows() -> None:
    bad = failed(make(), lambda c, t: right(c, t, peak=False))
    assert {"large scores", "negative scores"} <= set(bad)
    assert "random" not in bad


def test_heads_of_another_group_show() -> None:
    def shifted(case: Attention, trial: Trial) -> Any:
        return np.roll(right(case, trial), 1, axis=0)

    assert len(failed(make("kq"), shifted)) == 4
    assert {"every token", "single tokens", "random"} <= set(failed(make(), shifted))


def test_scores_of_random_operands_resolve_one_element() -> None:
    """Half a percent of one of 64 products is far outside the bound."""

    def off(case: Attention, trial: Trial) -> Any:
        y = right(case, trial)
        y[-1, -1] += 0.005 * trial.scale
        return y

    assert set(failed(make("kq"), off)) >= {"exact", "random"}


@pytest.mark.parametrize("context", [300, 70_000])
def test_the_values_of_all_tokens_can_be_summed(context: int) -> None:
    """An online softmax may have added every token's row before it meets the dominating one."""
    case = make(context=context, heads=1, kv_heads=1, head_dim=32, v_dim=32, v_type="bf16")
    trial = next(trial for trial in trials(case, 3) if trial.name == "last token")
    assert np.isfinite(np.abs(rows(case, trial, "v")).sum(0).astype(np.float32)).all()


def test_an_arm_is_held_to_its_own_precision() -> None:
    """Weights and outputs of 16 bits, which torch has: allowed to it, and nothing more."""
    half = Precision(weight=2.0**-11, y="f16")

    def stored(case: Attention, trial: Trial) -> Any:
        return np.float16(right(case, trial)).astype(np.float32)

    case = make(context=300)
    assert failed(case, stored, half) == []
    assert "random" in failed(case, stored)
    lost = failed(case, lambda c, t: np.float16(right(c, t, lost=17)).astype(np.float32), half)
    assert "every token" in lost


def test_small_weights_may_vanish_where_an_arm_has_none() -> None:
    def without(case: Attention, trial: Trial) -> Any:
        y = right(case, trial)
        return y + np.float32(2.0**-36)

    assert "random" not in failed(make(), without, Precision(least=2.0**-38))
    tiny = failed(make(v_type="q8_0"), without, Precision(least=2.0**-60))
    assert "first token" in tiny


def test_nan_is_never_right() -> None:
    for op in ("kq", "av", "attention"):
        bad = failed(make(op), lambda c, t: right(c, t) * np.nan)
        assert len(bad) == len(list(trials(make(op), 3)))


@pytest.mark.parametrize("kind", ["q8_0", "q8_KV"])
def test_a_quantised_query_is_held_against_itself(kind: str) -> None:
    case = make("kq", k_type=kind)
    for trial in trials(case, 3):
        q = attention_inputs.quantise_query(kind, np.float32(trial.q))
        y = trial.scale * np.einsum("hi,thi->ht", q.astype(np.float64), rows(case, trial, "k"))
        assert trial.compare(y.astype(np.float32), Precision(quantises_q=True)).passed, trial.name
        if trial.name == "random":
            assert not trial.compare(y.astype(np.float32), Precision()).passed


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_rows_do_not_depend_on_the_layout_of_others(kind: str) -> None:
    """Timed caches are made in memory order; verified rows are the same ones."""
    case = make(k_type=kind, layout="ktd", capacity=50)
    memory = attention_inputs.memory_rows(case, "k", 1).reshape(2, 50, -1)
    tokens = attention_inputs.token_rows(case, "k", 1)
    np.testing.assert_array_equal(tokens[36, 1], memory[1, 36])
    values = quant.dequantise(kind, tokens, 64)
    assert np.isfinite(values).all()
    assert 0.2 < np.abs(values).max() <= 1


def test_a_query_is_exactly_quantised_at_its_largest() -> None:
    q = attention_inputs.query(make(), 1)
    assert (np.abs(q).reshape(4, 2, 32).max(-1) == 127 / 128).all()
    assert (q.astype(np.float16) == q).all()


def test_weights_are_a_softmax_would_leave() -> None:
    p = attention_inputs.weights(make("av"), 1)
    assert (p > 0).all()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)
