"""Kernel text as a compiler sees it: comments and white space aside."""

from __future__ import annotations

import re

_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\.?\d(?:[eEpP][+-]|[\w.])*|\w+|<<=|>>=|\.\.\.|'
    r"\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||##|[-+*/%&|^]=|\S"
)


def tokens(text: str) -> tuple[str, ...]:
    """Tokens in order; directives of the preprocessor end in a newline, `#line` is none.

    Two texts with the same tokens are the same programme.
    """
    joined = text.replace("\\\n", " ")
    bare = _COMMENT.sub(lambda match: match[1] or " ", joined)
    found: list[str] = []
    for line in bare.splitlines():
        if not line.lstrip().startswith("#"):
            found += _TOKEN.findall(line)
        elif not re.match(r"\s*#\s*line\b", line):
            found += [*_directive(line.strip()[1:].lstrip()), "\n"]
    return tuple(found)


def _directive(text: str) -> list[str]:
    """`#define F(x)` and `#define F (x)` differ: a name keeps the bracket that follows at once."""
    name = re.match(r"define\s+(\w+\(?)", text)
    if name is None:
        return ["#", *_TOKEN.findall(text)]
    return ["#define", name[1], *_TOKEN.findall(text[name.end() :])]
