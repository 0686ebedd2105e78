"""Cases of attention for tests: all pairs of what they may differ in, and a check of any arm."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gemvbench.arm import parse_arm
from gemvbench.attention_case import CACHE_TYPES, LAYOUTS, QUANTISED, Attention
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.commands.attention import ALL_HEADS, ALL_RATIOS
from gemvbench.jobs import choose
from gemvbench.messages import AttentionJob, Failed, Verified, Verify
from gemvbench.outcome import Declined

FAMILIES = ("per_head", "gqa", "token_major", "splitkv")
SEED = 5


class Row(NamedTuple):
    """One combination of everything that may matter to a kernel."""

    dims: tuple[int, int]
    ratio: int
    k_type: str
    v_type: str
    layout: str
    family: str
    block: str
    pack: int
    splits: str
    q: int
    q_type: str
    context: int

    @property
    def arm(self) -> str:
        quantised = "+q8" if self.q else ""
        return f"{self.family}+pack{self.pack}+{self.block}+splits{self.splits}{quantised}"

    def case(self, op: str) -> Attention:
        # One KV head where many share it, an odd number elsewhere.
        kv_heads = 1 if self.ratio > 4 else 3
        return Attention(
            op=op,
            heads=self.ratio * kv_heads,
            kv_heads=kv_heads,
            head_dim=self.dims[0],
            v_dim=self.dims[1],
            context=self.context,
            layout=self.layout,
            k_type=self.k_type,
            v_type=self.v_type,
            q=self.q_type,
        )

    def operations(self) -> tuple[str, ...]:
        """All that the row's one text computes; a quantised Q is none of av's."""
        if self.family == "splitkv":
            return ("attention",)
        return ("kq", "attention") if self.q else ("kq", "av", "attention")


def factors(blocks: Sequence[str]) -> Row:
    """Values of each field, the unusual ones last."""
    return Row(
        dims=ALL_HEADS,  # type: ignore[arg-type]
        ratio=ALL_RATIOS,  # type: ignore[arg-type]
        k_type=CACHE_TYPES,  # type: ignore[arg-type]
        v_type=CACHE_TYPES,  # type: ignore[arg-type]
        layout=LAYOUTS,  # type: ignore[arg-type]
        family=FAMILIES,  # type: ignore[arg-type]
        block=blocks,  # type: ignore[arg-type]
        pack=(3, 0, 1, 2),  # type: ignore[arg-type]
        # One range spans several tiles of the longest context, and four end unevenly.
        splits=("auto", "1", "4"),  # type: ignore[arg-type]
        q=(0, 8),  # type: ignore[arg-type]
        q_type=("f16", "f32"),  # type: ignore[arg-type]
        context=(77, 1, 300),  # type: ignore[arg-type]
    )


def is_possible(values: dict[str, Any]) -> bool:
    """Whether a row may hold these values together; what it does not name is open."""
    if values.get("family") == "gqa" and values.get("ratio") == 1:
        return False
    return not (values.get("q") == 8 and values.get("k_type", "q8_0") not in QUANTISED)


def pairwise(values: Row, seed: int = 1) -> list[Row]:
    """Few rows that hold every possible pair of values of two fields: greedy, seeded."""
    draw = random.Random(seed)
    fields = values._asdict()
    open_pairs = set(all_pairs(values))
    rows = []
    while open_pairs:
        best: tuple[int, dict[str, Any]] = (-1, {})
        for _ in range(40):
            (a, x), (b, y) = draw.choice(sorted(open_pairs, key=repr))
            row = {a: x, b: y}
            for name in draw.sample(list(fields), len(fields)):
                if name in row:
                    continue
                options = [v for v in fields[name] if is_possible(row | {name: v})]
                row[name] = max(
                    options, key=lambda v: (_covers(row | {name: v}, open_pairs), draw.random())
                )
            best = max(best, (_covers(row, open_pairs), row), key=lambda found: found[0])
        open_pairs -= set(_pairs_of(best[1], fields))
        rows.append(Row(**best[1]))
    return rows


def all_pairs(values: Row) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    fields = values._asdict()
    for (a, of_a), (b, of_b) in itertools.combinations(fields.items(), 2):
        for x, y in itertools.product(of_a, of_b):
            if is_possible({a: x, b: y}):
                yield (a, x), (b, y)


def _pairs_of(row: dict[str, Any], order: dict[str, Any]) -> Iterator[Any]:
    named = [(name, row[name]) for name in order if name in row]
    yield from itertools.combinations(named, 2)


def _covers(row: dict[str, Any], open_pairs: set[Any]) -> int:
    order = dict.fromkeys(Row._fields)
    return sum(pair in open_pairs for pair in _pairs_of(row, order))


def verify(
    backend: Any,
    case: Attention,
    arms: Sequence[str],
    info: Any = None,
    mutation: tuple[str, str] | None = None,
) -> dict[str, str]:
    """Every check of every arm; what is wrong of each that is.

    `info` specialises for another device than the one that runs; a mutation replaces a piece of
    every kernel text.
    """
    jobs: list[Any] = []
    for arm in arms:
        choice, job = choose(parse_arm(arm), arm, case, info or backend.info)
        assert isinstance(job, AttentionJob), (arm, choice.outcome)
        if mutation is not None:
            assert mutation[0] in job.text, mutation
            job = msgspec.structs.replace(job, text=job.text.replace(*mutation))
        jobs.append(job)
    request = Verify(device=backend.info, case=case, jobs=tuple(jobs), siblings=(), seed=SEED)
    wrong, seen = {}, set()
    for message in AttentionVerifier(backend, request).messages():
        if isinstance(message, Failed):
            wrong[message.arm] = message.reason
        elif isinstance(message, Verified):
            seen.add(message.arm)
            bad = [f"{check.name}: {check.detail}" for check in message.checks if not check.passed]
            if bad:
                wrong[message.arm] = "; ".join(bad)
    assert seen | set(wrong) == set(arms)
    return wrong


def product_arms(case: Attention, info: Any) -> list[str]:
    """Every arm family that computes the case, as `verify --all` has them."""
    families = (*FAMILIES, "flashdecode") if case.op == "attention" else FAMILIES[:3]
    return [
        name
        for name in families
        if not isinstance(choose(parse_arm(name), name, case, info)[0].outcome, Declined)
    ]


def replace(case: Attention, **fields: Any) -> Attention:
    return msgspec.structs.replace(case, **fields)
