"""What a run is about: devices, cases and numbers, from a command's options."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from gemvbench.arm import Arm
from gemvbench.backend import icd
from gemvbench.backend.cuda_driver import is_driver_installed
from gemvbench.backend.script import FAKE_SCRIPT
from gemvbench.case import Gemv, parse_shape
from gemvbench.cases import Case
from gemvbench.commands.attention import attention_cases, refuse_attention_options
from gemvbench.commands.output import warn
from gemvbench.device import DeviceInfo, find_device
from gemvbench.errors import Exit, UserError
from gemvbench.ladder import extra_rows
from gemvbench.messages import DeviceFound, ListDevices
from gemvbench.mix import parse_mix
from gemvbench.models import Model, find_model
from gemvbench.process import WorkerDiedError, converse
from gemvbench.tuning_files import load_tuning

C = TypeVar("C", bound=Case)

_RANK = ("cuda", "opencl")
_INSTALL = (
    "Install one: `pip install 'gemvbench[cpu]'` brings PoCL for any CPU, [intel] Intel's "
    "runtime, [cuda] CUDA 13; `gemvbench devices` shows what is found."
)
_DEFAULT_CPU = ((1024, 3072),)
_DEFAULT_GPU = ((4096, 4096), (5120, 17408))


def find_devices() -> dict[str, DeviceInfo]:
    """All devices by id, best first: GPUs before CPUs, CUDA before OpenCL.

    A driver that kills the worker that asks, or a back end that refuses, is named and left
    out. Without a CUDA driver nobody is asked for CUDA.

    Raises:
        UserError: nothing was found, and a back end says why.
    """
    found: list[DeviceInfo] = []
    refusals: list[UserError] = []
    for backend in _backends():
        try:
            for message in converse(ListDevices(backend)):
                if isinstance(message, DeviceFound):
                    found.append(message.device)
        except WorkerDiedError as death:
            warn(f"the {backend} drivers cannot all be listed: {death.reason}.")
        except UserError as error:
            refusals.append(error)
    if refusals and not found:
        raise refusals[0]
    for refusal in refusals:
        warn(str(refusal))
    found.sort(
        key=lambda info: (info.is_cpu, _RANK.index(info.backend) if info.backend in _RANK else 9)
    )
    return {info.id: _with_tuning(info) for info in found}


def _with_tuning(device: DeviceInfo) -> DeviceInfo:
    """With the tables that there are for it; warns of those that cannot be used."""
    tuning = load_tuning(device)
    for refusal in tuning.refused:
        warn(refusal)
    return msgspec.structs.replace(device, tuning=tuning)


def _backends() -> tuple[str, ...]:
    if os.environ.get(FAKE_SCRIPT):
        return ("fake",)
    return _RANK if is_driver_installed() else ("opencl",)


def choose_device(devices: Mapping[str, DeviceInfo], wanted: str | None) -> DeviceInfo:
    """The device of that id, or the best.

    Raises:
        UserError: unknown id (exit 2), or no device at all (exit 4).
    """
    if not devices:
        vendors = os.environ.get(icd.VARIABLE)
        named = f" {icd.VARIABLE}={vendors!r} limits what OpenCL shows." if vendors else ""
        raise UserError(f"No OpenCL or CUDA device was found.{named} {_INSTALL}", Exit.NO_DEVICE)
    if wanted is None:
        return next(iter(devices.values()))
    return find_device(devices, wanted)


def choose_cases(options: argparse.Namespace, device: DeviceInfo) -> tuple[Case, ...]:
    """Cases from --shape, --model, or a default set that ends within about a minute.

    Raises:
        UserError: both given, a malformed shape, an unknown model or type, or none left.
    """
    if options.op != "gemv":
        return pick_cases(attention_cases(options, device), options.pick)
    refuse_attention_options(options)
    if options.model and options.shape:
        raise UserError("--model and --shape exclude each other; give one of them.")
    layers = [(k, n, options.weights) for k, n in _shapes(options, device)]
    if options.model:
        operations = find_known_model(options.model).operations
        mix = parse_mix(options.weights, [operation.name for operation in operations])
        layers = [(op.k, op.n, mix.type_of(op.name)) for op in operations]
    cases = [
        Gemv(
            k=k,
            n=n,
            w=w,
            x=options.x,
            w_offset=options.w_offset,
            x_offset=options.x_offset,
        )
        for k, n, w in dict.fromkeys(layers)
    ]
    return pick_cases(cases, options.pick)


def _shapes(options: argparse.Namespace, device: DeviceInfo) -> Sequence[tuple[int, int]]:
    """Those of --shape, or a default set."""
    if options.shape:
        return [parse_shape(text) for text in options.shape]
    return _DEFAULT_CPU if device.is_cpu else _DEFAULT_GPU


def find_known_model(name: str) -> Model:
    """A model of the catalogue; warns of what is not known for sure."""
    model = find_model(name)
    if model.unverified:
        warn(f"{model.title}: {model.unverified} not verified against its config.")
    return model


def with_spare_rows(cases: Sequence[Case], arms: Sequence[Arm]) -> tuple[Case, ...]:
    """The cases of gemv with as many spare rows as the arm with most extra ones reads."""
    return tuple(
        msgspec.structs.replace(case, spare=max(extra_rows(arm, case.n) for arm in arms))
        if isinstance(case, Gemv)
        else case
        for case in cases
    )


def parse_seconds(text: str, option: str = "--budget") -> float:
    """Seconds from "60", "60s", "2m" or "1h".

    Raises:
        UserError: anything else, or nothing positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", str(text).strip())
    value = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"] if match else 0.0
    if value <= 0:
        raise UserError(f"{option} {text!r} is no time; write for example 60s or 2m.")
    return value


def parse_share(option: str, text: str, low: float, high: float) -> float:
    """A share from "0.01" or "1%", strictly between two bounds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%)?", str(text).strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not low < value < high:
        raise UserError(
            f"{option} {text!r} has to lie between {low:g} and {high:g}, as a share or in percent."
        )
    return value


def pick_cases(cases: Sequence[C], pattern: str | None) -> tuple[C, ...]:
    """The cases whose id matches.

    Raises:
        UserError: no regular expression, or one that matches none of them.
    """
    if pattern is None:
        return tuple(cases)
    try:
        picked = tuple(case for case in cases if re.search(pattern, case.id))
    except re.error as error:
        raise UserError(f"-k {pattern!r} is not a regular expression: {error}.") from error
    if not picked:
        raise UserError(
            f"-k {pattern!r} matches no case; there are {', '.join(case.id for case in cases)}."
        )
    return picked
