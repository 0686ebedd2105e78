"""What an arm really gets for a whole token: an outcome for each class of its layers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from gemvbench.arm import AUTO, Arm
from gemvbench.attention_case import Attention
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import resolve, specialize
from gemvbench.models import ATTENTION
from gemvbench.outcome import Declined, HostArm, LibraryArm, Specialization
from gemvbench.stages import Call
from gemvbench.token_case import Token

DeviceOutcome = Specialization | LibraryArm
"""What can stand in a token's queue."""


class LayerArm(msgspec.Struct, frozen=True):
    """The outcome for one class of layers."""

    name: str
    outcome: DeviceOutcome


class TokenArm(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What computes every class of a token's layers: an arm, and another one of attention."""

    arm: str
    layers: tuple[LayerArm, ...]
    calls: tuple[Call, ...] = ()
    """Of attention, for each context of the case."""
    whole: Specialization | None = None
    """What computes all layers in one launch, where the arm does."""

    @property
    def launches(self) -> dict[str, int]:
        """Launches that one layer of each class takes; of attention at its longest context."""
        counts = dict.fromkeys((layer.name for layer in self.layers), 1)
        return counts | ({ATTENTION: len(self.calls[-1].stages)} if self.calls else {})

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps of the ladder: with the classes they were taken for, where not for all."""
        taken = Counter(str(step) for layer in self.layers for step in layer.outcome.steps)
        texts = []
        for step, count in taken.items():
            names = [a.name for a in self.layers if step in map(str, a.outcome.steps)]
            texts.append(step if count == len(self.layers) else f"{', '.join(names)}: {step}")
        return tuple(texts)


def specialize_token(
    arm: Arm, case: Token, device: DeviceInfo, attention: Arm | None = None
) -> TokenArm | Declined:
    """The arm for every linear class, and `attention` for that; one that declines is the end.

    No other arm steps in: a token by two arms would be neither's number.
    """
    if arm.family == "bulk" and case.attention is not None:
        return Declined(arm.name, "its one launch for a token has no place for attention")
    layers: list[LayerArm] = []
    calls: tuple[Call, ...] = ()
    for own in case.classes:
        wanted = arm
        if isinstance(own.layer, Attention):
            # By the longest context alone: an arm does not change while a cache grows.
            wanted = attention or Arm(family=AUTO)
        outcome = specialize(wanted, own.layer, device)
        if isinstance(outcome, Declined):
            return Declined(arm.name, f"{own.name}: {outcome.reason}")
        if isinstance(outcome, HostArm):
            reason = f"{outcome.family} runs on the host, and a token is queued on the device"
            return Declined(arm.name, reason)
        if isinstance(outcome, LibraryArm) and outcome.operation != "gemv":
            reason = f"{own.name}: {outcome.library} is an arm of attention alone, not of a token"
            return Declined(arm.name, reason)
        layers.append(LayerArm(own.name, outcome))
        if isinstance(own.layer, Attention):
            calls = _calls(resolve(wanted, own.layer, device), case, device)
    whole = _whole([layer.outcome for layer in layers]) if arm.family == "bulk" else None
    return TokenArm(arm=arm.name, layers=tuple(layers), calls=calls, whole=whole)


def _whole(outcomes: Sequence[DeviceOutcome]) -> Specialization:
    """The layer with the longest x, as a launch for all: the same sums, bit for bit."""
    built = [outcome for outcome in outcomes if isinstance(outcome, Specialization)]
    longest = max(built, key=lambda outcome: outcome.local_bytes)
    return msgspec.structs.replace(longest, entry="token_bulk")


def _calls(arm: Arm, case: Token, device: DeviceInfo) -> tuple[Call, ...]:
    """Launches and ranges for each context of a run: run-time values, of one text."""
    calls = []
    for context in case.contexts:
        outcome = specialize(arm, case.attention_at(context), device)
        assert isinstance(outcome, Specialization)
        assert outcome.ranges is not None
        calls.append(Call(context=context, stages=outcome.stages, ranges=outcome.ranges))
    return tuple(calls)
