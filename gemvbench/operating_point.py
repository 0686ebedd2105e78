"""Whether a ranking from `ab` may be believed: does a decode reach the same share of the roof?

An isolated loop reads in another regime than a token does (S2: a sweep overstated a win seven
times), so its shares of the roof and its order of arms are held against the token's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gemvbench.case_results import CaseView
from gemvbench.errors import Exit, UserError
from gemvbench.jobs import Choice
from gemvbench.plan import TWIN
from gemvbench.reading import read_record
from gemvbench.record import Header, Isolated
from gemvbench.results import Summary, summarise
from gemvbench.token_case import Token

TOKEN = "token"
"""Name of the row that holds the whole token against the sum over its shapes."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one class of layers: its share of the roof alone, and in a decode."""

    source: str
    regime: str
    name: str
    arm: str
    isolated: float
    decode: float
    agrees: bool
    ranking: str = ""
    """What of the isolated ranking a decode does not show; "" where it shows all."""

    @property
    def confirmed(self) -> bool:
        return self.agrees and not self.ranking


def read_isolated(paths: Sequence[str], header: Header) -> tuple[Isolated, ...]:
    """What earlier records say of the arms of a decode on the shapes of its token.

    Raises:
        UserError: a record of another device or of a decode, or without a shape of the token.
    """
    return tuple(line for path in paths for line in _read(Path(path), header))


def _read(path: Path, header: Header) -> list[Isolated]:
    run = read_record(path)
    known = {(device.id, device.name) for device in header.devices}
    if not known & {(device.id, device.name) for device in run.header.devices}:
        theirs = ", ".join(device.title for device in run.header.devices)
        ours = ", ".join(device.title for device in header.devices)
        raise UserError(
            f"--ab {path} was measured on {theirs}, and this decode runs on {ours}: shares of the "
            "roof of two devices cannot be compared.",
            Exit.NO_DEVICE,
        )
    if run.header.settings.command not in ("ab", "sweep"):
        raise UserError(
            f"--ab {path} is a record of `{run.header.settings.command}`; give one of `gemvbench "
            "ab` or `sweep`."
        )
    shapes = _shapes(header)
    summary = summarise(run)
    lines = [
        line
        for case in run.header.cases
        if case.id in shapes
        for line in _of_case(summary.views[case.id], path.name, header.choices)
    ]
    if not lines:
        raise UserError(
            f"--ab {path} holds no arm of this decode on a shape of its token; measure one with "
            f"`gemvbench ab --model {_token(header).model}`, the same --weights and --x, and an "
            "arm of this decode.",
            Exit.NO_DEVICE,
        )
    return lines


def _of_case(view: CaseView, source: str, wanted: Sequence[Choice]) -> list[Isolated]:
    labels = {(choice.arm, choice.device): choice.label for choice in wanted}
    ours = {
        choice.label: labels[choice.arm, choice.device]
        for choice in view.choices
        if (choice.arm, choice.device) in labels
    }
    return [
        Isolated(
            source=source,
            regime=view.header.settings.regime,
            shape=view.case.id,
            arm=ours[result.arm],
            share=result.roof_fraction,
            seconds=result.seconds_per_call,
            beats=tuple(ours[other] for other in ours if view.beats(result.arm, other)),
        )
        for result in view.results()
        if result.arm in ours and result.roof_fraction and result.seconds_per_call
    ]


def compare_points(summary: Summary) -> tuple[Point, ...]:
    """Each line of the earlier records beside the decode's own, and the token beside their sum."""
    header = summary.run.header
    points = []
    for line in header.isolated:
        part = _shapes(header)[line.shape]
        share = _share(summary, part.id, line.arm)
        if share is not None:
            points.append(_point(summary, line, part.only, share, _unseen(summary, part, line)))
    for source in dict.fromkeys(line.source for line in header.isolated):
        points += _whole(summary, [line for line in header.isolated if line.source == source])
    return tuple(points)


def _whole(summary: Summary, lines: Sequence[Isolated]) -> Iterable[Point]:
    """The share that a token would reach if its layers ran as they do alone."""
    token = _token(summary.run.header)
    roofs = {roof.device: roof.gbps for roof in summary.roofs if roof.case == token.id}
    for result in summary.of_case(token.id):
        seconds = {line.shape: line.seconds for line in lines if line.arm == result.arm}
        shapes = [layer.id for layer in token.layers]
        share = _share(summary, token.id, result.arm)
        if result.device not in roofs or share is None or not set(shapes) <= set(seconds):
            continue
        pairs = zip(token.classes, shapes, strict=True)
        total = sum(own.times * seconds[shape] for own, shape in pairs)
        predicted = token.bytes_moved / total / 1e9 / roofs[result.device]
        (line, *_) = [line for line in lines if line.arm == result.arm]
        yield _point(summary, msgspec.structs.replace(line, share=predicted), TOKEN, share, "")


def _point(summary: Summary, line: Isolated, name: str, share: float, ranking: str) -> Point:
    tolerance = summary.run.header.settings.tolerance
    return Point(
        source=line.source,
        regime=line.regime,
        name=name,
        arm=line.arm,
        isolated=line.share,
        decode=share,
        agrees=1 / (1 + tolerance) <= share / line.share <= 1 + tolerance,
        ranking=ranking,
    )


def _unseen(summary: Summary, part: Token, line: Isolated) -> str:
    """Arms that this one beats alone, and does not in a decode."""
    view = summary.views[part.id]
    measured = {result.arm for result in summary.of_case(part.id) if result.seconds_per_call}
    return ", ".join(
        f"not faster than {other}"
        for other in line.beats
        if other in measured and not view.beats(line.arm, other)
    )


def _share(summary: Summary, case: str, arm: str) -> float | None:
    found = [result for result in summary.of_case(case) if result.arm == arm != TWIN]
    return found[0].roof_fraction if found else None


def _shapes(header: Header) -> dict[str, Token]:
    """The class of linear layers by the id of its shape."""
    parts = [c for c in header.cases if isinstance(c, Token) and c.only and c.operations]
    return {part.layers[0].id: part for part in parts}


def _token(header: Header) -> Token:
    case = header.cases[0]
    assert isinstance(case, Token)
    return case
