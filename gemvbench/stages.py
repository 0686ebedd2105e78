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


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of attention launches for a number of cached tokens."""

    context: int
    stages: tuple[Stage, ...]
    ranges: Ranges
