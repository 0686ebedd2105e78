"""The ladder of family quant: loads, pieces of x and workgroups for weights in blocks. Pure.

A load of more than two bytes needs rows and offset to be multiples of it, and blocks of q8_0 and
q4_0 as they lie in files are aligned to two bytes only: wider loads there take apart what they
bring, as kernels/*/quant.* say. x waits in local memory, whole where it fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from gemvbench.arm import AUTO, AUTO_VALUE, Arm
from gemvbench.case import QUANT_TYPES, Gemv
from gemvbench.device import DeviceInfo
from gemvbench.fitting import build
from gemvbench.outcome import Constants, Specialization, Step

BASE = Arm(family="quant", axes=(("pack", 0), ("rows", 1), ("ahead", 1), ("block", 256)))
"""What `base` is for quantised weights: two bytes at a time, one load in flight."""

_UNIT = {"q8_0": 16, "q4_0": 32, "q4_K": 32}
"""Weights in 16 bytes of quants."""
_STAGED = {"q8_0": 17, "q4_0": 18}
"""Bytes of shared memory for each of them where blocks are staged."""
_STAGED_BLOCKS = {2: 4, 3: 8}
"""Blocks of which a row is a multiple where loads of 8 and 16 bytes stage them."""
_STATIC_LOCAL = 48 << 10
"""What a CUDA text may declare."""
_LEAST_LOCAL = 32 << 10
"""What every OpenCL device of version 1.2 has."""
_SHAPES = ((2, 4), (1, 4), (1, 3), (1, 2), (1, 1))
"""(rows, ahead) to choose from, the best first: the first with which x is whole."""
_FASTEST = {"q8_0": (4, 2, 32, 256), "q4_0": (4, 2, 16, 128), "q4_K": (4, 1, 32, 128)}
"""(rows, ahead, lanes, block) in CUDA, x in floating point."""
_THREADS = 512
"""Work-items of a compute unit that enough loads are in flight with."""
_OF_WORKGROUPS = ("pack", "rows", "ahead", "lanes", "groups", "dependent")


@dataclass(frozen=True)
class _Fit:
    """How a workgroup goes through rows."""

    pack: int
    rows: int
    ahead: int
    lanes: int
    block: int
    rounds: int
    """X_ROUNDS: pieces of x that are in local memory at once; 0 where not even one fits."""


def is_base(arm: Arm) -> bool:
    """Whether an arm is written `base`, which quantised weights have one of their own for."""
    return arm.family == "row" and not arm.axes and arm.file is None


def quant_rule(case: Gemv, device: DeviceInfo) -> Arm:
    """What `auto` is where nothing was tuned: blocks as in files, and x in floating point.

    In CUDA what was fastest on an H200 at both shapes tried, a tile for each workgroup
    (docs/results.md).
    """
    if device.language != "cuda":
        return Arm(family="quant")
    rows, ahead, lanes, block = _FASTEST[case.w]
    axes = {"rows": rows, "ahead": ahead, "lanes": lanes, "block": block, "groups": 0}
    return Arm(family="quant", axes=tuple(axes.items()))


def no_quant(arm: Arm, case: Gemv, device: DeviceInfo) -> str | None:
    """Why family quant does not compute a case; None where it does."""
    if not case.is_quantised:
        return f"family quant computes {', '.join(QUANT_TYPES)}, and the weights are {case.w}"
    if arm.value("repack") and (reason := _no_repack(case)):
        return reason
    block, lanes = _block(arm, device), arm.value("lanes")
    if block == 1:
        return _no_items(arm, device)
    if arm.asked("items") is not None:
        return "items is an axis of block1, the kernel for CPUs"
    if block > device.max_workgroup:
        return f"workgroups of {block} exceed the {device.max_workgroup} of {device.id}"
    if lanes > block:
        return f"{lanes} lanes are more than a workgroup of {block} has"
    if arm.value("dependent") and "dependent_launch" not in device.capabilities:
        return f"{device.id} has no launches that overlap, which came with sm_90"
    fit, _ = _fit(arm, case, device, block)
    if not fit.rounds:
        return f"what is in flight and one piece of x exceed {_room(device)} bytes of local memory"
    return None


def specialize_quant(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    """Constants and geometry for a case that `no_quant` has nothing against."""
    block = _block(arm, device)
    types: Constants = {"REPACK": arm.value("repack"), "X8": int(arm.value("xq") == 8)}
    if block == 1:
        return _specialize_items(arm, case, device, types)
    fit, steps = _fit(arm, case, device, block)
    tiles = math.ceil(case.n / (fit.rows * block // fit.lanes))
    groups = arm.value("groups")
    if groups == AUTO_VALUE:
        groups = max(1, _THREADS // block)
        steps.append(Step("groups", AUTO, str(groups), "enough loads in flight"))
    constants: Constants = {
        "W_PACK": fit.pack,
        "BLOCK": block,
        "LANES": fit.lanes,
        "ROWS": fit.rows,
        "AHEAD": fit.ahead,
        "X_ROUNDS": fit.rounds,
    }
    if device.language == "cuda":
        constants["DEPENDENT"] = arm.value("dependent")
    return build(
        arm,
        case,
        device,
        types | constants,
        workgroups=min(tiles, groups * device.compute_units) if groups else tiles,
        workgroup_size=block,
        steps=tuple(steps),
    )


def _specialize_items(arm: Arm, case: Gemv, device: DeviceInfo, types: Constants) -> Specialization:
    """The kernel for CPUs."""
    made = build(
        arm,
        case,
        device,
        types | {"X_CACHE": case.k},
        workgroups=min(arm.value("items"), case.n),
        workgroup_size=1,
        steps=(),
    )
    file = device.kernel_file("quant_cpu")
    return msgspec.structs.replace(made, file=file, entry="gemv_quant_cpu")


def _block(arm: Arm, device: DeviceInfo) -> int:
    """A CPU has work-items by themselves, unless an axis of workgroups is asked for."""
    block = arm.value("block")
    if block != AUTO_VALUE:
        return block
    if device.is_cpu and all(arm.asked(axis) is None for axis in _OF_WORKGROUPS):
        return 1
    return min(256, device.max_workgroup)


def _no_items(arm: Arm, device: DeviceInfo) -> str | None:
    if not device.is_cpu:
        return f"block1 is one work-item with vector loads, for CPUs, and {device.id} is a GPU"
    asked = [axis for axis in _OF_WORKGROUPS if arm.asked(axis) is not None]
    return f"block1 is one work-item, which has no axis {asked[0]}" if asked else None


def _no_repack(case: Gemv) -> str | None:
    if case.w == "q4_K":
        return "blocks of q4_K are 144 bytes and aligned to 16 already: nothing to repack"
    blocks = case.k // 32
    if blocks % 2:
        return f"rows of {blocks} blocks: repacked, their scales would lie at odd addresses"
    if case.w_offset % 16:
        return f"repacked weights begin at 16 bytes, and byte offset {case.w_offset} does not"
    return None


def _fit(arm: Arm, case: Gemv, device: DeviceInfo, block: int) -> tuple[_Fit, list[Step]]:
    """The widest loads, then the rows and loads in flight beside which x fits."""
    steps: list[Step] = []
    asked = arm.value("pack")
    pack = 3 if asked == AUTO_VALUE else asked
    while pack and (reason := _misfit(pack, arm, case, device)):
        steps.append(Step("pack", str(pack), str(pack - 1), reason))
        pack -= 1
    lanes, fits = arm.value("lanes"), []
    for rows, ahead in _shapes(arm):
        rounds = _x_rounds(case, device, pack, arm, (rows, ahead, lanes, block))
        fits.append(_Fit(pack, rows, ahead, lanes, block, rounds))
    whole = [fit for fit in fits if fit.rounds == _all_rounds(case, fit)]
    chosen = whole[0] if whole else max(fits, key=lambda fit: fit.rounds * fit.ahead)
    for axis, value in (("rows", chosen.rows), ("ahead", chosen.ahead)):
        if arm.value(axis) == AUTO_VALUE:
            why = "x is whole in local memory" if whole else "x comes in the fewest pieces"
            steps.append(Step(axis, AUTO, str(value), why))
    return chosen, steps


def _shapes(arm: Arm) -> list[tuple[int, int]]:
    """(rows, ahead) that are open, those asked for in place of the choice."""
    rows, ahead = arm.value("rows"), arm.value("ahead")
    shapes = [
        (r if rows == AUTO_VALUE else rows, a if ahead == AUTO_VALUE else ahead) for r, a in _SHAPES
    ]
    return list(dict.fromkeys(shapes))


def _is_staged(pack: int, arm: Arm, case: Gemv) -> bool:
    return pack > 1 and case.w in _STAGED and not arm.value("repack")


def _misfit(pack: int, arm: Arm, case: Gemv, device: DeviceInfo) -> str | None:
    """Why loads of 2 << pack bytes do not do; two bytes always do."""
    load = 2 << pack
    if case.w_offset % load:
        return f"byte offset {case.w_offset} of weights is not aligned to {load} bytes"
    if case.w not in _STAGED or arm.value("repack"):
        return None
    blocks = case.k // 32
    if pack == 1:
        return f"rows of {blocks} blocks are aligned to 2 bytes only" if blocks % 2 else None
    if device.language != "cuda":
        return f"blocks of {case.w} as in files are staged for wider loads in CUDA alone"
    if arm.value("lanes") not in (16, 32):
        return "blocks are staged by 16 or 32 lanes"
    wanted = _STAGED_BLOCKS[pack]
    return f"rows of {blocks} blocks are no multiple of {wanted}" if blocks % wanted else None


def _room(device: DeviceInfo) -> int:
    if device.language == "cuda":
        return _STATIC_LOCAL
    return device.local_bytes or _LEAST_LOCAL


def _x_rounds(
    case: Gemv, device: DeviceInfo, pack: int, arm: Arm, shape: tuple[int, int, int, int]
) -> int:
    """Pieces of x beside all else in local memory; no more than x has."""
    rows, ahead, lanes, block = shape
    quantised = arm.value("xq") == 8
    room = _room(device)
    if _is_staged(pack, arm, case):
        room -= block * ahead * rows * _STAGED[case.w]
    if device.language == "opencl":
        room -= rows * block * 9 // 2 + 4 * block * quantised
    elif lanes > 32:
        room -= rows * block // 8
    piece = ahead * lanes * _UNIT[case.w] * (5 if quantised else 16) // 4
    whole = math.ceil(case.k / (ahead * lanes * _UNIT[case.w]))
    return max(0, min(whole, room // piece))


def _all_rounds(case: Gemv, fit: _Fit) -> int:
    return math.ceil(case.k / (fit.ahead * fit.lanes * _UNIT[case.w]))
