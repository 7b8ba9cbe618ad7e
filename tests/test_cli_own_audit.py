"""netsor audit on custom programs: what is measured, and what is refused."""

import json

import pytest

from .command import netsor

PROBED = """
import netsor as ns

n = ns.Width("n")

@ns.program
def net(tokens=3, named="stream"):
    x = ns.probe("embedding", ns.gaussian(n, tokens))
    return ns.probe(named, x + ns.nn.attention(x, 2, 4))
"""


def test_audit_of_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(PROBED)
    done = netsor(
        "audit",
        "own.py:net",
        "--bind",
        "n=8",
        "--arg",
        "tokens=2",
        "--draws",
        "20",
        "--json",
    )
    found = json.loads(done.stdout)
    assert (found["model"], found["tokens"]) == ("net(tokens=2, named='stream')", 2)
    assert found["layers"][0].keys() == {"mean_square", "cosine", "effective_rank"}
    (tmp_path / "old.json").write_text(done.stdout)
    words = (
        "audit",
        "own.py:net",
        "--arg",
        "tokens=2",
        "--draws",
        "20",
        "--seed",
        "1",
        "--baseline",
        "old.json",
    )
    assert (
        "all 6 medians are within their bands"
        in netsor(*words, "--bind", "n=8", "--fail-on", "rank").stdout
    )
    assert (
        "must be of the same model: it has 1 block, n = 8, and "
        in netsor(*words, "--bind", "n=9").stderr
    )
    done = netsor(
        "audit",
        "own.py:net",
        "--bind",
        "n=8",
        "--draws",
        "20",
        "--ranges",
        "--out",
        "out",
    )
    assert "Activation ranges and short formats" in done.stdout
    command = json.loads((tmp_path / "out" / "manifest.json").read_text())["command"]
    assert command == "netsor audit own.py:net --bind n=8 --draws 20 --ranges --out out"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--bind width n is not bound: give n=…"),
        (
            ("--bind", "n=8", "--arg", "named=strem"),
            "name='strem' must be one of embedding, before, stream, attention",
        ),
        (("--bind", "n=8", "--arg", "named=mlp"), "must name its streams for an audit"),
        (
            ("--bind", "n=inf"),
            "FILE:PROGRAM 'own.py:net': width n=inf must be a positive integer",
        ),
        (("--bind", "n=8", "--tokens", "4"), "--tokens is for models"),
        (("--bind", "n=8", "--set", "std=1"), "--set is for models"),
        (
            ("--bind", "n=8", "--compare", "gpt2"),
            "--compare 'gpt2' must be a FILE:PROGRAM",
        ),
        (
            ("--bind", "n=8", "--fail-on", "rank,loss"),
            "--fail-on 'rank,loss': loss was not measured for net(",
        ),
        (
            ("--bind", "n=8", "--fail-on", "entropy"),
            "--fail-on 'entropy': entropy was not measured for net(",
        ),
        (
            ("--bind", "n=8", "--fail-on", "branches"),
            ": attention and MLP are not both probed",
        ),
        (
            ("--bind", "n=8", "--baseline", "own.py"),
            "'own.py' is not valid JSON",
        ),
    ],
)
def test_audit_of_program_rejects_bad_options(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(PROBED)
    done = netsor("audit", "own.py:net", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_audit_of_model_rejects_program_options():
    assert (
        "--bind n=3 needs a FILE:PROGRAM"
        in netsor("audit", "gpt2", "--bind", "n=3").stderr
    )
