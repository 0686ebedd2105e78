"""What a gate compares: the arms and cases that differ from a commit, and why others are left out.

Pure but for git: opens no device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemvbench.arm import Arm, parse_arm
from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.cases import Single
from gemvbench.checkout import AbsentError, Commit
from gemvbench.contest import Contest, Entrant, make_contest, make_entrants, pair_with_revision
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import specialize
from gemvbench.outcome import Declined, Specialization
from gemvbench.record import LeftOut
from gemvbench.source import kernel_text
from gemvbench.tokens import tokens


@dataclass(frozen=True)
class Entry:
    """A case with the arms that are to be judged on it."""

    case: Single
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class GatePlan:
    """What is left to measure, and what is not."""

    contests: tuple[Contest, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def pairs(self) -> int:
        """Comparisons of today with the commit, over all cases."""
        return sum(bool(choice.against) for c in self.contests for choice in c.choices)


def _entry(case: Single, *arms: str) -> Entry:
    return Entry(case, tuple(map(parse_arm, arms)))


def _attention(heads: int, kv_heads: int, dim: int, context: int) -> Attention:
    return Attention(
        op="attention", heads=heads, kv_heads=kv_heads, head_dim=dim, v_dim=dim, context=context
    )


CPU: tuple[Entry, ...] = (
    _entry(Gemv(k=1024, n=3072), "auto", "pack3"),
    _entry(_attention(8, 4, 64, 1024), "auto", "gqa"),
    _entry(Gemv(k=3072, n=1024), "auto"),
    _entry(Gemv(k=1024, n=3072, w="bf16", x="bf16"), "auto"),
)
GPU: tuple[Entry, ...] = (
    _entry(Gemv(k=5120, n=17408), "auto", "pack0", "base", "pack2", "pack3"),
    _entry(_attention(32, 8, 128, 4096), "auto", "gqa", "token_major"),
    _entry(Gemv(k=4096, n=4096), "auto", "base", "pack2", "pack3"),
    _entry(Gemv(k=17408, n=5120), "auto"),
    _entry(Gemv(k=4096, n=4096, w="bf16", x="bf16"), "auto"),
)
"""Default sets, the most important case first: the last ones go where a budget is short."""


def default_set(device: DeviceInfo) -> tuple[Entry, ...]:
    return CPU if device.is_cpu else GPU


def plan_gate(
    entries: Sequence[Entry],
    base: Commit,
    default: DeviceInfo,
    devices: Mapping[str, DeviceInfo],
) -> GatePlan:
    """Contests of each arm with itself at `base`, where its kernel text is not the same.

    Raises:
        UserError: an arm that has no revisions or no device, or a kernel of another interface.
    """
    contests, left_out = [], []
    for entry in entries:
        entrants = make_entrants(entry.arms, default, devices)
        paired = pair_with_revision(entrants, base)
        kept: list[Entrant] = []
        for old, new in zip(paired[::2], paired[1::2], strict=True):
            reason = _why_not(old, new, entry.case, base)
            if reason:
                left_out.append(_left_out(entry.case, new, reason))
            else:
                kept += [old, new]
        if not kept:
            continue
        contest = make_contest(entry.case, kept, "stream")
        if contest.refusal:
            left_out += [_left_out(entry.case, new, contest.refusal) for new in kept[1::2]]
        else:
            contests.append(contest)
    return GatePlan(tuple(contests), tuple(left_out))


def _why_not(old: Entrant, new: Entrant, case: Single, base: Commit) -> str:
    """Why there is nothing to compare; "" where there is."""
    outcomes = [specialize(each.arm, case, each.device) for each in (new, old)]
    now, then = outcomes
    if isinstance(now, Declined):
        return f"declined: {now.reason}"
    if not isinstance(now, Specialization) or not isinstance(then, Specialization):
        return "no kernel of this checkout: a library computes it"  # what a table says for auto
    today = kernel_text(now)
    try:
        before = kernel_text(then)
    except AbsentError as absent:
        return f"new: {absent}"
    same = tokens(today) == tokens(before)
    return f"unchanged: the same code as at {base.hash[:8]}" if same else ""


def _left_out(case: Single, new: Entrant, reason: str) -> LeftOut:
    return LeftOut(case=case.id, arm=new.label, device=new.device.id, reason=reason)
