"""Models small enough for a test, as entries of a catalogue."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gemvbench import models, token_plan
from gemvbench.commands import show

TINY = """
[tiny]
title = "Tiny"
hidden = 64
ffn = 128
heads = 2
kv_heads = 1
head_dim = 32
layers = 3
vocab = 512

[tiny-moe]
title = "Tiny-MoE"
unverified = "everything"
operations = [
    ["qkv", 64, 96],
    ["router", 64, 8],
    ["expert up", 64, 48, 8, 2],
    ["expert down", 48, 64, 8, 2],
    ["lm_head", 64, 256],
]
token = [[3, ["qkv", "router", "expert up", "expert down"]], [1, ["lm_head"]]]

[shapes]
title = "Shapes"
operations = [["a", 64, 64]]
"""


def use_catalogue(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put other models in the catalogue's place until the test ends."""
    path = folder / "models.toml"
    path.write_text(text)
    made = cache(models.catalogue.__wrapped__)
    monkeypatch.setattr(models, "_CATALOGUE", path)
    for module in (models, token_plan, show):
        monkeypatch.setattr(module, "catalogue", made)
