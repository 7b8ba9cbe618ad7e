"""The library in Pyodide under node: the numbers of this Python, to ten digits."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYODIDE = Path(os.environ.get("PYODIDE", ROOT / ".pyodide"))


def leaves(value, path=""):
    """The numbers and words of nested lists and dicts, each with its place."""
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in leaves(each, f"{path}/{key}")]
    if isinstance(value, list):
        return [leaf for key, each in enumerate(value) for leaf in leaves(each, f"{path}/{key}")]
    return [(path, value)]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """What both Pythons print: this one, and Pyodide."""
    archive = tmp_path_factory.mktemp("wasm") / "netsor.zip"
    subprocess.run([sys.executable, ROOT / "docs" / "_browser.py", "netsor", archive], check=True)
    commands = (
        [sys.executable, HERE / "computed.py"],
        ["node", HERE / "run.mjs", PYODIDE, archive, HERE / "computed.py"],
    )
    found = []
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        assert "Warning" not in made.stderr
        found.append(leaves(json.loads(made.stdout.splitlines()[-1])))
    return found


def test_the_numbers_are_equal_to_ten_digits(computed):
    here, there = computed
    assert len(here) == len(there) > 300
    for (place, one), (_, other) in zip(here, there, strict=True):
        if isinstance(one, float):
            assert math.isclose(one, other, rel_tol=1e-10, abs_tol=1e-15) or (math.isnan(one) and math.isnan(other)), (
                place
            )
        else:
            assert one == other, place


def test_the_law_of_the_readme(computed):
    _, there = computed
    found = dict(there)
    assert [found[f"/limit/{k}"] for k in (0, 1)] == pytest.approx([0.39197144357569885, 0.1216592126102366], rel=1e-10)
