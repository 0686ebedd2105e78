"""The samples of one case as arrays: log seconds per call of each arm, by block and pass."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from gemvbench.messages import Sample
from gemvbench.stats import Array


class Logs:
    """log seconds per call: for each arm an array [blocks, passes], NaN where there is none.

    A sample that is not usable (a time that is not positive) has none. Of two samples for one
    place the later counts.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        places: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
        blocks, passes = set(), 0
        for sample in samples:
            blocks.add(sample.block)
            passes = max(passes, sample.pass_ + 1)
            seconds = sample.seconds
            if seconds > 0 and math.isfinite(seconds):
                places[sample.arm].append((sample.block, sample.pass_, math.log(seconds)))
        self.blocks = tuple(sorted(blocks))
        """Numbers of the blocks, in the order of the rows."""
        self._shape = (len(blocks), passes)
        rows = {block: row for row, block in enumerate(self.blocks)}
        self._arrays = {arm: self._fill(values, rows) for arm, values in places.items()}

    def of(self, arm: str) -> Array:
        """Logs of one arm; all NaN for one that was never measured."""
        return self._arrays.get(arm, np.full(self._shape, np.nan))

    def _fill(self, values: list[tuple[int, int, float]], rows: dict[int, int]) -> Array:
        array = np.full(self._shape, np.nan)
        for block, pass_, value in values:
            array[rows[block], pass_] = value
        return array
