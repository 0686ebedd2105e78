"""How long the command line takes to start."""

import subprocess
import sys


def _run(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "gemvbench", *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


class Startup:
    """Wall time of a whole process, from its start to its exit."""

    version = "1"
    unit = "seconds"
    params = ("--help", "list")
    param_names = ("command",)
    timeout = 120.0
    number = 1
    repeat = (7, 30, 10.0)
    warmup_time = 0.0

    def setup(self, command: str) -> None:
        """Start once, unmeasured; a commit without the command gets no result."""
        if _run([command]) != 0:
            raise NotImplementedError(command)

    def time_command(self, command: str) -> None:
        _run([command])
