"""What the ladders of GEMV share: loads that fit, workgroup sizes, and the built outcome. Pure."""

from __future__ import annotations

import math

from gemvbench.arm import FAMILIES, Arm
from gemvbench.case import ITEM_BYTES, Gemv
from gemvbench.device import DeviceInfo
from gemvbench.outcome import Constants, Specialization, Step

BLOCKS = (64, 128, 256, 512)


def choose_block(loads: int) -> int:
    """A workgroup size for a row of `loads` loads.

    Lanes idle in the last step are lost bandwidth, so the sizes that idle least are kept;
    of those the largest that still gives every item four loads, which are in flight at
    once, and else the smallest.
    """
    idle = {block: math.ceil(loads / block) * block - loads for block in BLOCKS}
    least = [block for block in BLOCKS if idle[block] == min(idle.values())]
    deep = [block for block in least if loads >= 4 * block]
    return max(deep) if deep else min(least)


def fit_pack(pack: int, case: Gemv) -> tuple[int, list[Step]]:
    """The widest load at most 2**pack elements that k and both offsets allow."""
    steps = []
    while pack and (reason := misfit(pack, case)):
        steps.append(Step("pack", str(pack), str(pack - 1), reason))
        pack -= 1
    return pack, steps


def misfit(pack: int, case: Gemv) -> str | None:
    width = 1 << pack
    if case.k % width:
        return f"k = {case.k} is not a multiple of {width}"
    for what, offset, item in (
        ("weights", case.w_offset, ITEM_BYTES[case.w]),
        ("x", case.x_offset, ITEM_BYTES[case.x]),
    ):
        if offset % (width * item):
            return f"byte offset {offset} of {what} is not aligned to {width * item} bytes"
    return None


def build(
    arm: Arm,
    case: Gemv,
    device: DeviceInfo,
    constants: Constants,
    *,
    workgroups: int,
    workgroup_size: int,
    steps: tuple[Step, ...],
) -> Specialization:
    family = FAMILIES[arm.family]
    types: Constants = {
        "W_TYPE": f"TYPE_{case.w.upper()}",
        "X_TYPE": f"TYPE_{case.x.upper()}",
    }
    return Specialization(
        arm=arm.name,
        family=arm.family,
        file=arm.file.path if arm.file else device.kernel_file(family.file),
        entry=arm.file.entry if arm.file else family.entry,
        constants=tuple((types | constants).items()),
        workgroups=workgroups,
        workgroup_size=workgroup_size,
        steps=steps,
        revision=arm.commit or arm.revision,
        user_file=arm.file is not None,
    )
