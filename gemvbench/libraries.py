"""Other people's libraries as arms: what each needs, and how it sums and stores. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A product y = W x of somebody else's, called on the device like a kernel."""

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
    """Why a library does not compute a case on a device; None where it does."""
    library = LIBRARY_FAMILIES[name]
    if device.language != library.language:
        language = "CUDA" if library.language == "cuda" else "OpenCL"
        return f"{name} needs {language}, and {device.id} is {device.platform}"
    if case.w != case.x or case.w not in library.types:
        return f"{name} has no product of {case.w} weights and {case.x} x"
    if library.needs and library.needs not in device.capabilities:
        return f"{name} computes in FP16, and {device.id} does not (compile probe)"
    if library.package not in device.capabilities:
        return f"it is not installed for {device.id}: {library.install}"
    return None
