"""Types of a model's weights, one for all classes of layers or another for some: files mix them.

q4_0                     all of them
q4_K,lm_head=q8_0        lm_head in q8_0, all others in q4_K
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gemvbench.errors import UserError
from gemvbench.suggest import nearest


class Mix(msgspec.Struct, frozen=True):
    """A type for all classes but those that have their own."""

    default: str
    own: tuple[tuple[str, str], ...] = ()

    def type_of(self, name: str) -> str:
        return dict(self.own).get(name, self.default)

    def __str__(self) -> str:
        return "+".join([self.default, *(f"{name}={kind}" for name, kind in self.own)])


def parse_mix(text: str, names: Sequence[str]) -> Mix:
    """Read a mix for classes of layers of these names; types are the cases' to know.

    Raises:
        UserError: no type for all first, a class that is not there, or one given twice.
    """
    default, *others = (part.strip() for part in text.split(","))
    own: dict[str, str] = {}
    for part in others:
        name, equals, kind = (word.strip() for word in part.partition("="))
        if not equals or name not in names:
            raise UserError(
                f"--weights {text!r}: {part!r} gives no class of layers a type"
                f"{nearest(name, names)} Write for example {default},{names[-1]}=q8_0; classes "
                f"are {', '.join(names)}."
            )
        if name in own:
            raise UserError(f"--weights {text!r} names {name} twice; give it once.")
        own[name] = kind
    if "=" in default:
        raise UserError(
            f"--weights {text!r}: the first type is for all classes; write for example "
            f"f16,{default}."
        )
    return Mix(default, tuple((name, own[name]) for name in names if name in own))
