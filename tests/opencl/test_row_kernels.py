"""gemv_row, gemv_frozen and the generator on every OpenCL runtime for CPUs here."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest

from gemvbench import inputs
from gemvbench.source import assemble

cl = pytest.importorskip("pyopencl")

pytestmark = pytest.mark.opencl

TYPES = [(w, x) for w in ("f16", "bf16") for x in ("f16", "bf16", "f32")]
PACKED_TYPES = [
    (*types, pack) for types in TYPES for pack in range(4) if not pack or types[1] != "f32"
]
WIDE_TYPES = [(w, "f32", pack) for w in ("f16", "bf16") for pack in (1, 2, 3)]
KS = (1, 2, 3, 7, 8, 255, 1000, 4096)
NS = (1, 2, 3, 5, 301)
SEED = 20
PLATFORMS = {"pocl": "Portable Computing Language", "intel": "Intel"}
_contexts: list[cl.Context] = []
"""Kept: with Intel's runtime a queue alone does not keep its context valid."""


@cache
def open_queue(name: str) -> cl.CommandQueue:
    from gemvbench.backend.opencl_devices import find_devices

    for found in find_devices():
        if found.platform.name.startswith(PLATFORMS[name]):
            context = cl.Context([found.device])
            _contexts.append(context)
            return cl.CommandQueue(context)
    pytest.skip(f"no {name} device here")


@pytest.fixture(params=[pytest.param("pocl"), pytest.param("intel", marks=pytest.mark.intel)])
def queue(request):
    return open_queue(request.param)


def build(queue, file, **constants):
    text = assemble(f"opencl/{file}", tuple(constants.items()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return cl.Program(queue.context, text).build(cache_dir=False)


def build_row(
    queue, w="f16", x="f16", pack=1, rows=1, block=256, acc=32, half="HALF_BITS", extra=0
):
    constants = {"PACK": pack, "ROWS": rows, "BLOCK": block, "ACC": acc, "HALF": half}
    constants |= {"EXTRA": extra} if extra else {}
    program = build(
        queue, "gemv.cl", W_TYPE=f"TYPE_{w.upper()}", X_TYPE=f"TYPE_{x.upper()}", **constants
    )
    return cl.Kernel(program, "gemv_row"), rows, block


def build_frozen(queue, w, x):
    program = build(queue, "frozen.cl", W_TYPE=f"TYPE_{w.upper()}", X_TYPE=f"TYPE_{x.upper()}")
    return cl.Kernel(program, "gemv_frozen"), 1, 128


def upload(queue, array, offset):
    """The array behind `offset` elements of NaN, and NaN after it."""
    poisoned = np.full(offset + array.size + 64, np.nan, array.dtype)
    poisoned[offset : offset + array.size] = array.ravel()
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(queue.context, flags, hostbuf=poisoned.view(np.uint8))


def run(queue, built, w, x, w_offset=0, x_offset=0, extra=0):
    """y of the kernel; nothing written behind it. The last `extra` rows of w are planted."""
    kernel, rows, block = built
    n, k = w.shape
    y = np.full(n + 8, np.nan, np.float32)
    out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=y)
    groups = -(-n // rows)
    kernel(
        queue, (groups * block,), (block,), upload(queue, w, w_offset), upload(queue, x, x_offset),
        out, np.uint32(k), np.uint32(n - extra), np.uint64(w_offset), np.uint32(x_offset),
    )  # fmt: skip
    cl.enqueue_copy(queue, y, out)
    assert np.isnan(y[n:]).all(), "written past the end"
    return y[:n]


def make(kind, w_type, x_type, n, k, **sparse):
    w = inputs.values(kind if kind != "sparse" else "small", w_type, n * k, SEED, 1)
    return w.reshape(n, k), inputs.values(kind, x_type, k, SEED, 2, **sparse)


def check(queue, built, w_type, x_type, n, k, offsets=(0, 0), extra=0):
    case = f"k={k} n={n} offsets={offsets}"
    w, x = make("small", w_type, x_type, n, k)
    y = run(queue, built, w, x, *offsets, extra)
    exact = w.astype(np.int64) @ x.astype(np.int64)
    assert y[-1] == exact[-1], f"{case}: last row"
    np.testing.assert_array_equal(y, exact, case)

    w, x = make("random", w_type, x_type, n, k)
    y = run(queue, built, w, x, *offsets, extra)
    products = w.astype(np.float64) * x.astype(np.float64)
    # Every lane's chain and the reduction round in FP32, each at most half a unit.
    bound = (k / 64 + 80) * 2.0**-24 * np.abs(products).sum(axis=1)
    wrong = np.flatnonzero(~(np.abs(y - products.sum(axis=1)) <= bound))
    assert not len(wrong), f"{case}: rows {wrong[:9]} of {n}"


def shapes(pack):
    width = 1 << pack
    odd = [k for k in KS if k % width == 0]
    return [(k, n) for k in odd for n in (NS if k != 4096 else NS[-1:])]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize(("w", "x", "pack"), PACKED_TYPES)
def test_row_numbers(queue, w, x, pack, rows):
    built = build_row(queue, w, x, pack, rows, block=64 if w == "f16" else 256)
    for k, n in shapes(pack):
        check(queue, built, w, x, n, k)
    width = 1 << pack
    for offsets in ((width, 0), (0, width), (3 * width, 5 * width)):
        check(queue, built, w, x, 5, 8 * width, offsets)


@pytest.mark.parametrize(("w", "x", "pack"), WIDE_TYPES)
def test_an_fp32_x_loaded_wide(queue, w, x, pack):
    built = build_row(queue, w, x, pack, rows=2, block=64)
    for k, n in ((8, 3), (1000, 301)):
        check(queue, built, w, x, n, k)
    check(queue, built, w, x, 5, 8 << pack, (3 << pack, 5 << pack))


@pytest.mark.parametrize(("w", "x", "pack"), PACKED_TYPES + WIDE_TYPES)
def test_the_loads_that_gpus_get(queue, w, x, pack):
    built = build_row(queue, w, x, pack, rows=2, block=64, half="HALF_VLOAD")
    for k, n in ((8, 3), (1000, 301)):
        check(queue, built, w, x, n, k)
    check(queue, built, w, x, 5, 8 << pack, (3 << pack, 5 << pack))


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize(("w", "x", "pack"), PACKED_TYPES)
def test_planted_rows(queue, w, x, pack, rows):
    """All real rows, the last one too, and all planted ones, wherever a workgroup ends."""
    width, extra = 1 << pack, 5
    built = build_row(queue, w, x, pack, rows, block=64, extra=extra)
    for k, n in ((width, 1), (7 * width, 2), (9 * width, 3), (125 * width, 40)):
        check(queue, built, w, x, n + extra, k, (3 * width, width), extra)


@pytest.mark.parametrize("block", [64, 128, 256, 512])
@pytest.mark.parametrize(("pack", "rows"), [(0, 4), (1, 1), (2, 2), (3, 4)])
def test_row_blocks(queue, pack, rows, block):
    built = build_row(queue, pack=pack, rows=rows, block=block)
    for k, n in ((8, 5), (1000, 3), (4096, 6), (17408, 7)):
        check(queue, built, "f16", "f16", n, k)


@pytest.mark.parametrize("x", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("w", ["f16", "bf16"])
def test_rows_do_not_change_a_bit(queue, w, x):
    for pack in (0, 1, 2, 3) if x != "f32" else (0,):
        builds = [build_row(queue, w, x, pack, rows, block=128) for rows in (1, 2, 4)]
        for k, n in ((8, 3), (1000, 5), (4096, 67)):
            one, *others = (run(queue, built, *make("random", w, x, n, k)) for built in builds)
            for y in others:
                np.testing.assert_array_equal(y.view(np.uint32), one.view(np.uint32))


@pytest.mark.parametrize("half", ["HALF_BITS", "HALF_VLOAD"])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("pack", [0, 1, 2, 3])
def test_half_accumulation(queue, pack, rows, half):
    if "cl_khr_fp16" not in queue.device.extensions:
        pytest.skip("no half arithmetic here")
    built = build_row(queue, pack=pack, rows=rows, block=64, acc=16, half=half)
    for k, n in shapes(pack):
        for phase in {0, k // 2 % 16, (k - 1) % 16}:
            w, x = make("sparse", "f16", "f16", n, k, period=16, phase=phase)
            y = run(queue, built, w, x)
            np.testing.assert_array_equal(y, w.astype(np.int64) @ x.astype(np.int64))
        w, x = make("random", "f16", "f16", n, k)
        products = w.astype(np.float64) * x.astype(np.float64)
        bound = (k / 64 + 8) * 2.0**-10 * np.abs(products).sum(axis=1)
        y = run(queue, built, w, x)
        assert (np.abs(y - products.sum(axis=1)) <= bound).all()


@pytest.mark.parametrize(("w", "x"), TYPES)
def test_frozen(queue, w, x):
    built = build_frozen(queue, w, x)
    for k, n in shapes(0):
        check(queue, built, w, x, n, k)
    check(queue, built, w, x, 5, 255, (3, 1))


@pytest.mark.parametrize("build_kernel", [build_row, build_frozen])
@pytest.mark.parametrize("special", [2.0**-24, 1023 * 2.0**-24, 2.0**-14, 65504, np.inf, np.nan])
def test_special_values_of_f16(queue, build_kernel, special):
    built = build_kernel(queue, "f16", "f16")
    w = np.array([[special, 0], [-special, 0], [0, special], [1, 1]], np.float16)
    y = run(queue, built, w, np.array([1, 0], np.float16))
    beside = 0 * special  # Inf and NaN spoil a row even at x = 0
    np.testing.assert_array_equal(y, np.array([special, -special, beside, 1], np.float32))


# The generator.


def fill(queue, kind, dtype, count, first, out_offset, items=192, **sparse):
    program = build(queue, "inputs.cl", TYPE=f"TYPE_{dtype.upper()}", KIND=f"KIND_{kind.upper()}")
    kernel = cl.Kernel(program, "fill_values")
    out = np.full(out_offset + count + 5, 0x55, inputs.DTYPES[dtype]).view(np.uint8)
    buffer = cl.Buffer(
        queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=out
    )
    kernel(
        queue, (items,), (64,), buffer, np.uint64(count), np.uint64(first), np.uint64(out_offset),
        np.uint32(SEED), np.uint32(7), np.uint32(sparse.get("period", 1)),
        np.uint32(sparse.get("phase", 0)),
    )  # fmt: skip
    result = np.empty_like(out)
    cl.enqueue_copy(queue, result, buffer)
    size = inputs.DTYPES[dtype].itemsize
    head, tail = out_offset * size, (out_offset + count) * size
    assert (result[:head] == out[:head]).all()
    assert (result[tail:] == out[tail:]).all()
    return result[head:tail]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("kind", inputs.KINDS)
def test_generator_is_bit_equal_to_numpy(queue, kind, dtype):
    sparse = {"period": 12, "phase": 5} if kind == "sparse" else {}
    for count, first, offset in ((100_000, 0, 0), (999, 2**32 - 500, 3), (1, 2**40 + 1, 1)):
        expected = inputs.values(kind, dtype, count, SEED, 7, first, **sparse)
        np.testing.assert_array_equal(
            fill(queue, kind, dtype, count, first, offset, **sparse), expected.view(np.uint8)
        )


@pytest.mark.parametrize(
    ("kind", "period", "phase"), [("small", 1, 0), ("sparse", 16, 3), ("sparse", 4, 4)]
)
def test_exact_rows_equal_numpy(queue, kind, period, phase):
    kernel = cl.Kernel(build(queue, "inputs.cl"), "exact_rows")
    for k, n in ((1, 1), (255, 301), (4096, 33)):
        sums = np.full(n + 4, 77, np.int32)
        buffer = cl.Buffer(
            queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=sums
        )
        kernel(
            queue, (128,), (64,), buffer, np.uint32(k), np.uint32(n), np.uint32(SEED),
            np.uint32(1), np.uint32(2), np.uint32(inputs.KINDS.index(kind)),
            np.uint32(period), np.uint32(phase),
        )  # fmt: skip
        cl.enqueue_copy(queue, sums, buffer)
        w = inputs.integers("small", n * k, SEED, 1).reshape(n, k)
        x = inputs.integers(kind, k, SEED, 2, 0, period, phase)
        np.testing.assert_array_equal(sums[:n], w @ x)
        np.testing.assert_array_equal(
            sums[:n], inputs.exact_rows(k, range(n), SEED, 1, 2, kind, period, phase)
        )
        assert (sums[n:] == 77).all()
