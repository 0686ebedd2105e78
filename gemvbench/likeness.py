"""Whether two records can be compared: same kind of device, driver, compiler and regime. Pure."""

from __future__ import annotations

from gemvbench.device import DeviceInfo
from gemvbench.record import Header, Run

_DEVICE = ("name", "vendor", "platform", "backend", "compute_units", "driver", "version")
_CUDA_COMPILERS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
"""Packages; an OpenCL device has its compiler in its driver and version."""

_CHANGES_ALWAYS = ("load", "commit")


def find_differences(a: Run, b: Run) -> tuple[str, ...]:
    """All that forbids a comparison, each as `what A and B have`; empty where nothing does."""
    if (a.header, a.lines) == (b.header, b.lines):
        return ("both hold the same run",)
    one, other = a.header, b.header
    devices = common_devices(one, other)
    found = [] if devices else [f"no device in common ({_ids(one)} and {_ids(other)})"]
    for left, right in devices:
        found += _unlike_devices(left, right)
    if any(left.backend == "cuda" for left, _ in devices):
        found += [f"NVRTC {text}" for text in _changed(one, other, _CUDA_COMPILERS)]
    if one.settings.regime != other.settings.regime:
        found.append(f"regime {one.settings.regime} and {other.settings.regime}")
    if not {case.id for case in one.cases} & {case.id for case in other.cases}:
        found.append("no case in common")
    return tuple(found)


def find_notes(a: Run, b: Run) -> tuple[str, ...]:
    """What may be unlike, and is to be known."""
    one, other = a.header, b.header
    notes = []
    if one.version != other.version:
        notes.append(f"A was measured by gemvbench {one.version}, B by {other.version}.")
    if one.started > other.started:
        notes.append(f"A ({one.started}) is the later of the two; B is {other.started}.")
    names = sorted({*one.environment, *other.environment} - {*_CHANGES_ALWAYS, *_CUDA_COMPILERS})
    changed = _changed(one, other, tuple(names), named=True)
    if changed:
        notes.append(f"Environment of A and B: {'; '.join(changed)}.")
    notes += [
        f"{left.id} of B is another device of the same kind."
        for left, right in common_devices(one, other)
        if left.uuid and right.uuid and left.uuid != right.uuid
    ]
    return tuple(notes)


def find_left_out(a: Run, b: Run, cases: tuple[str, ...]) -> tuple[str, ...]:
    """Cases that one record alone has, and arms of the cases compared."""
    one, other = a.header, b.header
    ids = [{case.id for case in header.cases} for header in (one, other)]
    arms = [
        {(c.case, c.label, c.device) for c in header.choices if c.case in cases}
        for header in (one, other)
    ]
    said = []
    for name, place in (("A", 0), ("B", 1)):
        said += [f"case {case}, only in {name}" for case in sorted(ids[place] - ids[1 - place])]
        said += [
            f"{label} on {device} of {case}, only in {name}"
            for case, label, device in sorted(arms[place] - arms[1 - place])
        ]
    return tuple(said)


def common_devices(one: Header, other: Header) -> list[tuple[DeviceInfo, DeviceInfo]]:
    """Devices of the same id."""
    right = {info.id: info for info in other.devices}
    return [(info, right[info.id]) for info in one.devices if info.id in right]


def _unlike_devices(left: DeviceInfo, right: DeviceInfo) -> list[str]:
    pairs = [(name, getattr(left, name), getattr(right, name)) for name in _DEVICE]
    return [
        f"{left.id}: {name.replace('_', ' ')} {own!r} and {others!r}"
        for name, own, others in pairs
        if own != others
    ]


def _changed(
    one: Header, other: Header, names: tuple[str, ...], *, named: bool = False
) -> list[str]:
    values = [(name, one.environment.get(name), other.environment.get(name)) for name in names]
    return [
        f"{f'{name} ' if named else ''}{left or 'absent'} and {right or 'absent'}"
        for name, left, right in values
        if left != right
    ]


def _ids(header: Header) -> str:
    return ", ".join(info.id for info in header.devices)
