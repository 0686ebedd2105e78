"""GEMV: time per call, and the time paired with that of the frozen kernel, which never changes."""

from .adapter import DEVICES, Numbers, _Paired, measure

_SHAPES = {"cpu": ("1024x3072", "3072x1024"), "gpu": ("5120x1024", "5120x17408", "17408x5120")}
_ARMS = ("auto", "pack3")


def _words(kind: str) -> list[str]:
    shapes = [word for shape in _SHAPES[kind] for word in ("--shape", shape)]
    arms = [word for arm in _ARMS for word in ("--arm", arm)]
    return ["ab", "--quick", "--baseline", "frozen", *shapes, *arms]


def setup_cache() -> Numbers:
    return measure({kind: _words(kind) for kind in _SHAPES})


setup_cache.timeout = _Paired.timeout


class Gemv(_Paired):
    """A machine that drifts moves the times; the ratios stay."""

    version = "1"
    params = (DEVICES, tuple(f"gemv-{s}-f16-f16" for of in _SHAPES.values() for s in of), _ARMS)
