"""Kernel text as a compiler sees it: comments and white space aside."""

from __future__ import annotations

import re

_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\.?\d(?:[eEpP][+-]|[\w.])*|\w+|<<=|>>=|\.\.\.|'
    r"\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||##|[-+*/%&|^]=|\S"
)


def tokens(text: str) -> tuple[str, ...]:
    """Tokens in order; a directive of the preprocessor is one, and `#line` none.

    Two texts with the same tokens are the same programme.
    """
    joined = text.replace("\\\n", " ")
    bare = _COMMENT.sub(lambda match: match[1] or " ", joined)
    found: list[str] = []
    for line in bare.splitlines():
        if not line.lstrip().startswith("#"):
            found += _TOKEN.findall(line)
        elif not re.match(r"\s*#\s*line\b", line):
            # `#define F(x)` and `#define F (x)` differ, so one space stays one space.
            found.append(" ".join(re.sub(r"^\s*#\s*", "#", line).split()))
    return tuple(found)
