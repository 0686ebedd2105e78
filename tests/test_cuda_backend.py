"""The parts of the CUDA back end that need no GPU, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gemvbench import cli, worker
from gemvbench.backend import cuda_devices, cuda_driver, nvml
from gemvbench.backend.graph_plan import MOST_NODES, Piece, cut, find_period
from gemvbench.commands import selection
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.gpu_state import GpuState

GPU = DeviceInfo(
    id="cuda1", backend="cuda", kind="gpu", name="NVIDIA H200", vendor="", platform="", driver="",
    version="", compute_units=132, max_workgroup=1024, memory_bytes=1, max_alloc_bytes=1,
    free_bytes=1, cache_bytes=1, pci="0000:1b:00.0",
)  # fmt: skip


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(cuda_driver, "_LOADER_FOLDERS", ())
    monkeypatch.setattr(cuda_driver, "_DEVICE_FILES", ())
    monkeypatch.setattr(cuda_driver, "_LOADER_CACHE", cuda_driver.Path("/nowhere"))


# How sequences are cut into graphs.


def rotate(count, period, entry):
    return [(entry + step) % period for step in range(count)]


def play(pieces, period):
    return [(piece.first + step) % period for piece in pieces for step in range(piece.count)]


@pytest.mark.parametrize("period", [1, 2, 3, 24, 100, 101, 350])
@pytest.mark.parametrize("most", [1, 7, 100])
def test_pieces_are_the_sequence(period, most):
    for count in (1, 2, period - 1, period, period + 1, 5 * period + 3, 400):
        for entry in {0, 1 % period, period // 2, period - 1}:
            pieces = cut(count, period, entry, most)
            assert play(pieces, period) == rotate(count, period, entry)
            assert all(0 < piece.count <= most for piece in pieces)


def test_every_leg_of_an_arm_shares_its_graphs():
    """Whole turns are the same graphs wherever the rotation stands."""
    pieces = {piece for entry in range(512) for piece in cut(12_500, 512, entry)}
    assert {piece.count for piece in pieces if piece.count >= 512} == {2048, 1536}
    assert cut(1136, 24, 5) == [Piece(5, 19), Piece(0, 46 * 24), Piece(0, 13)]
    assert cut(MOST_NODES, 1, 0) == [Piece(0, MOST_NODES)]
    assert cut(2 * MOST_NODES + 3, 1, 0) == [*[Piece(0, MOST_NODES)] * 2, Piece(0, 3)]


def test_a_turn_longer_than_a_graph_is_cut_at_the_same_places():
    assert cut(250, 100, 30, 40) == [
        Piece(30, 10), Piece(40, 40), Piece(80, 20),
        Piece(0, 40), Piece(40, 40), Piece(80, 20),
        Piece(0, 40), Piece(40, 40),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "period"),
    [
        ([7], 1),
        ([7, 7, 7], 1),
        ([1, 2, 1, 2, 1], 2),
        ([1, 1, 2, 1, 1, 2, 1], 3),
        ([1, 2, 3], 3),
        ([1, 1, 1, 2], 4),
        ([1, 2, 1], 2),
    ],
)
def test_period(items, period):
    assert find_period(items) == period


def test_a_long_period_is_found_fast():
    started = time.perf_counter()
    assert find_period(rotate(50_000, 512, 100)) == 512
    assert time.perf_counter() - started < 0.5


# What devices are called.


def test_a_uuid_is_what_opencl_gives():
    assert cuda_devices.format_uuid(bytes(range(16))) == "000102030405060708090a0b0c0d0e0f"
    assert cuda_devices.format_uuid(b"\x13\x09") is None  # cut at a zero byte


def test_nvml_writes_a_uuid_with_dashes():
    text = "130961397ada8313ee08000dd8540fe1"
    assert nvml.nvml_uuid(text) == "GPU-13096139-7ada-8313-ee08-000dd8540fe1"


def test_pci():
    properties = {"pciDomainID": 0, "pciBusID": 0x1B, "pciDeviceID": 0}
    assert cuda_devices.format_pci(properties) == "0000:1b:00.0"


def test_versions_and_ordinals():
    assert cuda_devices.format_version(13020) == "13.2"
    assert cuda_devices.format_version(12080) == "12.8"
    assert cuda_devices.ordinal_of(GPU) == 1


# Where there is nothing, or nothing to use.


def test_without_a_driver_there_is_no_device_and_nothing_is_imported(no_driver):
    assert not cuda_driver.is_driver_installed()
    assert cuda_devices.find_cuda_devices() == []
    assert list(worker.list_devices("cuda")) == []
    assert selection._backends() == ("opencl",)


def test_asking_for_cuda_without_a_driver_costs_no_import_of_cupy():
    if cuda_driver.is_driver_installed():
        pytest.skip("a CUDA driver is installed here")
    code = (
        "import sys; from gemvbench.worker import list_devices; "
        "assert list(list_devices('cuda')) == []; "
        "sys.exit(any(name in sys.modules for name in ('cupy', 'cuda', 'pynvml')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_driver_is_found_where_the_loader_looks(no_driver, tmp_path, monkeypatch):
    (tmp_path / cuda_driver.LIBRARY).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert cuda_driver.is_driver_installed()
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"\0libc.so.6\0libcuda.so.1\0")
    monkeypatch.setattr(cuda_driver, "_LOADER_CACHE", cache)
    assert cuda_driver.is_driver_installed()


def test_a_gpu_without_its_library_is_asked_so_that_the_reason_shows(
    no_driver, tmp_path, monkeypatch
):
    monkeypatch.setattr(cuda_driver, "_DEVICE_FILES", (str(tmp_path),))
    assert cuda_driver.is_driver_installed()


def test_without_cupy_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cuda_devices, "is_driver_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(UserError, match=r"CuPy .*gemvbench\[cuda\].*\[cuda12\]") as caught:
        list(worker.list_devices("cuda"))
    assert caught.value.code == Exit.NO_DEVICE


def test_a_driver_too_old_for_cupy_is_named():
    text = cuda_devices.runtime_problem(35, "too old", 12080, 13020)
    assert "CUDA 12.8" in text
    assert "built for 13.2" in text
    assert "gemvbench[cuda12]" in text
    for status, driver in ((35, 0), (999, 13000)):
        text = cuda_devices.runtime_problem(status, "why not", driver, 13020)
        assert "why not" in text
        assert "nvidia-smi" in text


def test_hidden_gpus_are_named():
    assert "CUDA_VISIBLE_DEVICES=''" in cuda_devices.all_hidden("")
    (note,) = cuda_devices.visibility_notes(1, 8, "3")
    assert "CUDA_VISIBLE_DEVICES=3 shows 1 of 8" in note
    for args in ((8, 8, "0,1"), (1, None, "3"), (1, 8, None), (0, 8, "")):
        assert cuda_devices.visibility_notes(*args) == ()


@pytest.mark.parametrize(
    ("status", "words"),
    [(46, "exclusive mode.*0000:1b:00.0 -c DEFAULT"), (2, "memory is full"), (999, "why not")],
)
def test_a_device_that_cannot_be_opened(status, words):
    with pytest.raises(UserError, match=f"cuda1 .*{words}"):
        raise UserError(cuda_devices.open_problem(GPU, status, "why not"))


@pytest.mark.parametrize("others", [True, False])
def test_a_refused_back_end_leaves_the_others_unharmed(others, monkeypatch, capsys):
    def converse(request):
        if request.backend == "cuda":
            raise UserError("CUDA is left out: because.", Exit.NO_DEVICE)
        if others:
            yield worker.DeviceFound(GPU)

    monkeypatch.setattr(selection, "is_driver_installed", lambda: True)
    monkeypatch.setattr(selection, "converse", converse)
    code = cli.main(["devices", "--format", "json"])
    out, err = capsys.readouterr()
    assert err.strip() == "gemvbench: CUDA is left out: because."
    assert code == (Exit.OK if others else Exit.NO_DEVICE)
    assert ("H200" in out) is others


# State of a GPU.


def test_throttle_reasons_have_names_and_idle_is_none():
    assert nvml.reason_names(0) == ()
    assert nvml.reason_names(1) == ()
    assert nvml.reason_names(0x1 | 0x4 | 0x40) == ("SwPowerCap", "HwThermalSlowdown")
    assert nvml.reason_names(1 << 20) == ("0x100000",)


def test_without_nvml_nothing_is_known(monkeypatch):
    nvml._library.cache_clear()
    nvml._handle.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    try:
        assert nvml.read_gpu_state("0000:1b:00.0") == GpuState()
        assert not nvml.read_gpu_state("00" * 16).is_known
        assert nvml.driver_version() is nvml.gpu_count() is nvml.free_memory("0000:1b:00.0") is None
    finally:
        nvml._library.cache_clear()
        nvml._handle.cache_clear()


# What needs CuPy, but no driver.


def test_keys_of_graphs_tell_launches_apart():
    cuda = import_cuda()
    from cupy.cuda import MemoryPointer, UnownedMemory

    def launch(function=1, groups=2, size=3, address=4096, value=5):
        pointer = MemoryPointer(UnownedMemory(address, 64, None, 0), 0)
        args = (pointer, np.uint64(value), np.uint32(6))
        return cuda.Launch(
            cuda.Kernel("entry", SimpleNamespace(ptr=function), b""), groups, size, args
        )

    keys = [
        cuda._key(launch(**changed))
        for changed in (
            {},
            {"function": 2},
            {"groups": 3},
            {"size": 2},
            {"address": 8192},
            {"value": 6},
        )
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == cuda._key(launch())


def test_a_graph_is_captured_once_for_all_legs(monkeypatch):
    """The cache alone: what a capture gives is taken for granted."""
    cuda = import_cuda()
    captured = []

    def capture(launches, stream):
        captured.append(launches)
        return [launch.args[0] for launch in launches]

    monkeypatch.setattr(cuda, "_capture", capture)
    kernel = cuda.Kernel("entry", SimpleNamespace(ptr=1), b"")
    cache = cuda._GraphCache(None)

    def leg(first, count, turns=24):
        ring = [cuda.Launch(kernel, 1, 1, (np.uint64(turn),)) for turn in range(turns)]
        launches = [ring[(first + step) % turns] for step in range(count)]
        played = [arg for graph in cache.get(launches) for arg in graph]
        assert played == [launch.args[0] for launch in launches]

    leg(0, 1136)
    leg(0, 1136)
    assert [len(launches) for launches in captured] == [47 * 24, 8]
    for first in range(24):
        leg(first, 1136)
    assert sum(len(launches) > 24 for launches in captured) == 2
    leg(3, 10)  # shorter than a turn: no ring to see
    monkeypatch.setattr(cuda, "CACHED_NODES", 100)
    leg(0, 99)
    assert cache._nodes <= 100 or len(cache._entries) == 1


def import_cuda():
    pytest.importorskip("cupy")
    pytest.importorskip("cuda.bindings.driver")
    from gemvbench.backend import cuda

    return cuda
