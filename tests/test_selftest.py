"""`selftest` on the scripted fake: a good machine passes, and every fault is told by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Answer, make_device

from gemvbench.case import Gemv
from gemvbench.commands import selftest as command
from gemvbench.errors import UserError
from gemvbench.ladder import rule_arm
from gemvbench.messages import Request, Sample
from gemvbench.plan import plan_layout
from gemvbench.reading import read_record
from gemvbench.record import Header, PoolRead
from gemvbench.record import Run as Record
from gemvbench.report.selftest_document import findings
from gemvbench.selftest import examine, exit_code
from gemvbench.selftest_plan import (
    PLANTED,
    SAME,
    choose_blocks,
    choose_case,
    pool_case,
    selftest_contest,
    waves,
)

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]

SHAPE = (512, 1000)
GOOD: list[dict[str, Any]] = [{"match": {"entry": "read_chunked"}, "gbps": 0.6}, {"gbps": 0.3}]
SHORT = ("--budget", "1s")


def selftest(gemvbench: Run, *words: object, form: str = "json") -> Answer:
    return gemvbench("selftest", "--shape", "512x1000", "--format", form, *words)


def verdicts(answer: Answer) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in answer.json["findings"]}


def texts(answer: Answer) -> dict[str, str]:
    return {finding["check"]: finding["text"] for finding in answer.json["findings"]}


def stream_words() -> int:
    device = make_device()
    return plan_layout(choose_case(device, SHAPE), "stream", device).pool_bytes // 4


def test_a_good_machine_passes(gemvbench: Run, script: Write, tmp_path: Path) -> None:
    script(GOOD)
    record = tmp_path / "r.jsonl"
    answer = selftest(gemvbench, "--record", record)
    assert answer.code == 0
    assert set(verdicts(answer).values()) == {"PASSED"}
    assert "0 of 4 identical arms" in texts(answer)["A/A"]
    planted = answer.json["planted"]
    assert [each["share"] for each in planted] == [0.005, 0.01, 0.02, 0.05]
    for each in planted:
        assert each["found"]
        low, high = each["ci"]
        assert low < each["share"] < high
        assert high - low < 0.01
    assert answer.json["blocks"] == 16
    assert answer.json["event_clock"] == pytest.approx(1)
    assert answer.json["pools"]["ratio"] == pytest.approx(1, abs=0.01)
    assert answer.json["roof"]["bandwidth"] == pytest.approx(0.6e9, rel=0.02)
    six, sixteen = answer.json["resolutions"]
    assert (six["blocks"], sixteen["blocks"]) == (6, 16)
    assert 0.0005 < sixteen["effect"] < six["effect"] < 0.01
    assert sixteen["device_seconds"] == pytest.approx(16 / 6 * six["device_seconds"])
    assert gemvbench("report", record, "--format", "json").json == answer.json
    shown = gemvbench("report", record).out.splitlines()
    assert shown[0].startswith("Selftest of fake0, gemv-512x1000-f16-f16-spare50, baseline cpu")
    assert shown[-1].startswith("This machine resolves 0.")
    rows = gemvbench("report", record, "--format", "csv").out.splitlines()
    assert rows[0] == "check,verdict,text"
    assert len(rows) == 1 + 8


def test_planted_effects_that_do_not_show(gemvbench: Run, script: Write) -> None:
    """Extra rows that cost nothing: what a cache, or a kernel that skips them, would do."""
    script([{"match": {"EXTRA": "50"}, "gbps": 0.3 * 1.05}, *GOOD])
    answer = selftest(gemvbench)
    assert answer.code == 3
    assert verdicts(answer)["planted 5.00%"] == "FAILED"
    assert "excludes what was planted" in texts(answer)["planted 5.00%"]
    assert verdicts(answer)["planted 2.00%"] == "PASSED"


def test_half_of_a_planted_effect_is_not_it(gemvbench: Run, script: Write) -> None:
    script([{"match": {"EXTRA": "50"}, "gbps": 0.3 * 1.025}, *GOOD])
    answer = selftest(gemvbench)
    assert answer.code == 3
    assert "measured 2.4" in texts(answer)["planted 5.00%"]


def test_a_planted_effect_of_the_wrong_sign(gemvbench: Run, script: Write) -> None:
    script([{"match": {"EXTRA": "50"}, "gbps": 0.35}, *GOOD])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 3
    assert "wrong sign: measured -10" in texts(answer)["planted 5.00%"]


def test_noise_hides_effects_and_is_no_fault(gemvbench: Run, script: Write) -> None:
    script([{"noise": 0.03}, *GOOD], seed=3)
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 0
    assert (answer.json["blocks"], answer.json["planted"][0]["found"]) == (6, False)
    assert "too small for this machine" in texts(answer)["planted 0.50%"]
    assert verdicts(answer)["planted 0.50%"] == "UNCLEAR"
    assert verdicts(answer)["regime"] == "UNCLEAR"
    assert answer.json["resolutions"][0]["effect"] > 0.02


def test_an_event_clock_that_is_off(gemvbench: Run, script: Write) -> None:
    script([{"match": {"entry": "read_chunked"}, "host_clock": 1 / 1.05}, *GOOD])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 4
    assert verdicts(answer)["event clock"] == "FAILED"
    assert texts(answer)["event clock"].startswith("Goes at 1.050 of the host's")


def test_a_stream_that_is_cached(gemvbench: Run, script: Write) -> None:
    match = {"entry": "read_chunked", "words": str(stream_words())}
    script([{"match": match, "gbps": 0.66}, *GOOD])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 4
    assert verdicts(answer)["regime"] == "FAILED"
    assert "served from a cache in part" in texts(answer)["regime"]
    assert answer.json["pools"]["ratio"] == pytest.approx(1.1, rel=0.01)


def test_a_cache_that_is_fast_is_what_stream_avoids(gemvbench: Run, script: Write) -> None:
    half = str((1 << 19) // 4)
    script([{"match": {"entry": "read_chunked", "words": half}, "gbps": 3.0}, *GOOD])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 0
    assert "cached, 524.3 kB read at 3" in texts(answer)["regime"]


def test_memory_for_one_pool_alone(gemvbench: Run, script: Write) -> None:
    script(GOOD, devices=[{"memory": 500 << 20}])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 0
    assert verdicts(answer)["regime"] == "UNCLEAR"
    assert "does not fit" in texts(answer)["regime"]
    assert answer.json["pools"] is None


def test_a_wrong_arm_fails(gemvbench: Run, script: Write) -> None:
    script(GOOD, faults=[{"match": {"EXTRA": "20"}, "fault": "written_past_end"}])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 3
    assert "cpu+extra20 is WRONG: extra rows" in texts(answer)["arms"]
    assert len(answer.json["planted"]) == 3


def test_a_machine_that_is_busy(gemvbench: Run, script: Write) -> None:
    script([{"slow_probability": 0.5}, *GOOD])
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 4
    assert "the machine is too busy" in texts(answer)["arms"]


def test_interrupted_before_the_comparison(
    gemvbench: Run, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(request: Request) -> None:
        raise KeyboardInterrupt

    script(GOOD)
    monkeypatch.setattr(command, "converse", interrupt)
    answer = selftest(gemvbench, *SHORT)
    assert answer.code == 4
    assert "did not end by itself: interrupted" in texts(answer)["run"]
    assert verdicts(answer)["roof"] == "PASSED"
    assert texts(answer)["regime"] == "The run ended before the pools were read."


def test_what_is_refused(gemvbench: Run, script: Write, tmp_path: Path) -> None:
    small = gemvbench("selftest", "--shape", "512x64")
    assert small.code == 2
    assert "less than half a row" in small.err
    assert gemvbench("selftest", "--budget", "soon").code == 2
    assert gemvbench("selftest", "--seed", "-1").code == 2
    (tmp_path / "r").touch()
    assert gemvbench("selftest", "--record", tmp_path / "r").code == 2
    script(GOOD, devices=[{"memory": 1 << 19}])
    assert selftest(gemvbench).code == 4


@pytest.fixture
def good_record(gemvbench: Run, script: Write, tmp_path: Path) -> Record:
    script(GOOD)
    path = tmp_path / "good.jsonl"
    assert selftest(gemvbench, *SHORT, "--record", path).code == 0
    return read_record(path)


def slowed(run: Record, arm: str, factor: float) -> Record:
    """The record with all legs of an arm longer."""

    def longer(line: Any) -> Any:
        if not isinstance(line, Sample) or line.arm != arm:
            return line
        legs = {
            name: msgspec.structs.replace(leg, timeline=leg.timeline * factor)
            for name in ("long", "short", "middle")
            if (leg := getattr(line, name)) is not None
        }
        return msgspec.structs.replace(line, **legs)

    return msgspec.structs.replace(run, lines=tuple(map(longer, run.lines)))


@pytest.mark.parametrize(("arm", "code", "said"), [("aa", 4, "VOID"), ("same2", 3, "(same2)")])
def test_identical_arms_that_differ(good_record: Record, arm: str, code: int, said: str) -> None:
    found = examine(slowed(good_record, arm, 1.02))
    assert exit_code(found) == code
    (finding,) = [each for each in findings(found) if each.check == "A/A"]
    assert finding.verdict == "FAILED"
    assert said in finding.text
    assert exit_code(examine(slowed(good_record, arm, 1.0002))) == 0


def test_reads_of_pools_are_no_case_of_the_run(good_record: Record) -> None:
    (case,) = good_record.header.cases
    assert isinstance(case, Gemv)
    reads = [read.sample for read in good_record.of(PoolRead)]
    assert {s.case for s in reads} == {pool_case(case).id}
    assert good_record.damage == ()
    assert {s.arm for s in reads} == {"cache", "stream", "double"}
    assert {(s.block, s.pass_) for s in reads} == {(b, p) for b in range(6) for p in range(3)}
    sizes = {s.arm: s.bytes_per_call for s in reads}
    assert sizes["double"] == 2 * sizes["stream"] == 8 * stream_words()
    assert sizes["cache"] == 1 << 19  # half of the scripted megabyte
    summary = examine(good_record).summary
    assert {result.case for result in summary.results} == {case.id}
    assert len(summary.results) == 2 + len(SAME) + len(PLANTED)


def test_damaged_reads_of_pools_are_left_out(good_record: Record, tmp_path: Path) -> None:
    def torn(line: Any) -> Any:
        if not isinstance(line, PoolRead) or line.sample.arm != "double":
            return line
        short = msgspec.structs.replace(line.sample.short, calls=line.sample.long.calls)
        return PoolRead(sample=msgspec.structs.replace(line.sample, short=short))

    def read_back(header: Header) -> Record:
        lines = [header, *map(torn, good_record.lines)]
        path = tmp_path / "damaged.jsonl"
        path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
        return read_record(path)

    run = read_back(good_record.header)
    assert {read.sample.arm for read in run.of(PoolRead)} == {"cache", "stream"}
    assert exit_code(examine(run)) == 4
    devices = (make_device(), make_device(id="other"))
    with pytest.raises(UserError, match="a selftest has one case on one device"):
        read_back(msgspec.structs.replace(good_record.header, devices=devices))


def test_identical_arms_are_built_one_by_one() -> None:
    device = make_device()
    contest = selftest_contest(choose_case(device, SHAPE), device).with_twin()
    by_label = {job.arm: job for job in contest.jobs}
    assert list(by_label) == ["cpu", "aa", *SAME, *(f"cpu+extra{extra}" for extra in PLANTED)]
    texts = {getattr(by_label[label], "text", label) for label in ("cpu", "aa", *SAME)}
    assert len(texts) == 1


@pytest.mark.parametrize(("units", "memory"), [(132, 140), (20, 8), (8, 2), (16, 1), (170, 32)])
def test_a_gpu_gets_fifty_waves(units: int, memory: int) -> None:
    device = make_device(kind="gpu", units=units, memory=memory << 30)
    case = choose_case(device)
    assert waves(case, device) >= 50
    assert case.n % 1000 == 0
    assert 2 * case.weight_bytes <= memory << 30
    assert case.spare == case.n // 20
    for choice, extra in zip(selftest_contest(case, device).choices[4:], PLANTED, strict=True):
        assert choice.outcome.extra * 1000 == case.n * extra  # type: ignore[union-attr]


def test_large_gpus_get_the_protocols_rows() -> None:
    case = choose_case(make_device(kind="gpu", units=132, memory=140 << 30))
    assert (case.k, case.n) == (4096, 106_000)


def test_a_cpu_gets_exact_shares() -> None:
    device = make_device()
    case = choose_case(device)
    assert [case.n * extra % 1000 for extra in PLANTED] == [0, 0, 0, 0]
    assert rule_arm(case, device).family == "cpu"


@pytest.mark.parametrize(
    ("budget", "passes", "blocks"),
    [(180, 6, 16), (120, 6, 12), (90, 6, 8), (75, 6, 6), (60, 5, 6), (50, 3, 6), (1, 3, 6)],
)
def test_a_budget_chooses_blocks_and_never_fewer_than_six(
    budget: float, passes: int, blocks: int
) -> None:
    assert choose_blocks(budget, 6.0, 1.2) == (passes, blocks)
    assert math.prod(choose_blocks(budget, 6.0, 4.0)) <= passes * blocks
