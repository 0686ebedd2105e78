"""Numbers as people read them. SI inside; this is the only place that formats."""

from __future__ import annotations

import math


def seconds(value: float | None) -> str:
    """Three or four significant digits with a fitting unit."""
    if value is None or not math.isfinite(value):
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e9:.3g} ns"


def rate(gbps: float | None) -> str:
    return "-" if gbps is None else f"{gbps:.0f}" if gbps >= 1000 else f"{gbps:.4g}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def ratio(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"


def interval(ci: tuple[float, float] | None) -> str:
    if ci is None:
        return "-"
    low, high = ci
    if not (math.isfinite(low) and math.isfinite(high)):
        return "unbounded"
    return f"{low:.3f} .. {high:.3f}"


def effect(log_value: float | None) -> str:
    """A half-width or effect on the log scale as a percentage."""
    if log_value is None or not math.isfinite(log_value) or log_value > 700:
        return "unknown"
    return f"{math.expm1(log_value):.2%}"


def size(count: int) -> str:
    """Bytes with a decimal unit."""
    for scale, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"
