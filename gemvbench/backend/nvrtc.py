"""CUDA text to a cubin by NVRTC. Needs no driver and no GPU, only the pip packages.

One path for tests and runs: what compiles here is what a device loads.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

from gemvbench.errors import CompileError, UserError

_OPTIONS = ("--std=c++17",)
_HEADER = "cuda_fp16.h"


def compile_cubin(text: str, architecture: str) -> bytes:
    """Machine code of a whole kernel text for an architecture such as "sm_90".

    Raises:
        CompileError: the compiler's log, with file and line.
        UserError: NVRTC is not installed.
    """
    return _compile(text, architecture, "CUBIN")


def compile_ptx(text: str, architecture: str) -> str:
    """PTX of a kernel text for an architecture such as "sm_90"; raises as compile_cubin."""
    return _compile(text, architecture, "PTX").rstrip(b"\0").decode()


@cache
def include_folders() -> tuple[str, ...]:
    """Folders with CUDA's headers, for kernels that include any."""
    # Not find_spec("nvidia.cu13"): it raises where the namespace package is absent.
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    folders = [root / part / "include" for root in roots for part in ("cu13", "cuda_runtime")]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            folders.append(Path(home) / "include")
    found = [folder for folder in folders if (folder / _HEADER).exists()]
    return tuple(str(folder) for folder in found[:1])


def _compile(text: str, architecture: str, kind: str) -> bytes:
    options = [
        f"--gpu-architecture={architecture}",
        *_OPTIONS,
        *(f"--include-path={folder}" for folder in include_folders()),
    ]
    code: bytes = _compiler()(text, options, kind)
    return code


@cache
def _compiler() -> Any:
    """The first of the two bindings that can be imported; both find the pip package's library."""
    try:
        bindings: Any = importlib.import_module("cuda.bindings.nvrtc")
        bindings.nvrtcVersion()  # loads the library
        return lambda *job: _compile_by_bindings(bindings, *job)
    except (ImportError, RuntimeError):
        pass
    try:
        cupy: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
        cupy.getVersion()
        return lambda *job: _compile_by_cupy(cupy, *job)
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"CUDA kernels cannot be compiled: NVRTC is not installed ({error}). "
            'Install the extra: pip install "gemvbench[cuda]".'
        ) from error


def _compile_by_bindings(nvrtc: Any, text: str, options: list[str], kind: str) -> bytes:
    success = nvrtc.nvrtcResult.NVRTC_SUCCESS

    def check(returned: tuple[Any, ...]) -> Any:
        result, *values = returned
        if result != success:
            raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result)[1].decode()}")
        return values[0] if values else None

    program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    try:
        encoded = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if result != success:
            log = bytes(check(nvrtc.nvrtcGetProgramLogSize(program)))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            raise CompileError(log.rstrip(b"\0").decode(errors="replace").strip())
        code = bytes(check(getattr(nvrtc, f"nvrtcGet{kind}Size")(program)))
        check(getattr(nvrtc, f"nvrtcGet{kind}")(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compile_by_cupy(nvrtc: Any, text: str, options: list[str], kind: str) -> bytes:
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, tuple(options))
        code = getattr(nvrtc, f"get{kind}")(program)
        return code if isinstance(code, bytes) else bytes(code.encode())
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip()
        raise CompileError(log or str(error)) from error
    finally:
        nvrtc.destroyProgram(program)
