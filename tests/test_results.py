"""From samples made by hand to verdicts: directions, precedence, flags."""

from __future__ import annotations

import math
import statistics
import timeit
from typing import Any

import msgspec
import pytest
from records import (
    CASE,
    make_header,
    make_leg,
    make_run,
    make_sample,
    make_samples,
    times,
    verified,
)

from gemvbench.commands.ab import exit_code
from gemvbench.errors import Exit
from gemvbench.messages import Check, Failed, RoofMeasured, Sample, Verified
from gemvbench.plan import TWIN
from gemvbench.record import Charged, Line
from gemvbench.report.claims import claim
from gemvbench.report.comparison import comparison_document
from gemvbench.report.formats import render
from gemvbench.result import Result
from gemvbench.results import Summary, summarise
from gemvbench.stats import LOOKS

CRASH = Charged(stage="measure", case=CASE.id, arm="pack2", reason="signal SIGABRT")


def summary(pack2: float = 1e-3, lines: Any = (), blocks: int = 6, **settings: Any) -> Summary:
    samples = make_samples(times(pack2=pack2), blocks)
    return summarise(make_run(make_header(**settings), [*samples, *lines]))


def by_arm(found: Summary) -> dict[str, Result]:
    return {result.arm: result for result in found.results}


def result(*args: Any, **kwargs: Any) -> Result:
    return by_arm(summary(*args, **kwargs))["pack2"]


@pytest.mark.parametrize(
    ("seconds", "verdict", "ratio"),
    [
        (0.8e-3, "FASTER", 1.25),
        (1.25e-3, "SLOWER", 0.8),
        (1e-3, "SAME", 1.0),
        (1.007e-3, "SLOWER", 1 / 1.007),
    ],
)
def test_verdicts_and_the_direction_of_the_ratio(
    seconds: float, verdict: str, ratio: float
) -> None:
    found = result(seconds)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(ratio, rel=1e-3)
    assert found.ci is not None
    assert found.ci[0] < found.ratio < found.ci[1]
    assert (found.blocks, found.passes) == (6, 18)
    assert found.seconds_per_call == pytest.approx(seconds * 1.05, rel=5e-3)
    assert found.gbps == pytest.approx(CASE.bytes_moved / (seconds * 1.05) / 1e9, rel=5e-3)
    assert found.roof_fraction == pytest.approx(0.5e-3 / seconds, rel=5e-3)
    assert found.verified is True
    assert ("small" in found.flags) == (seconds == 1.007e-3)


def test_five_blocks_decide_nothing() -> None:
    found = result(0.5e-3, blocks=5)
    assert (found.verdict, found.reason) == ("UNDECIDED", "only 5 of at least 6 blocks")


def test_baseline_and_twin_stand_beside() -> None:
    found = by_arm(summary())
    assert [*found] == ["base", TWIN, "pack2"]
    assert (found["base"].verdict, found["base"].ratio) == ("BASELINE", 1.0)
    assert found[TWIN].ratio == pytest.approx(1, abs=2e-3)


def test_noise_floor_is_the_twins_half_width() -> None:
    found = summary()
    ci = by_arm(found)[TWIN].ci
    assert ci is not None
    assert found.noise_floor == pytest.approx(math.log(ci[1] / ci[0]) / 2)
    arms = [r.min_detectable_effect for r in found.results if r.arm not in ("base", TWIN)]
    assert found.min_detectable_effect == statistics.median(filter(None, arms))


def test_more_arms_mean_wider_intervals() -> None:
    def width(arms: tuple[str, ...]) -> float:
        lines = make_samples(times(**dict.fromkeys(arms, 0.9e-3)))
        found = by_arm(summarise(make_run(make_header(arms), lines)))["pack2"]
        assert found.ci is not None
        return found.ci[1] - found.ci[0]

    assert width(("pack2", "pack3", "pack0")) > 1.2 * width(("pack2",))


def test_a_wrong_arm_is_wrong_whatever_it_measured() -> None:
    lines = [verified("pack2", passed=False), CRASH]
    found = result(0.5e-3, lines)
    assert (found.verdict, found.verified) == ("WRONG", False)
    assert found.reason == "exact: 1 rows wrong"
    assert claim(found).startswith("pack2: WRONG")
    assert "exact: 1 rows wrong" in claim(found)


def test_a_timed_run_that_is_wrong_is_wrong() -> None:
    lines: list[Line] = make_samples(times(pack2=0.5e-3))
    last = lines[-1]
    assert isinstance(last, Sample)
    assert last.arm == "pack2"
    lines[-1] = msgspec.structs.replace(last, correct=False)
    found = by_arm(summarise(make_run(make_header(), [*lines, CRASH])))["pack2"]
    assert (found.verdict, "timed run" in found.reason) == ("WRONG", True)


@pytest.mark.parametrize(
    "line", [CRASH, Failed(case=CASE.id, arm="pack2", stage="measure", reason="signal SIGABRT")]
)
def test_a_failed_arm_is_failed_and_keeps_its_numbers(line: Line) -> None:
    found = result(0.5e-3, [line])
    assert (found.verdict, found.reason) == ("FAILED", "measure: signal SIGABRT")
    assert found.ratio == pytest.approx(2, rel=1e-2)
    assert by_arm(summary(lines=[line]))["base"].verdict == "BASELINE"


def test_a_failed_baseline_leaves_nothing_to_compare() -> None:
    line = Failed(case=CASE.id, arm="base", stage="compile", reason="log")
    found = by_arm(summarise(make_run(make_header(), [line])))
    assert found["base"].verdict == found[TWIN].verdict == "FAILED"
    assert found["pack2"].verdict == "UNDECIDED"
    assert found["pack2"].reason == "the baseline base is FAILED"


def test_a_death_without_an_arm_is_told_where_nothing_was_measured() -> None:
    line = Charged(stage="inputs", case=CASE.id, arm="", reason="out of memory")
    found = by_arm(summarise(make_run(make_header(), [line])))
    assert {r.verdict for r in found.values()} == {"FAILED"}
    assert found["pack2"].reason == "inputs: out of memory"
    assert result(0.5e-3, [line]).verdict == "FASTER"


def test_a_declined_arm_says_why() -> None:
    found = by_arm(summarise(make_run(make_header(["acc16"]), make_samples(times()))))["acc16"]
    assert (found.verdict, found.constants, found.ratio) == ("DECLINED", {}, None)
    assert "FP16" in found.reason


def test_faster_than_the_roof_is_invalid_in_stream_alone() -> None:
    found = result(0.4e-3)
    assert (found.verdict, "roof" in found.reason) == ("INVALID", True)
    assert result(0.4e-3, regime="hot").verdict == "FASTER"
    assert result(0.49e-3).verdict == "FASTER"
    assert result(0.4e-3, [verified("pack2", passed=False)]).verdict == "WRONG"


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"long": make_leg(90, 1e-3, queued_ahead=False, enqueue=0.09)}, "host-bound in 18 of 18"),
        ({"long": make_leg(90, 1e-3, kernel=0.05)}, "launch gaps"),
        ({"long": make_leg(90, 1e-3, timeline=0.0)}, "18 of 18 measurements not positive"),
        ({"middle": make_leg(50, 1.8e-3)}, "non-linear (+"),
    ],
)
def test_flags_of_the_measurement(fields: Any, flag: str) -> None:
    lines = make_samples(times())
    lines += make_samples({"pack2": 1e-3}, **fields)
    found = by_arm(summarise(make_run(make_header(), lines)))
    assert any(text.startswith(flag) for text in found["pack2"].flags), found["pack2"].flags
    assert found["base"].flags == ()


def test_flags_of_the_arm() -> None:
    slow = result(3e-3)
    assert any(flag.startswith("compute-bound") for flag in slow.flags)
    lines = make_samples(times(pack1=1e-3))
    found = by_arm(summarise(make_run(make_header(["pack1"]), lines)))
    assert "identical to base" in found["pack1"].flags


@pytest.mark.parametrize(
    ("pack2", "lines", "ended", "slower", "code"),
    [
        (1e-3, [], "complete", False, Exit.OK),
        (0.5e-3, [], "budget", True, Exit.OK),
        (2e-3, [], "complete", False, Exit.OK),
        (2e-3, [], "complete", True, Exit.REGRESSION),
        (1.007e-3, [], "complete", True, Exit.OK),
        (2e-3, [], "interrupted", True, Exit.NO_DEVICE),
        (0.4e-3, [], "complete", False, Exit.NO_DEVICE),
        (2e-3, [CRASH], "complete", True, Exit.WRONG),
        (2e-3, [verified("pack2", passed=False)], "interrupted", True, Exit.WRONG),
    ],
)
def test_exit_codes(pack2: float, lines: Any, ended: str, slower: bool, code: Exit) -> None:
    run = make_run(make_header(), [*make_samples(times(pack2=pack2)), *lines], ended)
    assert exit_code(summarise(run), fail_on_slower=slower) == code


def test_notes_name_sampling() -> None:
    detail = "64 sampled rows, first and last included"
    checks = (Check("exact", True), Check("random", True, detail))
    lines = [Verified(case=CASE.id, arm="pack2", checks=checks, digest="d")]
    text = render(comparison_document(summary(lines=lines)), "md")
    assert f"Verified against float64 in {detail}; exactly in all rows." in text


@pytest.mark.parametrize(
    ("clocks", "flags"),
    [
        ([0.93, 0.95], ("event clock of dev at 0.950 of the host's",)),
        ([1.05, 1.08], ("event clock of dev at 1.050 of the host's",)),
        ([0.95, 1.01], ()),  # a busy host, once
        ([], ()),
    ],
)
def test_a_wrong_event_clock_is_a_flag_of_the_run(
    clocks: list[float], flags: tuple[str, ...]
) -> None:
    lines = [
        RoofMeasured(arm=f"read{clock}", device="dev", bandwidth=1e9, event_clock=clock)
        for clock in clocks
    ]
    found = summary(lines=lines)
    assert found.flags == flags
    text = render(comparison_document(found), "table")
    assert ("event clock of dev ran at" in text) == bool(flags)


def test_pairs_with_a_slow_measurement_stand_beside_the_verdict() -> None:
    samples = [s for s in make_samples(times(pack2=0.8e-3)) if isinstance(s, Sample)]
    slow = [s for s in samples if s.arm == "pack2" and s.block == 4]
    kept = [s for s in samples if s not in slow]
    slow = [make_sample("pack2", 4, s.pass_, 4e-3) for s in slow]
    found = summarise(make_run(make_header(), [*kept, *slow]))
    pack2 = by_arm(found)["pack2"]
    assert (pack2.verdict, pack2.reason) == ("UNDECIDED", "only 5 of at least 6 blocks")
    assert (pack2.pairs, pack2.removed, pack2.blocks) == (18, 3, 5)
    assert pack2.ratio == pytest.approx(1.25, rel=1e-3)
    assert pack2.all_pairs_ratio == pytest.approx(1.25 * 0.2 ** (1 / 6), rel=1e-2)
    text = render(comparison_document(found), "md")
    assert "pack2: 3 of 18 pairs mix a slow measurement with others and carry no verdict" in text
    assert "slow in 3 of 18 (4.76x)" in text


def test_an_arm_slow_in_every_block_is_undecided_with_both_ratios() -> None:
    samples = [s for s in make_samples(times(pack2=0.8e-3)) if isinstance(s, Sample)]
    lines = [
        make_sample("pack2", s.block, 2, 1.6e-3) if (s.arm, s.pass_) == ("pack2", 2) else s
        for s in samples
    ]
    pack2 = by_arm(summarise(make_run(make_header(), lines)))["pack2"]
    assert (pack2.verdict, pack2.blocks) == ("UNDECIDED", 6)
    assert pack2.reason.startswith("modes")
    assert pack2.ratio is not None
    assert pack2.all_pairs_ratio is not None
    assert pack2.ratio > pack2.all_pairs_ratio


def test_statistics_grow_with_the_samples_and_not_with_their_square() -> None:
    def spent(arms: int) -> float:
        labels = [f"pack2+block{block}+unroll{u}" for block in (64, 128, 256, 512) for u in (1, 2)]
        more = [f"{label}+rows{rows}" for label in labels for rows in (1, 2, 4)][:arms]
        samples = make_samples(times(**dict.fromkeys(more, 1e-3)), 16)
        run = make_run(make_header(more, looks=LOOKS), samples)
        summarise(run)
        return min(timeit.repeat(lambda: summarise(run), number=1, repeat=5))

    # Four times the samples: 16 times by their square, which other work on a machine cannot hide.
    few = spent(6)
    assert min(spent(24), spent(24)) < 12 * few
