"""Decode: seconds per token of a model, and the time paired with that of the frozen kernel."""

from .adapter import DEVICES, Numbers, _Paired, measure

_MODELS = {"cpu": "smollm2-135m", "gpu": "qwen3-8b"}
_ARMS = ("auto",)


def _words(model: str) -> list[str]:
    arms = [word for arm in _ARMS for word in ("--arm", arm)]
    return ["decode", "--quick", "--blocks", "6", "--model", model, "--baseline", "frozen", *arms]


def setup_cache() -> Numbers:
    return measure({kind: _words(model) for kind, model in _MODELS.items()})


setup_cache.timeout = _Paired.timeout


class Decode(_Paired):
    """All linear layers of one token, on distinct weights."""

    version = "1"
    params = (DEVICES, tuple(f"token-{model}-f16-f16" for model in _MODELS.values()), _ARMS)
