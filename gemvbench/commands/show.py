"""`gemvbench devices` and `list`: nothing is measured."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from gemvbench.arm import AUTO, FAMILIES, HOST_FAMILIES, describe_axes
from gemvbench.asv_machine import machine_file, merge_machine
from gemvbench.cases import is_part
from gemvbench.commands.output import check_output, emit, warn
from gemvbench.device import DeviceInfo
from gemvbench.errors import Exit
from gemvbench.libraries import LIBRARY_FAMILIES
from gemvbench.models import Model, catalogue
from gemvbench.report import units
from gemvbench.report.document import Document, Section

if TYPE_CHECKING:
    from gemvbench.kept_runs import KeptRun


def run_devices(options: argparse.Namespace) -> Exit:
    """Describe every device found; exit 4 where there is none."""
    from gemvbench.commands.selection import choose_device, find_devices

    check_output(options)
    devices = find_devices()
    if options.asv_machine is not None:
        path = machine_file(options.asv_machine)
        entry = merge_machine(path, devices.values())
        warn(f"{path}: {entry['machine']} has gpu {entry['gpu']}, driver {entry['driver']}.")
    choose_device(devices, None)
    emit(_devices_document(list(devices.values())), options)
    return Exit.OK


def run_list(options: argparse.Namespace) -> Exit:
    """Families with their axes, and models; or the runs that are kept."""
    check_output(options)
    emit(_kept_document() if options.kind == "runs" else _known_document(options.kind), options)
    return Exit.OK


def _known_document(kind: str | None) -> Document:
    """Arms, models, or both where neither is asked for."""
    families = _families() if kind in (None, "arms") else []
    models = list(catalogue().values()) if kind in (None, "models") else []
    arms = Section(
        "Arms: [device:]family[+axisN...][@revision]",
        ("name", "axes", "reason"),
        tuple((f["family"], f["axes"], f["summary"]) for f in families),
        notes=(
            "base is family row as it stands; pack2 is row+pack2.",
            "A kernel of your own: name=path/kernel.cl:entry[+axisN...] (or .cu).",
        ),
    )
    shapes = Section(
        "Models: --model NAME",
        ("name", "GB per token", "shapes (k, n)"),
        tuple(_model_row(model) for model in models),
        notes=("u: not verified against the model's own config.",),
    )
    records = [{"kind": "family", **f} for f in families]
    records += [{"kind": "model", "family": m.id, "summary": m.title} for m in models]
    sections = tuple(section for section in (arms, shapes) if section.rows)
    return Document(sections, {"families": families, "models": models}, records)


def _families() -> list[dict[str, str]]:
    return [
        *(
            {"family": name, "summary": family.summary, "axes": describe_axes(name)}
            for name, family in FAMILIES.items()
        ),
        *(
            {"family": name, "summary": summary, "axes": ""}
            for name, summary in (
                *HOST_FAMILIES.items(),
                *((name, library.summary) for name, library in LIBRARY_FAMILIES.items()),
            )
        ),
        {"family": AUTO, "summary": "what `tune` found for a case, else a rule", "axes": ""},
    ]


def _kept_document() -> Document:
    from gemvbench.folders import records_folder
    from gemvbench.kept_runs import kept_runs

    records = [_kept_record(run) for run in kept_runs()]
    section = Section(
        f"Runs in {records_folder()}, the newest first",
        ("record", "started", "command", "devices", "cases", "arms", "ended"),
        tuple(tuple(record.values()) for record in records),
        notes=("`gemvbench report --latest` shows the first of them.",)
        if records
        else ("There are none yet.",),
    )
    return Document((section,), records, records)


def _kept_record(run: KeptRun) -> dict[str, str]:
    header = run.header
    if header is None:
        unknown = dict.fromkeys(("started", "command", "devices", "cases", "arms"), "")
        return {"record": run.path.name, **unknown, "ended": run.problem}
    arms = dict.fromkeys(choice.label for choice in header.choices)
    cases = [case.id for case in header.cases if not is_part(case)]
    return {
        "record": run.path.name,
        "started": header.started,
        "command": header.settings.command,
        "devices": ", ".join(device.id for device in header.devices),
        "cases": cases[0] if len(cases) == 1 else f"{len(cases)} cases",
        "arms": ", ".join(arms) if len(arms) <= 4 else f"{len(arms)} arms",
        "ended": run.ended,
    }


def _model_row(model: Model) -> tuple[str, str, str]:
    mark = " u" if model.unverified else ""
    shapes = dict.fromkeys(f"({operation.k}, {operation.n})" for operation in model.operations)
    return f"{model.id}{mark}", f"{model.weight_bytes / 1e9:.2f}", " ".join(shapes)


def _same_gpus(devices: list[DeviceInfo]) -> list[str]:
    """GPUs that more than one back end sees, by UUID or PCI address."""
    gpus = [info for info in devices if not info.is_cpu]
    seen = {
        info.memory: [other.id for other in gpus if other.memory == info.memory] for info in gpus
    }
    return [
        f"{' and '.join(names)} are one GPU ({memory}): an arm of each can run in the same blocks."
        for memory, names in seen.items()
        if len(names) > 1
    ]


def _devices_document(devices: list[DeviceInfo]) -> Document:
    columns = ("device", "name", "platform", "driver", "units", "memory", "cache", "capabilities")
    rows = tuple(
        (
            info.id,
            info.name,
            info.platform,
            info.driver,
            str(info.compute_units),
            units.size(info.memory_bytes),
            units.size(info.cache_bytes),
            ", ".join(info.capabilities),
        )
        for info in devices
    )
    notes = (*(note for info in devices for note in info.notes), *_same_gpus(devices))
    records = [msgspec.to_builtins(info) for info in devices]
    return Document((Section("Devices", columns, rows, notes=notes),), devices, records)
