"""`gemvbench gate`: this tree's kernels against those of a commit, and its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gemvbench import checkout, source
from gemvbench.arm import AUTO, Arm, parse_arm
from gemvbench.attention_case import Attention
from gemvbench.budget import TOO_SMALL
from gemvbench.case import Gemv, parse_shape
from gemvbench.cases import Single
from gemvbench.checkout import Commit
from gemvbench.commands.ab import make_settings, measure, record_path
from gemvbench.commands.attention import operations_of
from gemvbench.commands.output import check_output, emit, warn
from gemvbench.commands.selection import choose_device, find_devices, find_known_model, pick_cases
from gemvbench.commands.setup import Setup, check_seed
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.gate import conclude
from gemvbench.gate_plan import Entry, GatePlan, default_set, plan_gate
from gemvbench.history import AsvResults
from gemvbench.record import Ended, Gate, Run, Settings
from gemvbench.report.closing import refusal
from gemvbench.report.gate import gate_document
from gemvbench.results import Summary, summarise


def run_gate(options: argparse.Namespace) -> Exit:
    """Judge the kernels of the working tree against a commit."""
    check_output(options)
    base = checkout.resolve(options.base)
    _refuse_foreign_kernels(base)
    path, settings = record_path(options), make_settings(options)
    check_seed(settings.seed)
    history = AsvResults.open(Path(options.asv)) if options.asv else None
    devices = find_devices()
    device = choose_device(devices, options.device)
    plan = plan_gate(choose_entries(options, device), base, device, devices)
    mark = Gate(
        base=base.hash,
        base_name=base.name,
        head=checkout.head(),
        dirty=checkout.is_dirty(),
        left_out=plan.left_out,
        fail_on_undecided=options.fail_on_undecided,
    )
    summary = _measure(options, plan, settings, mark, devices, device, path)
    if summary.ended == TOO_SMALL:
        raise UserError(refusal(summary))
    conclusion = conclude(summary)
    emit(gate_document(summary), options)
    if history is None or not conclusion.results:
        return conclusion.code
    if mark.dirty:
        warn("the tree has uncommitted changes, which are no commit's: nothing goes to asv.")
        return conclusion.code
    try:
        warn(f"ratios are in {history.write(mark, conclusion.results, devices.values())}.")
    except UserError as error:
        warn(str(error))
        return conclusion.code or Exit.NO_DEVICE
    return conclusion.code


def choose_entries(options: argparse.Namespace, device: DeviceInfo) -> list[Entry]:
    """The default set of a device, narrowed or replaced by the options.

    Raises:
        UserError: options that exclude each other, or nothing is left.
    """
    if options.model and options.shape:
        raise UserError("--model and --shape exclude each other; give one of them.")
    arms = [parse_arm(text) for text in options.arm or ()]
    entries = list(default_set(device))
    if options.model or options.shape:
        entries = [Entry(case, (parse_arm(AUTO),)) for case in _cases(options, device)]
    if arms:
        cases: dict[Single, None] = dict.fromkeys(entry.case for entry in entries)
        entries = [Entry(case, _fitting(arms, case)) for case in cases]
        entries = [entry for entry in entries if entry.arms]
    if not entries:
        raise UserError("None of the arms computes any of the cases; leave --arm or --shape out.")
    picked = {case.id for case in pick_cases([entry.case for entry in entries], options.pick)}
    return [entry for entry in entries if entry.case.id in picked]


def _cases(options: argparse.Namespace, device: DeviceInfo) -> list[Single]:
    """Every shape that was asked for; of a model its attention too, where it is known."""
    types = {"w": options.weights, "x": options.x}
    if options.shape:
        shapes = dict.fromkeys(parse_shape(text) for text in options.shape)
        return [Gemv(k=k, n=n, **types) for k, n in shapes]
    model = find_known_model(options.model)
    shapes = dict.fromkeys((operation.k, operation.n) for operation in model.operations)
    cases: list[Single] = [Gemv(k=k, n=n, **types) for k, n in shapes]
    if model.attention is not None:
        heads = msgspec.structs.asdict(model.attention)
        context = next(e.case.context for e in default_set(device) if isinstance(e.case, Attention))
        cases.append(Attention(op="attention", context=context, **heads))
    return cases


def _fitting(arms: list[Arm], case: Single) -> tuple[Arm, ...]:
    op = case.op if isinstance(case, Attention) else "gemv"
    return tuple(arm for arm in arms if op in operations_of(arm))


def _measure(
    options: argparse.Namespace,
    plan: GatePlan,
    settings: Settings,
    mark: Gate,
    devices: Mapping[str, DeviceInfo],
    device: DeviceInfo,
    path: Path,
) -> Summary:
    """The run, or one without cases where nothing has changed."""
    settings = msgspec.structs.replace(settings, family=plan.pairs or None, sheds=True)
    used = {choice.device for contest in plan.contests for choice in contest.choices}
    found = tuple(devices[name] for name in sorted(used)) or (device,)
    baseline = plan.contests[0].baseline if plan.contests else ""
    setup = Setup(settings, plan.contests, found, baseline)
    header = setup.header(options.arguments)
    if plan.contests:
        return measure(setup, header, path, gate=mark)
    header = msgspec.structs.replace(header, gate=mark)
    return summarise(Run(header=header, lines=(Ended(reason="complete", seconds=0.0),)))


def _refuse_foreign_kernels(base: Commit) -> None:
    """Raises UserError where this program has other kernels than the checkout it stands in."""
    own = (checkout.find_root(base.name) / checkout.KERNELS).resolve()
    used = source.KERNELS.resolve()
    if own != used:
        raise UserError(
            f"gate judges the kernels of the checkout it runs in, {own}, and this gemvbench has "
            f"its own in {used}. Install it from the checkout: pip install -e ."
        )
