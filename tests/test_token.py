"""A token as a case: order, bytes, experts, memory, and the runner whose call is one token."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.backend.event_plan import sample_events
from gemvbench.backend.fake import FakeBackend
from gemvbench.backend.script import Fault, Script
from gemvbench.case import Gemv
from gemvbench.cases import is_part, verified_as
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError, Exit, UserError
from gemvbench.jobs import Build, choose, identical
from gemvbench.layer_table import layer_table
from gemvbench.messages import Layout, TokenJob
from gemvbench.models import Operation, find_model
from gemvbench.outcome import Declined
from gemvbench.token_arm import TokenArm
from gemvbench.token_case import CHOICES, Growth, Token, make_token, split_token
from gemvbench.token_plan import plan_token
from gemvbench.token_space import TokenRunner, TokenSpace

GPU = msgspec.structs.replace(
    make_device(id="cuda0", kind="gpu", memory=140 * 10**9, cache=60 << 20), backend="cuda"
)
DENSE = Token(
    model="dense",
    operations=(
        Operation("up", 64, 96, 3),
        Operation("down", 96, 64, 3),
        Operation("head", 64, 160, 1),
    ),
    order=(0, 1, 0, 1, 0, 1, 2),
)
LIMIT = 33000
"""Bytes of a buffer that holds two of DENSE's matrices."""
EXPERTS = Token(
    model="experts",
    operations=(
        Operation("router", 32, 8, 2),
        Operation("up", 32, 16, 6, 8, 3),
        Operation("down", 16, 32, 6, 8, 3),
    ),
    order=(0, 1, 1, 1, 2, 2, 2) * 2,
)


def qwen() -> Token:
    return make_token(find_model("qwen3.6-27b"), "f16", "f16")


def names(token: Token) -> list[str]:
    return [token.operations[place].name for place in token.order]


def test_the_reference_token_runs_in_its_true_order() -> None:
    found = names(qwen())
    gdn = ["GDN q,k,v,z", "GDN b+a", "o / GDN out", "gate+up", "down"]
    attention = ["q+gate+k+v", "o / GDN out", "gate+up", "down"]
    assert len(found) == 305
    assert found == [*(gdn * 3 + attention) * 16, "lm_head"]
    assert qwen().stored_bytes == find_model("qwen3.6-27b").weight_bytes
    assert round(qwen().stored_bytes / 1e9, 2) == 51.24
    assert qwen().bytes_moved > qwen().stored_bytes  # x and y too


def test_a_dense_token_is_layer_after_layer() -> None:
    layer = ["q+k+v", "o", "gate+up", "down"]
    assert names(make_token(find_model("qwen3-0.6b"), "f16", "f16")) == [*layer * 28, "lm_head"]


def test_experts_are_read_in_pairs_of_active_and_stored_whole() -> None:
    lite = make_token(find_model("deepseek-v2-lite"), "f16", "f16")
    counts = Counter(names(lite))
    assert counts["expert gate+up"] == counts["expert down"] == 26 * 6
    (up,) = [op for op in lite.operations if op.name == "expert gate+up"]
    assert up.matrices == 26 * 64
    assert names(lite)[11:24] == ["expert gate+up"] * 6 + ["expert down"] * 6 + ["shared gate+up"]
    assert lite.stored_bytes == find_model("deepseek-v2-lite").stored_bytes > 6 * lite.bytes_moved


def test_shapes_are_no_token() -> None:
    with pytest.raises(UserError, match="no token to decode"):
        make_token(find_model("s2-seven"), "f16", "f16")


@pytest.mark.parametrize("token", [DENSE, EXPERTS])
def test_parts_are_the_whole(token: Token) -> None:
    parts = split_token(token)
    assert sum(part.bytes_moved for part in parts) == token.bytes_moved
    assert [part.only for part in parts] == list(dict.fromkeys(names(token)))
    assert {part.stored_bytes + part.rest_bytes for part in parts} == {token.stored_bytes}
    assert all(is_part(part) for part in parts)
    assert not is_part(token)
    assert len({part.id for part in parts} | {token.id}) == len(parts) + 1


def test_arms_are_verified_on_every_shape_once() -> None:
    up = DENSE.operations[0]
    twice = (up, msgspec.structs.replace(up, name="gate"))
    same = msgspec.structs.replace(DENSE, operations=twice, order=(0, 1) * 3)
    assert verified_as(same) == (Gemv(k=64, n=96),)
    assert len(verified_as(qwen())) == 7


def test_every_layer_of_a_dense_token_has_its_own_matrix() -> None:
    assert list(DENSE.matrices(1, 0)) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)]
    assert DENSE.choices == 1
    assert list(DENSE.matrices(1, 5)) == list(DENSE.matrices(2, 0))


def test_experts_are_drawn_anew_for_each_token_and_come_again() -> None:
    tokens = [tuple(EXPERTS.matrices(7, token)) for token in range(2 * CHOICES)]
    assert tokens[:CHOICES] == tokens[CHOICES:]
    assert len(set(tokens[:CHOICES])) > CHOICES // 2
    assert tokens[0] != tuple(EXPERTS.matrices(8, 0))
    for token in tokens:
        up = [matrix for place, matrix in token if place == 1]
        down = [matrix for place, matrix in token if place == 2]
        assert up == down  # an expert's two matrices go together
        assert [matrix // 8 for matrix in up] == [0, 0, 0, 1, 1, 1]
        assert len(set(up)) == 6


# One launch for all layers.

HOPPER = msgspec.structs.replace(
    GPU, capabilities=("bulk_copy",), local_bytes=232448, compute_units=132
)


def test_a_token_in_one_launch_is_verified_by_its_layers() -> None:
    choice, job = choose(parse_arm("bulk"), "bulk", qwen(), HOPPER)
    assert isinstance(choice.outcome, TokenArm)
    assert isinstance(job, TokenJob)
    assert job.whole is not None
    assert (job.whole.entry, job.whole.workgroups) == ("token_bulk", 132)
    assert job.whole.local_bytes == 6 * 30720 + 2 * 17408  # of the longest x
    assert {layer.entry for layer in job.layers} == {"gemv_bulk"}
    other = choose(parse_arm("pack3"), "pack3", qwen(), HOPPER)[1]
    assert isinstance(other, TokenJob)
    assert other.whole is None


def test_a_token_in_one_launch_has_no_attention() -> None:
    growth = Growth(context=100, lengths=(1, 2))
    token = make_token(find_model("qwen3.6-27b"), "f16", "f16", growth)
    outcome = choose(parse_arm("bulk"), "bulk", token, HOPPER)[0].outcome
    assert isinstance(outcome, Declined)
    assert "no place for attention" in outcome.reason


def test_tiles_go_round_from_layer_to_layer() -> None:
    """Of 4 workgroups: 7 tiles of 3 rows, then 2 of one row in two stages, then 5 of 2 rows."""
    layers = [(1 << 40, 2, 3, 5120, 21), (4, 5, 6, 17408, 2), (7, 8, 9, 6144, 9)]
    table = layer_table(layers, 4)
    assert table.dtype.itemsize == 40
    assert table["first"].tolist() == [0, 3, 1]
    assert [tuple(row)[:5] for row in table.tolist()] == layers


# Memory.


def test_memory_is_the_weights_and_little_more() -> None:
    layout = plan_token(qwen(), GPU)
    assert layout.turns == 305
    assert qwen().stored_bytes < layout.pool_bytes < 1.001 * qwen().stored_bytes
    assert all(len(shelf) == 1 for shelf in layout.shelves)


def test_a_class_by_itself_finds_no_cache_warm() -> None:
    """1 MB of weights, 48 times, would lie in an L2 of 60 MB; lm_head is large enough alone."""
    by_name = {part.only: plan_token(part, GPU) for part in split_token(qwen())}
    assert by_name["GDN b+a"].pool_bytes >= 4 << 30
    assert by_name["GDN b+a"].copies == 92
    assert by_name["gate+up"].copies == 1
    tiny = msgspec.structs.replace(split_token(qwen())[1], rest_bytes=0)
    assert plan_token(tiny, GPU).copies == 1  # nothing passes between two tokens


def test_a_class_is_split_where_a_buffer_is_limited() -> None:
    small = msgspec.structs.replace(GPU, max_alloc_bytes=10 * 10**9)
    gate_up = plan_token(qwen(), small).shelves[0]
    assert [layout.turns for layout in gate_up] == [28, 28, 8]
    assert all(layout.pool_bytes <= 10 * 10**9 for layout in gate_up)


@pytest.mark.parametrize(
    ("free", "largest"),
    [(40, "deepseek-v2-lite"), (60, "qwen3.6-27b"), (1, "smollm2-135m"), (0, "")],
)
def test_a_model_too_large_is_refused_with_the_largest_that_fits(free: int, largest: str) -> None:
    device = msgspec.structs.replace(GPU, free_bytes=free * 10**9)
    token = make_token(find_model("llama-3.1-70b"), "f16", "f16")
    hint = rf"fits is {largest} \(" if largest else "No model of the catalogue fits"
    with pytest.raises(
        UserError, match=rf"llama-3.1-70b take 139.00 GB.*{free}(.00)? .*of.*{hint}"
    ) as e:
        plan_token(token, device)
    assert e.value.code == Exit.NO_DEVICE


def test_a_matrix_larger_than_a_buffer_is_refused() -> None:
    device = msgspec.structs.replace(GPU, max_alloc_bytes=10**9)
    with pytest.raises(UserError, match=r"allocates at most 1\.00 GB at once"):
        plan_token(qwen(), device)


# Running it.


def make_space(token: Token, script: Script | None = None, most: int = 1 << 33) -> TokenSpace:
    device = msgspec.structs.replace(make_device(cache=1 << 10), max_alloc_bytes=most)
    space = TokenSpace(
        FakeBackend(device, script or Script()), token, plan_token(token, device), 3, 0
    )
    space.fill()
    return space


def make_runner(space: TokenSpace, arm: str = "pack2") -> TokenRunner:
    _, job = choose(parse_arm(arm), arm, space.case, space.backend.info)
    assert isinstance(job, TokenJob)
    runner = space.make_runner(job)
    assert isinstance(runner, TokenRunner)
    return runner


def record(space: TokenSpace, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every launch from now on."""
    seen: list[Any] = []
    run = space.backend.run

    def keep(launches: Any) -> None:
        seen.extend(launches)
        run(launches)

    monkeypatch.setattr(space.backend, "run", keep)
    return seen


@pytest.mark.parametrize("most", [1 << 33, LIMIT])
def test_layers_run_in_order_on_distinct_memory(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    space = make_space(DENSE, most=most)
    assert len(space.shelves[0]) == (1 if most > LIMIT else 2)
    runner = make_runner(space)
    seen = record(space, monkeypatch)
    runner.run(2)
    sizes = [(int(launch.args[3]), int(launch.args[4])) for launch in seen]
    assert sizes == [(64, 96), (96, 64)] * 3 + [(64, 160)] + [(64, 96), (96, 64)] * 3 + [(64, 160)]
    places = [(id(launch.args[0]), int(launch.args[5])) for launch in seen]
    assert len(set(places[:7])) == 7
    assert places[:7] == places[7:]
    assert [id(launch) for launch in seen[:7]] == [id(launch) for launch in seen[7:]]
    assert [launch.kind for launch in seen[:7]] == list(DENSE.order)


def test_experts_go_on_from_leg_to_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    space = make_space(EXPERTS)
    runner, other = make_runner(space), make_runner(space, "pack0")
    seen = record(space, monkeypatch)
    runner.run(3)
    other.run(2)
    stride = space.shelves[1][0].layout.stride
    wanted = [m for token in range(5) for place, m in EXPERTS.matrices(3, token) if place == 1]
    found = [int(launch.args[5]) * 2 // stride for launch in seen if launch.kind == 1]
    assert found == wanted


def test_a_class_alone_takes_turns_on_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    part = msgspec.structs.replace(split_token(DENSE)[0], rest_bytes=1 << 30)
    device = make_device(cache=1)
    layout = plan_token(part, device)
    assert layout.copies > 1000
    small = msgspec.structs.replace(layout, copies=2, shelves=((Layout(turns=6, stride=16384),),))
    space = TokenSpace(FakeBackend(device, Script()), part, small, 3, 0)
    space.fill()
    runner = make_runner(space)
    seen = record(space, monkeypatch)
    runner.run(3)
    assert [int(launch.args[5]) * 2 // 16384 for launch in seen] == [0, 1, 2, 3, 4, 5, 0, 1, 2]


def test_the_output_of_a_timed_token_is_that_of_the_verified_layers() -> None:
    from gemvbench.messages import Verified, Verify
    from gemvbench.verify import Verifier

    space = make_space(DENSE)
    runner = make_runner(space)
    runner.time(2)
    digests = []
    for layer in DENSE.layers:
        _, job = choose(parse_arm("pack2"), "pack2", layer, space.backend.info)
        assert job is not None
        backend = FakeBackend(space.backend.info, Script())
        request = Verify(device=backend.info, case=layer, jobs=(job,), siblings=(), seed=3)
        found = [m for m in Verifier(backend, request).messages() if isinstance(m, Verified)]
        digests.append(found[0].digest)
    assert runner.output_digest() == " ".join(digests)
    broken = Script(faults=(Fault(match={"n": "160"}, fault="wrong_when_timed", stage="time"),))
    wrong = make_runner(make_space(DENSE, broken))
    wrong.time(2)
    assert wrong.output_digest() != " ".join(digests)
    assert str(wrong.output_digest()).split(" ")[:2] == digests[:2]


def test_a_layer_that_is_not_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    space = make_space(DENSE)
    runner = make_runner(space)
    runner.time(1)
    right = runner.output_digest()
    time = space.backend.time
    monkeypatch.setattr(space.backend, "time", lambda launches: time(launches[:-1]))
    runner.time(1)
    assert runner.output_digest() != right


def test_a_bare_read_takes_all_pools() -> None:
    space = make_space(DENSE, most=LIMIT)
    assert (
        sum(size for _, size in space.pools()) == plan_token(DENSE, space.backend.info).pool_bytes
    )


# Arms.


def test_an_arm_for_a_token_is_one_for_each_class() -> None:
    choice, job = choose(parse_arm("auto"), "auto", qwen(), GPU)
    assert isinstance(choice.outcome, TokenArm)
    assert isinstance(job, TokenJob)
    assert [layer.name for layer in choice.outcome.layers][:2] == ["gate+up", "down"]
    rule = "the rule for a gpu device"
    named = [step for step in choice.outcome.steps if "arm auto -> pack3+blockauto" in step]
    assert named == [
        f"gate+up, q+gate+k+v, o / GDN out, GDN q,k,v,z, GDN b+a, lm_head: arm auto -> "
        f"pack3+blockauto: {rule}"
    ]
    assert f"down: arm auto -> pack3: {rule}" in choice.outcome.steps
    assert any(step.startswith("o / GDN out: block auto -> ") for step in choice.outcome.steps)
    other, _ = choose(parse_arm("auto"), "b", qwen(), GPU)
    assert identical(Build(choice=choice), Build(choice=other))
    third, _ = choose(parse_arm("pack3+blockauto"), "c", qwen(), GPU)
    assert not identical(Build(choice=choice), Build(choice=third))


def test_an_arm_that_declines_a_class_declines_the_token() -> None:
    device: DeviceInfo = make_device()
    odd = msgspec.structs.replace(DENSE, x="f32")
    choice, job = choose(parse_arm("pack2"), "p", odd, device)
    assert choice.outcome == Declined(
        "pack2", "up: an FP32 x declines load width; pack0, base and wide1 compute it"
    )
    assert job is None
    choice, _ = choose(parse_arm("numpy"), "n", DENSE, device)
    assert isinstance(choice.outcome, Declined)
    assert "runs on the host" in choice.outcome.reason


def test_a_compile_error_names_the_class() -> None:
    fault = Fault(match={"PACK": "2"}, fault="compile_error", stage="compile")
    with pytest.raises(CompileError, match=r"up: opencl/gemv\.cl"):
        make_runner(make_space(DENSE, Script(faults=(fault,))))


# Which events are read.


@pytest.mark.parametrize("count", [1, 100, 512, 513, 5000])
def test_sampled_events_stand_for_all(count: int) -> None:
    weights = sample_events([0] * count, 512)
    assert 0 in weights
    assert len(weights) <= 512
    assert sum(weights.values()) == pytest.approx(count)


def test_a_repeating_sequence_is_sampled_by_kind() -> None:
    """One layer in nine takes half of the time; at even distances it might never be met."""
    times = np.array([1.0] * 8 + [8.0])
    kinds = [0] * 8 + [1]
    weights = sample_events(kinds * 1000, 512)
    total = sum(weight * times[place % 9] for place, weight in weights.items())
    assert total == pytest.approx(1000 * times.sum(), rel=1e-6)
    assert len(weights) <= 512
