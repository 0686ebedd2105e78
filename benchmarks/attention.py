"""Attention over contexts: time per call, and the time paired with that of `per_head`."""

from .adapter import DEVICES, Numbers, _Paired, measure

_HEADS = {"cpu": (8, 4, 64), "gpu": (32, 8, 128)}
_CONTEXTS = {"cpu": (512, 1024), "gpu": (4096, 8192, 16384)}
_ARMS = ("auto", "gqa")


def _words(kind: str) -> list[str]:
    names = ("--heads", "--kv-heads", "--head-dim")
    heads = [word for name, n in zip(names, _HEADS[kind], strict=True) for word in (name, str(n))]
    contexts = f"{_CONTEXTS[kind][0]}:{_CONTEXTS[kind][-1]}"
    arms = [word for arm in _ARMS for word in ("--arm", arm)]
    start = ["ab", "--quick", "--blocks", "6", "--op", "attention", "--baseline", "per_head"]
    return [*start, *heads, "--context", contexts, *arms]


def _cases(kind: str) -> list[str]:
    heads = "x".join(map(str, _HEADS[kind]))
    return [f"attention-{heads}-f16-tkd-n{context}" for context in _CONTEXTS[kind]]


def setup_cache() -> Numbers:
    return measure({kind: _words(kind) for kind in _HEADS})


setup_cache.timeout = _Paired.timeout


class Attention(_Paired):
    """One query position against a cache of n tokens."""

    version = "1"
    params = (DEVICES, tuple(case for kind in _HEADS for case in _cases(kind)), _ARMS)
