"""The ladder of family quant: what is really built, and what declines, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.case import QUANT_TYPES, Gemv
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import resolve, specialize
from gemvbench.errors import UserError
from gemvbench.outcome import Declined, HostArm, LibraryArm, Specialization
from gemvbench.tune_plan import entrants

CPU = make_device(units=4)
GPU = make_device(kind="gpu", units=100)


def cuda(**fields: Any) -> DeviceInfo:
    import msgspec

    return msgspec.structs.replace(GPU, id="cuda0", backend="cuda", **fields)


CUDA = cuda()


def build(arm: str, device: DeviceInfo = CUDA, **case: Any) -> Specialization:
    outcome = specialize(parse_arm(arm), Gemv(**({"k": 4096, "n": 4096} | case)), device)
    assert isinstance(outcome, Specialization), outcome
    return outcome


def reason(arm: str, device: DeviceInfo = CUDA, **case: Any) -> str:
    outcome = specialize(parse_arm(arm), Gemv(**({"k": 4096, "n": 4096} | case)), device)
    assert isinstance(outcome, Declined), outcome
    return outcome.reason


@pytest.mark.parametrize(
    ("w", "bits"), [("q8_0", 34 / 32 * 8), ("q4_0", 18 / 32 * 8), ("q4_K", 144 / 256 * 8)]
)
def test_bytes_count_as_stored(w: str, bits: float) -> None:
    case = Gemv(k=5120, n=17408, w=w)
    assert case.weight_bytes * 8 == 5120 * 17408 * bits
    assert case.bytes_moved == case.weight_bytes + 2 * 5120 + 4 * 17408
    assert case.id == f"gemv-5120x17408-{w}-f16"


@pytest.mark.parametrize(
    ("k", "w_offset", "device", "pack"),
    [
        (32 * 8, 0, CUDA, 3),
        (32 * 4, 0, CUDA, 2),
        (32 * 2, 0, CUDA, 1),
        (32 * 3, 0, CUDA, 0),
        (32 * 8, 8, CUDA, 2),
        (32 * 8, 4, CUDA, 1),
        (32 * 8, 2, CUDA, 0),
        (32 * 8, 0, GPU, 1),
        (32 * 3, 0, GPU, 0),
    ],
)
@pytest.mark.parametrize("w", ["q8_0", "q4_0"])
def test_loads_of_blocks_as_in_files(
    w: str, k: int, w_offset: int, device: DeviceInfo, pack: int
) -> None:
    for arm in ("quant", "quant+pack3"):
        spec = build(arm, device, k=k, w=w, w_offset=w_offset)
        assert spec.constant("W_PACK") == pack
        assert [step.asked for step in spec.steps if step.axis == "pack"] == [
            str(p) for p in range(3, pack, -1)
        ]


def test_what_is_aligned_takes_16_bytes_whatever_its_blocks() -> None:
    assert build("quant", GPU, k=256, w="q4_K").constant("W_PACK") == 3
    assert build("quant+repack1", GPU, k=64, w="q4_0").constant("W_PACK") == 3
    assert build("quant", CUDA, k=256, w="q4_K", w_offset=8).constant("W_PACK") == 2


def local_bytes(spec: Specialization, unit: int, staged: int) -> int:
    """Of pieces of x and staged blocks, as the head of quant.cu counts them."""
    at = {name: int(spec.constant(name) or 0) for name in ("ROWS", "AHEAD", "LANES", "BLOCK")}
    piece = at["AHEAD"] * at["LANES"] * unit * (5 if spec.constant("X8") else 16) // 4
    held = int(spec.constant("X_ROUNDS") or 0) * piece
    wide = int(spec.constant("W_PACK") or 0) > 1
    return held + (at["BLOCK"] * at["AHEAD"] * at["ROWS"] * staged if wide else 0)


@pytest.mark.parametrize("k", [64, 96, 256, 1024, 5120, 17408, 53248])
@pytest.mark.parametrize("arm", ["quant", "quant+xq8", "quant+rows4+ahead4+block512"])
@pytest.mark.parametrize(("w", "unit", "staged"), [("q8_0", 16, 17), ("q4_0", 32, 18)])
def test_x_fits_in_shared_memory(arm: str, k: int, w: str, unit: int, staged: int) -> None:
    outcome = specialize(parse_arm(arm), Gemv(k=k, n=9, w=w), CUDA)
    if isinstance(outcome, Declined):
        assert "exceed 49152 bytes" in outcome.reason
        assert "block512" in arm
        return
    assert isinstance(outcome, Specialization)
    assert 0 < local_bytes(outcome, unit, staged) <= 48 << 10


def test_workgroups_are_tiles_or_fill_the_device() -> None:
    tile = "quant+rows2+block256"
    assert build(tile, w="q4_K", n=161).workgroups == 11
    assert build(tile, w="q4_K", n=1 << 20).workgroups == 200
    assert build(f"{tile}+groups3", w="q4_K", n=1 << 20).workgroups == 300
    assert build(f"{tile}+groups0", w="q4_K", n=1 << 20).workgroups == 1 << 16


def test_a_cpu_has_items_unless_workgroups_are_asked_for() -> None:
    spec = build("quant+xq8", CPU, w="q4_0")
    assert (spec.entry, spec.file) == ("gemv_quant_cpu", "opencl/quant_cpu.cl")
    assert (spec.constant("X_CACHE"), spec.constant("X8"), spec.workgroups) == (4096, 1, 32)
    assert build("quant+pack0", CPU, w="q4_0").entry == "gemv_quant"
    assert reason("quant+block1+pack0", CPU, w="q4_0").endswith("which has no axis pack")
    assert "items is an axis of block1" in reason("quant+items8+block64", CPU, w="q4_0")
    assert "cuda0 is a GPU" in reason("quant+block1", w="q4_0")


@pytest.mark.parametrize("device", [CPU, GPU, CUDA], ids=["cpu", "gpu", "cuda"])
@pytest.mark.parametrize("w", QUANT_TYPES)
def test_base_and_auto_have_an_arm_for_every_type(device: DeviceInfo, w: str) -> None:
    base = build("base", device, w=w)
    assert (base.arm, base.constant("W_PACK"), base.constant("AHEAD")) == ("base", 0, 1)
    assert base.steps[0].built == "quant+pack0+rows1+ahead1+block256"
    fastest = {
        "q8_0": "quant+rows4+ahead2+lanes32+block256+groups0",
        "q4_0": "quant+rows4+ahead2+lanes16+block128+groups0",
        "q4_K": "quant+rows4+ahead1+lanes32+block128+groups0",
    }
    wanted = fastest[w] if device is CUDA else "quant"
    assert build("auto", device, w=w).steps[0].built == wanted
    assert resolve(parse_arm("auto"), Gemv(k=256, n=9, w=w), device).family == "quant"


@pytest.mark.parametrize("device", [CPU, GPU, CUDA], ids=["cpu", "gpu", "cuda"])
def test_tuning_searches_what_leaves_result_and_file_alone(device: DeviceInfo) -> None:
    for w in QUANT_TYPES:
        arms = [entrant.arm for entrant in entrants(Gemv(k=4096, n=4096, w=w), device)]
        assert len(arms) > 5
        assert {arm.family for arm in arms} == {"quant"}
        assert not any(arm.asked("xq") or arm.asked("repack") for arm in arms)
        assert all(parse_arm(arm.name) == arm for arm in arms)


def test_repacking_declines_where_it_has_nothing_to_gain_or_no_place() -> None:
    assert "aligned to 16 already" in reason("quant+repack1", w="q4_K")
    assert "rows of 3 blocks" in reason("quant+repack1", k=96, w="q8_0")
    assert "byte offset 2 does not" in reason("quant+repack1", w="q4_0", w_offset=2)


@pytest.mark.parametrize(
    "arm", ["pack2", "cpu", "flight", "bulk", "frozen", "numpy", "cublas", "torch_mv", "clblast"]
)
def test_other_families_and_peers_decline(arm: str) -> None:
    able = ("cublas", "torch", "clblast", "half_arithmetic", "bulk_copy")
    for device in (CPU, make_device(capabilities=able), cuda(capabilities=able)):
        outcome = specialize(parse_arm(arm), Gemv(k=256, n=9, w="q4_0"), device)
        assert not isinstance(outcome, Specialization | HostArm | LibraryArm)
    assert "no product of q4_0 weights and f16 x" in reason(
        "cublas", cuda(capabilities=able), w="q4_0"
    )
    assert reason("numpy", CPU, w="q4_0") == "numpy has no product of q4_0 weights"
    assert reason("pack2", CPU, w="q4_0") == "family row has no q4_0; family quant computes it"


def test_family_quant_declines_what_it_cannot_build() -> None:
    assert "the weights are f16" in reason("quant")
    assert "64 lanes" in reason("quant+lanes128+block64", w="q4_0").replace("128", "64")
    assert "came with sm_90" in reason("quant+dependent1", w="q4_0")
    assert build("quant+dependent1", cuda(capabilities=("dependent_launch",)), w="q4_0").constant(
        "DEPENDENT"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"k": 4000, "w": "q4_K"}, "not a multiple of 256"),
        ({"k": 48, "w": "q8_0"}, "not a multiple of 32"),
        ({"k": 1 << 17, "w": "q4_0"}, "between 1 and 65536"),
        ({"k": 64, "w": "q4_0", "w_offset": 1}, "multiple of 2"),
        ({"k": 64, "w": "q5_K"}, "known are f16, bf16, q8_0, q4_0, q4_K"),
    ],
)
def test_cases_that_no_kernel_computes_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        Gemv(n=8, **fields)
