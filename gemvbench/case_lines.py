"""The lines of a record that concern one case, sorted by arm, and why an arm is out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gemvbench.cases import Case, verified_as
from gemvbench.jobs import Build, Choice, identical
from gemvbench.messages import BlockDone, Check, Failed, Sample, Verified
from gemvbench.outcome import Declined
from gemvbench.plan import TWIN
from gemvbench.record import Charged, Line, Run


class CaseLines:
    """Samples, verification and faults of one case."""

    def __init__(self, run: Run, case: Case) -> None:
        self.run, self.case, self.header = run, case, run.header
        self.choices = [c for c in run.header.choices if c.case == case.id]
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.verified: dict[str, Verified] = {}
        self._faults: dict[str, Failed | Charged] = {}
        self._verified_as = {proof.id for proof in verified_as(case)}
        for line in run.lines:
            self._sort_in(line)
        self.baselines = {c.against for c in self.choices if c.against} or {self.choices[0].label}
        self.baseline = self._find_baseline()
        self._usable = {arm: [s for s in of if s.is_usable] for arm, of in self.samples.items()}

    def _find_baseline(self) -> str:
        """The arm that the twin is a copy of: of several baselines the first that is right."""
        labels = [c.label for c in self.choices if c.label in self.baselines]
        return next((label for label in labels if self._is_verified(label)), labels[0])

    @property
    def contestants(self) -> list[str]:
        """The arms that are compared with something."""
        return [c.label for c in self.choices if c.label not in self.baselines]

    def opponent(self, label: str) -> str:
        """The arm that one is compared with."""
        own = {choice.label: choice.against for choice in self.choices}
        return own.get(label) or self.baseline

    def all_samples(self) -> list[Sample]:
        """Of every arm, those that are not usable too."""
        return [sample for of in self.samples.values() for sample in of]

    def build_of(self, choice: Choice) -> Build:
        """What tells an arm from others, whatever its label."""
        found = self.verified.get(choice.label)
        own = found is not None and found.case == self.case.id  # not of one layer of a token
        return Build(choice=choice, binary=found.binary if found and own else "")

    def _identical_to(self, label: str) -> list[str]:
        (own,) = [c for c in self.choices if c.label == label]
        return [
            c.label
            for c in self.choices
            if c.label != label
            and c.device == own.device
            and identical(self.build_of(c), self.build_of(own))
        ]

    def _refusal(self, choice: Choice) -> tuple[str, str] | None:
        """DECLINED, WRONG or FAILED with the reason, whatever else is known of the arm."""
        if isinstance(choice.outcome, Declined):
            return "DECLINED", choice.outcome.reason
        label = self.baseline if choice.label == TWIN else choice.label
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

    def _unmeasured(self, label: str) -> tuple[str, str]:
        """Why an arm that is right in itself has no samples."""
        fault = self._faults.get("")
        if fault is not None:
            return "FAILED", f"{fault.stage}: {fault.reason}"
        opponent = self.opponent(label)
        (choice,) = [choice for choice in self.choices if choice.label == opponent]
        refusal = self._refusal(choice)
        if refusal is not None:
            return "UNDECIDED", f"the baseline {opponent} is {refusal[0]}"
        return "UNDECIDED", "nothing was measured"

    def unknown(self, label: str) -> str:
        """What only a damaged record does not tell of an arm; "" for any other."""
        if self._is_verified(label) is None:
            return f"the record does not hold the verification of {label}"
        done = {line.block for line in self.run.of(BlockDone)}
        last = max((s.block for s in self.usable_of(label)), default=-1)
        if any(s.block in done and s.block > last for s in self.usable_of(self.baseline)):
            return f"{label} is not in the last blocks, and the record does not say why"
        return ""

    def _is_verified(self, label: str) -> bool | None:
        found = self.verified.get(self.baseline if label == TWIN else label)
        return found.passed if found else None

    def usable_of(self, label: str) -> list[Sample]:
        return self._usable.get(label, [])

    def _sort_in(self, line: Line) -> None:
        """Put a line of the record where it belongs; the first fault of an arm counts."""
        if isinstance(line, Sample) and line.case == self.case.id:
            self.samples[line.arm].append(line)
        elif isinstance(line, Verified) and line.case in self._verified_as:
            known = self.verified.get(line.arm)
            self.verified[line.arm] = known if known and not known.passed else line
        elif isinstance(line, Failed | Charged) and line.case in {self.case.id, *self._verified_as}:
            self._faults.setdefault(line.arm, line)


def describe_failures(bad: Sequence[Check]) -> str:
    """The first failed check in full, the others by name."""
    names = list(dict.fromkeys(check.name for check in bad[1:] if check.name != bad[0].name))
    also = f" (also {', '.join(names)})" if names else ""
    return f"{bad[0].name}: {bad[0].detail}{also}"
