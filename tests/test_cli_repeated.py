"""Options that are given twice, or that contradict each other, and the spelling that
messages use.
"""

import json

import pytest

from .command import netsor

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 20,
}
MINE = """
import netsor as ns

@ns.program
def net(n):
    h = ns.probe("hidden", ns.weight(n, 2, name="in") @ ns.data([[1.0, 0.5]]))
    return ns.mean_dot(h, h).mean()
"""
REFUSED = {
    "audit tiny.json --draws 15 --draws 20": "--draws is given twice: give it once",
    "audit tiny.json --gradients --no-gradients": (
        "--gradients is given twice: give it once"
    ),
    "audit tiny.json --set layers=2 --set layers=3": (
        "--set 'layers=2, layers=3': layers is given twice"
    ),
    "audit tiny.json --set layers=2 --layers 3": (
        "--layers 3 and --set layers=2 cannot be combined"
    ),
    "audit tiny.json --set n_layer=2 --layers 3": (
        "--layers 3 and --set n_layer=2 cannot be combined"
    ),
    "audit tiny.json --layers 2 --sweep n_layer=1,2": (
        "--layers 2 and --sweep n_layer cannot be combined"
    ),
    "audit tiny.json --set n_layer=2 --sweep layers=1,2": (
        "--set n_layer=2 and --sweep layers cannot be combined"
    ),
    "audit tiny.json --layers 0": (
        "Invalid value for '--layers': '0' must be a positive integer"
    ),
    "audit tiny.json --layers 2 --sweep layers=1,2": (
        "--layers 2 and --sweep layers cannot be combined"
    ),
    "audit tiny.json --set std=1 --sweep std=1,2": (
        "--set std=1 and --sweep std cannot be combined"
    ),
    "audit tiny.json --compare-set std=1 --compare-set std=2": (
        "--compare-set 'std=1, std=2': std is given twice"
    ),
    "audit tiny.json --tokens 4 --ids 3,1": (
        "--tokens 4 must be left out: the ids say how many tokens there are"
    ),
    "audit mine.py:net --layers 3": (
        "--layers 3 is for models: FILE:PROGRAM and FILE:FUNCTION define their own"
        " blocks"
    ),
    "coord-check tiny.json --layers 1 --set layers=2": (
        "--layers 1 and --set layers=2 cannot be combined"
    ),
    "coord-check tiny.json --layers 100000000000": (
        "--layers 100000000000 must be at most 200"
    ),
    "audit tiny.json --layers 5000": (
        "--layers 5000 must be at most 2000 for an audit of tiny, layers=5000"
    ),
    "audit tiny.json --set layers=5000": (
        "--set layers=5000 must be at most 2000 for an audit of tiny, layers=5000"
    ),
    "coord-check tiny.json --optimizer x": (
        "--optimizer 'x' must be 'sgd', 'muon', 'adam' or 'lion'"
    ),
    "coord-check tiny.json --optimizer=x": (
        "--optimizer 'x' must be 'sgd', 'muon', 'adam' or 'lion'"
    ),
    "coord-check tiny.json --optimiser x": (
        "--optimiser 'x' must be 'sgd', 'muon', 'adam' or 'lion'"
    ),
    "coord-check tiny.json --optimiser sgd --optimizer adam": (
        "--optimiser is given twice: give it once"
    ),
    "coord-check tiny.json --tokens 4 --ids 3,1": (
        "--tokens 4 must be left out: the ids say"
    ),
    "coord-check tiny.json --steps 100000000": (
        "--steps 100000000 must be an integer from 1 to 256"
    ),
    "coord-check mine.py:net --optimizer x": (
        "--optimizer 'x' must be sgd, muon, adam, lion, or the name of one in FILE"
    ),
    "coord-check mine.py:net --layers 3": (
        "--layers 3 is for models: FILE:PROGRAM and FILE:FUNCTION define"
    ),
    "coord-check mine.py:net[0] --lr 1": (
        "FILE:FUNCTION 'mine.py:net[0]' names a function of the width: leave out"
    ),
    "transfer tiny.json --steps 100000000": (
        "--steps 100000000 must be an integer from 1 to 256"
    ),
    "transfer mine.py:net[0]": (
        "FILE:FUNCTION 'mine.py:net[0]' names a function of the width: leave out"
    ),
    "law --width 8 --width 9": "--width is given twice: give it once",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize("words", REFUSED)
def test_repeated_or_conflicting_options_end_in_one_line(words, folder):
    done = netsor(*words.split(), cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"netsor: {REFUSED[words]}")
    assert done.stderr.count("\n") == 1


def test_audit_layers_sets_number_of_blocks(folder):
    done = netsor(
        "audit", "tiny.json", "--quick", "--layers", "1", "--json", cwd=folder
    )
    assert len(json.loads(done.stdout)["layers"]) == 1


def test_repeated_flag_is_accepted(folder):
    assert (
        netsor(
            "check", "mine.py:net", "--json", "--json", "--arg", "n=3", cwd=folder
        ).returncode
        == 0
    )
