"""Helpers of all tests: devices as values, and the whole command line on the scripted fake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from gemvbench import cli, process, run, worker
from gemvbench.backend.script import FAKE_SCRIPT, ScriptedDevice
from gemvbench.commands import roof, selection, selftest
from gemvbench.device import DeviceInfo
from gemvbench.folders import HOME
from gemvbench.messages import Message, Request

os.environ["COLUMNS"] = "120"  # the width of a pipe, which pytest's workers set to another
ROOT = Path(__file__).resolve().parents[1]
SHAPE = "512x64"
SPEED: dict[str, Any] = {"gbps": 0.02, "noise": 0.002, "offset": 0.001}
"""Slow, so that a leg of 50 ms is a few calls."""
READ: dict[str, Any] = {"match": {"entry": "read_chunked"}, "gbps": 0.04}


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def results(self) -> dict[str, Any]:
        """Results of a one-case `--format json` by arm."""
        return {result["arm"]: result for result in self.json["results"]}


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, on whatever devices are here."""
    return subprocess.run(
        [sys.executable, "-m", "gemvbench", *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | environment,
    )


def make_device(**fields: Any) -> DeviceInfo:
    return ScriptedDevice(**fields).info()


def write_script(folder: Path, rules: list[dict[str, Any]] | None = None, **fields: Any) -> Path:
    """A script whose rules come before the usual speed."""
    path = folder / "script.json"
    path.write_text(json.dumps(fields | {"rules": [*(rules or []), READ, SPEED]}))
    return path


def start(folder: Path, script: Path, *words: object, **env: str) -> subprocess.Popen[str]:
    """The command line as a process of its own, in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "gemvbench", *map(str, words)],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), HOME: str(folder / "home"), FAKE_SCRIPT: str(script)}
        | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts() -> None:
    """A shell's background jobs ignore SIGINT, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str]) -> Answer:
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its workers
        raise
    assert "Traceback" not in err, err
    return Answer(process.returncode, out, err)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records go to the test's folder, and no script or limit is inherited."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    monkeypatch.delenv(FAKE_SCRIPT, raising=False)
    monkeypatch.delenv(process.LIMIT_SCALE, raising=False)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make a script the only back end."""

    def write(rules: list[dict[str, Any]] | None = None, **fields: Any) -> Path:
        path = write_script(tmp_path, rules, **fields)
        monkeypatch.setenv(FAKE_SCRIPT, str(path))
        return path

    return write


@pytest.fixture
def gemvbench(
    script: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Answer]:
    """Run a command in a folder of its own; its workers are real processes."""
    script()
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*words: object) -> Answer:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers answer inside the test, which takes a tenth of the time; messages still travel."""
    encoder = msgspec.json.Encoder()

    def converse(request: Request) -> Iterator[Message]:
        sent: Request = msgspec.json.decode(encoder.encode(request), type=Request)
        for message in worker.answer(sent):
            yield msgspec.json.decode(encoder.encode(message), type=Message)

    for module in (run, selection, roof, selftest):
        monkeypatch.setattr(module, "converse", converse)
