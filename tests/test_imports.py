"""Imports point one way, and nothing heavy loads before it is needed.

Read from the syntax trees, so that a module which cannot be imported here is held to the rules
all the same.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gemvbench"

# Never at module level, but in the back end that exists for the library.
HEAVY = {"cuda", "cupy", "matplotlib", "pynvml", "pyopencl", "scipy"}
OWN_BACKENDS = ("opencl", "opencl_devices", "cuda", "cuda_devices", "cublas", "nvml")
# Not at module level in what the command line loads at once.
LATE = {"ml_dtypes", "numpy", "rich"}
# These know results and plans, and no device.
PURE = ("gemvbench.plan", "gemvbench.stats", "gemvbench.report")
BACKEND = "gemvbench.backend"


@dataclass(frozen=True)
class Import:
    """One imported name, where it stands, and whether it runs when its module is loaded."""

    module: str
    line: int
    at_load: bool
    typing_only: bool


def find_modules(package: Path) -> dict[str, Path]:
    """The package's modules by dotted name; a folder is named without its `__init__`."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def is_typing_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def targets(node: ast.Import | ast.ImportFrom, name: str, modules: dict[str, Path]) -> list[str]:
    """Full names of what a statement imports; `from a import b` is a.b where that's a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = name.split(".")
        is_package = modules[name].name == "__init__.py"
        kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
        base = ".".join([*kept, base] if base else kept)
    full = [f"{base}.{alias.name}" for alias in node.names]
    return [each if each in modules else base for each in full]


def imports_of(name: str, modules: dict[str, Path]) -> Iterator[Import]:
    tree = ast.parse(modules[name].read_text(encoding="utf-8"))
    yield from _walk(tree.body, name, modules, at_load=True, typing_only=False)


def _walk(
    nodes: list[ast.stmt], name: str, modules: dict[str, Path], *, at_load: bool, typing_only: bool
) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in targets(node, name, modules):
                yield Import(module, node.lineno, at_load and not typing_only, typing_only)
            continue
        guard = is_typing_guard(node)
        inside = at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field, value in ast.iter_fields(node):
            if not isinstance(value, list):
                continue
            only = typing_only or (guard and field == "body")
            body = [child for child in value if isinstance(child, ast.stmt)]
            clauses = (c for c in value if isinstance(c, ast.ExceptHandler | ast.match_case))
            for group in (body, *(clause.body for clause in clauses)):
                yield from _walk(group, name, modules, at_load=inside, typing_only=only)


def graph(modules: dict[str, Path], *, at_load: bool) -> dict[str, set[str]]:
    """Who names whom inside the package: everywhere, or only where a module's loading does."""
    edges: dict[str, set[str]] = {}
    for name in modules:
        found = imports_of(name, modules)
        edges[name] = {
            each.module
            for each in found
            if each.module in modules and each.module != name and (each.at_load or not at_load)
        }
    return edges


def with_parents(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Loading a.b.c loads a and a.b as well."""
    wide = {}
    for name, targets_ in edges.items():
        named = {name, *targets_}
        wide[name] = targets_ | {
            parent
            for each in named
            for parent in (each.rsplit(".", depth)[0] for depth in range(1, each.count(".") + 1))
        }
    return wide


def reach(start: str, edges: dict[str, set[str]]) -> dict[str, list[str]]:
    """Every module reached from `start`, with the way there."""
    ways = {start: [start]}
    queue = [start]
    while queue:
        here = queue.pop(0)
        for there in sorted(edges.get(here, ())):
            if there not in ways:
                ways[there] = [*ways[here], there]
                queue.append(there)
    return ways


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """One cycle, as the names along it, or nothing."""
    for name in edges:
        for there in sorted(edges[name]):
            back = reach(there, edges)
            if name in back:
                return [name, *back[name]]
    return []


def under(name: str, *roots: str) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


MODULES = find_modules(PACKAGE)


def test_modules_were_found() -> None:
    assert {"gemvbench", "gemvbench.cli", "gemvbench.__main__"} <= set(MODULES)


def test_package_init_imports_nothing() -> None:
    assert list(imports_of("gemvbench", MODULES)) == []


@pytest.mark.parametrize("at_load", [True, False], ids=["at load", "anywhere"])
def test_imports_point_one_way(at_load: bool) -> None:
    cycle = find_cycle(graph(MODULES, at_load=at_load))
    assert not cycle, "an import cycle: " + " -> ".join(cycle)


@pytest.mark.parametrize("name", [name for name in MODULES if under(name, *PURE)])
def test_plan_stats_and_report_never_reach_a_backend(name: str) -> None:
    ways = reach(name, graph(MODULES, at_load=False))
    bad = [" -> ".join(way) for there, way in ways.items() if under(there, BACKEND)]
    assert not bad


def is_own_backend(name: str) -> bool:
    return name in {f"{BACKEND}.{own}" for own in OWN_BACKENDS}


@pytest.mark.parametrize("name", [name for name in MODULES if not is_own_backend(name)])
def test_nothing_heavy_at_module_level(name: str) -> None:
    bad = [
        f"{MODULES[name].relative_to(ROOT)}:{each.line}: {each.module}"
        for each in imports_of(name, MODULES)
        if each.at_load and each.module.split(".")[0] in HEAVY
    ]
    assert not bad


def test_back_ends_are_imported_late() -> None:
    edges = graph(MODULES, at_load=True)
    bad = [
        f"{name} imports {there}"
        for name in MODULES
        for there in edges[name]
        if is_own_backend(there) and not under(name, BACKEND)
    ]
    assert not bad


def test_command_line_loads_nothing_late_at_once() -> None:
    edges = with_parents(graph(MODULES, at_load=True))
    ways = {**reach("gemvbench.__main__", edges), **reach("gemvbench.cli", edges)}
    bad = [
        f"{' -> '.join(ways[name])} imports {each.module} in line {each.line}"
        for name in ways
        for each in imports_of(name, MODULES)
        if each.at_load and each.module.split(".")[0] in LATE
    ]
    assert not bad


@pytest.mark.parametrize("command", ["--help", "list"])
def test_start_up_loads_nothing_heavy(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gemvbench", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in lines}
    assert "gemvbench" in loaded
    # `list` prints a table, and that is what rich is for.
    assert not loaded & (HEAVY | LATE) - ({"rich"} if command == "list" else set())


def write(folder: Path, **files: str) -> dict[str, Path]:
    package = folder / "p"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return find_modules(package)


def test_the_rules_see_a_cycle(tmp_path: Path) -> None:
    modules = write(tmp_path, a="from p import b\n", b="def f():\n    from . import a\n")
    assert find_cycle(graph(modules, at_load=True)) == []
    assert find_cycle(graph(modules, at_load=False)) == ["p.a", "p.b", "p.a"]


def test_the_rules_see_where_an_import_stands(tmp_path: Path) -> None:
    text = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import cupy
else:
    import pynvml
try:
    import scipy.stats
except ImportError:
    import pyopencl
class C:
    import numpy
    def f(self):
        import rich
"""
    modules = write(tmp_path, a=text)
    found = {each.module: each.at_load for each in imports_of("p.a", modules)}
    assert found == {
        "typing": True,
        "cupy": False,
        "pynvml": True,
        "scipy.stats": True,
        "pyopencl": True,
        "numpy": True,
        "rich": False,
    }
