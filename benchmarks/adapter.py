"""What all benchmarks share: run the command line, hand out its numbers.

The benchmarks of today run against the package of old commits. So they know its command line and
the object of `--format json`, and nothing else of it. A command or an arm that a commit does not
have yet, and a device that is not here, is n/a.
"""

import json
import os
import subprocess
import sys
from typing import Any

Numbers = dict[str, Any]
"""Of one class: what its `setup_cache` measured, by device, then by case and arm."""

DEVICES = ("cuda0", "nvcl0", "pocl", "intel")
NARROWED = "GEMVBENCH_BENCH_DEVICES"
"""Environment variable that leaves some of the devices present out: "pocl" or "cuda0,nvcl0"."""

USAGE, NO_DEVICE = 2, 4
_FAILED = "failed"
TIMEOUT = 900.0
"""Seconds for everything that one class measures on one device."""


class NotHereError(NotImplementedError):
    """n/a, in asv's language: no such device, or a commit that cannot be asked."""


def answer(*words: str, timeout: float = TIMEOUT) -> Any:
    """The JSON object of a command; that of a wrong or void run holds its reasons.

    Raises:
        NotHereError: the commit does not know the command, or what was asked of it.
        RuntimeError: the command answered nothing; with its last words.
    """
    command = [sys.executable, "-m", "gemvbench", *words, "--format", "json"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
    )
    if done.returncode == USAGE or (done.returncode == NO_DEVICE and words == ("devices",)):
        raise NotHereError(done.stderr[-500:])
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(
            f"{' '.join(words)}: exit {done.returncode}\n{done.stderr[-2000:]}"
        ) from None


def kinds() -> dict[str, str]:
    """ "cpu" or "gpu" by the id of every device that is to be measured here."""
    try:
        found = {device["id"]: device["kind"] for device in answer("devices")}
    except NotHereError:
        return {}
    narrowed = os.environ.get(NARROWED)
    wanted = narrowed.split(",") if narrowed else DEVICES
    return {name: kind for name, kind in found.items() if name in wanted}


def measure(words: dict[str, list[str]]) -> Numbers:
    """The results of one command for each device, by case and arm; words by kind of device.

    A device whose command failed has the reason in its place: the others go on.
    """
    numbers: Numbers = {}
    for device, kind in kinds().items():
        try:
            results = answer(*words[kind], "--device", device)["results"]
        except (NotHereError, RuntimeError, subprocess.TimeoutExpired) as error:
            numbers[device] = {_FAILED: (isinstance(error, NotHereError), str(error))}
        else:
            numbers[device] = {f"{result['case']} {result['arm']}": result for result in results}
    return numbers


def pick(numbers: Numbers, device: str, case: str, arm: str) -> Any:
    """One result.

    Raises:
        NotHereError: it was not asked for on this device, or could not be asked.
        RuntimeError: the command failed, or the arm is wrong or failed.
    """
    of_device = numbers.get(device, {})
    missing, reason = of_device.get(_FAILED, (True, ""))
    if not missing:
        raise RuntimeError(reason)
    result = of_device.get(f"{case} {arm}")
    if result is None or result["verdict"] == "DECLINED":
        raise NotHereError(f"{device} {case} {arm} {reason}")
    if result["verdict"] in ("WRONG", "FAILED", "INVALID"):
        raise RuntimeError(f"{arm} is {result['verdict']}: {result.get('reason', '')}")
    return result


class _Timed:
    """Arms by device and case: asv discovers those who inherit, not this."""

    param_names = ("device", "case", "arm")
    timeout = 4 * TIMEOUT

    def setup(self, numbers: Numbers, device: str, case: str, arm: str) -> None:
        pick(numbers, device, case, arm)

    def track_time(self, numbers: Numbers, device: str, case: str, arm: str) -> Numbers:
        return seconds(pick(numbers, device, case, arm))

    track_time.unit = "seconds"


class _Paired(_Timed):
    """And each against a baseline in the same blocks."""

    def track_ratio(self, numbers: Numbers, device: str, case: str, arm: str) -> Numbers:
        return ratio(pick(numbers, device, case, arm))

    track_ratio.unit = "time of the arm / time of the baseline"


def seconds(result: Any) -> Numbers:
    """Seconds per call, a sample for each block."""
    return samples(result.get("block_seconds") or [result["seconds_per_call"]])


def ratio(result: Any) -> Numbers:
    """Time of the arm over time of the baseline, a sample for each block: less is better."""
    return samples([1 / each for each in result.get("block_ratios") or [result["ratio"]]])


def samples(values: list[float]) -> Numbers:
    """A value of `track_*` that asv keeps with its samples, median and interval."""
    return {"samples": values, "number": 1}
