"""Plans: balanced orders that go on over blocks, lengths by time, memory that fits."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from typing import Any

import pytest
from conftest import make_device

from gemvbench.case import Gemv
from gemvbench.errors import Exit, UserError
from gemvbench.messages import Slot
from gemvbench.plan import (
    LONG_LEG_SECONDS,
    draw_padding,
    first_orders,
    orders,
    plan_layout,
    plan_lengths,
    plan_slots,
    williams_square,
)

CASE = Gemv(k=1024, n=3072)
SIZES = range(2, 10)


def names(size: int) -> list[str]:
    return [f"arm{index}" for index in range(size)]


def slots(size: int = 4, *, block: int = 0, passes: int = 6, seed: int = 0) -> tuple[Slot, ...]:
    lengths = dict.fromkeys(names(size), (900, 100))
    return plan_slots(names(size), lengths, block=block, passes=passes, seed=seed)


def order_of(found: tuple[Slot, ...]) -> list[tuple[str, ...]]:
    passes: dict[int, list[str]] = {}
    for slot in found:
        assert slot.slot == len(passes.setdefault(slot.pass_, []))
        passes[slot.pass_].append(slot.arm)
    return [tuple(arms) for arms in passes.values()]


@pytest.mark.parametrize("size", SIZES)
def test_squares_are_balanced(size: int) -> None:
    """Every arm in every slot, and after every other arm, equally often."""
    rows = williams_square(size)
    assert len(rows) == (size if size % 2 == 0 else 2 * size)
    assert all(sorted(row) == list(range(size)) for row in rows)
    places = Counter((slot, arm) for row in rows for slot, arm in enumerate(row))
    follows = Counter(pair for row in rows for pair in pairwise(row))
    assert len(places) == size * size
    assert set(places.values()) == {len(rows) // size}
    assert len(follows) == size * (size - 1)
    assert set(follows.values()) == {len(rows) // size}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 99])
def test_drawn_orders_are_whole_squares(size: int, seed: int) -> None:
    square = size if size % 2 == 0 else 2 * size
    endless = orders(names(size), seed)
    for _ in range(3):
        rows = list(islice(endless, square))
        follows = Counter(pair for row in rows for pair in pairwise(row))
        places = Counter(entry for row in rows for entry in enumerate(row))
        assert set(follows.values()) == set(places.values()) == {square // size}
        assert len(follows) == size * (size - 1)
        assert len(places) == size * size


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("passes", [3, 6])
def test_orders_go_on_from_block_to_block(size: int, passes: int) -> None:
    blocks = [order_of(slots(size, block=block, passes=passes)) for block in range(4)]
    run = [order for block in blocks for order in block]
    assert run == first_orders(names(size), 0, 4 * passes)
    assert len(set(run)) >= min(6, passes + 1)


def test_seeds_decide_the_orders() -> None:
    assert slots(seed=3) == slots(seed=3)
    assert len({tuple(order_of(slots(seed=seed))) for seed in range(20)}) > 15


def test_legs_alternate_and_the_first_pass_has_a_middle() -> None:
    found = [slot for block in range(2) for slot in slots(4, block=block, passes=3)]
    by_pass = [found[start] for start in range(0, len(found), 4)]
    assert [slot.long_first for slot in by_pass] == [True, False] * 3
    assert [slot.middle for slot in by_pass] == [500, 0, 0, 500, 0, 0]
    assert all((slot.long, slot.short) == (900, 100) for slot in found)


@pytest.mark.parametrize("seconds", [1e-7, 3e-6, 1e-4, 2e-3, 0.04, 0.3, 10.0])
def test_the_long_leg_lasts(seconds: float) -> None:
    long, short = plan_lengths(seconds)
    assert long * seconds >= LONG_LEG_SECONDS
    assert 1 <= short < long
    assert long <= max(2, LONG_LEG_SECONDS / seconds + 1)
    assert long / short <= 18
    if long >= 100:
        assert 9 <= long / short < 10


def test_a_short_run_has_no_middle() -> None:
    (first, *_) = plan_slots(["a", "b"], {"a": (2, 1), "b": (2, 1)}, block=0, passes=1, seed=0)
    assert first.middle == 0


@pytest.mark.parametrize(("kind", "cache"), [("cpu", 1 << 20), ("cpu", 1 << 26), ("gpu", 50 << 20)])
def test_stream_fills_the_caches_several_times(kind: Any, cache: int) -> None:
    device = make_device(kind=kind, cache=cache, memory=64 << 30)
    layout = plan_layout(CASE, "stream", device)
    assert layout.pool_bytes >= 8 * cache
    assert layout.turns > 1
    assert layout.stride >= CASE.weight_bytes
    assert layout.stride % 4096 == 0
    hot = plan_layout(CASE, "hot", device)
    assert (hot.turns, hot.stride) == (1, layout.stride)


def test_offsets_have_room() -> None:
    case = Gemv(k=1024, n=3072, w_offset=4096)
    assert plan_layout(case, "hot", make_device()).stride >= case.weight_bytes + 4096


def test_spare_rows_are_part_of_every_copy() -> None:
    """The rows that a planted arm reads are not the next copy's first, which others have read."""
    case = Gemv(k=1024, n=3072, spare=100)
    stride = plan_layout(case, "stream", make_device()).stride
    assert stride >= case.stored_bytes == 3172 * 1024 * 2
    assert case.bytes_moved == CASE.bytes_moved
    assert case.id == f"{CASE.id}-spare100"
    assert plan_layout(CASE, "stream", make_device()).stride < stride
    for spare in (-1, 1 << 24):
        with pytest.raises(UserError, match="n with its spare rows"):
            Gemv(k=1024, n=3072, spare=spare)


def test_less_memory_means_fewer_turns() -> None:
    device = make_device(memory=64 << 20)
    layout = plan_layout(CASE, "stream", device)
    assert 1 <= layout.turns < 16
    assert layout.pool_bytes <= 64 << 20


@pytest.mark.parametrize("case", [CASE, Gemv(k=1864135, n=1 << 24)])
def test_what_does_not_fit_is_refused(case: Gemv) -> None:
    with pytest.raises(UserError) as caught:
        plan_layout(case, "stream", make_device(memory=1 << 20))
    assert caught.value.code == Exit.NO_DEVICE
    assert case.id in str(caught.value)
    assert "smaller --shape" in str(caught.value)


def test_padding_is_drawn_by_block() -> None:
    paddings = [draw_padding(0, block, CASE) for block in range(40)]
    assert len(set(paddings)) > 20
    assert all(padding > 0 and padding % 65536 == 0 for padding in paddings)
    assert paddings == [draw_padding(0, block, CASE) for block in range(40)]
