"""Stages of attention on the fake device, in float64: the arguments are the kernels' own.

A stage computes what it is for, whatever its geometry; of several ranges the first one's
partial result holds everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import quant
from gemvbench.attention_case import row_bytes
from gemvbench.attention_inputs import quantise_query
from gemvbench.backend.base import Launch

Constants = Mapping[str, str]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class _Call:
    """A launch's arguments and constants by name."""

    constants: Constants
    args: tuple[Any, ...]

    def number(self, name: str) -> int:
        return int(self.constants[name])

    @property
    def tokens(self) -> int:
        return int(self.args[6])

    @property
    def splits(self) -> int:
        return int(self.args[9])

    def rows(self, side: str) -> Doubles:
        """A cache [kv_heads, tokens, elements]."""
        place = "kv".index(side)
        offset = int(self.args[11 + place])
        token, head = (int(value) for value in self.args[13 + 2 * place : 15 + 2 * place])
        kind, dim = self.constants[f"{side.upper()}_TYPE"], self.number(f"{side.upper()}_DIM")
        heads, size = self.number("HEADS") // self.number("RATIO"), row_bytes(kind, dim)
        span = (self.tokens - 1) * token + (heads - 1) * head + size
        raw = self.args[place].read(offset, np.uint8, span)
        shape = (heads, self.tokens, size)
        view = np.lib.stride_tricks.as_strided(raw, shape, (head, token, 1))
        return quant.dequantise(kind, np.ascontiguousarray(view), dim).astype(np.float64)

    def scores(self) -> NDArray[np.float32]:
        """[heads, stride], to read and to write back."""
        shape = self.number("HEADS"), int(self.args[10])
        flat = self.args[3].read(0, np.float32, shape[0] * shape[1])
        made: NDArray[np.float32] = flat.reshape(shape).copy()
        return made

    def put_scores(self, values: Doubles) -> None:
        whole = self.scores()
        whole[:, : self.tokens] = values
        self.args[3].write(0, whole)

    def put_rows(self, values: Doubles) -> None:
        """To the output, or to the first range's place among partial results."""
        rows = values.astype(np.float32)
        if self.splits == 1 or self.constants.get("FUSED") == "1":
            self.args[5].write(0, rows)
            return
        self.args[4].write(0, np.concatenate([rows, np.zeros_like(rows)]))


def _raw_scores(call: _Call) -> Doubles:
    dtype = np.float32 if call.constants["X_TYPE"] == "TYPE_F32" else np.float16
    heads, dim = call.number("HEADS"), call.number("K_DIM")
    q = call.args[2].read(0, dtype, heads * dim).astype(np.float32).reshape(heads, dim)
    if call.number("QUANT_Q"):
        q = quantise_query(call.constants["K_TYPE"], q)
    by_head = q.astype(np.float64).reshape(-1, call.number("RATIO"), dim)
    scaled = by_head @ call.rows("k").transpose(0, 2, 1) * float(call.args[17])
    made: Doubles = scaled.reshape(heads, -1)
    return made


def _softmax(scores: Doubles) -> Doubles:
    weights: Doubles = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _values(call: _Call, p: Doubles) -> Doubles:
    by_head = p.reshape(-1, call.number("RATIO"), call.tokens)
    made: Doubles = (by_head @ call.rows("v")).reshape(call.number("HEADS"), -1)
    return made


def kq(constants: Constants, launch: Launch) -> None:
    call = _Call(constants, launch.args)
    call.put_scores(_raw_scores(call))


def softmax(constants: Constants, launch: Launch) -> None:
    call = _Call(constants, launch.args)
    call.put_scores(_softmax(call.scores()[:, : call.tokens].astype(np.float64)))


def av(constants: Constants, launch: Launch) -> None:
    call = _Call(constants, launch.args)
    call.put_rows(_values(call, call.scores()[:, : call.tokens].astype(np.float64)))


def splitkv(constants: Constants, launch: Launch) -> None:
    call = _Call(constants, launch.args)
    call.put_rows(_values(call, _softmax(_raw_scores(call))))


def flash(constants: Constants, launch: Launch) -> None:
    """Ranges are merged in the same launch."""
    call = _Call(constants, launch.args)
    call.args[5].write(0, _values(call, _softmax(_raw_scores(call))).astype(np.float32))


def combine(constants: Constants, launch: Launch) -> None:
    """attn_sum and attn_merge: the first range holds everything."""
    call = _Call(constants, launch.args)
    call.args[5].write(
        0, call.args[4].read(0, np.float32, call.number("HEADS") * call.number("V_DIM"))
    )


def _cache_bytes(sides: str) -> Callable[[Constants, Launch], int]:
    def moved(constants: Constants, launch: Launch) -> int:
        call = _Call(constants, launch.args)
        rows = call.tokens * call.number("HEADS") // call.number("RATIO")
        sizes = (
            row_bytes(constants[f"{side}_TYPE"], call.number(f"{side}_DIM"))
            for side in sides.upper()
        )
        return rows * sum(sizes)

    return moved


STAGES: Mapping[str, tuple[Callable[[Constants, Launch], None], int, Any]] = {
    "attn_kq": (kq, 3, _cache_bytes("k")),
    "attn_softmax": (softmax, 3, None),
    "attn_av": (av, 5, _cache_bytes("v")),
    "attn_sum": (combine, 5, None),
    "attn_splitkv": (splitkv, 5, _cache_bytes("kv")),
    "attn_merge": (combine, 5, None),
    "attn_flash": (flash, 5, _cache_bytes("kv")),
}
"""By entry: what it does, the argument it writes, and the bytes it reads; None for next to none."""
