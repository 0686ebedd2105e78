"""Arms of other people's libraries: torch and CLBlast, by stand-ins, and y in 16 bits."""

from __future__ import annotations

import builtins
import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from conftest import Answer, make_device
from tiny import TINY, use_catalogue

from gemvbench import oracle
from gemvbench.arm import parse_arm
from gemvbench.attention_case import Attention
from gemvbench.backend.fake import FakeBackend
from gemvbench.backend.torch_products import TorchProduct
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo
from gemvbench.errors import CompileError
from gemvbench.jobs import choose
from gemvbench.libraries import LIBRARY_FAMILIES
from gemvbench.messages import AttentionJob, LibraryJob, Verified, Verify
from gemvbench.outcome import Declined, LibraryArm
from gemvbench.stages import Precision
from gemvbench.verify import Verifier

CLBLAST: dict[str, Any] = {
    "kind": "gpu",
    "memory": 1 << 26,
    "capabilities": ("half_arithmetic", "clblast"),
}


def cuda(*capabilities: str) -> DeviceInfo:
    device = make_device(id="cuda0", kind="gpu", capabilities=capabilities)
    return msgspec.structs.replace(device, backend="cuda")


# The ladder.


@pytest.mark.parametrize("name", ["torch_linear", "torch_mv"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_torch_is_an_arm_where_it_is_installed(name: str, kind: str) -> None:
    choice, job = choose(parse_arm(name), name, Gemv(k=8, n=4, w=kind, x=kind), cuda("torch"))
    assert choice.outcome == LibraryArm(arm=name, library=name, w=kind, y=kind)
    assert job is not None
    assert job.y == kind


def test_cublas_gemv_has_sums_and_y_in_fp32() -> None:
    choice, _ = choose(parse_arm("cublas_gemv"), "c", Gemv(k=8, n=4), cuda("cublas"))
    assert choice.outcome == LibraryArm(arm="cublas_gemv", library="cublas_gemv", w="f16")


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("torch_mv", cuda("cublas"), "not installed for cuda0: pip install torch"),
        ("torch_mv", make_device(), "torch_mv needs CUDA, and fake0 is fake"),
        ("cublas_gemv", cuda("torch"), "pip install 'gemvbench[cublas]'"),
        ("clblast", cuda("clblast"), "clblast needs OpenCL"),
        ("clblast", make_device(capabilities=("clblast",)), "computes in FP16, and fake0 does not"),
        ("clblast", make_device(capabilities=("half_arithmetic",)), "pip install pyclblast"),
    ],
)
def test_peers_decline_with_what_is_missing(name: str, device: DeviceInfo, reason: str) -> None:
    choice, job = choose(parse_arm(name), name, Gemv(k=8, n=4), device)
    assert job is None
    assert isinstance(choice.outcome, Declined)
    assert reason in choice.outcome.reason


@pytest.mark.parametrize(
    "name", [n for n, lib in LIBRARY_FAMILIES.items() if "gemv" in lib.operations]
)
def test_operands_of_two_types_are_declined(name: str) -> None:
    library = LIBRARY_FAMILIES[name]
    everything = ("half_arithmetic", library.package)
    device = (
        cuda(*everything) if library.language == "cuda" else make_device(capabilities=everything)
    )
    for case in (Gemv(k=8, n=4, x="f32"), Gemv(k=8, n=4, w="bf16")):
        choice, _ = choose(parse_arm(name), name, case, device)
        assert isinstance(choice.outcome, Declined)
        assert "no product of" in choice.outcome.reason


ATTENTION: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "context": 500}


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_cudnn"])
def test_attention_of_torch_is_an_arm_of_attention(name: str) -> None:
    choice, job = choose(parse_arm(name), name, Attention(**ATTENTION), cuda("torch"))
    assert isinstance(choice.outcome, LibraryArm)
    assert isinstance(job, AttentionJob)
    assert (job.library, job.text) == (name, "")
    assert job.precision == Precision(weight=2.0**-11, least=2.0**-24, y="f16")


@pytest.mark.parametrize(
    ("fields", "device", "reason"),
    [
        ({}, cuda(), "pip install torch"),
        ({}, make_device(), "needs CUDA"),
        ({"k_type": "q8_0"}, cuda("torch"), "they are f16, q8_0 and f16"),
        ({"k_type": "bf16", "v_type": "bf16"}, cuda("torch"), "they are f16, bf16 and bf16"),
        ({"q": "f32"}, cuda("torch"), "they are f32, f16 and f16"),
        ({"head_dim": 192, "v_dim": 128}, cuda("torch"), "192 elements and those of V 128"),
        ({"op": "kq"}, cuda("torch"), "computes attention, not kq"),
    ],
)
def test_attention_of_torch_declines(
    fields: dict[str, Any], device: DeviceInfo, reason: str
) -> None:
    case = Attention(**(ATTENTION | fields))
    choice, job = choose(parse_arm("sdpa_flash"), "s", case, device)
    assert job is None
    assert isinstance(choice.outcome, Declined)
    assert reason in choice.outcome.reason


def test_attention_of_torch_computes_no_product() -> None:
    choice, _ = choose(parse_arm("sdpa_flash"), "s", Gemv(k=8, n=4), cuda("torch"))
    assert isinstance(choice.outcome, Declined)
    assert "computes attention, not gemv" in choice.outcome.reason


# y in 16 bits.


@pytest.mark.parametrize(("dtype", "made"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_an_exact_sum_is_rounded_once(dtype: str, made: Any) -> None:
    sums = np.array([3, -2049, 2051, 4099], np.int64)
    right = sums.astype(np.float32).astype(made).astype(np.float32)
    assert oracle.check_exact("e", right, oracle.stored(sums, dtype)).passed
    assert not oracle.check_exact("e", right, sums).passed
    off = right.copy()
    off[0] += 1
    assert not oracle.check_exact("e", off, oracle.stored(sums, dtype)).passed


@pytest.mark.parametrize(("dtype", "made"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_random_allows_the_rounding_of_y_and_no_more(dtype: str, made: Any) -> None:
    case = Gemv(k=256, n=32, w=dtype, x=dtype)
    reference = oracle.random_reference(case, 1)
    y = reference.y.astype(np.float32).astype(made).astype(np.float32)
    assert oracle.check_random(y, reference, 32, dtype).passed
    assert not oracle.check_random(y, reference, 32).passed
    y[7] *= 1 + 2.5 * oracle.STORED[dtype]
    assert not oracle.check_random(y, reference, 32, dtype).passed


@pytest.mark.parametrize(("y", "right"), [("bf16", True), ("f16", False)])
def test_a_library_with_sums_in_fp32_and_y_in_bf16_is_right(
    script: Callable[..., Any], y: str, right: bool
) -> None:
    """As torch has it; sums beyond 256 are rounded then."""
    script()
    info = make_device()
    job = LibraryJob(arm="a", device=info.id, library="clblast", w="bf16", y=y)
    case = Gemv(k=4096, n=33, w="bf16", x="bf16")
    request = Verify(device=info, case=case, jobs=(job,), siblings=(), seed=1)
    messages = Verifier(FakeBackend(info), request).messages()
    (found,) = [m for m in messages if isinstance(m, Verified)]
    assert found.passed is right, found.checks


@pytest.mark.usefixtures("in_process")
def test_a_library_with_y_in_fp16_is_verified_and_timed(
    gemvbench: Callable[..., Answer], script: Callable[..., Any]
) -> None:
    fast = {"match": {"entry": "read_strided"}, "gbps": 100}
    script([fast], devices=[CLBLAST])
    answer = gemvbench("ab", "--quick", "--shape", "64x33", "--arm", "clblast", "--format", "json")
    assert answer.code == 0, answer.err
    found = answer.results()["clblast"]
    assert (found["verified"], found["constants"]) == (True, {"library": "clblast"})


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("fault", "stage", "verdict"),
    [("compile_error", "compile", "FAILED"), ("wrong_everywhere", "launch", "WRONG"),
     ("unwritten_row", "launch", "WRONG")],
)  # fmt: skip
def test_a_broken_library_leaves_the_others_alone(
    gemvbench: Callable[..., Answer],
    script: Callable[..., Any],
    fault: str,
    stage: str,
    verdict: str,
) -> None:
    fast = {"match": {"entry": "read_strided"}, "gbps": 100}
    faults = [{"match": {"entry": "clblast"}, "fault": fault, "stage": stage}]
    script([fast], devices=[CLBLAST], faults=faults)
    answer = gemvbench(
        "ab", "--quick", "--shape", "64x33", "--arm", "clblast", "--arm", "pack2",
        "--format", "json",
    )  # fmt: skip
    assert answer.code == 3
    assert answer.results()["clblast"]["verdict"] == verdict
    assert answer.results()["pack2"]["blocks"] == 6


# How torch is called.


class Tensor:
    """What torch makes of CUDA's array interface: a view of memory, here the host's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.array.view(dtype))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key])


def as_tensor(view: Any, device: object) -> Tensor:
    facts = view.__cuda_array_interface__
    size = 2 * int(np.prod(facts["shape"]))
    memory = (ctypes.c_char * size).from_address(facts["data"][0])
    return Tensor(np.frombuffer(memory, facts["typestr"]).reshape(facts["shape"]))


def multiply(w: Tensor, x: Tensor, out: Tensor) -> None:
    out.array[...] = x.array.astype(np.float32) @ w.array.astype(np.float32).T


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType("torch")
    made.__version__ = "2"
    made.float16, made.bfloat16 = np.float16, ml_dtypes.bfloat16
    made.device = lambda kind, ordinal: (kind, ordinal)
    made.as_tensor, made.no_grad = as_tensor, nullcontext
    made.mv = multiply
    made.nn = SimpleNamespace(
        functional=SimpleNamespace(linear=lambda x, w, out: multiply(w, x, out))
    )
    made.cuda = SimpleNamespace(
        is_available=lambda: True,
        ExternalStream=lambda pointer, device: (pointer, device),
        stream=lambda stream: made.used.append(stream) or nullcontext(),
    )
    made.used = []
    made.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()))
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.mark.parametrize("name", ["torch_linear", "torch_mv"])
@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_torch_multiplies_on_our_memory_and_stream(
    torch: Any, name: str, kind: str, dtype: Any
) -> None:
    k, n, w_offset, x_offset = 24, 7, 16, 8
    draw = np.random.default_rng(1)
    w = np.concatenate([np.full(w_offset, np.nan), draw.integers(-3, 4, k * n)]).astype(dtype)
    x = np.concatenate([np.full(x_offset, np.nan), draw.integers(-3, 4, k)]).astype(dtype)
    y = np.full(n + 1, 99).astype(dtype)
    product = TorchProduct(name, kind, 3, SimpleNamespace(ptr=5))
    sizes = (np.uint32(k), np.uint32(n), np.uint64(w_offset), np.uint32(x_offset))
    buffers = [SimpleNamespace(ptr=array.ctypes.data) for array in (w, x, y)]
    for _ in range(2):  # tensors are made once
        product((1,), (1,), (*buffers, *sizes), shared_mem=0, stream=None)
    rows = w[w_offset:].reshape(n, k).astype(np.float32)
    expected = (rows @ x[x_offset:].astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(y[:n].astype(np.float32), expected.astype(np.float32))
    assert y[n] == 99
    assert torch.used == [(5, ("cuda", 3))] * 2
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is False


def test_a_torch_without_cuda_says_so(torch: Any) -> None:
    torch.cuda.is_available = lambda: False
    with pytest.raises(CompileError, match="torch 2 cannot use CUDA here"):
        TorchProduct("torch_mv", "f16", 0, SimpleNamespace(ptr=5))


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_a_torch_that_does_not_import_says_so(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise error("libcudart.so is not there")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(CompileError, match=r"cannot be imported: libcudart\.so is not there"):
        TorchProduct("torch_mv", "f16", 0, SimpleNamespace(ptr=5))


@pytest.mark.usefixtures("in_process")
def test_a_token_reads_y_as_the_library_stores_it(
    gemvbench: Callable[..., Answer],
    script: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_catalogue(TINY, tmp_path, monkeypatch)
    script(devices=[CLBLAST | {"kind": "cpu"}])
    answer = gemvbench(
        "decode", "--quick", "--model", "tiny", "--arm", "clblast", "--baseline", "pack2",
        "--format", "json",
    )  # fmt: skip
    assert answer.code == 0, answer.err + answer.out
    verdicts = {r["verdict"] for r in answer.json["results"] if r["arm"] == "clblast"}
    assert not verdicts & {"WRONG", "FAILED", "DECLINED"}
