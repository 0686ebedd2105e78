"""The catalogue against the numbers of its source, copied here."""

from __future__ import annotations

import pytest

from gemvbench.errors import UserError
from gemvbench.models import catalogue, find_model

QWEN36 = [
    ("gate+up", 5120, 34816, 64, 356.5),
    ("down", 17408, 5120, 64, 178.3),
    ("q+gate+k+v", 5120, 14336, 16, 146.8),
    ("o / GDN out", 6144, 5120, 64, 62.9),
    ("GDN q,k,v,z", 5120, 16384, 48, 167.8),
    ("GDN b+a", 5120, 96, 48, 1.0),
    ("lm_head", 5120, 248320, 1, 2542.8),
]
# id: hidden, ffn, q heads, kv heads, head_dim, layers, vocab
DENSE = {
    "smollm2-135m": (576, 1536, 9, 3, 64, 30, 49152),
    "qwen3-0.6b": (1024, 3072, 16, 8, 128, 28, 151936),
    "qwen3-1.7b": (2048, 6144, 16, 8, 128, 28, 151936),
    "qwen3-4b": (2560, 9728, 32, 8, 128, 36, 151936),
    "qwen3-8b": (4096, 12288, 32, 8, 128, 36, 151936),
    "qwen3-14b": (5120, 17408, 40, 8, 128, 40, 151936),
    "qwen3-32b": (5120, 25600, 64, 8, 128, 64, 151936),
    "llama-3.1-8b": (4096, 14336, 32, 8, 128, 32, 128256),
    "llama-3.1-70b": (8192, 28672, 64, 8, 128, 80, 128256),
    "mistral-7b-v0.3": (4096, 14336, 32, 8, 128, 32, 32768),
    "gemma-3-27b": (5376, 21504, 32, 16, 128, 62, 262208),
}
OTHERS = {"qwen3.6-27b", "deepseek-v2-lite", "gpt-oss-20b", "s2-seven"}
UNVERIFIED = {"qwen3-1.7b", "qwen3-14b", "llama-3.1-70b", "gemma-3-27b"}


def shapes(name: str) -> dict[str, tuple[int, int, int]]:
    return {op.name: (op.k, op.n, op.times) for op in find_model(name).operations}


def test_every_model_is_there_and_no_other() -> None:
    assert set(catalogue()) == set(DENSE) | OTHERS


def test_the_reference_model() -> None:
    model = find_model("Qwen3.6-27B")
    assert [(op.name, op.k, op.n, op.times) for op in model.operations] == [q[:4] for q in QWEN36]
    for op, (*_, megabytes) in zip(model.operations, QWEN36, strict=True):
        assert round(2 * op.k * op.n / 1e6, 1) == megabytes
    assert round(model.weight_bytes / 1e9, 2) == 51.24


@pytest.mark.parametrize("name", DENSE)
def test_dense_models(name: str) -> None:
    hidden, ffn, q, kv, head_dim, layers, vocab = DENSE[name]
    assert shapes(name) == {
        "q+k+v": (hidden, (q + 2 * kv) * head_dim, layers),
        "o": (q * head_dim, hidden, layers),
        "gate+up": (hidden, 2 * ffn, layers),
        "down": (ffn, hidden, layers),
        "lm_head": (hidden, vocab, 1),
    }


def test_known_sizes_of_dense_models() -> None:
    """Parameters read per token, as their publishers count them, embedding aside."""
    for name, billions in (("qwen3-8b", 7.57), ("llama-3.1-8b", 7.50), ("qwen3-32b", 31.98)):
        assert find_model(name).weight_bytes / 2e9 == pytest.approx(billions, abs=0.01)


def test_mixtures_of_experts() -> None:
    oss = shapes("gpt-oss-20b")
    assert oss["q+k+v"] == (2880, (64 + 2 * 8) * 64, 24)
    assert oss["o"] == (64 * 64, 2880, 24)
    assert oss["router"] == (2880, 32, 24)
    assert oss["expert gate+up"] == (2880, 2 * 2880, 24 * 4)
    assert oss["expert down"] == (2880, 2880, 24 * 4)
    assert oss["lm_head"] == (2880, 201088, 1)
    lite = shapes("deepseek-v2-lite")
    assert lite["q"] == (2048, 16 * 192, 27)
    assert lite["kv_a"] == (2048, 512 + 64, 27)
    assert lite["kv_b"] == (512, 16 * (128 + 128), 27)
    assert lite["o"] == (16 * 128, 2048, 27)
    assert lite["dense gate+up"] == (2048, 2 * 10944, 1)
    assert lite["dense down"] == (10944, 2048, 1)
    assert lite["expert gate+up"] == (2048, 2 * 1408, 26 * 6)
    assert lite["expert down"] == (1408, 2048, 26 * 6)
    assert lite["shared gate+up"] == (2048, 2 * 2 * 1408, 26)
    assert lite["shared down"] == (2 * 1408, 2048, 26)
    assert lite["lm_head"] == (2048, 102400, 1)


def test_s2_seven_with_the_models_own_qkv() -> None:
    found = [(op.k, op.n) for op in find_model("s2-seven").operations]
    assert found == [
        (5120, 34816),
        (17408, 5120),
        (5120, 12288),
        (5120, 2048),
        (6144, 5120),
        (5120, 10240),
        (5120, 6144),
    ]


def test_unverified_models_say_so() -> None:
    assert {m.id for m in catalogue().values() if m.unverified} == UNVERIFIED
    assert find_model("gemma-3-27b").unverified == "layers, vocab"


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean qwen3-8b\?.*--shape KxN"):
        find_model("qwen3-8bb")
