"""Verification of arms on quantised weights: `verify`'s phases with rows of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemvbench import inputs, oracle, quant_inputs, quant_oracle
from gemvbench.messages import Check, KernelJob, Message
from gemvbench.verify import Subject, Verifier


class QuantVerifier(Verifier):
    """All rows are known on the host, so none are sampled. No arm here plants rows."""

    def _exact_phase(self, subjects: Sequence[Subject]) -> Iterator[Message]:
        yield self._doing("inputs")
        self.space.fill_weights("small")
        trials = tuple(quant_oracle.exact_trials(self.case, self.request.seed))
        for subject in subjects:
            yield self._doing("exact check", subject.job.arm)
            for name, x, sums in trials:
                y = self._compute(subject, x, "small")
                subject.checks.append(oracle.check_exact(name, y, sums))
            self._refill_after(subject, "small")
        yield from self._special_phase(subjects)

    def _special_phase(self, subjects: Sequence[Subject]) -> Iterator[Message]:
        rows = quant_oracle.special_rows(self.case)
        weights, _ = quant_inputs.parts(self.case, rows)
        for subject in subjects:
            # Anew for each arm: the one before may have written to the weights.
            self.space.write_rows(rows)
            yield self._doing("special values", subject.job.arm)
            for column in dict.fromkeys((0, self.case.k // 2, self.case.k - 1)):
                x = quant_oracle.unit(self.case, column).astype(inputs.DTYPES[self.case.x])
                y = self._compute(subject, x, "small")
                expected = quant_inputs.TOP * weights
                subject.checks.append(oracle.check_special(y, expected, column))
            self._refill_after(subject, "small")

    def _random_phase(self, subjects: Sequence[Subject]) -> Iterator[Message]:
        case, seed = self.case, self.request.seed
        self.space.fill_weights("random")
        x = quant_inputs.vector(case, seed)
        references: dict[bool, oracle.RandomReference] = {}
        for subject in subjects:
            quantises = isinstance(subject.job, KernelJob) and subject.job.quantises_x
            if quantises not in references:
                yield self._doing("reference")
                references[quantises] = quant_oracle.random_reference(
                    case, seed, quantises_x=quantises
                )
            yield self._doing("random check", subject.job.arm)
            y = self._compute(subject, x, "random")
            subject.checks.append(oracle.check_random(y, references[quantises], 32))
            subject.digest = oracle.digest(self.space.output())
            if not self.space.output_guard_intact():
                subject.checks.append(
                    Check("bounds", False, "memory behind the last row was written")
                )
            self._refill_after(subject, "random")
