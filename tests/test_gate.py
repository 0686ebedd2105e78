"""The gate on the scripted device: what it judges, leaves out, says, and how it ends."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Answer, make_device
from scratch import Scratch, make_scratch
from test_tuning import row

from gemvbench.arm import parse_arm
from gemvbench.case import Gemv
from gemvbench.checkout import resolve
from gemvbench.gate import conclude
from gemvbench.gate_plan import Entry, plan_gate
from gemvbench.reading import read_record
from gemvbench.results import summarise
from gemvbench.stats import family_level, t_quantile
from gemvbench.tuning import Tuned, Tuning

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]
CASE = "gemv-512x64-f16-f16"
SMALL = ("--shape", "512x64")


@pytest.fixture
def repo(gemvbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    return make_scratch(tmp_path, monkeypatch)


def touch(repo: Scratch, name: str = "opencl/gemv_cpu.cl", mark: str = "SLOW 1") -> str:
    """A commit whose kernel has another text; `mark` is a constant that a script can match."""
    path = repo.path(name)
    path.write_text(f"#define {mark}\n{path.read_text()}")
    return repo.commit()


def gate(gemvbench: Run, *words: object, form: str = "json") -> Answer:
    """With a budget that the fake's seconds, which nobody waits for, cannot use up."""
    return gemvbench("gate", "--base", "HEAD~1", "--budget", "9h", "--format", form, *words)


def test_a_slower_kernel_fails_the_build_by_name(
    gemvbench: Run, repo: Scratch, script: Write
) -> None:
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}])
    base, head = repo.git("rev-parse", "HEAD"), touch(repo)
    answer = gate(gemvbench, *SMALL, "--arm", "auto", "--arm", "pack2")
    assert answer.code == 1
    found = answer.json
    assert (found["schema"], found["base"], found["head"]) == (1, base, head)
    assert (found["dirty"], found["device"], found["family"]) == (False, "fake0", 1)
    assert found["conclusion"] == "regression"
    assert found["regressions"] == [f"{CASE} auto"]
    (result,) = found["results"]
    assert (result["case"], result["arm"], result["verdict"]) == (CASE, "auto", "SLOWER")
    assert result["baseline"] == "auto@HEAD~1"
    assert result["ratio"] == pytest.approx(0.9, abs=0.01)
    assert result["verified"] is True
    assert found["left_out"] == [
        {
            "case": CASE,
            "arm": "pack2",
            "device": "fake0",
            "reason": f"unchanged: the same code as at {base[:8]}",
        }
    ]


def test_the_markdown_names_the_case_and_what_was_left_out(
    gemvbench: Run, repo: Scratch, script: Write, tmp_path: Path
) -> None:
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}])
    head = touch(repo)
    path = tmp_path / "gate.jsonl"
    words = (*SMALL, "--arm", "auto", "--arm", "pack2", "--record", path)
    answer = gate(gemvbench, *words, form="md")
    assert answer.out.startswith(f"**Gate: regression.** {head[:8]} against HEAD~1 (")
    assert f"): auto on {CASE} takes " in answer.out
    assert "| case | arm | verdict | ratio |" in answer.out
    assert "### Left out" in answer.out
    assert "| pack2 | unchanged: the same code as at " in answer.out
    assert "gemvbench gate --base 'HEAD~1'" in answer.out
    assert gemvbench("report", path, "--format", "md").out == answer.out
    table = gemvbench("report", path).out
    assert "Left out" in table
    rows = list(csv.DictReader(io.StringIO(gemvbench("report", path, "--format", "csv").out)))
    assert [row["verdict"] for row in rows] == ["SLOWER", "LEFT OUT"]


@pytest.mark.parametrize("speed", [0.022, 0.0199])
def test_faster_and_a_little_slower_pass(
    gemvbench: Run, repo: Scratch, script: Write, speed: float
) -> None:
    """0.5 % slower holds, and is less than --min-effect."""
    script([{"match": {"SLOW": "1"}, "gbps": speed}, {"noise": 0.0, "offset": 0.0}])
    touch(repo)
    answer = gate(gemvbench, *SMALL)
    assert (answer.code, answer.json["conclusion"]) == (0, "clean")
    (result,) = answer.json["results"]
    assert result["verdict"] == ("FASTER" if speed > 0.02 else "SLOWER")
    assert gate(gemvbench, *SMALL, "--min-effect", "0.2%").code == (speed < 0.02)


def test_what_did_not_change_is_not_measured(gemvbench: Run, repo: Scratch) -> None:
    """Comments and white space are no change, in a header neither."""
    for name in ("opencl/gemv_cpu.cl", "opencl/types.h"):
        text = repo.path(name).read_text()
        words = text.replace("    ", "\t").replace(" {\n", "\n{\n").replace(";\n", " ;\n\n")
        repo.path(name).write_text(f"/* by\n another hand */\n{words}\n// more\n")
    repo.commit()
    answer = gate(gemvbench)
    assert (answer.code, answer.json["conclusion"]) == (0, "unchanged")
    assert answer.json["results"] == []
    left_out = answer.json["left_out"]
    assert len(left_out) == 6
    assert all(each["reason"].startswith("unchanged: ") for each in left_out)
    text = gate(gemvbench, form="table").out
    assert "no kernel to compare, all of 6 are left out" in " ".join(text.split())
    markdown = gate(gemvbench, form="md").out
    assert "Gate: unchanged" in markdown
    assert "How sure" not in markdown  # nothing was measured
    assert "### gate against" not in markdown


def test_a_header_changes_all_that_include_it(gemvbench: Run, repo: Scratch) -> None:
    touch(repo, "opencl/types.h")
    plan = gate(gemvbench, "-k", "512x64|attention", *SMALL, "--arm", "auto", "--arm", "frozen")
    assert [result["arm"] for result in plan.json["results"]] == ["auto"]
    (frozen,) = plan.json["left_out"]
    assert (frozen["arm"], frozen["reason"][:9]) == ("frozen", "unchanged")


def test_attention_arms_are_judged_when_their_kernels_change(gemvbench: Run, repo: Scratch) -> None:
    touch(repo, "opencl/attention_cpu.h")
    answer = gate(gemvbench, "--quick", "--blocks", "6")
    assert {result["case"] for result in answer.json["results"]} == {
        "attention-8x4x64-f16-tkd-n1024"
    }
    assert {each["case"].partition("-")[0] for each in answer.json["left_out"]} == {"gemv"}


def test_a_gpu_is_judged_by_its_pack_levels(gemvbench: Run, repo: Scratch, script: Write) -> None:
    script([], devices=[{"id": "fake0", "kind": "gpu"}])
    touch(repo, "opencl/gemv.cl")
    answer = gate(gemvbench, "-k", "4096x4096-f16", "--arm", "auto", "--arm", "pack0", "--dry-run")
    assert answer.code == 2  # no such option
    from gemvbench.gate_plan import GPU

    (arms,) = [entry.arms for entry in GPU if entry.case.id == "gemv-5120x17408-f16-f16"]
    assert [arm.label for arm in arms] == ["auto", "pack0", "base", "pack2", "pack3"]


def test_all_comparisons_hold_together(gemvbench: Run, repo: Scratch, tmp_path: Path) -> None:
    """The level is divided by all pairs of all cases, not by those of a case."""
    touch(repo)
    path = tmp_path / "gate.jsonl"
    arms = [word for pack in range(4) for word in ("--arm", f"cpu+pack{pack}")]
    words = (*SMALL, "--shape", "512x128", *arms, "--blocks", "6", "--record", path)
    answer = gate(gemvbench, *words).json
    assert (answer["family"], len(answer["results"])) == (8, 8)

    run = read_record(path)
    settings = run.header.settings
    widths = [_log_width(result["ci"]) for result in answer["results"]]
    alone = msgspec.structs.replace(
        run,
        header=msgspec.structs.replace(
            run.header, settings=msgspec.structs.replace(settings, family=1)
        ),
    )
    widths_alone = [_log_width(result.ci) for result in conclude(summarise(alone)).results]
    of_one, of_all = (
        t_quantile((1 + family_level(0.99, pairs, len(settings.looks))) / 2, 5) for pairs in (1, 8)
    )
    wider = [width / narrow for width, narrow in zip(widths, widths_alone, strict=True)]
    assert wider == pytest.approx([of_all / of_one] * 8)


def _log_width(interval: Any) -> float:
    low, high = interval
    return math.log(high / low)


@pytest.mark.parametrize("night", range(20))
def test_no_night_without_a_change_raises_an_alarm(
    gemvbench: Run, repo: Scratch, script: Write, night: int
) -> None:
    script([{"noise": 0.01, "offset": 0.004}], seed=night)
    touch(repo, mark="OTHER 1")
    answer = gate(
        gemvbench, *SMALL, "--quick", "--blocks", "8", "--arm", "auto", "--arm", "cpu+pack2"
    )
    assert answer.code == 0, answer.out
    assert answer.json["regressions"] == []
    assert len(answer.json["results"]) == 2


def test_undecided_is_said_and_fails_only_if_asked(
    gemvbench: Run, repo: Scratch, script: Write
) -> None:
    script([{"noise": 0.2}])
    touch(repo)
    words = (*SMALL, "--quick", "--blocks", "6")
    answer = gate(gemvbench, *words, form="table")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert "no regression, 0 of 1 comparisons decided." in text
    assert f"auto on {CASE} UNDECIDED" in text
    failing = gate(gemvbench, *words, "--fail-on-undecided")
    assert (failing.code, failing.json["conclusion"]) == (1, "undecided")


@pytest.mark.parametrize(
    ("fault", "stage", "verdict"),
    [("compile_error", "compile", "FAILED"), ("wrong_last_row", "launch", "WRONG")],
)
def test_a_kernel_of_today_that_is_wrong_is_named(
    gemvbench: Run, repo: Scratch, script: Write, fault: str, stage: str, verdict: str
) -> None:
    script(faults=[{"match": {"SLOW": "1", "PACK": "3"}, "fault": fault, "stage": stage}])
    touch(repo)
    answer = gate(gemvbench, *SMALL, "--arm", "auto", "--arm", "cpu+pack2", "--quick")
    assert (answer.code, answer.json["conclusion"]) == (3, "wrong")
    verdicts = {result["arm"]: result["verdict"] for result in answer.json["results"]}
    assert verdicts["auto"] == verdict
    assert verdicts["cpu+pack2"] in ("SAME", "UNDECIDED")
    text = gate(gemvbench, *SMALL, "--quick", form="md").out
    assert f"auto on {CASE} {verdict}" in text


def test_a_base_that_no_longer_compiles_takes_only_its_own_arm_along(
    gemvbench: Run, repo: Scratch, script: Write
) -> None:
    """Also where that arm is the one that has the twin."""
    script(
        faults=[{"match": {"OLD": "1", "PACK": "3"}, "fault": "compile_error", "stage": "compile"}]
    )
    touch(repo, mark="OLD 1")
    repo.edit("opencl/gemv_cpu.cl", "#define OLD 1\n", "")
    repo.commit()
    words = (*SMALL, "--arm", "auto", "--arm", "cpu+pack2", "--quick")
    answer = gate(gemvbench, *words)
    results = {result["arm"]: result for result in answer.json["results"]}
    assert answer.code == 0
    assert results["auto"]["verdict"] == "UNDECIDED"
    assert results["auto"]["reason"] == "the baseline auto@HEAD~1 is FAILED"
    assert results["cpu+pack2"]["ratio"] == pytest.approx(1, abs=0.02)
    assert "auto@HEAD~1 on" in gate(gemvbench, *words, form="table").out


def test_nothing_compared_is_no_pass(gemvbench: Run, repo: Scratch, script: Write) -> None:
    script(faults=[{"match": {"OLD": "1"}, "fault": "compile_error", "stage": "compile"}])
    touch(repo, mark="OLD 1")
    repo.edit("opencl/gemv_cpu.cl", "#define OLD 1\n", "")
    repo.commit()
    answer = gate(gemvbench, *SMALL)
    assert (answer.code, answer.json["conclusion"]) == (4, "void")


def test_a_budget_leaves_the_last_cases_out_and_names_them(gemvbench: Run, repo: Scratch) -> None:
    touch(repo)
    shapes = [word for n in (64, 128, 4096) for word in ("--shape", f"512x{n}")]
    small = gate(gemvbench, *shapes, "--budget", "1s", "--quick")
    found = re.search(r"the smallest budget that works is (\d+) s", small.err)
    assert found, small.err  # of the first case by itself
    answer = gate(gemvbench, *shapes, "--budget", f"{found[1]}s", "--quick")
    assert answer.code == 0, answer.err
    measured = {result["case"] for result in answer.json["results"]}
    assert CASE in measured
    assert "gemv-512x4096-f16-f16" not in measured
    reasons = {each["case"]: each["reason"] for each in answer.json["left_out"]}
    assert reasons["gemv-512x4096-f16-f16"].startswith("budget: ")


def test_a_budget_for_nothing_is_refused(gemvbench: Run, repo: Scratch) -> None:
    touch(repo)
    answer = gate(gemvbench, "--shape", "512x4096", "--budget", "1s")
    assert answer.code == 2
    assert "the smallest budget that works is" in answer.err


def test_a_dirty_tree_is_judged_and_marked(gemvbench: Run, repo: Scratch, script: Write) -> None:
    script([{"match": {"SLOW": "1"}, "gbps": 0.018}])
    path = repo.path("opencl/gemv_cpu.cl")
    path.write_text(f"#define SLOW 1\n{path.read_text()}")
    words = ("gate", "--base", "HEAD", "--budget", "9h", *SMALL)
    answer = gemvbench(*words, "--format", "json")
    assert answer.code == 1
    assert answer.json["dirty"] is True
    assert answer.json["base"] == answer.json["head"]
    text = gemvbench(*words).out
    assert "with uncommitted changes against HEAD" in " ".join(text.split())


def test_a_new_kernel_has_nothing_to_be_compared_with(gemvbench: Run, repo: Scratch) -> None:
    repo.git("rm", "-q", "kernels/opencl/gemv_cpu.cl")
    repo.commit()
    repo.git("checkout", "-q", "HEAD~1", "--", "kernels")
    repo.commit()
    answer = gate(gemvbench, *SMALL)
    assert (answer.code, answer.json["conclusion"]) == (0, "unchanged")
    (left_out,) = answer.json["left_out"]
    assert left_out["reason"].startswith("new: Revision ")


def test_a_library_that_a_table_puts_in_autos_place_is_left_out(repo: Scratch) -> None:
    tuned = Tuned(row=row(k=512, n=64, arm="numpy"), source="user's")
    device = msgspec.structs.replace(make_device(), tuning=Tuning(rows=(tuned,)))
    entry = Entry(Gemv(k=512, n=64), (parse_arm("auto"),))
    plan = plan_gate([entry], resolve("HEAD"), device, {device.id: device})
    assert plan.contests == ()
    assert [each.reason for each in plan.left_out] == [
        "no kernel of this checkout: a library computes it"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arm", "mine=a.cl:b"), "has no kernel in the checkout"),
        (("--arm", "numpy"), "has no kernel in the checkout"),
        (("--arm", "gqa", *SMALL), "None of the arms computes any of the cases"),
        (("--model", "qwen3-0.6b", *SMALL), "exclude each other"),
        (("-k", "nothing"), "matches no case"),
        (("--budget", "soon"), "is no time"),
        (("--base", "nowhere"), "is not in this checkout"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    gemvbench: Run, repo: Scratch, words: tuple[str, ...], said: str
) -> None:
    touch(repo)
    answer = gate(gemvbench, *words)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_kernels_of_another_checkout_are_not_judged(
    gemvbench: Run, repo: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gemvbench import source

    touch(repo)
    monkeypatch.setattr(source, "KERNELS", tmp_path / "elsewhere")
    answer = gate(gemvbench, *SMALL)
    assert answer.code == 2
    assert "Install it from the checkout" in answer.err
