"""The wheel, the sdist and the installed package carry every kernel, without the checkout."""

import importlib.resources
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import gemvbench

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gemvbench"
SKIPPED = {"__pycache__"}


def checkout_files() -> set[str]:
    """Every file of the package in the checkout, kernels included, as posix paths from ROOT."""
    files: set[str] = set()
    for folder, names, found in os.walk(PACKAGE, followlinks=True):
        names[:] = [name for name in names if name not in SKIPPED]
        files |= {(Path(folder) / name).relative_to(ROOT).as_posix() for name in found}
    return files


def kernels(files: set[str]) -> set[str]:
    return {name for name in files if name.startswith("gemvbench/kernels/")}


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the sdist, and the wheel from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)),
        cwd=out,
    )
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_both_languages_have_kernels() -> None:
    found = {PurePosixPath(name).parts[2] for name in kernels(checkout_files())}
    assert {"cuda", "opencl"} <= found


def test_wheel_is_the_package_and_nothing_else(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == checkout_files()


def test_sdist_carries_the_package_once(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.partition("/")[2] for member in members}
    assert {name for name in names if name.startswith("gemvbench/")} == checkout_files()
    assert not {name for name in names if name.startswith("kernels/")}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_package_finds_its_kernels(
    kind: str, built: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--no-build-isolation", "--target", str(target), str(built[kind]), cwd=tmp_path)
    probe = """
import importlib.resources, json, gemvbench
folder = importlib.resources.files("gemvbench") / "kernels"
folders = [d for d in folder.iterdir() if d.is_dir()]
names = [f"gemvbench/kernels/{d.name}/{f.name}" for d in folders for f in d.iterdir()]
names += [f"gemvbench/kernels/{f.name}" for f in folder.iterdir() if f.is_file()]
print(json.dumps([gemvbench.__file__, names]))
"""
    said = run(sys.executable, "-c", probe, cwd=tmp_path, PYTHONPATH=str(target))
    place, names = json.loads(said)
    assert Path(place).is_relative_to(target)
    assert set(names) == kernels(checkout_files())


def test_imported_package_finds_its_kernels() -> None:
    """The tests' own environment is an editable install: the third kind."""
    folder = importlib.resources.files("gemvbench") / "kernels"
    assert [entry.name for entry in (folder / "opencl").iterdir() if entry.name.endswith(".cl")]
    assert [entry.name for entry in (folder / "cuda").iterdir() if entry.name.endswith(".cu")]


def test_version_is_the_package_version(built: dict[str, Path]) -> None:
    found = re.fullmatch(r"gemvbench-(.+)-py3-none-any\.whl", built["wheel"].name)
    assert found
    assert found[1] == gemvbench.__version__
