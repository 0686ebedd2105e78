"""Records made by hand: headers, samples with planted times, and whole runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.case import Gemv
from gemvbench.jobs import Choice, choose
from gemvbench.messages import Check, Leg, Sample, Verified
from gemvbench.plan import ROOF, TWIN
from gemvbench.record import Ended, Header, Line, Run, Settings

CASE = Gemv(k=512, n=64)
DEVICE = make_device(id="dev")
PASSES = 3
POOL = 1 << 20
_WOBBLE = (0.0, 0.002, -0.001, 0.001, -0.002, 0.0015, -0.0005, 0.001)


def make_header(arms: Iterable[str] = ("pack2",), case: Gemv = CASE, **settings: Any) -> Header:
    return Header(
        version="0",
        started="2026-01-01T00:00:00+0000",
        arguments=("ab",),
        settings=Settings(command="ab", passes=PASSES, **settings),
        environment={},
        devices=(DEVICE,),
        cases=(case,),
        choices=tuple(make_choice(arm, case) for arm in ("base", *arms)),
        baseline="base",
    )


def make_choice(arm: str, case: Gemv = CASE) -> Choice:
    return choose(parse_arm(arm), arm, case, DEVICE)[0]


def make_leg(calls: int, seconds: float, **fields: Any) -> Leg:
    timeline = 1e-3 + calls * seconds
    leg = Leg(
        calls=calls,
        timeline=timeline,
        kernel=timeline,
        host=timeline,
        enqueue=0.0,
        queued_ahead=True,
    )
    return msgspec.structs.replace(leg, **fields)


def make_sample(arm: str, block: int, pass_: int, seconds: float, **fields: Any) -> Sample:
    sample = Sample(
        block=block,
        case=CASE.id,
        pass_=pass_,
        slot=0,
        arm=arm,
        long=make_leg(90, seconds),
        short=make_leg(10, seconds),
        bytes_per_call=POOL if arm == ROOF else CASE.bytes_moved,
        correct=None if arm == ROOF else True,
    )
    return msgspec.structs.replace(sample, **fields)


def make_samples(times: Mapping[str, float], blocks: int = 6, **fields: Any) -> list[Line]:
    """Every arm in every pass; small differences between blocks, common drift within them."""
    samples: list[Line] = []
    for index, (arm, seconds) in enumerate(times.items()):
        for block in range(blocks):
            for pass_ in range(PASSES):
                noise = _WOBBLE[(block + 3 * index) % len(_WOBBLE)]
                drift = 1 + 0.05 * pass_
                samples.append(
                    make_sample(arm, block, pass_, seconds * (1 + noise) * drift, **fields)
                )
    return samples


def times(**arms: float) -> dict[str, float]:
    """Seconds per call of base, its twin and the roof at half the time, beside those given."""
    roof = 0.5e-3 * POOL / CASE.bytes_moved
    return {"base": 1e-3, TWIN: 1e-3, ROOF: roof} | arms


def verified(arm: str, passed: bool = True) -> Verified:
    checks = (Check("exact", passed, "" if passed else "1 rows wrong"), Check("random", True))
    return Verified(case=CASE.id, arm=arm, checks=checks, digest="d")


def make_run(header: Header, lines: Sequence[Line], ended: str = "complete") -> Run:
    right = [verified(choice.label) for choice in header.choices]
    named = {line.arm for line in lines if isinstance(line, Verified)}
    return Run(
        header=header,
        lines=(
            *(line for line in right if line.arm not in named),
            *lines,
            Ended(reason=ended, seconds=1.0),
        ),
    )
