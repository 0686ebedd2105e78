"""What travels between the parent and a worker process: one JSON line each.

The parent opens no device. A request goes to a fresh worker's standard input; messages come
back as they happen, so that what was measured survives whatever ends the worker.
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec

from gemvbench.cases import Case, Single
from gemvbench.device import DeviceInfo
from gemvbench.gpu_state import GpuState
from gemvbench.stages import Call, Precision, Ranges, Stage


class KernelJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm to build: the whole kernel text, its entry and its geometry."""

    y: ClassVar[str] = "f32"
    arm: str
    device: str
    text: str
    entry: str
    workgroups: int
    workgroup_size: int
    accumulate: int = 32
    extra: int = 0
    """Planted rows that it reads behind the last."""
    local_bytes: int = 0
    """Shared memory of a workgroup beside what the text declares."""
    is_dependent: bool = False
    """Its launch may overlap the one before it."""
    is_repacked: bool = False
    """It reads the quants of quantised weights first, and then all scales."""
    quantises_x: bool = False
    """It is held against the product with x in 8 bits."""
    read_bytes: int = 0
    """How much of each pool a bare read reads; 0 for all of it."""


class HostJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm the host computes by a library, beside the device whose case it is."""

    arm: str
    device: str
    family: str


class LibraryJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm that a vendor's library computes on the device; called like a kernel."""

    arm: str
    device: str
    library: str
    w: str
    """Type of the operands."""
    y: str = "f32"
    """Type in which it stores y, from the start of the output on."""
    workgroups: int = 1
    workgroup_size: int = 1
    accumulate: int = 32
    extra: int = 0
    local_bytes: int = 0
    is_dependent: bool = False


class AttentionJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm of attention to build: the kernels of one text that a call runs in order."""

    arm: str
    device: str
    text: str
    stages: tuple[Stage, ...]
    ranges: Ranges
    precision: Precision = Precision()
    library: str = ""
    """What computes it in place of a text's kernels."""
    calls: tuple[Call, ...] = ()
    """In a token: for each of its contexts; else all calls are `stages`."""


class TokenJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm for a whole token: what computes each class of its layers, in the case's order."""

    arm: str
    device: str
    layers: tuple[KernelJob | LibraryJob, ...]
    """Of the linear classes."""
    whole: KernelJob | None = None
    """All layers in one launch; `layers` are then what its outputs are verified by."""
    attention: AttentionJob | None = None
    """None where a token has none, and where it is left out: by launches without work."""


DeviceJob = KernelJob | LibraryJob
"""What computes one layer on the device."""

Job = DeviceJob | HostJob | TokenJob | AttentionJob


class Layout(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the weights of a case lie in one pool: `turns` copies, `stride` bytes apart."""

    turns: int
    stride: int

    @property
    def pool_bytes(self) -> int:
        return self.turns * self.stride


class TokenLayout(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the weights and caches of a token lie: for each class one buffer, or several."""

    shelves: tuple[tuple[Layout, ...], ...]
    copies: int = 1
    """Sets of weights that tokens take turns on; more than one only where a class is alone."""

    @property
    def turns(self) -> int:
        """Distinct matrices of all classes."""
        return sum(layout.turns for shelf in self.shelves for layout in shelf)

    @property
    def pool_bytes(self) -> int:
        return sum(layout.pool_bytes for shelf in self.shelves for layout in shelf)


AnyLayout = Layout | TokenLayout


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one arm: a long and a short leg, and now and then a middle one."""

    pass_: int
    slot: int
    arm: str
    long: int
    short: int
    middle: int = 0
    long_first: bool = True


class CaseBlock(msgspec.Struct, frozen=True, kw_only=True):
    """All that one block does for one case."""

    case: Case
    layouts: dict[str, AnyLayout]
    """By device id: one workspace for each device that has an arm here."""
    jobs: tuple[Job, ...]
    roofs: tuple[KernelJob, ...]
    slots: tuple[Slot, ...] = ()
    digests: dict[str, str] = {}
    """Expected digest of each arm's output; an arm without one is not checked."""
    padding: int = 0
    """Bytes allocated before the operands, drawn per block: placement is part of the draw."""


class ListDevices(msgspec.Struct, frozen=True, tag=True):
    """Describe every device of a back end."""

    backend: str


class Verify(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Check arms of one case against the oracle."""

    device: DeviceInfo
    case: Single
    jobs: tuple[Job, ...]
    siblings: tuple[tuple[str, KernelJob], ...]
    """(arm, its rows1 sibling): outputs that have to be bit-identical."""
    reference: KernelJob | None = None
    """The frozen kernel: stands in for float64 in the rows that are not sampled."""
    seed: int


class Calibrate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Time each arm roughly, so that lengths can be planned; roofs stand for each candidate."""

    devices: tuple[DeviceInfo, ...]
    cases: tuple[CaseBlock, ...]
    seed: int
    graphs: bool = True
    """CUDA: timed sequences are replayed from graphs; else launched one by one."""


class Block(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Measure: a fresh process, fresh allocations, all slots of all cases."""

    devices: tuple[DeviceInfo, ...]
    block: int
    cases: tuple[CaseBlock, ...]
    seed: int
    graphs: bool = True
    rests: bool = False
    """Whether a measurement waits while the device is near its power limit."""


Request = ListDevices | Verify | Calibrate | Block


class Doing(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What comes next; if the worker dies or is silent for `limit` seconds, this is charged."""

    stage: str
    arm: str = ""
    case: str = ""
    limit: float = 60.0
    said: int = 0
    """Bytes on the worker's standard error until now: what comes after is said while doing it."""


class DeviceFound(msgspec.Struct, frozen=True, tag=True):
    device: DeviceInfo


class Check(msgspec.Struct, frozen=True):
    """One check of one arm's output."""

    name: str
    passed: bool
    detail: str = ""


class Verified(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All checks of one arm on one case, and the digest of its output on random inputs."""

    case: str
    arm: str
    checks: tuple[Check, ...]
    digest: str
    binary: str = ""
    """Digest of what the compiler made, where that shows identity (cubins of CUDA), else ""."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm that could not be built or run, with the reason as its compiler gave it."""

    case: str
    arm: str
    stage: str
    reason: str


class Calibrated(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rough seconds per call of an arm, in the regime that will be measured."""

    case: str
    arm: str
    seconds: float


class RoofMeasured(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Bandwidth of one read kernel, in bytes per second; the fastest is the roof."""

    arm: str
    device: str
    bandwidth: float
    event_clock: float
    """Event span over host span of the same run: 1 where the device's clock is right."""


class Leg(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One timed sequence of `calls` calls, in seconds.

    Like a sample it is part of no cycle, and a long record has hundreds of thousands of them:
    the garbage collector need not look at each again and again.
    """

    calls: int
    timeline: float
    kernel: float | None
    host: float
    enqueue: float
    queued_ahead: bool


class Sample(msgspec.Struct, frozen=True, tag=True, kw_only=True, gc=False):
    """One measurement as it was taken; nothing derived that could not be derived again."""

    block: int
    case: str
    pass_: int
    slot: int
    arm: str
    long: Leg
    short: Leg
    middle: Leg | None = None
    correct: bool | None = None
    before: GpuState | None = None
    after: GpuState | None = None
    bytes_per_call: int = 0

    @property
    def seconds(self) -> float:
        """Timeline seconds per call, by the difference of two lengths; NaN for no real leg."""
        if self.short.timeline <= 0 or self.long.calls <= self.short.calls:
            return math.nan
        return (self.long.timeline - self.short.timeline) / (self.long.calls - self.short.calls)

    @property
    def is_usable(self) -> bool:
        """Whether the difference of the legs is a time: noise can turn it negative."""
        return 0 < self.seconds < math.inf

    @property
    def kernel_seconds(self) -> float | None:
        if self.long.kernel is None or self.short.kernel is None:
            return None
        return (self.long.kernel - self.short.kernel) / (self.long.calls - self.short.calls)


class BlockDone(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Where a block's wall time went, in seconds by part; process start is not in it."""

    block: int
    parts: dict[str, float]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot do what was asked, and says to the user why."""

    text: str
    code: int


Message = (
    Doing
    | DeviceFound
    | Verified
    | Failed
    | Calibrated
    | RoofMeasured
    | Sample
    | BlockDone
    | Refused
)
