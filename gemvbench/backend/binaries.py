"""Compiled kernels on disk, so that every block runs the very binary that was verified.

A key is a hash of the whole kernel text and of the compiler and device: the text holds its
headers and constants, so there is nothing else that could change what comes out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from gemvbench.folders import binaries_folder


def binary_path(*parts: str) -> Path:
    """The file of a binary, by everything that its compilation depends on."""
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return binaries_folder() / f"{name}.bin"


def load(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def store(path: Path, binary: bytes) -> None:
    """Write in one step, so that no reader sees half a file; a full disk only costs time."""
    if path.exists():
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(binary)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise
