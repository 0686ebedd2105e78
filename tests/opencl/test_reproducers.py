"""Compiler faults that were seen, each in a process of its own: what verification is for.

A fault is a property of a runtime's version, so a test holds what must be true of either: the
kernel is right, or it fails in the way that is on record.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyopencl")

pytestmark = pytest.mark.opencl

REPRODUCERS = Path(__file__).parent / "reproducers"
SCRIPT = """
import sys
import numpy as np
import pyopencl as cl
from gemvbench.backend.opencl_devices import find_devices

device = next(found.device for found in find_devices() if found.id == sys.argv[1])
context = cl.Context([device])
queue = cl.CommandQueue(context)
text = open(sys.argv[2]).read()
program = cl.Program(context, text).build(cache_dir=False)
flags = cl.mem_flags.COPY_HOST_PTR | cl.mem_flags.READ_WRITE
name = sys.argv[3]
if name == "gemv_rows":
    rows, k, n = 2, 1000, 301
    random = np.random.default_rng(0)
    w = random.integers(-3, 4, (n, k)).astype(np.float16)
    x = random.integers(-3, 4, k).astype(np.float32)
    y = np.full(n, np.nan, np.float32)
    wanted = w.astype(np.float64) @ x
    args = [cl.Buffer(context, flags, hostbuf=v) for v in (w, x, y)]
    cl.Kernel(program, name)(
        queue, (-(-n // rows) * 64,), (64,), *args, np.uint32(k), np.uint32(n)
    )
    out = args[2]
else:
    a = np.arange(256, dtype=np.float32)
    y = np.full(256, np.nan, np.float32)
    wanted = a * a + a if name == "fma_float16" else a
    args = [cl.Buffer(context, flags, hostbuf=v) for v in (a, y)]
    cl.Kernel(program, name)(queue, (16,), None, *args)
    out = args[1]
cl.enqueue_copy(queue, y, out)
print("right" if (y == wanted).all() else "wrong")
"""


@pytest.mark.parametrize("device", ["pocl", pytest.param("intel", marks=pytest.mark.intel)])
@pytest.mark.parametrize(
    ("file", "entry", "fault"),
    [
        ("pocl_fma_float16.cl", "fma_float16", "crash"),
        ("pocl_vload16.cl", "copy16", "wrong"),
        ("intel_vload_half_rows.cl", "gemv_rows", "wrong"),
    ],
)
def test_fault_is_as_recorded_or_gone(device: str, file: str, entry: str, fault: str) -> None:
    from gemvbench.backend.opencl_devices import find_devices

    if device not in {found.id for found in find_devices()}:
        pytest.skip(f"no {device} device here")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, device, str(REPRODUCERS / file), entry],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    saw = done.stdout.strip() if done.returncode == 0 else "crash" if done.returncode < 0 else ""
    blamed = file.startswith(device)
    assert saw in (("right", fault) if blamed else ("right",)), done.stderr[-500:]
