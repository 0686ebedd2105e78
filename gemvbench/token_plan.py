"""Memory of a token's weights and caches: planned before anything is allocated. Pure."""

from __future__ import annotations

import math

from gemvbench.cases import Case
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.messages import AnyLayout, Layout, TokenLayout
from gemvbench.models import catalogue
from gemvbench.plan import copy_stride, describe_sharers, plan_layout, stream_bytes, usable_bytes
from gemvbench.token_case import Token, make_token


def plan_memory(case: Case, regime: str, device: DeviceInfo, sharers: int = 1) -> AnyLayout:
    """The layout of any case.

    Raises:
        UserError: it does not fit the device; nothing was allocated.
    """
    if isinstance(case, Token):
        return plan_token(case, device, sharers)
    return plan_layout(case, regime, device, sharers)


def plan_token(case: Token, device: DeviceInfo, sharers: int = 1) -> TokenLayout:
    """Distinct memory for every layer, in as few buffers as the device allows.

    A class by itself gets as many sets of weights (or of keys and values) as it takes to push the
    first one out of all caches, as the rest of the model would: then it reads memory as it does
    in a token.

    Raises:
        UserError: they do not fit; names the largest model that does.
    """
    room = usable_bytes(device, sharers)
    copies = 1
    if case.only:
        passed = min(stream_bytes(device), case.stored_bytes + case.rest_bytes)
        copies = max(1, min(math.ceil(passed / case.stored_bytes), room // case.stored_bytes))
    layout = _lay_out(case, device, copies)
    if layout is None or layout.pool_bytes + _vector_bytes(case) > room:
        raise UserError(_refusal(case, device, sharers), Exit.NO_DEVICE)
    return layout


def _lay_out(case: Token, device: DeviceInfo, copies: int) -> TokenLayout | None:
    """None where one matrix is too large for one allocation."""
    shelves = []
    for own in case.classes:
        stride = copy_stride(own.layer)
        left, most = own.matrices * copies, device.max_alloc_bytes // stride
        if most < 1:
            return None
        shelf = []
        while left:
            shelf.append(Layout(turns=min(left, most), stride=stride))
            left -= shelf[-1].turns
        shelves.append(tuple(shelf))
    return TokenLayout(shelves=tuple(shelves), copies=copies)


def _vector_bytes(case: Token) -> int:
    """x and y of each class; scores and partial results of attention."""
    return sum(layer.fixed_bytes for layer in case.layers)


def _refusal(case: Token, device: DeviceInfo, sharers: int) -> str:
    twice = describe_sharers(sharers)
    largest = _largest_that_fits(case, device, sharers)
    hint = (
        f"The largest model of the catalogue that fits is {largest.model} "
        f"({largest.stored_bytes / 1e9:.2f} GB)."
        if largest
        else "No model of the catalogue fits."
    )
    caches, less = "", ""
    if case.attention is not None:
        caches = f" with caches of {case.attention.tokens_stored} tokens"
        less = " give a smaller --context, or"
    return (
        f"The weights of {case.model}{caches} take {case.stored_bytes / 1e9:.2f} GB{twice}, and "
        f"{device.id} has {device.free_bytes / 1e9:.2f} of {device.memory_bytes / 1e9:.2f} GB "
        f"free, nine tenths of which a run takes, and allocates at most "
        f"{device.max_alloc_bytes / 1e9:.2f} GB at once. {hint} Or{less} choose another --device."
    )


def _largest_that_fits(case: Token, device: DeviceInfo, sharers: int) -> Token | None:
    room = usable_bytes(device, sharers)
    fitting = []
    for model in catalogue().values():
        if not model.order or (case.growth and not model.attends):
            continue
        try:
            token = make_token(model, case.w, case.x, case.growth)
        except UserError:  # its rows are no whole blocks of a quantised type
            continue
        layout = _lay_out(token, device, 1)
        if layout is not None and layout.pool_bytes + _vector_bytes(token) <= room:
            fitting.append(token)
    return max(fitting, key=lambda token: token.stored_bytes, default=None)
