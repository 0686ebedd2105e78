"""Arms: one way to compute a case, and how it is written on a command line.

    [device:]family[+axisN...][@revision]        pack2, cuda0:row+pack3+rows2, pack2@v0.1
    name=path/to/kernel.cl:entry[+axisN...]      a file of the user's own

A name that starts with an axis means family `row`; `base` is `row` as S1 has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from gemvbench.errors import UserError
from gemvbench.libraries import LIBRARY_FAMILIES
from gemvbench.suggest import nearest

AUTO_VALUE = -1
"""The value written `auto`, as in `blockauto`: the ladder chooses one for the shape."""
_EXTRA = (0, 3, 5, 10, 20, 30, 50, 100)
"""Planted rows, in per mille of n: an effect that is known exactly."""
_ATTENTION_AXES = {
    "pack": (3, 0, 1, 2),
    "block": (AUTO_VALUE, 1, 64, 128, 256, 512),
    "splits": (AUTO_VALUE, *(1 << power for power in range(10))),
    "q": (0, 8),
}
"""Axes of every attention family; block1 is the kernel for CPUs, q8 quantises Q."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel entry and the compile-time axes over it; the first value is S1's own."""

    summary: str
    file: str
    entry: str
    axes: Mapping[str, tuple[int, ...]] = {}
    languages: tuple[str, ...] = ("cuda", "opencl")
    operations: tuple[str, ...] = ("gemv",)
    cpu_only: bool = False

    def default(self, axis: str) -> int:
        return self.axes[axis][0]


def _attention(summary: str) -> Family:
    """A way through scores and values in several launches: one kernel text, other constants."""
    return Family(
        summary=f"kq, av, attention: {summary}",
        file="attention",
        entry="attn_kq",
        axes=_ATTENTION_AXES,
        operations=("kq", "av", "attention"),
    )


FAMILIES: dict[str, Family] = {
    "row": Family(
        summary="one workgroup per group of rows, reduction through local memory (S1, S2)",
        file="gemv",
        entry="gemv_row",
        axes={
            "pack": (1, 0, 2, 3),
            "rows": (1, 2, 4),
            "block": (256, 64, 128, 512, AUTO_VALUE),
            "acc": (32, 16),
            "unroll": (1, 2, 4, 8, AUTO_VALUE),
            "wide": (0, 1),
            "extra": _EXTRA,
        },
    ),
    "cpu": Family(
        summary="one work-item over contiguous rows, vector loads; for CPUs",
        file="gemv_cpu",
        entry="gemv_cpu",
        axes={
            "pack": (3, 0, 1, 2, 4),
            "accs": (4, 1, 2),
            "items": (32, 2, 4, 8, 16, 64, 128, 256),
            "acc": (32, 16),
            "extra": _EXTRA,
        },
        languages=("opencl",),
        cpu_only=True,
    ),
    "flight": Family(
        summary="rows by 16-byte loads, a number of them in flight; for CUDA",
        file="flight",
        entry="gemv_flight",
        axes={
            "ahead": (AUTO_VALUE, 1, 2, 3, 4, 5, 6, 8),
            "block": (AUTO_VALUE, 64, 128, 256, 512),
            "cluster": (1, 2, 4, 8),
            "dependent": (0, 1),
        },
        languages=("cuda",),
    ),
    "bulk": Family(
        summary="rows copied in bulk into shared memory; in decode a token is one launch (sm_90)",
        file="bulk",
        entry="gemv_bulk",
        axes={"fenced": (0, 1)},
        languages=("cuda",),
    ),
    "frozen": Family(
        summary="the reference kernel that never changes; history is measured against it",
        file="frozen",
        entry="gemv_frozen",
    ),
    "quant": Family(
        summary="weights in q8_0, q4_0 or q4_K: as in files or repacked, x as floats or in 8 bits",
        file="quant",
        entry="gemv_quant",
        axes={
            "pack": (AUTO_VALUE, 0, 1, 2, 3),
            "rows": (AUTO_VALUE, 1, 2, 4),
            "ahead": (AUTO_VALUE, 1, 2, 3, 4, 6, 8),
            "lanes": (32, 8, 16, 64, 128, 256),
            "block": (AUTO_VALUE, 1, 64, 128, 256, 512),
            "groups": (AUTO_VALUE, 0, 1, 2, 3, 4, 6, 8),
            "repack": (0, 1),
            "xq": (0, 8),
            "items": (32, 2, 4, 8, 16, 64, 128, 256),
            "dependent": (0, 1),
        },
    ),
    "per_head": _attention("a matrix-vector product for each query head (S3)"),
    "gqa": _attention("a row read once for all heads that share it (S3)"),
    "token_major": _attention("heads innermost, so that rows are read in order (S3)"),
    "splitkv": Family(
        summary="attention in one pass: tokens split over workgroups, online softmax, a merge",
        file="splitkv",
        entry="attn_splitkv",
        axes=_ATTENTION_AXES | {"fused": (0, 1)},
        operations=("attention",),
    ),
    "flashdecode": Family(
        summary="attention in one launch on tensor cores, the last workgroup merges; for CUDA",
        file="flashdecode",
        entry="attn_flash",
        axes={
            "block": (AUTO_VALUE, 64, 128, 256),
            "splits": _ATTENTION_AXES["splits"],
            "resident": (AUTO_VALUE, 1, 2, 3, 4),
            "dependent": (0, 1),
        },
        languages=("cuda",),
        operations=("attention",),
    ),
}
ALL_AXES = tuple(dict.fromkeys(axis for family in FAMILIES.values() for axis in family.axes))
AUTO = "auto"
RESERVED = ("aa", "roof", "launches")
HOST_FAMILIES = {"numpy": "NumPy's matrix product in FP32, on the host; for CPUs"}
_SPECIAL = (AUTO, "base", *HOST_FAMILIES, *LIBRARY_FAMILIES)
_AXIS = re.compile(r"([a-z]+?)(\d{1,9}|auto)")
_ARM = re.compile(
    r"(?:(?P<device>[A-Za-z]\w*):)?"
    r"(?:(?P<name>\w+)=(?P<file>[^@+]+\.(?:cl|cu)):(?P<entry>\w+)(?P<file_axes>(?:\+\w+)*)"
    r"|(?P<body>[A-Za-z]\w*(?:\+\w+)*))"
    r"(?:@(?P<revision>\S+))?"
)


class UserFile(msgspec.Struct, frozen=True):
    """A kernel of the user's own: it follows the calling convention of family `row`."""

    name: str
    path: str
    entry: str


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to compute a case: a family and the axes that were asked for by name.

    Axes not named keep the family's default and may fall silently; a named one that cannot
    be built is a step on the ladder, or declines.
    """

    family: str = "row"
    axes: tuple[tuple[str, int], ...] = ()
    device: str | None = None
    revision: str | None = None
    """As the user wrote it; kernels come from `commit` where that is known."""
    commit: str = ""
    """The hash that `revision` was resolved to, once and before the run."""
    file: UserFile | None = None

    def asked(self, axis: str) -> int | None:
        return dict(self.axes).get(axis)

    def value(self, axis: str) -> int:
        asked = self.asked(axis)
        return FAMILIES[self.family].default(axis) if asked is None else asked

    def replace_axis(self, axis: str, value: int) -> Arm:
        axes = dict(self.axes) | {axis: value}
        return msgspec.structs.replace(self, axes=_ordered(self.family, axes))

    @property
    def has_revisions(self) -> bool:
        """Whether its kernel lies in the checkout: not a user's file, nor a library's."""
        return self.file is None and self.family not in {*HOST_FAMILIES, *LIBRARY_FAMILIES}

    def at_revision_of(self, other: Arm) -> Arm:
        """This arm with its kernel from where another arm has its own."""
        return msgspec.structs.replace(self, revision=other.revision, commit=other.commit)

    @property
    def name(self) -> str:
        """The arm as the user would write it, without device and in the order of the axes."""
        file = self.file
        return self._with_head(f"{file.name}={file.path}:{file.entry}" if file else self.family)

    @property
    def label(self) -> str:
        """The name for tables: a user's file goes by the name it was given."""
        return self._with_head(self.file.name if self.file else self.family)

    @property
    def full_name(self) -> str:
        return f"{self.device}:{self.name}" if self.device else self.name

    def _with_head(self, head: str) -> str:
        axes = [f"{axis}{_format_value(value)}" for axis, value in self.axes]
        words = (axes or ["base"]) if head == "row" else [head, *axes]
        return "+".join(words) + (f"@{self.revision}" if self.revision else "")


def parse_arm(text: str) -> Arm:
    """Read an arm as written above.

    Raises:
        UserError: unknown family, axis or value, named with the nearest known one.
    """
    match = _ARM.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"{text!r} is not an arm. Write [device:]family[+axisN...][@revision], for example "
            "pack2, row+pack3+rows2 or cuda0:base, or name=path/kernel.cl:entry for a file of "
            "your own" + _file_hint(text) + ". `gemvbench list` shows families and axes."
        )
    if match["name"] in RESERVED:
        raise UserError(
            f"Arm {text!r}: the name {match['name']!r} is taken, by the baseline's twin or what "
            "else every run measures. Give the file another name."
        )
    if match["name"]:
        family, words = "row", match["file_axes"].split("+")[1:]
        file = UserFile(match["name"], match["file"], match["entry"])
    else:
        head, *words = match["body"].split("+")
        family, file = head, None
        if head not in FAMILIES and head not in _SPECIAL and _AXIS.fullmatch(head):
            family, words = "row", [head, *words]
    family = "row" if family == "base" else family
    if match["revision"] and (file or family in {*HOST_FAMILIES, *LIBRARY_FAMILIES}):
        what = "a file of your own" if file else f"{family}, which is no kernel here,"
        raise UserError(f"Arm {text!r}: {what} has no revision; leave @{match['revision']} out.")
    return Arm(
        family=_known_family(family, text),
        axes=_parse_axes(family, words, text),
        device=match["device"],
        revision=match["revision"],
        file=file,
    )


def _file_hint(text: str) -> str:
    """A file without its name or its entry is the commonest slip."""
    found = re.fullmatch(r"(?:\w+=)?(?P<file>[^=:]+\.(?:cl|cu))(?::(?P<entry>\w+))?(\+.*)?", text)
    return f" (perhaps mine={found['file']}:{found['entry'] or 'ENTRY'})" if found else ""


def _known_family(family: str, text: str) -> str:
    names = [*FAMILIES, *_SPECIAL]
    if family not in names:
        raise UserError(
            f"Arm {text!r}: there is no family {family!r}{nearest(family, names)} "
            f"Known are {', '.join(names)}; `gemvbench list` shows their axes."
        )
    return family


def _parse_axes(family: str, words: list[str], text: str) -> tuple[tuple[str, int], ...]:
    known = FAMILIES[family].axes if family in FAMILIES else {}
    axes: dict[str, int] = {}
    for word in words:
        match = _AXIS.fullmatch(word)
        axis = match[1] if match else word
        if match is None or axis not in known:
            raise UserError(
                f"Arm {text!r}: {word!r} is no axis of family {family}"
                f"{nearest(axis, known)} "
                + (f"It has {describe_axes(family)}." if known else "It has no axes.")
            )
        value = AUTO_VALUE if match[2] == "auto" else int(match[2])
        if value not in known[axis]:
            raise UserError(
                f"Arm {text!r}: {word!r} is not available; family {family} has "
                f"{describe_axes(family, axis)}."
            )
        if axis in axes:
            raise UserError(f"Arm {text!r} names the axis {axis} twice; give it once.")
        axes[axis] = value
    return _ordered(family, axes)


def describe_axes(family: str, only: str | None = None) -> str:
    """ "pack 0, 1, 2, 3; rows 1, 2, 4", with a family's own values in ascending order."""
    parts = []
    for axis, values in FAMILIES[family].axes.items():
        if only in (None, axis):
            texts = [_format_value(value) for value in sorted(values, key=_auto_last)]
            parts.append(f"{axis} {', '.join(texts)}")
    return "; ".join(parts)


def _ordered(family: str, axes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    known = FAMILIES[family].axes if family in FAMILIES else {}
    return tuple((axis, axes[axis]) for axis in known if axis in axes)


def _format_value(value: int) -> str:
    return AUTO if value == AUTO_VALUE else str(value)


def _auto_last(value: int) -> tuple[bool, int]:
    return value == AUTO_VALUE, value
