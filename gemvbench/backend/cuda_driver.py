"""Whether to ask for CUDA at all: cheap, so that a machine without a GPU pays nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path

LIBRARY = "libcuda.so.1"
_LOADER_CACHE = Path("/etc/ld.so.cache")
_MULTIARCH = f"{platform.machine()}-linux-gnu"
_LOADER_FOLDERS = (
    f"/usr/lib/{_MULTIARCH}",
    f"/lib/{_MULTIARCH}",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")


def is_driver_installed() -> bool:
    """Whether the loader would find the driver's library, or a GPU shows without it.

    Nothing is loaded. In the second case CUDA does not start, and the reason is worth a line.
    """
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_LOADER_FOLDERS]
    if any((Path(folder) / LIBRARY).exists() for folder in folders if folder):
        return True
    if any(Path(file).exists() for file in _DEVICE_FILES):
        return True
    try:
        return LIBRARY.encode() in _LOADER_CACHE.read_bytes()
    except OSError:
        return False
