"""Whole tokens and cuBLAS on a GPU: numbers, order, graphs and launches one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import run_command
from tiny import use_catalogue

from gemvbench import cli
from gemvbench.arm import parse_arm
from gemvbench.attention_case import Attention
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.case import Gemv
from gemvbench.errors import UserError
from gemvbench.jobs import choose
from gemvbench.messages import TokenJob, Verified, Verify
from gemvbench.models import Heads, Model, Operation
from gemvbench.runners import Runner
from gemvbench.token_case import Growth, Token, make_token, split_token
from gemvbench.token_plan import plan_token
from gemvbench.token_space import TokenSpace
from gemvbench.verify import Verifier

pytestmark = pytest.mark.cuda

SMALL = """
[small]
title = "Small"
hidden = 1024
ffn = 3072
heads = 16
kv_heads = 8
head_dim = 128
layers = 6
vocab = 4096
"""
TOKEN = Token(
    model="small",
    operations=(
        Operation("up", 1024, 4096, 5),
        Operation("expert", 1024, 512, 10, 8, 2),
        Operation("head", 1024, 8192, 1),
    ),
    order=(0, 1, 1) * 5 + (2,),
)
GROWTH = Growth(context=500, lengths=(4, 36))
MODEL = Model(
    id="attends",
    title="Attends",
    operations=(Operation("qkv", 1024, 4096, 5), Operation("head", 1024, 8192, 1)),
    order=(0,) * 5 + (1,),
    attention=Heads(heads=16, kv_heads=8, head_dim=128, v_dim=128),
    attends=(1, 3),
)
"""Layers 1 and 3 attend, in front of the next."""
SHAPES = ((64, 1), (64, 33), (1000, 301), (2880, 5760), (5120, 96), (17408, 64), (7, 5))


def find_gpu() -> Any:
    from gemvbench.backend.cuda_devices import find_cuda_devices

    try:
        found = find_cuda_devices()
    except UserError as refusal:
        pytest.skip(str(refusal))
    if not found:
        pytest.skip("no CUDA device here")
    return found[0]


@pytest.fixture(scope="module")
def info() -> Any:
    return find_gpu()


@pytest.fixture
def cublas_here(info: Any) -> None:
    if "cublas" not in info.capabilities:
        pytest.skip("no cuBLAS here")


def make_backend(info: Any, *, graphs: bool = True) -> Any:
    from gemvbench.backend.cuda import CudaBackend

    return CudaBackend(info, graphs=graphs)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("cublas_here")
def test_cublas_passes_every_check(info: Any, shape: tuple[int, int], kind: str) -> None:
    case = Gemv(k=shape[0], n=shape[1], w=kind, x=kind)
    _, job = choose(parse_arm("cublas"), "cublas", case, info)
    assert job is not None
    request = Verify(device=info, case=case, jobs=(job,), siblings=(), seed=5)
    (found,) = [m for m in Verifier(make_backend(info), request).messages()
                if isinstance(m, Verified)]  # fmt: skip
    assert [check for check in found.checks if not check.passed] == []


def make_runner(
    info: Any, arm: str, token: Token = TOKEN, attention: str = "auto", *, graphs: bool = True
) -> Runner:
    space = TokenSpace(make_backend(info, graphs=graphs), token, plan_token(token, info), 3, 0)
    space.fill()
    _, job = choose(parse_arm(arm), arm, token, info, parse_arm(attention))
    assert isinstance(job, TokenJob)
    return space.make_runner(job)


def verified_digest(info: Any, token: Token, arm: str, attention: str = "auto") -> str:
    """Of each layer as it is verified by itself, all checks passed."""
    digests = []
    for layer in token.layers:
        attends = isinstance(layer, Attention)
        _, job = choose(parse_arm(attention if attends else arm), arm, layer, info)
        assert job is not None
        request = Verify(device=info, case=layer, jobs=(job,), siblings=(), seed=3)
        kind = AttentionVerifier if attends else Verifier
        (found,) = [m for m in kind(make_backend(info), request).messages()
                    if isinstance(m, Verified)]  # fmt: skip
        assert [check for check in found.checks if not check.passed] == []
        digests.append(found.digest)
    return " ".join(digests)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("arm", ["pack3", "cublas", "bulk", "flight+dependent1"])
def test_a_token_computes_what_was_verified(info: Any, arm: str, graphs: bool) -> None:
    needs = {"cublas": "cublas", "bulk": "bulk_copy", "pack3": ""}.get(arm, "dependent_launch")
    if needs and needs not in info.capabilities:
        pytest.skip(f"no {needs} here")
    wanted = verified_digest(info, TOKEN, arm)
    runner = make_runner(info, arm, graphs=graphs)
    for calls in (1, 3, 40):
        leg = runner.time(calls)
        assert runner.output_digest() == wanted
        assert leg.timeline > 0
        launches = 1 if arm == "bulk" else len(TOKEN.order)
        assert leg.queued_ahead == (graphs or calls * launches <= 512)


def test_a_token_in_one_launch_runs_a_hundred_times_and_more(info: Any) -> None:
    """Every run is right, and no barrier in it waits for ever."""
    if "bulk_copy" not in info.capabilities:
        pytest.skip("no bulk_copy here")
    wanted = verified_digest(info, TOKEN, "bulk")
    runner = make_runner(info, "bulk")
    for _ in range(100):
        runner.time(3)
        assert runner.output_digest() == wanted


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(("attention", "kv"), [("splitkv", "f16"), ("token_major", "q8_0")])
def test_a_token_attends_to_caches_that_grow(
    info: Any, attention: str, kv: str, graphs: bool
) -> None:
    """Captured launches keep the context of their own token, leg after leg."""
    growth = msgspec.structs.replace(GROWTH, kv=kv)
    token = make_token(MODEL, "f16", "f16", growth)
    wanted = verified_digest(info, token, "pack3", attention)
    runner = make_runner(info, "pack3", token, attention, graphs=graphs)
    short, long = growth.lengths
    assert runner.time(short).timeline > 0
    assert runner.output_digest() is None  # attention to 504 tokens was not verified
    for calls in (long, short, long):
        runner.time(calls)
        assert runner.output_digest() == wanted
    part = split_token(token)[1]
    wanted = verified_digest(info, part, "pack3", attention)
    alone = make_runner(info, "pack3", part, attention, graphs=graphs)
    for calls in (1, 50):
        alone.time(calls)
        assert alone.output_digest() == wanted


def test_a_longer_context_takes_longer(info: Any) -> None:
    """Two layers of 64 KV heads read 2.1 GB a token more over 32768 tokens than over 500."""
    wide = Heads(heads=64, kv_heads=64, head_dim=128, v_dim=128)
    times = []
    for context in (500, 32768):
        growth = Growth(context=context, lengths=(4, 36))
        token = make_token(msgspec.structs.replace(MODEL, attention=wide), "f16", "f16", growth)
        runner = make_runner(info, "pack3", token)
        runner.run(4)
        short, long = runner.time(4), runner.time(36)
        times.append((long.timeline - short.timeline) / 32)
    assert times[1] - times[0] > 2.1e9 / 20e12


def test_a_token_takes_the_time_of_its_bytes(info: Any) -> None:
    runner = make_runner(info, "pack3")
    runner.run(20)
    short, long = runner.time(20), runner.time(220)
    seconds = (long.timeline - short.timeline) / 200
    assert 10e9 < runner.bytes_per_call / seconds < 20e12  # an L2 holds this token


def test_memory_is_the_weights_and_five_per_cent(info: Any) -> None:
    from cupy.cuda import runtime

    big = Token(model="big", operations=(Operation("up", 4096, 16384, 30),), order=(0,) * 30)
    backend = make_backend(info)
    before = int(runtime.memGetInfo()[0])
    space = TokenSpace(backend, big, plan_token(big, info), 3, 0)
    space.fill()
    used = before - int(runtime.memGetInfo()[0])
    assert big.stored_bytes <= used < 1.05 * big.stored_bytes
    y = space.shelves[0][0].output()
    assert y.dtype == np.float32


@pytest.mark.timeout(240)
def test_the_command_on_a_gpu(
    info: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_catalogue(SMALL, tmp_path, monkeypatch)
    words = ["decode", "--model", "small", "--arm", "auto", "--quick", "--format", "json"]
    words += ["--device", info.id, "--blocks", "6", "--context", "300"]
    found = {}
    for launches in ("graph", "stream"):
        capsys.readouterr()
        assert cli.main([*words, "--launches", launches]) == 0
        found[launches] = json.loads(capsys.readouterr().out)
        assert found[launches]["lengths"] == [4, 36]
        auto = found[launches]["tokens"][1]
        assert auto["arm"] == "auto"
        assert auto["missing"] == []
        assert auto["whole"]["verified"] is True
        assert {part["name"]: part["calls"] for part in auto["parts"]}["attention"] == 6
        assert 0 < auto["launches"] < auto["seconds"]
    assert found["stream"]["tokens"][0]["launches"] > found["graph"]["tokens"][0]["launches"]


def test_a_model_too_large_is_refused_by_name(info: Any) -> None:
    if info.free_bytes > 150 * 10**9:
        pytest.skip("a GPU that holds all models")
    answer = run_command("decode", "--device", info.id, "--model", "llama-3.1-70b", "--arm", "auto")
    assert answer.returncode == 4
    assert "The largest model of the catalogue that fits is" in answer.stderr
