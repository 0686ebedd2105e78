"""Options of attention: cases from them, and the arms that an operation has."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence

from gemvbench.arm import AUTO, FAMILIES, Arm
from gemvbench.attention_case import CACHE_TYPES, LAYOUTS, OPERATIONS, Attention
from gemvbench.device import DeviceInfo
from gemvbench.errors import UserError
from gemvbench.libraries import LIBRARY_FAMILIES
from gemvbench.models import Heads, find_model

ALL_OPERATIONS = ("gemv", *OPERATIONS)
ALL_HEADS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256))
"""Elements of rows of K and V that are verified with --all."""
ALL_RATIOS = (1, 2, 4, 6, 8, 16)
_OPERATIONS = {name: family.operations for name, family in FAMILIES.items()} | {
    name: library.operations for name, library in LIBRARY_FAMILIES.items()
}
_ALL_CONTEXT = 77
_DEFAULT_MODEL = "deepseek-v2-lite"
_DEFAULT_CONTEXT = {True: "1024", False: "4096"}
_SHAPE = ("heads", "kv_heads", "head_dim", "v_dim")
_CACHE = ("kv", "k_type", "v_type", "kv_layout")
_ONLY_ATTENTION = (*_SHAPE, *_CACHE, "context", "capacity", "q_type")


def default_baseline(op: str) -> str:
    return "base" if op == "gemv" else "per_head"


def operations_of(arm: Arm) -> tuple[str, ...]:
    """What an arm computes; a user's file and a host library compute gemv."""
    if arm.family == AUTO:
        return ALL_OPERATIONS
    return _OPERATIONS.get(arm.family, ("gemv",))


def check_operation(arms: Sequence[Arm], op: str) -> None:
    """Raises UserError for an unknown operation, or an arm that computes another one."""
    if op not in ALL_OPERATIONS:
        raise UserError(f"--op {op!r} is unknown; use {', '.join(ALL_OPERATIONS)}.")
    for arm in arms:
        if op not in operations_of(arm):
            known = [name for name, operations in _OPERATIONS.items() if op in operations]
            raise UserError(
                f"Arm {arm.full_name} computes {', '.join(operations_of(arm))}, not {op}. Arms of "
                f"{op} are {', '.join(known)} and {AUTO}; `gemvbench list` shows their axes."
            )


def refuse_attention_options(options: argparse.Namespace) -> None:
    """Raises UserError where an option of attention was given to gemv."""
    given = [name for name in _ONLY_ATTENTION if getattr(options, name, None) is not None]
    if given or getattr(options, "all", False):
        name = (given or ["all"])[0].replace("_", "-")
        raise UserError(f"--{name} is for attention: give --op attention, kq or av with it.")


def attention_cases(options: argparse.Namespace, device: DeviceInfo) -> list[Attention]:
    """A case for each context, from a model or from numbers of heads; the product with --all.

    Raises:
        UserError: options that exclude each other, an unknown model, or a shape without a kernel.
    """
    if options.shape:
        raise UserError(
            f"--shape is for gemv; {options.op} takes --heads, --kv-heads, --head-dim and "
            "--context, or --model."
        )
    if getattr(options, "all", False):
        return _product(options)
    heads = _heads(options)
    contexts = parse_contexts(options.context or _DEFAULT_CONTEXT[device.is_cpu])
    common = {"op": options.op, "q": options.q_type or "f16", **_types(options)}
    return [
        Attention(
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            v_dim=heads.v_dim,
            context=context,
            capacity=options.capacity or 0,
            layout=options.kv_layout or "tkd",
            **common,
        )
        for context in contexts
    ]


def parse_contexts(text: str) -> list[int]:
    """Tokens from "4096", "128,1000", or "128:16384", which doubles from one to the other.

    Raises:
        UserError: anything else.
    """
    contexts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?::(\d{1,9}))?\s*", part)
        if match is None:
            raise UserError(
                f"--context {text[:80]!r} is no number of tokens: write 4096, 128,1000, or "
                "128:16384 to double from 128 to 16384."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1 or last < first:
            raise UserError(f"--context {part.strip()}: it has to begin at 1 or more, and to grow.")
        while first <= last:
            contexts.append(first)
            first *= 2
    return list(dict.fromkeys(contexts))


def _heads(options: argparse.Namespace) -> Heads:
    """The shape asked for by number, a model's, or DeepSeek's."""
    given = [name for name in _SHAPE if getattr(options, name, None) is not None]
    if options.model and given:
        raise UserError(f"--model and --{given[0].replace('_', '-')} exclude each other.")
    if given:
        if options.heads is None or options.head_dim is None:
            raise UserError(
                "A shape of attention needs --heads and --head-dim; --kv-heads is as many as "
                "--heads and --v-dim as long as --head-dim where they are not given."
            )
        return Heads(
            heads=options.heads,
            kv_heads=options.heads if options.kv_heads is None else options.kv_heads,
            head_dim=options.head_dim,
            v_dim=options.head_dim if options.v_dim is None else options.v_dim,
        )
    model = find_model(options.model or _DEFAULT_MODEL)
    if model.attention is None:
        raise UserError(f"The catalogue has no attention of {model.id}; give --heads and so on.")
    return model.attention


def _types(options: argparse.Namespace) -> dict[str, str]:
    both = options.kv or "f16"
    return {"k_type": options.k_type or both, "v_type": options.v_type or both}


def _product(options: argparse.Namespace) -> list[Attention]:
    """Head sizes, ratios, cache types and layouts, each with each; two KV heads."""
    given = [
        name for name in (*_SHAPE, *_CACHE, "model") if getattr(options, name, None) is not None
    ]
    if given:
        raise UserError(f"--all verifies every one; leave --{given[0].replace('_', '-')} out.")
    contexts = parse_contexts(options.context or str(_ALL_CONTEXT))
    return [
        Attention(
            op=options.op,
            heads=2 * ratio,
            kv_heads=2,
            head_dim=k,
            v_dim=v,
            context=context,
            layout=layout,
            k_type=kind,
            v_type=kind,
            q=options.q_type or "f16",
        )
        for (k, v), ratio, kind, layout, context in itertools.product(
            ALL_HEADS, ALL_RATIOS, CACHE_TYPES, LAYOUTS, contexts
        )
    ]
