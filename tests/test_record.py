"""Records: what goes in comes out, and what is broken is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from records import CASE, make_header, make_samples, times, verified

from gemvbench.errors import Exit, UserError
from gemvbench.messages import BlockDone, Calibrated, Failed, Leg, RoofMeasured, Sample
from gemvbench.reading import read_record
from gemvbench.record import Charged, Ended, Line, Recorder, default_path

LINES: list[Line] = [
    verified("base"),
    verified("pack2", passed=False),
    Failed(case=CASE.id, arm="pack3", stage="compile", reason="gemv.cl:3: error: 'ä' \n two"),
    Calibrated(case=CASE.id, arm="base", seconds=1.25e-5),
    RoofMeasured(arm="r", device="dev", bandwidth=1e11, event_clock=1.0),
    *make_samples(times(), blocks=1),
    BlockDone(block=0, parts={"measure": 1.5}),
    Charged(stage="measure", case=CASE.id, arm="pack2", reason="signal"),
    Ended(reason="complete", seconds=2.5),
]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "run.jsonl"
    recorder = Recorder(make_header(), path)
    for line in LINES:
        recorder.add(line)
    recorder.close()
    assert recorder.is_kept
    return path


def test_round_trip(record: Path) -> None:
    run = read_record(record)
    assert run.header == make_header()
    assert list(run.lines) == LINES
    assert run.damage == ()


def test_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    recorder = Recorder(make_header(), tmp_path / "r")
    for count, line in enumerate(LINES, 1):
        recorder.add(line)
        assert len(read_record(tmp_path / "r").lines) == count


def test_samples_keep_everything(record: Path) -> None:
    leg = {field.name for field in msgspec.structs.fields(Leg)}
    assert leg == {"calls", "timeline", "kernel", "host", "enqueue", "queued_ahead"}
    (first, *_) = read_record(record).of(Sample)
    assert first.seconds == pytest.approx(1e-3)
    assert first.kernel_seconds == pytest.approx(1e-3)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_truncated_last_line_is_dropped_and_noted(record: Path, cut: int) -> None:
    record.write_bytes(record.read_bytes()[: -1 - cut])
    run = read_record(record)
    assert run.damage == (
        f"Left out: the last line of {record}, number {len(LINES) + 1}, which is cut short.",
    )
    assert list(run.lines) == LINES[:-1]


def test_a_missing_newline_alone_loses_nothing(record: Path) -> None:
    record.write_bytes(record.read_bytes()[:-1])
    assert list(read_record(record).lines) == LINES


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        read_record(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [b"\xff\x00", *lines],
        lambda lines: [lines[0][:50]],
        lambda lines: lines[1:],
        lambda lines: [],
        lambda lines: [b"[]"],
    ],
)
def test_garbage_is_named_with_its_line(
    record: Path, spoil: Callable[[list[bytes]], list[bytes]]
) -> None:
    record.write_bytes(b"\n".join(spoil(record.read_bytes().splitlines())))
    error = refused(record)
    assert "gemvbench record" in str(error)
    assert error.code == Exit.USAGE


def test_another_schema_is_told_apart(record: Path) -> None:
    record.write_bytes(record.read_bytes().replace(b'"schema":1', b'"schema":2'))
    error = refused(record)
    assert "schema 2" in str(error)
    assert error.code == Exit.NO_DEVICE


def test_another_schema_with_other_fields_is_told_apart(record: Path) -> None:
    record.write_bytes(b'{"type":"Header","schema":7,"version":"9","novel":1}\n')
    assert "schema 7" in str(refused(record))


@pytest.mark.parametrize("name", ["absent", ""])
def test_no_file(tmp_path: Path, name: str) -> None:
    assert "cannot be read" in str(refused(tmp_path / name))


@pytest.mark.parametrize("place", ["/dev/full", "/dev/full/below", "/proc/none/r"])
def test_a_full_disk_costs_only_the_file(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(make_header(), Path(place))
    for line in LINES:
        recorder.add(line)
    recorder.close()
    assert list(recorder.run().lines) == LINES
    assert not recorder.is_kept
    err = capsys.readouterr().err
    assert err.count(f"the record {place} cannot be written") == 1
    assert "--record" in err


def test_default_paths_lie_in_the_users_folder(tmp_path: Path) -> None:
    path = default_path("ab")
    assert tmp_path in path.parents
    assert path.name.endswith(".jsonl")
