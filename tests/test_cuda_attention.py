"""The CUDA kernels of attention compile for every architecture; no GPU needed."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from attention import FAMILIES, factors, pairwise

from gemvbench.arm import parse_arm
from gemvbench.attention_case import Attention
from gemvbench.dispatch import specialize
from gemvbench.outcome import Specialization
from gemvbench.source import kernel_text

pytest.importorskip("cuda.bindings.nvrtc")
from test_cuda_compile import ARCHITECTURES, GPU

from gemvbench.backend import nvrtc

BLOCKS = ("block64", "block128", "block256", "block512")
ROWS = pairwise(factors(BLOCKS))


def build(arm: str, case: Attention) -> str:
    spec = specialize(parse_arm(arm), case, GPU)
    assert isinstance(spec, Specialization), spec
    return kernel_text(spec)


def text(arm: str, **fields: object) -> str:
    given = {"heads": 32, "kv_heads": 8, "head_dim": 128, "context": 1000} | fields
    return build(arm, Attention(**given))


def texts(architecture: str) -> list[str]:
    """All pairs for one architecture, and for the others every fourth, each from another on."""
    if architecture == "sm_90":
        return [build(row.arm, row.case("attention")) for row in ROWS]
    first = ARCHITECTURES.index(architecture) % 4
    return [build(row.arm, row.case("attention")) for row in ROWS[first::4]]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_arm_compiles(architecture: str) -> None:
    wanted = texts(architecture)
    for family in FAMILIES:
        assert any(family in row.arm for row in ROWS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = pool.map(lambda each: nvrtc.compile_cubin(each, architecture), wanted)
        assert all(cubin.startswith(b"\x7fELF") for cubin in cubins)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_default_arm_compiles_everywhere(family: str) -> None:
    for architecture in ARCHITECTURES:
        assert nvrtc.compile_cubin(text(family, head_dim=64), architecture)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("pack", "instruction"),
    [
        (3, r"ld\.global\.nc\.v4\.[ub]32|ld\.global\.nc\.v2\.[ub]64"),
        (2, r"ld\.global\.nc\.v2\.[ub]32|ld\.global\.nc\.[ub]64"),
        (1, r"ld\.global\.nc\.[ub]32"),
    ],
)
def test_a_pack_is_one_load(family: str, pack: int, instruction: str) -> None:
    """Beside the caches, only q is read through the read-only path: 2 bytes a load."""
    ptx = nvrtc.compile_ptx(text(f"{family}+pack{pack}"), "sm_90")
    loads = set(re.findall(r"ld\.global\.nc\S*", ptx))
    wide = {load for load in loads if not re.fullmatch(r"ld\.global\.nc\.[ub]16", load)}
    assert wide
    assert all(re.fullmatch(instruction, load) for load in wide), wide


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q8_KV"])
def test_what_a_lane_holds_stays_in_registers(family: str, kv: str) -> None:
    ptx = nvrtc.compile_ptx(text(family, heads=128, k_type=kv, v_type=kv), "sm_90")
    assert ".local" not in ptx


def test_a_quantised_query_multiplies_integers() -> None:
    for kv in ("q8_0", "q8_KV"):
        ptx = nvrtc.compile_ptx(text("per_head+q8", k_type=kv, v_type=kv), "sm_75")
        assert "dp4a" in ptx
        assert "dp4a" not in nvrtc.compile_ptx(text("per_head", k_type=kv, v_type=kv), "sm_75")


def test_a_fused_splitkv_compiles_everywhere() -> None:
    for architecture in ARCHITECTURES:
        assert nvrtc.compile_cubin(text("splitkv+fused1", head_dim=64), architecture)


def flash_text(arm: str, architecture: str, **fields: object) -> str:
    newer = ("dependent_launch",) if int(architecture[3:]) >= 90 else ()
    device = msgspec.structs.replace(GPU, capabilities=("async_copy", *newer), local_bytes=232448)
    case = Attention(**({"heads": 32, "kv_heads": 8, "head_dim": 128, "context": 1000} | fields))
    spec = specialize(parse_arm(arm), case, device)
    assert isinstance(spec, Specialization), spec
    return kernel_text(spec)


@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0", "q8_KV"])
def test_flashdecode_compiles_and_stays_in_registers(kv: str) -> None:
    """K and V of one type, and V of another; large heads need the most registers."""
    for architecture in ARCHITECTURES[1:]:
        one = flash_text("flashdecode", architecture, k_type=kv, v_type=kv)
        assert nvrtc.compile_cubin(one, architecture).startswith(b"\x7fELF")
    large = {"heads": 24, "kv_heads": 4, "head_dim": 256, "k_type": kv, "v_type": "q8_0"}
    ptx = nvrtc.compile_ptx(flash_text("flashdecode+dependent1", "sm_90", **large), "sm_90")
    assert "griddepcontrol.wait" in ptx
    assert ".local" not in ptx
    for instruction in ("cp.async.cg", "mma.sync.aligned.m16n8k16", "movmatrix"):
        assert instruction in ptx
