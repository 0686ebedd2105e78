"""`gemvbench decode`: the number of record, all linear layers of a token on distinct weights."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

import msgspec

from gemvbench.arm import parse_arm
from gemvbench.cases import Case
from gemvbench.commands.ab import against_commit, conduct, make_settings, record_path
from gemvbench.commands.output import check_output
from gemvbench.commands.selection import find_known_model, parse_share
from gemvbench.commands.setup import Setup, prepare
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.operating_point import read_isolated
from gemvbench.record import Settings
from gemvbench.report.decode import decode_document
from gemvbench.token_case import make_token, split_token

REGIME = "decode"
LAUNCHES = ("graph", "stream")
_GPU_LENGTHS = (4, 36)


def run_decode(options: argparse.Namespace) -> Exit:
    """Compare arms on a whole token of a model, and class by class of its layers."""
    check_output(options)
    if not options.arm or not options.model:
        raise UserError(
            "decode needs a --model and at least one --arm, for example `gemvbench decode --model "
            "qwen3-0.6b --arm auto`; `gemvbench list` shows models."
        )
    against = against_commit(options)
    first = () if against else (options.baseline or "base",)
    arms = [parse_arm(text) for text in (*first, *options.arm)]
    settings = _make_settings(options)
    path = record_path(options)
    setup = _with_lengths(prepare(options, arms, settings, choose_tokens, against))
    isolated = read_isolated(options.ab or (), setup.header(options.arguments))
    return conduct(options, setup, path, decode_document, isolated=isolated)


def choose_tokens(options: argparse.Namespace, device: DeviceInfo) -> tuple[Case, ...]:
    """The whole token of --model, then each class of its layers by itself."""
    token = make_token(find_known_model(options.model), options.weights, options.x)
    return (token, *split_token(token))


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
    """On GPUs S2's lengths where none are given; a CPU's are chosen by time."""
    settings = setup.settings
    if settings.lengths is None and not any(device.is_cpu for device in setup.devices):
        settings = msgspec.structs.replace(settings, lengths=_GPU_LENGTHS)
    return replace(setup, settings=settings)
