"""The harness itself: what a block costs beside its kernels, statistics, and memory.

On the scripted device, whose kernels take no time: what is left is gemvbench. Its times are as
they are, and drift with the machine.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .adapter import Numbers, samples

_RECORD = "record.jsonl"
_RUNS = 3
_AB = ("ab", "--quick", "--blocks", "6", "--shape", "512x64", "--arm", "pack2")
_SCRIPT = {"rules": [{"gbps": 0.02, "noise": 0.002}]}


def _start(folder: Path, *words: str) -> tuple[float, int]:
    """(wall seconds, peak bytes of the largest process) of a command on the scripted device.

    Raises:
        NotImplementedError: this commit does not take the command.
    """
    script = folder / "script.json"
    script.write_text(json.dumps(_SCRIPT))
    fake = {"GEMVBENCH_FAKE": str(script), "GEMVBENCH_HOME": str(folder / "home")}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gemvbench", *words],
        env=os.environ | fake,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise NotImplementedError(" ".join(words))
    return wall, usage.ru_maxrss * 1024


def setup_cache() -> Numbers:
    """Runs of six blocks; the record of the last lies in the folder of the benchmarks."""
    walls, peaks = [], []
    for run in range(_RUNS):
        folder = Path(f"run{run}")
        folder.mkdir()
        try:
            wall, peak = _start(folder.absolute(), *_AB, "--record", str(folder / _RECORD))
        except NotImplementedError:
            return {}
        walls.append(wall)
        peaks.append(peak)
    return {"walls": walls, "peaks": peaks, "record": str((folder / _RECORD).absolute())}


class Harness:
    """Of a run of six blocks of one case and one arm."""

    version = "1"
    timeout = 300.0
    number = 1
    repeat = (5, 10, 10.0)
    warmup_time = 0.0

    def setup(self, numbers: Numbers) -> None:
        if not numbers:
            raise NotImplementedError

    def track_block(self, numbers: Numbers) -> Numbers:
        """Wall time of the whole run over its blocks, start-up and verification included."""
        return samples([wall / 6 for wall in numbers["walls"]])

    def track_peak_memory(self, numbers: Numbers) -> Numbers:
        """Resident memory of its largest process."""
        return samples(numbers["peaks"])

    def time_statistics(self, numbers: Numbers) -> None:
        """`report`: the record read again, all verdicts and intervals."""
        _start(Path.cwd(), "report", numbers["record"])

    track_block.unit = "seconds"
    track_peak_memory.unit = "bytes"
