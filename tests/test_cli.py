"""The command line, as a user meets it."""

import json
import subprocess
import sys

import pytest


def netsor(*arguments, cwd=None):
    return subprocess.run([sys.executable, "-m", "netsor", *arguments], capture_output=True, text=True, cwd=cwd)


PROGRAMS = """
import netsor as ns
n = ns.Width("n")

@ns.program
def good():
    return ns.nn.attention(ns.tanh(ns.gaussian(n, 2)), 1)

@ns.program
def tied():
    x, w = ns.gaussian(n), ns.weight(n, n)
    return ns.dot(w @ x, w @ x)

@ns.program
def needs(heads):
    return ns.gaussian(n)

built = good()
number = 3

def broken():
    return ns.relu(1.0)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAMS)
    (tmp_path / "bad.py").write_text("1 +")
    return tmp_path


@pytest.mark.parametrize("target", ["mine:good", "mine:built", "mine.py:good"])
def test_check(folder, target):
    result = netsor("check", target, cwd=folder)
    assert result.returncode == 0
    assert result.stdout.endswith("verdict: proved (Theorem 3.1)\n")
    assert result.stderr == ""


def test_no_limit_is_exit_code_1(folder):
    result = netsor("check", "mine:tied", "--json", cwd=folder)
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert report["verdict"] == "no limit"
    assert {"name", "verdict", "findings"} == set(report["points"][0])


BAD = {
    "mine": "MODULE:PROGRAM 'mine' must be a module (or .py file), a colon and a name",
    "none:good": "MODULE 'none' cannot be imported: No module named 'none'",
    "none.py:good": "MODULE 'none.py' cannot be imported",
    "bad:good": "MODULE 'bad' cannot be imported: invalid syntax",
    "mine:absent": "PROGRAM 'absent' is not in 'mine'",
    "mine:number": "PROGRAM 'mine:number' must be a program (see ns.program), got int",
    "mine:needs": "PROGRAM 'mine:needs' cannot be built: missing a required argument: 'heads'",
    "mine:broken": "PROGRAM 'mine:broken' cannot be built: relu: needs a vector, got 1.0",
}


@pytest.mark.parametrize("target", BAD)
def test_bad_targets_end_in_one_line(folder, target):
    result = netsor("check", target, cwd=folder)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"netsor: {BAD[target]}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["chek"], ["check"], ["check", "a:b", "--no-such-option"]])
def test_bad_usage_ends_in_one_line(arguments):
    result = netsor(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("netsor: ")
    assert result.stderr.count("\n") == 1


def test_help_and_version():
    for arguments in ([], ["--help"], ["check", "--help"]):
        result = netsor(*arguments)
        assert result.returncode == 0
        assert result.stdout.startswith("Usage:")
    assert netsor("--version").stdout.startswith("netsor, version ")
