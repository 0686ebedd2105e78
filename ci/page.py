"""Make asv's published page independent of the network: `python ci/page.py [HTML_DIR]`.

asv's page loads its scripts from public addresses, so on a machine without the network it shows an
error and nothing else. Here the same scripts come from the npm registry, once, and the page is
made to take them from its own folder. asv's check sums are kept wherever the file is the very one
that asv names.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_VENDOR = "vendor"
_FLOT = "flot@0.8.3"
_SOURCES = {
    "jquery-3.3.1.min.js": ("jquery@3.3.1", "dist/jquery.min.js"),
    "jquery.flot.min.js": (_FLOT, "jquery.flot.js"),
    "jquery.flot.time.min.js": (_FLOT, "jquery.flot.time.js"),
    "jquery.flot.selection.min.js": (_FLOT, "jquery.flot.selection.js"),
    "jquery.flot.categories.min.js": (_FLOT, "jquery.flot.categories.js"),
    "jquery.flot.orderBars.js": ("flot-orderbars@1.0.0", "js/jquery.flot.orderBars.js"),
    "stupidtable.min.js": ("stupid-table-plugin@1.1.3", "stupidtable.min.js"),
    "md5.min.js": ("blueimp-md5@2.19.0", "js/md5.min.js"),
    "bootstrap.min.js": ("bootstrap@3.1.1", "dist/js/bootstrap.min.js"),
    "bootstrap.min.css": ("bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
}
"""Package and file by the last part of the address in asv's page."""

_OUTSIDE = re.compile(
    r'(?P<attribute>src|href)="https://[^"]*/(?P<name>[^"/]+\.(?:js|css))"'
    r'(?P<sum> integrity="(?P<kind>sha\d+)-(?P<digest>[^"]+)")?'
    r'(?: crossorigin="[^"]*")?(?: referrerpolicy="[^"]*")?'
)


class PageError(Exception):
    """The page stays as asv made it, and why."""


def make_local(html: Path, cache: Path) -> int:
    """Put the scripts of a page beside it; returns how many addresses were replaced.

    Raises:
        PageError: the npm registry cannot be reached, or asv's page needs an unknown script.
    """
    index = html / "index.html"
    text = index.read_text(encoding="utf-8")
    names = [match["name"] for match in _OUTSIDE.finditer(text)]
    unknown = sorted(set(names) - set(_SOURCES))
    if unknown:
        raise PageError(f"asv's page needs {', '.join(unknown)}, which ci/page.py does not know")
    (html / _VENDOR).mkdir(exist_ok=True)
    for name in names:
        shutil.copy(_fetch(name, cache), html / _VENDOR / name)
    index.write_text(_OUTSIDE.sub(lambda match: _local(match, html), text), encoding="utf-8")
    return len(names)


def _local(match: re.Match[str], html: Path) -> str:
    """The attribute with the file's new place, and asv's check sum where the file has it."""
    data = (html / _VENDOR / match["name"]).read_bytes()
    same = match["sum"] and match["digest"] == base64.b64encode(
        hashlib.new(match["kind"], data).digest()
    ).decode("ascii")
    return f'{match["attribute"]}="{_VENDOR}/{match["name"]}"{match["sum"] if same else ""}'


def _fetch(name: str, cache: Path) -> Path:
    """A file of a package, from the cache or the registry."""
    package, inside = _SOURCES[name]
    path = cache / package / inside
    if path.exists():
        return path
    npm = shutil.which("npm")
    if npm is None:
        raise PageError("there is no npm here to bring the page's scripts")
    with tempfile.TemporaryDirectory(dir=_made(cache)) as folder:
        command = [npm, "pack", "--silent", "--pack-destination", folder, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise PageError(f"npm cannot bring {package}: {done.stderr.strip()[-300:]}")
        with tarfile.open(Path(folder) / done.stdout.split()[-1]) as archive:
            archive.extractall(folder, filter="data")
        # Whole or not at all, whoever else brings it just now.
        with contextlib.suppress(OSError):
            (Path(folder) / "package").rename(cache / package)
    if not path.exists():
        raise PageError(f"{package} has no {inside}")
    return path


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> int:
    """Exit 0 also where the page stays as it is: it then needs the network, and works there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("html", nargs="?", default=str(ROOT / ".asv" / "html"))
    html = Path(parser.parse_args().html)
    if not (html / "index.html").exists():
        print(f"{html} holds no page; `asv publish` makes one.")
        return 1
    try:
        count = make_local(html, ROOT / ".asv" / _VENDOR)
    except PageError as error:
        print(f"The page still takes its scripts from the network: {error}.")
        return 0
    print(f"{html / 'index.html'}: {count} scripts and styles are in the page's own folder now.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
