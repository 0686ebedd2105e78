"""What attention arms really build, over the ladder; and the cases that are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.attention_case import MAX_CONTEXT, MAX_RANGES, Attention, row_bytes
from gemvbench.dispatch import recommend, specialize
from gemvbench.errors import UserError
from gemvbench.models import find_model
from gemvbench.outcome import Declined, Specialization

GPU = make_device(id="gpu0", kind="gpu", units=132)
HOPPER = msgspec.structs.replace(
    GPU,
    backend="cuda",
    local_bytes=232448,
    capabilities=("async_copy", "dependent_launch"),
)
CPU = make_device(id="cpu0", kind="cpu", units=2)
F16C = make_device(id="cpu1", kind="cpu", units=2, capabilities=("half_f16c",))
FAMILIES = ("per_head", "gqa", "token_major", "splitkv")


def make(op: str = "attention", **fields: Any) -> Attention:
    given = {"heads": 32, "kv_heads": 8, "head_dim": 128, "context": 4096} | fields
    return Attention(op=op, **given)


def build(arm: str, device: Any = GPU, op: str = "attention", **fields: Any) -> Specialization:
    outcome = specialize(parse_arm(arm), make(op, **fields), device)
    assert isinstance(outcome, Specialization), outcome
    return outcome


def declined(arm: str, device: Any = GPU, op: str = "attention", **fields: Any) -> str:
    outcome = specialize(parse_arm(arm), make(op, **fields), device)
    assert isinstance(outcome, Declined), outcome
    return outcome.reason


def steps(spec: Specialization, axis: str) -> list[tuple[str, str]]:
    return [(step.asked, step.built) for step in spec.steps if step.axis == axis]


@pytest.mark.parametrize("asked", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "dim", "most"),
    [
        ("f16", 128, 3), ("bf16", 96, 3), ("f16", 100, 2), ("bf16", 34, 1), ("f16", 5, 0),
        ("q8_0", 128, 0), ("q8_KV", 192, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", FAMILIES)
def test_pack_falls_to_what_rows_allow(
    family: str, kind: str, dim: int, most: int, asked: int
) -> None:
    """K of the type in question, V of f16: each cache has a load width of its own."""
    spec = build(f"{family}+pack{asked}", head_dim=dim, v_dim=64, k_type=kind)
    built = min(asked, most)
    assert (spec.constant("K_PACK"), spec.constant("V_PACK")) == (built, asked)
    assert steps(spec, "K pack") == [(str(p), str(p - 1)) for p in range(asked, built, -1)]
    assert steps(spec, "V pack") == []
    spec = build(f"{family}+pack{asked}", head_dim=64, v_dim=dim, v_type=kind)
    assert (spec.constant("K_PACK"), spec.constant("V_PACK")) == (asked, built)


@pytest.mark.parametrize(("kind", "built"), [("f16", 3), ("q8_0", 2), ("q8_KV", 2)])
def test_a_cpu_loads_quants_from_anywhere(kind: str, built: int) -> None:
    spec = build("per_head", CPU, k_type=kind)
    assert (spec.constant("BLOCK"), spec.constant("K_PACK")) == (1, built)


def test_the_ladder_names_only_what_the_operation_reads() -> None:
    assert not steps(build("per_head", op="kq", v_type="q8_0"), "V pack")
    assert not steps(build("per_head", op="av", k_type="q8_0"), "K pack")


@pytest.mark.parametrize(
    ("kind", "dim", "lanes"),
    [
        ("f16", 64, 8), ("f16", 96, 16), ("f16", 128, 16), ("f16", 192, 32), ("f16", 256, 32),
        ("q8_0", 64, 32), ("q8_KV", 64, 8), ("f16", 250, 32), ("f16", 1, 1),
    ],
)  # fmt: skip
def test_lanes_cover_a_row(kind: str, dim: int, lanes: int) -> None:
    assert build("per_head", head_dim=dim, k_type=kind).constant("K_LANES") == lanes


@pytest.mark.parametrize(
    ("arm", "heads", "kv_heads", "held", "across", "shared"),
    [
        ("per_head", 32, 8, 1, 1, 1),
        ("gqa", 32, 8, 4, 1, 1),
        ("gqa", 24, 4, 6, 1, 1),
        ("gqa", 16, 1, 16, 1, 1),
        ("gqa", 64, 1, 16, 1, 1),  # more than a lane group holds: in four slabs
        ("gqa", 34, 2, 1, 1, 1),  # 17 has no divisor that it holds
        ("splitkv", 32, 8, 4, 1, 1),
        ("splitkv", 16, 16, 1, 1, 1),
        ("token_major", 32, 8, 2, 16, 0),  # 256 / 16 lane groups
        ("token_major", 16, 16, 1, 16, 0),
        ("token_major", 8, 8, 1, 8, 0),
        ("token_major", 3, 3, 1, 3, 0),
        ("token_major+block64", 64, 8, 4, 4, 0),
    ],
)
def test_heads_of_a_lane_group(
    arm: str, heads: int, kv_heads: int, held: int, across: int, shared: int
) -> None:
    spec = build(arm, heads=heads, kv_heads=kv_heads)
    found = [spec.constant(name) for name in ("K_HELD", "K_ACROSS", "V_HELD", "V_ACROSS")]
    assert found == [held, across, held, across]
    assert spec.constant("SHARED") == shared
    slabs = -(-heads // (held * across))
    assert spec.ranges is not None
    stage = spec.stages[0 if arm.startswith("splitkv") else 2]
    assert stage.workgroups == slabs * spec.ranges.splits


@pytest.mark.parametrize(("dims", "held"), [(64, 32), (256, 32), (192, 32)])
def test_a_cpu_item_holds_all_heads_that_fit(dims: int, held: int) -> None:
    assert build("token_major", CPU, head_dim=dims).constant("K_HELD") == held
    wide = build("token_major", CPU, heads=256, kv_heads=256, head_dim=dims)
    assert wide.constant("K_HELD") == 16384 // dims


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("context", [1, 7, 128, 5000, MAX_CONTEXT])
@pytest.mark.parametrize("splits", ["auto", "1", "8", "512"])
@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_ranges_hold_every_token_and_none_is_empty(
    family: str, context: int, splits: str, device: Any
) -> None:
    spec = build(f"{family}+splits{splits}", device, context=context)
    ranges = spec.ranges
    assert ranges is not None
    assert (ranges.splits - 1) * ranges.v_chunk < context <= ranges.splits * ranges.v_chunk
    assert ranges.splits <= MAX_RANGES
    if splits != "auto":
        assert ranges.splits <= int(splits)
    entries = [stage.entry for stage in spec.stages]
    combine = "attn_merge" if family == "splitkv" else "attn_sum"
    assert (combine in entries) == (ranges.splits > 1)


@pytest.mark.parametrize(
    ("op", "family", "entries"),
    [
        ("kq", "gqa", ["attn_kq"]),
        ("av", "per_head", ["attn_av", "attn_sum"]),
        ("attention", "token_major", ["attn_kq", "attn_softmax", "attn_av", "attn_sum"]),
        ("attention", "splitkv", ["attn_splitkv", "attn_merge"]),
    ],
)
def test_stages_of_an_operation(op: str, family: str, entries: list[str]) -> None:
    spec = build(family, op=op)
    assert [stage.entry for stage in spec.stages] == entries
    assert {stage.workgroup_size for stage in spec.stages} == {spec.constant("BLOCK")}


def test_the_files_and_conversions_of_a_device() -> None:
    assert build("per_head").file == "opencl/attention.cl"
    assert build("splitkv", CPU).file == "opencl/splitkv_cpu.cl"
    assert build("gqa+block64", CPU).file == "opencl/attention.cl"
    assert build("gqa").constant("HALF") == "HALF_VLOAD"
    assert build("gqa", CPU).constant("HALF") == "HALF_BITS"
    assert build("gqa", F16C).constant("HALF") == "HALF_F16C"
    assert build("gqa+block64", F16C).constant("HALF") == "HALF_BITS"


def test_one_text_serves_all_contexts_and_layouts() -> None:
    one = build("token_major", context=100)
    other = build("token_major", context=5000, layout="ktd")
    assert one.constants == other.constants


def test_what_an_arm_declines() -> None:
    assert "no query heads share" in declined("gqa", heads=16, kv_heads=16)
    assert "gpu0 is a GPU" in declined("per_head+block1")
    assert "K is f16" in declined("per_head+q8")
    assert "no Q" in declined("per_head+q8", op="av", k_type="q8_0")
    small = make_device(id="gpu1", kind="gpu", max_workgroup=64)
    assert "exceed the 64" in declined("per_head+block256", small)
    assert build("token_major", small).constant("BLOCK") == 64
    assert "does not compute kq" in declined("splitkv", op="kq")


def test_auto_is_a_rule() -> None:
    assert recommend(make(), GPU).family == "splitkv"
    assert recommend(make("kq"), GPU).family == "gqa"
    assert recommend(make("av", heads=8), GPU).family == "token_major"
    assert recommend(make("av", heads=8, layout="ktd"), GPU).family == "per_head"
    assert recommend(make(heads=8), GPU).family == "splitkv"
    spec = build("auto")
    assert (spec.arm, spec.family) == ("auto", "splitkv")
    assert steps(spec, "arm") == [("auto", "splitkv")]


@pytest.mark.parametrize(
    ("heads", "context", "layout", "family"),
    [
        (8, 32, "tkd", "token_major"),
        (16, 32, "tkd", "token_major"),
        (16, 4096, "tkd", "token_major"),
        (32, 256, "tkd", "gqa"),
        (32, 2048, "tkd", "token_major"),
        (48, 4096, "tkd", "gqa"),
        (64, 256, "tkd", "gqa"),
        (16, 1024, "ktd", "gqa"),
        (48, 1024, "ktd", "gqa"),
        (8, 1024, "ktd", "splitkv"),
    ],
)
def test_auto_on_a_cpu_reads_in_order_unless_many_share(
    heads: int, context: int, layout: str, family: str
) -> None:
    """What was measured for each on PoCL and on Intel's runtime: docs/kernels.md."""
    case = make(heads=heads, context=context, layout=layout)
    assert recommend(case, CPU).family == family
    own = {"splitkv": "per_head"}.get(family, family)
    assert recommend(make("av", heads=heads, context=context, layout=layout), CPU).family == own


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 30}, "30 query heads cannot share 8 KV heads"),
        ({"head_dim": 512}, "between 1 and 256"),
        ({"v_dim": 257}, "head size of V"),
        ({"head_dim": 100, "k_type": "q8_0"}, "not a multiple of 32"),
        ({"v_dim": 48, "v_type": "q8_KV"}, "head of V has 48"),
        ({"context": 0}, "context is 0"),
        ({"context": 300, "capacity": 256}, "does not fit a cache of 256"),
        ({"k_type": "q4_0"}, "no type of K"),
        ({"layout": "dkt"}, "no cache layout"),
        ({"q": "bf16"}, "no type of Q"),
        ({"scale": float("nan")}, "scale"),
    ],
)
def test_bad_cases_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(**fields)


def test_bytes_of_a_case() -> None:
    case = make(head_dim=192, v_dim=128, heads=16, kv_heads=16, context=100, k_type="q8_KV")
    k, v = 100 * 16 * 200, 100 * 16 * 256
    assert (row_bytes("q8_KV", 192), row_bytes("q8_0", 64)) == (200, 68)
    assert case.bytes_moved == k + v + 16 * 192 * 2 + 16 * 128 * 4
    assert case.copy_bytes == k + v
    assert make("kq", context=10).copy_bytes == 10 * 8 * 256
    wider = make(context=10, capacity=1000)
    assert wider.copy_bytes == 2 * 1000 * 8 * 256
    assert wider.bytes_moved < wider.copy_bytes / 50


def test_ids_tell_cases_apart() -> None:
    cases = [
        make(), make("kq"), make("av"), make(layout="ktd"), make(k_type="bf16"),
        make(v_type="bf16"), make(context=5), make(capacity=5000), make(q="f32"), make(v_dim=64),
        make(head_dim=64), make(heads=16),
    ]  # fmt: skip
    assert len({case.id for case in cases}) == len(cases)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("deepseek-v2-lite", (16, 16, 192, 128)),
        ("qwen3.6-27b", (24, 4, 256, 256)),
        ("llama-3.1-8b", (32, 8, 128, 128)),
        ("gpt-oss-20b", (64, 8, 64, 64)),
    ],
)
def test_models_have_their_heads(model: str, shape: tuple[int, ...]) -> None:
    heads = find_model(model).attention
    assert heads is not None
    assert (heads.heads, heads.kv_heads, heads.head_dim, heads.v_dim) == shape


@pytest.mark.parametrize(
    ("shape", "kv", "held", "slots", "workgroups"),
    [
        # heads a workgroup holds, tiles of a ring, and workgroups at 1k, 4k, 16k and 64k
        ((32, 8, 128), "f16", 4, 6, (128, 256, 256, 264)),
        ((64, 8, 128), "bf16", 8, 6, (128, 256, 256, 264)),
        ((24, 4, 256), "f16", 6, 3, (64, 128, 256, 264)),
        ((16, 16, 128), "f16", 1, 6, (256, 256, 256, 256)),
        ((32, 8, 128), "q8_0", 4, 6, (128, 256, 416, 528)),
        ((24, 4, 256), "q8_KV", 6, 6, (64, 88, 172, 264)),
        ((34, 2, 64), "f16", 6, 8, (48, 96, 192, 264)),
    ],
)
def test_flashdecode_fills_the_device_once(
    shape: tuple[int, int, int], kv: str, held: int, slots: int, workgroups: tuple[int, ...]
) -> None:
    """And has no more ranges than merging them is worth."""
    heads, kv_heads, dim = shape
    found = []
    for context in (1024, 4096, 16384, 65536):
        spec = build(
            "flashdecode", HOPPER, heads=heads, kv_heads=kv_heads, head_dim=dim,
            context=context, k_type=kv, v_type=kv,
        )  # fmt: skip
        assert [stage.entry for stage in spec.stages] == ["attn_flash"]
        assert (spec.constant("K_HELD"), spec.constant("SLOTS")) == (held, slots)
        assert spec.file == "cuda/flashdecode.cu"
        ranges = spec.ranges
        assert ranges is not None
        assert (ranges.splits - 1) * ranges.v_chunk < context <= ranges.splits * ranges.v_chunk
        resident = 4 if kv == "q8_0" else 2
        assert spec.constant("RESIDENT") == resident
        assert spec.workgroups <= resident * HOPPER.compute_units
        assert resident * (spec.local_bytes + 1024 + 128) <= HOPPER.local_bytes + 1024
        found.append(spec.workgroups)
    assert tuple(found) == workgroups


@pytest.mark.parametrize("asked", [1, 4, 512])
def test_flashdecode_splits_as_asked(asked: int) -> None:
    spec = build(f"flashdecode+splits{asked}+dependent1", HOPPER, context=5000)
    assert spec.ranges is not None
    assert spec.ranges.v_chunk % 16 == 0
    assert spec.ranges.splits == {1: 1, 4: 4, 512: 313}[asked]
    assert (spec.stages[0].is_dependent, spec.constant("DEPENDENT")) == (True, 1)


def test_fused_ranges_are_merged_in_the_same_launch() -> None:
    spec = build("splitkv+fused1")
    assert [stage.entry for stage in spec.stages] == ["attn_splitkv"]
    assert spec.constant("FUSED") == 1
    assert "second launch merges" in declined("splitkv+fused1", CPU)
    assert build("splitkv+block64+fused1", CPU).constant("FUSED") == 1


BOTH, SPLITS, OVERLAP = "+splits16+dependent1", "+splits16", "+dependent1"


@pytest.mark.parametrize(
    ("shape", "kv", "arms"),
    [
        # at 1k, 4k, 16k and 64k
        ((32, 8, 128), "f16", (BOTH, BOTH, OVERLAP, SPLITS)),
        ((24, 4, 256), "f16", (BOTH, BOTH, SPLITS, SPLITS)),
        ((16, 16, 128), "f16", (BOTH, BOTH, OVERLAP, OVERLAP)),
        ((32, 8, 128), "q8_0", (BOTH, BOTH, OVERLAP, OVERLAP)),
        ((8, 2, 128), "f16", (OVERLAP, OVERLAP, "", "")),
    ],
)
def test_auto_is_what_was_fastest(
    shape: tuple[int, int, int], kv: str, arms: tuple[str, ...]
) -> None:
    heads, kv_heads, dim = shape
    for context, axes in zip((1024, 4096, 16384, 65536), arms, strict=True):
        case = make(
            heads=heads, kv_heads=kv_heads, head_dim=dim, context=context, k_type=kv, v_type=kv
        )
        assert recommend(case, HOPPER).name == f"flashdecode{axes}"
    ampere = msgspec.structs.replace(HOPPER, capabilities=("async_copy",))
    assert recommend(make(kv_heads=2, heads=2), ampere).name == "flashdecode"


def test_what_flashdecode_declines() -> None:
    older = msgspec.structs.replace(HOPPER, capabilities=())
    ampere = msgspec.structs.replace(HOPPER, capabilities=("async_copy",), local_bytes=0)
    assert "is CUDA" in declined("flashdecode", GPU)
    assert "sm_80" in declined("flashdecode", older)
    assert "sm_90" in declined("flashdecode+dependent1", ampere)
    assert "Q is FP32" in declined("flashdecode", HOPPER, q="f32")
    assert "head of K has 100" in declined("flashdecode", HOPPER, head_dim=100, v_dim=64)
    assert "head of V has 8" in declined("flashdecode", HOPPER, v_dim=8)
    assert "do not fit" in declined("flashdecode+resident4", ampere, head_dim=256)
    assert "does not compute kq" in declined("flashdecode", HOPPER, op="kq")
    assert recommend(make(q="f32"), HOPPER).family == "splitkv"
    assert recommend(make(), older).family == "splitkv"
