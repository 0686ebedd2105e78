"""The memory of a case: rotation goes on, placement is drawn, and what is outside is NaN."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from conftest import make_device

from gemvbench import inputs, oracle
from gemvbench.arm import parse_arm
from gemvbench.backend.fake import FakeBackend
from gemvbench.backend.script import Script
from gemvbench.case import Gemv
from gemvbench.jobs import choose
from gemvbench.messages import HostJob, KernelJob, Layout
from gemvbench.runners import make_host_runner
from gemvbench.workspace import W_LEAD, KernelRunner, Workspace

CASE = Gemv(k=96, n=33, w_offset=64, x_offset=32)
LAYOUT = Layout(turns=5, stride=8192)


@pytest.fixture
def space() -> Workspace:
    made = Workspace(FakeBackend(make_device(), Script()), CASE, LAYOUT, 1, guarded=True)
    made.fill_weights("random")
    made.set_x(inputs.values("random", CASE.x, CASE.k, 1, oracle.X_STREAM))
    return made


def job() -> KernelJob:
    _, made = choose(parse_arm("pack2"), "pack2", CASE, make_device())
    assert isinstance(made, KernelJob)
    return made


def test_rotation_goes_on_where_it_ended(space: Workspace) -> None:
    kernel = space.backend.compile(job().text, job().entry)

    def turns(calls: int) -> list[int]:
        offsets = [
            int(launch.args[5]) * 2 - W_LEAD - 64 for launch in space.launches(kernel, job(), calls)
        ]
        return [offset // LAYOUT.stride for offset in offsets]

    assert turns(3) == [0, 1, 2]
    assert turns(4) == [3, 4, 0, 1]
    assert turns(12) == [2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert turns(1) == [4]


def test_all_turns_hold_the_same_weights(space: Workspace) -> None:
    count = CASE.k * CASE.n
    expected = inputs.values("random", "f16", count, 1, oracle.W_STREAM)
    for turn in range(5):
        found = space.backend.download(space.pool, np.float16, count, W_LEAD + turn * 8192 + 64)
        np.testing.assert_array_equal(found, expected)


def test_what_is_outside_the_weights_is_nan(space: Workspace) -> None:
    pool = space.backend.download(space.pool, np.float16, W_LEAD // 2 + 4096)
    start = W_LEAD // 2 + 32
    stop = start + CASE.k * CASE.n
    assert np.isnan(pool[:start]).all()
    assert np.isnan(pool[stop:]).all()
    assert not np.isnan(pool[start:stop]).any()


def test_a_timed_run_writes_a_poisoned_output(space: Workspace) -> None:
    runner = KernelRunner(space, space.backend.compile(job().text, job().entry), job())
    assert runner.time(3).calls == 3
    right = runner.output_digest()
    assert space.output_guard_intact()
    space.poison_output()
    assert np.isnan(space.output()).all()
    assert runner.output_digest() != right
    none = msgspec.structs.replace(job(), workgroups=0)
    idle = KernelRunner(space, space.backend.compile(job().text, job().entry), none)
    idle.time(1)
    assert np.isnan(space.output()).all()


def test_spare_rows_are_distinct_bytes_that_only_planted_arms_touch() -> None:
    case = msgspec.structs.replace(CASE, spare=7)
    made = Workspace(FakeBackend(make_device(), Script()), case, LAYOUT, 1, guarded=True)
    made.fill_weights("random")
    made.set_x(inputs.values("random", case.x, case.k, 1, oracle.X_STREAM))
    whole = inputs.values("random", "f16", 96 * 40, 1, oracle.W_STREAM)
    for turn in range(LAYOUT.turns):
        start = W_LEAD + turn * LAYOUT.stride + 64
        found = made.backend.download(made.pool, np.float16, 96 * 40, start)
        np.testing.assert_array_equal(found, whole)
    for arm, extra in (("pack2", 0), ("extra100", 3), ("cpu+extra100", 3)):
        _, planted = choose(parse_arm(arm), arm, case, make_device())
        assert isinstance(planted, KernelJob)
        assert planted.extra == extra
        runner = KernelRunner(made, made.backend.compile(planted.text, planted.entry), planted)
        assert runner.bytes_per_call == CASE.bytes_moved
        runner.time(2)
        y = made.output(7)
        assert np.isnan(y).tolist() == [False] * (33 + extra) + [True] * (7 - extra)
        assert made.output_guard_intact(extra)
        assert made.output_guard_intact() == (extra == 0)
        right = runner.output_digest()
        made.backend.fill(made._y, 0, 4 * (33 + extra))
        assert runner.output_digest() != right
    reference = oracle.random_reference(Gemv(k=96, n=40), 1)
    np.testing.assert_allclose(y[:36], reference.y[:36], rtol=1e-4)


def test_the_host_computes_the_same_product() -> None:
    runner = make_host_runner(HostJob(arm="numpy", device="d", family="numpy"), CASE, LAYOUT, 1)
    assert runner.time(7).calls == 7
    assert oracle.check_random(runner.y, oracle.random_reference(CASE, 1), 32).passed
    assert runner.output_digest() is None
