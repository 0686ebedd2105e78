"""Kernels that one call of an arm runs one after the other."""

from __future__ import annotations

import msgspec


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a call: an entry of the arm's text, and its geometry."""

    entry: str
    workgroups: int
    workgroup_size: int
    local_bytes: int = 0
    """Shared memory that a workgroup asks for beside what its text declares; CUDA alone."""
    is_dependent: bool = False
    """It may begin before the launch before it has ended; CUDA alone."""


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of a cache are split over workgroups: run-time arguments of attention.

    k_chunk, v_chunk: tokens of a range, of K and of V; splits: ranges of V, whose partial
    results a last stage combines.
    """

    k_chunk: int
    v_chunk: int
    splits: int


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm of attention may do that sums in FP32 do not: verification allows for it.

    quantises_q: it quantises Q itself, and is held against the product with that Q.
    weight: relative error of a weight of the softmax where it is multiplied.
    least: weights below it, as a part of the largest, may come out as 0.
    y: type in which the output is stored.
    """

    quantises_q: bool = False
    weight: float = 0.0
    least: float = 2.0**-126
    y: str = "f32"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of attention launches for a number of cached tokens."""

    context: int
    stages: tuple[Stage, ...]
    ranges: Ranges
