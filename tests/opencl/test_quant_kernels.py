"""Family quant on PoCL and Intel's runtime: both shapes of kernel, by every check of the oracle."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from gemvbench.arm import parse_arm
from gemvbench.case import QUANT_TYPES, Gemv
from gemvbench.jobs import choose
from gemvbench.messages import KernelJob, Layout, Verified, Verify
from gemvbench.plan import plan_layout
from gemvbench.spaces import make_space

pytest.importorskip("pyopencl")
from gemvbench.worker import list_devices, make_verifier, open_backend

pytestmark = pytest.mark.opencl

ARMS = ("quant", "quant+xq8", "base", "quant+pack1+rows2+lanes16+ahead2+block64+xq8")
REPACKED = {
    "q8_0": ("quant+repack1", "quant+repack1+items2+xq8"),
    "q4_0": ("quant+repack1+xq8", "quant+repack1+pack3+rows2+ahead1+block64"),
    "q4_K": (),
}


@cache
def backend_of(name: str) -> Any:
    for found in list_devices("opencl"):
        if found.device.id == name:
            return open_backend(found.device)
    return None


@pytest.fixture(params=["pocl", pytest.param("intel", marks=pytest.mark.intel)])
def backend(request: pytest.FixtureRequest) -> Any:
    found = backend_of(request.param)
    if found is None:
        pytest.skip(f"no {request.param} device here")
    return found


def build(backend: Any, case: Gemv, arms: tuple[str, ...]) -> list[KernelJob]:
    jobs = [choose(parse_arm(name), name, case, backend.info)[1] for name in arms]
    assert all(isinstance(job, KernelJob) for job in jobs)
    return jobs


def verify(backend: Any, case: Gemv, jobs: list[KernelJob]) -> dict[str, Verified]:
    request = Verify(device=backend.info, case=case, jobs=tuple(jobs), siblings=(), seed=3)
    found = make_verifier(backend, request).messages()
    return {message.arm: message for message in found if isinstance(message, Verified)}


def wrong(found: dict[str, Verified]) -> list[tuple[str, str, str]]:
    return [(v.arm, c.name, c.detail) for v in found.values() for c in v.checks if not c.passed]


@pytest.mark.parametrize("w", QUANT_TYPES)
def test_arms_are_right(backend: Any, w: str) -> None:
    """Odd rows and offsets, of few blocks and of more than a round; one row; more than repeat."""
    arms = ARMS + REPACKED[w]
    case = Gemv(k=1280, n=261, w=w)
    assert wrong(verify(backend, case, build(backend, case, arms))) == []
    odd = Gemv(k=256 if w == "q4_K" else 96, n=1, w=w, x="f32", w_offset=2, x_offset=4)
    assert wrong(verify(backend, odd, build(backend, odd, ARMS[:3]))) == []


@pytest.mark.parametrize("w", QUANT_TYPES)
def test_timed_calls_give_the_verified_output(backend: Any, w: str) -> None:
    """Rotated copies, which the device makes itself, repacked ones too."""
    case = Gemv(k=512, n=300, w=w, x="bf16")
    jobs = build(backend, case, ("quant", "quant+xq8", *REPACKED[w][:1]))
    found = verify(backend, case, jobs)
    stride = plan_layout(case, "hot", backend.info).stride
    space = make_space(backend, case, Layout(turns=3, stride=stride), 3, 1 << 16)
    space.fill()
    for job in jobs:
        runner = space.make_runner(job)
        runner.time(5)
        assert runner.output_digest() == found[job.arm].digest


@pytest.mark.parametrize(
    ("arm", "file", "right", "planted"),
    [
        ("quant", "quant_cpu.cl", "acc[0] + acc[1]", "acc[0]"),
        ("quant+xq8", "quant_cpu.cl", "* X_SCALE(x, b)", "* X_SCALE(x, 0)"),
        ("quant+repack1", "quant_cpu.cl", "half_value((row).scales[b])", "half_value(0x3c00)"),
    ],
)
def test_a_planted_mistake_is_seen(
    backend: Any, arm: str, file: str, right: str, planted: str
) -> None:
    case = Gemv(k=512, n=64, w="q8_0")
    (job,) = build(backend, case, (arm,))
    assert file in job.text
    assert right in job.text
    broken = msgspec.structs.replace(job, text=job.text.replace(right, planted))
    (found,) = verify(backend, case, [broken]).values()  # it compiles
    assert wrong({arm: found})
