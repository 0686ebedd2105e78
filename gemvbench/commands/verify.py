"""`gemvbench verify`: every check of the oracle, and no timing."""

from __future__ import annotations

import argparse

from gemvbench.arm import FAMILIES, parse_arm
from gemvbench.case import WEIGHT_TYPES
from gemvbench.case_lines import describe_failures
from gemvbench.commands.attention import check_operation
from gemvbench.commands.live import Display
from gemvbench.commands.output import check_output, emit, warn
from gemvbench.commands.setup import prepare
from gemvbench.errors import Exit
from gemvbench.messages import Failed, Verified
from gemvbench.outcome import Declined
from gemvbench.record import Charged, Recorder, Run, Settings
from gemvbench.report.document import Document, Section
from gemvbench.run import Conductor

DEFAULT_ARMS = ("base", "pack0", "pack2", "pack3", "rows2", "rows4", "blockauto", "auto", "frozen")

QUANT_ARMS = ("base", "quant", "quant+pack1", "quant+xq8", "quant+repack1", "quant+repack1+xq8")


def default_arms(op: str, weights: str = "f16") -> tuple[str, ...]:
    if op == "gemv" and weights not in WEIGHT_TYPES:
        return (*QUANT_ARMS, "auto")
    if op == "gemv":
        return DEFAULT_ARMS
    return (*(name for name, family in FAMILIES.items() if op in family.operations), "auto")


def run_verify(options: argparse.Namespace) -> Exit:
    """Verify arms (by default the ladder, `auto` and the frozen reference)."""
    check_output(options)
    check_operation([], options.op)
    arms = [parse_arm(text) for text in options.arm or default_arms(options.op, options.weights)]
    setup = prepare(options, arms, Settings(command="verify", seed=options.seed))
    recorder = Recorder(setup.header(options.arguments), None)
    stopped = False
    with Display() as display:
        try:
            Conductor(setup.settings, setup.devices, recorder, display).verify(setup.contests)
        except KeyboardInterrupt:
            stopped = True
    document = verification_document(recorder.run())
    emit(document, options)
    passed = [record["passed"] for record in document.records]
    if False in passed:
        return Exit.WRONG
    if stopped:
        warn("interrupted; what was checked until then is above.")
    return Exit.NO_DEVICE if stopped or True not in passed else Exit.OK


def verification_document(run: Run) -> Document:
    """One row for each arm on each case."""
    records: list[dict[str, object]] = []
    for choice in run.header.choices:
        if isinstance(choice.outcome, Declined):
            records.append(_record(choice.case, choice.label, "DECLINED", choice.outcome.reason))
    for line in run.lines:
        if isinstance(line, Verified):
            records.append(_verified_record(line))
        elif isinstance(line, Failed | Charged):
            detail = f"{line.stage}: {line.reason}"
            records.append(_record(line.case, line.arm, "FAILED", detail, passed=False))
    section = Section(
        title=f"Verification on {', '.join(device.id for device in run.header.devices)}",
        columns=("case", "arm", "verdict", "detail"),
        rows=tuple(tuple(str(r[c]) for c in ("case", "arm", "verdict", "detail")) for r in records),
        notes=(
            "Exact: small integers, all rows equal. Columns: x is one unit vector. Random: "
            "against float64 within a statistical bound.",
        ),
    )
    return Document((section,), records, records)


def _verified_record(line: Verified) -> dict[str, object]:
    bad = [check for check in line.checks if not check.passed]
    if bad:
        return _record(line.case, line.arm, "WRONG", describe_failures(bad), passed=False)
    names = dict.fromkeys(check.name for check in line.checks)
    details = "; ".join(check.detail for check in line.checks if check.detail)
    text = ", ".join(names) + (f" ({details})" if details else "")
    return _record(line.case, line.arm, "RIGHT", text, passed=True)


def _record(
    case: str, arm: str, verdict: str, detail: str, passed: bool | None = None
) -> dict[str, object]:
    return {"case": case, "arm": arm, "verdict": verdict, "passed": passed, "detail": detail}
