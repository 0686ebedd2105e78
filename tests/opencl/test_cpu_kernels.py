"""gemv_cpu and the bare reads on every OpenCL runtime for CPUs here."""

from __future__ import annotations

import numpy as np
import pytest
from test_row_kernels import build, cl, make, queue, upload

__all__ = ["queue"]  # a fixture

pytestmark = pytest.mark.opencl

TYPES = [(w, x) for w in ("f16", "bf16") for x in ("f16", "bf16", "f32")]
PACKS = range(5)
HALVES = ("HALF_BITS", "HALF_VLOAD", "HALF_NATIVE", "HALF_F16C")
ITEMS = (1, 2, 7, 64)


def build_cpu(
    queue, w="f16", x="f16", pack=3, accs=2, half="HALF_BITS", acc=32, x_cache=0, extra=0
):
    if (half == "HALF_NATIVE" or acc == 16) and "cl_khr_fp16" not in queue.device.extensions:
        pytest.skip("no half arithmetic here")
    program = build(
        queue, "gemv_cpu.cl", W_TYPE=f"TYPE_{w.upper()}", X_TYPE=f"TYPE_{x.upper()}",
        PACK=pack, ACCS=accs, HALF=half, ACC=acc, X_CACHE=x_cache,
        EXTRA=extra,
    )  # fmt: skip
    return cl.Kernel(program, "gemv_cpu")


def run_cpu(queue, kernel, w, x, items, w_offset=0, x_offset=0, extra=0):
    """y of the kernel; nothing written behind it. The last `extra` rows of w are planted."""
    n, k = w.shape
    y = np.full(n + 8, np.nan, np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    out = cl.Buffer(queue.context, flags, hostbuf=y)
    kernel(
        queue, (items,), (1,), upload(queue, w, w_offset), upload(queue, x, x_offset), out,
        np.uint32(k), np.uint32(n - extra), np.uint64(w_offset), np.uint32(x_offset),
    )  # fmt: skip
    cl.enqueue_copy(queue, y, out)
    assert np.isnan(y[n:]).all(), "written past the end"
    return y[:n]


def check_cpu(queue, kernel, types, pack, extra=0):
    """Shapes of one load, of less and more than the unroll, one row, fewer rows than items."""
    width = 1 << pack
    for loads, n in ((1, 1), (1, 9), (2, 3), (3, 70), (5, 2), (7, 13), (33, 9), (250, 5)):
        k = loads * width
        for items, offsets in zip(ITEMS, ((0, 0), (1, 0), (0, 3), (7, 5)), strict=True):
            w_offset, x_offset = (offset * width for offset in offsets)
            case = f"k={k} n={n} items={items} offsets={w_offset},{x_offset}"
            w, x = make("small", *types, n + extra, k)
            y = run_cpu(queue, kernel, w, x, items, w_offset, x_offset, extra)
            np.testing.assert_array_equal(y, w.astype(np.int64) @ x.astype(np.int64), case)

            w, x = make("random", *types, n + extra, k)
            y = run_cpu(queue, kernel, w, x, items, w_offset, x_offset, extra)
            products = w.astype(np.float64) * x.astype(np.float64)
            bound = (k / width + 8) * 2.0**-24 * np.abs(products).sum(axis=1)
            assert (np.abs(y - products.sum(axis=1)) <= bound).all(), case


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(("w", "x"), TYPES)
def test_types(queue, w, x, pack):
    check_cpu(queue, build_cpu(queue, w, x, pack), (w, x), pack)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("accs", [1, 4])
@pytest.mark.parametrize("half", HALVES)
def test_half_conversions(queue, half, accs, pack):
    check_cpu(queue, build_cpu(queue, pack=pack, accs=accs, half=half), ("f16", "f16"), pack)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(("w", "x"), TYPES)
def test_planted_rows(queue, w, x, pack):
    """All real rows, the last one too, and all planted ones, over any number of items."""
    check_cpu(queue, build_cpu(queue, w, x, pack, extra=6), (w, x), pack, extra=6)


@pytest.mark.parametrize("pack", PACKS)
def test_x_cache(queue, pack):
    check_cpu(queue, build_cpu(queue, pack=pack, x_cache=250 << pack), ("f16", "f16"), pack)


@pytest.mark.parametrize("pack", PACKS)
def test_half_accumulation(queue, pack):
    kernel = build_cpu(queue, pack=pack, half="HALF_NATIVE", acc=16)
    w, x = make("sparse", "f16", "f16", 9, 48, period=16, phase=5)
    y = run_cpu(queue, kernel, w, x, 2)
    np.testing.assert_array_equal(y, w.astype(np.int64) @ x.astype(np.int64))


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("half", HALVES)
def test_every_half(queue, half, pack):
    """All 65536 bit patterns, in every lane: subnormals, infinities and NaN among them."""
    kernel = build_cpu(queue, pack=pack, half=half)
    patterns = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    width = 1 << pack
    for lane in range(width):
        w = np.zeros((len(patterns), width), np.float16)
        w[:, lane] = patterns
        y = run_cpu(queue, kernel, w, np.ones(width, np.float16), 8)
        np.testing.assert_array_equal(y, patterns.astype(np.float32))


@pytest.mark.parametrize("unroll", [1, 2, 4, 8])
@pytest.mark.parametrize("vec", [4, 8, 16])
def test_reads_cover_every_word_once(queue, vec, unroll):
    """Random words: a word missed, or read twice, changes the XOR over all items."""
    block = 16
    program = build(queue, "roof.cl", VEC=vec, UNROLL=unroll, BLOCK=block)
    chunked, strided = cl.Kernel(program, "read_chunked"), cl.Kernel(program, "read_strided")
    data = np.random.default_rng(3).integers(0, 2**32, 100_000, dtype=np.uint32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(queue.context, flags, hostbuf=data)
    step = vec * unroll
    for words in (0, 1, vec - 1, vec, vec + 1, step - 1, step, step + 5, 99_000, 99_113 - vec):
        for offset in (0, vec, 7 * vec):
            expected = np.bitwise_xor.reduce(data[offset : offset + words])
            for groups in (1, 2, 7, 48):
                for kernel, local in ((chunked, 1), (strided, block)):
                    sink = np.full(groups * local, 0x55, np.uint32)
                    out = cl.Buffer(queue.context, flags, hostbuf=sink)
                    kernel(
                        queue, (groups * local,), (local,), buffer, out,
                        np.uint64(words), np.uint64(offset),
                    )  # fmt: skip
                    cl.enqueue_copy(queue, sink, out)
                    assert np.bitwise_xor.reduce(sink) == expected, (words, offset, groups)
