"""The Markdown of a run is fit to be pasted into a pull request: the whole text of one run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import SHAPE, Answer

from gemvbench.commands import setup
from gemvbench.report.pull_request import explain

pytestmark = pytest.mark.usefixtures("in_process")

Run = Callable[..., Answer]
Write = Callable[..., Path]
ENVIRONMENT = {
    "python": "3.11.7",
    "system": "Linux 6.1",
    "cpu": "Some CPU",
    "cpus": "2",
    "load": "0.10 0.20 0.30",
    "commit": "0123456789ab-dirty",
    "numpy": "2.0",
    "pyopencl": "2026.1",
}
TEXT = """\
On gemv-512x64-f16-f16 (fake0), pack2 against base: FASTER, 1.100x the speed (ratio 1.100, \
interval 1.100 .. 1.100, 6 blocks).

### gemv-512x64-f16-f16 on fake0, regime stream

| arm | verdict | ratio | interval | time | kernel | GB/s | of roof | flags |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| base | BASELINE | 1.000 |  | 3.341 ms | 3.341 ms | 0.02 | 50.0% |  |
| aa | SAME | 1.000 | 1.000 .. 1.000 | 3.341 ms | 3.341 ms | 0.02 | 50.0% |  |
| pack2 | FASTER | 1.100 | 1.100 .. 1.100 | 3.037 ms | 3.037 ms | 0.022 | 55.0% \
| clocks differ (-10.0%) |
| roof |  |  |  |  |  | 0.04 | 100.0% | a bare read, same blocks |

pack2 and base ran at different SM clocks: the ratio of their cycles is 1.222, that of their \
times 1.100.

**How sure**

- Ratio: time of base over time of arm, more is faster; 99% interval over 6 blocks of 6 passes, \
arms of a case together. aa is the baseline a second time.
- Noise floor 0.00%; effects from 0.00% on are found nine times in ten (median arm); SAME means \
inside 1.0%.
- Regime stream is unconfirmed: whether a whole token shows this ranking tells `gemvbench decode \
--model MODEL --arm ARM --ab RECORD`.
- Between passes base drifted 0.0% peak to peak, which pairing takes out; slots of a pass differ \
by 0.00%, which the orders balance.
- pack2 alone: ratio 1.100 against 1.100 together (processes differ by up to 0.00%).
- The event clock of fake0 ran at 0.952 of the host's: its times may be off by as much.
- 731.3 s of timed device intervals in WALL of measuring.

**Flagged**

- event clock of fake0 at 0.952 of the host's, so that times of this device may be off by as much
- pack2: clocks differ (-10.0%), the SM clock of the arm against that of the baseline

**Measured on**

- fake0: scripted cpu (fake, driver 1), 1
- gemvbench 0.1.0, commit 0123456789ab, with uncommitted changes
- python 3.11.7, numpy 2.0, pyopencl 2026.1
- Some CPU, Linux 6.1, 2 CPUs, load 0.10 0.20 0.30

**To repeat it**

```sh
gemvbench ab --arm pack2 --shape 512x64 -k 'gemv|other' --format md
```
"""


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "describe_environment", lambda: ENVIRONMENT)


def test_the_whole_text(gemvbench: Run, script: Write) -> None:
    rules = [
        {"match": {"PACK": "2"}, "gbps": 0.022, "sm_mhz": 1800},
        {"host_clock": 1.05, "sm_mhz": 2000, "noise": 0.0, "offset": 0.0},
    ]
    script(rules)
    words = ("--arm", "pack2", "--shape", SHAPE, "-k", "gemv|other", "--format", "md")
    text = gemvbench("ab", *words).out
    assert re.sub(r"in \S+ m?s of measuring", "in WALL of measuring", text) == TEXT
    (record,) = Path("..", "home").rglob("*.jsonl")
    assert gemvbench("report", record, "--format", "md").out == text


def test_several_arms_are_counted_and_claimed_each(gemvbench: Run, script: Write) -> None:
    script([{"match": {"PACK": "2"}, "gbps": 0.03}, {"match": {"PACK": "3"}, "gbps": 0.01}])
    words = ("--arm", "pack2", "--arm", "pack3", "--shape", SHAPE, "--quick", "--format", "md")
    text = gemvbench("ab", *words).out
    first, _, rest = text.partition("\n\n")
    assert first == (
        "Against base on gemv-512x64-f16-f16: pack2 is FASTER (ratio 1.501), "
        "pack3 is SLOWER (ratio 0.500)."
    )
    assert "pack2 against base: FASTER, 1.5" in rest
    assert "pack3 against base: SLOWER, 0.5" in rest
    assert "- Nothing." in rest
    assert "\n- No arm was measured alone (--quick).\n" in rest


def test_a_void_run_says_so_first(gemvbench: Run) -> None:
    gemvbench("ab", "--arm", "pack2", "--shape", SHAPE, "--quick", "--record", "r")
    slow = re.compile(r'("arm":"aa","long":\{"calls":\d+,"timeline":)([\d.]+)')
    record = Path("r")
    record.write_text(slow.sub(lambda m: f"{m[1]}{float(m[2]) * 1.2}", record.read_text()))
    text = gemvbench("report", "r", "--format", "md").out
    assert text.startswith("**VOID.** ")
    assert "- VOID: the baseline and its identical twin differ" in text


def test_a_sweep_keeps_its_matrix(gemvbench: Run) -> None:
    words = ("--pack", "0,1", "--shape", SHAPE, "--quick", "--format", "md")
    text = gemvbench("sweep", *words).out
    assert "| rows1 |" in text or "|  | pack0 | pack1 |" in text
    assert f"gemvbench sweep {' '.join(words)}\n" in text


@pytest.mark.parametrize(
    "flag",
    [
        "3 of 18 measurements not positive",
        "host-bound in 3 of 18",
        "throttled in 3 of 18 (SwPowerCap)",
        "slow in 3 of 36",
        "non-linear (+4.0%)",
        "launch gaps 12%",
        "compute-bound",
        "identical to base",
        "aa",
        "small",
        "contaminated (+5.0%)",
        "clocks differ (+1.0%)",
        "event clock of dev at 0.950 of the host's",
    ],
)
def test_every_flag_is_put_into_words(flag: str) -> None:
    said = explain(flag)
    assert said.startswith(f"{flag}, ")
    assert len(said) > len(flag) + 20
