"""The catalogue of models: which GEMV shapes a token of each dispatches."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from gemvbench.errors import UserError
from gemvbench.suggest import nearest

_CATALOGUE = Path(__file__).parent / "models.toml"


class Operation(msgspec.Struct, frozen=True):
    """A class of linear layers: (k, n) and how many of its matrices a token reads.

    Of `experts` matrices that lie side by side a token reads `active`, drawn anew for each token.
    """

    name: str
    k: int
    n: int
    times: int
    experts: int = 1
    active: int = 1

    @property
    def matrices(self) -> int:
        """Distinct matrices in memory."""
        return self.times // self.active * self.experts


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """Attention of a model: query and KV heads, and elements of a row of K and of V."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int


ATTENTION = "attention"
"""What a token's order calls attention, where a layer has it."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model's linear layers, and the order in which a token runs them."""

    id: str
    title: str
    operations: tuple[Operation, ...]
    order: tuple[int, ...]
    """Places in `operations`, one for each layer of a token; empty for a set of shapes."""
    unverified: str = ""
    """What of it was not read from the model's config; "" where all was."""
    attention: Heads | None = None
    attends: tuple[int, ...] = ()
    """Places in `order` before which a token attends to its cache, one for each such layer."""
    window: str = ""
    """Layers whose attention sees no more than the latest tokens; "" where none is known to."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of 16-bit weights that one token reads."""
        return sum(2 * op.k * op.n * op.times for op in self.operations)

    @property
    def stored_bytes(self) -> int:
        """Bytes of 16-bit weights in memory, all experts included."""
        return sum(2 * op.k * op.n * op.matrices for op in self.operations)


class _Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A class of layers in the data file."""

    name: str
    k: int
    n: int
    experts: int = 1
    active: int = 1


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the data file: dimensions of a dense model, or operations as they are."""

    title: str
    unverified: str = ""
    operations: tuple[_Row, ...] = ()
    token: tuple[tuple[int, tuple[str, ...]], ...] = ()
    window: str = ""
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

    def expand(self, name: str) -> Model:
        rows = self.operations or self._dense()
        stages = self.token
        if not self.operations:
            first, *others, head = (row.name for row in rows)
            stages = ((self.layers, (first, ATTENTION, *others)), (1, (head,)))
        places = {row.name: place for place, row in enumerate(rows)}
        order: list[int] = []
        attends = []
        for layer in (layer for count, names in stages for layer in names * count):
            if layer == ATTENTION:
                attends.append(len(order))
            else:
                order += [places[layer]] * rows[places[layer]].active
        return Model(
            id=name,
            title=self.title,
            operations=tuple(
                Operation(row.name, row.k, row.n, order.count(place) or 1, row.experts, row.active)
                for place, row in enumerate(rows)
            ),
            order=tuple(order),
            unverified=self.unverified,
            attention=self._attention(),
            attends=tuple(attends),
            window=self.window,
        )

    def _attention(self) -> Heads | None:
        if not self.heads:
            return None
        return Heads(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_dim=self.v_dim or self.head_dim,
        )

    def _dense(self) -> tuple[_Row, ...]:
        heads = self.heads * self.head_dim
        return (
            _Row("q+k+v", self.hidden, heads + 2 * self.kv_heads * self.head_dim),
            _Row("o", heads, self.hidden),
            _Row("gate+up", self.hidden, 2 * self.ffn),
            _Row("down", self.ffn, self.hidden),
            _Row("lm_head", self.hidden, self.vocab),
        )


@cache
def catalogue() -> dict[str, Model]:
    """All models by id; a dot in a name is an underscore in the data file's keys."""
    raw = tomllib.loads(_CATALOGUE.read_text())
    entries = msgspec.convert(raw, dict[str, _Entry])
    names = {key: key.replace("_", ".") for key in entries}
    return {name: entries[key].expand(name) for key, name in names.items()}


def find_model(name: str) -> Model:
    """A model by id, upper or lower case.

    Raises:
        UserError: unknown; names the nearest.
    """
    models = catalogue()
    if name.lower() in models:
        return models[name.lower()]
    raise UserError(
        f"There is no model {name!r} in the catalogue{nearest(name.lower(), models)} Known are "
        f"{', '.join(models)}; any shape can be given with --shape KxN."
    )
