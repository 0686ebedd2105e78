"""A token that attends: its place in the order, bytes, memory, and caches that grow."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.attention_case import Attention
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.backend.fake import FakeBackend
from gemvbench.backend.script import Fault, Script
from gemvbench.case import Gemv
from gemvbench.cases import verified_as
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError, Exit, UserError
from gemvbench.jobs import Build, choose, identical, launches_job
from gemvbench.messages import TokenJob, Verified, Verify
from gemvbench.models import Heads, Model, Operation, find_model
from gemvbench.outcome import Declined
from gemvbench.token_arm import TokenArm
from gemvbench.token_case import Growth, Token, make_token, split_token
from gemvbench.token_plan import plan_token
from gemvbench.token_space import TokenRunner, TokenSpace
from gemvbench.verify import Verifier

GROWTH = Growth(context=20, lengths=(2, 5))
MODEL = Model(
    id="m",
    title="M",
    operations=(Operation("qkv", 64, 96, 3), Operation("head", 64, 160, 1)),
    order=(0, 0, 0, 1),
    attention=Heads(heads=4, kv_heads=2, head_dim=32, v_dim=32),
    attends=(1, 3),
)
TOKEN = make_token(MODEL, "f16", "f16", GROWTH)
"""qkv, attention, qkv, qkv, attention, head: 21 to 25 tokens."""
DEVICE = make_device(cache=1 << 10, units=2)


def names(token: Token) -> list[str]:
    return [token.classes[place].name for place in token.order]


# The case.


def test_attention_stands_behind_what_makes_q_k_and_v() -> None:
    grown = Growth(context=4096, lengths=(4, 36))
    qwen = names(make_token(find_model("qwen3.6-27b"), "f16", "f16", grown))
    gdn = ["GDN q,k,v,z", "GDN b+a", "o / GDN out", "gate+up", "down"]
    full = ["q+gate+k+v", "attention", "o / GDN out", "gate+up", "down"]
    assert qwen == [*(gdn * 3 + full) * 16, "lm_head"]
    dense = names(make_token(find_model("llama-3.1-8b"), "f16", "f16", grown))
    assert dense == [*["q+k+v", "attention", "o", "gate+up", "down"] * 32, "lm_head"]
    lite = names(make_token(find_model("deepseek-v2-lite"), "f16", "f16", grown))
    assert lite[:5] == ["q", "kv_a", "kv_b", "attention", "o"]
    assert Counter(lite)["attention"] == 27
    oss = make_token(find_model("gpt-oss-20b"), "f16", "f16", grown)
    assert Counter(names(oss))["attention"] == 24


def test_without_a_context_nothing_attends() -> None:
    token = make_token(MODEL, "f16", "f16")
    assert (token.attention, token.contexts, token.order) == (None, (), MODEL.order)
    assert token.id == "token-m-f16-f16"
    bare = msgspec.structs.replace(MODEL, attends=())
    with pytest.raises(UserError, match="no attention of m; leave --context out"):
        make_token(bare, "f16", "f16", GROWTH)


def test_a_run_grows_from_its_context() -> None:
    assert TOKEN.contexts == (21, 22, 23, 24, 25)
    assert TOKEN.growth is not None
    assert TOKEN.growth.counted == (23, 25)  # the tokens that a run of 5 has beyond one of 2
    assert TOKEN.id == "token-m-f16-f16-n23to25"
    eight = make_token(MODEL, "f16", "bf16", msgspec.structs.replace(GROWTH, kv="q8_0"))
    assert eight.id == "token-m-f16-bf16-n23to25-q8_0"
    assert eight.attention is not None
    assert eight.attention.q == "f32"


def test_keys_and_values_count_at_the_mean_context() -> None:
    """K and V of 24 tokens, 2 KV heads of 32 elements in 2 bytes; Q in FP16, output in FP32."""
    linear = make_token(MODEL, "f16", "f16").bytes_moved
    own = 2 * 24 * 2 * 32 * 2 + 4 * 32 * 2 + 4 * 32 * 4
    assert TOKEN.bytes_moved == linear + 2 * own
    even = make_token(MODEL, "f16", "f16", Growth(context=20, lengths=(2, 6)))
    assert even.bytes_moved == linear + 2 * own + 2 * 2 * 2 * 32 * 2 // 2  # at 24.5


def test_parts_are_the_whole_and_attention_is_one_of_them() -> None:
    parts = split_token(TOKEN)
    assert [part.only for part in parts] == ["qkv", "attention", "head"]
    assert sum(part.bytes_moved for part in parts) == TOKEN.bytes_moved
    assert {part.stored_bytes + part.rest_bytes for part in parts} == {TOKEN.stored_bytes}
    own = parts[1]
    assert (own.operations, own.order, own.contexts) == ((), (0, 0), (24,))
    assert own.id == "token-m-f16-f16-n24/attention"
    assert parts[0].id == "token-m-f16-f16/qkv"


def test_attention_is_verified_full_and_as_it_is_timed_alone() -> None:
    found = verified_as(TOKEN)
    assert [type(case) for case in found] == [Gemv, Gemv, Attention]
    assert found[-1].id == "attention-4x2x32-f16-tkd-n25"
    (alone,) = verified_as(split_token(TOKEN)[1])
    assert alone.id == "attention-4x2x32-f16-tkd-n24-of25"


def test_a_growth_that_does_not_fit_is_a_bug() -> None:
    with pytest.raises(ValueError, match="do not grow"):
        msgspec.structs.replace(TOKEN, growth=Growth(context=21, lengths=(2, 5)))
    with pytest.raises(ValueError, match="other layers"):
        msgspec.structs.replace(TOKEN, order=(0, 0, 0, 1))


# Memory.


def test_caches_are_planned_with_the_weights_and_refused_by_name() -> None:
    gpu = make_device(id="gpu0", kind="gpu", memory=140 * 10**9, cache=60 << 20)
    grown = Growth(context=1 << 17, lengths=(4, 36))
    token = make_token(find_model("qwen3.6-27b"), "f16", "f16", grown)
    layout = plan_token(token, gpu)
    caches = layout.shelves[-1]
    assert sum(each.turns for each in caches) == 16
    size = sum(each.pool_bytes for each in caches)
    assert size == pytest.approx(64 * 1024 * (2**17 + 36), rel=0.001)  # 64 KiB a token
    assert token.stored_bytes < layout.pool_bytes < 1.001 * token.stored_bytes
    small = msgspec.structs.replace(gpu, free_bytes=60 * 10**9)
    plan_token(make_token(find_model("qwen3.6-27b"), "f16", "f16"), small)  # weights alone fit
    with pytest.raises(
        UserError, match=r"qwen3.6-27b with caches of 131108 tokens take 59\.84 GB"
    ) as refusal:
        plan_token(token, small)
    assert refusal.value.code == Exit.NO_DEVICE
    assert "fits is qwen3-14b (49.46 GB). Or give a smaller --context" in str(refusal.value)


def test_attention_alone_finds_no_cache_warm() -> None:
    part = split_token(TOKEN)[1]
    device = make_device(cache=1 << 20)
    assert plan_token(msgspec.structs.replace(part, rest_bytes=1 << 30), device).copies > 100
    pushed = math.ceil(TOKEN.stored_bytes / part.stored_bytes)
    assert plan_token(part, device).copies == pushed  # no more than the rest of the model would


# Running it.


def make_space(token: Token, script: Script | None = None) -> TokenSpace:
    backend = FakeBackend(DEVICE, script or Script())
    space = TokenSpace(backend, token, plan_token(token, DEVICE), 3, 0)
    space.fill()
    return space


def make_job(attention: str, token: Token = TOKEN, device: DeviceInfo = DEVICE) -> TokenJob:
    _, job = choose(parse_arm("pack2"), "pack2", token, device, parse_arm(attention))
    assert isinstance(job, TokenJob)
    return job


def make_runner(space: TokenSpace, attention: str = "splitkv") -> TokenRunner:
    runner = space.make_runner(make_job(attention, space.case))
    assert isinstance(runner, TokenRunner)
    return runner


def record(space: TokenSpace, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The launches of every run from now on."""
    seen: list[list[Any]] = []
    run = space.backend.run

    def keep(launches: Any) -> None:
        seen.append(list(launches))
        run(launches)

    monkeypatch.setattr(space.backend, "run", keep)
    return seen


@pytest.mark.parametrize("arm", ["splitkv", "splitkv+splits4", "token_major", "per_head+splits1"])
def test_token_by_token_a_cache_grows(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space = make_space(TOKEN)
    runner = make_runner(space, arm)
    seen = record(space, monkeypatch)
    runner.run(5)
    runner.run(2)
    runner.run(5)
    first = [launch for launch in seen[0] if len(launch.args) == 18]
    tokens = [int(launch.args[6]) for launch in first]
    assert list(dict.fromkeys(tokens)) == [21, 22, 23, 24, 25]
    assert tokens == sorted(tokens)
    stages = len(tokens) // 10
    assert set(Counter(tokens).values()) == {2 * stages}
    places = [(id(launch.args[0]), int(launch.args[11])) for launch in first]
    assert len(set(places)) == 2  # each layer has a cache of its own, the same in every token
    assert places[:stages] == places[2 * stages : 3 * stages]
    assert places[0] != places[stages]
    # Every run begins at its first token with the same objects, so that graphs come again.
    assert [*map(id, seen[2])] == [*map(id, seen[0])]
    assert [*map(id, seen[1])] == [*map(id, seen[0])][: len(seen[1])]
    kinds = {launch.kind for launch in seen[0]}
    assert kinds == set(range(2 + stages))


def test_ranges_are_those_of_each_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range is at least 16 tokens here: a second one, and with it a merge, begins at 17."""
    token = make_token(MODEL, "f16", "f16", Growth(context=14, lengths=(1, 4)))
    calls = make_job("splitkv+block1", token).attention
    assert calls is not None
    found = {call.context: [stage.entry for stage in call.stages] for call in calls.calls}
    assert found[16] == ["attn_splitkv"]
    assert found[17] == ["attn_splitkv", "attn_merge"]
    assert [call.ranges.splits for call in calls.calls] == [1, 1, 2, 2]
    assert [call.stages[0].workgroups for call in calls.calls] == [2, 2, 4, 4]
    space = make_space(token)
    seen = record(space, monkeypatch)
    make_runner(space, "splitkv+block1").run(4)
    partial = [launch.args[4] for launch in seen[0] if len(launch.args) == 18]
    counts, sums = 64, 2 * 4 * (32 + 2)  # two ranges of four heads
    assert {memory.size for memory in partial} == {4 * (counts + sums)}


def test_attention_by_itself_stays_at_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    space = make_space(split_token(TOKEN)[1])
    runner = make_runner(space, "splitkv+splits1")
    seen = record(space, monkeypatch)
    runner.run(2)
    runner.run(1)
    launches = [launch for launches in seen for launch in launches]
    assert {int(launch.args[6]) for launch in launches} == {24}
    assert len({int(launch.args[11]) for launch in launches}) == 6  # two layers, three copies


def verified_digest(token: Token, attention: str) -> str:
    digests = []
    for layer in token.layers:
        backend = FakeBackend(DEVICE, Script())
        arm = attention if isinstance(layer, Attention) else "pack2"
        _, job = choose(parse_arm(arm), "pack2", layer, DEVICE)
        assert job is not None
        request = Verify(device=DEVICE, case=layer, jobs=(job,), siblings=(), seed=3)
        kind = AttentionVerifier if isinstance(layer, Attention) else Verifier
        found = [m for m in kind(backend, request).messages() if isinstance(m, Verified)]
        assert all(check.passed for check in found[0].checks)
        digests.append(found[0].digest)
    return " ".join(digests)


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("arm", ["splitkv", "token_major"])
def test_the_last_token_of_a_long_run_gives_what_was_verified(arm: str, kv: str) -> None:
    token = make_token(MODEL, "f16", "f16", msgspec.structs.replace(GROWTH, kv=kv))
    runner = make_runner(make_space(token), arm)
    runner.time(2)
    assert runner.output_digest() is None  # attention to 22 tokens was not verified
    runner.time(5)
    assert runner.output_digest() == verified_digest(token, arm)
    runner.time(2)
    assert runner.output_digest() == verified_digest(token, arm)
    part = split_token(token)[1]
    alone = make_runner(make_space(part), arm)
    alone.time(3)
    assert alone.output_digest() == verified_digest(part, arm) != verified_digest(token, arm)


def test_a_token_that_attends_to_too_few_is_seen() -> None:
    space = make_space(TOKEN)
    job = make_job("splitkv")
    assert job.attention is not None
    calls = job.attention.calls
    late = msgspec.structs.replace(job.attention, calls=(*calls[:-1], calls[-2]))
    runner = space.make_runner(msgspec.structs.replace(job, attention=late))
    runner.time(5)
    found, wanted = str(runner.output_digest()).split(" "), verified_digest(TOKEN, "splitkv")
    assert found[:2] == wanted.split(" ")[:2]
    assert found[2] != wanted.split(" ")[2]


# Arms.


def test_an_arm_is_named_with_what_attends() -> None:
    arms = {
        name: choose(parse_arm("pack2"), name, TOKEN, DEVICE, parse_arm(name))[0]
        for name in ("splitkv", "token_major", "auto")
    }
    outcome = arms["auto"].outcome
    assert isinstance(outcome, TokenArm)
    assert outcome.layers[-1].name == "attention"
    assert "attention: arm auto -> token_major" in " ".join(outcome.steps)
    assert identical(Build(choice=arms["auto"]), Build(choice=arms["token_major"]))
    assert not identical(Build(choice=arms["splitkv"]), Build(choice=arms["token_major"]))
    assert outcome.launches == {"qkv": 1, "head": 1, "attention": len(outcome.calls[-1].stages)}


def test_what_cannot_attend_declines_the_token() -> None:
    flat = msgspec.structs.replace(
        MODEL, attention=Heads(heads=2, kv_heads=2, head_dim=32, v_dim=32)
    )
    token = make_token(flat, "f16", "f16", GROWTH)
    choice, job = choose(parse_arm("pack2"), "p", token, DEVICE, parse_arm("gqa"))
    assert isinstance(choice.outcome, Declined)
    assert choice.outcome.reason.startswith("attention: N_h = N_k = 2")
    assert job is None


def test_launches_without_work_leave_attention_out(monkeypatch: pytest.MonkeyPatch) -> None:
    space = make_space(TOKEN)
    runner = space.make_runner(launches_job(TOKEN, DEVICE, "launches"))
    seen = record(space, monkeypatch)
    runner.run(1)
    assert [launch.kernel.entry for launch in seen[0]] == ["launch_only"] * 4


def test_a_compile_error_names_attention() -> None:
    fault = Fault(match={"entry": "attn_splitkv"}, fault="compile_error", stage="compile")
    with pytest.raises(CompileError, match=r"attention: opencl/splitkv"):
        make_runner(make_space(TOKEN, Script(faults=(fault,))))
