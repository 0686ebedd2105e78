"""A worker process: one JSON request on standard input, messages on standard output.

    python -m gemvbench.worker

Compilers and drivers print to standard output; theirs goes to standard error, which the
parent keeps the tail of.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.backend.base import Backend
from gemvbench.block import Stopwatch, calibrate, run_block
from gemvbench.device import DeviceInfo
from gemvbench.errors import UserError
from gemvbench.messages import (
    Calibrate,
    DeviceFound,
    Doing,
    ListDevices,
    Message,
    Refused,
    Request,
    Verify,
)
from gemvbench.quant_verify import QuantVerifier
from gemvbench.verify import Verifier

_PR_SET_PDEATHSIG = 1
_OPEN: dict[str, Backend] = {}
"""Kept until the process ends: some drivers abort when a context is released."""


def main() -> None:
    """Answer the request, and leave at once: drivers crash while they are torn down."""
    _die_with_parent()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    channel = _take_stdout()
    encoder = msgspec.json.Encoder()
    for message in _answer_or_refuse(request):
        if isinstance(message, Doing):
            said = os.fstat(sys.stderr.fileno()).st_size
            message = msgspec.structs.replace(message, said=said)
        channel.write(encoder.encode(message) + b"\n")
        channel.flush()
    sys.stderr.flush()
    os._exit(0)


def _answer_or_refuse(request: Request) -> Iterator[Message]:
    try:
        yield from answer(request)
    except UserError as error:
        yield Refused(str(error), int(error.code))


def answer(request: Request) -> Iterator[Message]:
    """Do what is asked, in this process; messages come as things happen."""
    if isinstance(request, ListDevices):
        yield from list_devices(request.backend)
        return
    devices = (request.device,) if isinstance(request, Verify) else request.devices
    watch = Stopwatch()
    graphs = isinstance(request, Verify) or request.graphs
    with watch.part("open"):
        backends = {info.id: open_backend(info, graphs=graphs) for info in devices}
    _OPEN.update(backends)
    if isinstance(request, Verify):
        yield from make_verifier(backends[request.device.id], request).messages()
    elif isinstance(request, Calibrate):
        yield from calibrate(backends, request, watch)
    else:
        yield from run_block(backends, request, watch)


def make_verifier(backend: Backend, request: Verify) -> Verifier | AttentionVerifier:
    if isinstance(request.case, Attention):
        return AttentionVerifier(backend, request)
    return (QuantVerifier if request.case.is_quantised else Verifier)(backend, request)


def list_devices(backend: str) -> Iterator[DeviceFound]:
    if backend == "fake":
        from gemvbench.backend.fake import fake_devices

        yield from map(DeviceFound, fake_devices())
    elif backend == "cuda":
        from gemvbench.backend.cuda_devices import find_cuda_devices

        yield from map(DeviceFound, find_cuda_devices())
    elif backend == "opencl":
        from gemvbench.backend.opencl_devices import describe, find_devices

        yield from (DeviceFound(describe(found)) for found in find_devices())


def open_backend(info: DeviceInfo, *, graphs: bool = True) -> Backend:
    if info.backend == "fake":
        from gemvbench.backend.fake import FakeBackend

        return FakeBackend(info)
    if info.backend == "cuda":
        from gemvbench.backend.cuda import CudaBackend

        return CudaBackend(info, graphs=graphs)
    from gemvbench.backend.opencl import OpenCLBackend
    from gemvbench.backend.opencl_devices import find_devices

    for found in find_devices():
        if found.id == info.id:
            return OpenCLBackend(info, found.device)
    raise UserError(f"Device {info.id} was there a moment ago and is gone.")


def _die_with_parent() -> None:
    """On Linux: a parent that is killed leaves no worker behind that spins in a kernel."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_stdout() -> BinaryIO:
    """A private copy of standard output; whatever prints from now on prints to stderr."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


if __name__ == "__main__":
    main()
