"""Operands that are made on the device: generated elements, and rotated copies of them."""

from __future__ import annotations

import math

import numpy as np

from gemvbench.backend.base import Backend, Buffer, Launch
from gemvbench.case import ITEM_BYTES
from gemvbench.messages import Layout
from gemvbench.source import assemble

_GROUP = 256


def fill_values(
    backend: Backend,
    buffer: Buffer,
    dtype: str,
    count: int,
    *,
    kind: str = "random",
    offset: int = 0,
    seed: int,
    stream: int,
) -> None:
    """The first `count` elements of a stream, from byte `offset` of a buffer on."""
    kernel = backend.compile(inputs_text(backend, dtype, kind), "fill_values")
    args = (
        buffer,
        np.uint64(count),
        np.uint64(0),
        np.uint64(offset // ITEM_BYTES[dtype]),
        np.uint32(seed),
        np.uint32(stream),
        np.uint32(1),
        np.uint32(0),
    )
    backend.run([Launch(kernel, math.ceil(count / _GROUP), _GROUP, args)])


def copy_turns(backend: Backend, pool: Buffer, layout: Layout, lead: int = 0) -> None:
    """All rotated copies from the first, which lies at byte `lead`."""
    repeat(backend, pool, lead, layout.stride, 1, layout.turns)


def repeat(backend: Backend, buffer: Buffer, start: int, size: int, made: int, wanted: int) -> None:
    """Pieces of `size` bytes again and again from byte `start` on, of which `made` are there."""
    while made < wanted:
        more = min(made, wanted - made)
        backend.copy(buffer, start, start + made * size, more * size)
        made += more


def inputs_text(backend: Backend, dtype: str, kind: str = "random") -> str:
    """The generator's kernels for one type and kind of values."""
    constants = (("TYPE", f"TYPE_{dtype.upper()}"), ("KIND", f"KIND_{kind.upper()}"))
    return assemble(backend.info.kernel_file("inputs"), constants)
