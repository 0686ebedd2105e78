"""Planted drift, slot effects and slow modes are found at their size, and shown."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pytest
from records import make_header, make_run, make_sample

from gemvbench.disturbance import drift, slot_effect, slot_means, slow_mode
from gemvbench.flags import find_flags
from gemvbench.messages import Sample
from gemvbench.plan import ROOF, TWIN, plan_slots
from gemvbench.report.comparison import comparison_document
from gemvbench.report.formats import render
from gemvbench.results import summarise

ARMS = ("base", TWIN, "pack2", ROOF)


def planted(slot: float = 0.0, drifted: float = 0.0, slow: dict[int, float] | None = None) -> Any:
    """Six blocks in the real orders; pack2 is twice as fast, slot 0 slower by `slot`."""
    noise = random.Random(3)
    samples: list[Sample] = []
    for block in range(6):
        lengths = dict.fromkeys(ARMS, (9, 1))
        for place in plan_slots(ARMS, lengths, block=block, passes=6, seed=1):
            seconds = 0.5e-3 if place.arm == "pack2" else 1e-3
            seconds *= 1 + noise.gauss(0, 0.001)
            seconds *= 1 + (slot if place.slot == 0 else 0)
            seconds *= 1 + drifted * (block * 6 + place.pass_) / 35
            if place.arm == "pack2" and slow and block in slow:
                seconds *= slow[block]
            sample = make_sample(place.arm, block, place.pass_, seconds)
            samples.append(msgspec.structs.replace(sample, slot=place.slot))
    return samples


@pytest.mark.parametrize("size", [0.0, 0.003, 0.05])
def test_slot_effect(size: float) -> None:
    assert slot_effect(slot_means(planted(slot=size))) - 1 == pytest.approx(size, abs=0.0015)
    assert slot_effect(slot_means(planted(slot=size, drifted=0.15))) - 1 == pytest.approx(
        size, abs=0.0025
    )


@pytest.mark.parametrize("size", [0.0, 0.15])
def test_drift(size: float) -> None:
    assert drift(planted(drifted=size), "base") - 1 == pytest.approx(size, abs=0.008)


def test_a_slow_mode_is_counted_and_dropped_nowhere() -> None:
    samples = planted(slow={2: 19.0})
    own = [s for s in samples if s.arm == "pack2"]
    assert slow_mode(own) == (6, pytest.approx(19, rel=0.01))
    assert "slow in 6 of 36 (19.00x)" in find_flags(own, None)
    assert slow_mode([s for s in samples if s.arm == "base"]) == (0, 1.0)
    found = {r.arm: r for r in summarise(make_run(make_header(), samples)).results}
    assert found["pack2"].passes == 36


def test_the_report_tells_both() -> None:
    def text(**disturbed: float) -> str:
        run = make_run(make_header(), planted(**disturbed))
        return render(comparison_document(summarise(run)), "md")

    assert re.search(r"base drifted 1[45]\.\d% peak to peak", text(drifted=0.15))
    assert re.search(r"slots of a pass differ by [45]\.\d\d%", text(slot=0.05))


def test_little_data_is_no_error() -> None:
    assert drift([], "base") == 1.0
    assert slot_effect(slot_means([])) == 1.0
    assert slow_mode([]) == (0, 1.0)
