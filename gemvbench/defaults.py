"""Defaults from `[tool.gemvbench]` of the pyproject.toml in the current folder."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from gemvbench.errors import UserError


def apply_project_defaults(parser: argparse.ArgumentParser, folder: Path | None = None) -> None:
    """Make the table's values the defaults of every command that has such an option.

    Raises:
        UserError: a file that is no TOML, or an option no command has.
    """
    path = (folder or Path()) / "pyproject.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    tools = data.get("tool", {})
    table = tools.get("gemvbench", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UserError(f"{path}: tool.gemvbench has to be a table, [tool.gemvbench].")
    if not table:
        return
    parsers = _subparsers(parser)
    known = {action.dest for sub in parsers for action in sub._actions}
    for name, value in table.items():
        dest = name.replace("-", "_")
        if dest not in known:
            raise UserError(
                f"{path}: [tool.gemvbench] has {name!r}, which is no option of any command."
            )
        for sub in parsers:
            for action in sub._actions:
                if action.dest == dest:
                    sub.set_defaults(**{dest: _checked(path, name, value, action)})


def _checked(path: Path, name: str, value: object, action: argparse.Action) -> object:
    """The value as the option would have it from the command line."""
    flag, many = action.nargs == 0, isinstance(action, argparse._AppendAction)
    if many and isinstance(value, str):
        value = [value]
    if flag:
        fits = isinstance(value, bool)
    elif many:
        fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
    else:
        fits = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not fits:
        wanted = "true or false" if flag else "a list of texts" if many else "a text or a number"
        raise UserError(f"{path}: [tool.gemvbench] {name} has to be {wanted}.")
    return value if flag or many else str(value)


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.values())
    return []
