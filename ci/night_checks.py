"""What has to be true before a night starts: of the checkout, and of asv's results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from night_state import NightError


class Checkout:
    """The git checkout that the night judges."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *words: str) -> str:
        """Output of a git command.

        Raises:
            NightError: it failed; with git's words.
        """
        done = subprocess.run(
            ["git", "-C", str(self.root), *words], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NightError(f"git {' '.join(words)} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def refuse_shallow(self) -> None:
        """Raises NightError for a clone without its history."""
        if self.git("rev-parse", "--is-shallow-repository") == "true":
            raise NightError(
                "This clone is shallow, so there is no history to measure or to compare with. "
                "`git fetch --unshallow` completes it; on GitHub, checkout takes fetch-depth: 0."
            )

    def is_dirty(self) -> bool:
        return bool(self.git("status", "--porcelain", "--untracked-files=no"))

    def resolve(self, revision: str) -> str:
        """The whole hash of a commit.

        Raises:
            NightError: there is none, for example since history was rewritten.
        """
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        except NightError:
            raise NightError(
                f"Commit {revision} is not in this clone: fetch it, name another with --base REV, "
                "or take today's as good with --accept."
            ) from None

    def since(self, commit: str | None) -> str:
        """asv's range of what is new: all after `commit` where HEAD follows it, else HEAD alone."""
        if commit is None:
            return "HEAD^!"
        try:
            self.git("merge-base", "--is-ancestor", commit, "HEAD")
        except NightError:
            return "HEAD^!"
        return f"{commit}..HEAD"


def check_results(folder: Path, aside: Path) -> list[str]:
    """Make sure that asv can read its results; a damaged file is moved, never deleted.

    Returns:
        What was moved and where to, in words.

    Raises:
        NightError: files of another version of asv; nothing was moved.
    """
    from asv.benchmarks import Benchmarks
    from asv.machine import Machine
    from asv.results import Results

    versions = {"benchmarks.json": Benchmarks.api_version, "machine.json": Machine.api_version}
    files = sorted(folder.rglob("*.json"))
    damaged = []
    for path in files:
        expected = versions.get(path.name, Results.api_version)
        found = _version(path)
        if found is None or (found == expected and not _is_whole(path, versions)):
            damaged.append(path)
        elif found != expected:
            raise NightError(
                f"{path} is of version {found}, and the installed asv reads version {expected}. "
                "Nothing was changed. `asv update` brings older results up to date; newer ones "
                "need the asv that wrote them."
            )
    return [_move(path, aside / path.relative_to(folder)) for path in damaged]


def _version(path: Path) -> int | None:
    """The version that a file says it has; None for one that is no JSON object with a version."""
    try:
        version = json.loads(path.read_bytes())["version"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return version if isinstance(version, int) else None


def _is_whole(path: Path, others: dict[str, int]) -> bool:
    """Whether asv loads a file of results as such."""
    from asv.results import Results

    if path.name in others:
        return True
    try:
        Results.load(str(path))
    except Exception:  # noqa: BLE001 - whatever asv raises for it, it would raise in the night too
        return False
    return True


def _move(path: Path, target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return f"{path} is damaged; it was moved to {target}."
