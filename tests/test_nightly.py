"""Nights on a scratch repository: what is judged, measured, kept, and what stops them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import night_steps
import nightly
import pytest
from asv_site import ROOT, git, make_repository, write_results
from night_state import NightError, State, load_state, lock

STEPS = ["machine", "gate", "history", "publish", "page"]


class Nights:
    """Nights in one repository whose commands are noted and answer what the test says."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.state_folder = root / ".asv" / "nightly"
        self.codes: dict[str, int | BaseException] = {}
        self.commands: dict[str, list[str]] = {}
        self.out = ""

    def start(self, command: list[str], root: Path, out: int, lock: int) -> int:
        """In the place of a real command."""
        assert root == self.root
        words = ("page", "publish", "run", "gate", "devices")
        (word,) = [word for word in words if word in command or command[-1].endswith(f"{word}.py")]
        name = {"run": "history", "devices": "machine"}.get(word, word)
        self.commands[name] = command
        os.write(out, f"{name} speaks\n".encode())
        code = self.codes.get(name, 0)
        if name == "gate":
            Path(command[command.index("--record") + 1]).touch()
        if isinstance(code, BaseException):
            raise code
        return code

    def __call__(self, *words: str, **codes: int | BaseException) -> int:
        self.codes, self.commands = codes, {}
        try:
            return nightly.main(list(words), self.root)
        finally:
            self.out = self._capsys.readouterr().out

    @property
    def state(self) -> State:
        return load_state(self.state_folder)

    @property
    def head(self) -> str:
        return git(self.root, "rev-parse", "HEAD")

    def commit(self) -> str:
        git(self.root, "commit", "-q", "--allow-empty", "-m", "more")
        return self.head

    def word(self, step: str, option: str) -> str:
        return self.commands[step][self.commands[step].index(option) + 1]


@pytest.fixture
def nights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Nights:
    root = tmp_path / "repo"
    make_repository(root, 2)
    made = Nights(root, capsys)
    monkeypatch.setattr(night_steps, "_start", made.start)
    return made


def test_a_first_night_has_history_only_and_says_so(nights: Nights) -> None:
    assert nights() == 0
    assert list(nights.commands) == ["machine", "history", "publish", "page"]
    assert nights.commands["history"][-1] == "HEAD^!"
    assert "no good commit is known (a first night), so there is history only" in nights.out
    assert nights.state.last_good == nights.state.last_history == nights.head
    last = nights.out.splitlines()[-1]
    assert last.startswith(f"nightly: {nights.head[:8]}: gate not needed, history clean")
    assert last.endswith("; exit 0")
    (folder,) = (nights.state_folder / "nights").iterdir()
    assert "history speaks" in (folder / "history.log").read_text()


def test_a_later_night_judges_what_is_new_against_the_last_good(nights: Nights) -> None:
    nights()
    old, new = nights.head, nights.commit()
    assert nights("--device", "pocl", "--budget", "3m") == 0
    assert list(nights.commands) == STEPS
    assert nights.word("gate", "--base") == old
    assert (nights.word("gate", "--device"), nights.word("gate", "--budget")) == ("pocl", "3m")
    assert nights.word("gate", "--asv") == str(nights.root / ".asv" / "results")
    assert nights.commands["history"][-1] == f"{old}..HEAD"
    assert nights.state.last_good == new
    assert f"{new[:8]} against {old[:8]}: gate clean" in nights.out


def test_a_regression_keeps_its_base_until_it_is_gone_or_accepted(nights: Nights) -> None:
    nights()
    good, bad = nights.head, nights.commit()
    assert nights(gate=1) == 1
    assert "gate REGRESSION" in nights.out
    assert (nights.state.last_good, nights.state.last_history) == (good, bad)
    assert list(nights.commands) == STEPS  # published all the same
    assert nights(gate=1) == 1
    assert nights.word("gate", "--base") == good
    assert "history" not in nights.commands
    assert nights("--accept") == 0
    assert nights.commands == {}
    assert nights() == 0
    assert f"nothing is new since the last good commit, {bad[:8]}" in nights.out


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"gate": 3}, 3),
        ({"gate": 4}, 4),
        ({"gate": 2}, 4),
        ({"gate": -9}, 4),
        ({"history": 2}, 3),
        ({"history": 1}, 4),
        ({"publish": 1}, 4),
        ({"gate": 1, "history": 1, "publish": 1}, 1),
    ],
)
def test_exit_codes(nights: Nights, codes: dict[str, int], expected: int) -> None:
    nights()
    good = nights.head
    nights.commit()
    assert nights(**codes) == expected
    assert nights.out.splitlines()[-1].endswith(f"; exit {expected}")
    assert (nights.state.last_good == good) == ("gate" in codes)
    assert (nights.state.last_history == good) == (codes.get("history") == 1)


def test_a_failed_history_is_measured_the_next_night(nights: Nights) -> None:
    nights()
    old = nights.head
    nights.commit()
    nights(history=1)
    assert "    history speaks" in nights.out  # the log's end is in the night's own
    nights.commit()
    nights()
    assert nights.commands["history"][-1] == f"{old}..HEAD"


def test_a_killed_night_goes_on_where_it_was(nights: Nights) -> None:
    nights()
    nights.commit()
    with pytest.raises(SystemExit):
        nights(gate=SystemExit(143))
    folder = nights.state.night.folder if nights.state.night else ""
    with pytest.raises(SystemExit):
        nights(history=SystemExit(143))
    assert f"{folder} was cut short; going on after machine" in nights.out
    assert list(nights.commands) == ["gate", "history"]
    assert nights.word("gate", "--record").endswith("gate1.jsonl")  # beside the one begun before
    assert nights() == 0
    assert list(nights.commands) == ["history", "publish", "page"]
    assert nights.state.last_good == nights.head
    assert f"records in {folder}" in nights.out


def test_a_killed_night_of_another_commit_is_left_as_it_is(nights: Nights) -> None:
    nights()
    old = nights.head
    nights.commit()
    with pytest.raises(SystemExit):
        nights(history=SystemExit(143))
    nights.commit()
    assert nights() == 0
    assert "was cut short and is left as it is" in nights.out
    assert list(nights.commands) == STEPS
    assert nights.word("gate", "--base") == old


def test_a_dirty_tree_is_judged_and_marked_and_is_no_base(nights: Nights) -> None:
    nights()
    (nights.root / "asv.conf.json").write_text((ROOT / "asv.conf.json").read_text() + "\n")
    assert nights() == 0
    assert "gate" in nights.commands
    assert f"{nights.head[:8]} (dirty) against" in nights.out
    git(nights.root, "checkout", "-q", ".")
    assert nights.state.last_good == nights.head
    nights.commit()
    (nights.root / "asv.conf.json").write_text((ROOT / "asv.conf.json").read_text() + "\n")
    nights()
    assert nights.state.last_good != nights.head


def test_only_the_gate_keeps_no_state(nights: Nights) -> None:
    nights()
    before = nights.state
    old = nights.head
    nights.commit()
    assert nights("--gate-only", "--base", old, gate=1) == 1
    assert list(nights.commands) == ["gate"]
    assert nights.state == before
    with pytest.raises(SystemExit, match="2"):
        nights("--gate-only")


def test_a_shallow_clone_is_refused(nights: Nights, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{nights.root}", "shallow")
    nights.root = tmp_path / "shallow"
    assert nights() == 4
    assert "This clone is shallow" in nights.out
    assert "--unshallow" in nights.out
    assert nights.commands == {}


def test_a_base_that_is_gone_is_named(nights: Nights) -> None:
    assert nights("--base", "c0ffee00") == 4
    assert "Commit c0ffee00 is not in this clone" in nights.out
    assert nights.commands == {}


def test_a_damaged_state_is_left_as_it_is(nights: Nights) -> None:
    nights()
    path = nights.state_folder / "state.json"
    path.write_text('{"schema": 1, "last_go')
    assert nights() == 4
    assert "state.json cannot be read" in nights.out
    assert path.read_text() == '{"schema": 1, "last_go'


def some_results(nights: Nights) -> tuple[Path, Path]:
    """A folder of results of two commits, and one of its files."""
    hashes = git(nights.root, "rev-list", "HEAD").splitlines()
    folder = write_results(nights.root, hashes, "Roof", lambda name, number, row: 1.0)
    return folder, next((folder / "scratch").glob(f"{hashes[0][:8]}*"))


@pytest.mark.parametrize("damage", ['{"commit_hash": "12', "[]", '{"version": 2, "results": 1}'])
def test_a_damaged_result_is_moved_aside(nights: Nights, damage: str) -> None:
    folder, path = some_results(nights)
    kept = sorted(each for each in folder.rglob("*.json") if each != path)
    path.write_text(damage)
    assert nights() == 0
    assert f"{path} is damaged; it was moved to" in nights.out
    (moved,) = (nights.state_folder / "aside").rglob("*.json")
    assert (moved.name, moved.read_text()) == (path.name, damage)
    assert sorted(folder.rglob("*.json")) == kept


@pytest.mark.parametrize(("version", "advice"), [(1, "`asv update`"), (3, "newer ones")])
def test_results_of_another_version_stop_the_night(
    nights: Nights, version: int, advice: str
) -> None:
    folder, path = some_results(nights)
    data: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"version": version}))
    before = {each: each.read_bytes() for each in folder.rglob("*.json")}
    assert nights() == 4
    assert f"is of version {version}, and the installed asv reads version 2" in nights.out
    assert advice in nights.out
    assert nights.commands == {}
    assert {each: each.read_bytes() for each in folder.rglob("*.json")} == before


def test_a_second_night_is_refused_by_name(nights: Nights) -> None:
    with lock(nights.state_folder):
        assert nights() == 4
    assert f"Another night is at work (process {os.getpid()} since" in nights.out
    assert nights.commands == {}
    assert nights() == 0


def in_a_process(folder: Path, step: str) -> subprocess.Popen[bytes]:
    """A process that holds the lock and runs a step; returns once the step has begun."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import night_state, night_steps, pathlib\n"
        "with night_state.lock(pathlib.Path(sys.argv[2])) as held:\n"
        "    night_steps._start([sys.executable, '-c', sys.argv[3]], pathlib.Path(), 2, held)"
    )
    words = [sys.executable, "-c", script, str(ROOT / "ci"), str(folder), step]
    process = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)})
    wait_for(lambda: (folder / "begun").exists())
    return process


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def ends(process: int) -> bool:
    """Whether a process that is no child of ours is gone, or only waits to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_night_starts_beside_what_a_killed_one_left(how: signal.Signals, tmp_path: Path) -> None:
    step = (
        "import os, pathlib, time\n"
        f"part = pathlib.Path({str(tmp_path / 'part')!r}); part.write_text(str(os.getpid()))\n"
        f"part.rename({str(tmp_path / 'begun')!r}); time.sleep(60)"
    )
    process = in_a_process(tmp_path, step)
    child = int((tmp_path / "begun").read_text())
    process.send_signal(how)
    process.wait(30)
    if how == signal.SIGKILL:  # its step lives on, and so does the lock
        with pytest.raises(NightError, match=f"process {process.pid} since"), lock(tmp_path):
            pass
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: ends(child))
    with lock(tmp_path):
        pass
