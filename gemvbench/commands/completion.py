"""`gemvbench completion`: a script for bash or zsh that completes this command line."""

from __future__ import annotations

import argparse
import sys

from gemvbench.arm import AUTO, FAMILIES, HOST_FAMILIES
from gemvbench.cli import build_parser
from gemvbench.errors import Exit
from gemvbench.libraries import LIBRARY_FAMILIES
from gemvbench.models import catalogue

_PATHS = {"FILE": "FILE", "RECORD": "FILE", "A": "FILE", "B": "FILE", "DIR": "DIRECTORY"}


def run_completion(options: argparse.Namespace) -> Exit:
    """Print the script; what it offers is what this version knows."""
    import shtab

    parser = build_parser()
    _offer(parser)
    sys.stdout.write(shtab.complete(parser, options.shell))
    return Exit.OK


def _offer(parser: argparse.ArgumentParser) -> None:
    """Families, models and file names, in every command."""
    import shtab

    families = ["base", AUTO, *FAMILIES, *HOST_FAMILIES, *LIBRARY_FAMILIES]
    values = {"ARM": list(dict.fromkeys(families)), "MODEL": list(catalogue())}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _offer(command)
        elif isinstance(action.metavar, str) and action.metavar in _PATHS:
            action.complete = getattr(shtab, _PATHS[action.metavar])  # type: ignore[attr-defined]
        elif isinstance(action.metavar, str) and action.metavar in values:
            action.choices = values[action.metavar]
