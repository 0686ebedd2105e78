"""Specialisation of attention: constants, stages and ranges of an arm for a case on a device.

As in `ladder`, the outcome is a value on the record, and tests assert it. Terms are those of
kernels/*/attention.h: lane groups, of which some lie across the heads, the heads that a group
holds, slabs of heads, ranges of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemvbench.arm import AUTO_VALUE, FAMILIES, Arm
from gemvbench.attention_case import MAX_RANGES, QUANTISED, Attention
from gemvbench.device import DeviceInfo
from gemvbench.flash_ladder import no_flash, recommend_flash, specialize_flash
from gemvbench.libraries import LIBRARY_FAMILIES, attention_declines
from gemvbench.outcome import Constants, Declined, LibraryArm, Outcome, Specialization, Step
from gemvbench.stages import Ranges, Stage

_MOST_LANES = 32
_MOST_SHARED = 16
"""Query heads of one KV head that a lane group holds in registers."""
_MOST_APART = 4
"""Heads of different KV rows that it holds."""
_MOST_SUMS = 16
"""Sums that a lane group makes at once: tokens in flight times heads."""
_MOST_PRIVATE = 16384
"""Floats that a CPU's work-item keeps of q, or of sums: 64 KB of its cache."""
_FEW_SHARE, _FEW_SHARE_LONG, _LONG = 2, 4, 2048
"""Query heads of a KV head that are few to a CPU, in caches of fewer and of so many tokens."""
_TILE = 64
_PER_UNIT = 8
"""Workgroups for each compute unit, where there are tokens enough."""
_LEAST_TOKENS = {True: 16, False: 32}
"""Tokens that a range of V is worth, on a CPU and on a GPU: each costs a partial result."""


@dataclass(frozen=True)
class _Side:
    """How a workgroup goes through one of the two caches."""

    pack: int
    lanes: int
    across: int
    held: int
    subs: int
    slabs: int


def specialize_attention(arm: Arm, case: Attention, device: DeviceInfo) -> Outcome:
    """Constants, stages and ranges of `arm` for `case` on `device`. Pure; opens nothing."""
    if arm.family in LIBRARY_FAMILIES:
        reason = attention_declines(arm.family, case, device)
        if reason:
            return Declined(arm.name, reason)
        return LibraryArm(
            arm=arm.name,
            library=arm.family,
            w=case.k_type,
            y=case.k_type,
            operation=case.op,
        )
    if arm.family not in FAMILIES or case.op not in FAMILIES[arm.family].operations:
        return Declined(arm.name, f"{arm.family} does not compute {case.op}")
    if arm.family == "flashdecode":
        reason = no_flash(arm, case, device)
        return Declined(arm.name, reason) if reason else specialize_flash(arm, case, device)
    block = arm.value("block")
    steps: list[Step] = []
    if block == AUTO_VALUE:
        block = 1 if device.is_cpu else min(_gpu_block(arm), device.max_workgroup)
        steps.append(Step("block", "auto", str(block), f"the rule for a {device.kind} device"))
    reason = _declines(arm, case, device, block)
    if reason:
        return Declined(arm.name, reason)
    k_pack, k_steps = _fit_pack("K", arm.value("pack"), case.k_type, case.head_dim, block)
    v_pack, v_steps = _fit_pack("V", arm.value("pack"), case.v_type, case.v_size, block)
    if case.has_k:
        steps += k_steps
    if case.has_v:
        steps += v_steps
    k = _side(arm.family, case, block, k_pack, case.k_type, case.head_dim)
    v = _side(arm.family, case, block, v_pack, case.v_type, case.v_size)
    depth = 1 if block == 1 else max(1, min(4, _MOST_SUMS // max(k.held, v.held)))
    constants = _constants(arm, case, device, block, k, v, depth)
    ranges = _ranges(arm, case, device, k, v, depth)
    stages = _stages(arm, case, k, v, ranges, block)
    return Specialization(
        arm=arm.name,
        family=arm.family,
        file=device.kernel_file(FAMILIES[arm.family].file + ("_cpu" if block == 1 else "")),
        entry=stages[0].entry,
        constants=tuple(constants.items()),
        workgroups=stages[0].workgroups,
        workgroup_size=block,
        steps=tuple(steps),
        revision=arm.revision,
        stages=stages,
        ranges=ranges,
    )


def recommend_attention(case: Attention, device: DeviceInfo) -> Arm:
    """The arm the project recommends, `auto`: a rule by operation, shape and kind of device.

    A GPU goes over the cache in one pass where the operation allows it, on tensor cores where it
    has them; else it reads a row once for all its heads where heads share, and rows in the order
    in which they lie where not.
    """
    if device.is_cpu:
        return _recommend_for_cpu(case)
    if case.op == "attention":
        return recommend_flash(case, device) or Arm(family="splitkv")
    if case.ratio > 1:
        return Arm(family="gqa")
    return Arm(family="token_major" if case.layout == "tkd" else "per_head")


def _recommend_for_cpu(case: Attention) -> Arm:
    """As measured on two runtimes (docs/kernels.md): a CPU had rather read in order.

    A row that few heads share may be read again for each of them.
    """
    few = _FEW_SHARE_LONG if case.context >= _LONG else _FEW_SHARE
    if case.layout == "tkd" and case.ratio <= few:
        return Arm(family="token_major")
    if case.ratio > 1:
        return Arm(family="gqa")
    return Arm(family="splitkv" if case.op == "attention" else "per_head")


def _declines(arm: Arm, case: Attention, device: DeviceInfo, block: int) -> str | None:
    if arm.family == "gqa" and case.ratio == 1:
        return (
            f"N_h = N_k = {case.heads}: no query heads share a KV head, so there is nothing to "
            "read once; per_head and token_major compute it"
        )
    if block == 1 and not device.is_cpu:
        return f"block1 is one work-item with vector loads, for CPUs, and {device.id} is a GPU"
    if block == 1 and arm.asked("fused"):
        return "block1 has no fused1: on a CPU a second launch merges the ranges"
    if block > device.max_workgroup:
        return f"workgroups of {block} exceed the {device.max_workgroup} of {device.id}"
    if arm.value("q") and case.op == "av":
        return "av has no Q that could be quantised"
    if arm.value("q") and case.k_type not in QUANTISED:
        return f"q8 quantises Q as K is quantised, and K is {case.k_type}"
    return None


def _gpu_block(arm: Arm) -> int:
    """Items of a workgroup: token_major wants lane groups for many heads."""
    return 256 if arm.family == "token_major" else 128


def _fit_pack(what: str, pack: int, stored: str, dim: int, block: int) -> tuple[int, list[Step]]:
    """The widest load, of at most 2 << pack bytes, that rows of a cache allow."""
    steps = []
    while pack and (reason := _misfit(pack, stored, dim, block)):
        steps.append(Step(f"{what} pack", str(pack), str(pack - 1), reason))
        pack -= 1
    return pack, steps


def _misfit(pack: int, stored: str, dim: int, block: int) -> str | None:
    if stored not in QUANTISED:
        width = 1 << pack
        return f"a head of {dim} is not a multiple of {width}" if dim % width else None
    if block == 1:
        return (
            "16 quants would be a vector of 16 floats, which PoCL gets wrong" if pack > 2 else None
        )
    if stored == "q8_0":
        return "quants of q8_0 are aligned to 2 bytes only"
    return "rows of q8_KV are aligned to 8 bytes only" if pack > 2 else None


def _side(family: str, case: Attention, block: int, pack: int, stored: str, dim: int) -> _Side:
    width = 1 << pack + (stored in QUANTISED)
    lanes = 1 if block == 1 else min(_MOST_LANES, 1 << (-(-dim // width) - 1).bit_length())
    groups, across = block // lanes, 1
    if family == "per_head":
        held = 1
    elif family != "token_major":
        held = max(n for n in range(1, _MOST_SHARED + 1) if case.ratio % n == 0)
    elif block == 1:
        held = min(case.heads, _MOST_PRIVATE // max(case.head_dim, case.v_size))
    else:
        across = min(groups, case.heads)
        held = min(-(-case.heads // across), _MOST_APART)
    slabs = -(-case.heads // (across * held))
    return _Side(pack, lanes, across, held, groups // across, slabs)


def _constants(
    arm: Arm, case: Attention, device: DeviceInfo, block: int, k: _Side, v: _Side, depth: int
) -> Constants:
    constants: Constants = {
        "HEADS": case.heads,
        "RATIO": case.ratio,
        "K_DIM": case.head_dim,
        "V_DIM": case.v_size,
        "K_TYPE": case.k_type,
        "V_TYPE": case.v_type,
        "X_TYPE": f"TYPE_{case.q.upper()}",
        "QUANT_Q": arm.value("q"),
        "K_PACK": k.pack,
        "V_PACK": v.pack,
        "K_HELD": k.held,
        "V_HELD": v.held,
        "SHARED": int(arm.family != "token_major"),
        "BLOCK": block,
    }
    if block > 1:
        constants |= {"K_LANES": k.lanes, "V_LANES": v.lanes}
        constants |= {"K_ACROSS": k.across, "V_ACROSS": v.across, "DEPTH": depth}
        if arm.family == "splitkv":
            step = depth * k.subs
            constants["TILE"] = step * max(1, -(-_TILE // step))
            constants["FUSED"] = arm.value("fused")
    if device.language == "opencl":
        constants["HALF"] = _half(device, block)
    return constants


def _half(device: DeviceInfo, block: int) -> str:
    """How FP16 becomes FP32: as in `ladder`, vectors for CPU kernels, integers elsewhere there."""
    if not device.is_cpu:
        return "HALF_VLOAD"
    methods = (c for c in ("half_native", "half_f16c") if c in device.capabilities and block == 1)
    return next(methods, "half_bits").upper()


def _ranges(
    arm: Arm, case: Attention, device: DeviceInfo, k: _Side, v: _Side, depth: int
) -> Ranges:
    """Token ranges: as many as `splits` asks for, else enough to fill the device."""
    asked = arm.value("splits")
    wanted = _PER_UNIT * device.compute_units

    def chunk(slabs: int, step: int) -> int:
        ranges = -(-wanted // slabs) if asked == AUTO_VALUE else asked
        least = step if asked == AUTO_VALUE else 1
        return max(least, -(-case.context // min(ranges, MAX_RANGES)))

    v_chunk = chunk(v.slabs, max(_LEAST_TOKENS[device.is_cpu], depth * v.subs))
    k_chunk = chunk(k.slabs, _LEAST_TOKENS[True] if device.is_cpu else depth * k.subs)
    return Ranges(k_chunk=k_chunk, v_chunk=v_chunk, splits=-(-case.context // v_chunk))


def _stages(
    arm: Arm, case: Attention, k: _Side, v: _Side, ranges: Ranges, block: int
) -> tuple[Stage, ...]:
    def stage(entry: str, workgroups: int) -> Stage:
        return Stage(entry=entry, workgroups=workgroups, workgroup_size=block)

    splits = ranges.splits
    if arm.family == "splitkv":
        merges = splits > 1 and not arm.value("fused")
        merge = (stage("attn_merge", case.heads),) if merges else ()
        return (stage("attn_splitkv", v.slabs * splits), *merge)
    k_ranges = -(-case.context // ranges.k_chunk)
    scores = stage("attn_kq", k.slabs * k_ranges)
    total = (stage("attn_sum", case.heads),) if splits > 1 else ()
    values = (stage("attn_av", v.slabs * splits), *total)
    return {
        "kq": (scores,),
        "av": values,
        "attention": (scores, stage("attn_softmax", case.heads), *values),
    }[case.op]
