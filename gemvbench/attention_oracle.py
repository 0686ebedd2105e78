"""What right attention is: operands that show mistakes, and what they have to give.

Exact: scores and values of small integers, equality for every head, token and element. A
softmax has two exact cases: all scores equal, so that the output is a mean of integers, and
one score so large that the output is that token's row. Random operands, and scores that are
very large or very negative, are held against float64 with a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import attention_inputs, inputs, quant
from gemvbench.attention_case import QUANTISED, QUANTS, Attention
from gemvbench.attention_reference import (
    Doubles,
    Floats,
    Reference,
    Rows,
    raw_scores,
    rounding,
    value_bound,
    weighted_rows,
)
from gemvbench.messages import Check
from gemvbench.stages import Precision

_INTEGERS = {"k": 23, "v": 24}
"""Streams of the generator."""
_FAR = 300.0
"""Difference of scores at which exp() is 0 in FP32, with room."""


@dataclass(frozen=True)
class Trial:
    """Operands of one check; `compare` judges an output [heads, outputs]."""

    name: str
    compare: Callable[[Floats, Precision], Check]
    """The output, and what the arm may do."""
    k: Rows | None = None
    v: Rows | None = None
    q: Floats | None = None
    p: Floats | None = None
    scale: float = 1.0
    is_timed: bool = False
    """The operands that are timed: the digest of their output is kept."""


def trials(case: Attention, seed: int) -> Iterator[Trial]:
    """All checks of a case, made one at a time: large caches are large."""
    make = {"kq": _kq_trials, "av": _av_trials, "attention": _attention_trials}[case.op]
    yield from make(case, seed)


# Scores.


def _kq_trials(case: Attention, seed: int) -> Iterator[Trial]:
    k = _integer_rows(case, "k", seed)
    yield _exact_scores("exact", case, k, integer_query(case, seed), scale=0.5)
    special = _special_rows(case, "k", seed)
    for name, column in (("first column", 0), ("last column", case.head_dim - 1)):
        q = np.zeros((case.heads, case.head_dim), np.float32)
        q[:, column] = 127  # 127 quants of 1, where it is quantised
        yield _exact_scores(name, case, special, q, scale=1.0)
    yield _random_scores(case, seed)


def _exact_scores(name: str, case: Attention, k: Rows, q: Floats, scale: float) -> Trial:
    expected = scale * raw_scores(case, k, q)
    return Trial(name, lambda y, _: _equal(name, y, expected), k=k, q=q, scale=scale)


def _random_scores(case: Attention, seed: int) -> Trial:
    k, q = attention_inputs.token_rows(case, "k", seed), attention_inputs.query(case, seed)
    reference = Reference(case, k=k, q=q, scale=case.factor)

    def compare(y: Floats, precision: Precision) -> Check:
        made = reference.quantised if precision.quantises_q else reference
        return _within("random", y, made.scores, made.score_bound)

    return Trial("random", compare, k=k, q=q, scale=case.factor, is_timed=True)


# Values.


def _av_trials(case: Attention, seed: int) -> Iterator[Trial]:
    v = _integer_rows(case, "v", seed)
    flat = inputs.integers("small", case.heads * case.context, seed, 21)
    p = flat.reshape(case.heads, case.context).astype(np.float32)
    expected = weighted_rows(case, v, p)
    yield Trial("exact", lambda y, _: _equal("exact", y, expected), v=v, p=p)
    v = _special_rows(case, "v", seed)
    for name, tokens in _single_tokens(case):
        p = np.zeros((case.heads, case.context), np.float32)
        p[np.arange(case.heads), tokens[np.arange(case.heads) // case.ratio]] = 1
        yield _one_row(case, name, tokens, v, p=p)
    yield _random_values(case, seed)


def _random_values(case: Attention, seed: int) -> Trial:
    v, p = attention_inputs.token_rows(case, "v", seed), attention_inputs.weights(case, seed)
    expected, bound = weighted_rows(case, v, p), value_bound(case, v, p)
    return Trial(
        "random", lambda y, _: _within("random", y, expected, bound), v=v, p=p, is_timed=True
    )


# Both.


def _attention_trials(case: Attention, seed: int) -> Iterator[Trial]:
    k, q = attention_inputs.token_rows(case, "k", seed), attention_inputs.query(case, seed)
    v = _integer_rows(case, "v", seed)
    yield _every_token(case, k, v)
    special = _special_rows(case, "v", seed)
    for name, tokens in _single_tokens(case):
        yield _dominating(case, name, tokens, special)
    v = attention_inputs.token_rows(case, "v", seed)
    yield _softmax_trial("random", case, k, v, q, case.factor, is_timed=True)
    # Scores of some hundreds either way; the softmax sees a few of them.
    large = 2.0 ** math.ceil(math.log2(200 / math.sqrt(case.head_dim)))
    yield _softmax_trial("large scores", case, k, v, q * np.float32(large), 1.0)
    yield _softmax_trial("negative scores", case, _shifted(case, k), v, _with_first(q), 1.0)


def _every_token(case: Attention, k: Rows, v: Rows) -> Trial:
    """Q is 0: every token weighs 1 / N_t, and the output times N_t is a sum of integers."""
    q = np.zeros((case.heads, case.head_dim), np.float32)
    sums = weighted_rows(case, v, np.ones((case.heads, case.context), np.float32))

    def compare(y: Floats, precision: Precision) -> Check:
        near = np.abs(y.astype(np.float64) * case.context - sums) < 0.25 + rounding(
            precision.y, sums, case.context
        )
        return _verdict("every token", ~near, y * np.float32(case.context), sums)

    return Trial("every token", compare, k=k, v=v, q=q)


def _dominating(case: Attention, name: str, tokens: NDArray[np.int64], v: Rows) -> Trial:
    """One token's score is far above all others, so the output is its row of V."""
    one = quant.quantise(case.k_type, np.ones((case.kv_heads, case.head_dim), np.float32))
    rows = np.zeros((case.context, *one.shape), np.uint8)  # zeros of every type
    rows[tokens, np.arange(case.kv_heads)] = one
    size = 2.0 ** math.ceil(math.log2(_FAR / case.head_dim))
    q = np.full((case.heads, case.head_dim), size, np.float32)
    return _one_row(case, name, tokens, v, k=rows, q=q)


def _softmax_trial(
    name: str,
    case: Attention,
    k: Rows,
    v: Rows,
    q: Floats,
    scale: float,
    *,
    is_timed: bool = False,
) -> Trial:
    reference = Reference(case, k=k, q=q, v=v, scale=scale)

    def compare(y: Floats, precision: Precision) -> Check:
        made = reference.quantised if precision.quantises_q else reference
        return _within(name, y, *made.softmax(precision))

    return Trial(name, compare, k=k, v=v, q=q, scale=scale, is_timed=is_timed)


def _shifted(case: Attention, k: Rows) -> Rows:
    """K with -100 in the first element of every row: with Q's first, scores of about -10,000."""
    rows = quant.dequantise(case.k_type, k, case.head_dim)
    rows[..., 0] = -100
    return quant.quantise(case.k_type, rows)


def _with_first(q: Floats) -> Floats:
    """Q with 127 first (1/128 of a group's largest is one quant, as in `attention_inputs`)."""
    made = q.copy()
    made[:, 0] = 127
    return made


# Operands.


def integer_query(case: Attention, seed: int) -> Floats:
    """-3 to 3, and 127 in every 32 elements: quantised, it is itself."""
    flat = inputs.integers("small", case.heads * case.head_dim, seed, 22)
    q = flat.reshape(case.heads, case.head_dim).astype(np.float32)
    q[:, ::QUANTS] *= 127 / np.abs(q[:, ::QUANTS])
    return q


def _integer_rows(case: Attention, side: str, seed: int) -> Rows:
    """Small integers; quantised ones with scales of 1, 2 and 4, which tell groups apart."""
    kind, dim = case.side(side)
    shape = (case.context, case.kv_heads, dim)
    count, stream = math.prod(shape), _INTEGERS[side]
    if kind not in QUANTISED:
        flat = inputs.values("small", kind, count, seed, stream)
        return flat.reshape(shape).view(np.uint8)
    flat = inputs.values("small", "f16", count, seed, stream)
    groups = quant.scale_groups(kind, dim)
    scale = np.exp2(np.arange(math.prod(shape[:2]) * groups) % 3).astype(np.float32)
    return quant.pack(kind, scale.reshape(*shape[:2], groups), flat.reshape(shape).astype(np.int8))


def _special_rows(case: Attention, side: str, seed: int) -> Rows:
    """Values that conversions get wrong: zeros, subnormals, the largest, or every quant."""
    kind, dim = case.side(side)
    shape = (case.context, case.kv_heads, dim)
    count = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    if kind in QUANTISED:
        groups = quant.scale_groups(kind, dim)
        scale = np.exp2(-(np.arange(math.prod(shape[:2]) * groups) % 5)).astype(np.float32)
        quants = (count * 37 % 255 - 127).astype(np.int8)
        return quant.pack(kind, scale.reshape(*shape[:2], groups), quants)
    # The largest of bf16 would overflow where it is multiplied by 127, or summed over all tokens
    # before the dominating one is met; subnormals of bf16 are subnormal as FP32 too, and a device
    # may flush those.
    large = 2.0 ** min(119, 127 - case.context.bit_length())
    values = [0.0, 1.0, 2.0**-13, 2.0**-14]
    values += [2.0**-24, 1023 * 2.0**-24, 65504.0] if kind == "f16" else [2.0**-126, large]
    both = np.array([sign * value for value in values for sign in (1, -1)], np.float32)
    return quant.quantise(kind, both[(count + count // dim + seed) % len(both)])


def _single_tokens(case: Attention) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """A token for each KV head: the first, the last, and others all over."""
    heads = np.arange(case.kv_heads)
    yield "first token", heads * 0
    yield "last token", heads * 0 + case.context - 1
    yield "single tokens", (heads * 37 + 5) % case.context


def _one_row(
    case: Attention, name: str, tokens: NDArray[np.int64], v: Rows, **operands: Any
) -> Trial:
    """The output of a head is the row of its token, bit for bit."""
    picked = quant.dequantise(case.v_type, v[tokens, np.arange(case.kv_heads)], case.v_size)
    expected = np.repeat(picked, case.ratio, axis=0).astype(np.float64)
    return Trial(name, lambda y, _: _equal(name, y, expected), v=v, **operands)


# Verdicts.


def _equal(name: str, y: Floats, expected: Doubles) -> Check:
    return _verdict(name, ~(y == expected), y, expected)


def _within(name: str, y: Floats, expected: Doubles, bound: Doubles) -> Check:
    return _verdict(name, ~(np.abs(y - expected) <= bound), y, expected)


def _verdict(name: str, wrong: NDArray[np.bool_], got: Floats, expected: Doubles) -> Check:
    """The first wrong element by head and place, and whether the last one is wrong too."""
    places = np.argwhere(wrong)
    if len(places) == 0:
        return Check(name, True)
    head, place = map(int, places[0])
    text = (
        f"{len(places)} of {wrong.size} elements wrong; head {head}, element {place} is "
        f"{got[head, place]:g}, expected {expected[head, place]:g}"
    )
    if wrong[-1, -1] and len(places) > 1:
        text += "; the last element of the last head is wrong too"
    unwritten = int(np.count_nonzero(np.isnan(got)))
    nan = f"; {unwritten} are NaN (never written, or read from unused cache)" if unwritten else ""
    return Check(name, False, text + nan)
