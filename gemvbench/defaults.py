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
    path = (folder or Path.cwd()) / "pyproject.toml"
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    table = data.get("tool", {}).get("gemvbench", {})
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
            if dest in {action.dest for action in sub._actions}:
                sub.set_defaults(**{dest: value})


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.values())
    return []
