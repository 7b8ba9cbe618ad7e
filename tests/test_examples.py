"""The examples run, and each network in them is short."""

import importlib
import inspect
import runpy
from pathlib import Path

import pytest

import netsor as ns

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
PICTURES = {
    "entropy": {"entropy.png"},
    "picture": {"widths.png"},
    "tangent": {
        f"tangent-{name}.png" for name in ("decay", "heads", "output", "widths")
    },
    "wide_enough": {"wide_enough.png"},
    "three_questions": {"entropy.png", "outputs.png", "posterior.png"},
}


def needs(name):
    if "from sklearn" in (FOLDER / f"{name}.py").read_text():
        pytest.importorskip("sklearn")
    if "import torch" in (FOLDER / f"{name}.py").read_text():
        pytest.importorskip("torch")


LONG = {
    "bayes",
    "check_init",
    "entropy",
    "picture",
    "regression",
    "tangent",
    "three_questions",
    "wide_enough",
}


@pytest.mark.parametrize(
    "name",  # pages of the docs run nearly the same as the slow ones in every test
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
        for name in EXAMPLES
    ],
)
def test_example_runs(name, capsys, monkeypatch, tmp_path):
    needs(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    # draws every matrix: a few draws show that the example runs
    simulate = ns.Program.simulate
    monkeypatch.setattr(
        ns.Program,
        "simulate",
        lambda net, draws, **how: simulate(net, draws=min(draws, 50), **how),
    )
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == PICTURES.get(name, set())


WITHOUT_A_NETWORK = {"check_init", "entropy"}  # a PyTorch module, built-in models


@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if name not in WITHOUT_A_NETWORK]
)
def test_network_of_example_is_short(name):
    needs(name)
    net = importlib.import_module(f"examples.{name}").net
    assert isinstance(net(), ns.Program)
    source = inspect.getsource(net).splitlines()
    code = [
        line
        for line in source
        if line.strip() and not line.strip().startswith(("@", '"""'))
    ]
    assert len(code) <= 14


def test_user_script_is_short():
    assert len((FOLDER / "three_questions.py").read_text().splitlines()) <= 40
