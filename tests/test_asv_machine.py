"""asv's machine file: GPU and driver are added, and whatever was there stays."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Answer, make_device

from gemvbench.asv_machine import MACHINE_FILE, gpu_values
from gemvbench.device import DeviceInfo

Run = Callable[..., Answer]


def make_gpu(**fields: Any) -> DeviceInfo:
    known = {"name": "NVIDIA H200", "driver": "580.95.05", **fields}
    return msgspec.structs.replace(make_device(id="cuda0", kind="gpu"), **known)


def test_gpus_are_told_once_and_in_a_fixed_order() -> None:
    h200, second = make_gpu(uuid="a"), make_gpu(uuid="b")
    seen_again = make_gpu(id="nvcl0", driver="other", uuid="a")
    other, cpu = make_gpu(name="A100", uuid="c"), make_device(id="pocl")
    told = {"gpu": "NVIDIA H200", "driver": "580.95.05"}
    assert gpu_values([cpu, h200, seen_again, second]) == told
    assert gpu_values([h200, other]) == gpu_values([other, h200])
    assert gpu_values([h200, other])["gpu"] == "A100, NVIDIA H200"
    assert gpu_values([cpu]) == {"gpu": "none", "driver": "none"}


def test_a_new_file_is_one_that_asv_asks_nothing_about(gemvbench: Run, tmp_path: Path) -> None:
    from asv.machine import Machine

    path = tmp_path / "new" / "machine.json"
    answer = gemvbench("devices", "--asv-machine", path, "--format", "json")
    assert answer.code == 0
    assert f"{path}: {platform.node()} has gpu none, driver none" in answer.err
    assert answer.json[0]["id"] == "fake0"
    loaded = Machine.load(_path=str(path)).__dict__
    assert set(loaded) == {name for name, _ in Machine.fields} | {"gpu", "driver"}
    assert all(isinstance(value, str) and value for value in loaded.values())


def test_an_existing_file_is_merged(
    gemvbench: Run, script: Callable[..., Path], tmp_path: Path
) -> None:
    script(devices=[{"id": "cuda0", "kind": "gpu"}])
    path = tmp_path / "machine.json"
    other = {"machine": "other", "cpu": "x", "gpu": "A100"}
    own = {"machine": "my name for it", "cpu": "my words", "rack": "7", "gpu": "none"}
    path.write_text(json.dumps({"other": other, platform.node(): own, "version": 1}))
    assert gemvbench("devices", "--asv-machine", path).code == 0
    found = json.loads(path.read_text())
    assert (found["other"], found["version"]) == (other, 1)
    mine = found[platform.node()]
    assert mine == mine | own | {"gpu": "scripted gpu", "driver": "1"}
    before = path.read_text()
    gemvbench("devices", "--asv-machine", path)
    assert path.read_text() == before
    assert [each.name for each in path.parent.glob("machine.json*")] == [path.name]


def test_the_environment_names_the_file(
    gemvbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert gemvbench("devices").code == 0
    assert not (tmp_path / "home" / ".asv-machine.json").exists()
    assert gemvbench("devices", "--asv-machine").code == 0
    assert (tmp_path / "home" / ".asv-machine.json").exists()
    monkeypatch.setenv(MACHINE_FILE, str(tmp_path / "named.json"))
    assert gemvbench("devices", "--asv-machine").code == 0
    assert (tmp_path / "named.json").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": {"machine"', "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"a": 1, "version": 1}', "cannot be read"),
        ('{"a": {}}', "cannot be read"),
        ('{"a": {}, "version": 0}', "version 0, not 1"),
    ],
)
def test_a_file_that_is_none_is_left_as_it_is(
    gemvbench: Run, tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "machine.json"
    path.write_text(content)
    answer = gemvbench("devices", "--asv-machine", path)
    assert answer.code == 2
    assert words in answer.err
    assert path.read_text() == content
