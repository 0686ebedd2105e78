"""asv's machine file: this machine's entry gets its GPU and driver, all others stay as they are.

Extra keys of an entry become selectors on asv's page, so each is a string that stays the same
until the hardware or its driver changes.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gemvbench.device import DeviceInfo
from gemvbench.environment import cpu_name
from gemvbench.errors import UserError
from gemvbench.folders import write_whole

MACHINE_FILE = "GEMVBENCH_ASV_MACHINE"
"""Environment variable that names another file than asv's own."""

_VERSION = 1
_NONE = "none"


def machine_file(given: str) -> Path:
    """The file to write: the one given, else that of the environment, else asv's own."""
    return Path(given or os.environ.get(MACHINE_FILE) or "~/.asv-machine.json").expanduser()


def merge_machine(path: Path, devices: Iterable[DeviceInfo]) -> dict[str, str]:
    """Write this machine's GPU and driver into its entry, and return the entry.

    What asv asks for itself (`asv machine --yes`) is filled in where it is missing.

    Raises:
        UserError: a file that is no machine file of asv's version 1; it is left as it is.
    """
    machines = _read(path)
    name = platform.node()
    entry = _own_values(name) | machines.get(name, {}) | gpu_values(devices)
    try:
        write_whole(path, json.dumps({**machines, name: entry, "version": _VERSION}, indent=4))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from error
    return entry


def gpu_values(devices: Iterable[DeviceInfo]) -> dict[str, str]:
    """GPU and driver; one GPU seen by two back ends counts once, and "none" is a value too."""
    gpus: dict[str, DeviceInfo] = {}
    for device in devices:
        if not device.is_cpu:
            gpus.setdefault(device.memory, device)
    return {
        "gpu": ", ".join(sorted({gpu.name for gpu in gpus.values()})) or _NONE,
        "driver": ", ".join(sorted({gpu.driver for gpu in gpus.values()})) or _NONE,
    }


def _own_values(name: str) -> dict[str, str]:
    """The keys of asv's own, as far as they can be told without asv."""
    return {
        "machine": name,
        "os": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "cpu": cpu_name(),
        "num_cpu": str(os.cpu_count()),
        "ram": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024),
    }


def _read(path: Path) -> dict[str, dict[str, str]]:
    """Entries by machine; a file that is not there has none."""
    try:
        machines = json.loads(path.read_text(encoding="utf-8"))
        version = machines.pop("version")
        found = msgspec.convert(machines, dict[str, dict[str, str]], strict=False)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError, KeyError, msgspec.MsgspecError) as why:
        raise UserError(
            f"{path} cannot be read as asv's machine file ({type(why).__name__}: {why}); it was "
            "left as it is. Repair it or move it away, then run this again."
        ) from why
    if version != _VERSION:
        raise UserError(
            f"{path} is a machine file of asv in version {version}, not {_VERSION}; it was left as "
            "it is. `asv update` brings an older one up to date."
        )
    return found
