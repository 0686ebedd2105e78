"""The catalogue of models: which GEMV shapes a token of each dispatches."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from pathlib import Path

import msgspec

from gemvbench.errors import UserError

_CATALOGUE = Path(__file__).parent / "models.toml"


class Operation(msgspec.Struct, frozen=True):
    """A linear layer: (k, n) and how many times a token runs it."""

    name: str
    k: int
    n: int
    times: int


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """Attention of a model: query and KV heads, and elements of a row of K and of V."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model's linear layers in the order of the catalogue."""

    id: str
    title: str
    operations: tuple[Operation, ...]
    unverified: str = ""
    """What of it was not read from the model's config; "" where all was."""
    attention: Heads | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of 16-bit weights that one token reads."""
        return sum(2 * op.k * op.n * op.times for op in self.operations)


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the data file: dimensions of a dense model, or operations as they are."""

    title: str
    unverified: str = ""
    operations: tuple[tuple[str, int, int, int], ...] = ()
    hidden: int = 0
    ffn: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_dim: int = 0
    """Where rows of V are not as long as those of K."""
    layers: int = 0
    vocab: int = 0
    tied: bool = False
    """The embedding serves as lm_head, and is read all the same."""

    def attention(self) -> Heads | None:
        if not self.heads:
            return None
        return Heads(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_dim=self.v_dim or self.head_dim,
        )

    def expand(self) -> tuple[Operation, ...]:
        if self.operations:
            return tuple(Operation(*row) for row in self.operations)
        heads = self.heads * self.head_dim
        return (
            Operation("q+k+v", self.hidden, heads + 2 * self.kv_heads * self.head_dim, self.layers),
            Operation("o", heads, self.hidden, self.layers),
            Operation("gate+up", self.hidden, 2 * self.ffn, self.layers),
            Operation("down", self.ffn, self.hidden, self.layers),
            Operation("lm_head", self.hidden, self.vocab, 1),
        )


@cache
def catalogue() -> dict[str, Model]:
    """All models by id; a dot in a name is an underscore in the data file's keys."""
    raw = tomllib.loads(_CATALOGUE.read_text())
    entries = msgspec.convert(raw, dict[str, _Entry])
    models = {}
    for key, entry in entries.items():
        name = key.replace("_", ".")
        models[name] = Model(
            id=name,
            title=entry.title,
            operations=entry.expand(),
            unverified=entry.unverified,
            attention=entry.attention(),
        )
    return models


def find_model(name: str) -> Model:
    """A model by id, upper or lower case.

    Raises:
        UserError: unknown; names the nearest.
    """
    models = catalogue()
    if name.lower() in models:
        return models[name.lower()]
    near = difflib.get_close_matches(name.lower(), models, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise UserError(
        f"There is no model {name!r} in the catalogue{hint} Known are {', '.join(models)}; "
        "any shape can be given with --shape KxN."
    )
