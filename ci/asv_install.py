"""Install the wheel that asv built into asv's environment, with what its devices need.

The extras come from GEMVBENCH_ASV_EXTRAS ("cpu", "cpu,cuda"); without it: PoCL, and CUDA where an
NVIDIA driver is loaded. asv starts this with the environment's own Python. A commit that does not
have an extra yet only gets a warning of pip.
"""

import os
import subprocess
import sys
from pathlib import Path

EXTRAS = "GEMVBENCH_ASV_EXTRAS"


def choose_extras(driver: Path = Path("/proc/driver/nvidia")) -> str:
    return os.environ.get(EXTRAS) or ("cpu,cuda" if driver.exists() else "cpu")


def main(wheel: str) -> int:
    """Install, or for `--extras` only print them."""
    if wheel == "--extras":
        print(choose_extras())
        return 0
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    return subprocess.run([*pip, f"{wheel}[{choose_extras()}]"]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
