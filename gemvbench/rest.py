"""Rests before measurements, so that a GPU's power cap stays out of them.

At its power limit an H200 drops from 1980 MHz to 660 and climbs back over some tenths of a
second (2026-12-01): the same kernel then differs by 20 % from slot to slot. NVML's power is a
mean over about a second, so a pause of a tenth or two is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gemvbench.gpu_state import GpuState

REST_ABOVE = 0.80
"""Share of the power limit above which a measurement waits."""

_STEP = 0.02
_LONGEST = 2.0
"""Seconds; what draws power for longer is not this program."""


def rest(read: Callable[[], GpuState | None]) -> None:
    """Wait until the device draws less; at once where it does not tell what it draws."""
    end = time.monotonic() + _LONGEST
    while _is_near_its_limit(read()) and time.monotonic() < end:
        time.sleep(_STEP)


def _is_near_its_limit(state: GpuState | None) -> bool:
    if state is None or state.power_w is None or not state.power_limit_w:
        return False
    return state.power_w > REST_ABOVE * state.power_limit_w
