"""A night: `gate` against the last good commit, `asv run` on what is new, `asv publish`.

Ends with one line and an exit code: 0 clean; 1 a regression; 3 a wrong or failed arm or benchmark;
4 no device, a void gate, or a step that failed; 2 usage. Called by the script beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec
from night_checks import Checkout, check_results
from night_state import Night, NightError, State, load_state, lock, save_state
from night_steps import CLEAN, REGRESSION, VOID, WRONG, Runner, asv_command, gate_command

ROOT = Path(__file__).resolve().parents[1]
_WORDS = {CLEAN: "clean", REGRESSION: "REGRESSION", WRONG: "WRONG or FAILED", VOID: "VOID"}
_WORST_FIRST = (REGRESSION, WRONG, VOID)


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """One night; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(words)
    if options.gate_only and not options.base:
        parser.error("--gate-only needs --base REV")
    # Lines come in order, whatever the log of a cron job is.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    folder = Path(options.state or root / ".asv" / "nightly").absolute()
    try:
        with lock(folder) as held:
            return _night(options, root, folder, held)
    except NightError as error:
        print(f"nightly: {error}")
        print(f"nightly: nothing was judged; exit {VOID}")
        return VOID


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ci/nightly", description=__doc__)
    add = parser.add_argument
    add("--state", metavar="DIR", help="state and records of nights (default: .asv/nightly)")
    add("--base", metavar="REV", help="judge against this, not against the last good commit")
    add("--gate-only", action="store_true", help="with --base: judge, and keep no state of it")
    add("--accept", action="store_true", help="take HEAD as good without judging it, and end")
    add("--device", metavar="ID", help="of the gate (default: the best present)")
    add("--budget", metavar="TIME", help="of the gate, for example 20m (default: its own)")
    add("--steps", type=int, default=8, metavar="N", help="most commits for asv (default 8)")
    add("--quick", action="store_true", help="asv measures each benchmark once")
    add("--bench", metavar="REGEX", help="only these benchmarks of asv")
    return parser


def _night(options: argparse.Namespace, root: Path, folder: Path, held: int) -> int:
    checkout = Checkout(root)
    checkout.refuse_shallow()
    state = load_state(folder)
    head = checkout.resolve("HEAD")
    if options.accept:
        save_state(folder, msgspec.structs.replace(state, last_good=head))
        print(f"nightly: {head[:8]} is the last good commit from now on; exit {CLEAN}")
        return CLEAN
    results = _results_folder(root)
    for line in check_results(results, folder / "aside" / time.strftime("%Y%m%dT%H%M%S")):
        print(f"nightly: {line}")
    base = checkout.resolve(options.base) if options.base else state.last_good
    if base:
        checkout.resolve(base)
    night = _begin(state, head, base, checkout, folder)
    runner = Runner(root, folder, msgspec.structs.replace(state, night=night), held)
    _run(runner, options, checkout, results)
    return _end(runner, folder, keep=state if options.gate_only else None)


def _results_folder(root: Path) -> Path:
    from asv.config import Config

    return root / str(Config.load(str(root / "asv.conf.json")).results_dir)


def _begin(state: State, head: str, base: str | None, checkout: Checkout, folder: Path) -> Night:
    """The night to go on with: one that was killed on the same commit and base, or a new one."""
    dirty = checkout.is_dirty()
    last = state.night
    if last and not last.ended:
        if (last.commit, last.base, dirty, last.dirty) == (head, base, False, False):
            done = ", ".join(last.codes) or "nothing"
            print(f"nightly: the night in {last.folder} was cut short; going on after {done}.")
            return last
        print(f"nightly: the night in {last.folder} was cut short and is left as it is.")
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{head[:8]}{'-dirty' if dirty else ''}"
    return Night(commit=head, base=base, folder=str(folder / "nights" / name), dirty=dirty)


def _run(runner: Runner, options: argparse.Namespace, checkout: Checkout, results: Path) -> None:
    """All steps that are not done yet; one that fails does not keep the next from its work."""
    night = runner.night
    if night.dirty:
        print("nightly: the tree has uncommitted changes; the gate judges them, asv does not.")
    if not options.gate_only:
        runner.step("machine", [sys.executable, "-m", "gemvbench", "devices", "--asv-machine"])
    if night.base is None:
        print("nightly: no good commit is known (a first night), so there is history only.")
    elif night.base == night.commit and not night.dirty:
        print(f"nightly: nothing is new since the last good commit, {night.base[:8]}.")
    else:
        runner.step("gate", gate_command(night.base, runner.records, results, options))
    if options.gate_only:
        return
    if runner.state.last_history == night.commit:
        print("nightly: asv has measured this commit.")
    else:
        runner.step("history", asv_command(checkout.since(runner.state.last_history), options))
    runner.step("publish", [sys.executable, "-m", "asv", "publish"])
    runner.step("page", [sys.executable, str(Path(__file__).with_name("page.py"))])


def _end(runner: Runner, folder: Path, keep: State | None) -> int:
    """Keep what the next night needs, or the state given, and say the one line."""
    night, codes = runner.night, runner.night.codes
    code = next((bad for bad in _WORST_FIRST if bad in codes.values()), CLEAN)
    measured = codes.get("history", CLEAN)
    judged = codes.get("gate", measured if night.base is None else CLEAN)
    good = judged == CLEAN and not night.dirty
    state = msgspec.structs.replace(
        runner.state,
        last_good=night.commit if good else runner.state.last_good,
        last_history=night.commit if measured != VOID else runner.state.last_history,
        night=msgspec.structs.replace(night, ended=True),
    )
    save_state(folder, keep or state)
    against = f" against {night.base[:8]}" if "gate" in codes and night.base else ""
    failed = [name for name in ("machine", "publish", "page") if codes.get(name) == VOID]
    parts = [
        f"{night.commit[:8]}{' (dirty)' if night.dirty else ''}{against}: "
        f"gate {_WORDS[codes['gate']] if 'gate' in codes else 'not needed'}",
        *([] if keep else [f"history {_WORDS[measured]}"]),
        *(f"{name} failed" for name in failed),
        f"records in {night.folder}",
    ]
    print(f"nightly: {', '.join(parts)}; exit {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
