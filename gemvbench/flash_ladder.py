"""The ladder of family flashdecode: attention in one launch on CUDA's tensor cores. Pure.

Geometry of tiles is that of kernels/cuda/flashdecode.h.
"""

from __future__ import annotations

import math

from gemvbench.arm import AUTO, AUTO_VALUE, FAMILIES, Arm
from gemvbench.attention_case import MAX_RANGES, QUANTISED, Attention, row_bytes
from gemvbench.device import DeviceInfo
from gemvbench.outcome import Constants, Specialization, Step
from gemvbench.stages import Ranges, Stage

TILE = 16
"""Tokens of a tile, and elements of a step of the tensor cores."""
COLUMNS = 8
"""Query heads that they multiply at once."""
LEAST_WEIGHT = 2.0**-38
"""Weights are sums of two FP16 numbers, the largest 2**14 and the least 2**-24."""
_NARROW, _MANY_THREADS = 128, 128
"""Elements of a head, and items, of which four workgroups have registers enough."""
_RANGES, _FEWEST = 16, 4
_LONG, _LONGEST = 8192, 32768
"""Tokens from which a cache is long, of `recommend_flash`."""
_MOST_SLOTS = 8
_LEAST_SLOTS = 2
_RESERVED = 1024
"""Shared memory that the driver keeps of each workgroup; once more of it for what is declared."""
_LEAST_LOCAL = 48 << 10
"""Of a workgroup on every device."""


def no_flash(arm: Arm, case: Attention, device: DeviceInfo) -> str | None:
    """Why family flashdecode does not compute a case; None where it does."""
    if device.language not in FAMILIES[arm.family].languages:
        return f"family flashdecode is CUDA, and {device.id} is {device.platform}"
    if "async_copy" not in device.capabilities:
        return f"{device.id} has no copies into shared memory that run ahead: they need sm_80"
    if arm.value("dependent") and "dependent_launch" not in device.capabilities:
        return f"{device.id} has no launches that overlap, which came with sm_90"
    if case.q == "f32":
        return "its products are of 16-bit operands, and Q is FP32"
    for what, dim in (("K", case.head_dim), ("V", case.v_size)):
        if dim % TILE:
            return f"a head of {what} has {dim} elements, and the tensor cores take {TILE} at once"
    if _slots(arm, case, device) < _LEAST_SLOTS:
        return (
            f"two tiles of {_tile_bytes(case)} bytes for each of {_block(arm) // 32} warps do not "
            f"fit {_room(arm, case, device)} bytes of shared memory"
        )
    return None


def recommend_flash(case: Attention, device: DeviceInfo) -> Arm | None:
    """The arm of the family that was fastest on an H200 (docs/results.md), None where all decline.

    Launches overlap, but for long caches that heads share. Sixteen ranges are as many as 4 to 16
    KV heads want in short caches; in long ones only where KV heads are few or launches do not
    overlap.
    """
    if no_flash(Arm(family="flashdecode"), case, device) is not None:
        return None
    shared = case.ratio > 1 and not {case.k_type, case.v_type} & {*QUANTISED}
    few = case.kv_heads * _RANGES < device.compute_units // 2
    long = case.context > _LONG
    alone = shared and (case.context > _LONGEST or (long and few))
    axes = []
    if _FEWEST <= case.kv_heads <= _RANGES and (not long or alone):
        axes.append(("splits", _RANGES))
    if "dependent_launch" in device.capabilities and not alone:
        axes.append(("dependent", 1))
    return Arm(family="flashdecode", axes=tuple(axes))


def specialize_flash(arm: Arm, case: Attention, device: DeviceInfo) -> Specialization:
    """Heads, ring and ranges of a workgroup; all of them run at once."""
    block, slots = _block(arm), _slots(arm, case, device)
    steps = []
    resident = _resident(arm, case)
    if arm.value("block") == AUTO_VALUE:
        steps.append(Step("block", AUTO, str(block), "four warps, each with a ring of its own"))
    if arm.value("resident") == AUTO_VALUE:
        reason = f"chosen for {case.k_type} and {case.v_type} caches and these heads"
        steps.append(Step("resident", AUTO, str(resident), reason))
    shares = math.ceil(case.ratio / COLUMNS)
    held = math.ceil(case.ratio / shares)
    ranges = _ranges(arm, case, device, shares)
    constants: Constants = {
        "HEADS": case.heads,
        "RATIO": case.ratio,
        "K_DIM": case.head_dim,
        "V_DIM": case.v_size,
        "K_TYPE": case.k_type,
        "V_TYPE": case.v_type,
        "X_TYPE": f"TYPE_{case.q.upper()}",
        "QUANT_Q": 0,
        "K_HELD": held,
        "SHARED": 1,
        "BLOCK": block,
        "SLOTS": slots,
        "RESIDENT": resident,
        "DEPENDENT": arm.value("dependent"),
    }
    stage = Stage(
        entry="attn_flash",
        workgroups=case.kv_heads * shares * ranges.splits,
        workgroup_size=block,
        local_bytes=_local_bytes(case, block, slots, held, ranges.splits),
        is_dependent=bool(arm.value("dependent")),
    )
    return Specialization(
        arm=arm.name,
        family=arm.family,
        file=device.kernel_file(FAMILIES[arm.family].file),
        entry=stage.entry,
        constants=tuple(constants.items()),
        workgroups=stage.workgroups,
        workgroup_size=block,
        steps=tuple(steps),
        revision=arm.revision,
        local_bytes=stage.local_bytes,
        stages=(stage,),
        ranges=ranges,
    )


def _block(arm: Arm) -> int:
    block = arm.value("block")
    return 128 if block == AUTO_VALUE else block


def _resident(arm: Arm, case: Attention) -> int:
    """Workgroups of a compute unit: quants want more warps to convert them, as registers allow."""
    asked = arm.value("resident")
    if asked != AUTO_VALUE:
        return asked
    many = {case.k_type, case.v_type} & {*QUANTISED} and max(case.head_dim, case.v_size) <= _NARROW
    return 4 if many and _block(arm) <= _MANY_THREADS else 2


def _ranges(arm: Arm, case: Attention, device: DeviceInfo, shares: int) -> Ranges:
    """No more ranges than run at once; and few enough that merging them costs no more than reading.

    The last workgroup of a KV head reads a partial result of each range while nobody else works: n
    ranges cost bytes / n of cache and n partial results, least where both are the same.
    """
    wave = max(1, _resident(arm, case) * device.compute_units // (case.kv_heads * shares))
    asked = arm.value("splits")
    if asked != AUTO_VALUE:
        chunk = math.ceil(case.context / min(asked, MAX_RANGES))
    else:
        sizes = row_bytes(case.k_type, case.head_dim), row_bytes(case.v_type, case.v_size)
        best = math.sqrt(case.context * sum(sizes) / (4 * case.ratio * case.v_size))
        step = _block(arm) // 32 * TILE
        chunk = max(step, int(case.context / max(best, 1)) // step * step)
        chunk = max(chunk, math.ceil(case.context / min(wave, MAX_RANGES)))
    chunk = math.ceil(chunk / TILE) * TILE
    return Ranges(k_chunk=chunk, v_chunk=chunk, splits=math.ceil(case.context / chunk))


def _tile_bytes(case: Attention) -> int:
    """Of K or of V, the larger: rows in an odd number of chunks of 16 bytes each."""
    return max(
        TILE * _pitch(row_bytes(kind, dim)) for kind, dim in (case.side("k"), case.side("v"))
    )


def _pitch(row: int) -> int:
    """Bytes from row to row of a tile: what may lie before a row's first byte is copied too."""
    chunks = (row + 16 - math.gcd(row, 16) + 15) // 16
    return 16 * (chunks | 1)


def _slots(arm: Arm, case: Attention, device: DeviceInfo) -> int:
    return min(_MOST_SLOTS, _room(arm, case, device) // (_block(arm) // 32 * _tile_bytes(case)))


def _room(arm: Arm, case: Attention, device: DeviceInfo) -> int:
    """Shared memory for each of the workgroups that a multiprocessor is to hold."""
    whole = max(device.local_bytes, _LEAST_LOCAL) + _RESERVED
    return whole // _resident(arm, case) - 2 * _RESERVED


def _local_bytes(case: Attention, block: int, slots: int, held: int, splits: int) -> int:
    """The largest of what follows each other in one place: rings, sums of warps, weights."""
    warps = block // 32
    ring = warps * slots * _tile_bytes(case)
    found = 4 * (COLUMNS * (2 * warps + 1) + warps * held * (case.v_size + 4))
    merge = 4 * (held * (splits + 1) + 3) + 16 * block
    return max(ring, found, merge)
