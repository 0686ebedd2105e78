"""Verification of arms inside a worker: every check of the oracle, before any timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemvbench import inputs, oracle
from gemvbench.backend.base import Backend, Kernel
from gemvbench.case import Gemv
from gemvbench.errors import CompileError
from gemvbench.jobs import short_digest
from gemvbench.messages import (
    Check,
    DeviceJob,
    Doing,
    Failed,
    HostJob,
    Job,
    KernelJob,
    Message,
    Verified,
    Verify,
)
from gemvbench.plan import plan_layout
from gemvbench.quant_space import gemv_space
from gemvbench.runners import HostRunner, build_kernel, make_host_runner
from gemvbench.workspace import ARGUMENTS

COMPILE_LIMIT = 120.0
_BASE_LIMIT = 60.0
_SLOWEST = 2e7
"""Bytes per second below which a check is taken to hang."""


def check_limit(size: int) -> float:
    """Seconds that a check of so many bytes may be silent for."""
    return _BASE_LIMIT + size / _SLOWEST


@dataclass
class Subject:
    """An arm under test: how to get y for an x that was set, and what came of it so far."""

    job: Job
    kernel: Kernel | None = None
    host: HostRunner | None = None
    checks: list[Check] = field(default_factory=list)
    digest: str = ""

    @property
    def accumulate(self) -> int:
        return 32 if self.host is not None else _on_device(self.job).accumulate

    @property
    def dtype(self) -> str:
        """How it stores y."""
        return "f32" if self.host is not None else _on_device(self.job).y

    @property
    def extra(self) -> int:
        return 0 if self.host is not None else _on_device(self.job).extra


def _on_device(job: Job) -> DeviceJob:
    """A job of one operation that the device computes: all that are verified but host arms."""
    assert isinstance(job, DeviceJob)
    return job


class Verifier:
    """Runs all checks of one case; messages come as they are known."""

    def __init__(self, backend: Backend, request: Verify) -> None:
        case = request.case
        assert isinstance(case, Gemv)
        self.backend, self.request, self.case = backend, request, case
        layout = plan_layout(case, "hot", request.device)
        self.space = gemv_space(backend, case, layout, request.seed, guarded=True)
        self.limit = check_limit(case.weight_bytes)
        self._sums: dict[oracle.XPattern, NDArray[np.int64]] = {}

    def messages(self) -> Iterator[Message]:
        subjects: list[Subject] = []
        for job in self.request.jobs:
            yield self._doing("compile", job.arm, COMPILE_LIMIT)
            try:
                subjects.append(self._make_subject(job))
            except CompileError as error:
                yield self._failed(job.arm, "compile", str(error))
        yield from self._exact_phase(subjects)
        yield from self._random_phase(subjects)
        for subject in subjects:
            yield Verified(
                case=self.case.id,
                arm=subject.job.arm,
                checks=tuple(subject.checks),
                digest=subject.digest,
                binary=self._binary_digest(subject),
            )

    def _make_subject(self, job: Job) -> Subject:
        if not isinstance(job, HostJob):
            kernel = build_kernel(self.backend, _on_device(job))
            if kernel.arguments not in (None, ARGUMENTS):
                raise CompileError(
                    f"{kernel.entry} takes {kernel.arguments} arguments, and the calling "
                    f"convention has {ARGUMENTS}: w, x, y, k, n, w_offset, x_offset "
                    "(docs/kernels.md)"
                )
            return Subject(job, kernel=kernel)
        return Subject(
            job, host=make_host_runner(job, self.case, self.space.layout, self.request.seed)
        )

    def _binary_digest(self, subject: Subject) -> str:
        """Of a cubin alone: binaries of OpenCL differ from build to build of the same source."""
        if subject.kernel is None or self.backend.info.backend != "cuda":
            return ""
        return short_digest(subject.kernel.binary)

    def _exact_phase(self, subjects: Sequence[Subject]) -> Iterator[Message]:
        yield self._doing("inputs")
        self.space.fill_weights("small")
        for subject in subjects:
            patterns = oracle.exact_patterns(self.case.k, subject.accumulate)
            yield self._doing("reference")
            self._prepare_sums(patterns)
            yield self._doing("exact check", subject.job.arm)
            for pattern in patterns:
                y = self._compute(subject, pattern.values(self.case, self.request.seed), "small")
                sums = oracle.stored(self._sums[pattern], subject.dtype)
                subject.checks.append(oracle.check_exact(pattern.name, y, sums))
                if subject.extra:
                    subject.checks.append(self._check_extra(subject.extra, pattern))
            self._refill_after(subject, "small")
        yield from self._special_phase(subjects)

    def _special_phase(self, subjects: Sequence[Subject]) -> Iterator[Message]:
        """Zeros, subnormals and extremes in the first rows, seen through one column at a time."""
        rows = oracle.special_rows(self.case)
        for subject in subjects:
            if subject.host is not None:
                continue
            # Anew for each arm: the one before may have written to the weights.
            self.space.write_rows(rows)
            yield self._doing("special values", subject.job.arm)
            for column in dict.fromkeys((0, self.case.k - 1)):
                x = np.zeros(self.case.k, inputs.DTYPES[self.case.x])
                x[column] = 1
                y = self._compute(subject, x, "small")
                subject.checks.append(oracle.check_special(y, rows, column))
            self._refill_after(subject, "small")

    def _refill_after(self, subject: Subject, kind: str) -> None:
        """A wrong arm may have written to the weights: the next one is to find them whole."""
        if not all(check.passed for check in subject.checks):
            self.space.fill_weights(kind)

    def _random_phase(self, subjects: Sequence[Subject]) -> Iterator[Message]:
        case, seed = self.case, self.request.seed
        yield self._doing("reference")
        reference = oracle.random_reference(case, seed)
        self.space.fill_weights("random")
        x = inputs.values("random", case.x, case.k, seed, oracle.X_STREAM)
        siblings = dict(self.request.siblings)
        yield self._doing("reference")
        frozen = self._frozen_output(x, reference)
        for subject in subjects:
            yield self._doing("random check", subject.job.arm)
            y = self._compute(subject, x, "random")
            kind = subject.accumulate, subject.dtype
            subject.checks.append(oracle.check_random(y, reference, *kind))
            if frozen is not None:
                subject.checks.append(oracle.check_all_rows(y, frozen, reference, *kind))
            where = subject.extra, subject.dtype
            if subject.host is None:
                subject.digest = oracle.digest(self.space.output(*where))
            if subject.host is None and not self.space.output_guard_intact(*where):
                subject.checks.append(
                    Check("bounds", False, "memory behind the last row was written")
                )
            if subject.job.arm in siblings:
                subject.checks.append(self._compare(siblings[subject.job.arm], x, subject.digest))
            self._refill_after(subject, "random")

    def _frozen_output(
        self, x: NDArray[Any], reference: oracle.RandomReference
    ) -> NDArray[np.float32] | None:
        """All rows by the frozen kernel, where float64 has only some and confirms those."""
        job = self.request.reference
        if not reference.sampled or job is None:
            return None
        try:
            subject = Subject(job, kernel=self.backend.compile(job.text, job.entry))
        except CompileError:
            return None
        y = self._compute(subject, x, "random")
        return y if oracle.check_random(y, reference, 32).passed else None

    def _compare(self, sibling: KernelJob, x: NDArray[Any], digest: str) -> Check:
        """Rows per workgroup may not change a bit: the sibling has one row and is the same else."""
        one_row = Subject(sibling, kernel=self.backend.compile(sibling.text, sibling.entry))
        self._compute(one_row, x, "random")
        same = oracle.digest(self.space.output(one_row.extra)) == digest
        detail = "" if same else f"the output differs from {sibling.arm}, bit for bit"
        return Check("bit-identical to rows1", same, detail)

    def _compute(self, subject: Subject, x: NDArray[Any], kind: str) -> NDArray[np.float32]:
        if subject.host is not None:
            subject.host.set_operands(kind, x)
            subject.host.run(1)
            return subject.host.y
        assert subject.kernel is not None
        self.space.set_x(x)
        self.space.poison_output()
        self.backend.run(self.space.launches(subject.kernel, _on_device(subject.job), 1))
        return self.space.output(dtype=subject.dtype)

    def _check_extra(self, extra: int, pattern: oracle.XPattern) -> Check:
        """The scratch rows that the arm has just written: a planted effect is what it says."""
        rows = oracle.sample_rows(extra, self.request.seed)
        sums = oracle.sampled_exact_sums(self.case, pattern, self.request.seed, self.case.n + rows)
        return oracle.check_extra(self.space.output(extra)[self.case.n :], rows, sums)

    def _prepare_sums(self, patterns: tuple[oracle.XPattern, ...]) -> None:
        missing = tuple(pattern for pattern in patterns if pattern not in self._sums)
        if not missing:
            return
        if self.case.k * self.case.n <= oracle.HOST_ELEMENTS:
            sums = oracle.exact_sums(self.case, missing, self.request.seed)
            self._sums.update(zip(missing, sums, strict=True))
            return
        rows = oracle.sample_rows(self.case.n, self.request.seed)
        for pattern in missing:
            made = self.space.exact_sums_on_device(pattern)
            known = oracle.sampled_exact_sums(self.case, pattern, self.request.seed, rows)
            if not (made[rows] == known).all():
                raise RuntimeError(
                    f"{self.backend.info.id} computes wrong integer sums from the generator, so "
                    f"nothing on it can be verified for {self.case.id}"
                )
            self._sums[pattern] = made

    def _doing(self, stage: str, arm: str = "", limit: float | None = None) -> Doing:
        return Doing(stage=stage, arm=arm, case=self.case.id, limit=limit or self.limit)

    def _failed(self, arm: str, stage: str, reason: str) -> Failed:
        return Failed(case=self.case.id, arm=arm, stage=stage, reason=reason)
