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
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo
from gemvbench.fitting import build, choose_block, fit_pack
from gemvbench.hopper_ladder import no_bulk, no_flight, specialize_bulk, specialize_flight
from gemvbench.libraries import LIBRARY_FAMILIES, library_declines
from gemvbench.outcome import (
    Constants,
    Declined,
    HostArm,
    LibraryArm,
    Outcome,
    Specialization,
    Step,
)
from gemvbench.quant_ladder import BASE, is_base, no_quant, quant_rule, specialize_quant

_X_CACHE_MOST = 16384


def specialize(arm: Arm, case: Gemv, device: DeviceInfo) -> Outcome:
    """Constants and geometry of `arm`, any but `auto`, for `case` on `device`. Pure."""
    if case.is_quantised and is_base(arm):
        plain = specialize(BASE.at_revision_of(arm), case, device)
        return as_chosen(arm, plain, f"the plain arm of {case.w}")
    if arm.family in HOST_FAMILIES:
        if not device.is_cpu:
            return Declined(arm.name, f"{arm.family} runs on the host, and {device.id} is a GPU")
        if case.is_quantised:
            return Declined(arm.name, f"{arm.family} has no product of {case.w} weights")
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
        return specialize_bulk(arm, case, device)
    if arm.family == "flight":
        return specialize_flight(arm, case, device)
    if arm.family == "quant":
        return specialize_quant(arm, case, device)
    return build(arm, case, device, {}, workgroups=case.n, workgroup_size=128, steps=())


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


def as_chosen(arm: Arm, chosen: Outcome, rule: str) -> Outcome:
    """What was chosen for `auto` or `base`, under that name, with the choice as its first step."""
    if isinstance(chosen, Declined):
        return Declined(arm.name, chosen.reason)
    step = Step("arm", AUTO if arm.family == AUTO else "base", chosen.arm, rule)
    return msgspec.structs.replace(chosen, arm=arm.name, steps=(step, *chosen.steps))


_SMALL_BLOCK, _UNIT_HOLDS = 128, 2048
"""Items of a workgroup that fits most rows, and that a GPU's compute unit holds at once."""
_LONG_ROW = 16384


def rule_arm(case: Gemv, device: DeviceInfo) -> Arm:
    """What `auto` is where nothing was tuned: a rule by kind of device.

    The CPU constants are the best measured on PoCL and on Intel's runtime (docs/kernels.md).
    Workgroups stay at the 256
    items of the family where smaller ones would not fill a GPU, and for rows that are long
    anyway: 12, 34 and 2 % on an H200 (docs/results.md, shapes 4096x1024, 5120x96, 17408x5120).
    """
    if case.is_quantised:
        return quant_rule(case, device)
    if device.is_cpu:
        native = "half_native" in device.capabilities
        axes = (("pack", 4), ("accs", 2), ("items", 8)) if native else ()
        return Arm(family="cpu", axes=axes)
    few = case.n * _SMALL_BLOCK < device.compute_units * _UNIT_HOLDS
    block = () if few or case.k > _LONG_ROW else (("block", AUTO_VALUE),)
    wide = (("wide", 1),) if case.x == "f32" else ()
    return Arm(axes=(("pack", 3), *block, *wide))


def extra_rows(arm: Arm, n: int) -> int:
    """Rows that an arm reads behind the n-th: per mille of n, rounded to whole rows."""
    return round(n * (arm.asked("extra") or 0) / 1000)


def _no_kernel(arm: Arm, family: Family, case: Gemv, device: DeviceInfo) -> str | None:
    """Why a family has no kernel for such weights on such a device."""
    if "gemv" not in family.operations:
        return f"family {arm.family} computes {', '.join(family.operations)}, not gemv"
    if case.is_quantised and arm.family != "quant":
        return f"family {arm.family} has no {case.w}; family quant computes it"
    if family.cpu_only and not device.is_cpu:
        return f"family {arm.family} is for CPUs, and {device.id} is a {device.kind}"
    if device.language not in family.languages:
        return f"family {arm.family} has no {device.language} kernel"
    if arm.file is not None and arm.file.path.endswith(".cu") != (device.language == "cuda"):
        return f"{arm.file.path} is not {device.language}, which {device.id} needs"
    return None


def _declines(arm: Arm, family: Family, case: Gemv, device: DeviceInfo) -> str | None:
    if reason := _no_kernel(arm, family, case, device):
        return reason
    if arm.asked("acc") == 16 and "half_arithmetic" not in device.capabilities:
        return f"{device.id} does not compute in FP16 (compile probe)"
    if arm.asked("acc") == 16 and (case.w, case.x) != ("f16", "f16"):
        return f"FP16 accumulation needs FP16 operands, not {case.w} with {case.x}"
    if arm.family == "row" and (reason := _no_wide(arm, case)):
        return reason
    extra = extra_rows(arm, case.n)
    if arm.asked("extra") and not extra:
        return f"{arm.asked('extra')} per mille of {case.n} rows is less than half a row"
    if extra > case.spare:
        return f"it reads {extra} rows behind the last, and the case has {case.spare} spare ones"
    own = {"bulk": no_bulk, "flight": no_flight, "quant": no_quant}.get(arm.family)
    if own is not None and (reason := own(arm, case, device)):
        return reason
    block = arm.value("block") if arm.family in ("row", "flight") else 1
    if block > device.max_workgroup:
        return f"workgroups of {block} exceed the {device.max_workgroup} of {device.id}"
    return None


def _no_wide(arm: Arm, case: Gemv) -> str | None:
    """S2's ladder declines FP32 x, unless x is asked to be loaded as wide."""
    if case.x != "f32":
        return "wide1 is for an FP32 x" if arm.value("wide") else None
    if (arm.asked("pack") or 0) >= 1 and not arm.value("wide"):
        return "an FP32 x declines load width; pack0, base and wide1 compute it"
    return None


def _specialize_row(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    steps: list[Step] = []
    pack = arm.value("pack")
    if case.x == "f32" and pack and not arm.value("wide"):
        steps.append(Step("pack", str(pack), "0", "an FP32 x declines load width"))
        pack = 0
    pack, fell = fit_pack(pack, case)
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
    return build(
        arm,
        case,
        device,
        constants,
        workgroups=math.ceil((case.n + extra_rows(arm, case.n)) / rows),
        workgroup_size=block,
        steps=tuple(steps),
    )


def _specialize_cpu(arm: Arm, case: Gemv, device: DeviceInfo) -> Specialization:
    pack, steps = fit_pack(arm.value("pack"), case)
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
    return build(
        arm,
        case,
        device,
        constants,
        workgroups=min(arm.value("items"), case.n + extra_rows(arm, case.n)),
        workgroup_size=1,
        steps=tuple(steps),
    )


def _planted(arm: Arm, case: Gemv) -> Constants:
    """Nothing without extra rows: the text of every other arm stays what it was."""
    extra = extra_rows(arm, case.n)
    return {"EXTRA": extra} if extra else {}
