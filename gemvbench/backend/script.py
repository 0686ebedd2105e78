"""The script of the fake back end: devices, speeds by rule, and faults, as JSON.

    {"seed": 7,
     "devices": [{"id": "fake0", "kind": "gpu"}],
     "rules": [{"match": {"PACK": "2"}, "gbps": 12, "noise": 0.003}, {"gbps": 10}],
     "faults": [{"match": {"PACK": "3"}, "fault": "hang", "stage": "compile"}]}

`match` compares texts: "entry", "device", any constant of the kernel, and, at a launch, "k",
"n" and the "words" of a bare read. Of the rules that match, the first that names a value gives it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from gemvbench.device import DeviceInfo
from gemvbench.errors import UserError

FAKE_SCRIPT = "GEMVBENCH_FAKE"
"""Environment variable that names a script; then the fake is the only back end."""

Match = Mapping[str, str]
Stage = Literal["compile", "launch", "time"]
Kind = Literal[
    "compile_error",
    "crash",
    "hang",
    "out_of_memory",
    "wrong_last_row",
    "wrong_everywhere",
    "unwritten_row",
    "written_past_end",
    "wrong_when_timed",
]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ScriptedDevice(_Strict, frozen=True, kw_only=True):
    """A device to be listed; sizes in bytes."""

    id: str = "fake0"
    kind: Literal["cpu", "gpu"] = "cpu"
    memory: int = 8 << 30
    free: int = 0
    """What it says is free: more than `memory` is a lie, 0 the truth."""
    cache: int = 1 << 20
    units: int = 4
    max_workgroup: int = 1024
    capabilities: tuple[str, ...] = ()

    def info(self) -> DeviceInfo:
        return DeviceInfo(
            id=self.id,
            backend="fake",
            kind=self.kind,
            name=f"scripted {self.kind}",
            vendor="gemvbench",
            platform="fake",
            driver="1",
            version="1",
            compute_units=self.units,
            max_workgroup=self.max_workgroup,
            memory_bytes=self.memory,
            max_alloc_bytes=max(self.free, self.memory),
            free_bytes=self.free or self.memory,
            cache_bytes=self.cache,
            capabilities=self.capabilities,
        )


class Speed(_Strict, frozen=True, kw_only=True):
    """How a kernel's times come about."""

    gbps: float = 1.0
    overhead: float = 0.0
    """Seconds per launch beside the kernel's own time."""
    noise: float = 0.0
    """Standard deviation of the log of a leg's time, drawn for each leg."""
    offset: float = 0.0
    """The same, drawn once for each kernel and process."""
    drift: float = 0.0
    """Growth of the time per second of device time spent in the process."""
    slow_probability: float = 0.0
    slow_factor: float = 2.0
    slow_process_probability: float = 0.0
    """Drawn once for each process and size, whatever the kernel: S2's slow mode."""
    company: float = 1.0
    """Factor of the time while the process has loaded a GEMV kernel with other constants too."""
    host_clock: float = 1.0
    """Seconds on the host's clock for each second on the device's."""
    sm_mhz: int | None = None
    """Clock that the device tells after it ran the kernel; None where it tells nothing."""
    queued_ahead: bool = True
    kernel_times: bool = True


class Rule(_Strict, frozen=True, kw_only=True):
    """Values of Speed for the kernels that match; None leaves one to a later rule."""

    match: dict[str, str] = {}
    gbps: float | None = None
    overhead: float | None = None
    noise: float | None = None
    offset: float | None = None
    drift: float | None = None
    slow_probability: float | None = None
    slow_factor: float | None = None
    slow_process_probability: float | None = None
    company: float | None = None
    host_clock: float | None = None
    sm_mhz: int | None = None
    queued_ahead: bool | None = None
    kernel_times: bool | None = None


class Fault(_Strict, frozen=True, kw_only=True):
    """What goes wrong with kernels that match, at the stage where it can.

    Stage "launch" is any launch, "time" only a timed one. `after` lets so many matching events
    of a process pass first.
    """

    match: dict[str, str] = {}
    fault: Kind
    stage: Stage = "launch"
    after: int = 0


class Script(_Strict, frozen=True, kw_only=True):
    seed: int = 0
    devices: tuple[ScriptedDevice, ...] = (ScriptedDevice(),)
    listing: Literal["", "crash", "hang"] = ""
    """What happens after the devices have been listed."""
    rules: tuple[Rule, ...] = ()
    faults: tuple[Fault, ...] = ()

    def speed(self, facts: Match) -> Speed:
        values: dict[str, float | bool] = {}
        for rule in reversed(self.rules):
            if matches(rule.match, facts):
                named = msgspec.structs.asdict(rule)
                values |= {
                    name: value
                    for name, value in named.items()
                    if name != "match" and value is not None
                }
        return msgspec.convert(values, Speed)


def matches(match: Match, facts: Match) -> bool:
    return all(facts.get(name) == value for name, value in match.items())


@cache
def _read(path: Path, stamp: int) -> Script:
    return msgspec.json.decode(path.read_bytes(), type=Script)


def read_script() -> Script:
    """The script that the environment names.

    Raises:
        UserError: it cannot be read, or says something that no script can.
    """
    path = Path(os.environ[FAKE_SCRIPT])
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{FAKE_SCRIPT} names {path}, which is no script: {error}.") from error
