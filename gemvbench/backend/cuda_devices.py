"""CUDA devices: enumeration without a context, and what to say where there is none to use.

CuPy and CUDA's bindings are imported only where a driver is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gemvbench.backend import nvml
from gemvbench.backend.cublas import load_cublas
from gemvbench.backend.cuda_driver import is_driver_installed
from gemvbench.backend.torch_products import is_torch_installed
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError, Exit, UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"

# Numbers of cudaError_t.
_AMPERE = 8
"""Compute capability from which copies into shared memory run ahead."""
_HOPPER = 9
"""Compute capability from which blocks form clusters, copy in bulk, and launches may overlap."""
OUT_OF_MEMORY = 2
_DRIVER_TOO_OLD = 35
_UNAVAILABLE = 46
_NO_DEVICE = 100


def find_cuda_devices() -> list[DeviceInfo]:
    """Every GPU that CUDA shows, in its order; empty without a driver or a GPU.

    Raises:
        UserError: there is a driver, but CuPy is missing or does not suit it, or all GPUs
            are hidden.
    """
    if not is_driver_installed():
        return []
    try:
        from cuda.bindings import driver
        from cupy.cuda import runtime
    except ImportError as error:
        raise UserError(missing_package(str(error)), Exit.NO_DEVICE) from error
    count = _count_devices(runtime)
    if count == 0 and VISIBLE in os.environ and nvml.gpu_count() != 0:
        raise UserError(all_hidden(os.environ[VISIBLE]), Exit.NO_DEVICE)
    notes = visibility_notes(count, nvml.gpu_count(), os.environ.get(VISIBLE))
    return [_describe(runtime, driver, ordinal, notes) for ordinal in range(count)]


def ordinal_of(info: DeviceInfo) -> int:
    """CUDA's number of a device, from its id."""
    return int(info.id.removeprefix("cuda"))


def format_uuid(raw: bytes) -> str | None:
    """32 hex digits, as OpenCL's cl_khr_device_uuid gives them; None for anything else."""
    return raw.hex() if len(raw) == 16 else None


def format_pci(properties: Mapping[str, Any]) -> str:
    """PCI address as domain:bus:device.function; a GPU's is always function 0."""
    domain, bus, device = (properties[f"pci{part}ID"] for part in ("Domain", "Bus", "Device"))
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def format_version(number: int) -> str:
    """ "13.2" from CUDA's 13020."""
    return f"{number // 1000}.{number % 1000 // 10}"


def visibility_notes(visible: int, present: int | None, variable: str | None) -> tuple[str, ...]:
    """A note where the environment hides some of the GPUs."""
    if variable is None or not visible or present is None or present <= visible:
        return ()
    return (f"{VISIBLE}={variable} shows {visible} of {present} GPUs.",)


def missing_package(reason: str) -> str:
    """What to do where a package cannot be imported; CuPy's own text runs over many lines."""
    lines = [line.strip(" =") for line in reason.splitlines() if line.strip(" =")]
    return (
        f"CUDA is left out: CuPy or CUDA's bindings cannot be imported ({' '.join(lines[:1])}). "
        "Install them: pip install 'gemvbench[cuda]' for a driver of CUDA 13 (580 or newer), "
        "'gemvbench[cuda12]' for an older one."
    )


def all_hidden(variable: str) -> str:
    return (
        f"CUDA is left out: {VISIBLE}={variable!r} hides every GPU. Unset it, or name the GPUs "
        f"to use, for example {VISIBLE}=0."
    )


def runtime_problem(status: int, text: str, driver_version: int, runtime_version: int) -> str:
    """Why CUDA does not start, from the error and the versions of driver and CuPy."""
    if status == _DRIVER_TOO_OLD and driver_version:
        return (
            f"CUDA is left out: this driver supports CUDA {format_version(driver_version)}, and "
            f"the installed CuPy is built for {format_version(runtime_version)}. Update the "
            f"driver, or install the CuPy for it: pip install 'gemvbench[cuda12]' in place of "
            "[cuda] for a driver of CUDA 12."
        )
    return (
        f"CUDA is left out: it does not start ({text}). `nvidia-smi` shows whether the driver "
        "is loaded and its GPUs can be used from here."
    )


def open_problem(info: DeviceInfo, status: int, text: str) -> str:
    """Why a device that is there cannot be opened, and what to do."""
    if status == _UNAVAILABLE:
        return (
            f"Device {info.id} cannot be opened: another process holds it in exclusive mode, or "
            f"it allows none ({text}). `nvidia-smi` lists the processes; end them, or as root "
            f"`nvidia-smi -i {info.pci or ordinal_of(info)} -c DEFAULT`. --device chooses another."
        )
    if status == OUT_OF_MEMORY:
        return (
            f"Device {info.id} cannot be opened: its memory is full ({text}). `nvidia-smi` lists "
            "the processes that hold it; end them, or choose another --device."
        )
    return (
        f"Device {info.id} cannot be opened ({text}). `gemvbench devices` lists what is there; "
        "--device chooses another."
    )


def memory_problem(info: DeviceInfo, size: int, free: int) -> str:
    return (
        f"Device {info.id} has {free / 1e9:.2f} GB free, and {size / 1e9:.2f} GB more are needed "
        "at once. End the other processes on it (`nvidia-smi` lists them), choose a smaller "
        "--shape or model, or another --device."
    )


def _count_devices(runtime: Any) -> int:
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if error.status == _NO_DEVICE:
            return 0
        versions = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        raise UserError(
            runtime_problem(error.status, str(error), *versions), Exit.NO_DEVICE
        ) from error


def _describe(runtime: Any, driver: Any, ordinal: int, notes: tuple[str, ...]) -> DeviceInfo:
    properties = runtime.getDeviceProperties(ordinal)
    driver_api = f"CUDA {format_version(runtime.driverGetVersion())}"
    memory, pci = properties["totalGlobalMem"], format_pci(properties)
    free = nvml.free_memory(pci)  # CUDA would tell only with a context
    return DeviceInfo(
        id=f"cuda{ordinal}",
        backend="cuda",
        kind="gpu",
        name=properties["name"].decode(errors="replace").strip(),
        vendor="NVIDIA Corporation",
        platform="NVIDIA CUDA",
        driver=nvml.driver_version() or driver_api,
        version=f"CUDA {format_version(runtime.runtimeGetVersion())}, driver for {driver_api}",
        compute_units=properties["multiProcessorCount"],
        max_workgroup=properties["maxThreadsPerBlock"],
        memory_bytes=memory,
        max_alloc_bytes=memory,
        free_bytes=memory if free is None else min(free, memory),
        cache_bytes=properties["l2CacheSize"],
        local_bytes=properties.get("sharedMemPerBlockOptin", 0),
        capabilities=_capabilities(properties["major"]),
        uuid=_uuid(driver, ordinal),
        pci=pci,
        architecture=f"sm_{properties['major']}{properties['minor']}",
        notes=notes,
    )


def _capabilities(major: int) -> tuple[str, ...]:
    found = ["half_arithmetic"]
    if major >= _AMPERE:
        found.append("async_copy")
    if major >= _HOPPER:
        found += ["bulk_copy", "clusters", "dependent_launch"]
    if _has_cublas():
        found.append("cublas")
    if is_torch_installed():
        found.append("torch")
    return tuple(found)


def _has_cublas() -> bool:
    """One that is broken counts: its arms then fail with the reason."""
    try:
        return load_cublas() is not None
    except CompileError:
        return True


def _uuid(driver: Any, ordinal: int) -> str | None:
    """Not from CuPy's properties: it takes them for a C string, which ends at a zero byte."""
    driver.cuInit(0)
    result, device = driver.cuDeviceGet(ordinal)
    if result != driver.CUresult.CUDA_SUCCESS:
        return None
    result, uuid = driver.cuDeviceGetUuid(device)
    return format_uuid(uuid.bytes) if result == driver.CUresult.CUDA_SUCCESS else None
