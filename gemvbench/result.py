"""What is known of one arm on one case, as every report has it."""

from __future__ import annotations

import msgspec

from gemvbench.jobs import Choice
from gemvbench.outcome import HostArm, LibraryArm, Specialization
from gemvbench.token_arm import DeviceOutcome, TokenArm


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one case against the baseline. Times in seconds, ratios baseline / arm."""

    case: str
    arm: str
    baseline: str
    device: str
    constants: dict[str, int | str]
    verdict: str
    reason: str = ""
    ratio: float | None = None
    cycles_ratio: float | None = None
    """The ratio in cycles, where arm and baseline ran at different clocks."""
    ci: tuple[float, float] | None = None
    blocks: int = 0
    passes: int = 0
    seconds_per_call: float | None = None
    kernel_seconds: float | None = None
    gbps: float | None = None
    roof_fraction: float | None = None
    verified: bool | None = None
    flags: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    min_detectable_effect: float | None = None
    all_pairs_ratio: float | None = None
    """With `all_pairs_ci`: over all pairs, those with a slow measurement too."""
    all_pairs_ci: tuple[float, float] | None = None
    pairs: int = 0
    removed: int = 0
    """Pairs of `pairs` that carry no verdict: they mix a slow measurement with others."""
    block_seconds: tuple[float, ...] = ()
    """Median time per call in each block."""
    block_ratios: tuple[float, ...] = ()
    """The effects behind `ratio`, one of each block that has a clean pair."""


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The bare read measured in the same blocks."""

    case: str
    device: str
    gbps: float


def constants_of(choice: Choice) -> dict[str, int | str]:
    """The constants and geometry that were built, by name."""
    outcome = choice.outcome
    if isinstance(outcome, TokenArm):
        return {layer.name: " ".join(_texts(layer.outcome)) for layer in outcome.layers}
    if isinstance(outcome, LibraryArm):
        return {"library": outcome.library}
    if isinstance(outcome, Specialization):
        return dict(outcome.constants) | {
            "workgroups": outcome.workgroups,
            "workgroup_size": outcome.workgroup_size,
            **(msgspec.structs.asdict(outcome.ranges) if outcome.ranges else {}),
        }
    return {"host": outcome.family} if isinstance(outcome, HostArm) else {}


def _texts(outcome: DeviceOutcome) -> list[str]:
    """Constants of one layer of a token; types are the same in all."""
    if isinstance(outcome, LibraryArm):
        return [outcome.library]
    built = dict(outcome.constants) | {"workgroups": outcome.workgroups}
    return [f"{name}={value}" for name, value in built.items() if not name.endswith("_TYPE")]
