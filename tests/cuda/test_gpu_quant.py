"""Quantised weights on the GPUs here, in CUDA and in OpenCL: types, arms, odd shapes, tokens."""

from __future__ import annotations

import itertools

import pytest
from test_gpu_attention import backend

from gemvbench.arm import parse_arm
from gemvbench.case import QUANT_TYPES, VECTOR_TYPES, Gemv
from gemvbench.jobs import choose
from gemvbench.messages import KernelJob, Layout, Verified, Verify
from gemvbench.plan import plan_layout
from gemvbench.spaces import make_space
from gemvbench.worker import make_verifier

__all__ = ["backend"]  # a fixture

pytestmark = pytest.mark.cuda

BLOCKS = (1, 2, 3, 4, 7, 8, 12, 33, 136, 544)
"""Of a row: less than a load, odd numbers, and more than one piece of x."""
ROWS = (1, 3, 17, 300)
OFFSETS = ((0, 0), (2, 4), (4, 0), (8, 12), (16, 16))
SHAPES = (
    "rows1+ahead1+block64", "rows4+ahead2+lanes8", "rows2+ahead4+lanes16+block128",
    "rows1+ahead3+lanes64", "rows2+ahead1+lanes256+block512+groups1", "rows1+ahead2+groups0",
)  # fmt: skip


def arms_of(backend, x8):
    """Every load, stored and repacked, each with two ways through the rows; and what is chosen."""
    ways = itertools.cycle(SHAPES)
    arms = [
        f"quant+pack{pack}+repack{repack}+xq{x8}+{next(ways)}"
        for pack, repack, _ in itertools.product(range(4), (0, 1), range(2))
    ]
    arms += ["base", "auto", f"quant+xq{x8}", f"quant+repack1+xq{x8}"]
    able = "dependent_launch" in backend.info.capabilities
    return arms + [f"quant+xq{x8}+dependent1"] * able


def verify(backend, case, arms):
    """Messages of the arms that are built; how many that are."""
    jobs = {
        job.arm: job
        for name in arms
        for _, job in [choose(parse_arm(name), name, case, backend.info)]
        if job is not None
    }
    request = Verify(device=backend.info, case=case, jobs=tuple(jobs.values()), siblings=(), seed=5)
    found = [m for m in make_verifier(backend, request).messages() if isinstance(m, Verified)]
    assert {message.arm for message in found} == set(jobs)
    wrong = [(m.arm, c.name, c.detail) for m in found for c in m.checks if not c.passed]
    assert not wrong, (case.id, wrong)
    return jobs, {message.arm: message.digest for message in found}


@pytest.mark.parametrize("x8", [0, 8])
@pytest.mark.parametrize("w", QUANT_TYPES)
def test_odd_shapes(backend, w, x8):
    unit = 256 if w == "q4_K" else 32
    kinds = itertools.cycle(itertools.product(VECTOR_TYPES, OFFSETS))
    arms = arms_of(backend, x8)
    for blocks, n in zip(BLOCKS, itertools.cycle(ROWS)):
        x, (w_offset, x_offset) = next(kinds)
        k = unit * (blocks if w != "q4_K" else max(1, blocks // 8))
        case = Gemv(k=k, n=n, w=w, x=x, w_offset=w_offset, x_offset=x_offset)
        verify(backend, case, arms)


@pytest.mark.parametrize("w", QUANT_TYPES)
def test_shapes_of_models(backend, w):
    """More rows than one turn of a full device has, and an x that is held in pieces."""
    for k, n in ((5120, 17408), (17408, 5120), (4096, 128256)):
        arms = ["base", "auto", "quant+xq8", "quant+pack1", "quant+repack1", "quant+repack1+xq8"]
        jobs, _ = verify(backend, Gemv(k=k, n=n, w=w), arms)
        assert len(jobs) == (4 if w == "q4_K" else 6)


@pytest.mark.parametrize("w", QUANT_TYPES)
def test_timed_calls_give_the_verified_output(backend, w):
    """Rotated copies, made on the device, in graphs or queues: the same bits as verified."""
    case = Gemv(k=1024, n=999, w=w)
    arms = ["base", "auto", "quant+xq8"] + ["quant+repack1", "quant+repack1+xq8"] * (w != "q4_K")
    jobs, digests = verify(backend, case, arms)
    stride = plan_layout(case, "hot", backend.info).stride
    space = make_space(backend, case, Layout(turns=7, stride=stride), 5, 1 << 16)
    space.fill()
    for job in jobs.values():
        assert isinstance(job, KernelJob)
        runner = space.make_runner(job)
        assert runner.time(50).timeline > 0
        assert runner.output_digest() == digests[job.arm]
