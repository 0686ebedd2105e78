"""CUDA through CuPy: NVRTC cubins, plain cudaMalloc, one stream, timed legs in graphs.

Every CUDA call is checked by CuPy where it is made, and every method waits for its work, so
an error of the device is raised by the method that caused it and names CUDA's error. One that
poisons the context ends the worker process; nothing here tries to go on.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
from cuda.bindings import driver as bindings
from cupy.cuda import (
    Device,
    Event,
    Memory,
    MemoryPointer,
    Stream,
    driver,
    get_elapsed_time,
    runtime,
)
from cupy.cuda.function import Module
from numpy.typing import NDArray

from gemvbench import __version__
from gemvbench.attention_case import Attention
from gemvbench.backend import binaries, nvml
from gemvbench.backend.base import Buffer, Kernel, Launch, Timing
from gemvbench.backend.cublas import WORKSPACE_BYTES, CublasGemm, CublasGemv
from gemvbench.backend.cuda_devices import OUT_OF_MEMORY, memory_problem, open_problem, ordinal_of
from gemvbench.backend.graph_plan import cut, find_period
from gemvbench.backend.nvrtc import compile_cubin
from gemvbench.backend.torch_attention import TorchAttention
from gemvbench.backend.torch_products import TorchProduct
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError, Exit, UserError
from gemvbench.gpu_state import GpuState

CACHED_NODES = 1 << 17
"""Kernel nodes in all graphs kept; the least used go first."""

_GATE_LIMIT_NS = 250_000_000
"""A held device goes on after this long, so that no mistake here can hang it."""

_QUEUED_AHEAD = 512
"""Launches that wait in a stream without blocking the host; a driver holds about twice as many."""

_GATE = """
extern "C" __global__ void gate(const volatile unsigned *opened, unsigned ticket,
                                unsigned long long limit_ns) {
    unsigned long long started, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(started));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (*opened != ticket && now - started < limit_ns);
}
"""

_C_TYPES: dict[str, type] = {"u4": ctypes.c_uint32, "u8": ctypes.c_uint64, "f4": ctypes.c_float}
"""Of scalar arguments, by NumPy's code."""

# Numbers of CUresult: a binary that cannot be used here, or without the entry.
_UNUSABLE = (200, 209, 218, 222, 303)
_NOT_FOUND = 500


class CudaBackend:
    """One CUDA device with one stream, beside the default one and independent of it."""

    def __init__(self, info: DeviceInfo, *, graphs: bool = True) -> None:
        self.info = info
        self._time_graphs = graphs
        try:
            self._device = Device(ordinal_of(info))
            self._device.use()
            self._stream = Stream(non_blocking=True)
            self._start, self._end = Event(), Event()
            runtime.memGetInfo()
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            raise UserError(open_problem(info, error.status, str(error)), Exit.NO_DEVICE) from error
        self._graphs = _GraphCache(self._stream)
        self._gate: _Gate | None = None

    def compile(self, text: str, entry: str) -> Kernel:
        self._device.use()
        cubin, module = self._load(text)
        try:
            return Kernel(entry, module.get_function(entry), cubin)
        except driver.CUDADriverError as error:
            if error.status != _NOT_FOUND:
                raise
            raise CompileError(
                f'There is no kernel named {entry}; it has to be declared extern "C" __global__.'
            ) from error

    def load_library(self, name: str, dtype: str) -> Kernel:
        """A product of cuBLAS or torch takes the place of a kernel's function."""
        self._device.use()
        if name.startswith("torch"):
            return Kernel(name, TorchProduct(name, dtype, ordinal_of(self.info), self._stream))
        kind = {"cublas": CublasGemm, "cublas_gemv": CublasGemv}[name]
        return Kernel(name, kind(dtype, self._stream, self.alloc(WORKSPACE_BYTES)))

    def load_attention(self, name: str, case: Attention) -> Kernel:
        self._device.use()
        return Kernel(name, TorchAttention(name, case, ordinal_of(self.info), self._stream))

    def alloc(self, size: int) -> Buffer:
        self._device.use()
        try:
            return MemoryPointer(Memory(size), 0)
        except runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            text = memory_problem(self.info, size, int(runtime.memGetInfo()[0]))
            raise UserError(text, Exit.NO_DEVICE) from error

    def upload(self, array: NDArray[Any]) -> Buffer:
        source = np.ascontiguousarray(array)
        buffer = self.alloc(source.nbytes)
        self._copy(buffer.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
        return buffer

    def write(self, buffer: Buffer, array: NDArray[Any], offset: int) -> None:
        source = np.ascontiguousarray(array)
        self._copy(
            buffer.ptr + offset, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice
        )

    def download(self, buffer: Buffer, dtype: Any, count: int, offset: int = 0) -> NDArray[Any]:
        array = np.empty(count, dtype)
        source = buffer.ptr + offset
        self._copy(array.ctypes.data, source, array.nbytes, runtime.memcpyDeviceToHost)
        return array

    def fill(self, buffer: Buffer, pattern: int, size: int) -> None:
        self._device.use()
        # CuPy has no memset of words.
        (result,) = bindings.cuMemsetD32Async(buffer.ptr, pattern, size // 4, self._stream.ptr)
        driver.check_status(int(result))
        self._stream.synchronize()

    def copy(self, buffer: Buffer, source: int, target: int, size: int) -> None:
        start = buffer.ptr
        self._copy(start + target, start + source, size, runtime.memcpyDeviceToDevice)

    def address(self, buffer: Buffer) -> int:
        return int(buffer.ptr)

    def run(self, launches: Sequence[Launch]) -> None:
        self._device.use()
        for launch in launches:
            _enqueue(launch, self._stream)
        self._stream.synchronize()

    def time(self, launches: Sequence[Launch]) -> Timing:
        """The whole sequence, as graphs queued behind a closed gate or launch by launch.

        What is timed lies between two events around all graphs: the start of the first graph
        and the step from one to the next are inside. `enqueue` is the queueing alone; capture
        is done before, and most graphs come from the cache. Launch by launch, the gate opens
        when as much is queued as a stream holds, and the host has to keep ahead from there.
        """
        self._device.use()
        stream = self._stream
        graphs = self._graphs.get(launches) if self._time_graphs else []
        ahead = 0 if self._time_graphs else min(len(launches), _QUEUED_AHEAD)
        gate = self._gate = self._gate or _Gate(self._load(_GATE)[1])
        gate.hold(stream)
        try:
            started = time.perf_counter()
            self._start.record(stream)
            for graph in graphs:
                graph.launch(stream)
            for launch in launches[:ahead]:
                _enqueue(launch, stream)
            whole = bool(graphs) or ahead == len(launches)
            if whole:
                self._end.record(stream)
            queued_ahead = whole and not self._start.done
        finally:
            released = time.perf_counter()
            gate.open()
        if not whole:
            for launch in launches[ahead:]:
                _enqueue(launch, stream)
            self._end.record(stream)
        queued = time.perf_counter()
        stream.synchronize()
        finished = time.perf_counter()
        return Timing(
            timeline=get_elapsed_time(self._start, self._end) * 1e-3,
            kernel=None,
            host=finished - released,
            enqueue=queued - started,
            queued_ahead=queued_ahead,
        )

    def state(self) -> GpuState | None:
        return None if self.info.uuid is None else nvml.read_gpu_state(self.info.uuid)

    def _load(self, text: str) -> tuple[bytes, Module]:
        """The cubin of a text, from the cache where there is one that this driver takes."""
        architecture = self.info.architecture or ""
        toolchain = _toolchain()
        path = binaries.binary_path(text, "cuda", architecture, toolchain) if toolchain else None
        cubin = binaries.load(path)
        if cubin is not None:
            with suppress(CompileError):
                return cubin, _load_module(cubin)
        cubin = compile_cubin(text, architecture)
        module = _load_module(cubin)
        binaries.store(path, cubin)
        return cubin, module

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        self._device.use()
        runtime.memcpyAsync(target, source, size, kind, self._stream.ptr)
        self._stream.synchronize()


class _GraphCache:
    """Graphs by what they do: functions, geometry and the values of all arguments.

    A key by value stays right whatever becomes of the buffers: memory given back and allocated
    again at the same address is the same argument. So no graph keeps a buffer alive; it does
    keep its functions, as their addresses are in the key.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._entries: OrderedDict[bytes, tuple[Any, list[Launch], int]] = OrderedDict()
        self._nodes = 0

    def get(self, launches: Sequence[Launch]) -> list[Any]:
        """Instantiated graphs that run the sequence, in order."""
        period = find_period([id(launch) for launch in launches])
        keys = [_key(launch) for launch in launches[:period]]
        # Any launch can begin the ring, as long as it's the same one every time.
        begin = min(range(period), key=keys.__getitem__) if period < len(launches) else 0
        ring = [*launches[begin:period], *launches[:begin]]
        keys = [*keys[begin:], *keys[:begin]]
        entry = (period - begin) % period
        graphs: dict[tuple[int, int], Any] = {}
        pieces = [(piece.first, piece.count) for piece in cut(len(launches), period, entry)]
        for first, count in dict.fromkeys(pieces):
            places = [(first + step) % period for step in range(count)]
            digest = hashlib.blake2b(b"".join([keys[place] for place in places])).digest()
            graphs[first, count] = self._get(digest, [ring[place] for place in places])
        return [graphs[piece] for piece in pieces]

    def _get(self, digest: bytes, launches: list[Launch]) -> Any:
        if digest in self._entries:
            self._entries.move_to_end(digest)
            return self._entries[digest][0]
        graph = _capture(launches, self._stream)
        functions = {id(launch.kernel.handle): launch.kernel.handle for launch in launches}
        self._entries[digest] = graph, list(functions.values()), len(launches)
        self._nodes += len(launches)
        while self._nodes > CACHED_NODES and len(self._entries) > 1:
            self._nodes -= self._entries.popitem(last=False)[1][2]
        return graph


class _Gate:
    """Holds the stream in a one-thread kernel until a word of host memory changes.

    Not a wait of the stream on a value: this one ends by itself, so a call that blocks while
    the device is held costs a quarter of a second and `queued_ahead`, never a deadlock.
    """

    def __init__(self, module: Module) -> None:
        self._function = module.get_function("gate")
        self._address = runtime.hostAlloc(4, runtime.hostAllocMapped)
        self._word = ctypes.c_uint32.from_address(self._address)
        self._word.value = self._ticket = 0

    def hold(self, stream: Stream) -> None:
        self._ticket = (self._ticket + 1) & 0xFFFFFFFF
        args = np.uint64(self._address), np.uint32(self._ticket), np.uint64(_GATE_LIMIT_NS)
        self._function((1,), (1,), args, stream=stream)

    def open(self) -> None:
        self._word.value = self._ticket


def _enqueue(launch: Launch, stream: Stream) -> None:
    """CuPy passes a MemoryPointer as its address and a NumPy scalar as its own bytes."""
    function, local = launch.kernel.handle, launch.local_bytes
    if local:
        _allow_local(function, local)
    if launch.is_dependent:
        _launch_dependent(launch, stream)
        return
    grid, block = (launch.workgroups,), (launch.workgroup_size,)
    function(grid, block, launch.args, shared_mem=local, stream=stream)


def _allow_local(function: Any, size: int) -> None:
    """So much shared memory, and a cache split for as many workgroups as that allows."""
    names = bindings.CUfunction_attribute
    for attribute, value in (
        (names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size),
        (names.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
    ):
        (result,) = bindings.cuFuncSetAttribute(function.ptr, attribute, value)
        driver.check_status(int(result))


def _launch_dependent(launch: Launch, stream: Stream) -> None:
    """By the driver's own call: CuPy has no attributes of a launch."""
    serial = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute = bindings.CUlaunchAttribute()
    attribute.id = serial
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.workgroups, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.workgroup_size, 1, 1
    config.sharedMemBytes = launch.local_bytes
    config.hStream = stream.ptr
    config.attrs, config.numAttrs = [attribute], 1
    values = tuple(arg.ptr if isinstance(arg, MemoryPointer) else arg.item() for arg in launch.args)
    types = tuple(
        ctypes.c_void_p if isinstance(arg, MemoryPointer) else _C_TYPES[arg.dtype.str[1:]]
        for arg in launch.args
    )
    (result,) = bindings.cuLaunchKernelEx(config, launch.kernel.handle.ptr, (values, types), 0)
    driver.check_status(int(result))


def _capture(launches: Sequence[Launch], stream: Stream) -> Any:
    """An instantiated graph of the launches, one after the other, on the device already."""
    stream.begin_capture()
    try:
        for launch in launches:
            _enqueue(launch, stream)
    except BaseException:
        with suppress(runtime.CUDARuntimeError):
            stream.end_capture()
        raise
    graph = stream.end_capture()
    graph.upload(stream)
    return graph


def _key(launch: Launch) -> bytes:
    """All that decides what a launch does."""
    size = launch.workgroup_size, launch.local_bytes, launch.is_dependent
    geometry = launch.kernel.handle.ptr, launch.workgroups, *size
    args = [
        struct.pack("Q", arg.ptr) if isinstance(arg, MemoryPointer) else arg.tobytes()
        for arg in launch.args
    ]
    return struct.pack("QQQQ?", *geometry) + b"".join(args)


def _load_module(cubin: bytes) -> Module:
    module = Module()
    try:
        module.load(cubin)
    except driver.CUDADriverError as error:
        if error.status not in _UNUSABLE:
            raise
        raise CompileError(f"The driver does not take the compiled kernel: {error}") from error
    return module


@cache
def _toolchain() -> str | None:
    """What compiles, by version; None where that is not known, and then nothing is cached."""
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with suppress(metadata.PackageNotFoundError):
            return f"{package} {metadata.version(package)} gemvbench {__version__}"
    return None
