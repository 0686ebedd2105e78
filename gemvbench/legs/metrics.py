"""Metrics of a leg: how they are asked for, and how they are read from what a program printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gemvbench.errors import UserError
from gemvbench.legs.lines import Metric

BUILT_IN = {
    "wall": "wall time from start to exit",
    "cpu": "user and system time of the process and what it waited for",
    "memory": "peak resident memory of the process tree",
}
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")
_JSON = "json:"


class MetricError(Exception):
    """A leg that does not give a metric, and why."""


def parse_metrics(given: Sequence[str], better: Sequence[str]) -> tuple[Metric, ...]:
    """Metrics from "wall", "NAME=REGEX" and "NAME=json:PATH"; wall time where none is given.

    Args:
        given: --metric, in order.
        better: --better: "more" or "less" for all that print a number, or "NAME=more" for one.

    Raises:
        UserError: no such built-in one, a bad expression or path, a name twice, or a metric of
            which it is not known whether more is better.
    """
    directions = _parse_better(better)
    metrics = tuple(_parse(text, directions) for text in given or ("wall",))
    names = [metric.name for metric in metrics]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"--metric {twice[0]} is given twice; give each a name of its own.")
    if strange := sorted(set(directions) - {*names, ""}):
        raise UserError(f"--better {strange[0]}=...: there is no such --metric.")
    return metrics


def _parse_better(better: Sequence[str]) -> dict[str, bool]:
    """Whether more is better, by name; "" for all others."""
    directions = {}
    for text in better:
        name, _, word = text.rpartition("=")
        if word not in ("more", "less"):
            raise UserError(f"--better {text!r}: write more or less, or NAME=more.")
        directions[name] = word == "more"
    return directions


def _parse(text: str, directions: Mapping[str, bool]) -> Metric:
    name, equals, pattern = text.partition("=")
    if not equals:
        if name not in BUILT_IN:
            raise UserError(
                f"--metric {text!r}: write NAME=REGEX or NAME=json:PATH, or one that is measured "
                f"from outside: {', '.join(BUILT_IN)}."
            )
        return Metric(name=name, source=name, more=directions.get(name, False))
    if not re.fullmatch(r"[\w./ -]+", name) or name in BUILT_IN:
        raise UserError(f"--metric {text!r}: {name!r} cannot be the name of one; choose another.")
    more = directions.get(name, directions.get(""))
    if more is None:
        raise UserError(f"--metric {name}: say --better more, less, or {name}=more.")
    if pattern.startswith(_JSON):
        path = pattern.removeprefix(_JSON)
        if "".join(match[0] for match in _STEP.finditer(path)) != path or not path:
            raise UserError(f"--metric {text!r}: a path is written like results[0].tokens.")
        return Metric(name=name, source="json", pattern=path, more=more)
    try:
        groups = re.compile(pattern, re.MULTILINE).groups
    except re.error as error:
        raise UserError(f"--metric {text!r} is no regular expression: {error}.") from error
    if groups > 1:
        raise UserError(f"--metric {text!r} has {groups} groups; put one, around the number.")
    return Metric(name=name, source="regex", pattern=pattern, more=more)


def read_metric(metric: Metric, out: str, err: str) -> tuple[float, int]:
    """(value, how often it is there); the last one counts, and standard output before error.

    Raises:
        MetricError: it is not there, or is no positive number.
    """
    found = _find_json(metric, out) if metric.source == "json" else _find(metric, out, err)
    try:
        value = float(found[-1])
    except (TypeError, ValueError):
        raise MetricError(f"metric {metric.name}: {found[-1]!r} is not a number") from None
    if not (math.isfinite(value) and value > 0) or isinstance(found[-1], bool):
        raise MetricError(f"metric {metric.name}: {found[-1]!r} is not a positive number")
    return value, len(found)


def _find(metric: Metric, out: str, err: str) -> list[str]:
    pattern = re.compile(metric.pattern, re.MULTILINE)
    for text in (out, err):
        found = [match[pattern.groups] for match in pattern.finditer(text)]
        if found:
            return found
    raise MetricError(f"metric {metric.name}: nothing matches {metric.pattern!r}")


def _find_json(metric: Metric, out: str) -> list[Any]:
    """In the whole of standard output, or in those of its lines that are objects."""
    found, objects = [], 0
    for text in (out, *out.splitlines()):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if not isinstance(value, dict | list):
            continue
        objects += 1
        try:
            found.append(_walk(value, metric.pattern))
        except (KeyError, IndexError, TypeError):
            continue
        if text is out:
            break
    if not found:
        what = f"no {metric.pattern} in it" if objects else "standard output holds no JSON"
        raise MetricError(f"metric {metric.name}: {what}")
    return found


def _walk(value: Any, path: str) -> Any:
    for match in _STEP.finditer(path):
        value = value[match[1]] if match[1] is not None else value[int(match[2])]
    return value
