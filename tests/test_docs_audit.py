"""What docs/audit.md says that commands print, they print: every line of its blocks, but for last digits."""

import json
import re
from pathlib import Path

import pytest

from .command import netsor

PAGE = (Path(__file__).parent.parent / "docs" / "audit.md").read_text()
PART = re.compile(r"`(netsor audit [^`]+)`|```python\n.*?```\n\n```text\n.*?```|```text\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"(?<![\w^])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# the model of the page's section on recipes
LLAMA = {"model_type": "llama", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 5632,
         "num_attention_heads": 16, "vocab_size": 32000, "tie_word_embeddings": False}  # fmt: skip


def said():
    """The lines of the blocks below each command; what Python prints, tests/test_docs.py looks at."""
    found: dict[str, list[str]] = {}
    command = ""
    for given, text in PART.findall(PAGE):
        command = " ".join(given.split()) or command
        if text:
            found.setdefault(command, []).extend(filter(str.strip, text.splitlines()))
    return found


SAID = said()


def numbers(line):
    return [float(number.replace(",", "")) for number in NUMBER.findall(line)]


def shape(line):
    """The words of a line."""
    return " ".join(NUMBER.sub("#", line).split())


def test_commands_are_found():
    assert len(SAID) == 6
    assert sum(map(len, SAID.values())) > 30


@pytest.mark.slow
@pytest.mark.parametrize("command", SAID)
def test_they_print_what_the_page_says(command, tmp_path):
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    result = netsor(*command.split()[1:], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    printed: dict[str, list[list[float]]] = {}
    for line in result.stdout.splitlines():
        printed.setdefault(shape(line), []).append(numbers(line))
    for line in SAID[command]:
        near = [numbers(line) == pytest.approx(found, rel=0.02) for found in printed.get(shape(line), [])]
        assert any(near), f"{line}\n\n{result.stdout}"
