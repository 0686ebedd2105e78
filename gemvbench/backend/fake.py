"""A scripted device: kernels run in NumPy, times and faults come from a script.

The command line, its exit codes and its statistics are tested whole with it, on any machine
and in milliseconds. Noise follows from the script's seed and from all that the device was
asked before: a run can be repeated, and its processes differ.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench.attention_case import Attention
from gemvbench.backend.base import Kernel, Launch, Timing
from gemvbench.backend.fake_kernels import ENTRIES, Memory, Programme
from gemvbench.backend.script import Kind, Script, Stage, matches, read_script
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError
from gemvbench.gpu_state import GpuState

_FOREVER = 3600.0
_DEFINE = re.compile(r"#define (\w+) (\S+)")
_LINE = re.compile(r'#line (\d+) "([^"]+)"')


def fake_devices() -> list[DeviceInfo]:
    """The devices of the script; one whose listing fails ends the process."""
    script = read_script()
    if script.listing:
        _end(script.listing)
    return [device.info() for device in script.devices]


@dataclass(frozen=True)
class _Build:
    """What is behind a Kernel: its programme, and its number in this process."""

    programme: Programme
    facts: Mapping[str, str]
    number: int


@dataclass
class FakeBackend:
    """One scripted device, open in this process."""

    info: DeviceInfo
    script: Script = field(default_factory=read_script)
    _allocated: int = 0
    _builds: int = 0
    _history: int = 0
    _first_size: int = 0
    _clock: float = 0.0
    _loaded: list[Mapping[str, str]] = field(default_factory=list)
    _last: Mapping[str, str] = field(default_factory=dict)
    _seen: Counter[int] = field(default_factory=Counter)
    _offsets: dict[int, float] = field(default_factory=dict)

    def compile(self, text: str, entry: str) -> Kernel:
        constants = read_constants(text)
        facts = {"entry": entry, "device": self.info.id} | constants
        kinds = self._faults(facts, "compile")
        if "compile_error" in kinds:
            raise CompileError(_log(text, "scripted: this kernel does not compile"))
        _fail(kinds)
        if not re.search(rf"\b{re.escape(entry)}\s*\(", text):
            raise CompileError(_log(text, f"there is no kernel {entry!r}"))
        self._builds += 1
        programme = Programme(ENTRIES.get(entry, ENTRIES["gemv_row"]), constants)
        if programme.is_gemv:
            self._loaded.append(facts)
        return Kernel(entry, _Build(programme, facts, self._builds), text.encode())

    def load_library(self, name: str, dtype: str) -> Kernel:
        facts = {"entry": name, "device": self.info.id}
        kinds = self._faults(facts, "compile")
        if "compile_error" in kinds or name not in ENTRIES:
            raise CompileError(f"the fake device has no {name}")
        _fail(kinds)
        self._builds += 1
        types = {"W_TYPE": f"TYPE_{dtype.upper()}", "X_TYPE": f"TYPE_{dtype.upper()}"}
        return Kernel(name, _Build(Programme(ENTRIES[name], types), facts, self._builds))

    def load_attention(self, name: str, case: Attention) -> Kernel:
        raise CompileError(f"the fake device has no {name}")

    def alloc(self, size: int) -> Memory:
        self._remember("alloc", size)
        self._first_size = self._first_size or size
        self._allocated += size
        if size > self.info.max_alloc_bytes or self._allocated > self.info.memory_bytes:
            raise MemoryError(f"{self.info.id} is out of memory: {self._allocated} bytes wanted")
        return Memory(size)

    def upload(self, array: NDArray[Any]) -> Memory:
        memory = Memory(array.nbytes)
        memory.write(0, np.ascontiguousarray(array))
        return memory

    def write(self, buffer: Memory, array: NDArray[Any], offset: int) -> None:
        buffer.write(offset, np.ascontiguousarray(array))

    def download(self, buffer: Memory, dtype: Any, count: int, offset: int = 0) -> NDArray[Any]:
        return buffer.read(offset, dtype, count).copy()

    def address(self, buffer: Memory) -> int:
        raise CompileError("the fake has no addresses of device memory")

    def fill(self, buffer: Memory, pattern: int, size: int) -> None:
        buffer.write(0, np.full(size // 4, pattern, np.uint32))

    def copy(self, buffer: Memory, source: int, target: int, size: int) -> None:
        buffer.copy(source, target, size)

    def run(self, launches: Sequence[Launch]) -> None:
        self._launch(launches, "launch")

    def time(self, launches: Sequence[Launch]) -> Timing:
        self._launch(launches, "time")
        timeline, kernel = self._times(launches)
        self._clock += timeline
        speed = self.script.speed(_facts(launches[0]))
        return Timing(
            timeline=timeline,
            kernel=kernel if speed.kernel_times else None,
            host=timeline * speed.host_clock,
            enqueue=0.0 if speed.queued_ahead else timeline,
            queued_ahead=speed.queued_ahead,
        )

    def state(self) -> GpuState | None:
        clock = self.script.speed(self._last).sm_mhz
        return None if clock is None else GpuState(sm_mhz=clock)

    def _launch(self, launches: Sequence[Launch], stage: Stage) -> None:
        """Run the last launch of each kernel on each output: those before write the same rows."""
        last = {(launch.kernel.handle.number, id(_output(launch))): launch for launch in launches}
        for launch in last.values():
            kinds = self._faults(_facts(launch), "launch")
            if stage == "time":
                kinds |= self._faults(_facts(launch), "time")
            else:
                kinds.discard("wrong_when_timed")
            _fail(kinds)
            _execute(launch, kinds)
        self._last = _facts(launches[0])
        self._remember(stage, len(launches), launches[0].kernel.handle.number)

    def _times(self, launches: Sequence[Launch]) -> tuple[float, float]:
        """(timeline, sum of kernel times) of a sequence."""
        draw = random.Random(f"{self.script.seed} leg {self._history}")
        kinds = [_kind(launch) for launch in launches]
        counts = Counter(kinds)
        examples = dict(zip(kinds, launches, strict=True))
        timeline = kernel = 0.0
        for kind, launch in examples.items():
            build: _Build = launch.kernel.handle
            speed = self.script.speed(_facts(launch))
            factor = math.exp(draw.gauss(0, 1) * speed.noise)
            factor *= math.exp(self._offset(build.number) * speed.offset)
            factor *= 1 + speed.drift * self._clock
            factor *= speed.company if self._has_company(build) else 1.0
            factor *= speed.slow_factor if draw.random() < speed.slow_probability else 1.0
            if self._process_draw(launch) < speed.slow_process_probability:
                factor *= speed.slow_factor
            own = build.programme.bytes_moved(launch) / (speed.gbps * 1e9)
            kernel += counts[kind] * own * factor
            timeline += counts[kind] * (own * factor + speed.overhead)
        return timeline, kernel

    def _has_company(self, build: _Build) -> bool:
        return any(facts != build.facts for facts in self._loaded)

    def _offset(self, number: int) -> float:
        """A standard normal number of one kernel in this process."""
        if number not in self._offsets:
            draw = random.Random(f"{self.script.seed} offset {self._history} {number}")
            self._offsets[number] = draw.gauss(0, 1)
        return self._offsets[number]

    def _process_draw(self, launch: Launch) -> float:
        """A number of this process and of a launch's sizes: the padding differs by block."""
        sizes = sorted(launch.kernel.handle.programme.sizes(launch).items())
        return random.Random(f"{self.script.seed} mode {self._first_size} {sizes}").random()

    def _faults(self, facts: Mapping[str, str], stage: Stage) -> set[Kind]:
        kinds: set[Kind] = set()
        for fault in self.script.faults:
            if fault.stage == stage and matches(fault.match, facts):
                self._seen[id(fault)] += 1
                if self._seen[id(fault)] > fault.after:
                    kinds.add(fault.fault)
        return kinds

    def _remember(self, *what: object) -> None:
        self._history = zlib.crc32(repr(what).encode(), self._history)


def read_constants(text: str) -> dict[str, str]:
    """The constants at the head of a kernel's text, those at the head of its file too."""
    constants = {}
    for line in text.splitlines():
        if line.startswith("#line"):
            continue
        match = _DEFINE.fullmatch(line)
        if match is None:
            break
        constants[match[1]] = match[2]
    return constants


def _facts(launch: Launch) -> Mapping[str, str]:
    build: _Build = launch.kernel.handle
    return dict(build.facts) | build.programme.sizes(launch)


def _kind(launch: Launch) -> tuple[object, ...]:
    """Kernel and sizes: of y, k and n, of what a bare read reads, or the tokens of a cache."""
    return launch.kernel.handle.number, launch.args[2:5], launch.args[6:7]


def _output(launch: Launch) -> Memory:
    memory: Memory = launch.args[launch.kernel.handle.programme.entry.output]
    return memory


def _end(how: str) -> None:
    if how == "crash":
        os.write(2, b"scripted: the driver gives up\n")
        os.abort()
    time.sleep(_FOREVER)


def _log(text: str, message: str) -> str:
    """A compiler's message, with the file that the text starts with."""
    match = _LINE.search(text)
    name = match[2] if match else "kernel"
    return f"{name}:12:5: error: {message}"


def _fail(kinds: set[Kind]) -> None:
    if "crash" in kinds:
        _end("crash")
    if "hang" in kinds:
        _end("hang")
    if "out_of_memory" in kinds:
        raise MemoryError("the device is out of memory (scripted)")


def _execute(launch: Launch, kinds: set[Kind]) -> None:
    """Run a kernel, and put wrong numbers where a fault wants them."""
    programme: Programme = launch.kernel.handle.programme
    if not kinds:
        programme.execute(launch)
        return
    n, y = int(programme.sizes(launch)["n"]), _output(launch)
    before = y.read(4 * (n // 2), np.float32, 1).copy()
    programme.execute(launch)
    if "wrong_last_row" in kinds:
        y.write(4 * (n - 1), y.read(4 * (n - 1), np.float32, 1) + 1)
    if kinds & {"wrong_everywhere", "wrong_when_timed"}:
        y.write(0, y.read(0, np.float32, n) + 1)
    if "unwritten_row" in kinds:
        y.write(4 * (n // 2), before)
    if "written_past_end" in kinds:
        y.write(4 * n, np.zeros(1, np.float32))
