"""The library in Pyodide under node: the numbers of this Python, to ten digits."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYODIDE = Path(os.environ.get("PYODIDE", ROOT / ".pyodide"))


def leaves(value, path=""):
    """The numbers and words of nested lists and dicts, each with its place."""
    if isinstance(value, dict):
        return [
            leaf
            for key, each in value.items()
            for leaf in leaves(each, f"{path}/{key}")
        ]
    if isinstance(value, list):
        return [
            leaf
            for key, each in enumerate(value)
            for leaf in leaves(each, f"{path}/{key}")
        ]
    return [(path, value)]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """What both Pythons print: this one, and Pyodide."""
    archive = tmp_path_factory.mktemp("wasm") / "netsor.zip"
    subprocess.run(
        [sys.executable, ROOT / "docs" / "_browser.py", "netsor", archive], check=True
    )
    commands = (
        [sys.executable, HERE / "computed.py"],
        [
            "node",
            ROOT / "docs" / "_pyodide.mjs",
            PYODIDE,
            HERE / "computed.py",
            archive,
        ],
    )
    found = []
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        assert "Warning" not in made.stderr
        found.append(json.loads(made.stdout.splitlines()[-1]))
    return found


def test_numbers_are_equal_to_ten_digits(computed):
    here, there = (dict(leaves(part)) for part in computed)
    assert here.keys() == there.keys()
    assert len(here) > 1000
    for place, one in here.items():
        if isinstance(one, float) and not place.startswith("/density"):
            same = math.isclose(one, there[place], rel_tol=1e-10, abs_tol=1e-15)
            assert same or (math.isnan(one) and math.isnan(there[place])), place
        elif not isinstance(one, float):
            assert one == there[place], place


def test_densities_are_equal_within_their_errors(computed):
    """They are sums over cells, and a node at the edge of one falls to either side by
    its last digit.
    """
    (here, error), (there, other) = (part["density"] for part in computed)
    assert max(error) < 1e-9
    assert np.all(np.abs(np.subtract(here, there)) <= np.add(error, other))


def test_law_of_readme_has_its_numbers(computed):
    _, there = computed
    assert there["limit"][:2] == pytest.approx(
        [0.39197144357569885, 0.1216592126102366], rel=1e-10
    )
