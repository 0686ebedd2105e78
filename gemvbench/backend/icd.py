"""Find OpenCL drivers, registered or not, and show them all to the loader.

The loader in PyOpenCL's wheel (ocl-icd) adds the PoCL beside it by itself as long as
OCL_ICD_VENDORS is unset or names a directory. So: one private directory with the machine's
own entries copied in, and one entry for each library found elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemvbench.errors import UserError

VARIABLE = "OCL_ICD_VENDORS"
_SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
)
_NVIDIA = "libnvidia-opencl.so.1"


@contextmanager
def all_platforms_shown() -> Iterator[None]:
    """Point the loader at every driver found, while the platforms are queried first.

    A user's own OCL_ICD_VENDORS that names a single file is left as it is.

    Raises:
        UserError: no room for a folder of a few lines.
    """
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="gemvbench-icd-"))
    try:
        write_entries(folder, Path(named) if named else _SYSTEM_VENDORS)
        os.environ[VARIABLE] = str(folder)
        yield
    except OSError as error:
        raise UserError(
            f"The list of OpenCL drivers cannot be written to {folder}: {error.strerror}. "
            "Free some space, or point TMPDIR at a folder that can be written."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if named is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = named


def write_entries(folder: Path, registered: Path) -> None:
    """Copy the registered entries and add one for each unregistered library."""
    known = ""
    for entry in sorted(registered.glob("*.icd")):
        try:
            text = entry.read_text(errors="replace").strip()
        except OSError:
            continue  # a dead link or a folder is no driver
        (folder / entry.name).write_text(text + "\n")
        known += text + "\n"
    for name, library in find_unregistered().items():
        if Path(library).name not in known:
            (folder / f"{name}.icd").write_text(library + "\n")


def find_unregistered() -> dict[str, str]:
    """Driver libraries that packages and containers leave without a usable entry."""
    found = {}
    intel = Path(sys.prefix) / "lib" / "libintelocl.so"
    if intel.exists():
        found["intel"] = str(intel)
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_LIBRARY_FOLDERS]
    for folder in filter(None, folders):
        if (library := Path(folder) / _NVIDIA).exists():
            found["nvidia"] = str(library)
            break
    return found
