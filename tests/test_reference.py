"""Made from the parser: the reference, completion, and whether documented words can be said."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import reference
from conftest import Answer

from gemvbench.cli import build_parser
from gemvbench.errors import UserError

Run = Callable[..., Answer]
DOCS = sorted(reference.TARGET.parent.glob("*.md"))


def test_the_reference_is_current() -> None:
    assert reference.TARGET.read_text() == reference.reference(), "run python ci/reference.py"
    for command in ("ab", "report", "decode", "completion"):
        assert f"## gemvbench {command}\n" in reference.reference()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_offers_commands_options_and_models(gemvbench: Run, shell: str) -> None:
    text = gemvbench("completion", shell).out
    for word in ("decode", "--min-effect", "qwen3-0.6b", "token_major"):
        assert word in text


def test_bash_completes(gemvbench: Run, tmp_path: Path) -> None:
    """The script in a real bash: what it answers to words cut short."""
    script = tmp_path / "completion.bash"
    script.write_text(gemvbench("completion", "bash").out)
    for words, expected in (
        (("gemvbench", "sel"), "selftest"),
        (("gemvbench", "ab", "--min-e"), "--min-effect"),
        (("gemvbench", "decode", "--model", "qwen3-0"), "qwen3-0.6b"),
    ):
        line = " ".join(map(shlex.quote, words))
        ask = f"""source {script}
            COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE={shlex.quote(line)}
            COMP_POINT=${{#COMP_LINE}}
            f=$(complete -p gemvbench | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $f gemvbench {words[-1]}
            printf '%s\\n' "${{COMPREPLY[@]}}\""""
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
        assert expected in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("ab", "--arm", "token_mayor"), "token_major"),
        (("ab", "--arm", "fake0:pakc2"), "pack"),
        (("ab", "--arm", "pack2", "--device", "fale0"), "fake0"),
        (("ab", "--arm", "pack2", "--model", "qwen3-06b"), "qwen3-0.6b"),
    ],
)
@pytest.mark.usefixtures("in_process")
def test_the_nearest_name_is_named(gemvbench: Run, words: tuple[str, ...], meant: str) -> None:
    answer = gemvbench(*words)
    assert answer.code == 2
    assert f"did you mean {meant}?" in answer.err


def documented(path: Path) -> list[list[str]]:
    """Words of each gemvbench command in a document's shell blocks, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    found = []
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        parts: list[list[str]] = [[]]
        for word in lexer:
            if set(word) <= set("();<>|&"):
                parts.append([])
            else:
                parts[-1].append(word)
        found += [part[1:] for part in parts if part and Path(part[0]).name == "gemvbench"]
    return found


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_every_command_of_the_documents_can_be_said(path: Path) -> None:
    for words in documented(path):
        try:
            build_parser().parse_args(words)
        except UserError as error:
            pytest.fail(f"{path.name}: gemvbench {shlex.join(words)}: {error}")


def test_documents_have_commands() -> None:
    assert sum(len(documented(path)) for path in DOCS) > 10
