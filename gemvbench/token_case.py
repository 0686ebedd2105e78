"""The case of `decode`: all linear layers of one token, in the order in which a model runs them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from gemvbench.case import Gemv
from gemvbench.errors import UserError
from gemvbench.models import Model, Operation

CHOICES = 8
"""Tokens after which the random choice of experts comes again, so that graphs can as well."""


class Token(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """y = W x for every linear layer of a token, each on distinct weights.

    Args:
        model: id in the catalogue.
        operations: classes of layers; each has an x and a y of its own.
        order: places in `operations`, layer by layer.
        w: element type of all weights.
        x: element type of all vectors.
        only: the class that this case times by itself; "" for the whole token.
        rest_bytes: weights of the model that are no part of this case; a token reads them
            between two reads of what is.

    Raises:
        ValueError: the order does not fit the operations.
        UserError: a size or type that no kernel here can compute.
    """

    model: str
    operations: tuple[Operation, ...]
    order: tuple[int, ...]
    w: str = "f16"
    x: str = "f16"
    only: str = ""
    rest_bytes: int = 0

    def __post_init__(self) -> None:
        count = len(self.operations)
        if sorted(set(self.order)) != list(range(count)):
            raise ValueError("the order of a token has other layers than its operations")
        if len({operation.name for operation in self.operations}) < count:
            raise ValueError("a token has two classes of one name")
        for place, op in enumerate(self.operations):
            self.layer(op)
            if not 1 <= op.active <= op.experts or op.times % op.active:
                raise ValueError(f"{op.name} has {op.active} of {op.experts} experts")
            if self.order.count(place) != op.times:
                raise ValueError(f"{op.name} is not {op.times} times in the order of its token")

    @property
    def id(self) -> str:
        part = f"/{self.only}" if self.only else ""
        return f"token-{self.model}-{self.w}-{self.x}{part}"

    def layer(self, operation: Operation) -> Gemv:
        """One layer of a class, as a case of its own."""
        return Gemv(k=operation.k, n=operation.n, w=self.w, x=self.x)

    @property
    def layers(self) -> tuple[Gemv, ...]:
        """One layer of each class."""
        return tuple(self.layer(operation) for operation in self.operations)

    @property
    def bytes_moved(self) -> int:
        """Bytes a perfect kernel moves for one token; of experts only the active ones."""
        sizes = (self.layer(op).bytes_moved * op.times for op in self.operations)
        return sum(sizes)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all distinct weights, idle experts included."""
        return sum(self.layer(op).weight_bytes * op.matrices for op in self.operations)

    @property
    def choices(self) -> int:
        """Tokens after which the same experts come again; 1 where there is nothing to choose."""
        return CHOICES if any(op.experts > op.active for op in self.operations) else 1

    def matrices(self, seed: int, token: int) -> Iterator[tuple[int, int]]:
        """(class, matrix of the class) for each layer of a token, in order.

        The n-th layer with experts draws the same ones for all of its classes.
        """
        seen = [0] * len(self.operations)
        for place in self.order:
            op = self.operations[place]
            layer, slot = divmod(seen[place], op.active)
            seen[place] += 1
            expert = _experts(seed, token % self.choices, layer, op)[slot]
            yield place, layer * op.experts + expert


def _experts(seed: int, token: int, layer: int, op: Operation) -> list[int]:
    if op.experts == op.active:
        return list(range(op.active))
    draw = random.Random(f"experts {seed} {token} {layer}")
    return draw.sample(range(op.experts), op.active)


def make_token(model: Model, w: str, x: str) -> Token:
    """The whole token of a model.

    Raises:
        UserError: a set of shapes, which no model runs one after another.
    """
    if not model.order:
        raise UserError(
            f"{model.title} ({model.id}) are shapes and no model, so there is no token to decode; "
            f"`gemvbench ab --model {model.id}` compares arms on them."
        )
    return Token(model=model.id, operations=model.operations, order=model.order, w=w, x=x)


def split_token(token: Token) -> tuple[Token, ...]:
    """Each class of a token's layers as a case of its own, in order of the token's time line."""
    return tuple(
        msgspec.structs.replace(
            token,
            operations=(token.operations[place],),
            order=(0,) * token.order.count(place),
            only=token.operations[place].name,
            rest_bytes=token.stored_bytes
            - token.layer(token.operations[place]).weight_bytes * token.operations[place].matrices,
        )
        for place in dict.fromkeys(token.order)
    )
