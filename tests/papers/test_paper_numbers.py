"""The long paper prints numbers of numbers.json alone, and has all that it asks for."""

import json
import re
from pathlib import Path

import pytest

from tests.internals import CLAIM_CLASSES

PAPER = Path(__file__).parents[2] / "paper"


@pytest.fixture(scope="module")
def numbers():
    return json.loads((PAPER / "numbers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text():
    return (PAPER / "exactly.typ").read_text(encoding="utf-8")


def test_statements_are_those_of_the_run(numbers, text):
    statements = numbers["literature"]["statements"]
    for name, index in re.findall(r'verdicts\("([a-z]+)"\)\.at\((\d+)\)', text):
        assert statements[name][int(index)]["verdict"]
    known = {*CLAIM_CLASSES, "undecided"}
    for claims in statements.values():
        assert {claim["verdict"] for claim in claims} <= known


def test_all_cases_are_there(numbers, text):
    for case in re.findall(r'share\("([^"]+)"\)', text):
        assert len(numbers["positions"][case]) == 3
    for case in re.findall(r'cos\("([^"]+)"\)', text):
        assert numbers["words"]["cosine"][case]
    for image in re.findall(r'image\("([^"]+)"', text):
        assert (PAPER / image).is_file()
