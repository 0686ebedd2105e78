"""Results of one case of a record: what is known of each arm, and what it says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from gemvbench import stats
from gemvbench.case_lines import CaseLines
from gemvbench.cases import Case
from gemvbench.disturbance import slot_means
from gemvbench.flags import find_flags
from gemvbench.jobs import Choice
from gemvbench.logs import Logs
from gemvbench.messages import Sample
from gemvbench.outcome import Declined, HostArm
from gemvbench.plan import TWIN, roof_label
from gemvbench.record import Run
from gemvbench.result import Result, Roof, constants_of

ABOVE_ROOF = math.log(1.05)


class CaseView(CaseLines):
    """What the lines of one case say of its arms."""

    def __init__(self, run: Run, case: Case) -> None:
        super().__init__(run, case)
        self.logs = Logs(self.all_samples())
        self.rule = self._rule(self.header.settings.family or len(self.contestants))
        # The twin is outside the family of arms.
        self._twin_rule = self._rule(1)

    def _rule(self, arms: int) -> stats.Rule:
        settings = self.header.settings
        return stats.Rule(
            level=stats.family_level(settings.confidence, arms, len(settings.looks)),
            looks=settings.looks,
            min_effect=settings.min_effect,
        )

    def results(self) -> list[Result]:
        (baseline,) = [choice for choice in self.choices if choice.label == self.baseline]
        twin = msgspec.structs.replace(baseline, label=TWIN)
        others = [choice for choice in self.choices if choice is not baseline]
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
        is_baseline = choice.label in self.baselines
        blank = Result(
            case=self.case.id,
            arm=choice.label,
            baseline=choice.label if is_baseline else self.opponent(choice.label),
            device=choice.device,
            constants=constants_of(choice),
            verdict="UNDECIDED",
            verified=self._is_verified(choice.label),
            steps=()
            if isinstance(choice.outcome, Declined)
            else tuple(map(str, choice.outcome.steps)),
        )
        samples = self.usable_of(choice.label)
        refusal = self._refusal(choice)
        if refusal is None and not samples:
            refusal = self._unmeasured(choice.label)
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
        if choice.label not in self.baselines:
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
            block_seconds=tuple(
                statistics.median(s.seconds for s in samples if s.block == block)
                for block in sorted({s.block for s in samples})
            ),
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
        unknown = self.unknown(measured.arm) or self.unknown(measured.baseline)
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
            block_ratios=tuple(
                map(math.exp, self.effects(measured.arm, self.bases_of(measured.arm)).values())
            ),
            min_detectable_effect=stats.min_detectable_effect(
                interval, self._rule_of(measured.arm).level
            ),
        )

    def _judge(self, arm: str) -> stats.Judgement:
        """An arm against its baseline, and the twin where that is the same code."""
        base, *twin = (self.logs.of(name) for name in self.bases_of(arm))
        second = twin[0] if twin else None
        return stats.judge(self.logs.of(arm), base, second, self._rule_of(arm))

    def bases_of(self, arm: str) -> list[str]:
        """What an arm is held against: its baseline, and the twin where that is a copy of it."""
        opponent = self.opponent(arm)
        alone = arm == TWIN or opponent != self.baseline or self._twin_is_out
        return [opponent] if alone else [opponent, TWIN]

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

    def beats(self, arm: str, other: str, level: float | None = None) -> bool:
        """Whether enough blocks say that an arm is faster than another."""
        interval = self.pair(arm, other, level)
        return interval is not None and interval.blocks >= stats.MIN_BLOCKS and interval.low > 0

    def _clean(self, arm: str, baselines: Sequence[str]) -> tuple[NDArray[np.intp], stats.Array]:
        """(rows of the blocks at the look, their effects)."""
        own, bases = self.logs.of(arm), [self.logs.of(name) for name in baselines]
        rows = stats.rows_at_look(own, bases, self.rule.looks)
        return rows, stats.clean_effects(own[rows], [logs[rows] for logs in bases])

    def twin_effects(self) -> dict[int, float]:
        """By block: the twin against its own baseline; nothing but noise if all is well."""
        return self.effects(TWIN, [self.baseline])

    @cached_property
    def slot_means(self) -> dict[int, float]:
        """By slot of a pass: its mean log time, arms and passes taken out."""
        return slot_means(self.all_samples())

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

    def _roof_label(self, device: str) -> str:
        return roof_label(device, len(self.header.devices))


def _inside(interval: stats.Interval, min_effect: float) -> bool:
    return abs(interval.estimate) < math.log1p(min_effect)
