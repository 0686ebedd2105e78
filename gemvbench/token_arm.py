"""What an arm really gets for a whole token: an outcome for each class of its layers. Pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from gemvbench.arm import Arm
from gemvbench.device import DeviceInfo
from gemvbench.ladder import Declined, HostArm, LibraryArm, Specialization, specialize
from gemvbench.token_case import Token

DeviceOutcome = Specialization | LibraryArm
"""What can stand in a token's queue."""


class LayerArm(msgspec.Struct, frozen=True):
    """The outcome for one class of layers."""

    name: str
    outcome: DeviceOutcome


class TokenArm(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An arm that computes every class of a token's layers."""

    arm: str
    layers: tuple[LayerArm, ...]

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps of the ladder: with the classes they were taken for, where not for all."""
        taken = Counter(str(step) for layer in self.layers for step in layer.outcome.steps)
        texts = []
        for step, count in taken.items():
            names = [a.name for a in self.layers if step in map(str, a.outcome.steps)]
            texts.append(step if count == len(self.layers) else f"{', '.join(names)}: {step}")
        return tuple(texts)


def specialize_token(arm: Arm, case: Token, device: DeviceInfo) -> TokenArm | Declined:
    """The arm for every class; one class that it declines is the end of it.

    No other arm steps in: a token by two arms would be neither's number.
    """
    layers = []
    for operation in case.operations:
        outcome = specialize(arm, case.layer(operation), device)
        if isinstance(outcome, Declined):
            return Declined(arm.name, f"{operation.name}: {outcome.reason}")
        if isinstance(outcome, HostArm):
            reason = f"{outcome.family} runs on the host, and a token is queued on the device"
            return Declined(arm.name, reason)
        layers.append(LayerArm(operation.name, outcome))
    return TokenArm(arm=arm.name, layers=tuple(layers))
