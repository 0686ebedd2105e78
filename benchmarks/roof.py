"""Roof: how long the fastest bare read of this device takes."""

from .adapter import DEVICES, Numbers, answer, kinds, samples

_RUNS = 3


def setup_cache() -> dict[str, str]:
    return kinds()


class Roof:
    """Time to read one gigabyte (10^9 bytes) of memory, cache aside."""

    version = "1"
    params = (DEVICES,)
    param_names = ("device",)
    timeout = 600.0

    def setup(self, found: dict[str, str], device: str) -> None:
        if device not in found:
            raise NotImplementedError(device)

    def track_read(self, found: dict[str, str], device: str) -> Numbers:
        """Each run is a process of its own; its fastest read kernel counts."""
        runs = [answer("roof", "--device", device)["roofs"] for _ in range(_RUNS)]
        return samples([1e9 / max(roof["bandwidth"] for roof in roofs) for roofs in runs])

    track_read.unit = "seconds"
