"""The scripted device: its kernels are right, its times are as scripted, its noise is seeded."""

from __future__ import annotations

import math
import statistics
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import make_device

from gemvbench import inputs, oracle
from gemvbench.arm import parse_arm
from gemvbench.backend.base import Launch, Timing
from gemvbench.backend.fake import FakeBackend, read_constants
from gemvbench.backend.fake_kernels import Memory
from gemvbench.backend.script import Script
from gemvbench.case import Gemv
from gemvbench.errors import CompileError
from gemvbench.jobs import choose, roof_jobs
from gemvbench.messages import KernelJob, Layout
from gemvbench.workspace import KernelRunner, Workspace

CASE = Gemv(k=96, n=33)


def backend(**script: Any) -> FakeBackend:
    return FakeBackend(make_device(), msgspec.convert(script, Script))


def job(arm: str, case: Gemv = CASE) -> KernelJob:
    _, made = choose(parse_arm(arm), arm, case, make_device())
    assert isinstance(made, KernelJob)
    return made


def space(device: FakeBackend, case: Gemv = CASE, turns: int = 5) -> Workspace:
    made = Workspace(device, case, Layout(turns=turns, stride=8192), seed=1)
    made.fill_weights("random")
    made.set_x(inputs.values("random", case.x, case.k, 1, oracle.X_STREAM))
    return made


def time_once(device: FakeBackend, arm: str = "pack2", calls: int = 10) -> Timing:
    place = space(device)
    wanted = job(arm)
    kernel = device.compile(wanted.text, wanted.entry)
    return device.time(place.launches(kernel, wanted, calls))


@pytest.mark.parametrize("arm", ["base", "pack3+rows4", "cpu", "frozen"])
@pytest.mark.parametrize(("w", "x"), [("f16", "f16"), ("bf16", "f32")])
def test_every_turn_gives_the_right_product(arm: str, w: str, x: str) -> None:
    if arm.startswith("pack3") and x == "f32":
        arm = "rows4"
    case = Gemv(k=96, n=33, w=w, x=x, w_offset=64, x_offset=32)
    device = backend()
    place = space(device, case)
    wanted = job(arm, case)
    runner = KernelRunner(place, device.compile(wanted.text, wanted.entry), wanted)
    reference = oracle.random_reference(case, 1)
    for _ in range(7):
        runner.time(1)
        check = oracle.check_random(place.output(), reference, 32)
        assert check.passed, check.detail


def test_too_few_workgroups_leave_rows_unwritten() -> None:
    device = backend()
    place = space(device)
    wanted = msgspec.structs.replace(job("pack2+rows2"), workgroups=16)
    place.poison_output()
    device.run(place.launches(device.compile(wanted.text, wanted.entry), wanted, 1))
    assert np.isnan(place.output()).tolist() == [False] * 32 + [True]


def test_what_a_kernel_could_not_do_is_refused() -> None:
    device = backend()
    place = space(device)
    wanted = job("pack2")
    odd = device.compile(wanted.text.replace("#define PACK 2", "#define PACK 6"), wanted.entry)
    with pytest.raises(RuntimeError, match="misaligned load"):
        device.run(place.launches(odd, wanted, 1))
    kernel = device.compile(wanted.text, wanted.entry)
    small = msgspec.structs.replace(wanted, workgroup_size=64)
    with pytest.raises(RuntimeError, match="workgroup of 64"):
        device.run(place.launches(kernel, small, 1))
    with pytest.raises(CompileError, match="there is no kernel 'gemv_rows'"):
        device.compile(wanted.text, "gemv_rows")
    with pytest.raises(MemoryError):
        device.alloc(1 << 40)


def test_copies_are_made_when_it_matters() -> None:
    memory = Memory(64)
    memory.write(0, np.arange(4, dtype=np.uint32))
    memory.copy(0, 16, 16)
    memory.copy(0, 32, 32)
    assert memory.read(52, np.uint32, 3).tolist() == [1, 2, 3]
    assert memory.read(8, np.uint32, 4).tolist() == [2, 3, 0, 1]
    memory.copy(0, 48, 16)
    memory.write(0, np.full(4, 9, np.uint32))
    assert memory.read(48, np.uint32, 4).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="lie outside"):
        memory.read(60, np.uint32, 2)


def test_the_fold_over_a_roofs_sink_is_the_fold_over_the_data() -> None:
    device = backend()
    words = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    data, wanted = device.upload(words), roof_jobs(make_device())[0]
    sink = device.alloc(4 * wanted.workgroups)
    kernel = device.compile(wanted.text, wanted.entry)
    args = (data, sink, np.uint64(990), np.uint64(10))
    device.run([Launch(kernel, wanted.workgroups, 1, args)])
    folded = np.bitwise_xor.reduce(device.download(sink, np.uint32, wanted.workgroups))
    assert folded == np.bitwise_xor.reduce(words[10:])


def test_constants_are_those_at_the_head() -> None:
    """Those that the host wrote, and those at the head of the file itself."""
    text = "#define A 1\n#define B C\n#line 1\n#define D 4\n\n#define E 5\n"
    assert read_constants(text) == {"A": "1", "B": "C", "D": "4"}


def test_times_are_bytes_over_bandwidth_and_overheads() -> None:
    rule = {"gbps": 2.0, "overhead": 1e-6}
    timing = time_once(backend(rules=[rule]))
    kernel = 10 * CASE.bytes_moved / 2e9
    assert timing.kernel == pytest.approx(kernel)
    assert timing.timeline == pytest.approx(kernel + 10e-6)
    assert timing.queued_ahead
    late = time_once(backend(rules=[{"queued_ahead": False, "kernel_times": False}]))
    assert (late.queued_ahead, late.kernel, late.enqueue) == (False, None, late.timeline)


def test_planted_rows_cost_their_bytes() -> None:
    case = msgspec.structs.replace(CASE, spare=3)
    device = backend(rules=[{"gbps": 2.0}])
    place, wanted = space(device, case), job("extra100", case)
    timing = device.time(place.launches(device.compile(wanted.text, wanted.entry), wanted, 10))
    assert timing.kernel == pytest.approx(10 * (CASE.bytes_moved + 3 * (96 * 2 + 4)) / 2e9)


def test_the_first_rule_that_names_a_value_gives_it() -> None:
    rules = [{"match": {"PACK": "2"}, "gbps": 4.0}, {"gbps": 2.0, "noise": 0.1}]
    script = msgspec.convert({"rules": rules}, Script)
    assert script.speed({"PACK": "2"}).gbps == 4
    assert script.speed({"PACK": "2"}).noise == 0.1
    assert script.speed({"PACK": "3"}).gbps == 2
    assert script.speed({}).slow_factor == 2


def legs(device: FakeBackend, count: int = 200) -> list[float]:
    place, wanted = space(device), job("pack2")
    kernel = device.compile(wanted.text, wanted.entry)
    launches = place.launches(kernel, wanted, 1)
    nominal = CASE.bytes_moved / 1e9
    return [math.log(device.time(launches).timeline / nominal) for _ in range(count)]


def test_noise_is_by_leg_and_seeded() -> None:
    first = legs(backend(rules=[{"noise": 0.02}]))
    assert statistics.stdev(first) == pytest.approx(0.02, rel=0.15)
    assert abs(statistics.mean(first)) < 0.006
    assert first == legs(backend(rules=[{"noise": 0.02}]))
    assert first != legs(backend(seed=1, rules=[{"noise": 0.02}]))


def test_offsets_are_by_process() -> None:
    """A process differs from another by what it was asked before, as a block's padding."""
    means = []
    for block in range(200):
        device = backend(rules=[{"offset": 0.01}])
        device.alloc(4096 * (block + 1))
        found = legs(device, 2)
        assert found[0] == pytest.approx(found[1])
        means.append(found[0])
    assert statistics.stdev(means) == pytest.approx(0.01, rel=0.15)


def test_drift_and_slow_legs() -> None:
    drifting = legs(backend(rules=[{"drift": 100.0}]), 50)
    assert drifting == sorted(drifting)
    assert drifting[-1] > drifting[0] + 0.01
    slow = legs(backend(rules=[{"slow_probability": 0.25, "slow_factor": 3.0}]), 400)
    share = sum(value > 1 for value in slow) / 400
    assert share == pytest.approx(0.25, abs=0.08)
    assert {round(math.exp(value)) for value in slow} == {1, 3}
