"""The table over contexts: what an arm of attention wins as its cache grows (S3's table)."""

from __future__ import annotations

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.report import units
from gemvbench.report.document import Section
from gemvbench.report.matrix import MARKED, MARKS
from gemvbench.result import Result
from gemvbench.results import Summary


def context_sections(summary: Summary) -> list[Section]:
    """A table for each shape that was measured at several contexts; none where there is none."""
    return [_section(summary, cases) for cases in by_context(summary)]


def by_context(summary: Summary) -> list[list[Attention]]:
    """The cases of each shape that was measured at several contexts, the shortest first."""
    shapes: dict[Attention, list[Attention]] = {}
    for case in summary.run.header.cases:
        if isinstance(case, Attention):
            shape = msgspec.structs.replace(case, context=1, capacity=0)
            shapes.setdefault(shape, []).append(case)
    return [
        sorted(cases, key=lambda case: case.context) for cases in shapes.values() if len(cases) > 1
    ]


def shape_name(cases: list[Attention]) -> str:
    """What cases of one shape are called, without their context."""
    return cases[0].id.removesuffix(f"-n{cases[0].context}")


def _section(summary: Summary, cases: list[Attention]) -> Section:
    view = summary.views[cases[0].id]
    baselines = [choice.label for choice in view.choices if choice.label in view.baselines]
    found = [{result.arm: result for result in summary.of_case(case.id)} for case in cases]
    arms = view.contestants
    over = baselines[0] if len(baselines) == 1 else "its own baseline"
    return Section(
        title=f"{shape_name(cases)} by context: us per call, and speed-up over {over}",
        columns=("context", *baselines, *(text for arm in arms for text in (arm, "speed-up"))),
        rows=tuple(
            (
                str(case.context),
                *(_microseconds(of[baseline]) for baseline in baselines),
                *(text for arm in arms for text in (_microseconds(of[arm]), _speed_up(of[arm]))),
            )
            for case, of in zip(cases, found, strict=True)
        ),
        lead=tuple(_where_it_wins(arm, cases, [of[arm] for of in found]) for arm in arms),
        notes=(MARKED,),
    )


def _microseconds(result: Result) -> str:
    seconds = result.seconds_per_call
    return "-" if seconds is None else f"{seconds * 1e6:.4g}"


def _speed_up(result: Result) -> str:
    if result.ratio is None:
        return result.verdict
    return f"{units.ratio(result.ratio)} {MARKS.get(result.verdict, result.verdict)}".rstrip()


def _where_it_wins(arm: str, cases: list[Attention], results: list[Result]) -> str:
    """From which context on the arm is FASTER, in one sentence."""
    faster = [result.verdict == "FASTER" for result in results]
    against = results[0].baseline
    if not any(faster):
        return f"{arm} is FASTER than {against} at none of these contexts."
    tail = next((n for n in range(len(faster)) if all(faster[n:])), None)
    if tail is not None:
        return f"{arm} is FASTER than {against} from {cases[tail].context} tokens on."
    at = [str(case.context) for case, won in zip(cases, faster, strict=True) if won]
    return f"{arm} is FASTER than {against} at {', '.join(at)} tokens, and not at the longest."
