"""Kernel text: includes inlined, lines kept, constants first, from files and commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.backend.fake import read_constants
from gemvbench.case import Gemv
from gemvbench.dispatch import specialize
from gemvbench.errors import UserError
from gemvbench.outcome import Specialization
from gemvbench.source import KERNELS, assemble, kernel_text

FILES = {
    "a/main.cl": 'first\n#include "one.h"\nafter one\n  #  include "two.h"\nlast\n',
    "a/one.h": '#include "two.h"\none\n',
    "a/two.h": "two\n",
}


def specialization(arm: str) -> Specialization:
    outcome = specialize(parse_arm(arm), Gemv(k=512, n=8), make_device())
    assert isinstance(outcome, Specialization)
    return outcome


def located(text: str) -> dict[str, tuple[str, int]]:
    """Where a compiler would say each line of text is, by the #line directives."""
    name, number, places = "", 0, {}
    for line in text.splitlines():
        if line.startswith("#line"):
            _, count, quoted = line.split()
            name, number = quoted.strip('"'), int(count)
        else:
            places.setdefault(line, (name, number))
            number += 1
    return places


def test_includes_are_inlined_once_with_their_places() -> None:
    text = assemble("a/main.cl", (), FILES.__getitem__)
    assert "#include" not in text
    assert text.count("\ntwo\n") == 1
    places = located(text)
    assert places["first"] == ("a/main.cl", 1)
    assert places["after one"] == ("a/main.cl", 3)
    assert places["last"] == ("a/main.cl", 5)
    assert places["one"] == ("a/one.h", 2)
    assert places["two"] == ("a/two.h", 1)


def test_an_include_of_itself_ends() -> None:
    assert assemble("a.h", (), {"a.h": '#include "a.h"\nx\n'}.__getitem__).count("x\n") == 1


def test_constants_come_first() -> None:
    text = assemble("a/two.h", (("PACK", 2), ("HALF", "HALF_BITS")), FILES.__getitem__)
    assert text.startswith('#define PACK 2\n#define HALF HALF_BITS\n#line 1 "a/two.h"\n')
    assert read_constants(text) == {"PACK": "2", "HALF": "HALF_BITS"}


@pytest.mark.parametrize("arm", ["pack3", "cpu", "frozen", "auto"])
def test_packaged_kernels_are_whole(arm: str) -> None:
    spec = specialization(arm)
    text = kernel_text(spec)
    assert '#include "' not in text
    assert read_constants(text) == {name: str(value) for name, value in spec.constants}
    assert f"{spec.entry}(" in text
    whole = (KERNELS / spec.file).read_text().splitlines()
    places = located(text)
    for number, line in enumerate(whole, 1):
        if line.startswith("__kernel"):
            assert places[line] == (spec.file, number)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose kernel changed after the tag v1."""
    folder = tmp_path / "clone"
    kernels = folder / "kernels" / "opencl"
    kernels.mkdir(parents=True)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", str(folder), *identity, *words], check=True)

    git("init", "-q")
    for tag in ("v1", "v2"):
        (kernels / "gemv.cl").write_text(f'#include "types.h"\ngemv_row( in {tag}\n')
        (kernels / "types.h").write_text(f"types of {tag}\n")
        git("add", "-A")
        git("commit", "-qm", tag)
        git("tag", tag)
    (kernels / "gemv.cl").write_text("not committed\n")
    monkeypatch.chdir(folder / "kernels")
    return folder


def test_a_revision_is_read_from_git(clone: Path) -> None:
    old, new = (kernel_text(specialization(f"pack2@{tag}")) for tag in ("v1", "v2"))
    assert "gemv_row( in v1" in old
    assert "types of v1" in old
    assert "v2" not in old
    assert "types of v2" in new
    assert read_constants(old)["PACK"] == "2"
    assert "in v1" in kernel_text(specialization("pack2@HEAD~1"))


@pytest.mark.parametrize("arm", ["pack2@v9", "frozen@v1", "pack2@--help"])
def test_what_a_revision_lacks_is_said(clone: Path, arm: str) -> None:
    with pytest.raises(
        UserError, match=r"Revision .* has no kernels/opencl/.*Name a tag or commit"
    ):
        kernel_text(specialization(arm))


def test_no_git_is_said(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(clone))
    with pytest.raises(UserError, match="needs git"):
        kernel_text(specialization("pack2@v1"))


def test_a_users_file_with_its_neighbours_and_our_headers(tmp_path: Path) -> None:
    path = tmp_path / "mine.cl"
    path.write_text('#include "near.h"\n#include "types.h"\nvoid mine() {}\n')
    (tmp_path / "near.h").write_text("near\n")
    spec = specialization(f"m={path}:mine+pack2")
    text = kernel_text(spec)
    assert located(text)["near"] == ("near.h", 1)
    assert located(text)["void mine() {}"] == ("mine.cl", 3)
    assert "HALF_BITS 1" in text
    assert read_constants(text)["PACK"] == "2"


@pytest.mark.parametrize("text", [None, '#include "absent.h"\n'])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "mine.cl"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=r"Kernel file .* cannot be read: No such file"):
        kernel_text(specialization(f"m={path}:mine"))
