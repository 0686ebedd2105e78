"""The case of `decode`: all layers of one token, in the order in which a model runs them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.errors import UserError
from gemvbench.mix import Mix, parse_mix
from gemvbench.models import ATTENTION, Model, Operation

CHOICES = 8
"""Tokens after which the random choice of experts comes again, so that graphs can as well."""


@dataclass(frozen=True)
class LayerClass:
    """Layers of a token that are alike: `times` of them, each on memory of its own.

    Of `experts` matrices that lie side by side a token reads `active`.
    """

    name: str
    layer: Gemv | Attention
    times: int
    matrices: int
    """Distinct matrices or caches in memory."""
    experts: int = 1
    active: int = 1

    @property
    def bytes_moved(self) -> int:
        return self.layer.bytes_moved * self.times

    @property
    def stored_bytes(self) -> int:
        layer = self.layer
        size = layer.weight_bytes if isinstance(layer, Gemv) else layer.copy_bytes
        return size * self.matrices


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Caches that grow by a token with every token of a run.

    Args:
        context: tokens that are cached before a run; its i-th token attends to context + i.
        kv: cache type of K and of V.
        lengths: (short, long) tokens of a run.
    """

    context: int
    kv: str = "f16"
    lengths: tuple[int, int]

    @property
    def counted(self) -> tuple[int, int]:
        """Contexts of the first and the last token in which both runs differ."""
        short, long = self.lengths
        return self.context + short + 1, self.context + long


class Token(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Every linear layer of a token, y = W x, and attention where it is asked for.

    Each layer has distinct weights, or a cache of its own.

    Args:
        model: id in the catalogue.
        operations: classes of linear layers; each has an x and a y of its own.
        order: places in `classes`, layer by layer.
        w: type of the weights, those of a class in `own_w` aside.
        own_w: (class, type of its weights) where a class has another one.
        x: element type of all vectors.
        attention: of every layer that has it, at the longest context; last of the classes.
        growth: how its caches grow from token to token; None where all tokens are alike.
        only: the class that this case times by itself; "" for the whole token.
        rest_bytes: weights and caches of the model that are no part of this case; a token reads
            them between two reads of what is.

    Raises:
        ValueError: the order does not fit the classes, or the cache not its growth.
        UserError: a size or type that no kernel here can compute.
    """

    model: str
    operations: tuple[Operation, ...]
    order: tuple[int, ...]
    w: str = "f16"
    x: str = "f16"
    own_w: tuple[tuple[str, str], ...] = ()
    only: str = ""
    rest_bytes: int = 0
    attention: Attention | None = None
    growth: Growth | None = None

    def __post_init__(self) -> None:
        count = len(self.classes)
        if sorted(set(self.order)) != list(range(count)):
            raise ValueError("the order of a token has other layers than its operations")
        if len({own.name for own in self.classes}) < count:
            raise ValueError("a token has two classes of one name")
        for place, op in enumerate(self.operations):
            if not 1 <= op.active <= op.experts or op.times % op.active:
                raise ValueError(f"{op.name} has {op.active} of {op.experts} experts")
            if self.order.count(place) != op.times:
                raise ValueError(f"{op.name} is not {op.times} times in the order of its token")
        if self.growth is not None:
            short, long = self.growth.lengths
            full = self.attention.context if self.attention else 0
            if not 0 < short < long or full != self.growth.context + long:
                raise ValueError("the caches of a token do not grow to their longest context")

    @property
    def id(self) -> str:
        part = f"/{self.only}" if self.only else ""
        cache = ""
        if self.attention is not None:
            first, last = self._counted
            kv = self.attention.k_type
            cache = f"-n{first}" + (f"to{last}" if last > first else "")
            cache += f"-{kv}" if kv != "f16" else ""
        return f"token-{self.model}-{self.mix}-{self.x}{cache}{part}"

    @property
    def mix(self) -> Mix:
        return Mix(self.w, self.own_w)

    @property
    def classes(self) -> tuple[LayerClass, ...]:
        """Linear layers in the order of `operations`, then attention."""
        linear = tuple(
            LayerClass(
                name=op.name,
                layer=Gemv(k=op.k, n=op.n, w=self.mix.type_of(op.name), x=self.x),
                times=op.times,
                matrices=op.matrices,
                experts=op.experts,
                active=op.active,
            )
            for op in self.operations
        )
        if self.attention is None:
            return linear
        times = self.order.count(len(linear))
        return (*linear, LayerClass(ATTENTION, self.attention, times, times))

    @property
    def layers(self) -> tuple[Gemv | Attention, ...]:
        """One layer of each class."""
        return tuple(own.layer for own in self.classes)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens that each token of a run attends to; one where all are alike."""
        if self.attention is None:
            return ()
        if self.growth is None:
            return (self.attention.context,)
        return tuple(range(self.growth.context + 1, self.attention.context + 1))

    @property
    def bytes_moved(self) -> int:
        """Bytes a perfect kernel moves for one token; of experts only the active ones.

        Caches that grow count at the mean context of the tokens in which both runs differ.
        """
        classes = self.classes
        if self.attention is None:
            return sum(own.bytes_moved for own in classes)
        *linear, last = classes
        ends = [self.attention_at(context).bytes_moved for context in self._counted]
        return sum(own.bytes_moved for own in linear) + last.times * sum(ends) // 2

    @property
    def stored_bytes(self) -> int:
        """Bytes of all distinct weights, idle experts included, and of caches at their longest."""
        return sum(own.stored_bytes for own in self.classes)

    @property
    def choices(self) -> int:
        """Tokens after which the same experts come again; 1 where there is nothing to choose."""
        return CHOICES if any(op.experts > op.active for op in self.operations) else 1

    def attention_at(self, context: int) -> Attention:
        """Attention to the first tokens of a cache that has room for all."""
        assert self.attention is not None
        room = self.attention.tokens_stored
        return msgspec.structs.replace(self.attention, context=context, capacity=room)

    def matrices(self, seed: int, token: int) -> Iterator[tuple[int, int]]:
        """(class, matrix of the class) for each layer of a token, in order.

        The n-th layer with experts draws the same ones for all of its classes.
        """
        classes = self.classes
        seen = [0] * len(classes)
        for place in self.order:
            own = classes[place]
            layer, slot = divmod(seen[place], own.active)
            seen[place] += 1
            expert = _experts(seed, token % self.choices, layer, own)[slot]
            yield place, layer * own.experts + expert

    @property
    def _counted(self) -> tuple[int, int]:
        """Contexts of the first and the last token whose time is looked at."""
        if self.growth is not None:
            return self.growth.counted
        context = self.attention.context if self.attention else 0
        return context, context


def _experts(seed: int, token: int, layer: int, own: LayerClass) -> list[int]:
    if own.experts == own.active:
        return list(range(own.active))
    draw = random.Random(f"experts {seed} {token} {layer}")
    return draw.sample(range(own.experts), own.active)


def make_token(model: Model, w: str, x: str, growth: Growth | None = None) -> Token:
    """The whole token of a model; with `growth` it attends to caches. `w` may be a mix.

    Q is in FP16 where x is, and in FP32 elsewhere.

    Raises:
        UserError: a set of shapes, which no model runs one after another, or a model whose
            attention is not known.
    """
    if not model.order:
        raise UserError(
            f"{model.title} ({model.id}) are shapes and no model, so there is no token to decode; "
            f"`gemvbench ab --model {model.id}` compares arms on them."
        )
    mix = parse_mix(w, [operation.name for operation in model.operations])
    linear = Token(
        model=model.id,
        operations=model.operations,
        order=model.order,
        w=mix.default,
        own_w=mix.own,
        x=x,
    )
    if growth is None:
        return linear
    if model.attention is None or not model.attends:
        raise UserError(f"The catalogue has no attention of {model.id}; leave --context out.")
    heads = model.attention
    attention = Attention(
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        v_dim=heads.v_dim,
        context=growth.context + growth.lengths[1],
        k_type=growth.kv,
        v_type=growth.kv,
        q="f16" if x == "f16" else "f32",
    )
    order: list[int] = []
    for place, layer in enumerate(model.order):
        order += [len(model.operations)] * model.attends.count(place) + [layer]
    return msgspec.structs.replace(linear, order=tuple(order), attention=attention, growth=growth)


def split_token(token: Token) -> tuple[Token, ...]:
    """Each class of a token's layers as a case of its own, in order of the token's time line.

    Attention by itself has the mean context of the tokens that are counted, rounded up, in every
    call: its runs are of other lengths.
    """
    return tuple(_part(token, place) for place in dict.fromkeys(token.order))


def _part(token: Token, place: int) -> Token:
    own = token.classes[place]
    is_linear = place < len(token.operations)
    attention = None
    if not is_linear:
        first, last = token._counted
        attention = token.attention_at(-(-(first + last) // 2))
    return msgspec.structs.replace(
        token,
        operations=token.operations[place : place + 1],
        order=(0,) * own.times,
        only=own.name,
        rest_bytes=token.stored_bytes - own.stored_bytes,
        attention=attention,
        growth=None,
    )
