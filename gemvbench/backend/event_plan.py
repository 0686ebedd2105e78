"""Which launches of a long sequence are timed one by one. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def sample_events(kinds: Sequence[int], most: int) -> dict[int, float]:
    """Weights by place: summed with them, the times of some launches stand for those of all.

    Some of each kind are taken, at even distances: a sequence of unlike layers that repeats
    would otherwise be met at the same few.
    """
    counts = Counter(kinds)
    strides = {kind: math.ceil(count * len(counts) / most) for kind, count in counts.items()}
    seen: Counter[int] = Counter()
    chosen = []
    for place, kind in enumerate(kinds):
        if seen[kind] % strides[kind] == 0:
            chosen.append(place)
        seen[kind] += 1
    taken = Counter(kinds[place] for place in chosen)
    return {place: counts[kinds[place]] / taken[kinds[place]] for place in chosen}
