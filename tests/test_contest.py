"""What is put together for one case: memory for all devices at once, labels, twins."""

from __future__ import annotations

import msgspec
import pytest
from conftest import make_device

from gemvbench.arm import parse_arm
from gemvbench.case import Gemv
from gemvbench.contest import Contest, Entrant, make_contest, make_entrants
from gemvbench.device import DeviceInfo
from gemvbench.errors import UserError
from gemvbench.plan import TWIN

GPU = msgspec.structs.replace(
    make_device(id="cuda0", kind="gpu", memory=1_000_000_000), uuid="aa" * 16
)
SAME_GPU = msgspec.structs.replace(GPU, id="nvcl0")
OTHER_GPU = msgspec.structs.replace(GPU, id="nvcl1", uuid="bb" * 16)


def contest(case: Gemv, *devices: DeviceInfo) -> Contest:
    arms = [Entrant(parse_arm("base"), device, f"{device.id}:base") for device in devices]
    return make_contest(case, arms, "hot")


def test_one_gpu_seen_twice_holds_both_pools() -> None:
    """700 MB fits a GPU of 1 GB once, and not twice."""
    case = Gemv(k=4096, n=85_000)
    assert set(contest(case, GPU, OTHER_GPU).layouts) == {"cuda0", "nvcl1"}
    refused = contest(case, GPU, SAME_GPU)
    assert not refused.layouts
    assert "for each of 2 (devices and repackings) that share it" in refused.refusal
    assert "gemv-4096x85000" in refused.refusal


def test_cpu_runtimes_share_the_machines_memory() -> None:
    cpu = make_device(id="pocl", kind="cpu", memory=1_000_000_000)
    other = msgspec.structs.replace(cpu, id="intel")
    assert contest(Gemv(k=4096, n=85_000), cpu).layouts
    assert not contest(Gemv(k=4096, n=85_000), cpu, other).layouts


def test_the_twin_stands_beside_its_baseline() -> None:
    entrants = make_entrants([parse_arm("base"), parse_arm("pack2")], GPU, {"cuda0": GPU})
    found = make_contest(Gemv(k=512, n=64), entrants, "hot").with_twin()
    assert found.labels == ("base", TWIN, "pack2")
    assert found.without("pack2").labels == ("base", TWIN)
    assert found.without("base").labels == ("pack2",)


def test_two_files_of_one_name_are_refused() -> None:
    arms = [parse_arm("mine=a.cl:one"), parse_arm("mine=b.cl:two")]
    with pytest.raises(UserError, match="both named 'mine'"):
        make_entrants(arms, GPU, {"cuda0": GPU})
