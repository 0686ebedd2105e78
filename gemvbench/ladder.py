"""Specialisation: the constants and geometry an arm really gets for a case on a device.

The ladder of S2: a load needs k and every operand's byte offset to be multiples of it, so
pack falls, one step at a time, until that holds. FP32 x declines the lever. A tolerance
test cannot see a selection that silently stopped choosing an arm, so the outcome is a
value: it is on the record, and tests assert it over the whole ladder.
"""

from __future__ import annotations

import math

import msgspec

from gemvbench.arm import AUTO, AUTO_VALUE, FAMILIES, HOST_FAMILIES, Arm, Family
from gemvbench.case import ITEM_BYTES, Gemv
from gemvbench.device import DeviceInfo
from gemvbench.libraries import LIBRARY_FAMILIES, library_declines
from gemvbench.stages import Ranges, Stage

BLOCKS = (64, 128, 256, 512)
_X_CACHE_MOST = 16384

_MOST_AHEAD = 8
BULK = {"GROUPS": 3, "STAGES": 6, "STAGE_BYTES": 30720}
BULK_ROWS = 3
"""The ring of family `bulk`, as measured best on an H200 (docs/kernels.md)."""
_STATIC_LOCAL = 1024
"""Shared memory of its barriers and sums, with room."""

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
    steps: tuple[Step, ...] = ()


class Declined(msgspec.Struct, frozen=True, tag=True):
    """The arm does not compute this case on this device, with the reason."""

    arm: str
    reason: str


Outcome = Specialization | HostArm | LibraryArm | Declined


def specialize(arm: Arm, case: Gemv, device: DeviceInfo) -> Outcome:
    """Constants and geometry of `arm`, any but `auto`, for `case` on `device`. Pure."""
    if arm.family in HOST_FAMILIES:
        if not device.is_cpu:
            return Declined(arm.name, f"{arm.family} runs on the host, and {device.id} is a GPU")
        return HostArm(arm=arm.name, family=arm.family)
    if arm.family in LIBRARY_FAMILIES:
        return _specialize_library(arm, case, device)
    family = FAMILIES[arm.family]
    reason = _declines(arm, family, case, device)
    if reason:
        return Declined(arm.name, reason)
    if arm.family == "row":
        return _specialize_row(arm, case, device)
    if arm.family == "cpu":
        return _specialize_cpu(arm, case, device)
    if arm.family == "bulk":
        return _specialize_bulk(arm, case, device)
    if arm.family == "flight":
        return _specialize_flight(arm, case, device)
    return _build(arm, case, device, {}, workgroups=case.n, workgroup_size=128, steps=())


def _specialize_library(arm: Arm, case: Gemv, device: DeviceInfo) -> LibraryArm | Declined:
    """A library multiplies operands of one 16-bit type, where device and package are."""
    reason = library_declines(arm.family, case, device)
    if reason:
        return Declined(arm.name, reason)
    library = LIBRARY_FAMILIES[arm.family]
    return LibraryArm(
        arm=arm.name,
        library=arm.family,
        w=case.w,
        y="f32" if library.wide else case.w,
        accumulate=library.accumulate,
    )


def as_auto(arm: Arm, chosen: Outcome, rule: str) -> Outcome:
    """What was chosen for `auto`, under that name and with the choice as its first step."""
    if isinstance(chosen, Declined):
        return Declined(arm.name, chosen.reason)
    step = Step("arm", AUTO, chosen.arm, rule)
    return msgspec.structs.replace(chosen, arm=arm.name, steps=(step, *chosen.steps))


def rule_arm(case: Gemv, device: DeviceInfo) -> Arm:
    """What `auto` is where nothing was tuned: a rule by kind of device.

    The CPU constants are the best measured on PoCL and on Intel's runtime (docs/kernels.md).
    FP32 x declines load width on a GPU, so there it is S1's kernel.
    """
    if device.is_cpu:
        native = "half_native" in device.capabilities
        axes = (("pack", 4), ("accs", 2), ("items", 8)) if native else ()
        return Arm(family="cpu", axes=axes)
    return Arm() if case.x == "f32" else Arm(axes=(("pack", 3), ("block", AUTO_VALUE)))


def extra_rows(arm: Arm, n: int) -> int:
    """Rows that an arm reads behind the n-th: per mille of n, rounded to whole rows."""
    return round(n * (arm.asked("extra") or 0) / 1000)


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


def _declines(arm: Arm, family: Family, case: Gemv, device: DeviceInfo) -> str | None:
    if "gemv" not in family.operations:
        return f"family {arm.family} computes {', '.join(family.operations)}, not gemv"
    if family.cpu_only and not device.is_cpu:
        return f"family {arm.family} is for CPUs, and {device.id} is a {device.kind}"
    if device.language not in family.languages:
        return f"family {arm.family} has no {device.language} kernel"
    if arm.file is not None and arm.file.path.endswith(".cu") != (device.language == "cuda"):
        return f"{arm.file.path} is not {device.language}, which {device.id} needs"
    if arm.asked("acc") == 16 and "half_arithmetic" not in device.capabilities:
        return f"{device.id} does not compute in FP16 (compile probe)"
    if arm.asked("acc") == 16 and (case.w, case.x) != ("f16", "f16"):
        return f"FP16 accumulation needs FP16 operands, not {case.w} with {case.x}"
    if arm.family == "row" and case.x == "f32" and (arm.asked("pack") or 0) >= 1:
        return "an FP32 x declines load width; pack0 and base compute it"
    extra = extra_rows(arm, case.n)
    if arm.asked("extra") and not extra:
        return f"{arm.asked('extra')} per mille of {case.n} rows is less than half a row"
    if extra > case.spare:
        return f"it reads {extra} rows behind the last, and the case has {case.spare} spare ones"
    own = {"bulk": _no_bulk, "flight": _no_flight}.get(arm.family)
    if own is not None and (reason := own(arm, case, device)):
        return reason
    block = arm.value("block") if arm.family in ("row", "flight") else 1
    if block > device.max_workgroup:
        return f"workgroups of {block} exceed the {device.max_workgroup} of {device.id}"
    return None


def _specialize_row(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    steps: list[Step] = []
    pack = arm.value("pack")
    if case.x == "f32" and pack:
        steps.append(Step("pack", str(pack), "0", "an FP32 x declines load width"))
        pack = 0
    pack, fell = _fit_pack(pack, case)
    steps += fell
    rows, block = arm.value("rows"), arm.value("block")
    if block == AUTO_VALUE:
        block = min(choose_block(max(1, case.k >> pack)), device.max_workgroup)
        steps.append(
            Step("block", "auto", str(block), f"chosen for rows of {case.k >> pack} loads")
        )
    constants: Constants = {"PACK": pack, "ROWS": rows, "BLOCK": block, "ACC": arm.value("acc")}
    constants["UNROLL"] = max(0, arm.value("unroll"))  # 0: the compiler's choice
    constants |= _planted(arm, case)
    if device.language == "opencl":
        # Intel's CPU compiler gets scalar half loads wrong in workgroup-per-row kernels.
        constants["HALF"] = "HALF_BITS" if device.is_cpu else "HALF_VLOAD"
    return _build(
        arm,
        case,
        device,
        constants,
        workgroups=math.ceil((case.n + extra_rows(arm, case.n)) / rows),
        workgroup_size=block,
        steps=tuple(steps),
    )


def _specialize_cpu(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    pack, steps = _fit_pack(arm.value("pack"), case)
    methods = (c for c in ("half_native", "half_f16c") if c in device.capabilities)
    half = next(methods, "half_bits").upper()
    constants: Constants = {
        "PACK": pack,
        "ACCS": arm.value("accs"),
        "ACC": arm.value("acc"),
        "HALF": half,
    }
    if half == "HALF_BITS" and case.x != "f32" and case.k <= _X_CACHE_MOST:
        constants["X_CACHE"] = case.k  # slow conversions pay once per item, not once per row
    constants |= _planted(arm, case)
    return _build(
        arm,
        case,
        device,
        constants,
        workgroups=min(arm.value("items"), case.n + extra_rows(arm, case.n)),
        workgroup_size=1,
        steps=tuple(steps),
    )


def _no_flight(arm: Arm, case: Gemv, device: DeviceInfo) -> str | None:
    if case.x == "f32":
        return "family flight multiplies 16-bit x"
    if reason := _misfit(3, case):
        return f"{reason}, and its loads are of 16 bytes"
    if arm.value("cluster") > 1 and "clusters" not in device.capabilities:
        return f"{device.id} has no clusters of workgroups, which came with sm_90"
    if arm.value("dependent") and "dependent_launch" not in device.capabilities:
        return f"{device.id} has no launches that overlap, which came with sm_90"
    return None


def _specialize_flight(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
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
    return _build(
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


def _no_bulk(arm: Arm, case: Gemv, device: DeviceInfo) -> str | None:
    if "bulk_copy" not in device.capabilities:
        return f"{device.id} has no bulk copies into shared memory, which came with sm_90"
    if case.x == "f32":
        return "family bulk multiplies 16-bit x"
    if reason := _misfit(3, case):
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


def _specialize_bulk(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    """A workgroup of a producer's warp and the groups on every compute unit."""
    built = _build(
        arm,
        case,
        device,
        {**BULK, "X_BYTES": 2 * case.k},
        workgroups=device.compute_units,
        workgroup_size=32 + 128 * BULK["GROUPS"],
        steps=(),
    )
    return msgspec.structs.replace(built, local_bytes=bulk_local_bytes(case.k))


def _planted(arm: Arm, case: Gemv) -> Constants:
    """Nothing without extra rows: the text of every other arm stays what it was."""
    extra = extra_rows(arm, case.n)
    return {"EXTRA": extra} if extra else {}


def _fit_pack(pack: int, case: Gemv) -> tuple[int, list[Step]]:
    """The widest load at most 2**pack elements that k and both offsets allow."""
    steps = []
    while pack and (reason := _misfit(pack, case)):
        steps.append(Step("pack", str(pack), str(pack - 1), reason))
        pack -= 1
    return pack, steps


def _misfit(pack: int, case: Gemv) -> str | None:
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


def _build(
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
