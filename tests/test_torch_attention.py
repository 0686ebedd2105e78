"""How torch's attention is called, by a stand-in that computes on the host's memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.attention_case import LAYOUTS, Attention
from gemvbench.attention_verify import AttentionVerifier
from gemvbench.backend.base import Kernel, Launch, Timing
from gemvbench.backend.torch_attention import TorchAttention
from gemvbench.errors import CompileError
from gemvbench.jobs import choose
from gemvbench.messages import AttentionJob, Failed, Layout, Verified, Verify
from gemvbench.plan import plan_layout
from gemvbench.spaces import make_space

GPU = msgspec.structs.replace(
    make_device(id="cuda0", kind="gpu", capabilities=("torch",)), backend="cuda"
)


class Tensor:
    """A view of memory, with what is used of torch's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.array.view(dtype))

    def reshape(self, size: int) -> Tensor:
        return Tensor(self.array.reshape(size))

    def copy_(self, other: Tensor) -> None:
        self.array[...] = other.array

    def data_ptr(self) -> int:
        return 4096


def as_tensor(view: Any, device: object) -> Tensor:
    facts = view.__cuda_array_interface__
    shape, strides = facts["shape"], facts["strides"]
    size = 2 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * size).from_address(facts["data"][0])
    return Tensor(np.ndarray(shape, facts["typestr"], memory, strides=strides))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, enable_gqa: bool) -> Tensor:
    """In FP32, with the output in FP16."""
    ratio = q.array.shape[1] // k.array.shape[1]
    assert enable_gqa == (ratio > 1)
    rows = [np.repeat(x.array.astype(np.float32), ratio, axis=1) for x in (k, v)]
    s = scale * q.array.astype(np.float32) @ rows[0].transpose(0, 1, 3, 2)
    p = np.exp(s - s.max(-1, keepdims=True))
    return Tensor((p @ rows[1] / p.sum(-1, keepdims=True)).astype(np.float16))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType("torch")
    made.__version__, made.float16, made.ends = "2", np.float16, []
    made.device = lambda kind, ordinal: (kind, ordinal)
    made.as_tensor, made.no_grad = as_tensor, nullcontext
    made.zeros = lambda shape, dtype, device: Tensor(np.zeros(shape, dtype))
    made.cuda = SimpleNamespace(
        is_available=lambda: True,
        ExternalStream=lambda *_, **__: SimpleNamespace(synchronize=lambda: None),
        stream=nullcontext,
    )
    made.nn = SimpleNamespace(
        attention=SimpleNamespace(
            SDPBackend=SimpleNamespace(FLASH_ATTENTION="flash", CUDNN_ATTENTION="cudnn"),
            sdpa_kernel=lambda end: made.ends.append(end) or nullcontext(),
        ),
        functional=SimpleNamespace(scaled_dot_product_attention=attend),
    )
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


class Memory:
    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)
        self.ptr = self.bytes.ctypes.data


class Host:
    """The part of a back end that attention needs, on the host's memory."""

    info = GPU

    def alloc(self, size: int) -> Memory:
        return Memory(size)

    def write(self, buffer: Memory, array: Any, offset: int) -> None:
        raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        buffer.bytes[offset : offset + raw.size] = raw

    def download(self, buffer: Memory, dtype: Any, count: int, offset: int = 0) -> Any:
        size = np.dtype(dtype).itemsize * count
        return buffer.bytes[offset : offset + size].view(dtype).copy()

    def fill(self, buffer: Memory, pattern: int, size: int) -> None:
        buffer.bytes[: size // 4 * 4].view(np.uint32)[:] = pattern

    def copy(self, buffer: Memory, source: int, target: int, size: int) -> None:
        buffer.bytes[target : target + size] = buffer.bytes[source : source + size]

    def load_attention(self, name: str, case: Attention) -> Kernel:
        stream = SimpleNamespace(ptr=5, synchronize=lambda: None)
        return Kernel(name, TorchAttention(name, case, 3, stream))

    def run(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            size = (launch.workgroups,), (launch.workgroup_size,)
            launch.kernel.handle(*size, launch.args, shared_mem=0, stream=None)

    def time(self, launches: Sequence[Launch]) -> Timing:
        self.run(launches)
        return Timing(1.0, None, 1.0, 0.0, True)


def verified(name: str, case: Attention) -> tuple[AttentionJob, list[Any]]:
    _, job = choose(parse_arm(name), name, case, GPU)
    assert isinstance(job, AttentionJob)
    request = Verify(device=GPU, case=case, jobs=(job,), siblings=(), seed=1)
    found = list(AttentionVerifier(Host(), request).messages())  # type: ignore[arg-type]
    return job, [message for message in found if isinstance(message, Verified | Failed)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "end"), [("sdpa_flash", "flash"), ("sdpa_cudnn", "cudnn")])
def test_it_reads_caches_where_they_lie(torch: Any, name: str, end: str, layout: str) -> None:
    """Offsets, strides, grouped heads and an output in FP16; timed calls give the same bits."""
    case = Attention(heads=6, kv_heads=2, head_dim=32, context=77, layout=layout)
    job, (found,) = verified(name, case)
    assert isinstance(found, Verified)
    assert found.passed, found.checks
    assert set(torch.ends) == {end}
    layout_ = Layout(turns=3, stride=plan_layout(case, "hot", GPU).stride)
    space = make_space(Host(), case, layout_, 1, 0)  # type: ignore[arg-type]
    space.pools()[0][0].bytes[:] = 0xFF
    make_caches(space, case)
    runner = space.make_runner(job)
    runner.time(4)
    assert runner.output_digest() == found.digest


def make_caches(space: Any, case: Attention) -> None:
    """As `fill`, which needs kernels for it."""
    from gemvbench import attention_inputs

    for turn in range(3):
        for side, start in (("k", 0), ("v", case.k_bytes)):
            rows = attention_inputs.memory_rows(case, side, 1)
            space.backend.write(space.pool, rows, turn * space.layout.stride + start)
    space.set_query(attention_inputs.query(case, 1))


def test_heads_that_do_not_share_are_not_grouped(torch: Any) -> None:
    _, (found,) = verified("sdpa_flash", Attention(heads=2, kv_heads=2, head_dim=64, context=9))
    assert found.passed


def test_a_shape_without_a_kernel_fails_with_torchs_reason(torch: Any) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    torch.nn.functional.scaled_dot_product_attention = refuse
    _, (found,) = verified("sdpa_cudnn", Attention(heads=2, kv_heads=2, head_dim=64, context=9))
    assert isinstance(found, Failed)
    assert "no sdpa_cudnn for" in found.reason
    assert found.reason.endswith("No available kernel. Aborting execution.")


def test_an_output_that_moves_is_not_read(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph wrote would lie in another place than what is read afterwards."""
    places = iter(range(1, 9))
    monkeypatch.setattr(Tensor, "data_ptr", lambda _: next(places))
    with pytest.raises(RuntimeError, match="two places"):
        verified("sdpa_flash", Attention(heads=2, kv_heads=2, head_dim=64, context=9))


def test_torch_that_is_broken_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CompileError, match="cannot be imported"):
        Host().load_attention("sdpa_flash", Attention(heads=2, head_dim=64, kv_heads=2, context=9))
