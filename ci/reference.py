"""Writes docs/reference.md, every command with its options, from the parser itself.

python ci/reference.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gemvbench.cli import build_parser

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
_HEAD = """# Reference of the command line

Written by `python ci/reference.py` from the parser. `--help` is left out: every command has it.
Exit codes: 0 clean, 1 a regression, 2 usage, 3 a wrong or failed arm, 4 no device, a void run, or
results that cannot be compared. Defaults can stand under `[tool.gemvbench]` in `pyproject.toml`.
"""


def reference() -> str:
    """The whole text, the same on every version of Python."""
    (commands,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    parts = [_HEAD]
    for told in commands._choices_actions:
        parser = commands.choices[told.dest]
        text = parser.description or told.help or ""
        parts.append(f"## gemvbench {told.dest}\n\n{_sentence(text)}\n")
        parts.append("\n".join(_lines(parser)) + "\n")
    return "\n".join(parts)


def _lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        value = action.metavar or ("|".join(action.choices) if action.choices else action.dest)
        names = ", ".join(action.option_strings)
        said = f"{names} {value}" if names and action.nargs != 0 else names or str(value)
        text = (action.help or "").replace("%%", "%")
        yield f"- `{said}`" + (f": {text}" if text else "")


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:].replace("%%", "%")
    return text if text.endswith(".") else text + "."


if __name__ == "__main__":
    TARGET.write_text(reference())
