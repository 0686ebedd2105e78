"""Damaged records through `report` and `compare`: named, and no verdict the data cannot carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer
from records import make_header, make_run, make_sample, make_samples, times

from gemvbench.messages import BlockDone, Sample
from gemvbench.reading import read_record
from gemvbench.record import Line, Recorder, Run

Command = Callable[..., Answer]
Lines = list[dict[str, Any]]
VERDICTS = {"FASTER", "SLOWER", "SAME"}


def whole(blocks: int = 8) -> Run:
    """pack2 at 0.9 ms against 1 ms, block by block as a run writes it."""
    samples: list[Line] = [*make_samples(times(pack2=0.9e-3), blocks)]
    lines: list[Line] = []
    for block in range(blocks):
        lines += [line for line in samples if isinstance(line, Sample) and line.block == block]
        lines.append(BlockDone(block=block, parts={"measure": 1.0}))
    return make_run(make_header(looks=(6, 7, 8)), lines)


def write(path: Path, run: Run) -> Path:
    recorder = Recorder(run.header, path)
    for line in run.lines:
        recorder.add(line)
    recorder.close()
    return path


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", whole())


def spoiled(record: Path, spoil: Callable[[Lines], Any]) -> Path:
    """A copy in which the decoded lines were changed; a text among them is written as it is."""
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    lines = spoil(lines) or lines
    path = record.with_name("b.jsonl")
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def of_pack2(lines: Lines) -> Lines:
    return [x for x in lines if x["type"] == "Sample" and x["arm"] == "pack2"]


def without(keep: Callable[[dict[str, Any]], bool]) -> Callable[[Lines], Lines]:
    return lambda lines: [line for line in lines if keep(line)]


def report(gemvbench: Command, path: Path) -> tuple[dict[str, Any], str]:
    """pack2's result, and all the record's damage; `compare` agrees about the verdict."""
    answer = gemvbench("report", path, "--format", "json")
    assert answer.code == 0, answer.err
    damage = " ".join(answer.json["damage"])
    assert all(text in " ".join(gemvbench("report", path).out.split()) for text in damage.split())
    return answer.results()["pack2"], damage


def test_a_whole_record_has_no_damage(gemvbench: Command, record: Path) -> None:
    found, damage = report(gemvbench, record)
    assert (found["verdict"], found["blocks"], damage) == ("FASTER", 8, "")


def test_a_missing_block_is_said(gemvbench: Command, record: Path) -> None:
    gone = without(lambda line: line.get("block") not in (0, 3, 4))
    found, damage = report(gemvbench, spoiled(record, gone))
    assert (found["verdict"], found["blocks"]) == ("UNDECIDED", 5)
    assert damage == "No samples of block 0, 3 to 4; verdicts are over the blocks that are there."
    found, _ = report(gemvbench, spoiled(record, without(lambda line: line.get("block") != 3)))
    assert (found["verdict"], found["blocks"]) == ("FASTER", 7)


def test_unreadable_lines_cost_only_themselves(gemvbench: Command, record: Path) -> None:
    def spoil(lines: Lines) -> Any:
        bad = ["", "garbage", '{"type":"Unknown"}', "[" * 100_000, '{"type":"Sample"}', "\ud7ff"]
        return [*lines[:9], *bad, *lines[9:]]

    path = spoiled(record, spoil)
    found, damage = report(gemvbench, path)
    assert (found["verdict"], found["blocks"], found["passes"]) == ("FASTER", 8, 24)
    assert damage == (
        f"Left out: {path}, lines 10, 11, 12, 13, 14 and 1 more: not part of a gemvbench record."
    )


@pytest.mark.parametrize("value", ["NaN", "1e999", "null", '"x"', "-Infinity"])
def test_what_is_no_number_is_an_unreadable_line(
    gemvbench: Command, record: Path, value: str
) -> None:
    def spoil(lines: Lines) -> Any:
        last = of_pack2(lines)[-1]
        last["long"]["timeline"] = 77.25
        text = json.dumps(last).replace("77.25", value)
        return [text if line is last else line for line in lines]

    found, damage = report(gemvbench, spoiled(record, spoil))
    assert (found["verdict"], found["passes"]) == ("FASTER", 23)
    assert "line" in damage


@pytest.mark.parametrize("leg", ["long", "short"])
def test_negative_times_are_counted_and_decide_nothing(
    gemvbench: Command, record: Path, leg: str
) -> None:
    def spoil(count: int) -> Callable[[Lines], None]:
        def change(lines: Lines) -> None:
            for line in of_pack2(lines)[:count]:
                line[leg]["timeline"] = -1.0

        return change

    found, _ = report(gemvbench, spoiled(record, spoil(2)))
    assert (found["verdict"], found["passes"]) == ("FASTER", 22)
    assert found["flags"] == ["2 of 24 measurements not positive"]
    path = spoiled(record, spoil(24))
    found, _ = report(gemvbench, path)
    assert (found["verdict"], found["ratio"]) == ("UNDECIDED", None)
    assert found["flags"] == ["24 of 24 measurements not positive"]
    assert compared(gemvbench, record, path, code=4)["verdict"] not in VERDICTS


@pytest.mark.parametrize(
    "fields",
    [
        {"pass_": 3},
        {"pass_": -1},
        {"block": -1},
        {"block": 10**12},
        {"bytes_per_call": 0},
        {"short": {"calls": 90, "timeline": 0.01}},
        {"short": {"calls": 0, "timeline": 0.01}},
        {"long": {"calls": 10**400, "timeline": 0.01}},
        {"long": {"calls": 90, "timeline": 1e300}},
        {"short": {"calls": 10, "timeline": 1e-300}},
        {"middle": {"calls": 10, "timeline": 0.01}},
    ],
)
def test_samples_no_run_has_are_left_out(
    gemvbench: Command, record: Path, fields: dict[str, Any]
) -> None:
    def spoil(lines: Lines) -> None:
        sample = of_pack2(lines)[0]
        for name, value in fields.items():
            sample[name] = {**sample["long"], **value} if isinstance(value, dict) else value

    found, damage = report(gemvbench, spoiled(record, spoil))
    assert (found["verdict"], found["passes"]) == ("FASTER", 23)
    assert "Left out: 1 samples with a" in damage or "line" in damage


@pytest.mark.parametrize("fields", [{"arm": "pack9"}, {"case": "gemv-1x1-f16-f16"}])
def test_samples_of_what_the_header_lacks_are_left_out(
    gemvbench: Command, record: Path, fields: dict[str, str]
) -> None:
    def spoil(lines: Lines) -> None:
        for line in of_pack2(lines)[:5]:
            line.update(fields)

    found, damage = report(gemvbench, spoiled(record, spoil))
    assert (found["verdict"], found["passes"]) == ("FASTER", 19)
    assert damage == "Left out: 5 samples of arms or cases that the header does not name."


def test_duplicates_count_once_and_contradictions_not_at_all(
    gemvbench: Command, record: Path
) -> None:
    found, damage = report(gemvbench, spoiled(record, lambda x: x[:-1] + of_pack2(x)[:4] + x[-1:]))
    assert (found["passes"], damage) == (24, "Left out: 4 samples there twice.")

    def contradict(lines: Lines) -> Lines:
        copies = json.loads(json.dumps(of_pack2(lines)[:9]))
        for copy in copies:
            copy["long"]["timeline"] /= 2
        return lines[:-1] + copies + lines[-1:]

    found, damage = report(gemvbench, spoiled(record, contradict))
    assert (found["verdict"], found["blocks"], found["passes"]) == ("UNDECIDED", 5, 15)
    assert damage == "Left out: 18 samples that contradict each other about the same pass."


def test_one_block_alone(gemvbench: Command, tmp_path: Path, record: Path) -> None:
    path = write(tmp_path / "one", whole(1))
    found, _ = report(gemvbench, path)
    assert (found["verdict"], found["reason"]) == ("UNDECIDED", "only 1 of at least 6 blocks")
    assert compared(gemvbench, record, path, code=4)["reason"] == "only 1 of at least 6 blocks"


@pytest.mark.parametrize("arm", ["pack2", "base"])
def test_an_arm_without_its_verification_has_no_verdict(
    gemvbench: Command, record: Path, arm: str
) -> None:
    def unverified(line: dict[str, Any]) -> bool:
        return (line["type"], line.get("arm")) != ("Verified", arm)

    path = spoiled(record, without(unverified))
    found, _ = report(gemvbench, path)
    said = f"the record does not hold the verification of {arm}"
    assert (found["verdict"], found["reason"]) == ("UNDECIDED", said)
    assert compared(gemvbench, record, path, code=4)["verdict"] not in VERDICTS


def test_an_arm_that_ends_early_without_a_word_has_no_verdict(
    gemvbench: Command, record: Path
) -> None:
    """What said that it crashed may be what was lost."""
    late = without(lambda line: line.get("arm") != "pack2" or line.get("block", 0) < 7)
    path = spoiled(record, late)
    found, _ = report(gemvbench, path)
    assert (found["verdict"], found["blocks"]) == ("UNDECIDED", 7)
    assert "not in the last blocks" in found["reason"]
    assert compared(gemvbench, record, path, code=4)["verdict"] not in VERDICTS


def test_a_run_killed_in_a_block_keeps_its_verdict(gemvbench: Command, record: Path) -> None:
    """Its last line is torn, and its last block is not done."""
    lines = record.read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"arm":"base","long"' in line)
    path = record.with_name("torn")
    path.write_bytes(b"".join(lines[: last + 2])[:-9])
    found, damage = report(gemvbench, path)
    assert (found["verdict"], found["blocks"]) == ("FASTER", 7)
    assert damage == f"Left out: the last line of {path}, number {last + 2}, which is cut short."
    assert "without an end: the record is cut short" in gemvbench("report", path).out


def change_header(**fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0].update(fields)


def settings(**fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0]["settings"].update(fields)


REFUSED: list[tuple[Callable[[Lines], Any], int, str]] = [
    (lambda lines: lines[1:], 2, "does not start with a header"),
    (lambda lines: ["", *lines], 2, "line 1 is not part of a gemvbench record"),
    (lambda lines: ["[" * 100_000, *lines], 2, "line 1 is not part"),
    (lambda lines: [*lines, *lines], 2, "a second header"),
    (change_header(schema=2), 4, "schema 2"),
    (change_header(baseline="frozen"), 2, "is not its baseline 'frozen'"),
    (change_header(baseline="pack2"), 2, "is not its baseline 'pack2'"),
    (change_header(choices=[]), 2, "is not its baseline 'base'"),
    (lambda lines: lines[0]["choices"].append(lines[0]["choices"][1]), 2, "two arms of one name"),
    (lambda lines: lines[0]["choices"][1].update(label="aa"), 2, "two arms of one name"),
    (lambda lines: lines[0]["choices"][1].update(device="x"), 2, "does not describe device 'x'"),
    (change_header(devices=[]), 2, "no device or no case"),
    (change_header(cases=[]), 2, "no device or no case"),
    (lambda lines: lines[0]["cases"].append(lines[0]["cases"][0]), 2, "a case twice"),
    (lambda lines: lines[0]["cases"][0].update(k=0), 2, "has to be between"),
    (settings(looks=[]), 2, "do not rise"),
    (settings(looks=[8, 6]), 2, "do not rise"),
    (settings(passes=0), 2, "0 passes"),
    (settings(confidence=1.5), 2, "no share"),
    (settings(min_effect=-1), 2, "no share"),
    (
        change_header(grid=[{"row": "r", "column": "c", "device": "dev", "label": "pack9"}]),
        2,
        "its grid does not fit",
    ),
]


@pytest.mark.parametrize(("spoil", "code", "says"), REFUSED)
def test_what_is_no_record_is_refused(
    gemvbench: Command, record: Path, spoil: Callable[[Lines], Any], code: int, says: str
) -> None:
    path = spoiled(record, spoil)
    words = [("report", path), ("compare", record, path), ("compare", path, record)]
    words.append(("compare", record, record, "--force", "--earlier", path))
    for each in words:
        answer = gemvbench(*each)
        assert (answer.code, answer.out) == (code, ""), answer.err
        assert says in answer.err
        assert str(path) in answer.err
        assert answer.err.count("\n") == 1


def test_an_empty_file_is_refused(gemvbench: Command, record: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    for words in (("report", path), ("compare", record, path)):
        answer = gemvbench(*words)
        assert (answer.code, "does not start with a header" in answer.err) == (2, True)


def test_an_old_record_is_read(gemvbench: Command, record: Path) -> None:
    """One made before arms had digests."""

    def spoil(lines: Lines) -> None:
        for choice in lines[0]["choices"]:
            del choice["source"]
        for line in lines:
            line.pop("binary", None)

    path = spoiled(record, spoil)
    assert report(gemvbench, path)[0]["verdict"] == "FASTER"
    assert compared(gemvbench, record, path, code=4)["verdict"] not in VERDICTS


@pytest.mark.parametrize("name", [p.name for p in Path("docs/records").glob("*.jsonl.gz")])
def test_the_projects_own_records_are_whole(name: str) -> None:
    assert read_record(Path("docs/records") / name).damage == ()


def compared(gemvbench: Command, a: Path, b: Path, code: int) -> dict[str, Any]:
    answer = gemvbench("compare", a, b, "--format", "json")
    assert answer.code == code, answer.err
    (found,) = [row for row in answer.json["results"] if row["arm"] == "pack2"]
    return dict(found)


def test_two_blocks_of_many_arms_are_wide_beyond_numbers(
    gemvbench: Command, tmp_path: Path
) -> None:
    """Student's t with one degree of freedom: exp of the half-width does not fit a float."""
    samples = [
        make_sample(arm, block, 0, 1e-3 * (1 + block * (arm == "pack2")))
        for arm in ("base", "aa", "pack2", "roof")
        for block in range(2)
    ]
    run = make_run(make_header(confidence=0.99999), samples)
    found, _ = report(gemvbench, write(tmp_path / "wide", run))
    assert (found["verdict"], found["ci"][1]) == ("UNDECIDED", None)
