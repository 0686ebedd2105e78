"""The table from which one launch takes all layers of a token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemvbench.hopper_ladder import BULK, BULK_ROWS

_LAYER = np.dtype(
    [("w", "u8"), ("x", "u8"), ("y", "u8"), ("k", "u4"), ("n", "u4"), ("first", "u4"), ("", "u4")]
)
"""struct Layer of kernels/cuda/bulk.cu."""


def layer_table(
    layers: Sequence[tuple[int, int, int, int, int]], workgroups: int
) -> NDArray[np.void]:
    """Layers (addresses of w, x and y; k, n) as bulk.cu reads them.

    The first tile of a layer goes to the workgroup after the one that had the last tile of the
    layer before, so that no workgroup has a tile more than another over a whole token.
    """
    table = np.zeros(len(layers), _LAYER)
    first = 0
    for place, layer in enumerate(layers):
        table[place] = (*layer, first, 0)
        rows = max(1, min(BULK_ROWS, BULK["STAGE_BYTES"] // (2 * layer[3])))
        first = (first + math.ceil(layer[4] / rows)) % workgroups
    return table
