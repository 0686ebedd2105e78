"""What is known of a device: plain data, made by a back end, read everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gemvbench.errors import UserError
from gemvbench.suggest import nearest
from gemvbench.tuning import Tuning

_EXTRAS = {"pocl": "cpu", "intel": "intel", "cuda": "cuda"}


def find_device(devices: Mapping[str, DeviceInfo], wanted: str) -> DeviceInfo:
    """The device of that id.

    Raises:
        UserError: there is none; names those found and the extra that may bring it.
    """
    if wanted in devices:
        return devices[wanted]
    extra = _EXTRAS.get(wanted.rstrip("0123456789"))
    hint = f" `pip install 'gemvbench[{extra}]'` brings it." if extra else ""
    raise UserError(
        f"There is no device {wanted!r} here{nearest(wanted, devices)} Found: "
        f"{', '.join(devices) or 'none'}; `gemvbench devices` describes them.{hint}"
    )


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One device as one back end sees it. Sizes are in bytes.

    `capabilities` holds what a compile probe found, since extension lists lie both ways:
    "half_native" (vectors of half load and convert), "half_f16c" (x86 conversion
    instructions inside OpenCL C), "half_arithmetic" (FP16 accumulation); and what an
    architecture or an installed library brings: "async_copy" (sm_80 on), "bulk_copy",
    "clusters" and "dependent_launch" (sm_90 on), "cublas".
    """

    id: str
    backend: str
    kind: str
    name: str
    vendor: str
    platform: str
    driver: str
    version: str
    compute_units: int
    max_workgroup: int
    memory_bytes: int
    max_alloc_bytes: int
    free_bytes: int
    """What could be allocated when the device was listed, as far as it tells."""
    cache_bytes: int
    local_bytes: int = 0
    """Shared memory that one workgroup can ask for; 0 where it is not known."""
    capabilities: tuple[str, ...] = ()
    uuid: str | None = None
    pci: str | None = None
    architecture: str | None = None
    notes: tuple[str, ...] = ()
    tuning: Tuning = Tuning()
    """What the parent found of tuned arms; a back end leaves it empty."""

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def memory(self) -> str:
        """Names the memory a device allocates from: one GPU seen by two back ends has one."""
        return self.uuid or self.pci or ("host" if self.is_cpu else self.id)

    @property
    def is_nvidia(self) -> bool:
        return "nvidia" in self.vendor.lower()

    @property
    def language(self) -> str:
        return "cuda" if self.backend == "cuda" else "opencl"

    def kernel_file(self, stem: str) -> str:
        """A packaged kernel file in this device's language, as kernels are named."""
        return f"{self.language}/{stem}.{'cu' if self.language == 'cuda' else 'cl'}"

    @property
    def title(self) -> str:
        return f"{self.id}: {self.name} ({self.platform}, driver {self.driver})"
