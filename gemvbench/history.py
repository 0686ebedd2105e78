"""A gate's ratios in asv's results, so that its pages show the decision beside the history."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemvbench.asv_machine import machine_file, merge_machine
from gemvbench.checkout import commit_time, find_root
from gemvbench.device import DeviceInfo
from gemvbench.errors import UserError
from gemvbench.record import Gate
from gemvbench.result import Result

BENCHMARK = "gate.Gate.track_ratio"
VERSION = "1"
"""That of benchmarks/gate.py; raise both when what is measured changes."""

Row = tuple[str, ...]
"""Device, case and arm as asv has parameters: texts in quotes."""


@dataclass(frozen=True)
class AsvResults:
    """asv's folder of results."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> AsvResults:
        """The folder, whose asv is there.

        Raises:
            UserError: asv is not installed, or there is something else in the folder's place.
        """
        try:
            import asv  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"--asv needs asv, which is not installed ({error}): "
                "`pip install 'gemvbench[asv]'` brings it."
            ) from error
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--asv {folder} is no folder; name that of asv's results.")
        return cls(folder)

    def write(self, gate: Gate, found: Iterable[Result], devices: Iterable[DeviceInfo]) -> Path:
        """Time now over time at the base, a sample for each block; less is better.

        What the file of this commit holds already stays, but for the same device, case and arm.

        Raises:
            UserError: asv cannot read or write the file; it is left as it was.
        """
        samples = {
            tuple(map(repr, (r.device, r.case, r.arm))): [1 / each for each in r.block_ratios]
            for r in found
            if r.block_ratios and r.verdict in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
        }
        machine = merge_machine(machine_file(""), devices)
        try:
            results = self._load(gate, machine)
            _add(results, samples)
            return self._save(results, machine)
        except Exception as error:  # asv raises whatever it meets in a damaged file
            raise UserError(
                f"The ratios cannot be written into asv's results in {self.folder} "
                f"({type(error).__name__}: {error}); what is there was left as it was."
            ) from error

    def _load(self, gate: Gate, machine: dict[str, str]) -> Any:
        """The results of this machine and commit: those that asv has begun, or new ones."""
        from asv.results import Results, iter_results_for_machine_and_hash

        name = machine["machine"]
        for path in (self.folder / name).glob(f"{gate.head[:8]}-*.json"):
            json.loads(path.read_text())  # asv passes over a damaged file, and we would write it
        if (self.folder / name).is_dir():
            begun = iter_results_for_machine_and_hash(str(self.folder), name, gate.head)
            for results in begun:
                return results
        environment = _environment()
        params = {**machine, "python": environment.python, **environment.requirements}
        return Results(
            params,
            environment.requirements,
            gate.head,
            1000 * commit_time(gate.head),
            environment.python,
            environment.name,
            environment.env_vars,
        )

    def _save(self, results: Any, machine: dict[str, str]) -> Path:
        """In one step: a run killed here leaves the old file or the new one."""
        from asv.machine import Machine

        own = self.folder / machine["machine"]
        own.mkdir(parents=True, exist_ok=True)
        if not (own / "machine.json").exists():
            described = Machine()
            described.__dict__.update(machine)
            described.save(str(self.folder))
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as aside:
            results.save(aside)
            (written,) = (path for path in Path(aside).rglob("*.json"))
            target = own / written.name
            written.replace(target)
        return target


def _add(results: Any, samples: dict[Row, list[float]]) -> None:
    """Put samples beside those that the results have of other arms."""
    from asv.runner import BenchmarkResult

    old = _known(results)
    rows = [*old, *samples]
    if not rows:
        return
    axes = [list(dict.fromkeys(row[axis] for row in rows)) for axis in range(3)]
    product = list(itertools.product(*axes))
    merged = [samples.get(row) or old.get(row) for row in product]
    benchmark = {"name": BENCHMARK, "version": VERSION, "params": axes}
    found = BenchmarkResult(
        [1.0 if each else math.nan for each in merged],
        merged,
        [1 if each else None for each in merged],
        0,
        "",
        None,
    )
    results.add_result(benchmark, found, record_samples=True)


def _known(results: Any) -> dict[Row, list[float]]:
    """Samples of earlier gates of this commit."""
    if results.benchmark_version.get(BENCHMARK) != VERSION:
        return {}
    axes = results.get_result_params(BENCHMARK)
    samples: Sequence[list[float] | None] = results.get_result_samples(BENCHMARK, axes)
    rows = itertools.product(*axes)
    return {row: each for row, each in zip(rows, samples, strict=True) if each}


def _environment() -> Any:
    """The first environment of the checkout's asv.conf.json, which `asv run` uses."""
    from asv.config import Config
    from asv.environment import get_environments

    conf = Config.load(str(find_root("HEAD") / "asv.conf.json"))
    return next(iter(get_environments(conf, [], verbose=False)))
