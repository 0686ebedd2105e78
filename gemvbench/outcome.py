"""What an arm really gets for a case on a device: built by a kernel, a library, the host, or not.

The outcome of every ladder. It is on the record, and tests assert it.
"""

from __future__ import annotations

import msgspec

from gemvbench.stages import Ranges, Stage

Constants = dict[str, int | str]


class Step(msgspec.Struct, frozen=True):
    """One step down the ladder: what was asked, what was built, and why."""

    axis: str
    asked: str
    built: str
    reason: str

    def __str__(self) -> str:
        return f"{self.axis} {self.asked} -> {self.built}: {self.reason}"


class Specialization(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What will be built: constants become #defines, the geometry counts workgroups."""

    arm: str
    family: str
    file: str
    entry: str
    constants: tuple[tuple[str, int | str], ...]
    workgroups: int
    workgroup_size: int
    steps: tuple[Step, ...] = ()
    revision: str | None = None
    user_file: bool = False
    local_bytes: int = 0
    """Shared memory that a workgroup asks for at launch, beside what its text declares."""
    stages: tuple[Stage, ...] = ()
    """All launches of a call, where it has several kinds; `entry` is the first one's."""
    ranges: Ranges | None = None

    def constant(self, name: str) -> int | str | None:
        return dict(self.constants).get(name)

    @property
    def extra(self) -> int:
        """Planted rows behind the last; over n, the exact extra share of the bytes of W."""
        return int(self.constant("EXTRA") or 0)


class HostArm(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm the host computes with a library of its own; nothing is built."""

    arm: str
    family: str
    steps: tuple[Step, ...] = ()


class LibraryArm(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm that a vendor's library computes on the device; nothing is built."""

    arm: str
    library: str
    w: str
    y: str = "f32"
    """Type in which it stores y."""
    accumulate: int = 32
    operation: str = "gemv"
    steps: tuple[Step, ...] = ()


class Declined(msgspec.Struct, frozen=True, tag=True):
    """The arm does not compute this case on this device, with the reason."""

    arm: str
    reason: str


Outcome = Specialization | HostArm | LibraryArm | Declined
