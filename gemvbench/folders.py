"""Where this program keeps files of its own: records, tuning tables and compiled kernels."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

HOME = "GEMVBENCH_HOME"
"""Environment variable that puts everything under one folder."""


def records_folder() -> Path:
    return _folder("data") / "runs"


def tables_folder() -> Path:
    """Tuning tables that `gemvbench tune` made here."""
    return _folder("data") / "tuning"


def binaries_folder() -> Path:
    return _folder("cache") / "kernels"


def _folder(kind: str) -> Path:
    if home := os.environ.get(HOME):
        return Path(home) / kind
    import platformdirs

    find = platformdirs.user_data_path if kind == "data" else platformdirs.user_cache_path
    return find("gemvbench", appauthor=False)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file at once: whoever reads it, or ends this process, finds the old or the new one.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
