"""All operations that can be compared, as one type."""

from __future__ import annotations

from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.token_case import Token

Single = Gemv | Attention
"""Cases of one operation: copy_bytes of them rotate, fixed_bytes do not."""

Case = Single | Token
"""What every case has: id, bytes_moved."""


def verified_as(case: Case) -> tuple[Single, ...]:
    """The cases on which the arms of a case are verified: itself, or a token's distinct layers."""
    return tuple(dict.fromkeys(case.layers)) if isinstance(case, Token) else (case,)


def is_part(case: Case) -> bool:
    """Whether a case only shows a part of another one: no run waits for it to be decided."""
    return isinstance(case, Token) and bool(case.only)
