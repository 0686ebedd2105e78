"""Other people's libraries as arms: what each needs, and how it sums and stores. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A product y = W x, or attention, of somebody else's, called on the device like a kernel."""

    summary: str
    language: str
    package: str
    """Capability of a device for which it is installed."""
    install: str
    """What brings it."""
    needs: str = ""
    """A capability that the device itself has to have."""
    types: tuple[str, ...] = ("f16", "bf16")
    """Of W and x, which are of one type."""
    wide: bool = True
    """Whether y is FP32; else it is of the type of W and x, which verification allows for."""
    accumulate: int = 32
    operations: tuple[str, ...] = ("gemv",)


def _attention(end: str) -> Library:
    return Library(
        summary=f"attention: torch's scaled_dot_product_attention, {end} back end; for CUDA",
        language="cuda",
        package="torch",
        install="pip install torch",
        types=("f16",),
        wide=False,
        operations=("attention",),
    )


_CUBLAS = "pip install 'gemvbench[cublas]', or 'gemvbench[cublas12]' for CUDA 12"
LIBRARY_FAMILIES: Mapping[str, Library] = {
    "cublas": Library(
        summary="cuBLAS's half GEMM with one column, FP32 sums; for CUDA",
        language="cuda",
        package="cublas",
        install=_CUBLAS,
    ),
    "cublas_gemv": Library(
        summary="cuBLAS's half gemv, a batch of one, FP32 sums; for CUDA",
        language="cuda",
        package="cublas",
        install=_CUBLAS,
    ),
    "torch_linear": Library(
        summary="torch.nn.functional.linear, y in 16 bits; for CUDA",
        language="cuda",
        package="torch",
        install="pip install torch",
        wide=False,
    ),
    "torch_mv": Library(
        summary="torch.mv, y in 16 bits; for CUDA",
        language="cuda",
        package="torch",
        install="pip install torch",
        wide=False,
    ),
    "sdpa_flash": _attention("flash"),
    "sdpa_cudnn": _attention("cuDNN"),
    "clblast": Library(
        summary="CLBlast's half gemv, sums and y in FP16; for OpenCL devices with FP16",
        language="opencl",
        package="clblast",
        install="pip install pyclblast",
        needs="half_arithmetic",
        types=("f16",),
        wide=False,
        accumulate=16,
    ),
}


def library_declines(name: str, case: Gemv, device: DeviceInfo) -> str | None:
    """Why a library does not compute a product on a device; None where it does."""
    library = LIBRARY_FAMILIES[name]
    if "gemv" not in library.operations:
        return f"{name} computes {', '.join(library.operations)}, not gemv"
    if reason := _elsewhere(name, device):
        return reason
    if case.w != case.x or case.w not in library.types:
        return f"{name} has no product of {case.w} weights and {case.x} x"
    return _missing(name, device)


def attention_declines(name: str, case: Attention, device: DeviceInfo) -> str | None:
    """Why a library does not compute attention on a device; None where it does.

    What its own kernels lack beyond that is found by a call, in the worker.
    """
    library = LIBRARY_FAMILIES[name]
    if case.op not in library.operations:
        return f"{name} computes {', '.join(library.operations)}, not {case.op}"
    if reason := _elsewhere(name, device):
        return reason
    types = {case.q, case.k_type, case.v_type}
    if len(types) > 1 or case.q not in library.types:
        return (
            f"{name} takes Q, K and V of one 16-bit type, and they are {case.q}, {case.k_type} "
            f"and {case.v_type}"
        )
    if case.head_dim != case.v_size or case.head_dim % 8:
        return (
            f"{name} takes heads of one size that is a multiple of 8, and those of K have "
            f"{case.head_dim} elements and those of V {case.v_size}"
        )
    return _missing(name, device)


def _elsewhere(name: str, device: DeviceInfo) -> str | None:
    library = LIBRARY_FAMILIES[name]
    if device.language == library.language:
        return None
    language = "CUDA" if library.language == "cuda" else "OpenCL"
    return f"{name} needs {language}, and {device.id} is {device.platform}"


def _missing(name: str, device: DeviceInfo) -> str | None:
    library = LIBRARY_FAMILIES[name]
    if library.needs and library.needs not in device.capabilities:
        return f"{name} computes in FP16, and {device.id} does not (compile probe)"
    if library.package not in device.capabilities:
        return f"it is not installed for {device.id}: {library.install}"
    return None
