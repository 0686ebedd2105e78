"""Compiled kernels on disk: what is damaged, stale or open to change is not used."""

from __future__ import annotations

from gemvbench.backend import binaries


def test_what_is_stored_is_loaded() -> None:
    path = binaries.binary_path("text", "compiler 1")
    assert binaries.load(path) is None
    binaries.store(path, b"binary")
    assert binaries.load(path) == b"binary"


def test_the_key_is_the_text_and_the_compiler() -> None:
    paths = {binaries.binary_path(text, tool) for text in "ab" for tool in ("1", "2")}
    assert len(paths) == 4


def test_a_damaged_binary_is_none_and_is_replaced() -> None:
    path = binaries.binary_path("text", "compiler")
    assert path is not None
    binaries.store(path, b"x" * 1000)
    whole = path.read_bytes()
    for damaged in (whole[:500], whole[:-1], b"", whole[:40] + b"?" + whole[41:], b"garbage"):
        path.write_bytes(damaged)
        assert binaries.load(path) is None
    binaries.store(path, b"new")
    assert binaries.load(path) == b"new"


def test_a_text_that_still_includes_something_is_not_kept() -> None:
    """The header could change and the text would not."""
    for include in ("#include <cuda_fp16.h>", '  # include "other.h"'):
        assert binaries.binary_path(f"int a;\n{include}\n", "compiler") is None
    binaries.store(None, b"x")
    assert binaries.load(None) is None
