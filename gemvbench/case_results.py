"""Results of one case of a record: what is known of each arm, and what it says."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from gemvbench import stats
from gemvbench.cases import Case, verified_as
from gemvbench.flags import find_flags
from gemvbench.jobs import Build, Choice, identical
from gemvbench.ladder import Declined, HostArm, LibraryArm, Specialization
from gemvbench.logs import Logs
from gemvbench.messages import BlockDone, Check, Failed, Sample, Verified
from gemvbench.plan import TWIN, roof_label
from gemvbench.record import Charged, Line, Run
from gemvbench.token_arm import DeviceOutcome, TokenArm

ABOVE_ROOF = math.log(1.05)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one case against the baseline. Times in seconds, ratios baseline / arm."""

    case: str
    arm: str
    baseline: str
    device: str
    constants: dict[str, int | str]
    verdict: str
    reason: str = ""
    ratio: float | None = None
    cycles_ratio: float | None = None
    """The ratio in cycles, where arm and baseline ran at different clocks."""
    ci: tuple[float, float] | None = None
    blocks: int = 0
    passes: int = 0
    seconds_per_call: float | None = None
    kernel_seconds: float | None = None
    gbps: float | None = None
    roof_fraction: float | None = None
    verified: bool | None = None
    flags: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    min_detectable_effect: float | None = None
    all_pairs_ratio: float | None = None
    """With `all_pairs_ci`: over all pairs, those with a slow measurement too."""
    all_pairs_ci: tuple[float, float] | None = None
    pairs: int = 0
    removed: int = 0
    """Pairs of `pairs` that carry no verdict: they mix a slow measurement with others."""


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The bare read measured in the same blocks."""

    case: str
    device: str
    gbps: float


class CaseView:
    """The lines of a record that concern one case."""

    def __init__(self, run: Run, case: Case) -> None:
        self.run, self.case, self.header = run, case, run.header
        self.choices = [c for c in run.header.choices if c.case == case.id]
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.verified: dict[str, Verified] = {}
        self._faults: dict[str, Failed | Charged] = {}
        self._verified_as = {proof.id for proof in verified_as(case)}
        for line in run.lines:
            self._sort_in(line)
        self._usable = {arm: [s for s in of if s.is_usable] for arm, of in self.samples.items()}
        self.logs = Logs(sample for of in self.samples.values() for sample in of)
        self.rule = self._rule(len(self.choices) - 1)
        # The twin is outside the family of arms.
        self._twin_rule = self._rule(1)

    def _sort_in(self, line: Line) -> None:
        """Put a line of the record where it belongs; the first fault of an arm counts."""
        if isinstance(line, Sample) and line.case == self.case.id:
            self.samples[line.arm].append(line)
        elif isinstance(line, Verified) and line.case in self._verified_as:
            known = self.verified.get(line.arm)
            self.verified[line.arm] = known if known and not known.passed else line
        elif isinstance(line, Failed | Charged) and line.case in {self.case.id, *self._verified_as}:
            self._faults.setdefault(line.arm, line)

    def _rule(self, arms: int) -> stats.Rule:
        settings = self.header.settings
        return stats.Rule(
            level=stats.family_level(settings.confidence, arms, len(settings.looks)),
            looks=settings.looks,
            min_effect=settings.min_effect,
        )

    def results(self) -> list[Result]:
        baseline, *others = self.choices
        twin = msgspec.structs.replace(baseline, label=TWIN)
        return [self._result(choice) for choice in (baseline, twin, *others)]

    def roofs(self) -> list[Roof]:
        found = []
        for device in self.header.devices:
            label = self._roof_label(device.id)
            speeds = [s.bytes_per_call / s.seconds for s in self.usable_of(label)]
            if speeds:
                found.append(
                    Roof(case=self.case.id, device=device.id, gbps=statistics.median(speeds) / 1e9)
                )
        return found

    def _result(self, choice: Choice) -> Result:
        blank = Result(
            case=self.case.id,
            arm=choice.label,
            baseline=self.header.baseline,
            device=choice.device,
            constants=_constants(choice),
            verdict="UNDECIDED",
            verified=self._is_verified(choice.label),
            steps=()
            if isinstance(choice.outcome, Declined)
            else tuple(map(str, choice.outcome.steps)),
        )
        samples = self.usable_of(choice.label)
        refusal = self._refusal(choice)
        if refusal is None and not samples:
            refusal = self._unmeasured()
        if refusal is None:
            return self._compared(choice, blank, samples)
        verdict, reason = refusal
        # The numbers of an arm that failed on the way still say something; of a wrong one, not.
        worth = verdict == "FAILED" and bool(samples)
        shown = self._compared(choice, blank, samples) if worth else blank
        flags = shown.flags or self._flags(blank, None)
        return msgspec.structs.replace(shown, verdict=verdict, reason=reason, flags=flags)

    def _compared(self, choice: Choice, blank: Result, samples: Sequence[Sample]) -> Result:
        roof = self._roof_interval(blank)
        measured = self._measured(blank, samples, roof)
        if choice.label != self.header.baseline:
            return self._decided(measured, choice, roof)
        blocks = len({sample.block for sample in samples})
        return msgspec.structs.replace(
            measured, verdict="BASELINE", ratio=1.0, ci=(1.0, 1.0), blocks=blocks
        )

    def _measured(
        self, blank: Result, samples: Sequence[Sample], roof: stats.Interval | None
    ) -> Result:
        """Times and rates, before any comparison."""
        seconds = statistics.median(s.seconds for s in samples)
        kernel = [s.kernel_seconds for s in samples if s.kernel_seconds is not None]
        return msgspec.structs.replace(
            blank,
            seconds_per_call=seconds,
            kernel_seconds=statistics.median(kernel) if kernel else None,
            gbps=samples[0].bytes_per_call / seconds / 1e9,
            roof_fraction=roof.ratio if roof else None,
            passes=len(samples),
            flags=self._flags(blank, roof),
        )

    def _decided(self, measured: Result, choice: Choice, roof: stats.Interval | None) -> Result:
        """The ratio to the baseline with its interval, and what that says."""
        judgement = self._judge(measured.arm)
        interval = judgement.interval
        if not judgement.pairs:
            return msgspec.structs.replace(measured, reason="no pass holds baseline and arm")
        verdict, reason = judgement.verdict, judgement.reason
        alarm = self.twin_alarm
        if alarm and measured.arm != TWIN and abs(interval.estimate) < 2 * alarm:
            verdict, reason = "UNDECIDED", "smaller than twice the twin's effect in this case"
        unknown = self.unknown(measured.arm) or self.unknown(self.header.baseline)
        if unknown:
            verdict, reason = "UNDECIDED", unknown
        if self._beats_the_roof(choice, roof):
            verdict, reason = "INVALID", "faster than the roof, which no uncached read can be"
        flags = (*measured.flags, "aa") if alarm else measured.flags
        if verdict in ("FASTER", "SLOWER") and _inside(interval, self.rule.min_effect):
            flags = (*flags, "small")
        measured = msgspec.structs.replace(
            measured,
            verdict=verdict,
            reason=reason,
            flags=flags,
            pairs=judgement.pairs,
            removed=judgement.removed,
            all_pairs_ratio=judgement.all_pairs.ratio,
            all_pairs_ci=judgement.all_pairs.ci,
        )
        if not interval.blocks:
            return measured
        return msgspec.structs.replace(
            measured,
            ratio=interval.ratio,
            ci=interval.ci,
            blocks=interval.blocks,
            min_detectable_effect=stats.min_detectable_effect(
                interval, self._rule_of(measured.arm).level
            ),
        )

    def _judge(self, arm: str) -> stats.Judgement:
        """An arm against base and twin; the twin has but the one baseline."""
        base, twin = (self.logs.of(name) for name in (self.header.baseline, TWIN))
        second = None if arm == TWIN or self._twin_is_out else twin
        return stats.judge(self.logs.of(arm), base, second, self._rule_of(arm))

    def _rule_of(self, arm: str) -> stats.Rule:
        return self._twin_rule if arm == TWIN else self.rule

    def effects(self, arm: str, baselines: Sequence[str]) -> dict[int, float]:
        """Block effects of any arm against the mean of others, over clean pairs at the look."""
        rows, pairs = self._clean(arm, baselines)
        blocks = np.array(self.logs.blocks)[rows][np.isfinite(pairs).any(axis=1)].tolist()
        return dict(zip(blocks, stats.block_effects(pairs).tolist(), strict=True))

    def pair(self, arm: str, against: str, level: float | None = None) -> stats.Interval | None:
        """Any arm against any other, paired within passes; None where no pass holds both."""
        _, pairs = self._clean(arm, [against])
        interval = stats.t_interval(stats.block_effects(pairs), level or self.rule.level)
        return interval if interval.blocks else None

    def _clean(self, arm: str, baselines: Sequence[str]) -> tuple[NDArray[np.intp], stats.Array]:
        """(rows of the blocks at the look, their effects)."""
        own, bases = self.logs.of(arm), [self.logs.of(name) for name in baselines]
        rows = stats.rows_at_look(own, bases, self.rule.looks)
        return rows, stats.clean_effects(own[rows], [logs[rows] for logs in bases])

    def twin_effects(self) -> dict[int, float]:
        """By block: the twin against its own baseline; nothing but noise if all is well."""
        return self.effects(TWIN, [self.header.baseline])

    @cached_property
    def twin_alarm(self) -> float:
        """Size of the twin's effect where it is decided at this case's level, else 0."""
        interval = self._judge(TWIN).interval
        if interval.blocks < stats.MIN_BLOCKS:
            return 0.0
        return abs(interval.estimate) if interval.excludes_zero else 0.0

    @cached_property
    def _twin_is_out(self) -> bool:
        """Whether the twin failed; the base stands alone then."""
        return self._refusal(msgspec.structs.replace(self.choices[0], label=TWIN)) is not None

    def _beats_the_roof(self, choice: Choice, roof: stats.Interval | None) -> bool:
        """Impossible for what reads the rotated pool; a host library has copies of its own."""
        if self.header.settings.regime == "hot" or isinstance(choice.outcome, HostArm):
            return False
        return roof is not None and roof.low > ABOVE_ROOF

    def _roof_interval(self, result: Result) -> stats.Interval | None:
        """log of (arm's bytes per second / roof's), paired within passes."""
        label = self._roof_label(result.device)
        roof, samples = self.usable_of(label), self.usable_of(result.arm)
        if not roof or not samples:
            return None
        shift = math.log(samples[0].bytes_per_call / roof[0].bytes_per_call)
        _, pairs = self._clean(result.arm, [label])
        interval = stats.t_interval(stats.block_effects(pairs) + shift, self.rule.level)
        return interval if interval.blocks else None

    def _flags(self, result: Result, roof: stats.Interval | None) -> tuple[str, ...]:
        flags = find_flags(self.samples.get(result.arm, []), roof)
        same = [] if result.arm == TWIN else self._identical_to(result.arm)
        return (*flags, *(f"identical to {label}" for label in same))

    def _identical_to(self, label: str) -> list[str]:
        (own,) = [c for c in self.choices if c.label == label]
        return [
            c.label
            for c in self.choices
            if c.label != label
            and c.device == own.device
            and identical(self.build_of(c), self.build_of(own))
        ]

    def build_of(self, choice: Choice) -> Build:
        """What tells an arm from others, whatever its label."""
        found = self.verified.get(choice.label)
        return Build(choice=choice, binary=found.binary if found else "")

    def _refusal(self, choice: Choice) -> tuple[str, str] | None:
        """DECLINED, WRONG or FAILED with the reason, whatever else is known of the arm."""
        if isinstance(choice.outcome, Declined):
            return "DECLINED", choice.outcome.reason
        label = self.header.baseline if choice.label == TWIN else choice.label
        verified = self.verified.get(label)
        if verified is not None and not verified.passed:
            bad = [check for check in verified.checks if not check.passed]
            return "WRONG", self._at(verified.case) + describe_failures(bad)
        if any(s.correct is False for s in self.samples.get(choice.label, ())):
            return "WRONG", "the output of a timed run differs from the verified one"
        fault = self._faults.get(label) or self._faults.get(choice.label)
        return ("FAILED", f"{self._at(fault.case)}{fault.stage}: {fault.reason}") if fault else None

    def _at(self, case: str) -> str:
        """Where something was seen, if not in this case itself."""
        return "" if case == self.case.id else f"{case}: "

    def _unmeasured(self) -> tuple[str, str]:
        """Why an arm that is right in itself has no samples."""
        fault = self._faults.get("")
        if fault is not None:
            return "FAILED", f"{fault.stage}: {fault.reason}"
        refusal = self._refusal(self.choices[0])
        if refusal is not None:
            return "UNDECIDED", f"the baseline {self.header.baseline} is {refusal[0]}"
        return "UNDECIDED", "nothing was measured"

    def unknown(self, label: str) -> str:
        """What only a damaged record does not tell of an arm; "" for any other."""
        if self._is_verified(label) is None:
            return f"the record does not hold the verification of {label}"
        done = {line.block for line in self.run.of(BlockDone)}
        last = max((s.block for s in self.usable_of(label)), default=-1)
        if any(s.block in done and s.block > last for s in self.usable_of(self.header.baseline)):
            return f"{label} is not in the last blocks, and the record does not say why"
        return ""

    def _is_verified(self, label: str) -> bool | None:
        found = self.verified.get(self.header.baseline if label == TWIN else label)
        return found.passed if found else None

    def usable_of(self, label: str) -> list[Sample]:
        return self._usable.get(label, [])

    def _roof_label(self, device: str) -> str:
        return roof_label(device, len(self.header.devices))


def _constants(choice: Choice) -> dict[str, int | str]:
    outcome = choice.outcome
    if isinstance(outcome, TokenArm):
        return {layer.name: " ".join(_texts(layer.outcome)) for layer in outcome.layers}
    if isinstance(outcome, LibraryArm):
        return {"library": outcome.library}
    if isinstance(outcome, Specialization):
        return dict(outcome.constants) | {
            "workgroups": outcome.workgroups,
            "workgroup_size": outcome.workgroup_size,
            **(msgspec.structs.asdict(outcome.ranges) if outcome.ranges else {}),
        }
    return {"host": outcome.family} if isinstance(outcome, HostArm) else {}


def _texts(outcome: DeviceOutcome) -> list[str]:
    """Constants of one layer of a token; types are the same in all."""
    if isinstance(outcome, LibraryArm):
        return [outcome.library]
    built = dict(outcome.constants) | {"workgroups": outcome.workgroups}
    return [f"{name}={value}" for name, value in built.items() if not name.endswith("_TYPE")]


def _inside(interval: stats.Interval, min_effect: float) -> bool:
    return abs(interval.estimate) < math.log1p(min_effect)


def describe_failures(bad: Sequence[Check]) -> str:
    """The first failed check in full, the others by name."""
    names = list(dict.fromkeys(check.name for check in bad[1:] if check.name != bad[0].name))
    also = f" (also {', '.join(names)})" if names else ""
    return f"{bad[0].name}: {bad[0].detail}{also}"
