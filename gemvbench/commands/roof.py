"""`gemvbench roof`: how fast the device reads memory, by the fastest of several kernels."""

from __future__ import annotations

import argparse

import msgspec

from gemvbench.case import Gemv
from gemvbench.commands.output import check_output, emit, warn
from gemvbench.commands.selection import choose_device, find_devices
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit, UserError
from gemvbench.jobs import roof_jobs
from gemvbench.messages import AnyLayout, Calibrate, CaseBlock, RoofMeasured
from gemvbench.plan import plan_layout
from gemvbench.process import WorkerDiedError, converse
from gemvbench.report import units
from gemvbench.report.document import Document, Section

_CASE = Gemv(k=4096, n=4096)
"""Gives the pool its size; what is read is the whole pool."""


def run_roof(options: argparse.Namespace) -> Exit:
    """Measure the read kernels of a device; the fastest is its roof."""
    check_output(options)
    device = choose_device(find_devices(), options.device)
    measured = measure_roofs(device)
    if not measured:
        raise UserError(f"No read kernel ran on {device.id}, so there is no roof.", Exit.WRONG)
    emit(_document(device, measured), options)
    return Exit.OK


def measure_roofs(device: DeviceInfo) -> list[RoofMeasured]:
    """All read kernels in one worker, fastest first; one that kills it is left out."""
    candidates = list(roof_jobs(device))
    layouts: dict[str, AnyLayout] = {device.id: plan_layout(_CASE, "stream", device)}
    while candidates:
        case = CaseBlock(case=_CASE, layouts=layouts, jobs=(), roofs=tuple(candidates))
        try:
            messages = list(converse(Calibrate(devices=(device,), cases=(case,), seed=0)))
        except WorkerDiedError as death:
            killer = death.doing.arm or candidates[0].arm
            warn(f"{killer} is left out: {death.reason}.")
            candidates = [job for job in candidates if job.arm != killer]
            continue
        found = [message for message in messages if isinstance(message, RoofMeasured)]
        return sorted(found, key=lambda roof: -roof.bandwidth)
    return []


def _document(device: DeviceInfo, measured: list[RoofMeasured]) -> Document:
    pool = plan_layout(_CASE, "stream", device).pool_bytes
    rows = tuple(
        (
            roof.arm,
            units.rate(roof.bandwidth / 1e9),
            units.share(roof.bandwidth / measured[0].bandwidth),
            f"{roof.event_clock:.3f}",
        )
        for roof in measured
    )
    section = Section(
        title=f"Roof of {device.id}: {units.rate(measured[0].bandwidth / 1e9)} GB/s",
        columns=("name", "GB/s", "of roof", "event/host clock"),
        rows=rows,
        notes=(f"Bare reads of {units.size(pool)}, each over half a second.", device.title),
    )
    records = [msgspec.to_builtins(roof) for roof in measured]
    return Document((section,), {"device": device, "roofs": measured}, records)
