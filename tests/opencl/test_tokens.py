"""Whole tokens on real OpenCL runtimes for CPUs: order, experts, parts, and a planted slow mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny import use_catalogue

from gemvbench import cli, plan, run
from gemvbench.folders import records_folder
from gemvbench.messages import Block, KernelJob, Message, Request, TokenJob
from gemvbench.process import converse

pytestmark = pytest.mark.opencl
pytest.importorskip("pyopencl")

SMALL = """
[small]
title = "Small"
hidden = 256
ffn = 1024
heads = 4
kv_heads = 2
head_dim = 64
layers = 4
vocab = 8192

[small-moe]
title = "Small-MoE"
heads = 4
kv_heads = 2
head_dim = 64
operations = [
    ["qkv", 256, 512],
    ["expert up", 256, 512, 8, 2],
    ["expert down", 512, 256, 8, 2],
    ["lm_head", 256, 4096],
]
token = [[3, ["qkv", "attention", "expert up", "expert down"]], [1, ["lm_head"]]]
"""
HEAD = "lm_head"


@pytest.fixture(autouse=True)
def small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalogue(SMALL, tmp_path, monkeypatch)
    monkeypatch.setattr(plan, "LONG_LEG_SECONDS", 0.01)  # what is tested here needs no precision


def decode(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    code = cli.main(["decode", "--quick", "--blocks", "6", "--format", "json", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return dict(msgspec.json.decode(out))


@pytest.mark.intel
def test_a_token_is_verified_timed_and_taken_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Experts, and three caches that grow from 40 tokens; one arm attends in four launches."""
    arms = ("--device", "intel", "--model", "small-moe", "--baseline", "cpu+pack1", "--arm", "auto")
    attention = ("--attention-arm", "token_major", "--attention-baseline", "splitkv")
    found = decode(capsys, *arms, "--context", "40", *attention, "--lengths", "2,9")
    base, auto = found["tokens"]
    assert (base["arm"], auto["arm"]) == ("cpu+pack1/splitkv", "auto/token_major")
    assert auto["whole"]["case"] == "token-small-moe-f16-f16-n43to49"
    assert (base["launch_count"], auto["launch_count"]) == (16 + 3 * 2, 16 + 3 * 4)
    assert auto["whole"]["verified"] is True
    assert auto["whole"]["blocks"] >= 1
    assert sum(part["calls"] for part in auto["parts"]) == 16 + 3
    assert auto["missing"] == []
    sum_of_parts = auto["seconds"] - auto["rest"]
    assert 0.3 * auto["seconds"] < sum_of_parts < 3 * auto["seconds"]  # on a shared machine
    assert 0 < auto["launches"] < auto["seconds"]
    assert auto["gap"] is not None


SLOW = """
    if (n == 8192) {
        float lost = 0;
        for (uint i = 0; i < 3 * k; i++)
            for (uint row = get_group_id(0); row < n; row += get_num_groups(0))
                lost += (float)((row * 2654435761u + i) & 255u);
        if (lost < 0)
            y[0] = lost;
    }
"""


def plant(request: Block) -> Block:
    """The same request with a kernel that does too much in lm_head."""

    def changed(job: Any) -> Any:
        if not isinstance(job, TokenJob) or job.arm == "launches":
            return job
        return msgspec.structs.replace(job, layers=tuple(map(slowed, job.layers)))

    cases = tuple(
        msgspec.structs.replace(case, jobs=tuple(map(changed, case.jobs))) for case in request.cases
    )
    return msgspec.structs.replace(request, cases=cases)


def slowed(layer: Any) -> KernelJob:
    head, brace, body = layer.text.rpartition("__kernel")
    start = body.index("{") + 1
    text = head + brace + body[:start] + SLOW + body[start:]
    return KernelJob(**(msgspec.structs.asdict(layer) | {"text": text}))


def test_a_kernel_slow_in_some_processes_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real kernels in real processes: in two of six blocks lm_head has more to do, in all arms."""

    def sabotaged(request: Request) -> Iterator[Message]:
        if isinstance(request, Block) and request.block in (1, 4):
            request = plant(request)
        yield from converse(request)

    monkeypatch.setattr(run, "converse", sabotaged)
    found = decode(capsys, "--device", "pocl", "--model", "small", "--arm", "auto",
                   "--baseline", "cpu+pack2")  # fmt: skip
    modes = {(mode["name"], mode["arm"]): mode for mode in found["modes"]}
    assert {(HEAD, arm) for arm in ("cpu+pack2", "aa", "auto")} <= set(modes)
    for arm in ("cpu+pack2", "aa", "auto"):
        mode = modes[HEAD, arm]
        assert {1, 4} <= set(mode["blocks"])  # on a shared machine there may be another
        assert len(mode["blocks"]) <= 3
        assert mode["measured"] == 6
        assert mode["factor"] > 3
        assert mode["rest"] < mode["factor"] / 2
    (record,) = records_folder().glob("*decode*.jsonl")
    cli.main(["report", str(record)])
    text = " ".join(capsys.readouterr().out.split())
    assert "Mode: lm_head takes" in text
    named = sorted({block for (name, _), mode in modes.items() if name == HEAD
                    for block in mode["blocks"]})  # fmt: skip
    assert f"in {len(named)} of 6 blocks ({', '.join(map(str, named))})" in text
