"""Every command of README.md and docs/*.md is run: in small, on the fake device, in order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Answer
from scratch import make_scratch
from tiny import TINY, use_catalogue

from gemvbench import plan, tune_plan
from gemvbench.commands import attention, report
from gemvbench.folders import records_folder
from gemvbench.report.html import page
from gemvbench.report.html.ratios import forests

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHAPE = ("--shape", "512x1000")

SMALLER = {
    "4096x14336": "512x64",
    "5120x5120": "64x512",
    "4096x4096": "512x64",
    "-k 1024x3072": "-k 64x256",  # a shape of the small model that has the name of a large one
    "--budget 2m": "--budget 9h",  # of the fake's seconds, which nobody waits for
    "--context 128:16384": "--context 16:32",
    "--context 4096": "--context 16",
    "--heads 32": "--heads 4",
    "--kv-heads 8": "--kv-heads 2",
    "--head-dim 128": "--head-dim 32",
    "--pairs 16 --aa 4": "--pairs 9 --aa 2",
    "--pause 5s": "--pause 0.01s",
    "--pack 2,3,4 --items 8,32,128": "--pack 2,3 --items 8,32",
}
"""Sizes and counts that only take time; nothing else of a command is changed."""

ELSEWHERE = {
    "python3 -m venv": (".ci/run", "python3 -m venv .venv && .venv/bin/pip install -e '.[cpu"),
    "pip install": (".ci/run", ".venv/bin/pip install -e '.[cpu"),
    ". .venv/bin/activate": (".ci/run", "python3 -m venv .venv"),
    "pytest -n 2": (".ci/run", ".venv/bin/pytest -n 2"),
    "asv check": (".ci/run", ".venv/bin/asv check -E existing:.venv/bin/python"),
    "asv publish": ("tests/asv_site.py", '"publish"'),
    "python ci/page.py": ("tests/test_page.py", "page.make_local("),
    "ci/nightly": ("tests/test_nightly.py", "nightly.main("),
    "python3 -c": ("tests/test_legs.py", "test_the_example_of_the_documentation_works"),
    "gemvbench legs --a \"sh -c 'gzip": (
        "tests/test_legs.py",
        "test_the_example_of_the_documentation_works",
    ),
}
"""Beginnings of commands that another test or CI itself runs: where, and a text that is there."""

NOT_RUN = {
    "asv run": "builds an environment for each commit from package registries; .ci/run runs one "
    "benchmark in the environment that is there",
    "asv continuous": "the same, for two commits",
    "asv preview": "a web server that runs until it is stopped; test_page.py serves the pages",
}
"""Why a command can be run in no test."""


def commands(path: Path) -> list[str]:
    """Lines of a document's shell blocks and prompts, and whole commands inside sentences."""
    text = path.read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [
        line.removeprefix("$ ")
        for kind, block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if kind == "sh" or line.startswith("$ ")
    ]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    if path.name not in ("reference.md", "results.md"):  # the parser's; what was run on an H200
        lines += [" ".join(c.split()) for c in re.findall(r"`(gemvbench [^`]* -[^`]*)`", rest)]
    return [part for line in lines for part in _parts(line)]


def _parts(line: str) -> Iterator[str]:
    """The commands of a line, without comments and the file that their output goes to."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars="&>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word == "&&":
            parts.append([])
        else:
            parts[-1].append(word)
    for part in filter(None, parts):
        end = part.index(">") if ">" in part else len(part)
        yield " ".join(part[:end]).removeprefix(".venv/bin/")


def known_by(command: str, table: dict[str, Any]) -> str | None:
    return next((start for start in table if command.startswith(start)), None)


class Place:
    """A checkout with a little history, records, and programs for `legs`."""

    def __init__(self, gemvbench: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gemvbench, self._count = gemvbench, 0
        repo = make_scratch(folder, monkeypatch)
        repo.git("tag", "v0.1")
        repo.git("update-ref", "refs/remotes/origin/main", "HEAD")
        for number in range(4):
            kernel = repo.path("opencl/gemv_cpu.cl")
            kernel.write_text(f"#define OLDER {number}\n{kernel.read_text()}")
            repo.commit()
        shutil.copytree(ROOT / "docs" / "examples", repo.root / "docs" / "examples")
        (repo.root / "docs" / "pictures").mkdir()
        use_catalogue(_models(), folder, monkeypatch)
        monkeypatch.setattr(tune_plan, "GRIDS", {"cpu": ({"items": (8, 32)},)})
        monkeypatch.setattr(attention, "ALL_HEADS", attention.ALL_HEADS[:1])
        self._make_records(repo.root)
        for name in ("bench-old", "bench-new", "engine-bench", "engine-bench-new", "sudo"):
            self._make_program(repo.root / name)
        monkeypatch.setenv("PATH", f"{repo.root}{os.pathsep}{os.environ['PATH']}")

    def _make_records(self, root: Path) -> None:
        records_folder().mkdir(parents=True)
        for name in ("RECORD", "friday.jsonl"):
            words = ("--arm", "pack2", "--quick", "--record", root / name)
            assert self._gemvbench("ab", *SHAPE, *words).code == 0
        for name in ("monday", "cuda", "opencl", "cpu"):
            shutil.copy(root / "RECORD", root / f"{name}.jsonl")

    def _make_program(self, path: Path) -> None:
        said = 'eval: 2 ms, 50.0 tokens per second\\n50.0 t/s\\n{"results": [{"tps": 50}]}'
        path.write_text(f"#!/bin/sh\nprintf '{said}\\n'\n")
        path.chmod(0o755)

    def run(self, command: str) -> Answer:
        for large, small in SMALLER.items():
            command = command.replace(large, small)
        words = shlex.split(command)[1:]
        if words[0] in ("ab", "sweep", "decode", "selftest", "gate") and "--record" not in words:
            self._count += 1  # by time and process two of one second would have one name
            words += ["--record", str(records_folder() / f"{self._count}.jsonl")]
        return self._gemvbench(*words, *_smaller(words))


def _models() -> str:
    """The catalogue's names for a model of three small layers."""
    tiny = TINY.partition("[tiny-moe]")[0]
    return "".join(tiny.replace("[tiny]", f'["{name}"]') for name in ("qwen3-0.6b", "qwen3.6-27b"))


def _smaller(words: list[str]) -> tuple[str, ...]:
    """Options that make a command quick where it leaves the size to its defaults."""
    command, more = words[0], list[str]()
    if command in ("ab", "sweep", "verify", "selftest", "gate", "roof") and not (
        {"--shape", "--model", "--op"} & set(words)
    ):
        more += SHAPE if command != "roof" else ()
    if "--op" in words and not {"--heads", "--model", "--all"} & set(words):
        more += ["--heads", "2", "--head-dim", "32"]
    if "--op" in words and "--context" not in words and "--all" not in words:
        more += ["--context", "16"]
    if command in ("ab", "sweep", "decode") and "--quick" not in words:
        more += ["--quick"]
    if command == "gate":
        more += ["--budget", "9h"]
    if command == "simulate":
        more += ["--runs", "20", "--effect-runs", "0", "--jobs", "1"]
    return tuple(more)


@pytest.fixture
def place(
    gemvbench: Run, script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    script(devices=[{"id": "pocl", "cache": 1 << 16}])
    monkeypatch.setattr(plan, "_MB", 1 << 12)  # pools of 1 MB, not of 256
    for module in (page, report):  # all pictures are drawn in test_html.py
        monkeypatch.setattr(module, "picture_groups", lambda summary: {"R": forests(summary)})
    return Place(gemvbench, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_every_command_of_a_document_runs(path: Path, place: Place) -> None:
    before = {command for other in DOCS[: DOCS.index(path)] for command in commands(other)}
    failed = []
    for command in commands(path):
        if command in before or known_by(command, ELSEWHERE | NOT_RUN):
            continue
        assert command.startswith("gemvbench "), f"{path.name}: {command}: run by no test"
        answer = place.run(command)
        if answer.code != 0:
            failed.append(f"{command}: exit {answer.code}: {answer.err or answer.out}")
    assert not failed, "\n".join(failed)


def test_commands_are_found_in_blocks_prompts_and_sentences() -> None:
    found = [command for path in DOCS for command in commands(path)]
    assert len(found) > 60
    for command in (
        "gemvbench tune --device pocl --shape 4096x4096 --budget 2m",
        "gemvbench ab --baseline pack3 --arm pack3+extra5",
        "gemvbench completion bash",
        "asv preview",
    ):
        assert command in found


@pytest.mark.parametrize("start", ELSEWHERE)
def test_what_is_run_elsewhere_is_there_and_documented(start: str) -> None:
    file, text = ELSEWHERE[start]
    assert text in (ROOT / file).read_text()
    assert any(command.startswith(start) for path in DOCS for command in commands(path))


@pytest.mark.parametrize("start", NOT_RUN)
def test_no_reason_is_left_of_a_command_that_is_gone(start: str) -> None:
    assert any(command.startswith(start) for path in DOCS for command in commands(path))
