"""Arms at different clocks get a ratio in cycles; a wrong event clock flags the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SHAPE, Answer, make_device
from records import make_leg

from gemvbench.block import measure_roof
from gemvbench.gpu_state import GpuState
from gemvbench.jobs import roof_jobs
from gemvbench.messages import Leg

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]
WORDS = ("ab", "--arm", "pack2", "--shape", SHAPE, "--quick", "--record", "r", "--format", "json")
FAST: dict[str, Any] = {"match": {"PACK": "2"}, "gbps": 0.022}


def test_the_ratio_in_cycles_where_clocks_differ(gemvbench: Run, script: Write) -> None:
    """1.1x the speed at 0.9 of the clock: in cycles it is 1.222x."""
    script([FAST | {"sm_mhz": 1800}, {"sm_mhz": 2000}])
    found = gemvbench(*WORDS).results()
    assert found["pack2"]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert found["pack2"]["cycles_ratio"] == pytest.approx(found["pack2"]["ratio"] / 0.9)
    assert found["pack2"]["flags"] == ["clocks differ (-10.0%)"]
    for arm in ("base", "aa"):
        assert (found[arm]["cycles_ratio"], found[arm]["flags"]) == (None, [])
    said = "pack2 and base ran at different SM clocks: the ratio of their cycles is 1.22"
    assert said in gemvbench("report", "r").out
    assert gemvbench("report", "r", "--format", "csv").code == 0


@pytest.mark.parametrize("clock", [1991, 2009, None])
def test_clocks_that_hardly_differ_or_are_unknown(
    gemvbench: Run, script: Write, clock: int | None
) -> None:
    script([FAST | {"sm_mhz": clock}, {"sm_mhz": None if clock is None else 2000}])
    found = gemvbench(*WORDS).results()["pack2"]
    assert (found["cycles_ratio"], found["flags"]) == (None, [])


def test_cycles_of_two_devices_are_not_compared(gemvbench: Run, script: Write) -> None:
    script(
        [{"match": {"device": "a"}, "sm_mhz": 1000}, {"sm_mhz": 2000}],
        devices=[{"id": "a", "kind": "gpu"}, {"id": "b"}],
    )
    answer = gemvbench(*WORDS, "--baseline", "b:base", "--arm", "a:base")
    assert [r["cycles_ratio"] for r in answer.json["results"]] == [None] * 4


@pytest.mark.parametrize(("host", "flags"), [(1.05, 1), (0.95, 1), (1.015, 0)])
def test_a_wrong_event_clock(gemvbench: Run, script: Write, host: float, flags: int) -> None:
    script([{"host_clock": host}])
    answer = gemvbench(*WORDS)
    found = [f"event clock of fake0 at {1 / host:.3f} of the host's"] * flags
    assert answer.json["flags"] == found
    assert answer.code == 0
    said = f"The event clock of fake0 ran at {1 / host:.3f} of the host's"
    assert gemvbench("report", "r").out.count(said) == flags


class Reader:
    """10 ms a call on the host's clock and half as much on the device's."""

    bytes_per_call = 1000

    def __init__(self) -> None:
        self.calls: list[int] = []

    def run(self, calls: int) -> None: ...

    def time(self, calls: int) -> Leg:
        self.calls.append(calls)
        return make_leg(calls, 0.0, timeline=0.005 * calls, host=0.01 * calls)

    def output_digest(self) -> str | None:
        return None

    def state(self) -> GpuState | None:
        return None


def test_the_event_clock_is_held_against_half_a_second() -> None:
    """A short run that was slow promises too much: the check goes on until it is long enough."""
    reader, job = Reader(), roof_jobs(make_device())[0]
    found = measure_roof(job, reader, seconds=0.1)
    assert reader.calls[0] < 10
    assert reader.calls[-1] >= 50
    assert (found.event_clock, found.bandwidth) == (0.5, pytest.approx(1000 / 0.005))
