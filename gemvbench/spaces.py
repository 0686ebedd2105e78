"""Device memory by kind of case: what a block needs of it, whatever the operation."""

from __future__ import annotations

from typing import Protocol

from gemvbench.attention_case import Attention
from gemvbench.attention_space import AttentionSpace
from gemvbench.backend.base import Backend, Buffer
from gemvbench.cases import Case
from gemvbench.messages import AnyLayout, Job, Layout, TokenLayout
from gemvbench.quant_space import gemv_space
from gemvbench.runners import Runner
from gemvbench.token_case import Token
from gemvbench.token_space import TokenSpace


class Space(Protocol):
    """Operands of one case on one device."""

    def fill(self) -> None:
        """Make the operands that are timed."""

    def make_runner(self, job: Job) -> Runner:
        """Build an arm, or raise CompileError with the compiler's log."""

    def pools(self) -> list[tuple[Buffer, int]]:
        """Buffers that hold what the arms read, with their sizes in bytes: for a bare read."""


def make_space(backend: Backend, case: Case, layout: AnyLayout, seed: int, padding: int) -> Space:
    """Memory for the operands of a case; `padding` bytes are allocated before them."""
    if isinstance(case, Token):
        assert isinstance(layout, TokenLayout)
        return TokenSpace(backend, case, layout, seed, padding)
    assert isinstance(layout, Layout)
    if isinstance(case, Attention):
        return AttentionSpace(backend, case, layout, seed, padding=padding)
    return gemv_space(backend, case, layout, seed, padding=padding)
