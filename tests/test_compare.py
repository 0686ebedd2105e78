"""`compare`: what two records can say of each other, and what they cannot."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import READ, SHAPE, SPEED, Answer
from records import CASE, DEVICE, make_header, make_leg, make_run, make_samples, times, verified

from gemvbench.arm import parse_arm
from gemvbench.backend.fake import FakeBackend
from gemvbench.backend.script import Script
from gemvbench.between_runs import add_run_spread, welch
from gemvbench.case_results import CaseView
from gemvbench.compare import Row, Terms, compare
from gemvbench.jobs import Build, choose, identical, short_digest
from gemvbench.likeness import find_differences, find_notes
from gemvbench.messages import Failed, KernelJob, Sample, Verified, Verify
from gemvbench.record import Header, Run
from gemvbench.results import Summary, summarise
from gemvbench.stats import family_level
from gemvbench.verify import Verifier

TERMS = Terms(cases=(CASE.id,), confidence=0.99, min_effect=0.01)


def change(header: Header, *labels: str) -> Header:
    """The same arms with other code behind some labels."""
    return msgspec.structs.replace(
        header,
        choices=tuple(
            msgspec.structs.replace(c, source=c.source[::-1]) if c.label in labels else c
            for c in header.choices
        ),
    )


def summary(
    header: Header | None = None, blocks: int = 6, lines: Any = (), **seconds: float
) -> Summary:
    header = header or make_header()
    samples = make_samples(times(**({"pack2": 0.9e-3} | seconds)), blocks)
    return summarise(make_run(header, [*samples, *lines]))


def rows(a: Summary, b: Summary, earlier: Any = (), terms: Terms = TERMS) -> dict[str, Row]:
    return {row.arm: row for row in compare(a, b, earlier, terms)}


@pytest.mark.parametrize(
    ("pack2", "verdict", "flags"),
    [
        (0.9e-3, "SAME", ()),
        (0.8e-3, "FASTER", ()),
        (1.0e-3, "SLOWER", ()),
        (0.908e-3, "SLOWER", ("small",)),
    ],
)
def test_an_arm_is_compared_by_its_ratio_to_the_baseline(
    pack2: float, verdict: str, flags: tuple[str, ...]
) -> None:
    found = rows(summary(), summary(pack2=pack2))
    assert found["base"].verdict == "REFERENCE"
    row = found["pack2"]
    assert (row.verdict, row.reference, row.blocks) == (verdict, "base", (6, 6))
    assert row.flags == ("identical in both", *flags)
    assert row.ratio == pytest.approx(0.9e-3 / pack2, rel=1e-6)
    assert row.ci is not None
    assert row.ci[0] < row.ratio < row.ci[1]


def test_a_machine_that_became_slower_is_no_regression() -> None:
    slower = {name: value * 1.1 for name, value in times(pack2=0.9e-3).items()}
    row = rows(summary(), summary(**slower))["pack2"]
    assert row.verdict == "SAME"
    assert row.ratio == pytest.approx(1)
    assert row.times_ratio == pytest.approx(1 / 1.1, rel=1e-3)


def test_the_reference_is_what_is_the_same_code_in_both() -> None:
    arms = ("pack2", "frozen", "pack3")
    seconds = {"frozen": 1.5e-3, "pack3": 0.8e-3}
    header = make_header(arms)
    a = summary(header, **seconds)
    b = summary(header, **seconds | {"base": 1.2e-3, "aa": 1.2e-3})
    found = rows(a, b)
    assert found["frozen"].verdict == "REFERENCE"
    assert (found["pack2"].reference, found["pack2"].verdict) == ("frozen", "SAME")
    assert (found["base"].reference, found["base"].verdict) == ("frozen", "SLOWER")
    other = summary(change(header, "frozen", "base"), **seconds)
    again = rows(a, other)
    assert again["pack2"].verdict == "REFERENCE"
    assert again["pack3"].reference == "pack2"
    assert not again["base"].identical


def test_a_reference_may_have_another_label() -> None:
    a = summary(make_header(("pack2", "pack3")), pack3=0.8e-3)
    changed = change(make_header(("pack2", "pack1", "pack3")), "base", "pack2", "pack3")
    b = summary(changed, pack1=1e-3, pack3=0.8e-3)
    assert rows(a, b)["pack3"].reference == "base / pack1"


def test_no_arm_is_its_own_reference() -> None:
    """What base was in A is pack1 in B, and nothing else is the same."""
    a = summary(make_header(("pack2",)))
    b = summary(change(make_header(("pack2", "pack1")), "base", "pack2"), pack1=1e-3)
    found = rows(a, b)
    assert (found["base"].verdict, found["base"].ratio) == ("UNDECIDED", None)
    assert found["pack2"].reference == "base / pack1"


def test_a_wrong_or_unmeasured_reference_is_none() -> None:
    header = make_header(("pack2", "frozen"))
    lines = [verified("frozen", passed=False)]
    found = rows(summary(header, frozen=1e-3), summary(header, lines=lines, frozen=1e-3))
    assert found["pack2"].reference == "base"
    assert found["frozen"].verdict == "WRONG"


def test_nothing_is_decided_without_a_reference() -> None:
    header = make_header(("pack2",))
    found = rows(summary(header), summary(change(header, "base", "pack2"), pack2=2e-3))
    for row in found.values():
        assert (row.verdict, row.ratio, row.ci) == ("UNDECIDED", None, None)
        assert row.reason == "no other arm is the same code in both records"
    assert found["pack2"].times_ratio == pytest.approx(0.45, rel=1e-3)


def test_old_records_do_not_know_their_code() -> None:
    old = make_header()
    blank = tuple(msgspec.structs.replace(choice, source="") for choice in old.choices)
    old = msgspec.structs.replace(old, choices=blank)
    assert {row.verdict for row in rows(summary(old), summary(old)).values()} == {"UNDECIDED"}


@pytest.mark.parametrize("blocks", [1, 5])
def test_few_blocks_decide_nothing(blocks: int) -> None:
    for a, b in ((6, blocks), (blocks, 6)):
        row = rows(summary(blocks=a), summary(blocks=b, pack2=3e-3))["pack2"]
        assert (row.verdict, row.reason) == ("UNDECIDED", f"only {blocks} of at least 6 blocks")
        assert not row.is_compared


def test_blocks_that_do_not_differ_are_no_measurement() -> None:
    assert welch([0.1] * 6, [0.2] * 6, 0.99).blocks == 6
    lines = make_samples({"base": 1e-3, "aa": 1e-3, "pack2": 2e-3}, blocks=6)
    flat = [
        msgspec.structs.replace(line, long=lines[0].long, short=lines[0].short)  # type: ignore[union-attr]
        for line in lines
    ]
    same = summarise(make_run(make_header(), flat))
    row = rows(same, same)["pack2"]
    assert (row.verdict, "do not differ at all" in row.reason) == ("UNDECIDED", True)


def test_welch_is_scipys() -> None:
    from scipy.stats import ttest_ind

    a, b = [0.1, 0.12, 0.09, 0.11, 0.1, 0.13], [0.2, 0.25, 0.18, 0.22, 0.3, 0.1, 0.2, 0.21]
    found = welch(a, b, 0.98)
    bounds = ttest_ind(b, a, equal_var=False).confidence_interval(0.98)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high))
    assert found.estimate == pytest.approx((found.low + found.high) / 2)
    assert found.estimate > 0


def test_false_alarms_are_rare_whenever_the_runs_end() -> None:
    """A/A pairs that end at the worst pair of looks for the verdict, at a nominal 10 %."""
    draw = np.random.default_rng(1)
    looks = (6, 8, 12, 16)

    def alarms(level: float) -> int:
        runs = [(draw.normal(0, 1, 16), draw.normal(0, 3, 16)) for _ in range(60)]
        ends = [[welch(a[:x], b[:y], level) for x in looks for y in looks] for a, b in runs]
        return sum(any(end.low > 0 or end.high < 0 for end in each) for each in ends)

    assert alarms(family_level(0.9, 1, len(looks) ** 2)) <= 6
    assert alarms(0.9) > 6  # what the looks would cost


def test_more_arms_and_looks_mean_wider_intervals() -> None:
    def width(arms: tuple[str, ...] = (), looks: tuple[int, ...] = (6,)) -> float:
        header = make_header(("pack2", *arms), looks=looks)
        one = summary(header, **dict.fromkeys(arms, 1e-3))
        ci = rows(one, one)["pack2"].ci
        assert ci is not None
        return ci[1] - ci[0]

    assert width() < width(("pack3",)) < width(("pack3", "pack0"))
    # 2 x 2 looks count like four arms.
    assert width(looks=(6, 8)) == pytest.approx(width(("pack3", "pack0", "rows2")))


def test_blocks_beyond_a_look_are_not_used() -> None:
    header = make_header(looks=(6, 8))
    assert rows(summary(header, 7), summary(header, 8))["pack2"].blocks == (6, 8)


def test_a_twin_that_differs_takes_small_verdicts_away() -> None:
    a = summary(aa=1.02e-3, pack2=0.9e-3)
    assert a.void  # the command refuses it; the rule holds all the same
    row = rows(a, summary(pack2=0.91e-3))["pack2"]
    assert (row.verdict, "twin" in row.reason) == ("UNDECIDED", True)


def test_an_arm_in_a_slow_mode_is_not_compared() -> None:
    """One of three passes of each block is twice as slow in B; clean pairs alone say SAME."""
    lines = [
        msgspec.structs.replace(line, long=make_leg(90, 2e-3), short=make_leg(10, 2e-3))
        if isinstance(line, Sample) and (line.arm, line.pass_) == ("pack2", 1)
        else line
        for line in make_samples(times(pack2=0.9e-3))
    ]
    a, b = summary(), summarise(make_run(make_header(), lines))
    for found in (rows(a, b), rows(b, a)):
        assert found["pack2"].verdict == "UNDECIDED"
        assert found["pack2"].reason.startswith("modes: ")


def test_flags_of_both_runs_stand_once() -> None:
    header = make_header(("pack1", "pack2"))
    far = {"pack1": 1e-3, "pack2": 4e-3}
    assert rows(summary(header, **far), summary(header, **far))["pack2"].flags == (
        "identical in both",
        "compute-bound",
    )
    near = summary(header, **far | {"pack2": 1.007e-3})
    found = rows(near, summary(header, **far))
    assert found["pack2"].flags == ("identical in both", "B: compute-bound")
    assert found["pack1"].flags == ("identical in both",)


def test_what_b_says_of_an_arm_comes_first() -> None:
    lines = [Failed(case=CASE.id, arm="pack2", stage="compile", reason="log")]
    good, bad = summary(), summary(lines=lines)
    row = rows(good, bad)["pack2"]
    assert (row.verdict, row.reason, row.newly_broken) == ("FAILED", "compile: log", True)
    assert not rows(bad, bad)["pack2"].newly_broken
    row = rows(bad, good)["pack2"]
    assert (row.verdict, row.reason) == ("UNDECIDED", "FAILED in A: compile: log")


def run_of(scale: float, header: Header) -> Summary:
    return summary(header, pack2=0.9e-3 * scale, base=1.3e-3, aa=1.3e-3)


@pytest.mark.parametrize(
    ("scale", "verdict"), [(1.0, "UNDECIDED"), (1.5, "SLOWER"), (0.6, "FASTER")]
)
def test_earlier_runs_tell_what_absolute_times_are_worth(scale: float, verdict: str) -> None:
    header = make_header()
    a, b = run_of(1, header), run_of(scale, change(header, "base", "pack2"))
    earlier = [run_of(1 + 0.01 * i, header) for i in range(-3, 4)]
    row = rows(a, b, earlier)["pack2"]
    assert (row.verdict, row.reference) == (verdict, "earlier runs")
    assert row.ratio == pytest.approx(1 / scale, rel=1e-3)
    assert row.ci is not None
    assert row.ci[1] / row.ci[0] > 1.2  # runs differ by 2 %, blocks by a tenth of that
    few = rows(a, b, earlier[:5])["pack2"]
    assert few.verdict == "UNDECIDED"
    assert "5 of at least 6 earlier runs" in few.reason


def test_earlier_runs_of_other_code_do_not_count() -> None:
    header = make_header()
    other = change(header, "base", "pack2")
    earlier = [run_of(1 + 0.01 * i, other) for i in range(7)]
    row = rows(run_of(1, header), run_of(2, other), earlier)["pack2"]
    assert (row.verdict, "0 of at least 6" in row.reason) == ("UNDECIDED", True)


def test_run_spread_adds_in_quadrature() -> None:
    from scipy.stats import t

    interval = welch([0.0, 0.1, 0.2], [0.3, 0.4, 0.6], 0.95)
    runs = [0.0, 0.1, -0.1, 0.05, 0.02, -0.03]
    wide = add_run_spread(interval, runs, 0.95)
    own = (interval.high - interval.low) / 2
    more = t.ppf(0.975, 5) * 2**0.5 * np.std(runs, ddof=1)
    assert wide.high - wide.estimate == pytest.approx((own**2 + more**2) ** 0.5)
    assert wide.low + wide.high == pytest.approx(2 * interval.estimate)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "other"}, "dev: name 'scripted cpu' and 'other'"),
        ({"driver": "2"}, "dev: driver '1' and '2'"),
        ({"version": "9"}, "dev: version '1' and '9'"),
        ({"compute_units": 8}, "dev: compute units 4 and 8"),
        ({"id": "x"}, "no device in common (dev and x)"),
    ],
)
def test_unlike_devices_are_named(fields: Any, says: str) -> None:
    header = make_header()
    device = msgspec.structs.replace(DEVICE, **fields)
    other = Run(header=msgspec.structs.replace(header, devices=(device,)))
    assert find_differences(Run(header=header), other) == (says,)


def test_unlike_compilers_count_for_cuda_alone() -> None:
    def run(backend: str, nvrtc: str) -> Run:
        device = msgspec.structs.replace(DEVICE, backend=backend)
        environment = {"nvidia-cuda-nvrtc": nvrtc, "python": nvrtc}
        header = msgspec.structs.replace(make_header(), devices=(device,), environment=environment)
        return Run(header=header)

    assert find_differences(run("cuda", "13.0"), run("cuda", "13.1")) == ("NVRTC 13.0 and 13.1",)
    assert find_differences(run("fake", "13.0"), run("fake", "13.1")) == ()
    notes = find_notes(run("cuda", "13.0"), run("cuda", "13.1"))
    assert notes == ("Environment of A and B: python 13.0 and 13.1.",)


@pytest.mark.parametrize(
    ("sources", "binaries", "workgroups", "same"),
    [
        (("s", "s"), ("", ""), (4, 4), True),
        (("s", "t"), ("", ""), (4, 4), False),
        (("", ""), ("", ""), (4, 4), False),
        (("s", "t"), ("b", "b"), (4, 4), True),
        (("s", "t"), ("b", "b"), (4, 8), False),
        (("s", "s"), ("b", "c"), (4, 4), False),
        (("s", "s"), ("b", ""), (4, 4), True),
        (("", ""), ("b", "b"), (4, 4), True),
    ],
)
def test_identity(sources: Any, binaries: Any, workgroups: Any, same: bool) -> None:
    choice = make_header().choices[0]

    def build(place: int) -> Build:
        outcome = msgspec.structs.replace(choice.outcome, workgroups=workgroups[place])
        named = msgspec.structs.replace(choice, source=sources[place], outcome=outcome)
        return Build(choice=named, binary=binaries[place])

    assert identical(build(0), build(1)) == same


@pytest.mark.parametrize("backend", ["cuda", "opencl", "fake"])
def test_only_cubins_show_identity(backend: str) -> None:
    info = msgspec.structs.replace(DEVICE, backend=backend)
    _, job = choose(parse_arm("pack2"), "pack2", CASE, DEVICE)
    assert isinstance(job, KernelJob)
    request = Verify(device=info, case=CASE, jobs=(job,), siblings=(), seed=0)
    messages = Verifier(FakeBackend(info, Script()), request).messages()
    (found,) = [message for message in messages if isinstance(message, Verified)]
    # The fake's binary is the text.
    assert found.binary == (short_digest(job.text.encode()) if backend == "cuda" else "")


def test_cubins_tell_arms_of_one_run_apart() -> None:
    header = make_header(("pack2", "pack1"))

    def view(**binaries: str) -> CaseView:
        lines = [
            msgspec.structs.replace(verified(arm), binary=binary)
            for arm, binary in binaries.items()
        ]
        return CaseView(make_run(header, lines), CASE)

    def flags(found: CaseView) -> dict[str, tuple[str, ...]]:
        return {result.arm: result.flags for result in found.results()}

    assert flags(view())["pack1"] == ("identical to base",)
    assert flags(view(base="a", pack1="b", pack2="a"))["pack1"] == ()


Command = Callable[..., Answer]
Write = Callable[..., Path]
AB = ("ab", "--shape", SHAPE, "--quick")


@pytest.fixture
def measure(
    gemvbench: Command, script: Write, tmp_path: Path, in_process: None
) -> Callable[..., Path]:
    """Make a record on the fake, each with a seed of its own."""
    made: list[Path] = []

    def run(*words: object, arm: str = "pack2", rules: Any = (), **fields: Any) -> Path:
        path = tmp_path / f"{len(made)}.jsonl"
        script([*rules], **fields)
        answer = gemvbench(*AB, *words, "--arm", arm, "--seed", len(made), "--record", path)
        assert path.exists(), answer.err
        made.append(path)
        return path

    return run


def regressed(factor: float) -> list[dict[str, Any]]:
    return [{"match": {"PACK": "2"}, "gbps": 0.02 * factor}]


def test_command_finds_a_regression(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a, b = measure(), measure(rules=regressed(0.9))
    answer = gemvbench("compare", a, b, "--format", "json")
    assert answer.code == 1
    base, pack2 = answer.json["results"]
    assert (base["verdict"], pack2["verdict"]) == ("REFERENCE", "SLOWER")
    assert pack2["ratio"] == pytest.approx(0.9, abs=0.01)
    assert gemvbench("compare", b, a).code == 0  # the other way round it is faster
    assert gemvbench("compare", a, b, "--min-effect", "20%").code == 0
    assert gemvbench("compare", a, b, "-k", "nothing").code == 2


def test_command_on_the_same_code_twice(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a, b = measure(), measure()
    answer = gemvbench("compare", a, b)
    assert answer.code == 0
    assert "identical in both" in answer.out
    assert "SLOWER" not in answer.out
    assert str(a) in answer.out
    assert str(b) in answer.out


def test_command_after_the_machine_became_slower(
    gemvbench: Command, measure: Callable[..., Path]
) -> None:
    slower = [{**READ, "gbps": READ["gbps"] * 0.9}, {"gbps": SPEED["gbps"] * 0.9}]
    answer = gemvbench("compare", measure(), measure(rules=slower), "--format", "json")
    assert answer.code == 0
    assert answer.json["results"][1]["verdict"] in ("SAME", "UNDECIDED")
    assert answer.json["results"][1]["times_ratio"] == pytest.approx(0.9, abs=0.01)


def test_command_in_every_format(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a, b = measure(), measure(rules=regressed(0.9))
    table = list(csv.DictReader(io.StringIO(gemvbench("compare", a, b, "--format", "csv").out)))
    assert [row["verdict"] for row in table] == ["REFERENCE", "SLOWER"]
    assert (table[1]["blocks_a"], table[1]["blocks_b"]) == ("6", "6")
    markdown = gemvbench("compare", a, b, "--format", "md").out
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    out = a.parent / "out"
    assert gemvbench("compare", a, b, "-o", out).out == ""
    assert "SLOWER" in out.read_text()


def test_command_refuses_what_is_unlike(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a = measure()
    b = measure("--regime", "hot", devices=[{"units": 8}], rules=regressed(0.9))
    refused = gemvbench("compare", a, b)
    assert (refused.code, refused.out) == (4, "")
    assert "fake0: compute units 4 and 8; regime stream and hot" in refused.err
    assert refused.err.count("\n") == 1
    forced = gemvbench("compare", a, b, "--force")
    assert forced.code == 1
    assert "FORCED" in forced.out
    assert "regime stream and hot" in forced.out


def test_command_refuses_one_run_twice(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a, b = measure(), measure()
    copy = a.with_name("copy")
    copy.write_bytes(a.read_bytes())
    assert "both hold the same run" in gemvbench("compare", a, copy).err
    answer = gemvbench("compare", a, b, "--earlier", copy, "--earlier", b)
    assert answer.code == 4
    assert f"{copy} against A: both hold the same run" in answer.err
    assert f"{b} is given twice" in answer.err


def test_command_without_a_common_case(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a, b = measure(), measure("--shape", "256x32")
    answer = gemvbench("compare", a, b)
    assert answer.code == 0
    assert "case gemv-256x32-f16-f16, only in B" in answer.out
    other = measure("--shape", "256x32", "-k", "256x32")
    refused = gemvbench("compare", a, other)
    assert (refused.code, "no case in common" in refused.err) == (4, True)
    assert gemvbench("compare", a, other, "--force").code == 4


def test_command_tells_what_broke(gemvbench: Command, measure: Callable[..., Path]) -> None:
    a = measure()
    wrong = measure(faults=[{"match": {"PACK": "2"}, "fault": "wrong_last_row"}])
    answer = gemvbench("compare", a, wrong)
    assert answer.code == 3
    assert "pack2 WRONG: " in answer.out
    assert gemvbench("compare", wrong, wrong, "--force").code == 4  # broken in both: no news


def test_command_uses_earlier_runs(
    gemvbench: Command, measure: Callable[..., Path], tmp_path: Path
) -> None:
    """All code changed, so there is no reference; six earlier runs are one."""
    kernel = tmp_path / "k.cl"
    arms = f"mine={kernel}:gemv_row+pack2"
    words = ("--baseline", f"old={kernel}:gemv_row")
    kernel.write_text("void gemv_row(void) {}")
    speeds = (0.99, 1.0, 1.01, 0.995, 1.005, 1.0)
    earlier = [measure(*words, arm=arms, rules=regressed(speed)) for speed in speeds]
    a = measure(*words, arm=arms)
    kernel.write_text("void gemv_row(void) {;}")
    b = measure(*words, arm=arms, rules=regressed(0.8))
    alone = gemvbench("compare", a, b)
    assert alone.code == 4
    assert alone.out.count("no other arm is the same code in both records") == 2
    given = [word for path in earlier for word in ("--earlier", path)]
    answer = gemvbench("compare", a, b, *given, "--format", "json")
    old, mine = answer.json["results"]
    assert old["verdict"] in ("SAME", "UNDECIDED")
    assert (mine["verdict"], mine["reference"]) == ("SLOWER", "earlier runs")
    assert mine["ratio"] == pytest.approx(0.8, abs=0.01)
    assert answer.code == 1
    few = gemvbench("compare", a, b, *given[:-2])
    assert few.code == 4
    assert "5 of at least 6 earlier runs hold this one" in few.out
