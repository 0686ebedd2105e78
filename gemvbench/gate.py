"""What a gate's record says: clean, a regression by name, or why it says nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gemvbench.errors import Exit
from gemvbench.record import Gate, LeftOut, Shed
from gemvbench.result import Result
from gemvbench.results import Summary

_BAD = ("WRONG", "FAILED")


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate came to, with the results behind it."""

    word: str
    """unchanged, clean, regression, wrong, undecided or void."""
    code: Exit
    results: tuple[Result, ...]
    """Of the arms of today, each against itself at the base."""
    left_out: tuple[LeftOut, ...]
    why_void: str = ""

    def of(self, *verdicts: str) -> list[Result]:
        return [result for result in self.results if result.verdict in verdicts]

    @property
    def regressions(self) -> list[Result]:
        """Slower for sure, and by at least the smallest effect that matters."""
        return [result for result in self.of("SLOWER") if "small" not in result.flags]


def conclude(summary: Summary) -> Conclusion:
    """A wrong or failed arm of today weighs most, then a void run, then a regression."""
    gate, settings = summary.run.header.gate, summary.run.header.settings
    assert gate is not None
    shed = {line.case for line in summary.run.of(Shed)}
    today = [
        result
        for name, view in summary.views.items()
        for result in summary.of_case(name)
        if result.arm in view.contestants
    ]
    # A case that the budget left out was verified all the same, and may be wrong.
    results = tuple(r for r in today if r.case not in shed or r.verdict in _BAD)
    late = tuple(
        LeftOut(
            case=r.case,
            arm=r.arm,
            device=r.device,
            reason=f"budget: {settings.budget:g} s cannot hold it beside the cases before it",
        )
        for r in today
        if r not in results
    )
    found = Conclusion(
        word="unchanged", code=Exit.OK, results=results, left_out=(*gate.left_out, *late)
    )
    return _with_word(found, gate, summary) if today else found


def _with_word(found: Conclusion, gate: Gate, summary: Summary) -> Conclusion:
    why = _why_void(summary, found.results)
    word, code = "clean", Exit.OK
    if found.of(*_BAD):
        word, code = "wrong", Exit.WRONG
    elif why:
        word, code = "void", Exit.NO_DEVICE
    elif found.regressions:
        word, code = "regression", Exit.REGRESSION
    elif found.of("UNDECIDED"):
        word = "undecided"
        code = Exit.REGRESSION if gate.fail_on_undecided else Exit.OK
    return msgspec.structs.replace(found, word=word, code=code, why_void=why)


def _why_void(summary: Summary, results: Sequence[Result]) -> str:
    if summary.void:
        return summary.void
    if summary.ended not in ("complete", "budget"):
        return f"the run ended early: {summary.ended}"
    invalid = [f"{r.arm} on {r.case}" for r in results if r.verdict == "INVALID"]
    if invalid:
        return f"{', '.join(invalid)}: faster than the roof, which no uncached read can be"
    if all(result.ratio is None for result in results):
        return "nothing was compared"
    return ""
