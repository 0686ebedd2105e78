"""The plan of a run: pure, seeded, printed by --dry-run.

Orders are rows of Williams squares (each arm in each slot, and after each other arm,
equally often; Williams 1949), relabelled at random and continued from block to block.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice

from gemvbench.cases import Case, Single
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.messages import Layout, Slot

LONG_LEG_SECONDS = 0.05
LENGTH_RATIO = 9
"""Long over short: S2's diff of 36 and 4 tokens."""
PROBE_LENGTHS = (36, 4)
"""(long, short) tokens of launches without work, which by time would be endless."""
PROBE_SECONDS = 1e-3
"""About what they take for one token."""

TWIN = "aa"
ROOF = "roof"
LAUNCHES = "launches"
REGIMES = ("stream", "hot")

_MB = 1 << 20
_ALIGNMENT = 4096
_GUARD = 256


def williams_square(size: int) -> list[list[int]]:
    """Rows of a Williams design over `size` arms: `size` rows if even, else twice as many."""
    zigzag = [(i + 1) // 2 if i % 2 else (size - i // 2) % size for i in range(size)]
    rows = [[(start + step) % size for step in zigzag] for start in range(size)]
    return rows if size % 2 == 0 else rows + [row[::-1] for row in rows]


def orders(arms: Sequence[str], seed: int) -> Iterator[tuple[str, ...]]:
    """Endless pass orders over `arms`: square after square, labels and rows drawn anew."""
    draw = random.Random(f"orders {seed}")
    while True:
        labels = list(arms)
        draw.shuffle(labels)
        square = williams_square(len(labels))
        draw.shuffle(square)
        for row in square:
            yield tuple(labels[index] for index in row)


def roof_label(device: str, devices: int) -> str:
    """The label of a device's bare read: with its id where a run has several devices."""
    return ROOF if devices == 1 else f"{device}:{ROOF}"


def launches_label(device: str, devices: int) -> str:
    """The label of a token's launches without work."""
    return LAUNCHES if devices == 1 else f"{device}:{LAUNCHES}"


def first_orders(arms: Sequence[str], seed: int, count: int) -> list[tuple[str, ...]]:
    """The orders of the first passes, as a dry run shows them."""
    return list(islice(orders(arms, seed), count))


def plan_lengths(seconds: float) -> tuple[int, int]:
    """(long, short) numbers of calls for an arm that takes `seconds` per call."""
    long = max(2, math.ceil(LONG_LEG_SECONDS / max(seconds, 1e-9)))
    return long, max(1, long // LENGTH_RATIO)


def plan_slots(
    arms: Sequence[str],
    lengths: dict[str, tuple[int, int]],
    *,
    block: int,
    passes: int,
    seed: int,
) -> tuple[Slot, ...]:
    """All slots of one case in one block, in the order they are run.

    The leg that comes first alternates by pass; the first pass adds a middle length, which
    checks that time is linear in length.
    """
    slots = []
    for number, order in enumerate(
        islice(orders(arms, seed), block * passes, (block + 1) * passes)
    ):
        for position, arm in enumerate(order):
            long, short = lengths[arm]
            middle = (long + short) // 2 if number == 0 else 0
            slots.append(
                Slot(
                    pass_=number,
                    slot=position,
                    arm=arm,
                    long=long,
                    short=short,
                    middle=middle if short < middle < long else 0,
                    long_first=(block * passes + number) % 2 == 0,
                )
            )
    return tuple(slots)


def plan_layout(case: Single, regime: str, device: DeviceInfo, sharers: int = 1) -> Layout:
    """How many copies of the weights rotate. In `stream` they fill the caches several times.

    Args:
        sharers: what of the run allocates from the same memory: devices, this one included, and
            weights that are repacked beside those in files' layout.

    Raises:
        UserError: the case does not fit the device; nothing was allocated.
    """
    stride = copy_stride(case)
    turns = math.ceil(stream_bytes(device) / stride) if regime == "stream" else 1
    most = _most_copies(case, stride, device, sharers)
    if most < 1:
        twice = describe_sharers(sharers)
        raise UserError(
            f"Case {case.id} needs {stride / 1e9:.2f} GB in one allocation{twice}, and "
            f"{device.id} has {device.free_bytes / 1e9:.2f} of {device.memory_bytes / 1e9:.2f} GB "
            f"free and allocates at most {device.max_alloc_bytes / 1e9:.2f} GB at once. Choose a "
            "smaller --shape or --model, leave the case out with -k, or choose another --device.",
            Exit.NO_DEVICE,
        )
    return Layout(turns=min(turns, most), stride=stride)


def doubled(layout: Layout, case: Single, device: DeviceInfo) -> Layout | None:
    """A layout with twice the copies; None where they do not fit the device."""
    turns = 2 * layout.turns
    fits = turns <= _most_copies(case, layout.stride, device)
    return Layout(turns=turns, stride=layout.stride) if fits else None


def _most_copies(case: Single, stride: int, device: DeviceInfo, sharers: int = 1) -> int:
    room = usable_bytes(device, sharers) - case.fixed_bytes
    return min(device.max_alloc_bytes, room) // stride


def describe_sharers(sharers: int) -> str:
    """What a refusal says of them; "" where there is one."""
    return f" for each of {sharers} (devices and repackings) that share it" if sharers > 1 else ""


def draw_padding(seed: int, block: int, case: Case) -> int:
    """Bytes allocated ahead of the operands of a block, so that placement is drawn too."""
    return random.Random(f"padding {seed} {block} {case.id}").randrange(1, 64) * 65536


def draw_load_order(labels: Sequence[str], seed: int, block: int, case: Case) -> tuple[str, ...]:
    """The order in which a block loads its kernels: a fixed one would place them alike always."""
    drawn = list(labels)
    random.Random(f"load {seed} {block} {case.id}").shuffle(drawn)
    return tuple(drawn)


def copy_stride(case: Single) -> int:
    """Bytes from one copy of what rotates to the next."""
    return -(-(case.copy_bytes + _GUARD) // _ALIGNMENT) * _ALIGNMENT


def usable_bytes(device: DeviceInfo, sharers: int) -> int:
    """What of a memory a run may take, divided by the devices that take theirs from it."""
    return device.free_bytes * 9 // 10 // sharers


def stream_bytes(device: DeviceInfo) -> int:
    """Several times the last-level cache; on a GPU enough for TLBs and DRAM rows to be cold."""
    if device.is_cpu:
        return max(8 * device.cache_bytes, 256 * _MB)
    return max(8 * device.cache_bytes, min(4096 * _MB, device.memory_bytes // 4))
