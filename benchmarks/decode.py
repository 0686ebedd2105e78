"""Decode: seconds per token of a whole model.

No ratio: on a CPU the frozen kernel takes ten times as long as a good one, and its tokens alone
would be half of the suite's time.
"""

from .adapter import DEVICES, Numbers, _Timed, measure

_MODELS = {"cpu": "smollm2-135m", "gpu": "qwen3-8b"}
_OTHER = {"cpu": "cpu+pack2", "gpu": "pack2"}
_ARMS = ("auto",)


def _words(kind: str) -> list[str]:
    """`decode` compares, so something fast stands beside the arm."""
    model = ["decode", "--quick", "--blocks", "6", "--model", _MODELS[kind]]
    return [*model, "--baseline", _ARMS[0], "--arm", _OTHER[kind]]


def setup_cache() -> Numbers:
    return measure({kind: _words(kind) for kind in _MODELS})


setup_cache.timeout = _Timed.timeout


class Decode(_Timed):
    """All linear layers of one token, on distinct weights."""

    version = "1"
    params = (DEVICES, tuple(f"token-{model}-f16-f16" for model in _MODELS.values()), _ARMS)
