"""Whole programs in pairs: metrics, order, verdicts on scripted legs, and real processes."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from conftest import ROOT

from gemvbench import cli
from gemvbench.commands.legs import exit_code
from gemvbench.errors import Exit, UserError
from gemvbench.legs.conduct import Conductor
from gemvbench.legs.findings import Findings, find
from gemvbench.legs.lines import LegsHeader, Metric, Settings, Side
from gemvbench.legs.metrics import MetricError, parse_metrics, read_metric
from gemvbench.legs.process import Ran, run_process
from gemvbench.legs.record import LegsRecorder, read_legs
from gemvbench.legs.schedule import least_pairs, plan_looks, plan_pairs
from gemvbench.reading import read_lines
from gemvbench.report.legs_document import legs_document

WALL = (Metric(name="wall", source="wall"),)


def settings(pairs: int = 16, **fields: Any) -> Settings:
    metrics = fields.pop("metrics", WALL)
    looks = plan_looks(pairs, fields.get("confidence", 0.99), len(metrics))
    return Settings(pairs=pairs, looks=looks, metrics=metrics, **fields)


# Metrics.


@pytest.mark.parametrize(
    ("metric", "better", "expected"),
    [
        ((), (), [("wall", "wall", False)]),
        (("cpu", "memory"), (), [("cpu", "cpu", False), ("memory", "memory", False)]),
        (("t/s=(\\d+)",), ("more",), [("t/s", "regex", True)]),
        (
            ("a=x", "b=json:r[0].v"),
            ("less", "b=more"),
            [("a", "regex", False), ("b", "json", True)],
        ),
        (("wall", "n=x"), ("n=less",), [("wall", "wall", False), ("n", "regex", False)]),
    ],
)
def test_metrics_are_read_as_written(
    metric: tuple[str, ...], better: tuple[str, ...], expected: list[tuple[str, str, bool]]
) -> None:
    assert [(m.name, m.source, m.more) for m in parse_metrics(metric, better)] == expected


@pytest.mark.parametrize(
    ("metric", "better", "said"),
    [
        (("speed",), (), "NAME=REGEX or NAME=json:PATH"),
        (("a=(",), ("more",), "no regular expression"),
        (("a=(x)(y)",), ("more",), "has 2 groups"),
        (("a=json:",), ("more",), "a path is written like"),
        (("a=json:x[y]",), ("more",), "a path is written like"),
        (("a=x",), (), "say --better more, less, or a=more"),
        (("a=x", "a=y"), ("more",), "a is given twice"),
        (("wall",), ("b=more",), "there is no such --metric"),
        (("wall",), ("fewer",), "write more or less"),
        (("wall=x",), ("more",), "cannot be the name"),
    ],
)
def test_metrics_that_cannot_be(
    metric: tuple[str, ...], better: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said.replace("[", "\\[")):
        parse_metrics(metric, better)


def regex(pattern: str) -> Metric:
    return Metric(name="speed", source="regex", pattern=pattern, more=True)


@pytest.mark.parametrize(
    ("metric", "out", "err", "expected"),
    [
        (regex(r"^speed: (\S+)"), "x\nspeed: 12.5 t/s\n", "", (12.5, 1)),
        (regex(r"speed: (\S+)"), "speed: 1\nspeed: 2\n", "speed: 3", (2.0, 2)),
        (regex(r"speed: (\S+)"), "", "speed: 3e2", (300.0, 1)),
        (regex(r"\d+"), "a 7 b", "", (7.0, 1)),
        (Metric(name="n", source="json", pattern="r[1].v"), '{"r": [0, {"v": 4}]}', "", (4.0, 1)),
        (Metric(name="n", source="json", pattern="v"), 'log\n{"v": 4}\n{"v": "5"}\n', "", (5.0, 2)),
    ],
)
def test_the_last_match_counts(
    metric: Metric, out: str, err: str, expected: tuple[float, int]
) -> None:
    assert read_metric(metric, out, err) == expected


@pytest.mark.parametrize(
    ("metric", "out", "said"),
    [
        (regex(r"speed: (\S+)"), "fast", "nothing matches"),
        (regex(r"speed: (\S+)"), "speed: fast", "'fast' is not a number"),
        (regex(r"speed: (\S+)"), "speed: nan", "not a positive number"),
        (regex(r"speed: (\S+)"), "speed: 0", "not a positive number"),
        (Metric(name="n", source="json", pattern="v"), "none", "holds no JSON"),
        (Metric(name="n", source="json", pattern="v"), '{"w": 1}', "no v in it"),
        (Metric(name="n", source="json", pattern="v"), '{"v": [1]}', "is not a number"),
        (Metric(name="n", source="json", pattern="v"), '{"v": true}', "not a positive number"),
    ],
)
def test_what_is_no_metric(metric: Metric, out: str, said: str) -> None:
    with pytest.raises(MetricError, match=said):
        read_metric(metric, out, "")


# Order and looks.


def test_as_many_pairs_as_a_sign_test_needs() -> None:
    assert [least_pairs(level) for level in (0.9, 0.99, 0.995, 0.999)] == [6, 8, 9, 11]


def test_looks_fit_the_pairs() -> None:
    assert plan_looks(8, 0.99, 1) == (8,)
    assert plan_looks(12, 0.99, 1) == (9, 12)
    assert plan_looks(16, 0.99, 1) == (10, 13, 16)
    assert plan_looks(16, 0.99, 2) == (11, 13, 16)
    with pytest.raises(UserError, match="it takes 8 pairs"):
        plan_looks(7, 0.99, 1)


def test_orders_alternate_and_the_lead_is_drawn() -> None:
    leads = set()
    for seed in range(20):
        orders = [pair.order for pair in plan_pairs(settings(8, seed=seed))]
        assert all(one != other for one, other in pairwise(orders))
        leads.add(orders[0])
    assert len(leads) == 2


def test_pairs_of_a_with_itself_lie_before_the_first_look() -> None:
    pairs = plan_pairs(settings(16, aa=4, seed=3))
    own = [pair.number for pair in pairs if pair.kind == "aa"]
    assert len(own) == 4
    assert max(own) < 10 + 4
    assert len(pairs) == 20


# Verdicts, on scripted legs.

Costs = Callable[[str, int, random.Random], float | str]
"""Wall seconds of a leg by program and number, or why it failed."""


def conduct(folder: Path, costs: Costs, seed: int = 0, **fields: Any) -> Findings:
    draw = random.Random(seed)
    numbers = iter(range(1000))

    def run(argv: tuple[str, ...], environment: Any, timeout: float, logs: Any) -> Ran:
        for log in logs:
            log.write_text("")
        cost = costs(argv[0], next(numbers), draw)
        if isinstance(cost, str):
            return Ran(1.0, 1.0, 1, cost)
        return Ran(cost, cost, 1 << 20, "")

    header = LegsHeader(
        version="1", started="", arguments=(), settings=settings(seed=seed, **fields),
        environment={}, a=Side(argv=("a",)), b=Side(argv=("b",)),
    )  # fmt: skip
    recorder = LegsRecorder(header, folder / f"{len(list(folder.iterdir()))}.jsonl")
    return find(Conductor(recorder, run).conduct(lambda: None))


def noisy(slowdown: float, noise: float = 0.012, drift: float = 0.01) -> Costs:
    """B takes `slowdown` more; the machine drifts, by as much as 20 legs of it."""

    def cost(program: str, number: int, draw: random.Random) -> float:
        level = math.exp(drift * number / 4 + draw.gauss(0, noise))
        return level * (1 + slowdown if program == "b" else 1)

    return cost


def verdicts(found: Findings) -> list[str]:
    return [each.judgement.verdict for each in found.metrics]


def test_a_planted_slowdown_is_found(tmp_path: Path) -> None:
    found = [conduct(tmp_path, noisy(0.02), seed, aa=2) for seed in range(20)]
    slower = [each for each in found if verdicts(each) == ["SLOWER"]]
    assert len(slower) >= 15
    ratios = [each.metrics[0].judgement.interval.ratio for each in slower]
    assert 0.975 < sum(ratios) / len(ratios) < 0.985
    assert not any("FASTER" in verdicts(each) for each in found)


def test_equal_programs_raise_no_alarm(tmp_path: Path) -> None:
    found = [conduct(tmp_path, noisy(0.0), seed, aa=3) for seed in range(20)]
    assert not any(set(verdicts(each)) & {"FASTER", "SLOWER"} for each in found)
    assert not any(each.void for each in found)


def test_a_clear_case_stops_at_the_first_look(tmp_path: Path) -> None:
    found = conduct(tmp_path, noisy(-0.2))
    assert verdicts(found) == ["FASTER"]
    assert found.usable_pairs == 10
    assert found.metrics[0].won == 10
    assert found.metrics[0].sign_p == pytest.approx(2 / 1024)


def test_more_can_be_better(tmp_path: Path) -> None:
    rate = (Metric(name="wall", source="wall", more=True),)
    assert verdicts(conduct(tmp_path, noisy(0.2), metrics=rate)) == ["FASTER"]


def test_a_slow_mode_of_both_is_shown_and_not_dropped(tmp_path: Path) -> None:
    def cost(program: str, number: int, draw: random.Random) -> float:
        slow = 5.0 if number in (2, 5, 9) else 1.0
        return slow * noisy(0.05, noise=0.004)(program, number, draw)

    found = conduct(tmp_path, cost)
    (each,) = found.metrics
    assert each.judgement.verdict == "SLOWER"
    assert {*each.a.slow, *each.b.slow} == {2, 5, 9}
    assert each.judgement.removed == 3
    assert each.judgement.all_pairs.high > each.judgement.interval.high
    text = "\n".join(legs_document(found).sections[0].notes)
    assert "3 of 10 pairs mix a slow leg with another" in text


def test_a_mode_of_one_program_alone_decides_nothing(tmp_path: Path) -> None:
    def cost(program: str, number: int, draw: random.Random) -> float:
        slow = 3.0 if program == "b" and number % 4 == 1 else 1.0
        return slow * noisy(0.05, noise=0.004)(program, number, draw)

    found = conduct(tmp_path, cost)
    assert verdicts(found) == ["UNDECIDED"]
    assert "modes" in found.metrics[0].judgement.reason


def test_what_the_place_costs_is_shown(tmp_path: Path) -> None:
    """What runs second costs more of every program alike: orders balance it, and it is shown."""

    def cost(program: str, number: int, draw: random.Random) -> float:
        return (1.1 if number % 2 else 1.0) * math.exp(draw.gauss(0, 0.001))

    found = conduct(tmp_path, cost, aa=8)
    assert found.metrics[0].slot == pytest.approx(1.1, rel=0.01)
    assert verdicts(found) == ["UNDECIDED"]
    assert not found.void
    assert found.metrics[0].floor is not None


def test_a_that_differs_from_itself_voids_the_run(tmp_path: Path) -> None:
    found = conduct(tmp_path, noisy(-0.2, noise=0.003), aa=6)
    legs = [
        msgspec.structs.replace(leg, values={"wall": leg.values["wall"] * 1.05})
        if (leg.kind, leg.side) == ("aa", "B")
        else leg
        for leg in found.run.legs
    ]
    spoilt = find(msgspec.structs.replace(found.run, legs=tuple(legs)))
    assert "A differs from itself in wall" in spoilt.void
    assert "wall: VOID" in legs_document(spoilt).sections[0].lead[0]
    assert exit_code(spoilt, fail_on_slower=True) == Exit.NO_DEVICE
    assert not found.void


def test_a_failed_leg_removes_its_pair(tmp_path: Path) -> None:
    def cost(program: str, number: int, draw: random.Random) -> float | str:
        return "exit code 3" if number == 4 else noisy(-0.2)(program, number, draw)

    found = conduct(tmp_path, cost)
    assert verdicts(found) == ["FASTER"]
    assert sum(found.failures.values()) == 1
    assert found.usable_pairs == 10  # one more pair was run
    assert len({leg.pair for leg in found.run.legs}) == 11
    assert "leg 4 (" in "\n".join(legs_document(found).sections[0].notes)


@pytest.mark.parametrize(("fails", "legs"), [("ab", 3), ("a", 6)])
def test_three_failures_in_a_row_stop_the_run(tmp_path: Path, fails: str, legs: int) -> None:
    def cost(program: str, number: int, draw: random.Random) -> float | str:
        return "exit code 1" if program in fails else 1.0

    found = conduct(tmp_path, cost)
    assert found.run.ended is not None
    assert "in a row failed; the last one: exit code 1" in found.run.ended.reason
    assert legs - 1 <= len(found.run.legs) <= legs
    assert verdicts(found) == ["UNDECIDED"]


def test_an_interrupt_keeps_the_pairs_so_far(tmp_path: Path) -> None:
    def cost(program: str, number: int, draw: random.Random) -> float:
        if number == 15:
            raise KeyboardInterrupt
        return noisy(-0.2)(program, number, draw)

    found = conduct(tmp_path, cost)
    assert found.run.ended is not None
    assert found.run.ended.reason == "interrupted"
    assert found.usable_pairs == 7
    judged = found.metrics[0].judgement
    assert (judged.verdict, judged.reason) == ("UNDECIDED", "7 of the 10 that the first look takes")
    assert judged.interval.low > 0
    assert "until then" in "\n".join(legs_document(found).sections[0].notes)


# Real processes.

PYTHON = shlex.quote(sys.executable)


def python(code: str) -> str:
    return f"{PYTHON} -c {shlex.quote(code)}"


def run(tmp_path: Path, code: str, timeout: float = 60) -> Ran:
    logs = tmp_path / "out", tmp_path / "err"
    return run_process((sys.executable, "-c", code), {"LEG": "7"}, timeout, logs)


def test_a_process_gives_its_output_and_what_it_took(tmp_path: Path) -> None:
    code = "import os,sys; x = bytearray(80 << 20); print(os.environ['LEG']); sys.stderr.write('e')"
    code += "; import time; time.sleep(0.3)"
    ran = run(tmp_path, code)
    assert ran.reason == ""
    assert ran.wall > 0.3
    assert 0 < ran.cpu < ran.wall + 0.3
    assert 80 << 20 < ran.memory < 500 << 20
    assert (tmp_path / "out").read_text() == "7\n"
    assert (tmp_path / "err").read_text() == "e"


def test_memory_is_that_of_the_whole_tree(tmp_path: Path) -> None:
    child = "x = bytearray(60 << 20); import time; time.sleep(0.5)"
    code = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run(tmp_path, code).memory > 65 << 20


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_a_bad_end_is_a_reason(tmp_path: Path, code: str, reason: str) -> None:
    assert run(tmp_path, code).reason == reason


def test_a_leg_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    code = (
        f"import subprocess,sys,time; p = subprocess.Popen([sys.executable, '-c', {child!r}], "
        "start_new_session=True); print(p.pid, flush=True); time.sleep(60)"
    )
    assert run(tmp_path, code, timeout=1.0).reason == "stopped after 1 s"
    wait_until_gone(int((tmp_path / "out").read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_leg_leaves_running_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    assert run(tmp_path, code).reason == ""
    wait_until_gone(int((tmp_path / "out").read_text()))


def test_a_command_before_a_leg_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    before = ("sh", "-c", f"sleep 60 & echo $! >{child}; wait")
    found = conduct(tmp_path, noisy(0.0), before=before, timeout=0.3)
    assert {leg.reason for leg in found.run.legs} == {"--before was stopped after 0.3 s"}
    wait_until_gone(int(child.read_text()))


# The command.


def legs(*words: str) -> int:
    return cli.main(["legs", *words])


def test_the_command_judges_what_a_program_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "legs.jsonl"
    program = python(
        "import os,random; print('speed:', (1 + int(os.environ['FAST'])) * random.uniform(9, 9.1))"
    )
    words = ("--a", program, "--env", "FAST=0,1", "--metric", r"speed=speed: ([\d.]+)")
    words += ("--better", "more", "--before", python("pass"), "--format", "json")
    assert legs(*words, "--record", str(record)) == 0
    answer = json.loads(capsys.readouterr().out)
    (result,) = answer["results"]
    assert (result["verdict"], result["won"], result["pairs"]) == ("FASTER", 8, 8)
    assert result["ratio"] == pytest.approx(2, rel=0.02)
    assert answer["b"]["environment"] == {"FAST": "1"}
    outputs = sorted((tmp_path / "legs.outputs").iterdir())
    assert len(outputs) == 2 * 16
    assert outputs[1].read_text().startswith("speed:")
    assert cli.main(["report", str(record)]) == 0
    text = capsys.readouterr().out
    assert "speed: FASTER, ratio " in text
    assert "8 of 8 clean pairs won" in text


def test_a_damaged_record_is_read_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = conduct(tmp_path, noisy(-0.2))
    (path,) = tmp_path.glob("*.jsonl")
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:5], b"{nothing", *lines[6:-1]]))
    again = read_legs(path, read_lines(path))
    assert len(again.legs) == len(found.run.legs) - 1
    assert again.ended is None
    assert cli.main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "lines 6: not part of a record" in " ".join(out.split())
    assert "has no end" in out
    path.write_bytes(lines[0].replace(b'"schema":1', b'"schema":9'))
    assert cli.main(["report", str(path)]) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "legs needs --a"),
        (("--a", "true"), "either --b 'CMD', or --env"),
        (("--a", "true", "--b", "true", "--env", "X=0,1"), "either --b"),
        (("--a", "true", "--env", "X=1"), "write VAR=0,1"),
        (("--a", "true", "--env", "X=1,1"), "another for B"),
        (("--a", "nothing-like-it", "--b", "true"), "there is no program 'nothing-like-it'"),
        (("--a", "true 'x", "--b", "true"), "cannot be split into words"),
        (("--a", "true", "--b", " "), "--b is empty"),
        (("--a", "true", "--b", "true", "--before", "nothing-like-it"), "--before"),
        (("--a", "true", "--b", "true", "--pairs", "5"), "it takes 8 pairs"),
        (("--a", "true", "--b", "true", "--pairs", "0"), "has to lie between"),
        (("--a", "true", "--b", "true", "--aa", "-1"), "no number of pairs"),
        (("--a", "true", "--b", "true", "--timeout", "soon"), "--timeout 'soon' is no time"),
        (("--a", "true", "--b", "true", "--record", "no/such/folder/x"), "no such folder"),
    ],
)
def test_mistakes(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert legs(*words) == 2
    assert said in capsys.readouterr().err


def test_a_program_without_its_metric_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--a", "true", "--b", "true", "--metric", "x=y", "--better", "more")
    assert legs(*words, "--record", str(tmp_path / "r.jsonl")) == 3
    assert "metric x: nothing matches 'y'" in capsys.readouterr().out


def test_a_command_before_legs_that_fails_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = python("raise SystemExit('no cache to drop')")
    words = ("--a", "true", "--b", "true", "--before", before)
    assert legs(*words, "--record", str(tmp_path / "r.jsonl")) == 3
    out = capsys.readouterr().out
    assert "--before ended with exit code 1: no cache to drop" in out


def test_a_slower_program_fails_where_asked(tmp_path: Path) -> None:
    a, b = (python(f"import time; time.sleep({seconds})") for seconds in (0.1, 0.3))
    words = ("--a", a, "--b", b)
    words += ("--record", str(tmp_path / "r.jsonl"))
    assert legs(*words, "--fail-on-slower") == 1


def test_the_example_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In small: a tenth of the text, and as few pairs as may be."""
    document = (ROOT / "docs" / "legs.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    make, command = next(block for block in blocks if "big.txt" in block).splitlines()
    monkeypatch.chdir(tmp_path)
    words = shlex.split(make.replace("python3", PYTHON, 1).replace("800000", "80000"))
    code, target = words[2], words[-1]
    Path(target).write_bytes(subprocess.check_output([words[0], "-c", code]))
    words = shlex.split(command.replace("--pairs 16 --aa 3", "--pairs 9 --aa 2"))
    assert legs(*words[2:], "--record", "r.jsonl", "--format", "json") == 0
    saved = json.loads(capsys.readouterr().out)["results"][1]
    assert (saved["metric"], saved["verdict"], saved["won"]) == ("saved", "SLOWER", 0)


def test_the_plan_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert legs("--a", "false", "--b", "false", "--aa", "2", "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.count("A against itself") == 2
    assert "Nothing was run" in out
