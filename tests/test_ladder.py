"""What will really be built, over the whole ladder: a silently weaker choice turns this red."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.case import Gemv
from gemvbench.dispatch import specialize
from gemvbench.fitting import choose_block
from gemvbench.jobs import Build, choose, identical, rows1_sibling
from gemvbench.outcome import Declined, HostArm, Specialization

GPU = make_device(id="gpu0", kind="gpu", capabilities=("half_arithmetic",))
CPU = make_device(id="cpu0", kind="cpu")
NATIVE = make_device(id="cpu1", kind="cpu", capabilities=("half_native", "half_arithmetic"))
F16C = make_device(id="cpu2", kind="cpu", capabilities=("half_f16c",))

# Largest pack that fits k, by what k is a multiple of.
K = {5119: 0, 5122: 1, 2880: 3, 5124: 2, 5128: 3, 5120: 3, 1: 0, 2: 1, 4: 2, 8: 3, 7: 0}


def build(arm: str, device: Any = GPU, k: int = 5120, n: int = 96, **case: Any) -> Specialization:
    outcome = specialize(parse_arm(arm), Gemv(k=k, n=n, **case), device)
    assert isinstance(outcome, Specialization), outcome
    return outcome


def declined(arm: str, device: Any = GPU, k: int = 5120, n: int = 96, **case: Any) -> str:
    outcome = specialize(parse_arm(arm), Gemv(k=k, n=n, **case), device)
    assert isinstance(outcome, Declined), outcome
    assert outcome.arm == arm
    return outcome.reason


def same(one: str, other: str, device: Any = GPU, k: int = 5120, n: int = 96, **case: Any) -> bool:
    """Whether two arms are the same code by what was built of them."""
    chosen = [choose(parse_arm(a), a, Gemv(k=k, n=n, **case), device)[0] for a in (one, other)]
    return identical(*(Build(choice=choice) for choice in chosen))


def steps(spec: Specialization, axis: str = "pack") -> list[tuple[str, str]]:
    return [(step.asked, step.built) for step in spec.steps if step.axis == axis]


HOPPER = msgspec.structs.replace(
    make_device(id="cuda0", kind="gpu", capabilities=("bulk_copy", "clusters", "dependent_launch")),
    backend="cuda",
    compute_units=132,
    local_bytes=232448,
)


def test_bulk_fills_every_compute_unit() -> None:
    spec = build("bulk", HOPPER, k=17408, n=7)
    assert (spec.file, spec.entry) == ("cuda/bulk.cu", "gemv_bulk")
    assert (spec.workgroups, spec.workgroup_size) == (132, 32 + 3 * 128)
    assert spec.local_bytes == 6 * 30720 + 2 * 17408
    assert dict(spec.constants) == {
        "W_TYPE": "TYPE_F16", "X_TYPE": "TYPE_F16", "GROUPS": 3, "STAGES": 6,
        "STAGE_BYTES": 30720, "X_BYTES": 34816, "FENCED": 0,
    }  # fmt: skip
    assert build("bulk+fenced1", HOPPER).constant("FENCED") == 1


@pytest.mark.parametrize("k", [8, 5120, 15360, 15368, 23040])
def test_a_stage_of_the_ring_stays_with_its_group(k: int) -> None:
    """As kernels/cuda/bulk.cu asks for: else a group takes an old phase for a new one."""
    spec = build("bulk", HOPPER, k=k)
    stages, groups = int(spec.constant("STAGES") or 0), int(spec.constant("GROUPS") or 0)
    parts = math.ceil(2 * k / int(spec.constant("STAGE_BYTES") or 0))
    assert stages % (groups * parts) == 0


@pytest.mark.parametrize(
    ("device", "case", "reason"),
    [
        (GPU, {}, "no opencl kernel"),
        (msgspec.structs.replace(HOPPER, capabilities=()), {}, "no bulk copies"),
        (msgspec.structs.replace(HOPPER, local_bytes=101376), {}, "195584 bytes of shared memory"),
        (HOPPER, {"k": 23560}, "232464 bytes of shared memory for rows of 23560"),
        (HOPPER, {"k": 5124}, "not a multiple of 8, and bulk copies are of 16 bytes"),
        (HOPPER, {"w_offset": 8}, "not aligned to 16 bytes"),
        (HOPPER, {"x": "f32"}, "16-bit x"),
    ],
)
def test_bulk_declines(device: Any, case: dict[str, Any], reason: str) -> None:
    assert reason in declined("bulk", device, **case)


@pytest.mark.parametrize(
    ("arm", "k", "block", "ahead", "workgroups"),
    [
        ("flight", 5120, 128, 5, 96),
        ("flight", 4096, 128, 4, 96),
        ("flight", 17408, 128, 8, 96),
        ("flight+ahead2+block256", 5120, 256, 2, 96),
        ("flight+cluster4", 5120, 64, 3, 384),
        ("flight", 8, 64, 1, 96),
    ],
)
def test_flight_holds_a_row_where_it_can(
    arm: str, k: int, block: int, ahead: int, workgroups: int
) -> None:
    spec = build(arm, HOPPER, k=k)
    built = spec.constant("BLOCK"), spec.constant("AHEAD"), spec.workgroups
    assert built == (block, ahead, workgroups)


@pytest.mark.parametrize(
    ("arm", "device", "case", "reason"),
    [
        ("flight", GPU, {}, "no opencl kernel"),
        ("flight", HOPPER, {"x": "f32"}, "16-bit x"),
        ("flight", HOPPER, {"k": 5124}, "its loads are of 16 bytes"),
        ("flight+cluster2", msgspec.structs.replace(HOPPER, capabilities=()), {}, "no clusters"),
        ("flight+dependent1", msgspec.structs.replace(HOPPER, capabilities=()), {}, "overlap"),
    ],
)
def test_flight_declines(arm: str, device: Any, case: dict[str, Any], reason: str) -> None:
    assert reason in declined(arm, device, **case)


def test_launches_that_may_overlap_say_so() -> None:
    case = Gemv(k=5120, n=96)
    jobs = [choose(parse_arm(a), a, case, HOPPER)[1] for a in ("flight", "flight+dependent1")]
    assert [getattr(job, "is_dependent", None) for job in jobs] == [False, True]


@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("asked", [0, 1, 2, 3])
@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_pack_falls_to_what_k_allows(k: int, asked: int, device: Any) -> None:
    spec = build(f"pack{asked}", device, k)
    built = min(asked, K[k])
    assert spec.constant("PACK") == built
    assert steps(spec) == [(str(p), str(p - 1)) for p in range(asked, built, -1)]
    assert all(f"k = {k} is not a multiple of" in step.reason for step in spec.steps)


@pytest.mark.parametrize(("k", "pack"), K.items())
def test_the_default_pack_is_one_where_k_is_even(k: int, pack: int) -> None:
    assert build("base", k=k).constant("PACK") == min(1, pack)


@pytest.mark.parametrize(
    ("offsets", "pack"),
    [
        ({"w_offset": 0, "x_offset": 0}, 3),
        ({"w_offset": 16}, 3),
        ({"w_offset": 8}, 2),
        ({"w_offset": 4}, 1),
        ({"w_offset": 2}, 0),
        ({"x_offset": 32}, 3),
        ({"x_offset": 24}, 2),
        ({"x_offset": 12}, 1),
        ({"x_offset": 6}, 0),
        ({"w_offset": 8, "x_offset": 4}, 1),
        ({"w_offset": 2, "x_offset": 16}, 0),
    ],
)
@pytest.mark.parametrize("w", ["f16", "bf16"])
@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_pack_falls_to_what_offsets_allow(offsets: Any, pack: int, w: str, device: Any) -> None:
    spec = build("pack3", device, w=w, **offsets)
    assert spec.constant("PACK") == pack
    assert all("byte offset" in step.reason for step in spec.steps)
    assert build("pack3", device, k=7, w=w, **offsets).constant("PACK") == 0


@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_an_fp32_x_declines_load_width(k: int, device: Any) -> None:
    base = build("base", device, k, x="f32")
    assert base.constant("PACK") == 0
    assert base.constant("X_TYPE") == "TYPE_F32"
    assert [step.reason for step in base.steps] == ["an FP32 x declines load width"]
    explicit = build("pack0", device, k, x="f32")
    assert explicit.steps == ()
    assert same("base", "pack0", device, k, x="f32")
    assert not same("base", "pack0+rows2", device, k, x="f32")
    for pack in (1, 2, 3):
        assert "FP32 x declines load width" in declined(f"pack{pack}", device, k, x="f32")


@pytest.mark.parametrize(("w", "x"), [(w, x) for w in ("f16", "bf16") for x in ("f16", "bf16")])
def test_types_travel_as_constants(w: str, x: str) -> None:
    spec = build("pack2", w=w, x=x)
    assert spec.constant("W_TYPE") == f"TYPE_{w.upper()}"
    assert spec.constant("X_TYPE") == f"TYPE_{x.upper()}"
    assert spec.constant("PACK") == 2


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 96])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("block", [64, 128, 256, 512])
def test_geometry(n: int, rows: int, block: int) -> None:
    spec = build(f"pack2+rows{rows}+block{block}", n=n)
    assert dict(spec.constants) == {
        "W_TYPE": "TYPE_F16",
        "X_TYPE": "TYPE_F16",
        "PACK": 2,
        "ROWS": rows,
        "BLOCK": block,
        "ACC": 32,
        "UNROLL": 1,
        "HALF": "HALF_VLOAD",
    }
    assert (spec.workgroups, spec.workgroup_size) == (math.ceil(n / rows), block)
    assert (spec.file, spec.entry) == ("opencl/gemv.cl", "gemv_row")


@pytest.mark.parametrize(
    ("loads", "block"),
    list(
        zip(
            (1, 64, 65, 128, 200, 256, 360, 512, 640, 1280, 1440, 2176, 2560, 5120),
            (64, 64, 64, 64, 64, 64, 64, 128, 128, 256, 64, 128, 512, 512),
            strict=True,
        )
    ),
)
def test_blockauto_fits_the_row(loads: int, block: int) -> None:
    assert choose_block(loads) == block
    spec = build("pack0+blockauto", k=loads)
    assert spec.constant("BLOCK") == spec.workgroup_size == block
    assert steps(spec, "block") == [("auto", str(block))]


def test_blockauto_counts_loads_after_the_ladder() -> None:
    assert build("pack3+blockauto", k=4096).constant("BLOCK") == choose_block(512)
    assert build("pack3+blockauto", k=4095).constant("BLOCK") == choose_block(4095)
    small = make_device(kind="gpu", max_workgroup=64)
    assert build("pack0+blockauto", small, k=5120).constant("BLOCK") == 64


@pytest.mark.parametrize("arm", ["block512", "base", "pack2"])
def test_blocks_the_device_has_not_are_declined(arm: str) -> None:
    assert "exceed the 128 of tiny" in declined(arm, make_device(id="tiny", max_workgroup=128))


def test_half_accumulation() -> None:
    assert build("pack2+acc16").constant("ACC") == 16
    assert "does not compute in FP16" in declined("pack2+acc16", CPU)
    for types in ({"w": "bf16"}, {"x": "bf16"}, {"x": "f32"}):
        assert "needs FP16 operands" in declined("acc16", **types)


@pytest.mark.parametrize(
    ("device", "half"), [(CPU, "HALF_BITS"), (NATIVE, "HALF_NATIVE"), (F16C, "HALF_F16C")]
)
@pytest.mark.parametrize("n", [1, 7, 5000])
def test_the_cpu_family_follows_the_device(device: Any, half: str, n: int) -> None:
    spec = build("cpu", device, n=n)
    assert (spec.family, spec.entry, spec.file) == ("cpu", "gemv_cpu", "opencl/gemv_cpu.cl")
    assert spec.constant("HALF") == half
    assert (spec.constant("PACK"), spec.constant("ACCS")) == (3, 4)
    assert spec.workgroup_size == 1
    assert spec.workgroups == min(32, n)
    assert build("cpu+items8+accs2+pack4", device, n=n).workgroups == min(8, n)


def test_slow_conversions_of_x_are_made_once() -> None:
    """Where halves are converted by integer operations, and x is small enough to keep."""
    assert build("cpu", CPU, 5120).constant("X_CACHE") == 5120
    assert build("cpu", CPU, 17408).constant("X_CACHE") is None
    assert build("cpu", CPU, 5120, x="f32").constant("X_CACHE") is None
    assert build("cpu", F16C, 5120).constant("X_CACHE") is None


@pytest.mark.parametrize(("axis", "constant"), [("auto", 0), ("1", 1), ("2", 2), ("8", 8)])
def test_unroll(axis: str, constant: int) -> None:
    assert build(f"unroll{axis}").constant("UNROLL") == constant


EXTRA = {0: 0, 3: 3, 5: 5, 10: 10, 20: 20, 30: 30, 50: 50, 100: 100}


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize(("arm", "device"), [("pack3+rows4", GPU), ("base", CPU), ("cpu", F16C)])
def test_planted_rows_are_an_exact_share(arm: str, device: Any, extra: int) -> None:
    head = "row" if arm == "base" else arm
    spec = build(f"{head}+extra{extra}", device, n=1000, spare=100)
    plain = build(arm, device, n=1000, spare=100)
    rows = int(plain.constant("ROWS") or 0)
    assert spec.extra == EXTRA[extra]
    assert spec.workgroups == (math.ceil((1000 + extra) / rows) if rows else 32)
    added = {"EXTRA": extra} if extra else {}
    assert dict(spec.constants) == dict(plain.constants) | added
    assert same(f"{head}+extra{extra}", arm, device, n=1000, spare=100) == (extra == 0)


@pytest.mark.parametrize(("n", "rows"), [(100, 0), (101, 1), (301, 2), (128256, 641)])
def test_planted_rows_are_whole_and_never_none(n: int, rows: int) -> None:
    if rows:
        assert build("extra5", n=n, spare=n).extra == rows
    else:
        assert "5 per mille of 100 rows" in declined("extra5", n=n, spare=n)


@pytest.mark.parametrize("arm", ["extra100", "cpu+extra100", "mine=a/b.cl:e+extra100"])
def test_planted_rows_need_spare_ones(arm: str) -> None:
    reason = declined(arm, CPU, n=1000, spare=99)
    assert reason == "it reads 100 rows behind the last, and the case has 99 spare ones"
    assert build(arm, CPU, n=1000, spare=100).extra == 100


def test_arms_without_planted_rows_never_hear_of_them() -> None:
    for arm in ("base", "pack3+rows4", "cpu", "frozen", "auto"):
        assert build(arm, CPU, spare=50) == build(arm, CPU)
        assert build(arm, CPU).constant("EXTRA") is None


def test_siblings_of_planted_arms_are_planted() -> None:
    case = Gemv(k=512, n=100, spare=10)
    sibling = rows1_sibling(parse_arm("rows4+extra100"), case, GPU)
    assert sibling is not None
    assert (sibling.extra, sibling.workgroups) == (10, 110)


@pytest.mark.parametrize(("k", "pack"), [*K.items(), (5136, 4)])
def test_the_cpu_family_falls_too(k: int, pack: int) -> None:
    pack = 4 if k % 16 == 0 else pack
    assert build("cpu+pack4", CPU, k).constant("PACK") == pack
    assert build("cpu", CPU, k).constant("PACK") == min(3, pack)
    assert build("cpu", CPU, k, x="f32").constant("PACK") == min(3, pack)


@pytest.mark.parametrize("device", [GPU, make_device(id="big", kind="gpu")])
def test_cpu_arms_are_for_cpus(device: Any) -> None:
    assert "is for CPUs" in declined("cpu", device)
    assert "runs on the host" in declined("numpy", device)
    assert isinstance(specialize(parse_arm("numpy"), Gemv(k=8, n=8), CPU), HostArm)


def test_a_cuda_file_is_declined_here() -> None:
    assert "is not opencl" in declined("mine=a/b.cu:e")
    spec = build("mine=a/b.cl:e+pack2")
    assert (spec.file, spec.entry, spec.user_file) == ("a/b.cl", "e", True)
    assert spec.constant("PACK") == 2


def test_frozen_has_no_levers() -> None:
    spec = build("frozen")
    assert dict(spec.constants) == {"W_TYPE": "TYPE_F16", "X_TYPE": "TYPE_F16"}
    assert (spec.workgroups, spec.workgroup_size) == (96, 128)


@pytest.mark.parametrize(("k", "pack"), K.items())
def test_auto_on_a_gpu_is_pack3_with_its_ladder(k: int, pack: int) -> None:
    spec = build("auto", GPU, k)
    assert (spec.arm, spec.family, spec.constant("PACK")) == ("auto", "row", pack)
    assert steps(spec, "arm") == [("auto", "pack3+blockauto")]
    assert same("auto", "pack3+blockauto", GPU, k)


@pytest.mark.parametrize(
    ("k", "n", "arm"),
    [
        (4096, 1024, "pack3"), (5120, 96, "pack3"), (17408, 5120, "pack3"),
        (4096, 4096, "pack3+blockauto"), (14336, 4096, "pack3+blockauto"),
    ],
)  # fmt: skip
def test_auto_fills_a_gpu(k: int, n: int, arm: str) -> None:
    """Few rows get workgroups of 256, as long ones do; H200 figures are in docs/results.md."""
    assert steps(build("auto", HOPPER, k, n=n), "arm") == [("auto", arm)]


@pytest.mark.parametrize("device", [CPU, NATIVE, F16C])
@pytest.mark.parametrize("x", ["f16", "f32"])
def test_auto_on_a_cpu_is_the_cpu_family(device: Any, x: str) -> None:
    spec = build("auto", device, x=x)
    assert (spec.arm, spec.family, spec.entry) == ("auto", "cpu", "gemv_cpu")
    assert spec.constant("PACK") == (4 if device is NATIVE else 3)


@pytest.mark.parametrize(("k", "pack"), K.items())
def test_an_fp32_x_is_loaded_wide_where_that_is_asked(k: int, pack: int) -> None:
    spec = build("pack3+wide1", k=k, x="f32")
    assert spec.constant("PACK") == pack
    assert same("auto", "pack3+blockauto+wide1", GPU, k, x="f32")
    assert "wide1 is for an FP32 x" in declined("pack3+wide1", GPU, k)
    assert build("pack3+wide1", k=5120, x="f32", x_offset=16).constant("PACK") == 2


def test_a_revision_stays_with_auto() -> None:
    spec = build("auto@v0.1")
    assert (spec.arm, spec.revision) == ("auto@v0.1", "v0.1")


def test_siblings_differ_in_rows_alone() -> None:
    sibling = rows1_sibling(parse_arm("pack2+rows4"), Gemv(k=512, n=9), GPU)
    assert sibling is not None
    assert "#define ROWS 1\n" in sibling.text
    assert "#define PACK 2\n" in sibling.text
    assert sibling.workgroups == 9
    for arm in ("pack2", "auto", "frozen", "cpu"):
        assert rows1_sibling(parse_arm(arm), Gemv(k=512, n=9), CPU) is None


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        ("base", "pack1", True),
        ("base", "pack1+rows1+block256", True),
        ("base", "base+block128", False),
        ("frozen", "frozen", True),
        ("base", "frozen", False),
        ("numpy", "numpy", False),
        ("acc16", "acc16", False),
    ],
)
def test_identical_arms(one: str, other: str, are: bool) -> None:
    """A host's library and what was declined build nothing, so nothing shows that it is equal."""
    assert same(one, other, CPU) == are


def test_more_workgroups_are_not_the_same(tmp_path: Path) -> None:
    kernel = tmp_path / "k.cl"
    kernel.write_text("")
    arms = [f"mine={kernel}:{entry}" for entry in ("e", "f")]
    assert same(arms[0], arms[0], CPU)
    assert not same(*arms, CPU)
    choices = [choose(parse_arm(arms[0]), "mine", Gemv(k=8, n=n), CPU)[0] for n in (8, 9)]
    assert choices[0].source != choices[1].source


def test_families_of_attention_are_none_of_gemv() -> None:
    assert "not gemv" in declined("per_head")
