"""The ladders of families flight and bulk: CUDA alone, and most of it from sm_90 on. Pure."""

from __future__ import annotations

import math

import msgspec

from gemvbench.arm import AUTO, AUTO_VALUE, Arm
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo
from gemvbench.fitting import build, choose_block, misfit
from gemvbench.outcome import Specialization, Step

_MOST_AHEAD = 8
"""Loads in flight that are worth their registers."""
BULK = {"GROUPS": 3, "STAGES": 6, "STAGE_BYTES": 30720}
"""The ring of family `bulk`, as measured best on an H200 (docs/kernels.md)."""
BULK_ROWS = 3
"""ROWS of kernels/cuda/bulk.cu."""
_STATIC_LOCAL = 1024
"""Shared memory of its barriers and sums, with room."""


def no_flight(arm: Arm, case: Gemv, device: DeviceInfo) -> str | None:
    """Why family flight does not compute a case; None where it does."""
    if case.x == "f32":
        return "family flight multiplies 16-bit x"
    if reason := misfit(3, case):
        return f"{reason}, and its loads are of 16 bytes"
    if arm.value("cluster") > 1 and "clusters" not in device.capabilities:
        return f"{device.id} has no clusters of workgroups, which came with sm_90"
    if arm.value("dependent") and "dependent_launch" not in device.capabilities:
        return f"{device.id} has no launches that overlap, which came with sm_90"
    return None


def specialize_flight(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    """Workgroup size as of family row; as many loads in flight as a row has for a work-item."""
    steps = []
    cluster, loads = arm.value("cluster"), case.k >> 3
    block, ahead = arm.value("block"), arm.value("ahead")
    if block == AUTO_VALUE:
        block = min(choose_block(max(1, loads // cluster)), device.max_workgroup)
        steps.append(Step("block", AUTO, str(block), f"chosen for rows of {loads} loads"))
    if ahead == AUTO_VALUE:
        ahead = min(_MOST_AHEAD, max(1, math.ceil(loads / (block * cluster))))
        steps.append(Step("ahead", AUTO, str(ahead), "a whole row, where that is few enough"))
    return build(
        arm,
        case,
        device,
        {
            "PACK": 3,
            "ACC": 32,
            "BLOCK": block,
            "AHEAD": ahead,
            "CLUSTER": cluster,
            "DEPENDENT": arm.value("dependent"),
        },
        workgroups=cluster * case.n,
        workgroup_size=block,
        steps=tuple(steps),
    )


def no_bulk(arm: Arm, case: Gemv, device: DeviceInfo) -> str | None:
    """Why family bulk does not compute a case; None where it does."""
    if "bulk_copy" not in device.capabilities:
        return f"{device.id} has no bulk copies into shared memory, which came with sm_90"
    if case.x == "f32":
        return "family bulk multiplies 16-bit x"
    if reason := misfit(3, case):
        return f"{reason}, and bulk copies are of 16 bytes"
    wanted = bulk_local_bytes(case.k) + _STATIC_LOCAL
    if wanted > device.local_bytes:
        return (
            f"it needs {wanted} bytes of shared memory for rows of {case.k}, and {device.id} "
            f"has {device.local_bytes}"
        )
    return None


def bulk_local_bytes(k: int) -> int:
    """The ring, and x behind it."""
    return BULK["STAGES"] * BULK["STAGE_BYTES"] + 2 * k


def specialize_bulk(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    """A workgroup of a producer's warp and the groups on every compute unit."""
    built = build(
        arm,
        case,
        device,
        {**BULK, "X_BYTES": 2 * case.k, "FENCED": arm.value("fenced")},
        workgroups=device.compute_units,
        workgroup_size=32 + 128 * BULK["GROUPS"],
        steps=(),
    )
    return msgspec.structs.replace(built, local_bytes=bulk_local_bytes(case.k))
