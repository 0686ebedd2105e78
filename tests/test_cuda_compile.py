"""Every CUDA kernel compiles for every architecture; no GPU needed."""

from __future__ import annotations

import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import msgspec
import pytest

from gemvbench.arm import FAMILIES, Arm, parse_arm
from gemvbench.case import QUANT_TYPES, VECTOR_TYPES, WEIGHT_TYPES, Gemv
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError
from gemvbench.fitting import BLOCKS
from gemvbench.ladder import specialize
from gemvbench.outcome import Specialization
from gemvbench.source import KERNELS, assemble, kernel_text

pytest.importorskip("cuda.bindings.nvrtc")
from gemvbench.backend import nvrtc

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
GPU = DeviceInfo(
    id="cuda0", backend="cuda", kind="gpu", name="", vendor="", platform="", driver="", version="",
    compute_units=132, max_workgroup=1024, memory_bytes=0, max_alloc_bytes=0, free_bytes=0,
    cache_bytes=0,
    capabilities=("half_arithmetic",),
)  # fmt: skip


@cache
def family_texts(family: str) -> set[str]:
    """What the dispatch builds for all axis values and types, each distinct text once.

    Unrolling touches one loop, so it is varied over pack and rows in one kind of arm; planted
    rows are a number in the grid, whose every value one arm has.
    """
    axes = FAMILIES[family].axes
    texts = set()
    for w, x in itertools.product(WEIGHT_TYPES, VECTOR_TYPES):
        for values in itertools.product(*axes.values()):
            arm = Arm(family=family, axes=tuple(zip(axes, values, strict=True)))
            if "unroll" in axes and arm.value("unroll") != 1 and not plain(arm, w, x):
                continue
            if arm.asked("extra") and not plants(arm, w, x):
                continue
            if arm.asked("wide") and arm.value("block") != 128:
                continue
            spec = specialize(arm, Gemv(k=4096, n=4096, w=w, x=x, spare=410), GPU)
            if isinstance(spec, Specialization):
                texts.add(kernel_text(spec))
    return texts


def plain(arm: Arm, w: str, x: str) -> bool:
    return (w, x, arm.value("acc"), arm.value("block")) == ("f16", "f16", 32, 128)


def plants(arm: Arm, w: str, x: str) -> bool:
    every_value = (arm.value("pack"), arm.value("rows")) == (3, 4)
    return (
        plain(arm, w, x) and arm.value("unroll") == 1 and (every_value or arm.value("extra") == 5)
    )


def text(file: str, **constants: int | str) -> str:
    return assemble(f"cuda/{file}", tuple(constants.items()))


def helper_texts() -> set[str]:
    roofs = {
        text("roof.cu", VEC=vec, UNROLL=unroll, BLOCK=block)
        for vec in (4, 8, 16)
        for unroll in (1, 2, 4, 8)
        for block in (256, 512)
    }
    fills = {
        text("inputs.cu", TYPE=f"TYPE_{dtype.upper()}", KIND=f"KIND_{kind}")
        for dtype in VECTOR_TYPES
        for kind in ("RANDOM", "SMALL", "SPARSE")
    }
    return roofs | fills | {text("inputs.cu"), text("launch.cu")}


def row_text(**constants: int | str) -> str:
    defaults = {"W_TYPE": "TYPE_F16", "X_TYPE": "TYPE_F16", "PACK": 3, "ROWS": 1, "BLOCK": 256}
    return text("gemv.cu", **(defaults | {"ACC": 32} | constants))


def flight_texts(architecture: str) -> set[str]:
    """Family `flight`: ahead by block, with the axes that need sm_90 in turn, and all types."""
    able = ("clusters", "dependent_launch") if int(architecture[3:]) >= 90 else ()
    device = msgspec.structs.replace(GPU, capabilities=able)
    others = itertools.cycle(((1, 0), (2, 1), (4, 0), (1, 1), (8, 1)) if able else ((1, 0),))
    arms = [
        f"flight+ahead{ahead}+block{block}+cluster{cluster}+dependent{dependent}"
        for ahead, block in itertools.product((1, 2, 3, 4, 5, 6, 8), BLOCKS)
        for cluster, dependent in [next(others)]
    ]
    specs = [specialize(parse_arm(arm), Gemv(k=4096, n=4096), device) for arm in arms]
    specs += [
        specialize(Arm(family="flight"), Gemv(k=5120, n=64, w=w, x=x), device)
        for w in WEIGHT_TYPES
        for x in WEIGHT_TYPES
    ]
    return {kernel_text(spec) for spec in specs if isinstance(spec, Specialization)}


def test_flight_is_compiled_without_what_an_architecture_lacks():
    before, after = flight_texts("sm_80"), flight_texts("sm_90")
    assert len(before) == 7 * 4 + 3  # one of the four by type is among those by axis
    assert not any("#define DEPENDENT 1" in text for text in before)
    for cluster, dependent in ((1, 1), (2, 1), (4, 0), (8, 1)):
        wanted = f"#define CLUSTER {cluster}\n#define DEPENDENT {dependent}\n"
        assert any(wanted in text for text in after)


def bulk_texts(architecture: str) -> set[str]:
    """Family `bulk` for all types and a short and a long x; none before sm_90."""
    able = ("bulk_copy",) if int(architecture[3:]) >= 90 else ()
    device = msgspec.structs.replace(GPU, capabilities=able, local_bytes=227 << 10)
    cases = [
        Gemv(k=k, n=64, w=w, x=x) for k in (4096, 17408) for w in WEIGHT_TYPES for x in WEIGHT_TYPES
    ]
    arms = [Arm(family="bulk", axes=(("fenced", fenced),)) for fenced in (0, 1)]
    specs = [specialize(arm, case, device) for case in cases for arm in arms]
    return {kernel_text(spec) for spec in specs if isinstance(spec, Specialization)}


def test_bulk_is_compiled_where_it_runs():
    assert {a: len(bulk_texts(a)) for a in ARCHITECTURES} == {
        "sm_75": 0, "sm_80": 0, "sm_90": 16, "sm_100": 16, "sm_120": 16,
    }  # fmt: skip


def quant_texts(architecture: str) -> set[str]:
    """Family `quant`: every load of every type and layout, with the other axes in turn."""
    able = ("dependent_launch",) if int(architecture[3:]) >= 90 else ()
    device = msgspec.structs.replace(GPU, capabilities=able)
    others = itertools.cycle(
        ("rows1+ahead2+block64", "rows2+ahead4+lanes16", "rows4+ahead1+block128", "ahead3")
    )
    wide = itertools.cycle(("rows1+lanes64", "rows2+lanes256+block512", "lanes8"))
    dependent = "+dependent1" if able else ""
    specs = []
    for w, pack, repack, xq in itertools.product(QUANT_TYPES, range(4), (0, 1), (0, 8)):
        for x, axes in zip(VECTOR_TYPES, (next(others), next(others), next(wide)), strict=True):
            arm = f"quant+pack{pack}+repack{repack}+xq{xq}+{axes}{dependent if x == 'f16' else ''}"
            specs.append(specialize(parse_arm(arm), Gemv(k=4096, n=64, w=w, x=x), device))
    specs += [
        specialize(parse_arm(arm), Gemv(k=k, n=64, w=w), device)
        for k in (5120, 17408)
        for w in QUANT_TYPES
        for arm in ("base", "quant", "quant+xq8")
    ]
    return {kernel_text(spec) for spec in specs if isinstance(spec, Specialization)}


def in_turn(texts: set[str], architecture: str) -> list[str]:
    """Half of them for sm_90, an eighth for each other architecture: these take long to compile.

    What is built where nothing is asked for is compiled everywhere, by
    `test_auto_of_quantised_weights_compiles`.
    """
    ordered = sorted(texts)
    if architecture == "sm_90":
        return ordered[::2]
    others = [each for each in ARCHITECTURES if each != "sm_90"]
    return ordered[1 + 2 * others.index(architecture) :: 8]


def test_quant_texts_hold_every_load_of_every_layout():
    texts = quant_texts("sm_90")
    for w, pack, repack, x8 in itertools.product(QUANT_TYPES, range(4), (0, 1), (0, 1)):
        wanted = (f"W_TYPE TYPE_{w.upper()}", f"W_PACK {pack}", f"REPACK {repack}", f"X8 {x8}")
        found = any(all(f"#define {word}\n" in text for word in wanted) for text in texts)
        assert found == ((w, repack) != ("q4_K", 1)), wanted
    assert any("#define DEPENDENT 1" in text for text in texts)
    assert not any("#define DEPENDENT 1" in text for text in quant_texts("sm_80"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("w", QUANT_TYPES)
@pytest.mark.parametrize("arm", ["quant", "quant+xq8"])
def test_auto_of_quantised_weights_compiles(w, arm, architecture):
    spec = specialize(parse_arm(arm), Gemv(k=5120, n=17408, w=w), GPU)
    assert nvrtc.compile_cubin(kernel_text(spec), architecture).startswith(b"\x7fELF")


def test_matrix_holds_every_axis_value():
    texts = family_texts("row")
    for constant, values in {
        "PACK": (0, 1, 2, 3),
        "ROWS": (1, 2, 4),
        "BLOCK": (64, 128, 256, 512),
        "ACC": (16, 32),
        "UNROLL": (0, 1, 2, 4, 8),
        "EXTRA": (12, 20, 41, 82, 123, 205, 410),
        "W_TYPE": ("TYPE_F16", "TYPE_BF16"),
        "X_TYPE": ("TYPE_F16", "TYPE_BF16", "TYPE_F32"),
    }.items():
        assert all(
            any(f"#define {constant} {value}\n" in text for text in texts) for value in values
        )
    # 18 pairs of types and pack, and 4 with FP16 sums, 3 rows, 4 blocks; 4 more unrollings;
    # planted rows in each pack and rows, and 6 more numbers of them; an FP32 x in three packs.
    assert len(texts) == (18 + 4) * 3 * 4 + 4 * 3 * 4 + 4 * 3 + 6 + 2 * 3 * 3
    assert sum("#define EXTRA" in text.partition("#line")[0] for text in texts) == 4 * 3 + 6
    assert len(family_texts("frozen")) == 6


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_arm_compiles(architecture):
    both = ("cuda", "opencl")  # bulk, flight and quant have texts of their own
    cuda = [
        name
        for name, family in FAMILIES.items()
        if "gemv" in family.operations and family.languages == both and name != "quant"
    ]
    texts = set().union(*map(family_texts, cuda)) | helper_texts()
    texts |= bulk_texts(architecture) | flight_texts(architecture)
    texts.update(in_turn(quant_texts(architecture), architecture))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = pool.map(lambda text: nvrtc.compile_cubin(text, architecture), texts)
        assert all(cubin.startswith(b"\x7fELF") for cubin in cubins)


@pytest.mark.parametrize(
    ("pack", "instruction"),
    [
        (3, r"ld\.global\.nc\.v4\.[ub]32|ld\.global\.nc\.v2\.[ub]64"),
        (2, r"ld\.global\.nc\.v2\.[ub]32|ld\.global\.nc\.[ub]64"),
        (1, r"ld\.global\.nc\.[ub]32"),
        (0, r"ld\.global\.nc\.[ub]16"),
    ],
)
@pytest.mark.parametrize("acc", [32, 16])
def test_a_pack_is_one_load(pack, instruction, acc):
    ptx = nvrtc.compile_ptx(row_text(PACK=pack, ROWS=2, ACC=acc), "sm_90")
    loads = re.findall(r"ld\.global\S*", ptx)
    assert loads
    assert all(re.fullmatch(instruction, load) for load in loads), loads


def test_half_sums_are_pairs_and_float_sums_are_fused():
    assert "fma.rn.f16x2" in nvrtc.compile_ptx(row_text(ACC=16), "sm_75")
    ptx = nvrtc.compile_ptx(row_text(), "sm_75")
    assert "fma.rn.f32" in ptx
    assert "mul.f32" not in ptx


def test_roof_reads_16_bytes():
    ptx = nvrtc.compile_ptx(text("roof.cu", VEC=16, UNROLL=2, BLOCK=256), "sm_90")
    assert len(re.findall(r"ld\.global\.nc\.v4", ptx)) >= 8


@pytest.mark.parametrize(
    ("file", "broken"),
    [
        ("gemv.cu", ("acc[r], load_w", "acc[r] load_w")),
        ("types.h", ("int half = WIDTH", "int half == WIDTH")),
    ],
)
def test_a_syntax_error_names_file_and_line(file, broken):
    planted = row_text().replace(*broken)
    assert planted != row_text()
    lines = (KERNELS / "cuda" / file).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if broken[0] in line)
    where = rf"cuda/{re.escape(file)}\({number}\): error"
    with pytest.raises(CompileError, match=where):
        nvrtc.compile_cubin(planted, "sm_90")


def test_an_unknown_architecture_is_a_compile_error():
    with pytest.raises(CompileError):
        nvrtc.compile_cubin(row_text(), "sm_12345")


def test_half_sums_refuse_other_types():
    with pytest.raises(CompileError, match="f16 operands"):
        nvrtc.compile_cubin(row_text(ACC=16, X_TYPE="TYPE_BF16"), "sm_90")
