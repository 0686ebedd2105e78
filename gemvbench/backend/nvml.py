"""NVIDIA's management library: the state of a GPU, however it is computed on.

Works for CUDA and OpenCL devices alike, by UUID or PCI address, and opens no context. Where
the library or the package (nvidia-ml-py) is absent, nothing is known and nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from gemvbench.gpu_state import GpuState

_REASONS = {
    0x002: "ApplicationsClocksSetting",
    0x004: "SwPowerCap",
    0x008: "HwSlowdown",
    0x010: "SyncBoost",
    0x020: "SwThermalSlowdown",
    0x040: "HwThermalSlowdown",
    0x080: "HwPowerBrakeSlowdown",
    0x100: "DisplayClockSetting",
    0x200: "BoardLimit",
    0x400: "Reliability",
}
"""nvmlClocksEventReason...; 1 is GpuIdle, which holds nothing back."""


def read_gpu_state(uuid_or_pci: str) -> GpuState:
    """Clocks, temperature, power and throttle reasons now; handles are kept between calls."""
    nvml, handle = _library(), _handle(uuid_or_pci)
    if nvml is None or handle is None:
        return GpuState()

    def ask(name: str, *args: int) -> Any:
        return _ask(nvml, name, handle, *args)

    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # drivers before 535
    return GpuState(
        sm_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        throttle_reasons=None if reasons is None else reason_names(reasons),
    )


def reason_names(bits: int) -> tuple[str, ...]:
    """NVML's names of what is set; a bit without a name is shown as a number."""
    known = [name for bit, name in _REASONS.items() if bits & bit]
    rest = bits & ~(1 | sum(_REASONS))
    return (*known, hex(rest)) if rest else tuple(known)


def driver_version() -> str | None:
    """Version of the NVIDIA driver, such as "580.159.03"."""
    nvml = _library()
    return None if nvml is None else _ask(nvml, "nvmlSystemGetDriverVersion")


def gpu_count() -> int | None:
    """GPUs in this machine, those included that CUDA_VISIBLE_DEVICES hides."""
    nvml = _library()
    return None if nvml is None else _ask(nvml, "nvmlDeviceGetCount")


def free_memory(uuid_or_pci: str) -> int | None:
    """Bytes of a GPU's memory that nobody holds."""
    nvml, handle = _library(), _handle(uuid_or_pci)
    memory = None if handle is None else _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else int(memory.free)


def nvml_uuid(uuid: str) -> str:
    """A UUID of 32 hex digits as NVML writes it: GPU-, and dashes."""
    ends = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return "GPU-" + "-".join(uuid[start:end] for start, end in ends)


@cache
def _library() -> Any:
    """The module, initialised, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@cache
def _handle(uuid_or_pci: str) -> Any:
    """NVML's handle of a GPU, or None."""
    nvml = _library()
    if nvml is None:
        return None
    if ":" in uuid_or_pci:
        return _ask(nvml, "nvmlDeviceGetHandleByPciBusId", uuid_or_pci)
    return _ask(nvml, "nvmlDeviceGetHandleByUUID", nvml_uuid(uuid_or_pci))


def _ask(nvml: Any, name: str, *args: Any) -> Any:
    """An answer, or None where this driver, package or GPU has none."""
    function: Callable[..., Any] | None = getattr(nvml, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except nvml.NVMLError:
        return None
