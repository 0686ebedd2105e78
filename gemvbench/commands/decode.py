"""`gemvbench decode`: the number of record, all layers of a token on distinct memory."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import replace

import msgspec

from gemvbench.arm import AUTO, Arm, parse_arm
from gemvbench.cases import Case
from gemvbench.commands.ab import against_commit, conduct, make_settings, record_path
from gemvbench.commands.attention import check_operation, parse_contexts
from gemvbench.commands.output import check_output, warn
from gemvbench.commands.selection import find_known_model, parse_share
from gemvbench.commands.setup import Beside, Setup, prepare
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.operating_point import read_isolated
from gemvbench.plan import LENGTH_RATIO
from gemvbench.record import Settings
from gemvbench.report.decode import decode_document
from gemvbench.token_case import Growth, Token, make_token, split_token

REGIME = "decode"
LAUNCHES = ("graph", "stream")
_GPU_LENGTHS = (4, 36)
_RUN_BYTES = 1.5e9
"""What a CPU reads in a long run, where its length has to be known before anything is timed."""
_WITH_CONTEXT = ("kv", "attention_arm", "attention_baseline")


def run_decode(options: argparse.Namespace) -> Exit:
    """Compare arms on a whole token of a model, and class by class of its layers."""
    check_output(options)
    if not options.arm or not options.model:
        raise UserError(
            "decode needs a --model and at least one --arm, for example `gemvbench decode --model "
            "qwen3-0.6b --arm auto`; `gemvbench list` shows models."
        )
    against = against_commit(options)
    if against and options.attention_baseline:
        raise UserError("With --against attention has itself as baseline: no --attention-baseline.")
    first = () if against else (options.baseline or "base",)
    arms = [parse_arm(text) for text in (*first, *options.arm)]
    attention = _attention_arms(options, len(arms))
    settings = _make_settings(options)
    path = record_path(options)
    setup = prepare(options, arms, settings, choose_tokens, Beside(attention, against))
    setup = _with_lengths(setup)
    isolated = read_isolated(options.ab or (), setup.header(options.arguments))
    return conduct(options, setup, path, decode_document, isolated=isolated)


def choose_tokens(options: argparse.Namespace, device: DeviceInfo) -> tuple[Case, ...]:
    """The whole token of --model, then each class of its layers by itself."""
    model = find_known_model(options.model)
    token = make_token(model, options.weights, options.x)
    if options.context is not None:
        growth = _growth(options, token, device)
        token = make_token(model, options.weights, options.x, growth)
        if model.window:
            warn(f"{model.title}: {model.window}; here all that attend see the whole cache.")
    return (token, *split_token(token))


def _growth(options: argparse.Namespace, token: Token, device: DeviceInfo) -> Growth:
    """Caches from --context and --kv, and the runs over which they grow.

    Their lengths cannot be chosen by time, arm by arm, as a longer run attends to more.
    """
    contexts = parse_contexts(options.context)
    if len(contexts) > 1:
        raise UserError(f"--context {options.context!r}: decode takes one number of tokens.")
    lengths = _GPU_LENGTHS
    if options.lengths:
        lengths = parse_lengths(options.lengths)
    elif device.is_cpu:
        long = min(lengths[1], max(lengths[0], math.ceil(_RUN_BYTES / token.bytes_moved)))
        lengths = (max(1, long // LENGTH_RATIO), long)
    return Growth(context=contexts[0], kv=options.kv or "f16", lengths=lengths)


def _attention_arms(options: argparse.Namespace, count: int) -> list[Arm]:
    """What attends in the token of each arm, the baseline first; none without --context.

    Raises:
        UserError: no arm of attention, one with a device of its own, or none of it is asked for.
    """
    if options.context is None:
        given = [name for name in _WITH_CONTEXT if getattr(options, name) is not None]
        if given:
            name = given[0].replace("_", "-")
            raise UserError(f"--{name} is for a token that attends: give --context with it.")
        return []
    arm = parse_arm(options.attention_arm or AUTO)
    baseline = parse_arm(options.attention_baseline) if options.attention_baseline else arm
    check_operation([baseline, arm], "attention")
    for each in (baseline, arm):
        if each.device:
            raise UserError(
                f"Attention by {each.full_name}: it runs on the device of its --arm; leave "
                f"{each.device}: out."
            )
    return [baseline, *[arm] * (count - 1)]


def parse_lengths(text: str) -> tuple[int, int]:
    """(short, long) from "4,36".

    Raises:
        UserError: not two positive numbers of tokens, or not the shorter first.
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*", text)
    short, long = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < short < long:
        raise UserError(
            f"--lengths {text!r}: write two numbers of tokens, the shorter first, for example "
            "--lengths 4,36. The time of a token is the difference of both runs over the "
            "difference in tokens, so they cannot be equal."
        )
    return short, long


def _make_settings(options: argparse.Namespace) -> Settings:
    if options.launches not in LAUNCHES:
        raise UserError(f"--launches {options.launches!r} is unknown; use {' or '.join(LAUNCHES)}.")
    options.regime = REGIME
    return msgspec.structs.replace(
        make_settings(options, (REGIME,)),
        lengths=parse_lengths(options.lengths) if options.lengths else None,
        launches=options.launches,
        tolerance=parse_share("--tolerance", options.tolerance, 0.0, 1.0),
    )


def _with_lengths(setup: Setup) -> Setup:
    """On GPUs S2's lengths where none are given; a CPU's by time, unless caches grow."""
    settings, token = setup.settings, setup.contests[0].case
    if isinstance(token, Token) and token.growth:
        settings = msgspec.structs.replace(settings, lengths=token.growth.lengths)
    elif settings.lengths is None and not any(device.is_cpu for device in setup.devices):
        settings = msgspec.structs.replace(settings, lengths=_GPU_LENGTHS)
    return replace(setup, settings=settings)
