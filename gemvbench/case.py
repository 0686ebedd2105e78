"""Cases: an operation with its shape and types."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from gemvbench.errors import UserError

ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
WEIGHT_TYPES = ("f16", "bf16")
VECTOR_TYPES = ("f16", "bf16", "f32")


class BlockType(NamedTuple):
    """So many weights lie in so many bytes."""

    weights: int
    size: int


BLOCKS = {
    "q8_0": BlockType(32, 34),
    "q4_0": BlockType(32, 18),
    "q4_K": BlockType(256, 144),
}
"""Quantised weights, as `quant_weights` describes them."""
QUANT_TYPES = tuple(BLOCKS)

# The exact check sums k products of at most 9 in FP32, which is exact below 2**24.
MAX_K = (2**24 - 1) // 9
MAX_QUANT_K = 1 << 16
"""Of quantised weights: there x has 127 or 254 in every 32 elements, and scales are 1 and 2."""
MAX_N = 1 << 24
"""Rows; the host keeps several float64 values for each while it verifies."""


class Gemv(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """y = W x: W is [n, k] row-major, x is [k], y is [n] in FP32.

    Args:
        k: in_features, the length of a row.
        n: out_features, the number of rows.
        w: type of the weights, "f16", "bf16", "q8_0", "q4_0" or "q4_K".
        x: element type of the vector, "f16", "bf16" or "f32".
        w_offset: byte offset of W within its buffer; a ladder looks at it.
        x_offset: byte offset of x within its buffer.
        spare: rows of W behind the last, in every rotated copy, with as many scratch rows
            behind y; only arms with planted extra rows touch them.

    Raises:
        UserError: a size or type that no kernel here can compute.
    """

    k: int
    n: int
    w: str = "f16"
    x: str = "f16"
    w_offset: int = 0
    x_offset: int = 0
    spare: int = 0

    def __post_init__(self) -> None:
        _check_type("weights", self.w, (*WEIGHT_TYPES, *QUANT_TYPES))
        _check_range("k (in_features)", self.k, MAX_QUANT_K if self.is_quantised else MAX_K)
        _check_range("n (out_features)", self.n, MAX_N)
        _check_range("n with its spare rows", self.stored_rows, MAX_N, least=self.n)
        _check_type("x", self.x, VECTOR_TYPES)
        if self.is_quantised:
            _check_blocks(self.k, self.w)
        _check_offset("weights", self.w_offset, ITEM_BYTES.get(self.w, 2))
        _check_offset("x", self.x_offset, ITEM_BYTES[self.x])

    @property
    def id(self) -> str:
        offsets = "".join(
            f"-{name}+{value}"
            for name, value in (("w", self.w_offset), ("x", self.x_offset))
            if value
        )
        spare = f"-spare{self.spare}" if self.spare else ""
        return f"gemv-{self.k}x{self.n}-{self.w}-{self.x}{offsets}{spare}"

    @property
    def is_quantised(self) -> bool:
        return self.w in BLOCKS

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of W as it is stored."""
        return row_bytes(self.w, self.k) if self.is_quantised else self.k * ITEM_BYTES[self.w]

    @property
    def weight_bytes(self) -> int:
        return self.n * self.row_bytes

    @property
    def stored_rows(self) -> int:
        """Rows that lie in memory, of W and of y."""
        return self.n + self.spare

    @property
    def copy_bytes(self) -> int:
        """Bytes of what rotates, one copy of it: from the start of its buffer on."""
        return self.w_offset + self.stored_bytes

    @property
    def fixed_bytes(self) -> int:
        """Bytes of what does not rotate: x and y."""
        return self.k * ITEM_BYTES[self.x] + 4 * self.stored_rows

    @property
    def stored_bytes(self) -> int:
        """Bytes of one copy of W, its spare rows included."""
        return self.stored_rows * self.row_bytes

    @property
    def bytes_moved(self) -> int:
        """Bytes a perfect kernel moves: W and x read once, y written once; no spare rows."""
        return self.weight_bytes + self.k * ITEM_BYTES[self.x] + self.n * 4


def row_bytes(kind: str, k: int) -> int:
    """Bytes of a row of k quantised weights.

    Raises:
        ValueError: k is no multiple of the block.
    """
    block = BLOCKS[kind]
    if k % block.weights:
        raise ValueError(f"{k} weights are no whole blocks of {block.weights} in {kind}")
    return k // block.weights * block.size


def parse_shape(text: str) -> tuple[int, int]:
    """Read "KxN" (in_features x out_features), as in 5120x17408.

    Raises:
        UserError: anything else.
    """
    match = re.fullmatch(r"\s*(-?\d{1,30})\s*[xX]\s*(-?\d{1,30})\s*", text)
    if match is None:
        raise UserError(
            f"--shape {text[:80]!r} is not a shape. Write KxN, in_features times out_features, "
            "for example --shape 5120x17408."
        )
    return int(match[1]), int(match[2])


def _check_range(what: str, value: int, most: int, least: int = 1) -> None:
    if not least <= value <= most:
        raise UserError(f"{what} is {value}, but has to be between {least} and {most}.")


def _check_type(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{value!r} is no type for {what}; known are {', '.join(known)}.")


def _check_blocks(k: int, w: str) -> None:
    block = BLOCKS[w].weights
    if k % block:
        raise UserError(
            f"{w} holds {block} weights together, and k (in_features) is {k}, which is not a "
            f"multiple of {block}. Choose another shape, or other --weights for it."
        )


MAX_OFFSET = 1 << 32
"""Bytes; kernels take the offset of x in 32 bits."""


def _check_offset(what: str, value: int, item: int) -> None:
    if value >= MAX_OFFSET:
        raise UserError(f"The byte offset of {what} is {value}, but has to be below 4 GiB.")
    if value < 0 or value % item:
        raise UserError(
            f"The byte offset of {what} is {value}, but has to be a multiple of {item}, "
            "the size of its elements (of quantised ones, of a scale), and not negative."
        )
