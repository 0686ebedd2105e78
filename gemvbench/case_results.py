"""Results of one case of a record: what is known of each arm, and what it says."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import msgspec

from gemvbench import stats
from gemvbench.case import Gemv
from gemvbench.flags import find_flags
from gemvbench.jobs import Build, Choice, identical
from gemvbench.ladder import Declined, HostArm, Specialization
from gemvbench.messages import BlockDone, Check, Failed, Sample, Verified
from gemvbench.plan import TWIN, roof_label
from gemvbench.record import Charged, Run

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


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The bare read measured in the same blocks."""

    case: str
    device: str
    gbps: float


class CaseView:
    """The lines of a record that concern one case."""

    def __init__(self, run: Run, case: Gemv) -> None:
        self.run, self.case, self.header = run, case, run.header
        self.choices = [c for c in run.header.choices if c.case == case.id]
        self.samples = [s for s in run.of(Sample) if s.case == case.id]
        self.usable: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.samples:
            if sample.is_usable:
                self.usable[sample.arm].append(sample)
        self.logs = stats.pass_logs(self.samples)
        self.verified = {v.arm: v for v in run.of(Verified) if v.case == case.id}
        arms = len(self.choices) - 1
        settings = run.header.settings
        self.level = stats.family_level(settings.confidence, arms, len(settings.looks))
        self.twin_level = stats.family_level(settings.confidence, 1, len(settings.looks))

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
            return self._compared(choice, self._measured(blank, samples))
        verdict, reason = refusal
        # The numbers of an arm that failed on the way still say something; of a wrong one, not.
        worth = verdict == "FAILED" and bool(samples)
        shown = self._compared(choice, self._measured(blank, samples)) if worth else blank
        flags = shown.flags or self._flags(blank, None)
        return msgspec.structs.replace(shown, verdict=verdict, reason=reason, flags=flags)

    def _compared(self, choice: Choice, measured: Result) -> Result:
        if choice.label != self.header.baseline:
            return self._decided(measured, choice)
        blocks = len({sample.block for sample in self.usable_of(choice.label)})
        return msgspec.structs.replace(
            measured, verdict="BASELINE", ratio=1.0, ci=(1.0, 1.0), blocks=blocks
        )

    def _measured(self, blank: Result, samples: Sequence[Sample]) -> Result:
        """Times and rates, before any comparison."""
        seconds = statistics.median(s.seconds for s in samples)
        kernel = [s.kernel_seconds for s in samples if s.kernel_seconds is not None]
        roof = self._roof_interval(blank)
        return msgspec.structs.replace(
            blank,
            seconds_per_call=seconds,
            kernel_seconds=statistics.median(kernel) if kernel else None,
            gbps=samples[0].bytes_per_call / seconds / 1e9,
            roof_fraction=roof.ratio if roof else None,
            passes=len(samples),
            flags=self._flags(blank, roof),
        )

    def _decided(self, measured: Result, choice: Choice) -> Result:
        """The ratio to the baseline with its interval, and what that says."""
        settings = self.header.settings
        # The twin is outside the family of arms, and has but the one baseline.
        twin = measured.arm == TWIN
        level = self.twin_level if twin else self.level
        baselines = [self.header.baseline] if twin else self.baselines
        interval = self.interval(measured.arm, baselines, level)
        if interval is None:
            return msgspec.structs.replace(measured, reason="no pass holds baseline and arm")
        verdict, reason = stats.decide(interval, settings.min_effect)
        alarm = self.twin_alarm
        if alarm and not twin and abs(interval.estimate) < 2 * alarm:
            verdict, reason = "UNDECIDED", "smaller than twice the twin's effect in this case"
        unknown = self.unknown(measured.arm) or self.unknown(self.header.baseline)
        if unknown:
            verdict, reason = "UNDECIDED", unknown
        if self._beats_the_roof(measured, choice):
            verdict, reason = "INVALID", "faster than the roof, which no uncached read can be"
        flags = (*measured.flags, "aa") if alarm else measured.flags
        if verdict in ("FASTER", "SLOWER") and _inside(interval, settings.min_effect):
            flags = (*flags, "small")
        return msgspec.structs.replace(
            measured,
            verdict=verdict,
            reason=reason or "",
            ratio=interval.ratio,
            ci=interval.ci,
            blocks=interval.blocks,
            flags=flags,
            min_detectable_effect=stats.min_detectable_effect(interval, level),
        )

    def interval(
        self, arm: str, baselines: Sequence[str], level: float, shift: float = 0.0
    ) -> stats.Interval | None:
        """Over the blocks of the last look reached; None where no pass holds them all."""
        effects = [e + shift for e in stats.block_effects(self.logs, arm, baselines)]
        looks = self.header.settings.looks
        return stats.t_interval(stats.at_look(effects, looks), level) if effects else None

    def pair(self, arm: str, against: str) -> stats.Interval | None:
        """Any arm against any other, paired within passes, at the level of the arms."""
        return self.interval(arm, [against], self.level)

    def effects(self, arm: str, baselines: Sequence[str]) -> dict[int, float]:
        """By block: log of the mean of others over any arm, positive where it is faster."""
        return stats.effects_by_block(self.logs, arm, baselines)

    def twin_effects(self) -> dict[int, float]:
        """By block: the twin against its own baseline; nothing but noise if all is well."""
        return self.effects(TWIN, [self.header.baseline])

    @cached_property
    def twin_alarm(self) -> float:
        """Size of the twin's effect where it is decided at this case's level, else 0."""
        interval = self.interval(TWIN, [self.header.baseline], self.twin_level)
        if interval is None or interval.blocks < stats.MIN_BLOCKS:
            return 0.0
        return abs(interval.estimate) if interval.low > 0 or interval.high < 0 else 0.0

    @cached_property
    def baselines(self) -> list[str]:
        """Base and twin, or the base alone if the twin failed."""
        baseline = self.header.baseline
        twin = msgspec.structs.replace(self.choices[0], label=TWIN)
        return [baseline] if self._refusal(twin) else [baseline, TWIN]

    def _beats_the_roof(self, measured: Result, choice: Choice) -> bool:
        """Impossible for what reads the rotated pool; a host library has copies of its own."""
        if self.header.settings.regime != "stream" or isinstance(choice.outcome, HostArm):
            return False
        roof = self._roof_interval(measured)
        return roof is not None and roof.low > ABOVE_ROOF

    def _roof_interval(self, result: Result) -> stats.Interval | None:
        """log of (arm's bytes per second / roof's), paired within passes."""
        label = self._roof_label(result.device)
        roof, samples = self.usable_of(label), self.usable_of(result.arm)
        if not roof or not samples:
            return None
        shift = math.log(samples[0].bytes_per_call / roof[0].bytes_per_call)
        return self.interval(result.arm, [label], self.level, shift)

    def _flags(self, result: Result, roof: stats.Interval | None) -> tuple[str, ...]:
        own = [s for s in self.samples if s.arm == result.arm]
        flags = find_flags(own, roof)
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
            return "WRONG", describe_failures(bad)
        if any(s.correct is False for s in self.samples if s.arm == choice.label):
            return "WRONG", "the output of a timed run differs from the verified one"
        for line in self.run.lines:
            same = isinstance(line, Failed | Charged) and (line.case, line.arm) in (
                (self.case.id, label),
                (self.case.id, choice.label),
            )
            if same and isinstance(line, Failed | Charged):
                return "FAILED", f"{line.stage}: {line.reason}"
        return None

    def _unmeasured(self) -> tuple[str, str]:
        """Why an arm that is right in itself has no samples."""
        for line in self.run.lines:
            if isinstance(line, Charged) and line.case == self.case.id and not line.arm:
                return "FAILED", f"{line.stage}: {line.reason}"
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
        return self.usable.get(label, [])

    def _roof_label(self, device: str) -> str:
        return roof_label(device, len(self.header.devices))


def _constants(choice: Choice) -> dict[str, int | str]:
    outcome = choice.outcome
    if isinstance(outcome, Specialization):
        return dict(outcome.constants) | {
            "workgroups": outcome.workgroups,
            "workgroup_size": outcome.workgroup_size,
        }
    return {"host": outcome.family} if isinstance(outcome, HostArm) else {}


def _inside(interval: stats.Interval, min_effect: float) -> bool:
    return abs(interval.estimate) < math.log1p(min_effect)


def describe_failures(bad: Sequence[Check]) -> str:
    """The first failed check in full, the others by name."""
    names = list(dict.fromkeys(check.name for check in bad[1:] if check.name != bad[0].name))
    also = f" (also {', '.join(names)})" if names else ""
    return f"{bad[0].name}: {bad[0].detail}{also}"
