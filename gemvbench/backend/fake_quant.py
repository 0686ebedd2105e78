"""Family quant on the fake device: blocks as in files or repacked, x as floats or in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs
from gemvbench.backend.base import Launch
from gemvbench.case import BLOCKS, row_bytes
from gemvbench.quant_inputs import quantise_vector
from gemvbench.quant_weights import dequantise, unpack

_KINDS = {f"TYPE_{kind.upper()}": kind for kind in BLOCKS}
_X_TYPES = {f"TYPE_{kind.upper()}": kind for kind in inputs.DTYPES}


def multiply(constants: Mapping[str, str], launch: Launch) -> None:
    """y for all rows, whatever the number of workgroups: they go on to further ones."""
    if launch.workgroup_size != int(constants.get("BLOCK", 1)):
        raise RuntimeError("a workgroup of another size than the kernel is built for")
    w, x, y = launch.args[:3]
    k, n, w_offset, x_offset = map(int, launch.args[3:])
    kind, size = _KINDS[constants["W_TYPE"]], row_bytes(_KINDS[constants["W_TYPE"]], k)
    _check_load(constants, kind, k, w_offset)
    start = w.find(w_offset, n * size)
    key = (start, k, n, constants["REPACK"], constants["X8"], x, x.version, x_offset)
    if key not in w.outputs:
        dtype = inputs.DTYPES[_X_TYPES[constants["X_TYPE"]]]
        xs = x.read(x_offset * dtype.itemsize, dtype, k)
        xs = quantise_vector(xs) if constants["X8"] == "1" else xs
        rows = _rows(w.read(w_offset, np.uint8, n * size), constants, kind, k, n)
        weights = dequantise(kind, rows, k)
        w.outputs[key] = (weights * xs.astype(np.float64)).sum(axis=1).astype(np.float32)
    y.write(0, w.outputs[key])


def bytes_moved(constants: Mapping[str, str], launch: Launch) -> int:
    k, n = map(int, launch.args[3:5])
    x = inputs.DTYPES[_X_TYPES[constants["X_TYPE"]]].itemsize
    return n * row_bytes(_KINDS[constants["W_TYPE"]], k) + x * k + 4 * n


def _rows(
    raw: NDArray[np.uint8], constants: Mapping[str, str], kind: str, k: int, n: int
) -> NDArray[Any]:
    if constants["REPACK"] == "0":
        return raw.reshape(n, -1)
    scales = n * (k // 32) * 2
    return unpack(raw[:-scales].reshape(n, -1), raw[-scales:].reshape(n, -1))


def _check_load(constants: Mapping[str, str], kind: str, k: int, w_offset: int) -> None:
    """Refuses loads that rows or offset are not aligned to."""
    pack = int(constants.get("W_PACK", 0))
    blocks = {1: 2, 2: 4, 3: 8}.get(pack, 1)
    free = kind == "q4_K" or constants["REPACK"] == "1"
    if w_offset % (2 << pack) or (not free and k // 32 % blocks):
        raise RuntimeError(f"misaligned load: rows of {k} at {w_offset} and W_PACK {pack}")
