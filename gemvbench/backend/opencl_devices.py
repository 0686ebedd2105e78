"""OpenCL devices: enumeration, ids, and what a compile probe finds they can do."""

from __future__ import annotations

import ctypes
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyopencl as cl

from gemvbench.backend.clblast import is_clblast_installed
from gemvbench.backend.icd import all_platforms_shown
from gemvbench.device import DeviceInfo

NO_CACHE: Any = False
"""PyOpenCL's own cache is not used: it would hide a compiler from the checks here."""

_PROBES = {
    "half_native": """
        #pragma OPENCL EXTENSION cl_khr_fp16 : enable
        __kernel void probe(__global const half8* a, __global float8* b) {
            b[0] = convert_float8(a[0]);
        }""",
    "half_f16c": """
        typedef __fp16 fp16_v8 __attribute__((ext_vector_type(8)));
        __kernel void probe(__global const ushort8* a, __global float8* b) {
            b[0] = __builtin_convertvector(__builtin_astype(a[0], fp16_v8), float8);
        }""",
    # What the kernels do with halves, since a driver may have the type without its functions.
    "half_arithmetic": """
        #pragma OPENCL EXTENSION cl_khr_fp16 : enable
        __kernel void probe(__global const uint4* a, __global float8* b) {
            half8 v = as_half8(a[0]) * as_half8(a[1]) + as_half8(a[2]);
            v.s0 += (half)b[1].s0;
            b[0] = vload_half8(0, (const __private half *)&v);
        }""",
}
_DEVICE_UUID_KHR = 0x106A
_F16C = "half_f16c"
_VENDORS = {
    "nvidia": "nvcl",
    "advanced micro devices": "amdcl",
    "amd": "amdcl",
    "intel": "intelcl",
    "apple": "applecl",
    "arm": "armcl",
    "qualcomm": "qualcommcl",
}


@dataclass(frozen=True)
class Found:
    """A device as enumerated, nothing compiled yet."""

    id: str
    platform: cl.Platform
    device: cl.Device


def find_devices() -> list[Found]:
    """Every OpenCL device of every driver that can be found."""
    with all_platforms_shown():
        try:
            platforms = cl.get_platforms()
        except cl.LogicError:  # the loader's way to say that there is no platform
            platforms = []
    used: Counter[str] = Counter()
    return [
        Found(
            _numbered(device_stem(platform.name, device.vendor, _is_cpu(device)), used),
            platform,
            device,
        )
        for platform in platforms
        for device in _devices_of(platform)
    ]


def device_stem(platform: str, vendor: str, cpu: bool) -> str:
    """Start of a device id: `pocl`, `intel` for CPUs; `nvcl`, `amdcl`, ... plus a number."""
    if "portable computing language" in platform.lower():
        return "pocl"
    if cpu and "intel" in platform.lower():
        return "intel"
    for name, stem in _VENDORS.items():
        if name in vendor.lower():
            return stem
    return (re.sub(r"[^a-z]", "", vendor.lower())[:12] or "unknown") + "cl"


def _numbered(stem: str, used: Counter[str]) -> str:
    number = used[stem]
    used[stem] += 1
    numbered = number > 0 or (stem.endswith("cl") and stem != "pocl")
    return f"{stem}{number}" if numbered else stem


def _devices_of(platform: cl.Platform) -> list[cl.Device]:
    try:
        return list(platform.get_devices())
    except cl.RuntimeError:  # a platform without devices
        return []


def describe(found: Found) -> DeviceInfo:
    """What the driver tells of a device and what a compile probe finds."""
    platform, device = found.platform, found.device
    cpu = _is_cpu(device)
    extensions = device.extensions.split()
    return DeviceInfo(
        id=found.id,
        backend="opencl",
        kind="cpu" if cpu else "gpu",
        name=device.name.strip(),
        vendor=device.vendor.strip(),
        platform=platform.name.strip(),
        driver=device.driver_version.strip(),
        version=platform.version.strip(),
        compute_units=device.max_compute_units,
        max_workgroup=device.max_work_group_size,
        local_bytes=device.local_mem_size,
        memory_bytes=device.global_mem_size,
        max_alloc_bytes=device.max_mem_alloc_size,
        free_bytes=_free_bytes(device.global_mem_size, cpu),
        cache_bytes=max(device.global_mem_cache_size, _system_cache() if cpu else 0),
        capabilities=(*_probe(device, cpu), *(("clblast",) if is_clblast_installed() else ())),
        uuid=_uuid(device, extensions),
        pci=_pci(device, extensions),
    )


def _free_bytes(memory: int, cpu: bool) -> int:
    """The device's memory, or for a CPU what the system can still give of it."""
    try:
        text = Path("/proc/meminfo").read_text() if cpu else ""
    except OSError:
        text = ""
    match = re.search(r"MemAvailable:\s*(\d+) kB", text)
    return min(memory, int(match[1]) * 1024) if match else memory


def _probe(device: cl.Device, cpu: bool) -> tuple[str, ...]:
    context = cl.Context([device])
    return tuple(
        name
        for name, text in _PROBES.items()
        if (name != _F16C or (cpu and _has_f16c())) and _compiles(context, text)
    )


def _has_f16c() -> bool:
    """Without the instructions the conversion compiles all the same, into calls that crash."""
    try:
        return "f16c" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


def _compiles(context: cl.Context, text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            cl.Program(context, text).build(cache_dir=NO_CACHE)
    except cl.Error:
        return False
    return True


def _uuid(device: cl.Device, extensions: list[str]) -> str | None:
    """The Khronos device UUID; PyOpenCL has no name for the query, so the loader is asked."""
    if "cl_khr_device_uuid" not in extensions:
        return None
    value = (ctypes.c_ubyte * 16)()
    loader = ctypes.CDLL(cl._cl.__file__)  # resolves to the loader that PyOpenCL linked
    query = loader.clGetDeviceInfo
    query.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    status = query(device.int_ptr, _DEVICE_UUID_KHR, 16, value, None)
    return bytes(value).hex() if status == 0 else None


def _pci(device: cl.Device, extensions: list[str]) -> str | None:
    """PCI address as domain:bus:device.function, where NVIDIA's query tells it."""
    if "cl_nv_device_attribute_query" not in extensions:
        return None
    try:
        domain: Any = device.get_info(cl.device_info.PCI_DOMAIN_ID_NV)
        bus: Any = device.get_info(cl.device_info.PCI_BUS_ID_NV)
        slot: Any = device.get_info(cl.device_info.PCI_SLOT_ID_NV)
    except cl.Error:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"  # a GPU's own function is 0


def _is_cpu(device: cl.Device) -> bool:
    return bool(device.type & cl.device_type.CPU)


def _system_cache() -> int:
    """The largest CPU cache of this machine, in bytes; drivers often report a smaller one."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG])", path.read_text().strip())
        if match:
            sizes.append(int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]])
    return max(sizes)
