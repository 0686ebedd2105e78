"""Best is claimed only where the leader is separated from every other arm."""

from __future__ import annotations

import numpy as np
import pytest
from records import CASE, make_header, make_run, make_sample

from gemvbench.messages import Sample
from gemvbench.plan import ROOF, TWIN
from gemvbench.report.comparison import comparison_document
from gemvbench.report.formats import render
from gemvbench.results import Summary, summarise

ARMS = ("pack0", "pack2", "pack3")


def summary(blocks: int = 8, **seconds: float) -> Summary:
    """Noise of 0.2 % on every measurement; base at 1 ms."""
    draw = np.random.default_rng(3)
    named = {"base": 1e-3, TWIN: 1e-3, ROOF: 1e-3} | seconds
    samples: list[Sample] = [
        make_sample(arm, block, pass_, value * float(np.exp(draw.normal(0, 0.002))))
        for block in range(blocks)
        for pass_ in range(6)
        for arm, value in named.items()
    ]
    return summarise(make_run(make_header(list(seconds), looks=(6, 8)), samples))


def test_a_clear_leader_is_best() -> None:
    found = summary(pack0=1.1e-3, pack2=0.9e-3, pack3=0.8e-3)
    (best,) = found.best
    assert (best.case, best.arm, best.not_separated) == (CASE.id, "pack3", ())
    assert "Best: pack3, separated" in render(comparison_document(found), "md")


def test_arms_not_separated_from_the_leader_are_named() -> None:
    (best,) = summary(pack0=1.1e-3, pack2=0.8e-3, pack3=0.8e-3).best
    assert {best.arm, *best.not_separated} == {"pack2", "pack3"}


def test_the_baseline_can_lead() -> None:
    found = summary(pack2=1.2e-3, pack3=1.3e-3)
    assert [best.arm for best in found.best] == ["base"]


@pytest.mark.parametrize("blocks", [3, 5])
def test_too_few_blocks_separate_nothing(blocks: int) -> None:
    (best,) = summary(blocks, pack2=0.9e-3, pack3=0.5e-3).best
    assert best.arm == "pack3"
    assert set(best.not_separated) == {"base", "pack2"}


def test_one_arm_and_its_baseline_need_no_ranking() -> None:
    assert summary(pack2=0.9e-3).best == ()
