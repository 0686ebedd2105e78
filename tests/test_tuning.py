"""Tables of tuned arms: which row holds, and what is done with one that does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Answer, make_device

from gemvbench import tuning_files
from gemvbench.arm import FAMILIES, parse_arm
from gemvbench.attention_case import Attention
from gemvbench.case import Gemv
from gemvbench.device import DeviceInfo
from gemvbench.dispatch import advise, recommend, specialize
from gemvbench.errors import UserError
from gemvbench.folders import tables_folder
from gemvbench.outcome import Specialization
from gemvbench.record import Header
from gemvbench.source import kernel_interface
from gemvbench.tuning import (
    AttentionRow,
    Finding,
    Row,
    Table,
    Tuned,
    TunedAttention,
    Tuning,
    distance,
    make_row,
)
from gemvbench.tuning_files import SHIPPED, kernel_digest, load_tuning, read_table, store_row
from gemvbench.workspace import ARGUMENTS

GPU = make_device(id="gpu0", kind="gpu")


INTERFACE = kernel_interface()


def row(**fields: Any) -> Row:
    usual: dict[str, Any] = {
        "k": 4096, "n": 4096, "w": "f16", "x": "f16", "arm": "pack3+rows2+block128",
        "rule": "pack3+blockauto", "ratio": 1.05, "low": 1.04, "high": 1.06, "tried": 44,
        "driver": "1", "interface": INTERFACE, "kernel": kernel_digest("row", "opencl"),
        "version": "0.1.0", "date": "2026-12-01",
    }  # fmt: skip
    return Row(**(usual | fields))


def tuned(*rows: Row, source: str = "user's", refused: tuple[str, ...] = ()) -> DeviceInfo:
    made = Tuning(rows=tuple(Tuned(row=each, source=source) for each in rows), refused=refused)
    return msgspec.structs.replace(GPU, tuning=made)


def attention_row(**fields: Any) -> AttentionRow:
    case = {name: fields.pop(name) for name in list(fields) if name in Attention.__struct_fields__}
    usual = {name: value for name, value in msgspec.structs.asdict(row()).items() if len(name) > 1}
    own = {"arm": "splitkv+splits16", "rule": "splitkv", "kernel": "", **fields}
    return make_row(attention(**case), Finding(**(usual | own)))  # type: ignore[return-value]


def attention(**fields: Any) -> Attention:
    given = {"heads": 32, "kv_heads": 8, "head_dim": 128, "context": 4096} | fields
    return Attention(**given)


def tuned_attention(*rows: AttentionRow) -> DeviceInfo:
    known = tuple(TunedAttention(row=each, source="user's") for each in rows)
    return msgspec.structs.replace(GPU, tuning=Tuning(attention=known))


# Near and far.


@pytest.mark.parametrize(
    ("case", "near"),
    [
        (Gemv(k=4096, n=4096), True),
        (Gemv(k=5120, n=4096), True),
        (Gemv(k=5128, n=4096), False),
        (Gemv(k=3280, n=4096), True),
        (Gemv(k=3272, n=4096), False),
        (Gemv(k=4096, n=8192), True),
        (Gemv(k=4096, n=8193), False),
        (Gemv(k=4096, n=2048), True),
        (Gemv(k=4096, n=2047), False),
        (Gemv(k=4100, n=4096), False),  # other loads
        (Gemv(k=4097, n=4096), False),
        (Gemv(k=4096, n=4096, w="bf16"), False),
        (Gemv(k=4096, n=4096, x="f32"), False),
    ],
)
def test_a_row_holds_for_shapes_near_it(case: Gemv, near: bool) -> None:
    assert (distance(row(), case) is not None) is near
    advice = advise(case, tuned(row()))
    assert ("the user's table" in advice.source) is near
    if not near:
        assert advice.source == "the rule for a gpu device; no tuned shape is near"


def test_the_nearest_row_is_taken_and_of_two_the_users() -> None:
    rows = [row(n=8000, arm="pack2"), row(n=4200, arm="pack1"), row(n=4096, arm="pack3")]
    device = tuned(*rows)
    assert recommend(Gemv(k=4096, n=4150), device).name == "pack1"
    own = Tuned(row=row(arm="pack2"), source="user's")
    theirs = Tuned(row=row(arm="pack1"), source="shipped")
    both = msgspec.structs.replace(GPU, tuning=Tuning(rows=(own, theirs)))
    assert recommend(Gemv(k=4096, n=4096), both).name == "pack2"


@pytest.mark.parametrize(
    ("fields", "near"),
    [
        ({}, True),
        ({"context": 8192}, True),
        ({"context": 8193}, False),
        ({"context": 2047}, False),
        ({"capacity": 9000}, True),
        ({"heads": 64}, False),
        ({"layout": "ktd"}, False),
        ({"v_type": "q8_0"}, False),
        ({"q": "f32"}, False),
        ({"op": "av"}, False),
    ],
)
def test_a_row_of_attention_holds_for_its_shape_and_contexts_near_it(
    fields: dict[str, Any], near: bool
) -> None:
    advice = advise(attention(**fields), tuned_attention(attention_row()))
    assert (advice.arm.name == "splitkv+splits16") is near
    assert ("the user's table, 4096 tokens of 2026-12-01" in advice.source) is near
    assert near or "no tuned shape is near" in advice.source


def test_of_rows_of_attention_the_nearest_is_taken() -> None:
    device = tuned_attention(attention_row(), attention_row(context=9000, arm="gqa"))
    assert advise(attention(context=8192), device).arm.name == "gqa"
    assert advise(attention(context=5000), device).arm.name == "splitkv+splits16"


def test_a_tuned_arm_of_attention_that_declines_gives_the_rule() -> None:
    advice = advise(attention(), tuned_attention(attention_row(arm="flashdecode")))
    assert advice.arm.name == "splitkv"
    assert "the tuned flashdecode declines" in advice.source


def test_the_source_is_the_first_step_and_the_ladder_goes_on() -> None:
    outcome = specialize(parse_arm("auto"), Gemv(k=4096, n=4096, w_offset=2), tuned(row()))
    assert isinstance(outcome, Specialization)
    assert str(outcome.steps[0]) == (
        "arm auto -> pack3+rows2+block128: the user's table, 4096x4096 of 2026-12-01, "
        "1.050x the speed of pack3+blockauto"
    )
    assert outcome.arm == "auto"
    assert (outcome.constant("PACK"), outcome.constant("ROWS")) == (0, 2)


def test_a_revision_stays_with_a_tuned_auto() -> None:
    outcome = specialize(parse_arm("auto@v0.1"), Gemv(k=4096, n=4096), tuned(row()))
    assert isinstance(outcome, Specialization)
    assert (outcome.revision, outcome.constant("ROWS")) == ("v0.1", 2)


def test_a_tuned_arm_that_declines_leaves_the_rule() -> None:
    advice = advise(Gemv(k=4096, n=4096), tuned(row(arm="cpu")))
    assert advice.arm.name == "pack3+blockauto"
    assert advice.source.startswith("the rule for a gpu device; the tuned cpu declines: ")


# Tables as files.


def put(data: Any, name: str = "opencl-scripted-gpu.json") -> Path:
    path = tables_folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


def table(*rows: Row, **fields: Any) -> dict[str, Any]:
    made = Table(device="scripted gpu", language="opencl", rows=rows)
    return msgspec.to_builtins(made) | fields


def test_rows_are_stored_and_replaced() -> None:
    assert load_tuning(GPU) == Tuning()
    store_row(row(), GPU)
    store_row(row(n=64, arm="pack2"), GPU)
    path = store_row(row(arm="pack1"), GPU)
    assert path == tables_folder() / "opencl-scripted-gpu.json"
    assert [r.arm for r in read_table(path, GPU).rows] == ["pack2", "pack1"]
    assert [t.source for t in load_tuning(GPU).rows] == ["user's"] * 2
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name]


def test_a_table_of_another_driver_or_kernel_is_used_with_a_note() -> None:
    put(table(row(driver="0.9", kernel="0" * 16)))
    (found,) = load_tuning(GPU).rows
    assert found.note == "measured with driver 0.9, now 1 and kernels that have changed since"
    device = msgspec.structs.replace(GPU, tuning=load_tuning(GPU))
    advice = advise(Gemv(k=4096, n=4096), device)
    assert (advice.arm.name, "; measured with driver 0.9, now 1" in advice.source) == (
        "pack3+rows2+block128",
        True,
    )


def test_rows_of_another_interface_are_refused_and_others_used() -> None:
    old = row(interface="0", arm="gone+axis7")
    path = put(table(old, row(n=64)))
    found = load_tuning(GPU)
    assert [each.row.n for each in found.rows] == [64]
    assert found.refused == (
        f"Tuning table {path}: 1 row made for another kernel interface than {INTERFACE} cannot be "
        "used; `auto` takes the rule there. Run `gemvbench tune` again.",
    )
    advice = advise(Gemv(k=4096, n=4096), msgspec.structs.replace(GPU, tuning=found))
    assert advice.source.endswith("; no tuned shape is near; a tuning table was refused")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\x00\xff" * 20, "malformed"),
        (b"[" * 100_000, "cannot be used"),
        (table(more=1), "unknown field"),
        (table(rows=[{"k": 1}]), "missing required field"),
        (table(row(arm="pack9")), "pack9"),
        (table(row(arm="nothing")), "no family"),
        (table(row(arm="cublas")), "no arm for a table"),
        (table(row(arm="auto")), "no arm for a table"),
        (table(row(arm="pack2@v1")), "no arm for a table"),
        (table(row(arm="gpu1:pack2")), "no arm for a table"),
        (table(row(arm="splitkv")), "no arm for a table"),
        (table(row(rule="")), "is not an arm"),
        (table(row(ratio=0.0, low=0.0)), "ratio 0.0"),
        (table(row(ratio=2.0)), "outside its interval"),
        (table(row(k=0)), "k (in_features)"),
        (table(row(w="f32")), "no type for weights"),
        (table(schema=2), "has schema 2, and this version reads 1"),
        (table(device="another gpu"), "is for another gpu in opencl, not for scripted gpu"),
        (table(language="cuda"), "is for scripted gpu in cuda, not for scripted gpu in opencl"),
    ],
)
def test_a_table_that_cannot_be_used_is_named_and_the_rule_taken(data: Any, why: str) -> None:
    path = put(data)
    found = load_tuning(GPU)
    assert found.rows == ()
    (said,) = found.refused
    assert str(path) in said
    assert why in said
    assert "`auto` takes the rule" in said
    assert "emove" in said
    advice = advise(Gemv(k=4096, n=4096), msgspec.structs.replace(GPU, tuning=found))
    assert advice.source == "the rule for a gpu device; a tuning table was refused"


def test_rows_of_attention_are_stored_beside_others_and_checked() -> None:
    store_row(row(), GPU)
    store_row(attention_row(arm="gqa"), GPU)
    path = store_row(attention_row(), GPU)
    made = read_table(path, GPU)
    assert (made.rows, made.attention) == ((row(),), (attention_row(),))
    assert [each.row for each in load_tuning(GPU).attention] == [attention_row()]
    for wrong, why in (
        (attention_row(arm="pack2"), "no arm for a table"),
        (attention_row(op="kq"), "no arm for a table"),
        (attention_row(ratio=9.0), "outside its interval"),
    ):
        put(table(attention=[msgspec.to_builtins(wrong)]), path.name)
        assert why in load_tuning(GPU).refused[0]


def test_a_folder_in_the_place_of_a_table_is_named() -> None:
    path = put(table())
    path.unlink()
    path.mkdir()
    assert "cannot be used" in load_tuning(GPU).refused[0]
    with pytest.raises(UserError, match="cannot be used"):
        store_row(row(), GPU)


def test_a_corrupt_users_table_leaves_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "tables"
    shipped.mkdir()
    name = "opencl-scripted-gpu.json"
    (shipped / name).write_text(json.dumps(table(row())))
    monkeypatch.setattr(tuning_files, "SHIPPED", shipped)
    put(b"{", name)
    found = load_tuning(GPU)
    assert [each.source for each in found.rows] == ["shipped"]
    assert len(found.refused) == 1


@pytest.mark.usefixtures("in_process")
def test_the_command_line_warns_and_the_record_says_so(
    gemvbench: Callable[..., Answer], script: Callable[..., Path], tmp_path: Path
) -> None:
    script(devices=[{}])
    path = put(b"{", "opencl-scripted-cpu.json")
    record = tmp_path / "r.jsonl"
    answer = gemvbench("ab", "--quick", "--shape", "64x8", "--arm", "auto", "--record", record)
    assert answer.code == 0
    assert f"Tuning table {path} cannot be used" in answer.err
    header = msgspec.json.decode(record.read_bytes().splitlines()[0], type=Header)
    outcome = header.choices[-1].outcome
    assert isinstance(outcome, Specialization)
    assert outcome.steps[0].reason.endswith("; a tuning table was refused")
    assert header.devices[0].tuning.refused


# What is shipped, and what holds tables together.


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_can_be_used(path: Path) -> None:
    made = msgspec.json.decode(path.read_bytes(), type=Table)
    device = msgspec.structs.replace(GPU, name=made.device, backend=made.language)
    assert tuning_files.table_path(SHIPPED, device) == path
    assert read_table(path, device) == made
    assert made.rows
    for each in made.rows:
        assert each.interface == INTERFACE
        assert each.low > 1 or (each.arm == each.rule and each.ratio == 1)


def test_the_interface_is_what_it_was() -> None:
    """Another calling convention or default makes another arm of the same text: another number."""
    kept = {
        "row": {"pack": 1, "rows": 1, "block": 256, "acc": 32, "unroll": 1, "wide": 0, "extra": 0},
        "cpu": {"pack": 3, "accs": 4, "items": 32, "acc": 32, "extra": 0},
        "flight": {"ahead": -1, "block": -1, "cluster": 1, "dependent": 0},
        "bulk": {"fenced": 0},
        "frozen": {},
    }
    assert (INTERFACE, ARGUMENTS) == ("1", 7)
    for name, defaults in kept.items():
        axes = FAMILIES[name].axes
        assert {axis: axes[axis][0] for axis in axes} == defaults
