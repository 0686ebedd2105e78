"""What the gate decided: time of today's kernel over that of the commit it was judged against.

`gemvbench gate --asv DIR` writes the values; asv itself measures nothing here, and has n/a.
"""

from .adapter import DEVICES

_GEMV = (
    "gemv-1024x3072-f16-f16",
    "gemv-3072x1024-f16-f16",
    "gemv-1024x3072-bf16-bf16",
    "gemv-5120x17408-f16-f16",
    "gemv-4096x4096-f16-f16",
    "gemv-17408x5120-f16-f16",
    "gemv-4096x4096-bf16-bf16",
)
_ATTENTION = ("attention-8x4x64-f16-tkd-n1024", "attention-32x8x128-f16-tkd-n4096")
_ARMS = ("auto", "pack0", "base", "pack2", "pack3", "gqa", "token_major")


class Gate:
    """The default sets of all kinds of devices."""

    version = "1"
    params = (DEVICES, _GEMV + _ATTENTION, _ARMS)
    param_names = ("device", "case", "arm")

    def setup(self, device: str, case: str, arm: str) -> None:
        raise NotImplementedError

    def track_ratio(self, device: str, case: str, arm: str) -> None:
        raise NotImplementedError

    track_ratio.unit = "time now / time at the base"
