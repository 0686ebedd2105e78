"""The git checkout around the work folder: commits by name, and files as they stood in them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from gemvbench.errors import UserError

KERNELS = "kernels"
"""The folder of kernels in a checkout."""


class AbsentError(UserError):
    """A commit does not hold a file."""


class Commit(msgspec.Struct, frozen=True):
    """A revision as the user wrote it, and the whole hash that it was resolved to once."""

    name: str
    hash: str


def resolve(name: str) -> Commit:
    """The commit that a revision names now.

    Raises:
        UserError: no git, no checkout, an unknown revision, or one before the kernels existed.
    """
    find_root(name)
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode:
        raise UserError(f"Revision {name!r} is not in this checkout. {_how_to_get_it()}")
    commit = Commit(name, found.stdout.strip())
    if _git("cat-file", "-e", f"{commit.hash}:{KERNELS}").returncode:
        raise UserError(
            f"Revision {name!r} ({commit.hash[:12]}) has no folder {KERNELS}/: it is from before "
            "the kernels existed, or not of this project. Name a later commit."
        )
    return commit


def find_root(name: str) -> Path:
    """The top folder of the checkout.

    Raises:
        UserError: no git, or no checkout; `name` is the revision that was asked for.
    """
    found = _git("rev-parse", "--show-toplevel", needed_for=name)
    if found.returncode:
        raise UserError(
            f"Revision {name!r} needs a git checkout, and {Path.cwd()} is in none "
            f"({found.stderr.strip() or 'git failed'}). Run inside a clone of the repository."
        )
    return Path(found.stdout.strip())


def read_kernel(commit: str, name: str) -> str:
    """A file of the kernels folder as it stood in a commit.

    Raises:
        AbsentError: the commit does not hold it.
        UserError: it is not text.
    """
    try:
        shown = _git("show", "--end-of-options", f"{commit}:{KERNELS}/{name}")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{KERNELS}/{name} at {commit[:12]} is not text in UTF-8: {error.reason}. Name another "
            "revision."
        ) from error
    if shown.returncode:
        raise AbsentError(
            f"Revision {commit[:12]} has no {KERNELS}/{name} ({shown.stderr.strip()}). Name a "
            "tag or commit that holds the kernel."
        )
    return shown.stdout


def head() -> str:
    """The hash of what is checked out. Raises UserError where there is no commit yet."""
    return resolve("HEAD").hash


def commit_time(commit: str) -> int:
    """When it was committed, in seconds since 1970."""
    return int(_git("show", "-s", "--format=%ct", commit).stdout)


def is_dirty() -> bool:
    """Whether a tracked file has changes that are not committed."""
    return bool(_git("status", "--porcelain", "--untracked-files=no").stdout.strip())


def _how_to_get_it() -> str:
    if _git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return "This clone is shallow: `git fetch --unshallow --tags` brings all of its commits."
    return "`git fetch --tags` brings what is elsewhere; `git log` and `git tag` show what is here."


def _git(*words: str, needed_for: str = "") -> subprocess.CompletedProcess[str]:
    """Raises UserError where there is no git."""
    try:
        return subprocess.run(
            ["git", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UserError(f"Revision {needed_for!r} needs git: {error.strerror}.") from error
