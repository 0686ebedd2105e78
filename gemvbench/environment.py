"""What a record says of the machine and the software it was made with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_PACKAGES = (
    "numpy",
    "scipy",
    "pyopencl",
    "pocl-binary-distribution",
    "intel-opencl-rt",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "torch",
    "pyclblast",
)


def describe_environment() -> dict[str, str]:
    """Strings by name; what cannot be found out is left out."""
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "commit": _commit(),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {name: text for name, text in found.items() if text}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str:
    """Commit of the checkout the package lies in, marked where the tree is dirty."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stdout.strip() if shown.returncode == 0 else ""
