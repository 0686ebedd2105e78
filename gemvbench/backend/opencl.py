"""OpenCL through PyOpenCL: PoCL, Intel's CPU runtime, and GPUs."""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from gemvbench.attention_case import Attention
from gemvbench.backend import binaries, nvml
from gemvbench.backend.base import Argument, Buffer, Kernel, Launch, Timing
from gemvbench.backend.clblast import ClblastGemv
from gemvbench.backend.event_plan import sample_events
from gemvbench.backend.opencl_devices import NO_CACHE
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError
from gemvbench.gpu_state import GpuState

SAMPLED_EVENTS = 512
"""Kernel times are read from at most this many events: every event kept costs memory."""

_NOT_STARTED = (cl.command_execution_status.QUEUED, cl.command_execution_status.SUBMITTED)


@dataclass
class _Built:
    """The program built last, and the entries taken from it: stages of one text follow each
    other. An arm built a second time, the twin, is built anew."""

    text: str
    program: cl.Program
    entries: set[str] = field(default_factory=set)


class OpenCLBackend:
    """One OpenCL device with one in-order, profiling queue."""

    def __init__(self, info: DeviceInfo, device: cl.Device) -> None:
        # Compilers' remarks are no errors, and would fill the tail kept of standard error.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        self.info = info
        self._device = device
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(
            self._context, properties=cl.command_queue_properties.PROFILING_ENABLE
        )
        self._last: _Built | None = None

    def compile(self, text: str, entry: str) -> Kernel:
        last = self._last
        if last is None or last.text != text or entry in last.entries:
            last = self._last = _Built(text, self._program(text, entry))
        last.entries.add(entry)
        return _kernel_of(last.program, entry)

    def _program(self, text: str, entry: str) -> cl.Program:
        """From the binary kept of it, or from its source."""
        info = self.info
        path = binaries.binary_path(text, info.platform, info.version, info.driver, info.name)
        if "Portable" in info.platform:
            path = None  # PoCL keeps its own, and takes seconds to make one for any geometry
        stored = self._load(binaries.load(path))
        if stored is not None:
            with contextlib.suppress(CompileError):
                _kernel_of(stored, entry)
                return stored
        program = self._build(text)
        if path is not None:
            found: Any = program.get_info(cl.program_info.BINARIES)
            binaries.store(path, bytes(found[0]))
        return program

    def _build(self, text: str) -> cl.Program:
        try:
            program: cl.Program = cl.Program(self._context, text).build(cache_dir=NO_CACHE)
        except cl.Error as error:
            raise CompileError(compiler_log(str(error))) from error
        return program

    def _load(self, binary: bytes | None) -> cl.Program | None:
        """A program from a stored binary; None where there is none or it is of no use."""
        if binary is None:
            return None
        try:
            program: cl.Program = cl.Program(self._context, [self._device], [binary]).build()
        except cl.Error:
            return None
        return program

    def load_library(self, name: str, dtype: str) -> Kernel:
        if name != "clblast":
            raise CompileError(f"OpenCL has no {name}")
        return Kernel(name, ClblastGemv())

    def load_attention(self, name: str, case: Attention) -> Kernel:
        raise CompileError(f"OpenCL has no {name}")

    def alloc(self, size: int) -> Buffer:
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)

    def upload(self, array: NDArray[Any]) -> Buffer:
        buffer = self.alloc(array.nbytes)
        cl.enqueue_copy(self._queue, buffer, np.ascontiguousarray(array))
        return buffer

    def write(self, buffer: Buffer, array: NDArray[Any], offset: int) -> None:
        cl.enqueue_copy(self._queue, buffer, np.ascontiguousarray(array), dst_offset=offset)

    def download(self, buffer: Buffer, dtype: Any, count: int, offset: int = 0) -> NDArray[Any]:
        array = np.empty(count, dtype)
        cl.enqueue_copy(self._queue, array, buffer, src_offset=offset)
        return array

    def address(self, buffer: Buffer) -> int:
        raise CompileError("OpenCL gives no addresses of device memory")

    def fill(self, buffer: Buffer, pattern: int, size: int) -> None:
        cl.enqueue_fill_buffer(self._queue, buffer, np.array(pattern, np.uint32), 0, size)
        self._queue.finish()

    def copy(self, buffer: Buffer, source: int, target: int, size: int) -> None:
        cl.enqueue_copy(
            self._queue, buffer, buffer, byte_count=size, src_offset=source, dst_offset=target
        )
        self._queue.finish()

    def run(self, launches: Sequence[Launch]) -> None:
        arguments = _ArgumentSetter()
        for launch in launches:
            self._enqueue(launch, arguments)
        self._queue.finish()

    def time(self, launches: Sequence[Launch]) -> Timing:
        # The first kernel waits for a user event, so that the device finds a full queue.
        gate = cl.UserEvent(self._context)
        weights = sample_events([launch.kind for launch in launches], SAMPLED_EVENTS)
        sampled: list[tuple[float, cl.Event]] = []
        arguments = _ArgumentSetter()
        started = time.perf_counter()
        try:
            first = last = self._enqueue(launches[0], arguments, [gate])
            for index, launch in enumerate(launches):
                if index:
                    last = self._enqueue(launch, arguments)
                if index in weights:
                    sampled.append((weights[index], last))
            self._queue.flush()
            queued_ahead = first.command_execution_status in _NOT_STARTED
        finally:
            released = time.perf_counter()
            gate.set_status(cl.command_execution_status.COMPLETE)
        self._queue.finish()
        finished = time.perf_counter()
        own = sum(weight * (e.profile.end - e.profile.start) for weight, e in sampled)
        return Timing(
            timeline=(last.profile.end - first.profile.start) * 1e-9,
            kernel=own * 1e-9,
            host=finished - released,
            enqueue=released - started,
            queued_ahead=queued_ahead,
        )

    def state(self) -> GpuState | None:
        if not self.info.is_nvidia or self.info.uuid is None:
            return None
        return nvml.read_gpu_state(self.info.uuid)

    def _enqueue(
        self, launch: Launch, arguments: _ArgumentSetter, wait: list[cl.Event] | None = None
    ) -> cl.Event:
        if isinstance(launch.kernel.handle, ClblastGemv):
            event: cl.Event = launch.kernel.handle.enqueue(self._queue, launch.args, wait)
            return event
        arguments.set(launch)
        return cl.enqueue_nd_range_kernel(
            self._queue,
            launch.kernel.handle,
            (launch.workgroups * launch.workgroup_size,),
            (launch.workgroup_size,),
            wait_for=wait,
        )


def compiler_log(message: str) -> str:
    """The compiler's own words in PyOpenCL's message of a failed build."""
    log = message.partition("\n\nBuild on ")[2].partition(">:\n")[2] or message
    return re.split(r"\n\s*\((?:options|source saved)", log)[0].strip()


def _kernel_of(program: cl.Program, entry: str) -> Kernel:
    try:
        handle = cl.Kernel(program, entry)
    except cl.Error as error:
        raise CompileError(f"no kernel {entry!r} in what was compiled: {error}") from error
    return Kernel(entry, handle, arguments=handle.num_args)


class _ArgumentSetter:
    """Sets only the arguments that differ from a kernel's call before: they are kept at enqueue."""

    def __init__(self) -> None:
        self._last: dict[Any, tuple[Argument, ...]] = {}

    def set(self, launch: Launch) -> None:
        handle = launch.kernel.handle
        if handle not in self._last:
            handle.set_args(*launch.args)
        else:
            for index, (new, old) in enumerate(zip(launch.args, self._last[handle], strict=True)):
                if new is not old and new != old:
                    handle.set_arg(index, new)
        self._last[handle] = launch.args
