"""Arms as they stood in a commit: as baselines of themselves, resolved once, refused by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from asv_site import git
from conftest import Answer
from scratch import Scratch, make_scratch

from gemvbench import checkout
from gemvbench.errors import UserError
from gemvbench.tokens import tokens

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]
AB = ("ab", "--shape", "512x64", "--quick", "--blocks", "6", "--format", "json")


@pytest.fixture
def repo(gemvbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    return make_scratch(tmp_path, monkeypatch)


def mark(repo: Scratch, text: str, name: str = "opencl/gemv.cl") -> str:
    """A commit with a constant at the head of a kernel, which a script can match."""
    path = repo.path(name)
    path.write_text(f"#define {text}\n{path.read_text()}")
    return repo.commit()


def test_each_arm_is_held_against_itself(gemvbench: Run, repo: Scratch, script: Write) -> None:
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}])
    base = mark(repo, "OTHER 1")
    mark(repo, "SLOW 1")
    record = repo.root.parent / "r.jsonl"
    words = ("--arm", "base", "--arm", "pack2", "--against", "HEAD~1", "--record", record)
    answer = gemvbench(*AB, *words)
    assert answer.code == 0
    results = {result["arm"]: result for result in answer.json["results"]}
    for arm in ("base", "pack2"):
        assert results[arm]["verdict"] == "SLOWER"
        assert results[arm]["baseline"] == f"{arm}@HEAD~1"
        assert results[arm]["ratio"] == pytest.approx(0.9, abs=0.01)
    assert {"aa", "base@HEAD~1", "pack2@HEAD~1"} <= set(results)
    header = json.loads(record.read_text().splitlines()[0])
    assert base in json.dumps(header["choices"])
    shown = gemvbench("report", record)
    assert "pack2 against pack2@HEAD~1: SLOWER" in " ".join(shown.out.split())


def test_an_arm_at_a_revision_stands_beside_todays(
    gemvbench: Run, repo: Scratch, script: Write
) -> None:
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}])
    repo.git("tag", "v0.1")
    mark(repo, "SLOW 1")
    answer = gemvbench(*AB, "--baseline", "pack2@v0.1", "--arm", "pack2")
    results = {result["arm"]: result for result in answer.json["results"]}
    assert results["pack2"]["verdict"] == "SLOWER"


def test_a_sweep_and_a_token_against_a_commit(gemvbench: Run, repo: Scratch, script: Write) -> None:
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}])
    mark(repo, "SLOW 1")
    words = ("--shape", "512x64", "--pack", "1,2", "--quick", "--blocks", "6", "--format", "json")
    answer = gemvbench("sweep", *words, "--against", "HEAD~1")
    assert answer.code == 0
    results = {result["arm"]: result for result in answer.json["results"]}
    assert results["pack2"]["verdict"] == results["pack1"]["verdict"] == "SLOWER"


def test_a_kernel_that_no_longer_compiles_is_failed_by_name(
    gemvbench: Run, repo: Scratch, script: Write
) -> None:
    script(faults=[{"match": {"OLD": "1", "PACK": "2"}, "fault": "compile_error",
                    "stage": "compile"}])  # fmt: skip
    mark(repo, "OLD 1")
    repo.edit("opencl/gemv.cl", "#define OLD 1\n", "")
    repo.commit()
    words = ("--arm", "pack2", "--arm", "pack3", "--against", "HEAD~1")
    answer = gemvbench(*AB, *words)
    assert answer.code == 3
    results = {result["arm"]: result for result in answer.json["results"]}
    assert results["pack2@HEAD~1"]["verdict"] == "FAILED"
    assert results["pack3"]["verdict"] in ("SAME", "UNDECIDED")
    assert results["pack3"]["ratio"] == pytest.approx(1, abs=0.02)


def test_another_interface_is_refused_by_name(gemvbench: Run, repo: Scratch) -> None:
    repo.path("INTERFACE").write_text("99\n")
    repo.commit()
    repo.path("INTERFACE").write_text("1\n")
    answer = gemvbench(*AB, "--arm", "pack2", "--against", "HEAD")
    assert answer.code == 2
    assert "has interface 99, and this is version 1" in answer.err
    assert "Name a later revision" in answer.err


def test_a_revision_without_a_version_counts_by_its_arguments(
    gemvbench: Run, repo: Scratch
) -> None:
    repo.git("rm", "-q", "kernels/INTERFACE")
    repo.commit()
    repo.edit("opencl/gemv.cl", "uint k, uint n,", "uint n, ulong k,")
    repo.commit()
    repo.git("checkout", "-q", "HEAD~2", "--", "kernels")
    same = gemvbench(*AB, "--arm", "pack2", "--against", "HEAD~1")
    assert same.code == 0, same.err
    answer = gemvbench(*AB, "--arm", "pack2", "--against", "HEAD")
    assert answer.code == 2
    assert "gemv_row takes other arguments" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "nowhere"), "'nowhere' is not in this checkout"),
        (("--against", "HEAD", "--baseline", "base"), "leave --baseline out"),
        (("--against", "HEAD", "--arm", "mine=a.cl:b"), "has no kernel in the checkout"),
        (("--against", "HEAD", "--arm", "pack2@HEAD"), "is at HEAD itself"),
    ],
)
def test_what_has_no_past_is_refused(
    gemvbench: Run, repo: Scratch, words: tuple[str, ...], said: str
) -> None:
    answer = gemvbench(*AB, "--arm", "pack2", *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_outside_a_checkout_it_says_so(
    gemvbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = gemvbench(*AB, "--arm", "pack2", "--against", "HEAD")
    assert answer.code == 2
    assert "needs a git checkout" in answer.err


def test_before_the_kernels_and_in_a_shallow_clone(
    repo: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.git("checkout", "-q", "--orphan", "old")
    repo.git("rm", "-rqf", "kernels")
    (repo.root / "README").write_text("before")
    old = repo.commit()
    with pytest.raises(UserError, match="from before the kernels existed"):
        checkout.resolve(old)
    repo.git("checkout", "-qf", "main")
    repo.path("x").write_text("x")
    repo.commit()
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{repo.root}", str(shallow)], check=True
    )
    monkeypatch.chdir(shallow)
    with pytest.raises(UserError, match="shallow: `git fetch --unshallow"):
        checkout.resolve("HEAD~1")


def test_a_kernel_that_is_not_text_is_refused_by_name(gemvbench: Run, repo: Scratch) -> None:
    path = repo.path("opencl/gemv.cl")
    text = path.read_bytes()
    path.write_bytes(b"// caf\xe9\n" + text)
    repo.commit()
    path.write_bytes(text)
    answer = gemvbench(*AB, "--arm", "pack2", "--against", "HEAD")
    assert answer.code == 2
    assert "kernels/opencl/gemv.cl at " in answer.err
    assert "is not text in UTF-8" in answer.err
    assert "Traceback" not in answer.err


def test_a_name_is_resolved_once(repo: Scratch) -> None:
    first = checkout.resolve("HEAD")
    repo.path("x").write_text("x")
    repo.commit()
    assert checkout.resolve("HEAD~1").hash == first.hash
    assert git(repo.root, "rev-parse", "HEAD") != first.hash


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("int a = 1;", "int  a=1 ; // one", True),
        ("int a = 1;", "int a = 2;", False),
        ("a+++b", "a++ +b", True),
        ("a+ ++b", "a++ +b", False),
        ('"a  b"', '"a b"', False),
        ("#define F(x) x", "# define   F(x)  x", True),
        ("#define F(x) x", "#define F (x) x", False),
        ("#define A\n1", "#define A 1", False),
        ("#line 3\nx", "x", True),
        ("x /* y */ z", "x z", True),
        ("1e-3f", "1e -3f", False),
    ],
)
def test_texts_are_compared_as_a_compiler_reads_them(one: str, other: str, same: bool) -> None:
    assert (tokens(one) == tokens(other)) == same
