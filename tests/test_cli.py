"""The command line, as a user meets it."""

import json
import subprocess
import sys

import pytest

from .command import netsor


def test_it_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "netsor", "law", "--heads", "0"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "netsor: Invalid value for '--heads': '0' must be a positive integer (below 2^53)\n"


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

def ends():
    raise SystemExit(3)

class Mute(Exception):
    def __str__(self):
        raise RuntimeError

def mute():
    raise Mute
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAMS)
    (tmp_path / "bad.py").write_text("1 +")
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)")
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
    "mine": "FILE:PROGRAM 'mine' must be a .py file (or module), a colon and a name, with [i] for one output",
    "mine:1": "FILE:PROGRAM 'mine:1' must be a .py file (or module), a colon and a name",
    "none:good": "FILE 'none' cannot be imported: No module named 'none'",
    "none.py:good": "FILE 'none.py' cannot be imported",
    "bad:good": "FILE 'bad' cannot be imported: invalid syntax",
    "ends.py:good": "FILE 'ends.py' cannot be imported: it ends the process (sys.exit(0))",
    "mine:ends": "PROGRAM 'mine:ends' cannot be built: it ends the process (sys.exit(3))",
    "mine:mute": "PROGRAM 'mine:mute' cannot be built: Mute",
    "mine:good[7]": "PROGRAM 'mine:good[7]' has no part [7]",
    "mine:good[]": "FILE:PROGRAM 'mine:good[]' must be",
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


def test_law_as_json():
    result = netsor("law", "--at", "0", "--at", "1", "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 0
    assert result.stderr == ""
    assert found["variance"] == pytest.approx(0.39197144, abs=1e-7)
    assert found["excess_kurtosis"] == pytest.approx(0.12165921, abs=1e-7)
    assert [row["y"] for row in found["pdf"]] == [0, 1]
    assert found["pdf"][0]["value"] == pytest.approx(0.646080, abs=2e-6)
    assert set(found["cdf"][0]) == {"y", "value", "error"}
    assert (found["status"], found["random_numbers"]) == ("proved", 0)
    assert "Fourier" in found["method"]


def test_law_at_a_finite_width_in_words():
    result = netsor(
        "law", "--width", "64", "--draws", "5000", "--at", "0.5", "--activation", "relu", "--head-dim", "16"
    )
    assert result.returncode == 0
    assert "exact engine at n = 64, d = 16" in result.stdout
    assert "pdf" in result.stdout


def test_infinitely_many_heads_and_linear_scaling():
    heads = json.loads(netsor("law", "--infinite-heads", "--json").stdout)
    assert heads["variance"] == pytest.approx(0.39197144, abs=1e-7)
    assert heads["excess_kurtosis"] == 0
    linear = json.loads(netsor("law", "--scaling", "linear", "--json").stdout)
    assert linear["variance"] == pytest.approx(0.25)


def test_compare(tmp_path):
    picture = tmp_path / "picture.png"
    result = netsor("compare", "--width", "64", "--draws", "20000", "--json", "--plot", str(picture))
    found = json.loads(result.stdout)
    assert found["kl"]["value"] == pytest.approx(2.121e-3, abs=5 * found["kl"]["error"])
    assert set(found["total_variation"]) == {"value", "error"}
    assert {"wasserstein1", "kolmogorov"} < set(found)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_compare_takes_the_head_dimension_to_infinity_unless_told():
    arguments = ["compare", "--width", "64", "--head-dim", "8", "--draws", "20000", "--json"]
    free, kept = (json.loads(netsor(*arguments, *more).stdout) for more in ([], ["--keep-head-dim"]))
    assert free["kl"]["value"] > 2 * kept["kl"]["value"]


BAD_OPTIONS = {
    ("law", "--heads", "0"): "'--heads': '0' must be a positive integer",
    ("law", "--width", "-3"): "'--width': '-3' must be a positive integer or inf",
    ("law", "--width", "2.5"): "'--width': '2.5' must be a positive integer or inf",
    ("law", "--activation", "swish"): "'--activation': 'swish' is not one of",
    ("law", "--at", "nan"): "'--at': 'nan' must be a finite number",
    ("law", "--sigma-q", "nan"): "'--sigma-q': 'nan' must be 0 or a finite number from 1e-8 to 1e8",
    ("law", "--sigma-o", "0"): "'--sigma-o': '0' must be a finite number from 1e-8 to 1e8",
    ("law", "--clip", "-1"): "'--clip': '-1' must be a finite number from 1e-8 to 1e8",
    ("law", "--draws", "5"): "'--draws': '5' must be an integer, 100 or more",
    ("law", "--seed", "x"): "'--seed': 'x' must be an integer, 0 or more",
    ("law", "--plot", "x.gif"): "--plot 'x.gif' must end in .png, .pdf or .svg",
    ("law", "--plot", "nowhere/x.png"): "--plot 'nowhere/x.png' must be in a folder that exists",
    ("law", "--width", "8", "--infinite-heads"): "--infinite-heads needs --width inf",
    ("law", "--width", "8", "--head-dim", "9"): "--head-dim 9 must be at most --width 8",
    ("compare", "--width", "inf"): "--width must give a positive integer",
}


@pytest.mark.parametrize("arguments", BAD_OPTIONS)
def test_bad_options_end_in_one_line(arguments, tmp_path):
    result = netsor(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert BAD_OPTIONS[arguments] in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []
