"""Kernel text: from the package, from a commit of the checkout, or from a user's file.

Includes are inlined (with #line, so that a compiler's messages name file and line) and
constants are prepended as #defines. The whole text then travels as one string, and no
compile cache can miss a header.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gemvbench.checkout import AbsentError, read_kernel
from gemvbench.errors import UserError
from gemvbench.outcome import Specialization

KERNELS = Path(__file__).parent / "kernels"
INTERFACE = "INTERFACE"
"""The file that holds the version of the calling convention, docs/kernels.md."""
_QUALIFIERS = {"const", "restrict", "__restrict__", "__global", "global", "volatile"}
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
    if spec.revision is None:
        return assemble(spec.file, spec.constants)
    text = assemble(spec.file, spec.constants, revision_reader(spec.revision))
    _refuse_other_interface(spec, text)
    return text


def assemble(
    name: str, constants: tuple[tuple[str, int | str], ...] = (), reader: Reader | None = None
) -> str:
    """Defines, then the file with its includes inlined once each, at their first use."""
    defines = "".join(f"#define {key} {value}\n" for key, value in constants)
    return defines + _inline(name, reader or packaged_reader, seen=set())


def kernel_interface() -> str:
    """Version of what the packaged kernels expect of the host."""
    return packaged_reader(INTERFACE).strip()


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
    return lambda name: read_kernel(revision, name)


def _refuse_other_interface(spec: Specialization, text: str) -> None:
    """Raises UserError for a kernel of a revision that wants another calling convention.

    Versions are compared where the revision states one. An older revision counts as version 1
    if its entries take the arguments that today's take.
    """
    assert spec.revision is not None
    own, name = kernel_interface(), f"{spec.file} at {spec.revision[:12]}"
    try:
        version = read_kernel(spec.revision, INTERFACE).strip()
    except AbsentError:
        today = assemble(spec.file, spec.constants)
        entries = {spec.entry, *(stage.entry for stage in spec.stages)}
        unlike = [e for e in sorted(entries) if _is_called_unlike(e, text, today)]
        if not unlike:
            return
        version = f"of its own: {', '.join(unlike)} takes other arguments"
    if version != own:
        raise UserError(
            f"Kernel {name} has interface {version}, and this is version {own} "
            f"(kernels/{INTERFACE}): what it expects of the host has changed since, so the two "
            "cannot run side by side. Name a later revision."
        )


def _is_called_unlike(entry: str, text: str, today: str) -> bool:
    """Whether both texts have the entry, with unlike types of arguments."""
    then, now = _argument_types(entry, text), _argument_types(entry, today)
    return bool(then) and then != now


def _argument_types(entry: str, text: str) -> list[str]:
    """Types of an entry's arguments, `*` for any pointer; empty where it is not there."""
    found = re.search(rf"\b{entry}\s*\(([^)]*)\)\s*\{{", text)
    if found is None:
        return []
    arguments = found[1].strip()
    macro = re.search(rf"^#define {arguments or '-'}\b((?:.*\\\n)*.*)", text, re.MULTILINE)
    words = re.findall(r"\w+|\*|,", (macro[1] if macro else arguments) + ",")
    kept = [word for word in words if word not in _QUALIFIERS]
    types = " ".join(kept).split(" ,")
    return [
        "*" if "*" in each else each.rpartition(" ")[0].strip() for each in types if each.strip()
    ]


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
