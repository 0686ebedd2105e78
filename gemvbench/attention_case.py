"""Cases of attention in token generation: one query position against a cache of keys and values."""

from __future__ import annotations

import math

import msgspec

from gemvbench.errors import UserError

OPERATIONS = ("kq", "av", "attention")
LAYOUTS = ("tkd", "ktd")
CACHE_TYPES = ("f16", "bf16", "q8_0", "q8_KV")
QUANTISED = ("q8_0", "q8_KV")
QUERY_TYPES = ("f16", "f32")
QUANTS = 32
"""Quants under one scale in q8_0; q8_KV rows are multiples of it too."""

MAX_HEAD = 256
MAX_HEADS = 1024
MAX_CONTEXT = 1 << 18
"""Tokens; the exact check sums them in FP32, whose products are at most 36."""
MAX_RANGES = 512
"""Token ranges whose partial results are combined; it bounds what an arm allocates."""

_ALIGNMENT = 256


class Attention(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One query position of all heads against a cache of `context` tokens, batch 1, causal.

    kq: scores[h, t] = scale q[h] . k[t, h / ratio]. av: out[h] = sum over t of p[h, t]
    v[t, h / ratio], p given in FP32. attention: both, with a softmax over t between them.
    Query head h reads KV head h // ratio. Outputs are FP32.

    Args:
        op: "kq", "av" or "attention".
        heads, kv_heads: query heads N_h and KV heads N_k; N_h is a multiple of N_k.
        head_dim, v_dim: elements of a row of K (and of Q), and of a row of V.
        context: cached tokens N_t that are attended to.
        layout: order of the rows of a cache, "tkd" [N_t, N_k, D] or "ktd" [N_k, N_t, D].
        k_type, v_type: "f16", "bf16", "q8_0" or "q8_KV".
        q: type of Q, "f16" or "f32".
        capacity: tokens that the cache has room for; 0 stands for `context`.
        scale: factor of the scores; 0 stands for 1 / sqrt(head_dim).

    Raises:
        UserError: a shape, type or length that no kernel here can compute.
    """

    op: str = "attention"
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int = 0
    context: int
    layout: str = "tkd"
    k_type: str = "f16"
    v_type: str = "f16"
    q: str = "f16"
    capacity: int = 0
    scale: float = 0.0

    def __post_init__(self) -> None:
        _check_known("operation", self.op, OPERATIONS)
        _check_known("cache layout", self.layout, LAYOUTS)
        _check_known("type of Q", self.q, QUERY_TYPES)
        _check_range("heads", self.heads, MAX_HEADS)
        _check_range("kv_heads", self.kv_heads, MAX_HEADS)
        if self.heads % self.kv_heads:
            raise UserError(
                f"{self.heads} query heads cannot share {self.kv_heads} KV heads: --heads has to "
                "be a multiple of --kv-heads."
            )
        for what, dim, stored in (
            ("K", self.head_dim, self.k_type),
            ("V", self.v_size, self.v_type),
        ):
            _check_known(f"type of {what}", stored, CACHE_TYPES)
            _check_range(f"The head size of {what}", dim, MAX_HEAD)
            if stored in QUANTISED and dim % QUANTS:
                raise UserError(
                    f"{stored} holds {QUANTS} quants together, and a head of {what} has {dim} "
                    f"elements, which is not a multiple of {QUANTS}. Choose f16 or bf16 for it."
                )
        _check_range("context", self.context, MAX_CONTEXT)
        _check_range("capacity of the cache", self.tokens_stored, 2 * MAX_CONTEXT)
        if self.context > self.tokens_stored:
            raise UserError(
                f"A context of {self.context} tokens does not fit a cache of {self.capacity}: "
                "raise --capacity, or leave it out."
            )
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise UserError(f"A scale of {self.scale} is none; leave it out for 1 / sqrt(D).")

    @property
    def id(self) -> str:
        dims = f"{self.head_dim}" + (f"v{self.v_size}" if self.v_size != self.head_dim else "")
        types = {"kq": self.k_type, "av": self.v_type}.get(self.op) or (
            self.k_type if self.k_type == self.v_type else f"{self.k_type}-{self.v_type}"
        )
        query = "" if self.q == "f16" or self.op == "av" else f"-q{self.q}"
        spare = f"-of{self.tokens_stored}" if self.tokens_stored != self.context else ""
        shape = f"{self.heads}x{self.kv_heads}x{dims}"
        return f"{self.op}-{shape}-{types}-{self.layout}{query}-n{self.context}{spare}"

    @property
    def ratio(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def v_size(self) -> int:
        return self.v_dim or self.head_dim

    @property
    def tokens_stored(self) -> int:
        return self.capacity or self.context

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return self.scale or 1 / math.sqrt(self.head_dim)

    @property
    def has_k(self) -> bool:
        return self.op != "av"

    @property
    def has_v(self) -> bool:
        return self.op != "kq"

    def side(self, side: str) -> tuple[str, int]:
        """(type, elements of a row) of the cache of "k" or "v"."""
        return (self.k_type, self.head_dim) if side == "k" else (self.v_type, self.v_size)

    @property
    def k_bytes(self) -> int:
        """Bytes of the K cache with its unused tokens, up to where V begins; 0 without K."""
        return _align(self._cache_bytes(self.k_type, self.head_dim)) if self.has_k else 0

    @property
    def v_bytes(self) -> int:
        return _align(self._cache_bytes(self.v_type, self.v_size)) if self.has_v else 0

    @property
    def copy_bytes(self) -> int:
        """Bytes of what rotates, one copy of it: the caches, K before V."""
        return self.k_bytes + self.v_bytes

    @property
    def fixed_bytes(self) -> int:
        """Bytes of what does not rotate: Q, scores, output, and partial results at their most."""
        partial = MAX_RANGES * self.heads * (self.v_size + 2) + self.counters if self.has_v else 0
        scores = self.heads * self.score_stride
        return self._query_bytes + 4 * (scores + partial + self.heads * self.v_size)

    @property
    def bytes_moved(self) -> int:
        """Bytes a perfect kernel moves: K and V read once, Q (or p) read, the output written."""
        rows = self.context * self.kv_heads
        k = rows * row_bytes(self.k_type, self.head_dim)
        v = rows * row_bytes(self.v_type, self.v_size)
        scores, out = 4 * self.heads * self.context, 4 * self.heads * self.v_size
        return {
            "kq": k + self._query_bytes + scores,
            "av": v + scores + out,
            "attention": k + v + self._query_bytes + out,
        }[self.op]

    @property
    def score_stride(self) -> int:
        """Floats from one head's scores to the next one's.

        16 more than the tokens: at a power of two all heads' scores of a token would lie in one
        set of a CPU's cache.
        """
        return -(-self.context // 16) * 16 + 16

    @property
    def counters(self) -> int:
        """Words before partial results, for counts of workgroups: one for each head, rounded up."""
        return -(-self.heads // 64) * 64

    @property
    def outputs(self) -> int:
        """Elements of the output of a head: a score for each token, or a row like V's."""
        return self.context if self.op == "kq" else self.v_size

    def strides(self, stored: str, dim: int, capacity: int) -> tuple[int, int]:
        """Bytes from one token to the next, and from one KV head to the next."""
        row = row_bytes(stored, dim)
        return (row * self.kv_heads, row) if self.layout == "tkd" else (row, row * capacity)

    @property
    def _query_bytes(self) -> int:
        return self.heads * self.head_dim * (4 if self.q == "f32" else 2)

    def _cache_bytes(self, stored: str, dim: int) -> int:
        return self.tokens_stored * self.kv_heads * row_bytes(stored, dim)


def row_bytes(stored: str, dim: int) -> int:
    """Bytes of a head's row of one token: `dim` elements in a cache type."""
    if stored == "q8_0":
        return dim // QUANTS * (2 + QUANTS)
    return 8 + dim if stored == "q8_KV" else 2 * dim


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _check_range(what: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UserError(f"{what} is {value}, but has to be between 1 and {most}.")


def _check_known(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{value!r} is no {what}; known are {', '.join(known)}.")
