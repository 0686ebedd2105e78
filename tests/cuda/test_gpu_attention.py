"""Attention on the GPUs here, in CUDA and in OpenCL: all pairs, and the full product."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from attention import factors, pairwise, product_arms, replace, verify

from gemvbench.arm import parse_arm
from gemvbench.attention_case import CACHE_TYPES, LAYOUTS, Attention
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.backend import binaries
from gemvbench.commands.attention import ALL_HEADS, ALL_RATIOS
from gemvbench.errors import UserError
from gemvbench.jobs import choose
from gemvbench.messages import Layout, Verified, Verify
from gemvbench.plan import plan_layout
from gemvbench.spaces import make_space
from gemvbench.worker import list_devices, open_backend

pytestmark = pytest.mark.cuda

ROWS = pairwise(factors(("block64", "block128", "block256", "block512")))


@pytest.fixture(scope="module", params=["cuda", "opencl"])
def backend(request):
    try:
        found = [message.device for message in list_devices(request.param)]
    except UserError as refusal:
        pytest.skip(str(refusal))
    gpus = [info for info in found if not info.is_cpu]
    if not gpus:
        pytest.skip(f"no GPU for {request.param} here")
    return open_backend(gpus[0])


def compile_ahead(backend, pairs):
    """Cubins of arms for cases on all cores, where verification will look for them."""
    if backend.info.backend != "cuda":
        return
    from gemvbench.backend.cuda import _toolchain
    from gemvbench.backend.nvrtc import compile_cubin

    architecture = backend.info.architecture
    texts = {choose(parse_arm(arm), arm, case, backend.info)[1].text for case, arm in pairs}

    def build(text):
        path = binaries.binary_path(text, "cuda", architecture, _toolchain())
        binaries.store(path, compile_cubin(text, architecture))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, texts))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.arm}-{row.case('attention').id}")
def test_pairs(backend, row):
    for op in row.operations():
        assert verify(backend, row.case(op), [row.arm]) == {}


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("context", [77, 1030])
def test_the_last_workgroup_merges(backend, kv, context):
    """Of one slab and of several, with few ranges and with many."""
    for heads in ((32, 8, 128, 128), (34, 2, 64, 96)):
        arms = [f"splitkv+fused1+splits{splits}" for splits in (1, 4, 64)]
        assert verify(backend, flash_case(heads, kv, "tkd", context), arms) == {}


FLASH_HEADS = (
    (24, 4, 256, 256), (32, 8, 128, 128), (64, 8, 128, 128), (16, 16, 128, 128),
    (16, 16, 192, 128), (34, 2, 64, 96),
)  # fmt: skip
FLASH_ARMS = (
    "flashdecode", "flashdecode+splits4", "flashdecode+dependent1+splits64",
    "flashdecode+block64+splits1",
)  # fmt: skip


def flash_case(heads, kv, layout="tkd", context=77):
    q, kv_heads, k, v = heads
    return Attention(
        heads=q, kv_heads=kv_heads, head_dim=k, v_dim=v, context=context, layout=layout,
        k_type=kv, v_type=kv,
    )  # fmt: skip


@pytest.fixture(scope="module")
def flash_backend(backend):
    """With the cubins of all cases below, made on all cores."""
    if "async_copy" not in backend.info.capabilities:
        pytest.skip("family flashdecode is for CUDA from sm_80 on")
    cases = [flash_case(heads, kv) for heads in FLASH_HEADS for kv in CACHE_TYPES]
    compile_ahead(backend, [(case, arm) for case in cases for arm in FLASH_ARMS])
    return backend


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", CACHE_TYPES)
@pytest.mark.parametrize("heads", FLASH_HEADS, ids=str)
@pytest.mark.parametrize("context", [1, 77, 1030])
def test_flashdecode(flash_backend, heads, kv, layout, context):
    """One tile, an uneven last one, and more tiles than a ring holds; ranges merged in place."""
    case = flash_case(heads, kv, layout, context)
    assert verify(flash_backend, case, FLASH_ARMS) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CACHE_TYPES)
@pytest.mark.parametrize("dims", ALL_HEADS, ids=str)
def test_the_full_product(backend, dims, kind):
    """Every ratio, layout, operation and family of one head size and cache type."""
    cases = [
        Attention(
            heads=2 * ratio, kv_heads=2, head_dim=dims[0], v_dim=dims[1], context=77,
            layout=layout, k_type=kind, v_type=kind,
        )
        for ratio in ALL_RATIOS
        for layout in LAYOUTS
    ]  # fmt: skip
    compile_ahead(
        backend, [(case, arm) for case in cases for arm in product_arms(case, backend.info)]
    )
    for case in cases:
        # The composed families have one text for all three operations.
        for op in ("attention", "av", "kq"):
            each = replace(case, op=op)
            assert verify(backend, each, product_arms(each, backend.info)) == {}


@pytest.mark.parametrize("model", [(16, 16, 192, 128), (24, 4, 256, 256), (64, 8, 64, 64)], ids=str)
@pytest.mark.parametrize("kv", CACHE_TYPES)
def test_models_at_length(backend, model, kv):
    """Enough tokens that ranges hold many tiles, with as many workgroups as fill the device."""
    heads, kv_heads, k, v = model
    case = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=k, v_dim=v, context=5001, k_type=kv, v_type=kv
    )
    assert verify(backend, case, product_arms(case, backend.info)) == {}
    assert verify(backend, case, [f"{name}+splits1" for name in ("per_head", "splitkv")]) == {}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", CACHE_TYPES)
def test_timed_calls_give_the_verified_output(backend, kv, layout):
    """Rotated copies, made on the device, in graphs or queues: the same bits as verified."""
    case = Attention(
        heads=8, kv_heads=4, head_dim=64, context=500, k_type=kv, v_type=kv, layout=layout
    )
    names = [*product_arms(case, backend.info), "splitkv+fused1"]
    if "flashdecode" in names:
        names += ["flashdecode+splits1", "flashdecode+dependent1+splits8"]
    jobs = [choose(parse_arm(name), name, case, backend.info)[1] for name in names]
    request = Verify(device=backend.info, case=case, jobs=tuple(jobs), siblings=(), seed=3)
    found = AttentionVerifier(backend, request).messages()
    digests = {message.arm: message.digest for message in found if isinstance(message, Verified)}
    stride = plan_layout(case, "hot", backend.info).stride
    space = make_space(backend, case, Layout(turns=7, stride=stride), 3, 1 << 16)
    space.fill()
    for job in jobs:
        runner = space.make_runner(job)
        leg = runner.time(50)
        assert leg.timeline > 0
        assert runner.output_digest() == digests[job.arm]
