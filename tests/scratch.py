"""A repository of the project's own kernels, with commits, that a test edits."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from asv_site import ROOT, git

from gemvbench import source


@dataclass(frozen=True)
class Scratch:
    """The checkout in which a gate runs."""

    root: Path

    def git(self, *words: str) -> str:
        return git(self.root, *words)

    def path(self, name: str) -> Path:
        return self.root / "kernels" / name

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that is there once."""
        text = self.path(name).read_text()
        assert text.count(old) == 1, (name, old)
        self.path(name).write_text(text.replace(old, new))

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a change")
        return self.git("rev-parse", "HEAD")


def make_scratch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """One commit with today's kernels, as the checkout and as the kernels of this process."""
    root = folder / "scratch"
    shutil.copytree(ROOT / "kernels", root / "kernels")
    shutil.copy(ROOT / "asv.conf.json", root)
    git(root, "init", "-q", "-b", "main")
    made = Scratch(root)
    made.commit()
    monkeypatch.chdir(root)
    monkeypatch.setattr(source, "KERNELS", root / "kernels")
    return made
