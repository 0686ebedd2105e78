"""What a GPU says of itself at a moment: clocks, temperature, power, why it is held back."""

from __future__ import annotations

import msgspec


class GpuState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One reading; a field is None where the driver does not tell, all are without NVML.

    `throttle_reasons` holds NVML's names, as in "SwPowerCap", "HwThermalSlowdown"; that the
    GPU is idle is none.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None

    @property
    def is_known(self) -> bool:
        return self != GpuState()
