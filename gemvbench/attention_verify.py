"""Verification of arms of attention inside a worker: every trial of the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from gemvbench import oracle
from gemvbench.attention_case import Attention
from gemvbench.attention_oracle import Trial, trials
from gemvbench.attention_space import AttentionRunner, AttentionSpace
from gemvbench.backend.base import Backend
from gemvbench.errors import CompileError
from gemvbench.messages import AttentionJob, Check, Doing, Failed, Message, Verified, Verify
from gemvbench.plan import plan_layout
from gemvbench.verify import COMPILE_LIMIT, check_limit

_UNUSED_TOKENS = 11
"""Tokens of NaN behind the context in every check: strides are run-time arguments."""


@dataclass
class _Subject:
    """An arm under test, and what came of it so far."""

    job: AttentionJob
    runner: AttentionRunner
    checks: list[Check] = field(default_factory=list)
    digest: str = ""


class AttentionVerifier:
    """Runs all checks of one case; messages come as they are known."""

    def __init__(self, backend: Backend, request: Verify) -> None:
        case = request.case
        assert isinstance(case, Attention)
        self.backend, self.request, self.case = backend, request, case
        wider = msgspec.structs.replace(case, capacity=case.tokens_stored + _UNUSED_TOKENS)
        layout = plan_layout(wider, "hot", request.device)
        self.space = AttentionSpace(backend, wider, layout, request.seed, guarded=True)
        self.limit = check_limit(10 * case.copy_bytes)

    def messages(self) -> Iterator[Message]:
        subjects: list[_Subject] = []
        for job in self.request.jobs:
            assert isinstance(job, AttentionJob)
            yield self._doing("compile", job.arm, COMPILE_LIMIT)
            try:
                subjects.append(_Subject(job, AttentionRunner(self.space, job)))
            except CompileError as error:
                yield Failed(case=self.case.id, arm=job.arm, stage="compile", reason=str(error))
        yield self._doing("reference")
        for trial in trials(self.case, self.request.seed):
            yield from self._try(trial, subjects)
            yield self._doing("reference")
        for subject in subjects:
            yield Verified(
                case=self.case.id,
                arm=subject.job.arm,
                checks=tuple(subject.checks),
                digest=subject.digest,
            )

    def _try(self, trial: Trial, subjects: list[_Subject]) -> Iterator[Message]:
        self._set(trial)
        for subject in subjects:
            yield self._doing(f"{trial.name} check", subject.job.arm)
            self.space.poison_output()
            subject.runner.run(1)
            y = self.space.output(subject.job.precision.y)
            # What overflows on the way to a wrong output is no warning of ours.
            with np.errstate(all="ignore"):
                check = trial.compare(y, subject.job.precision)
            subject.checks.append(check)
            if trial.is_timed:
                subject.digest = oracle.digest(y)
            if not self.space.is_guard_intact(subject.job.precision.y):
                check = Check("bounds", False, "memory behind an output was written")
                subject.checks.append(check)
            if not check.passed:
                self._set(trial)  # it may have written to its operands

    def _set(self, trial: Trial) -> None:
        self.space.scale = trial.scale
        self.space.set_caches(trial.k, trial.v)
        if trial.q is not None:
            self.space.set_query(trial.q)
        if trial.p is not None:
            self.space.set_weights(trial.p)

    def _doing(self, stage: str, arm: str = "", limit: float | None = None) -> Doing:
        return Doing(stage=stage, arm=arm, case=self.case.id, limit=limit or self.limit)
