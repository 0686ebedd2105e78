"""The command line: what can be said, and which function answers it.

Data goes to standard output, progress and warnings to standard error. Nothing heavy is
imported here: `--help` and `list` answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from gemvbench import __version__
from gemvbench.arm import ALL_AXES
from gemvbench.defaults import apply_project_defaults
from gemvbench.errors import Exit, UserError
from gemvbench.interrupts import stop_once

FORMAT_NAMES = ("table", "md", "csv", "json")
_MODULES = {
    "devices": "gemvbench.commands.show",
    "list": "gemvbench.commands.show",
    "report": "gemvbench.commands.report",
    "verify": "gemvbench.commands.verify",
    "roof": "gemvbench.commands.roof",
    "ab": "gemvbench.commands.ab",
    "sweep": "gemvbench.commands.ab",
    "decode": "gemvbench.commands.decode",
    "compare": "gemvbench.commands.compare",
    "selftest": "gemvbench.commands.selftest",
    "gate": "gemvbench.commands.gate",
    "simulate": "gemvbench.commands.simulate",
    "tune": "gemvbench.commands.tune",
    "legs": "gemvbench.commands.legs",
    "completion": "gemvbench.commands.completion",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    stop_once()
    try:
        parser = build_parser()
        apply_project_defaults(parser)
        options = parser.parse_args(words)
        options.arguments = tuple(words)
        module = importlib.import_module(_MODULES[options.command])
        return int(getattr(module, f"run_{options.command}")(options))
    except UserError as error:
        print(f"gemvbench: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("gemvbench: interrupted.", file=sys.stderr)
        return int(Exit.NO_DEVICE)
    except BrokenPipeError:
        # Whoever read our output has gone; point stdout elsewhere so that exit is silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except Exception:  # noqa: BLE001 - a bug may not exit like a regression
        traceback.print_exc()
        print("gemvbench: this is a bug; please report it with the lines above.", file=sys.stderr)
        return int(Exit.NO_DEVICE)


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser: argparse.ArgumentParser = _Parser(
        prog="gemvbench",
        description="Which GEMV kernel is faster, by how much and how surely, on this machine.",
    )
    parser.add_argument("--version", action="version", version=f"gemvbench {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in (
        ("devices", "describe the devices found"),
        ("list", "list arms with their axes, models, and the runs kept"),
    ):
        shown = commands.add_parser(name, help=help_text, description=help_text)
        if name == "devices":
            _add_asv_machine(shown)
        else:
            kinds = ("arms", "models", "runs")
            text = "only these (default: arms and models)"
            shown.add_argument("kind", nargs="?", choices=kinds, help=text)
        _add_output(shown)
    _add_report(commands)
    _add_compare(commands)
    verify = commands.add_parser("verify", help="check arms against the oracle, without timing")
    _add_arm(verify)
    _add_cases(verify)
    verify.add_argument(
        "--all", action="store_true", help="with --op: every head size, ratio, type and layout"
    )
    _add_output(verify)
    roof = commands.add_parser("roof", help="measure how fast this device reads memory")
    roof.add_argument("--device", metavar="ID", help="device id (default: the best present)")
    _add_output(roof)
    ab = commands.add_parser("ab", help="compare arms with a baseline, paired")
    _add_arm(ab)
    ab.add_argument("--baseline", metavar="ARM", help="default: base; of attention: per_head")
    _add_measurement(ab)
    sweep = commands.add_parser(
        "sweep",
        help="compare a grid of arms, shown as a matrix",
        description="Compare a grid of arms with its first cell. Without axes: the nine arms "
        "pack 0, 1, 2 by rows 1, 2, 4; of quantised weights repack 0, 1 by xq 0, 8.",
    )
    text = "family of the grid (default: row, and quant for quantised weights)"
    sweep.add_argument("--family", help=text)
    for axis in ALL_AXES:
        sweep.add_argument(f"--{axis}", metavar="N,N", help=f"values of the axis {axis}")
    sweep.add_argument("--baseline", metavar="ARM", help="default: the grid's first cell")
    _add_measurement(sweep)
    _add_decode(commands)
    _add_tune(commands)
    _add_gate(commands)
    _add_selftest(commands)
    _add_simulate(commands)
    _add_legs(commands)
    text = "print a script that completes this command line"
    completion = commands.add_parser("completion", help=text, description=text)
    completion.add_argument("shell", choices=("bash", "zsh"), help="the shell it is for")
    return parser


def _add_asv_machine(devices: argparse.ArgumentParser) -> None:
    devices.add_argument(
        "--asv-machine",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write GPU and driver into asv's machine file (default: ~/.asv-machine.json)",
    )


class _Parser(argparse.ArgumentParser):
    """argparse, with this project's exit code and one paragraph for a mistake."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See `{self.prog} --help`.", Exit.USAGE)


class _Append(argparse._AppendAction):
    """Append, but what is given on the command line replaces a project's default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is self.default:
            setattr(namespace, self.dest, [])
        super().__call__(parser, namespace, values, option_string)


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser(
        "report",
        help="show the results of a record again, or make a page of it",
        description="Results of a record, as text or as one HTML page with pictures "
        "(-o FILE.html; extra `plots`). Several records are shown side by side.",
    )
    add = report.add_argument
    add("records", nargs="*", metavar="RECORD", help="a file written by ab, sweep or decode")
    add("--latest", action="store_true", help="the newest record of `gemvbench list runs`")
    add("--plots", metavar="DIR", help="also save each picture there, as SVG and PNG files")
    add("--force", action="store_true", help="write over files that exist")
    _add_output(report, "html")


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare two records of the same arms",
        description="Which arms are faster or slower in B than in A, by their ratios to an arm "
        "that is the same code in both.",
    )
    compare.add_argument("a", metavar="A", help="the earlier record")
    compare.add_argument("b", metavar="B", help="the later record")
    compare.add_argument("--force", action="store_true", help="compare unlike records as well")
    compare.add_argument(
        "--earlier",
        action=_Append,
        metavar="RECORD",
        help="a run before A; six or more tell what absolute times are worth",
    )
    compare.add_argument("-k", dest="pick", metavar="REGEX", help="only cases whose id matches")
    _add_decision(compare)
    _add_output(compare)


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tune = commands.add_parser(
        "tune",
        help="search the best arm for shapes on a device; `auto` takes it from then on",
        description="Three rounds of paired runs, each on fewer arms; the last decides as ab does. "
        "What was measured is kept: the same command goes on where an earlier one ended.",
    )
    _add_operands(tune)
    _add_shapes(tune)
    _add_attention(tune)
    tune.add_argument(
        "--budget", metavar="TIME", help="of the whole command (default: 2m for each shape)"
    )
    tune.add_argument("--afresh", action="store_true", help="measure again what is known already")
    _add_decision(tune)
    _add_output(tune)
    tune.set_defaults(w_offset=0, x_offset=0)


def _add_gate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    gate = commands.add_parser(
        "gate",
        help="fail where the kernels of this tree are slower than those of a commit",
        description="Compare every arm whose kernel text has changed since a commit with itself "
        "as it stood there, paired. Exit 1 only for a regression that holds.",
    )
    gate.add_argument("--base", required=True, metavar="REV", help="the commit to judge against")
    _add_arm(gate)
    gate.add_argument("--model", metavar="MODEL", help="its shapes, not the default set")
    gate.add_argument(
        "--shape", action=_Append, metavar="KxN", help="these, not the default set; again for more"
    )
    gate.add_argument("-k", dest="pick", metavar="REGEX", help="only cases whose id matches")
    _add_operands(gate)
    gate.add_argument("--quick", action="store_true", help="fewer passes, never fewer blocks")
    gate.add_argument("--blocks", metavar="N", help="most blocks: 6, 8, 12, 16 (default), 24, 32")
    gate.add_argument("--budget", default="4m", metavar="TIME", help="default 4m")
    _add_decision(gate)
    gate.add_argument("--fail-on-undecided", action="store_true", help="exit 1 for UNDECIDED too")
    gate.add_argument("--record", metavar="FILE", help="where the samples go (JSON lines)")
    gate.add_argument("--asv", metavar="DIR", help="write the ratios into asv's results there too")
    gate.set_defaults(regime="stream", no_rest=False)
    _add_output(gate)


def _add_selftest(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    selftest = commands.add_parser(
        "selftest",
        help="show what this machine can resolve, in about three minutes",
        description="Identical arms, planted effects, the event clock, the regime and the roof.",
    )
    selftest.add_argument("--device", metavar="ID", help="device id (default: the best present)")
    selftest.add_argument("--budget", default="3m", metavar="TIME", help="default 3m")
    selftest.add_argument("--shape", dest="one_shape", metavar="KxN", help="default: by device")
    selftest.add_argument("--seed", type=int, default=0, help="seed of inputs and orders")
    selftest.add_argument("--record", metavar="FILE", help="where the samples go (JSON lines)")
    _add_output(selftest)


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "simulate noisy machines: false alarms and power of the rule, beside other methods"
    simulate = commands.add_parser("simulate", help=text, description=text)
    add = simulate.add_argument
    add(
        "--model",
        dest="noise_model",
        action=_Append,
        metavar="NAME",
        help="a noise model (default: all); may be given again",
    )
    add("--runs", type=int, default=10_000, metavar="N", help="without an effect, for each model")
    add("--effect-runs", type=int, default=2_000, metavar="N", help="for each model and effect")
    add("--seed", type=int, default=1, help="seed of all runs (default: 1)")
    add("--noise", metavar="P", help="of one measurement (default 0.52%%)")
    add("--offset", metavar="P", help="by arm and process (default: the model's, mostly 0.2%%)")
    add("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    add("--plots", metavar="DIR", help="also draw run.svg and power.svg there (extra `plots`)")
    _add_output(simulate)


def _add_legs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    legs = commands.add_parser(
        "legs",
        help="compare two whole programs, run in pairs",
        description="Runs two command lines in turn, AB and BA, and judges what they print or take "
        "by the pairs. No shell runs: for pipes write sh -c '...'.",
    )
    add = legs.add_argument
    add("--a", metavar="CMD", help="the program that is held against")
    add("--b", metavar="CMD", help="the other program")
    add(
        "--env",
        action=_Append,
        metavar="VAR=X,Y",
        help="instead of --b: the same program with a variable that is X for A and Y for B",
    )
    add(
        "--metric",
        action=_Append,
        metavar="METRIC",
        help="NAME=REGEX, NAME=json:PATH, wall (default), cpu or memory; may be given again",
    )
    add(
        "--better",
        action=_Append,
        metavar="WORD",
        help="more or less, of what programs print; or NAME=more",
    )
    add("--pairs", type=int, default=8, metavar="N", help="most pairs (default 8)")
    add("--aa", type=int, default=0, metavar="N", help="pairs of A against itself, among them")
    add("--before", metavar="CMD", help="runs before every leg, untimed")
    add("--pause", metavar="TIME", help="between legs")
    add("--timeout", default="10m", metavar="TIME", help="of a leg (default 10m)")
    add("--seed", type=int, default=0, help="seed of the order")
    _add_decision(legs)
    add("--dry-run", action="store_true", help="print the order, run nothing")
    add("--record", metavar="FILE", help="where the legs go (JSON lines)")
    add("--fail-on-slower", action="store_true", help="exit 1 if B is SLOWER in a metric")
    _add_output(legs)


def _add_decode(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    decode = commands.add_parser(
        "decode",
        help="compare arms on a whole token of a model: the number of record",
        description="All linear layers of a token, in order, on distinct weights, and with "
        "--context attention over caches that grow; then each class of layers by itself, to show "
        "where the time goes.",
    )
    decode.add_argument("--model", metavar="MODEL", help="a model of `gemvbench list`")
    _add_arm(decode)
    decode.add_argument("--baseline", metavar="ARM", help="default: base")
    decode.add_argument(
        "--lengths",
        metavar="S,L",
        help="tokens of the short and the long run (default: 4,36 on GPUs, by time on CPUs)",
    )
    decode.add_argument(
        "--context", metavar="N", help="attend too, to N cached tokens and those of the run"
    )
    decode.add_argument("--kv", metavar="TYPE", help="of the caches: f16, bf16, q8_0 or q8_KV")
    decode.add_argument(
        "--attention-arm", metavar="ARM", help="what attends, in all arms alike (default: auto)"
    )
    decode.add_argument(
        "--attention-baseline", metavar="ARM", help="what attends in the baseline, if another"
    )
    decode.add_argument(
        "--launches", default="graph", help="CUDA: graph (default), or stream, one by one"
    )
    decode.add_argument(
        "--ab",
        action=_Append,
        metavar="RECORD",
        help="an earlier ab or sweep to confirm; may be given again",
    )
    decode.add_argument(
        "--tolerance", default="5%", metavar="P", help="of shares of the roof (default 5%%)"
    )
    _add_operands(decode)
    _add_run(decode)


def _add_arm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arm",
        action=_Append,
        metavar="ARM",
        help="[device:]family[+axisN...][@revision] or name=file:entry; may be given again",
    )


def _add_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="ID", help="device id (default: the best present)")
    parser.add_argument(
        "--weights",
        default="f16",
        metavar="TYPE",
        help="f16, bf16, q8_0, q4_0 or q4_K; of a model also a mix, as in q4_K,lm_head=q8_0",
    )
    parser.add_argument("--x", default="f16", metavar="TYPE", help="f16, bf16 or f32")
    parser.add_argument("--seed", type=int, default=0, help="seed of inputs and orders")


def _add_cases(parser: argparse.ArgumentParser) -> None:
    _add_operands(parser)
    _add_shapes(parser)
    parser.add_argument("--w-offset", type=int, default=0, metavar="BYTES", help="offset of W")
    parser.add_argument("--x-offset", type=int, default=0, metavar="BYTES", help="offset of x")
    _add_attention(parser)


def _add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", help="all shapes of a model, or s2-seven")
    parser.add_argument(
        "--shape",
        action=_Append,
        metavar="KxN",
        help="in_features x out_features; may be given more than once",
    )
    parser.add_argument("-k", dest="pick", metavar="REGEX", help="only cases whose id matches")


def _add_attention(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("attention")
    group.add_argument("--op", default="gemv", help="gemv (default), kq, av or attention")
    for name in ("heads", "kv-heads", "head-dim", "v-dim", "capacity"):
        group.add_argument(f"--{name}", type=int, metavar="N")
    group.add_argument("--context", metavar="N", help="tokens: 4096; 128:16384 doubles")
    group.add_argument("--kv", metavar="TYPE", help="f16, bf16, q8_0 or q8_KV")
    group.add_argument("--k-type", metavar="TYPE", help="of K, where it is not --kv")
    group.add_argument("--v-type", metavar="TYPE", help="of V, where it is not --kv")
    group.add_argument("--kv-layout", metavar="ORDER", help="tkd (default) or ktd")
    group.add_argument("--q-type", metavar="TYPE", help="of Q: f16 (default) or f32")


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    _add_cases(parser)
    parser.add_argument("--regime", default="stream", help="stream (default) or hot")
    _add_run(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer passes, never fewer blocks")
    parser.add_argument(
        "--against", metavar="REV", help="each arm's baseline is itself as it stood in this commit"
    )
    parser.add_argument("--blocks", metavar="N", help="most blocks: 6, 8, 12, 16 (default), 24, 32")
    parser.add_argument("--budget", metavar="TIME", help="stop starting blocks after, e.g. 60s")
    _add_decision(parser)
    parser.add_argument(
        "--no-rest", action="store_true", help="do not pause near the power limit of a GPU"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, measure nothing")
    parser.add_argument("--record", metavar="FILE", help="where the samples go (JSON lines)")
    parser.add_argument("--fail-on-slower", action="store_true", help="exit 1 if an arm is SLOWER")
    _add_output(parser)


def _add_decision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--confidence", default="0.99", metavar="P", help="default 0.99")
    parser.add_argument("--min-effect", default="1%", metavar="P", help="default 1%%")


def _add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    names = "|".join((*FORMAT_NAMES, *more))
    parser.add_argument("--format", default="table", metavar="FORMAT", help=names)
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to stdout")
