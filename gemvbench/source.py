"""Kernel text: from the package, from a commit of the checkout, or from a user's file.

Includes are inlined (with #line, so that a compiler's messages name file and line) and
constants are prepended as #defines. The whole text then travels as one string, and no
compile cache can miss a header.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from gemvbench.errors import UserError
from gemvbench.ladder import Specialization

KERNELS = Path(__file__).parent / "kernels"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)".*$', re.MULTILINE)

Reader = Callable[[str], str]
"""Text of a kernel file by its name relative to the kernels folder."""


def kernel_text(spec: Specialization) -> str:
    """The whole text of a specialisation, ready for a compiler.

    Raises:
        UserError: a file or revision that cannot be read.
    """
    if spec.user_file:
        return assemble(Path(spec.file).name, spec.constants, user_reader(Path(spec.file)))
    reader = packaged_reader if spec.revision is None else revision_reader(spec.revision)
    return assemble(spec.file, spec.constants, reader)


def assemble(
    name: str, constants: tuple[tuple[str, int | str], ...] = (), reader: Reader | None = None
) -> str:
    """Defines, then the file with its includes inlined once each, at their first use."""
    defines = "".join(f"#define {key} {value}\n" for key, value in constants)
    return defines + _inline(name, reader or packaged_reader, seen=set())


def packaged_reader(name: str) -> str:
    return _read_file(KERNELS / name)


def user_reader(path: Path) -> Reader:
    """A user's file, its neighbours, and after those the package's own headers."""

    def read(name: str) -> str:
        beside = path.parent / name
        if name == path.name or beside.exists():
            return _read_file(beside)
        language = "cuda" if path.suffix == ".cu" else "opencl"
        return _read_file(KERNELS / language / name)

    return read


def revision_reader(revision: str) -> Reader:
    """Kernel files as they stood in a commit of the git checkout around the work folder."""

    def read(name: str) -> str:
        command = ["git", "show", "--end-of-options", f"{revision}:kernels/{name}"]
        try:
            shown = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise UserError(f"Arm revision {revision!r} needs git: {error.strerror}.") from error
        if shown.returncode:
            raise UserError(
                f"Arm revision {revision!r}: git has no kernels/{name} there "
                f"({shown.stderr.strip() or 'git failed'}). Run inside a full clone of the "
                "repository and name a tag or commit that holds the kernel."
            )
        return shown.stdout

    return read


def _inline(name: str, reader: Reader, seen: set[str]) -> str:
    seen.add(name)
    text = reader(name)
    folder = name.rpartition("/")[0]
    pieces, position = [f'#line 1 "{name}"\n'], 0
    for match in _INCLUDE.finditer(text):
        included = f"{folder}/{match[1]}" if folder else match[1]
        pieces.append(text[position : match.start()])
        if included not in seen:
            pieces.append(_inline(included, reader, seen))
        pieces.append(f'\n#line {text.count(chr(10), 0, match.start()) + 2} "{name}"')
        position = match.end()
    return "".join([*pieces, text[position:], "\n"])


def _read_file(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"Kernel file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"Kernel file {path} is not text in UTF-8: {error.reason}.") from error
