"""Specialisation by kind of case: the one place that knows every ladder."""

from __future__ import annotations

from gemvbench import ladder
from gemvbench.arm import AUTO, Arm
from gemvbench.attention_case import Attention
from gemvbench.attention_ladder import recommend_attention, specialize_attention
from gemvbench.cases import Single
from gemvbench.device import DeviceInfo
from gemvbench.ladder import Outcome, as_auto


def specialize(arm: Arm, case: Single, device: DeviceInfo) -> Outcome:
    """What `arm` really gets for `case` on `device`. Pure; opens nothing."""
    if not isinstance(case, Attention):
        return ladder.specialize(arm, case, device)
    chosen = specialize_attention(resolve(arm, case, device), case, device)
    if arm.family != AUTO:
        return chosen
    return as_auto(arm, chosen, f"the rule for {case.op} on this shape and a {device.kind}")


def resolve(arm: Arm, case: Single, device: DeviceInfo) -> Arm:
    """The arm itself, or what `auto` stands for."""
    if arm.family != AUTO:
        return arm
    return recommend(case, device).at_revision_of(arm)


def recommend(case: Single, device: DeviceInfo) -> Arm:
    """The arm that `auto` stands for."""
    if isinstance(case, Attention):
        return recommend_attention(case, device)
    return ladder.recommend(case, device)
