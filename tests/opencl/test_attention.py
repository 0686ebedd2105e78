"""Attention on PoCL and Intel's runtime: every pair of what a kernel may depend on, and mutants."""

from __future__ import annotations

from functools import cache
from typing import Any

import attention
import pytest
from attention import Row, factors, pairwise, verify
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.attention_case import Attention
from gemvbench.attention_oracle import trials
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.jobs import choose
from gemvbench.messages import Layout, Verified, Verify
from gemvbench.models import Heads, Model, Operation
from gemvbench.plan import plan_layout
from gemvbench.spaces import make_space
from gemvbench.stages import Precision
from gemvbench.token_case import Growth, make_token
from gemvbench.token_plan import plan_token
from gemvbench.token_space import TokenSpace

pytest.importorskip("pyopencl")
from gemvbench.worker import list_devices, open_backend

pytestmark = pytest.mark.opencl

ROWS = pairwise(factors(("block1", "block64")))
# A GPU under OpenCL: its loads of words and its tokens in flight run on a CPU as well.
GPU: Any = make_device(id="gpu0", kind="gpu", units=2)


@cache
def backend_of(name: str) -> Any:
    for found in list_devices("opencl"):
        if found.device.id == name:
            return open_backend(found.device)
    return None


@pytest.fixture(params=["pocl", pytest.param("intel", marks=pytest.mark.intel)])
def backend(request: pytest.FixtureRequest) -> Any:
    found = backend_of(request.param)
    if found is None:
        pytest.skip(f"no {request.param} device here")
    return found


def shape(**fields: Any) -> Attention:
    given = {"heads": 4, "kv_heads": 2, "head_dim": 64, "context": 77} | fields
    return Attention(**given)


def test_rows_hold_every_pair() -> None:
    seen = {pair for row in ROWS for pair in attention._pairs_of(row._asdict(), row._asdict())}
    assert seen >= set(attention.all_pairs(factors(("block1", "block64"))))
    assert len(ROWS) < 45


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.arm}-{row.case('attention').id}")
def test_pairs(backend: Any, row: Row) -> None:
    for op in row.operations():
        assert verify(backend, row.case(op), [row.arm]) == {}


@pytest.mark.parametrize("op", ["kq", "av", "attention"])
def test_default_arms_on_a_model(backend: Any, op: str) -> None:
    """DeepSeek's heads, with splits and a context that no tile divides."""
    case = shape(op=op, heads=16, kv_heads=16, head_dim=192, v_dim=128, context=301)
    assert verify(backend, case, ["per_head", "token_major", "auto"]) == {}


def test_the_last_workgroup_merges(backend: Any) -> None:
    """And leaves its count as it found it: every check is another call."""
    assert verify(backend, shape(context=100), ["splitkv+block64+splits4+fused1"]) == {}


def test_a_merge_at_the_wrong_time_shows() -> None:
    """From the second call on, where the count is not set back."""
    case, arm = shape(context=100), "splitkv+block64+splits4+fused1"
    wrong = verify(backend_of("pocl"), case, [arm], mutation=("*count = 0", "*count = 1"))
    assert "last token" in wrong[arm]
    assert "every token" not in wrong[arm]


@pytest.mark.parametrize("dim", [1, 5, 34, 100, 250])
def test_odd_head_sizes(backend: Any, dim: int) -> None:
    case = shape(head_dim=dim, v_dim=dim, context=40)
    assert verify(backend, case, ["gqa", "splitkv", "token_major"]) == {}


def test_a_cache_with_room_for_more(backend: Any) -> None:
    for layout in ("tkd", "ktd"):
        case = shape(layout=layout, capacity=200)
        assert verify(backend, case, ["gqa", "token_major"]) == {}


@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0", "q8_KV"])
def test_what_gpus_get(kv: str) -> None:
    """The text for a GPU: loads of words, many tokens in flight, whole warps across heads."""
    found = backend_of("intel") or backend_of("pocl")
    if found is None:
        pytest.skip("no OpenCL device here")
    case = shape(heads=12, kv_heads=2, head_dim=96, v_dim=64, context=333, k_type=kv, v_type=kv)
    arms = ["per_head", "gqa", "token_major", "splitkv", "splitkv+splits1"]
    assert verify(found, case, arms, GPU) == {}


# Mutants: what a mistake of each kind looks like to the checks.

LAST = "min(tokens, first + {}_chunk)"
MUTANTS = [
    # arm, operation, cache type, piece of the kernel, what stands there instead, check
    ("per_head", "kq", "f16", LAST.format("k"), f"({LAST.format('k')} - 1)", "exact"),
    ("per_head", "av", "f16", LAST.format("v"), "(first + v_chunk + 1)", "exact"),
    ("token_major", "kq", "f16", "(head + r) / RATIO * k_head", "0", "exact"),
    ("token_major", "av", "f16", "(head + r) / RATIO * v_head", "0", "exact"),
    ("gqa", "kq", "f16", "k += k_offset", "k += 0", "exact"),
    ("gqa", "av", "bf16", "v += v_offset", "v += 0", "exact"),
    ("gqa", "kq", "q8_0", "row + i / 32 * 34)", "row)", "exact"),
    ("per_head", "attention", "f16", "exp(vload8(0, scores + t) - top)",
     "exp(vload8(0, scores + t))", "negative scores"),
    ("splitkv", "attention", "f16", "acc[r * VECS(V) + n] *= shrink", "acc[r * VECS(V) + n] *= 1",
     "last token"),
    ("splitkv", "attention", "f16", "m[r] = -INFINITY", "m[r] = 0", "negative scores"),
    ("splitkv", "attention", "q8_KV", "t < count ? sums[r] * scale : -INFINITY",
     "t < count ? sums[r] * scale : 0", "every token"),
    ("splitkv", "attention", "f16", "total += ml[2 * HEADS * range + 1] * weight",
     "total += ml[2 * HEADS * range + 1]", "single tokens"),
    ("per_head+block64", "kq", "f16", LAST.format("k"), f"({LAST.format('k')} - 1)", "exact"),
    ("token_major+block64", "av", "f16", "s < SUBS(V)", "s < 1", "exact"),
    ("splitkv+block64+splits1", "attention", "f16", "shrink[item] = exp(m[item] - top)",
     "shrink[item] = 1", "last token"),
    ("gqa+q8", "kq", "q8_KV", "quotient(127.0f, most)", "quotient(126.0f, most)", "exact"),
]  # fmt: skip


@pytest.mark.parametrize(("arm", "op", "kv", "piece", "instead", "check"), MUTANTS)
def test_a_mistake_is_seen(
    arm: str, op: str, kv: str, piece: str, instead: str, check: str
) -> None:
    found = backend_of("pocl")
    if found is None:
        pytest.skip("no pocl device here")
    case = shape(op=op, k_type=kv, v_type=kv, context=200)
    wrong = verify(found, case, [arm], mutation=(piece, instead))
    assert check in wrong[arm]


@pytest.mark.parametrize("layout", ["tkd", "ktd"])
@pytest.mark.parametrize("kv", ["f16", "bf16", "q8_0", "q8_KV"])
def test_timed_calls_give_the_verified_output(backend: Any, kv: str, layout: str) -> None:
    """Rotated copies, 16-bit ones made on the device: the same bits as verified."""
    case = shape(context=50, k_type=kv, v_type=kv, layout=layout, capacity=60)
    arms = ("per_head", "splitkv")
    jobs = [job for name in arms if (job := choose(parse_arm(name), name, case, backend.info)[1])]
    request = Verify(device=backend.info, case=case, jobs=tuple(jobs), siblings=(), seed=3)
    found = AttentionVerifier(backend, request).messages()
    digests = {message.arm: message.digest for message in found if isinstance(message, Verified)}
    one = plan_layout(case, "hot", backend.info)
    space = make_space(backend, case, Layout(turns=3, stride=one.stride), 3, 1 << 16)
    space.fill()
    for job in jobs:
        runner = space.make_runner(job)
        for calls in (1, 4):
            assert runner.time(calls).timeline > 0
            assert runner.output_digest() == digests[job.arm]


@pytest.mark.parametrize("arm", ["splitkv", "token_major+splits4", "gqa+splits1"])
def test_every_token_of_a_run_attends_to_its_own_context(backend: Any, arm: str) -> None:
    """14 to 18 tokens, where splitkv gets a second range, and a launch that merges, at 17."""
    model = Model(
        id="m",
        title="M",
        operations=(Operation("qkv", 64, 96, 2),),
        order=(0, 0),
        attention=Heads(heads=4, kv_heads=2, head_dim=64, v_dim=64),
        attends=(1,),
    )
    growth = Growth(context=13, kv="q8_0", lengths=(1, 5))
    token = make_token(model, "f16", "f16", growth)
    space = TokenSpace(backend, token, plan_token(token, backend.info), attention.SEED, 0)
    space.fill()
    _, job = choose(parse_arm("cpu"), "cpu", token, backend.info, parse_arm(arm))
    assert job is not None
    runner = space.make_runner(job)
    for calls, context in enumerate(token.contexts, 1):
        runner.time(calls)
        (trial,) = [t for t in trials(token.attention_at(context), attention.SEED) if t.is_timed]
        check = trial.compare(space.shelves[-1][-1].output(), Precision())
        assert check.passed, (context, check)
