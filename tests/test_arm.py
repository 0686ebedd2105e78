"""The grammar of arms: every form, every mistake, and names that read back."""

from __future__ import annotations

import itertools

import pytest

from gemvbench.arm import AUTO_VALUE, FAMILIES, HOST_FAMILIES, Arm, UserFile, parse_arm
from gemvbench.errors import Exit, UserError

MINE = UserFile("mine", "path/to/kernel.cl", "entry")
FORMS = [
    ("base", Arm()),
    ("row", Arm()),
    (" base ", Arm()),
    ("pack2", Arm(axes=(("pack", 2),))),
    ("row+pack2", Arm(axes=(("pack", 2),))),
    ("base+pack2", Arm(axes=(("pack", 2),))),
    ("pack1", Arm(axes=(("pack", 1),))),
    ("rows4+pack0", Arm(axes=(("pack", 0), ("rows", 4)))),
    ("pack2+rows4+block128", Arm(axes=(("pack", 2), ("rows", 4), ("block", 128)))),
    ("blockauto", Arm(axes=(("block", AUTO_VALUE),))),
    ("pack2+acc16", Arm(axes=(("pack", 2), ("acc", 16)))),
    ("cpu", Arm(family="cpu")),
    ("cpu+pack4+accs2+items8", Arm(family="cpu", axes=(("pack", 4), ("accs", 2), ("items", 8)))),
    ("frozen", Arm(family="frozen")),
    ("auto", Arm(family="auto")),
    ("numpy", Arm(family="numpy")),
    ("cuda0:pack3", Arm(axes=(("pack", 3),), device="cuda0")),
    ("pocl:base", Arm(device="pocl")),
    ("pack2@v0.2", Arm(axes=(("pack", 2),), revision="v0.2")),
    ("base@HEAD~1", Arm(revision="HEAD~1")),
    ("nvcl0:row+pack2@a/b", Arm(axes=(("pack", 2),), device="nvcl0", revision="a/b")),
    ("mine=path/to/kernel.cl:entry", Arm(file=MINE)),
    ("mine=path/to/kernel.cl:entry+pack2", Arm(axes=(("pack", 2),), file=MINE)),
    ("cuda0:m=k.cu:e", Arm(file=UserFile("m", "k.cu", "e"), device="cuda0")),
]

MISTAKES = [
    ("", "is not an arm", "gemvbench list"),
    ("pack2+", "is not an arm", "[device:]family"),
    ("+pack2", "is not an arm", "for example"),
    ("pack2@", "is not an arm", "[@revision]"),
    ("two words", "is not an arm", "pack2"),
    ("mine=kernel.txt:entry", "is not an arm", "name=path/kernel.cl:entry"),
    ("mine=kernel.cl", "is not an arm", "name=path/kernel.cl:entry"),
    ("pakc", "no family 'pakc'", "Known are row, cpu, flight, bulk, frozen"),
    ("frozn", "no family 'frozn'", "did you mean frozen?"),
    ("pack2+packs", "'packs' is no axis of family row", "did you mean pack?"),
    ("rowz2", "'rowz2' is no axis of family row", "did you mean rows?"),
    ("row+accs2", "'accs2' is no axis of family row", "rows 1, 2, 4"),
    ("cpu+rows2", "'rows2' is no axis of family cpu", "items"),
    ("frozen+pack2", "'pack2' is no axis of family frozen", "It has no axes."),
    ("auto+pack2", "'pack2' is no axis of family auto", "It has no axes."),
    ("pack9", "'pack9' is not available", "pack 0, 1, 2, 3"),
    ("block100", "'block100' is not available", "block 64, 128, 256, 512, auto"),
    ("packauto", "'packauto' is not available", "pack 0, 1, 2, 3"),
    ("cpu+pack5", "'pack5' is not available", "pack 0, 1, 2, 3, 4"),
    ("pack2+pack3", "names the axis pack twice", "once"),
    ("mine=kernel.cl:entry+accs2", "'accs2' is no axis of family row", "pack"),
    ("mine=kernel.cl:entry@v1", "a file of your own", "revision"),
    ("numpy@v1", "numpy", "revision"),
]


@pytest.mark.parametrize(("text", "arm"), FORMS, ids=[text for text, _ in FORMS])
def test_forms(text: str, arm: Arm) -> None:
    assert parse_arm(text) == arm


@pytest.mark.parametrize(("text", "says", "advises"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes(text: str, says: str, advises: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_arm(text)
    message = str(caught.value)
    assert says in message
    assert advises in message
    assert "\n" not in message
    assert caught.value.code == Exit.USAGE


def every_arm() -> list[Arm]:
    arms = [Arm(family=family) for family in ("auto", *HOST_FAMILIES)]
    for name, family in FAMILIES.items():
        choices = [[(axis, v) for v in values] for axis, values in family.axes.items()]
        if name == "quant":  # whose product is of millions: no more than three values of an axis
            choices = [choice[:1] if len(choice) > 2 else choice for choice in choices]
        for some in itertools.product(*([None, *choice] for choice in choices)):
            arms.append(Arm(family=name, axes=tuple(filter(None, some))))
    return arms


def test_names_read_back() -> None:
    arms = every_arm()
    assert len(arms) > 1000
    names = [arm.full_name for arm in arms]
    assert len(set(names)) == len(names)
    assert [parse_arm(name) for name in names] == arms


@pytest.mark.parametrize(("text", "arm"), FORMS, ids=[text for text, _ in FORMS])
def test_names_of_the_forms_read_back(text: str, arm: Arm) -> None:
    assert parse_arm(arm.full_name) == arm


def test_names_are_in_the_order_of_the_axes() -> None:
    assert parse_arm("block64+rows2+pack3").name == "pack3+rows2+block64"
    assert parse_arm("row").name == "base"
    assert parse_arm("cuda0:pack2").name == "pack2"


def test_the_first_value_is_the_default() -> None:
    """S1's kernel: a row of 256 items, loads of two elements."""
    base = Arm()
    assert {axis: base.value(axis) for axis in FAMILIES["row"].axes} == {
        "pack": 1,
        "rows": 1,
        "block": 256,
        "acc": 32,
        "unroll": 1,
        "wide": 0,
        "extra": 0,
    }
    assert base.asked("pack") is None
    assert base.replace_axis("rows", 4).replace_axis("pack", 2).name == "pack2+rows4"
