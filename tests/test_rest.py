"""A measurement waits while the device is near its power limit, and never for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemvbench import rest
from gemvbench.gpu_state import GpuState
from gemvbench.messages import BlockDone
from gemvbench.reading import read_record


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rest, "time", clock)
    return clock


def drawing(*watts: float) -> Iterator[GpuState]:
    for each in watts:
        yield GpuState(power_w=each, power_limit_w=700.0)


@pytest.mark.parametrize(
    ("watts", "seconds"),
    [((300,), 0.0), ((560,), 0.0), ((561, 540), 0.02), ((690, 640, 600, 550), 0.06)],
)
def test_it_waits_until_the_device_draws_less(
    clock: Clock, watts: tuple[float, ...], seconds: float
) -> None:
    readings = drawing(*watts)
    rest.rest(lambda: next(readings))
    assert clock.now == pytest.approx(seconds)


def test_it_does_not_wait_for_ever(clock: Clock) -> None:
    rest.rest(lambda: GpuState(power_w=699.0, power_limit_w=700.0))
    assert 1.9 < clock.now < 2.1


@pytest.mark.parametrize(
    "state",
    [None, GpuState(), GpuState(power_w=900.0), GpuState(power_w=900.0, power_limit_w=0.0)],
)
def test_what_a_device_does_not_tell_costs_nothing(clock: Clock, state: GpuState | None) -> None:
    rest.rest(lambda: state)
    assert clock.now == 0


@pytest.mark.parametrize("options", [(), ("--no-rest",)])
def test_blocks_rest_unless_told_not_to(
    gemvbench: Callable[..., Any],
    script: Callable[..., Path],
    tmp_path: Path,
    options: tuple[str, ...],
) -> None:
    script([{"gbps": 1.0}])
    record = tmp_path / "r.jsonl"
    answer = gemvbench("ab", "--arm", "pack2", "--quick", "--record", record, *options)
    assert answer.code == 0
    blocks = read_record(record).of(BlockDone)
    assert len(blocks) == 6
    assert all(("rest" in block.parts) == (not options) for block in blocks)
