"""asv's benchmarks: what they ask of the command line, and what they make of its answers."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asv_install
import pytest
from asv_site import ROOT, discovered
from conftest import Answer
from tiny import TINY, use_catalogue

sys.path.insert(0, str(ROOT))

from benchmarks import adapter, attention, decode, gemv, roof

Run = Callable[..., Answer]
SMALL = ("512x64", "256x96")


def replace_run(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]) -> None:
    """Of the adapters alone."""
    fields = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
    monkeypatch.setattr(adapter, "subprocess", SimpleNamespace(run=run, **fields))


@pytest.fixture
def asked(
    gemvbench: Run, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, ...]]:
    """The adapters ask the scripted device inside the test; the commands they asked."""
    commands: list[tuple[str, ...]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        words = command[3:]
        assert command[:3] == [sys.executable, "-m", "gemvbench"]
        commands.append(tuple(words))
        answer = gemvbench(*words)
        return subprocess.CompletedProcess(command, answer.code, answer.out, answer.err)

    replace_run(monkeypatch, run)
    monkeypatch.setattr(adapter, "DEVICES", ("fake0",))
    return commands


def test_a_gemv_is_time_and_ratio_to_frozen_with_samples(
    asked: list[tuple[str, ...]], script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script([{"match": {"PACK": "3"}, "gbps": 0.025}])
    monkeypatch.setitem(gemv._SHAPES, "cpu", SMALL)
    numbers = gemv.setup_cache()
    assert [words[0] for words in asked] == ["devices", "ab"]
    where = ("fake0", "gemv-512x64-f16-f16", "pack3")
    benchmark = gemv.Gemv()
    benchmark.setup(numbers, *where)
    ratios = benchmark.track_ratio(numbers, *where)
    times = benchmark.track_time(numbers, *where)
    assert len(ratios["samples"]) == len(times["samples"]) >= 6
    assert statistics.median(ratios["samples"]) == pytest.approx(0.02 / 0.025, rel=0.01)
    bytes_read = 2 * 512 * 64 + 2 * 512 + 4 * 64
    assert statistics.median(times["samples"]) == pytest.approx(bytes_read / 0.025e9, rel=0.02)
    frozen = benchmark.track_time(numbers, *where[:2], "frozen")["samples"]
    assert statistics.median(frozen) == pytest.approx(bytes_read / 0.02e9, rel=0.02)


def test_a_result_without_blocks_is_one_sample() -> None:
    """As older commits answer."""
    old = {"ratio": 0.8, "seconds_per_call": 0.5}
    assert adapter.ratio(old) == {"samples": [1.25], "number": 1}
    assert adapter.seconds(old) == {"samples": [0.5], "number": 1}


def test_what_is_not_here_is_not_there_and_what_fails_fails(
    asked: list[tuple[str, ...]], script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [{"match": {"PACK": "3", "BLOCK": "256"}, "fault": "wrong_last_row"}]
    script([], faults=faults)
    monkeypatch.setitem(gemv._SHAPES, "cpu", SMALL)
    numbers, benchmark = gemv.setup_cache(), gemv.Gemv()
    case = "gemv-512x64-f16-f16"
    benchmark.setup(numbers, "fake0", case, "auto")
    with pytest.raises(RuntimeError, match=r"pack3 is WRONG: .*row"):
        benchmark.setup(numbers, "fake0", case, "pack3")
    for where in (("cuda0", case, "auto"), ("fake0", "gemv-5120x17408-f16-f16", "auto")):
        with pytest.raises(NotImplementedError):
            benchmark.setup(numbers, *where)


def test_a_command_that_an_old_commit_does_not_know_is_not_there(
    asked: list[tuple[str, ...]],
) -> None:
    numbers = adapter.measure({"cpu": ["history", "--arm", "auto"]})
    with pytest.raises(adapter.NotHereError, match="invalid choice: 'history'"):
        adapter.pick(numbers, "fake0", "any", "auto")


def test_a_command_that_breaks_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('it broke')"]
    real = subprocess.run
    replace_run(monkeypatch, lambda command, **how: real(broken, **how))
    with pytest.raises(RuntimeError, match="it broke"):
        adapter.kinds()  # a package that does not start is no machine without devices
    monkeypatch.setattr(adapter, "kinds", lambda: {"pocl": "cpu"})
    numbers = adapter.measure({"cpu": ["ab"]})
    with pytest.raises(RuntimeError, match="it broke"):
        adapter.pick(numbers, "pocl", "any", "auto")


def test_attention_has_every_context(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention._HEADS, "cpu", (4, 2, 32))
    monkeypatch.setitem(attention._CONTEXTS, "cpu", (32, 64))
    numbers, benchmark = attention.setup_cache(), attention.Attention()
    for case in attention._cases("cpu"):
        for arm in attention._ARMS:
            assert math.isfinite(benchmark.track_ratio(numbers, "fake0", case, arm)["samples"][0])


def test_decode_is_time_per_token(
    asked: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_catalogue(TINY, tmp_path, monkeypatch)
    monkeypatch.setitem(decode._MODELS, "cpu", "tiny")
    numbers = decode.setup_cache()
    times = decode.Decode().track_time(numbers, "fake0", "token-tiny-f16-f16", "auto")
    assert len(times["samples"]) >= 6


def test_the_roof_is_a_time_to_read(asked: list[tuple[str, ...]]) -> None:
    benchmark = roof.Roof()
    found = roof.setup_cache()
    benchmark.setup(found, "fake0")
    samples = benchmark.track_read(found, "fake0")["samples"]
    assert samples == pytest.approx([1 / 0.04] * 3, rel=0.02)
    with pytest.raises(NotImplementedError):
        benchmark.setup(found, "pocl")


def test_devices_can_be_left_out(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adapter.kinds() == {"fake0": "cpu"}
    monkeypatch.setenv(adapter.NARROWED, "pocl")
    assert adapter.kinds() == {}


def test_a_machine_without_devices_has_none(
    asked: list[tuple[str, ...]], script: Callable[..., Path]
) -> None:
    script(devices=[])
    assert adapter.kinds() == {}
    assert asked == [("devices", "--format", "json")]


def test_every_benchmark_has_a_version_and_parameters_by_name() -> None:
    found = {benchmark["name"]: benchmark for benchmark in discovered("")}
    modules = ("gemv.Gemv", "attention.Attention")
    paired = [f"{module}.track_{what}" for module in modules for what in ("time", "ratio")]
    for name in (*paired, "decode.Decode.track_time"):
        assert found[name]["param_names"] == ["device", "case", "arm"]
    assert {"roof.Roof.track_read", "harness.Harness.time_statistics"} <= set(found)
    for name, benchmark in found.items():
        assert len(benchmark["version"]) < 10, f"{name} has no version of its own"
        assert benchmark["unit"] != "unit"


def test_extras_of_asvs_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(asv_install.EXTRAS, raising=False)
    assert asv_install.choose_extras(tmp_path / "none") == "cpu"
    assert asv_install.choose_extras(tmp_path) == "cpu,cuda"
    monkeypatch.setenv(asv_install.EXTRAS, "cpu,intel")
    assert asv_install.choose_extras(tmp_path) == "cpu,intel"
    commands = json.loads((ROOT / "asv.conf.json").read_text())["install_command"]
    assert "ci/asv_install.py {wheel_file}" in commands[0]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_parameters_are_the_cases_and_arms_that_are_asked_for(
    kind: str, gemvbench: Run, script: Callable[..., Path]
) -> None:
    """On both kinds of device, without measuring: a name that is off by a letter would be n/a."""
    script(devices=[{"kind": kind, "memory": 150 << 30}])
    for module, cls in (
        (gemv, gemv.Gemv),
        (attention, attention.Attention),
        (decode, decode.Decode),
    ):
        plan = gemvbench(*module._words(kind), "--dry-run", "--format", "json").json
        found = {(row["case"], row["arm"]) for row in plan}
        asked = {case for case, _ in found if "/" not in case}
        assert asked <= set(cls.params[1])
        assert {(case, arm) for case in asked for arm in cls.params[2]} <= found
