"""Modes from samples made by hand: one class that collapses, or a block in which all is slow."""

from __future__ import annotations

import msgspec
import pytest
from records import DEVICE, make_header, make_run, make_sample

from gemvbench.arm import parse_arm
from gemvbench.breakdown import break_down
from gemvbench.jobs import choose
from gemvbench.models import Operation
from gemvbench.modes import find_modes
from gemvbench.plan import TWIN
from gemvbench.results import Summary, summarise
from gemvbench.token_case import Token, split_token

TOKEN = Token(
    model="m",
    operations=(Operation("up", 64, 64, 2), Operation("head", 64, 256, 1)),
    order=(0, 0, 1),
)
CASES = (TOKEN, *split_token(TOKEN))
SECONDS = {TOKEN.id: 3.1e-3, CASES[1].id: 2e-3, CASES[2].id: 1e-3}
BLOCKS = 8


def summary(slow: dict[tuple[str, str, int], float], blocks: int = BLOCKS) -> Summary:
    """Slowness by case, arm and block."""
    choices = [
        choose(parse_arm(arm), arm, case, DEVICE)[0] for case in CASES for arm in ("base", "pack2")
    ]
    header = msgspec.structs.replace(make_header(), cases=CASES, choices=tuple(choices))
    samples = []
    for case in CASES:
        for arm in ("base", TWIN, "pack2"):
            for block in range(blocks):
                for pass_ in range(3):
                    wobble = 1 + 0.001 * ((block + pass_) % 3)
                    seconds = SECONDS[case.id] * wobble * slow.get((case.id, arm, block), 1.0)
                    sample = make_sample(arm, block, pass_, seconds, case=case.id)
                    samples.append(msgspec.structs.replace(sample, bytes_per_call=case.bytes_moved))
    return summarise(make_run(header, samples))


HEAD = CASES[2].id


def test_a_class_that_collapses_is_named_with_its_blocks_and_arms() -> None:
    slow = {(HEAD, arm, block): 19.6 for arm in ("base", TWIN) for block in (1, 5)}
    modes = find_modes(summary(slow))
    assert [(mode.name, mode.arm, mode.blocks) for mode in modes] == [
        ("head", "base", (1, 5)),
        ("head", TWIN, (1, 5)),
    ]
    for mode in modes:
        assert mode.measured == BLOCKS
        assert mode.factor == pytest.approx(19.6, rel=0.01)
        assert mode.rest == pytest.approx(1, abs=0.01)


def test_a_block_in_which_all_is_slow_is_no_mode_of_a_class() -> None:
    slow = {(case.id, arm, 2): 2.0 for case in CASES for arm in ("base", TWIN, "pack2")}
    assert find_modes(summary(slow)) == ()


def test_nothing_slow_is_no_mode() -> None:
    assert find_modes(summary({})) == ()
    assert find_modes(summary({(HEAD, "base", 1): 1.3})) == ()


def test_one_block_tells_no_mode() -> None:
    assert find_modes(summary({(HEAD, "base", 0): 9.0}, blocks=1)) == ()


def test_what_the_parts_leave_over() -> None:
    (base, _) = break_down(summary({}))
    assert base.seconds == pytest.approx(3.1e-3, rel=0.01)
    assert base.rest == pytest.approx(0.1e-3, rel=0.02)
    assert not base.closes
    near = {(case.id, arm, b): 1.03 for case in CASES[1:] for arm in ("base",) for b in range(8)}
    assert break_down(summary(near))[0].closes


def test_a_class_without_samples_is_missing() -> None:
    found = summary({})
    run = msgspec.structs.replace(
        found.run, lines=tuple(x for x in found.run.lines if getattr(x, "case", "") != HEAD)
    )
    base = break_down(summarise(run))[0]
    assert base.missing == ("head",)
    assert not base.closes
