"""What pages say that `netsor audit` and `netsor coord-check` print, they print, but
for last digits.
"""

import json
import re
from pathlib import Path

import pytest

from tests.internals import AUDIT_RULES as RULES

from .command import netsor

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("audit-gpt2", "audit", "coord-check")),
]
# a command, in the text or alone in a block; what Python prints, for
# tests/test_docs.py; what a command prints
PART = re.compile(
    r"`(netsor (?:audit|coord-check) [^`]+)`|```sh\n(netsor (?:audit|coord-check)"
    r" [^`]+)\n```"
    r"|```python\n.*?```\n\n```text\n.*?```|```text\n(.*?)```",
    re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w^])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# files that the pages name
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
BUG = 'name = "bug"\nlike = "mup"\nquery.lr = {width = 1.0}\nkey.lr = {width = 1.0}\n'
FIXED = 'name = "fixed eps"\nlike = "mup"\n' + "".join(
    f"{kind}.eps = {{width = 0.0}}\n" for kind in ("matrices", "embedding", "position")
)


def said():
    """The lines of the blocks below each command."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        command = ""
        for inline, alone, text in PART.findall(page.read_text().replace("\\\n", "")):
            command = " ".join((inline or alone).split()) or command
            if text and command:
                found.setdefault(command, []).extend(
                    filter(str.strip, text.splitlines())
                )
    return found


SAID = said()


def numbers(line):
    return [float(number.replace(",", "")) for number in NUMBER.findall(line)]


def shape(line):
    """The words of a line."""
    return " ".join(NUMBER.sub("#", line).split())


def test_pages_contain_audit_commands():
    assert len(SAID) == 11, sorted(SAID)
    assert sum(map(len, SAID.values())) > 60


def test_audit_output_on_pages_fits_terminal():
    assert max(len(line) for lines in SAID.values() for line in lines) <= 80


def test_config_files_match_pages():
    text = "".join(page.read_text() for page in PAGES)
    (config,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(config) == LLAMA
    assert all(f"```toml\n{rule}```" in text for rule in (BUG, FIXED))


@pytest.mark.slow
@pytest.mark.parametrize("command", SAID)
def test_audit_commands_print_what_the_page_says(command, tmp_path):
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "bug.toml").write_text(BUG)
    (tmp_path / "fixed-eps.toml").write_text(FIXED)
    result = netsor(*command.split()[1:], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    printed: dict[str, list[list[float]]] = {}
    for line in result.stdout.splitlines():
        printed.setdefault(shape(line), []).append(numbers(line))
    for line in SAID[command]:
        near = [
            numbers(line) == pytest.approx(found, rel=0.02)
            for found in printed.get(shape(line), [])
        ]
        assert any(near), f"{line}\n\n{result.stdout}"


def test_audit_reference_lists_every_rule_with_threshold():
    page = (ROOT / "docs" / "audit-reference.md").read_text()
    found = dict(
        re.findall(
            r"^\| `(\w+)` \| .*?(?:more|less) than ([\d.,]+) ", page, re.MULTILINE
        )
    )
    expected = {}
    for rule in RULES:
        threshold = 100 * rule.threshold if rule.percent else rule.threshold
        expected[rule.name] = f"{threshold:,g}"
    assert found == expected
