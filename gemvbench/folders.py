"""Where this program keeps files of its own: records, and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

HOME = "GEMVBENCH_HOME"
"""Environment variable that puts everything under one folder."""


def records_folder() -> Path:
    return _folder("data") / "runs"


def binaries_folder() -> Path:
    return _folder("cache") / "kernels"


def _folder(kind: str) -> Path:
    if home := os.environ.get(HOME):
        return Path(home) / kind
    import platformdirs

    find = platformdirs.user_data_path if kind == "data" else platformdirs.user_cache_path
    return find("gemvbench", appauthor=False)
