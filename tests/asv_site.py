"""asv's results written from outside, and its page as a browser shows it."""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import page
import pytest

ROOT = Path(__file__).resolve().parents[1]
MACHINE = {
    "machine": "scratch",
    "os": "Linux",
    "arch": "x86_64",
    "cpu": "a CPU",
    "num_cpu": "2",
    "ram": "1",
    "gpu": "none",
    "driver": "none",
}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=8000", "--window-size=1400,1000"),
)

Value = Callable[[str, int, tuple[str, ...]], float]
"""Of a benchmark at a commit by number, for one combination of its parameters."""


def git(folder: Path, *words: str, date: int = 1_700_000_000) -> str:
    """Run git as nobody in particular, at a time of its own."""
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_AUTHOR_DATE": f"{date} +0000"}
    names |= {key.replace("AUTHOR", "COMMITTER"): value for key, value in names.items()}
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        env=os.environ | names,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_repository(folder: Path, commits: int) -> list[str]:
    """A repository with asv's configuration and a day between commits; their hashes in order."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    shutil.copy(ROOT / "asv.conf.json", folder)
    (folder / ".gitignore").write_text("/.asv/\n")
    git(folder, "add", ".")
    hashes = []
    for number in range(commits):
        when = 1_700_000_000 + 86_400 * number
        git(folder, "commit", "-q", "--allow-empty", "-m", f"commit {number}", date=when)
        hashes.append(git(folder, "rev-parse", "HEAD"))
    return hashes


def discovered(names: str) -> list[dict[str, Any]]:
    """The project's own benchmarks as asv finds them, those that match."""
    out = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys, io; from asv_runner.discovery import list_benchmarks, update_sys_path\n"
            "update_sys_path(sys.argv[1]); out = io.StringIO(); list_benchmarks(sys.argv[1], out)\n"
            "print(out.getvalue())",
            str(ROOT / "benchmarks"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: list[dict[str, Any]] = json.loads(out)
    return [benchmark for benchmark in found if re.search(names, benchmark["name"])]


def save_benchmarks(folder: Path, names: str) -> list[dict[str, Any]]:
    """The benchmarks that match into a repository's results, as asv lists them when it runs."""
    from asv.benchmarks import Benchmarks
    from asv.config import Config

    conf = Config.load(str(folder / "asv.conf.json"))
    conf.results_dir = str(folder / conf.results_dir)
    benchmarks = discovered(names)
    Benchmarks(conf, benchmarks).save()
    return benchmarks


def write_results(folder: Path, hashes: list[str], names: str, value: Value) -> Path:
    """Results of the benchmarks that match, at every commit; returns their folder."""
    from asv.config import Config
    from asv.machine import Machine
    from asv.results import Results
    from asv.runner import BenchmarkResult

    benchmarks = save_benchmarks(folder, names)
    conf = Config.load(str(folder / "asv.conf.json"))
    conf.results_dir = str(folder / conf.results_dir)
    machine = Machine()
    machine.__dict__.update(MACHINE)
    machine.save(conf.results_dir)
    for number, commit in enumerate(hashes):
        date = 1000 * int(git(folder, "show", "-s", "--format=%ct", commit))
        params = {**MACHINE, "python": "3.11"}
        results = Results(params, {}, commit, date, "3.11", "virtualenv-py3.11", {})
        for benchmark in benchmarks:
            rows = list(itertools.product(*benchmark["params"]))
            numbers = [value(benchmark["name"], number, row) for row in rows]
            empty = [None] * len(rows)
            found = BenchmarkResult(numbers, empty, empty, 0, "", None)
            results.add_result(benchmark, found)
        results.save(conf.results_dir)
    return Path(conf.results_dir)


def publish(folder: Path) -> Path:
    """The published page's folder."""
    done = subprocess.run(
        [sys.executable, "-m", "asv", "publish"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    html = folder / ".asv" / "html"
    page.make_local(html, ROOT / ".asv" / "vendor")
    return html


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, for as long as it is served."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def browser() -> str:
    """A browser's path. CI has one; elsewhere tests that need it say what to install."""
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None and not os.environ.get("CI"):
        pytest.skip("needs Chromium: on Debian, apt-get install chromium")
    assert found, "CI has no Chromium, which .ci/run installs"
    return found


def shown(url: str, profile: Path, picture: Path | None = None) -> str:
    """The page's elements once its scripts have run; or a picture of it in a PNG file."""
    what = f"--screenshot={picture}" if picture else "--dump-dom"
    done = subprocess.run(
        [browser(), *_FLAGS, f"--user-data-dir={profile}", what, url],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout
