"""Compiled kernels on disk, so that every block runs the very binary that was verified.

A key is a hash of the whole kernel text and of the compiler and device: the text holds its
headers and constants, so there is nothing else that could change what comes out. A text that
still includes something is not kept. A file starts with the hash of its content: drivers crash
on a damaged binary.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from gemvbench.folders import binaries_folder, write_whole

_LEFT_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b", re.MULTILINE)


def binary_path(text: str, *compiler: str) -> Path | None:
    """The file of a binary, by all that its compilation depends on; None where that is open."""
    if _LEFT_INCLUDE.search(text):
        return None
    name = hashlib.sha256("\0".join([*compiler, text]).encode()).hexdigest()
    return binaries_folder() / f"{name}.bin"


def load(path: Path | None) -> bytes | None:
    """The binary, or None where there is none or it is damaged."""
    try:
        raw = path.read_bytes() if path else b""
    except OSError:
        return None
    digest, binary = raw[:32], raw[32:]
    return binary if raw and hashlib.sha256(binary).digest() == digest else None


def store(path: Path | None, binary: bytes) -> None:
    """Write in one step, so that no reader sees half a file; a full disk only costs time."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        write_whole(path, hashlib.sha256(binary).digest() + binary)
