"""Specialisation by kind of case, and `auto`: the one place that knows every ladder.

`auto` is the arm of the nearest row that `gemvbench tune` made for this device, and where there is
none, a rule.
"""

from __future__ import annotations

from typing import NamedTuple

from gemvbench import ladder
from gemvbench.arm import AUTO, Arm, parse_arm
from gemvbench.attention_case import Attention
from gemvbench.attention_ladder import recommend_attention, specialize_attention
from gemvbench.cases import Single
from gemvbench.device import DeviceInfo
from gemvbench.ladder import as_chosen
from gemvbench.outcome import Declined, Outcome
from gemvbench.tuning import AnyTuned


class Advice(NamedTuple):
    """An arm to take, and why that one."""

    arm: Arm
    source: str


def specialize(arm: Arm, case: Single, device: DeviceInfo) -> Outcome:
    """What `arm` really gets for `case` on `device`. Pure; opens nothing."""
    if arm.family != AUTO:
        return _specialize(arm, case, device)
    advice = advise(case, device)
    own = advice.arm.at_revision_of(arm)
    return as_chosen(arm, _specialize(own, case, device), advice.source)


def resolve(arm: Arm, case: Single, device: DeviceInfo) -> Arm:
    """The arm itself, or what `auto` stands for."""
    if arm.family != AUTO:
        return arm
    return recommend(case, device).at_revision_of(arm)


def recommend(case: Single, device: DeviceInfo) -> Arm:
    """The arm that `auto` stands for."""
    return advise(case, device).arm


def advise(case: Single, device: DeviceInfo) -> Advice:
    """What `auto` stands for, with its source: a tuned row of a shape near enough, or the rule."""
    if isinstance(case, Attention):
        tuned: AnyTuned | None = device.tuning.find_attention(case)
        rule = f"the rule for {case.op} on this shape and a {device.kind}"
        known, rule_arm = bool(device.tuning.attention), recommend_attention(case, device)
    else:
        tuned, rule = device.tuning.find(case), f"the rule for a {device.kind} device"
        known, rule_arm = bool(device.tuning.rows), ladder.rule_arm(case, device)
    if tuned is not None:
        arm = parse_arm(tuned.row.arm)
        outcome = _specialize(arm, case, device)
        if not isinstance(outcome, Declined):
            return Advice(arm, _describe(tuned, case))
        rule += f"; the tuned {arm.name} declines: {outcome.reason}"
    elif known:
        rule += "; no tuned shape is near"
    if device.tuning.refused:
        rule += "; a tuning table was refused"
    return Advice(rule_arm, rule)


def _describe(tuned: AnyTuned, case: Single) -> str:
    """Where a tuned arm comes from, and what it was worth there."""
    row = tuned.row
    here = f"{case.context} tokens" if isinstance(case, Attention) else f"{case.k}x{case.n}"
    near = "" if row.where == here else f", the nearest to {here}"
    worth = "" if row.arm == row.rule else f", {row.ratio:.3f}x the speed of {row.rule}"
    note = f"; {tuned.note}" if tuned.note else ""
    return f"the {tuned.source} table, {row.where} of {row.date}{near}{worth}{note}"


def _specialize(arm: Arm, case: Single, device: DeviceInfo) -> Outcome:
    if isinstance(case, Attention):
        return specialize_attention(arm, case, device)
    return ladder.specialize(arm, case, device)
