"""The command line on custom programs: FILE:PROGRAM, --bind and --arg."""

import itertools
import json
import os

import pytest

import netsor as ns
from tests.internals import _memory, _program_commands, _subject

from .command import netsor


@pytest.fixture(autouse=True)
def sixteen_gigabytes(monkeypatch):
    """What is refused does not depend on the machine."""
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**34)


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

@ns.program
def own(heads=2):
    return ns.nn.attention(ns.tanh(ns.gaussian(n, 2)), heads, head_dim=ns.Width("d"))

@ns.program
def fails():
    def f(x):
        if x.size > 50:
            raise KeyError("theirs")
        return x
    return ns.weight(n, n) @ ns.nonlin(f, ns.gaussian(n))

@ns.program
def shifted():
    return ns.data([1.0, 5.0, 9.0]) + ns.weight(3, n) @ ns.relu(ns.gaussian(n))

@ns.program
def score():
    x = ns.gaussian(n)
    return ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)

@ns.program
def several(tokens=2, both=False):
    x = ns.gaussian(n, tokens)
    return (x[0], ns.mean_dot(x, x)) if both else x

@ns.program
def deep(layers=3):
    x = ns.gaussian(n)
    for _ in range(layers):
        x = ns.tanh(ns.weight(n, n) @ x)
    return x

@ns.program
def offset():
    return 1e9 * ns.ones(n) + ns.tanh(ns.weight(n, n) @ ns.gaussian(n))

@ns.program
def zero():
    x = ns.gaussian(n)
    return ns.weight(n, n) @ (x - x)

@ns.program
def steered():
    raise ValueError("\\x1b[2J" + "x" * 10**6)

named = ns.Program(ns.gaussian(n), "\\x1b[31mred")
built = good()
constant = ns.Program(ns.ones(n))
number = 3

class Module:
    def named_parameters(self):
        return []

    def __call__(self, ids):
        return ids

module = Module()

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
def test_check_prints_verdict(folder, target):
    result = netsor("check", target, cwd=folder)
    assert result.returncode == 0
    assert result.stdout.splitlines()[0].endswith(": limit proved (Theorem 3.1)")
    assert result.stderr == ""


def test_check_without_limit_exits_with_1(folder):
    result = netsor("check", "mine:tied", "--json", cwd=folder)
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert report["verdict"] == "no limit"
    assert {"name", "verdict", "findings"} == set(report["points"][0])


BAD = {
    "mine": (
        "FILE:PROGRAM 'mine' must be a .py file (or module), a colon and a name, such"
        " as net.py:layer[0]\n"
    ),
    "mine:1": (
        "FILE:PROGRAM 'mine:1' must be a .py file (or module), a colon and a name"
    ),
    "none:good": "FILE 'none' cannot be imported: No module named 'none'",
    "none.py:good": "FILE 'none.py' does not exist",
    "bad:good": "FILE 'bad' cannot be imported: invalid syntax",
    "ends.py:good": (
        "FILE 'ends.py' cannot be imported: it ends the process (sys.exit(0))"
    ),
    "mine:ends": (
        "PROGRAM 'mine:ends' cannot be built: it ends the process (sys.exit(3))"
    ),
    "mine:module": (
        "FILE:FUNCTION 'mine:module' is a PyTorch module: name a function that returns"
        " it\n"
    ),
    "mine:mute": "PROGRAM 'mine:mute' cannot be built: Mute",
    "mine:good[7]": "PROGRAM 'mine:good[7]' has no such part: its shape is (2,)\n",
    "mine:good[]": "FILE:PROGRAM 'mine:good[]' must be",
    "mine:absent": "PROGRAM 'absent' is not in 'mine'",
    "mine:number": "PROGRAM 'mine:number' must be a program (see ns.program), got int",
    "mine:needs": (
        "PROGRAM 'mine:needs' cannot be built: missing a required argument: 'heads';"
        " it is called as needs(heads); pass it: --arg heads=…"
    ),
    "mine:broken": (
        "PROGRAM 'mine:broken' cannot be built: relu: needs a vector, got 1.0 (at"
        " mine.py:"
    ),
}


@pytest.mark.parametrize("target", BAD)
def test_bad_targets_end_in_one_line(folder, target):
    result = netsor("check", target, cwd=folder)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"netsor: {BAD[target]}")
    assert result.stderr.count("\n") == 1


def test_law_of_user_program(folder):
    right = mine_law()
    result = netsor(
        "law",
        "mine.py:own[0]",
        "--bind",
        "n=16",
        "--bind",
        "d=inf",
        "--arg",
        "heads=3",
        "--draws",
        "500",
        "--seed",
        "2",
        "--at",
        "0.5",
        "--json",
        cwd=folder,
    )
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert found["variance"] == right.var()
    assert found["pdf"] == [
        {"y": 0.5, "value": right.pdf(0.5), "error": right.with_error.pdf(0.5).error}
    ]
    assert found["status"] == "conjectured"


def test_law_of_chosen_coordinate(folder):
    """Of a custom program, whose coordinates differ, and of the layer, whose do not."""
    words = "law", "mine.py:shifted", "--bind", "n=32", "--draws", "100", "--at", "9"
    first, third = (
        json.loads(netsor(*words, *more, "--json", cwd=folder).stdout)
        for more in ((), ("--coordinate", "2"))
    )
    assert first["cdf"][0]["value"] > 0.999 > 0.6 > third["cdf"][0]["value"] > 0.4
    assert "--coordinate, picks others" in first["notes"][0]
    assert third["notes"] == []
    assert (first["mean"], third["mean"]) == (1.0, 9.0)
    words = "law", "--width", "16", "--draws", "100", "--json"
    assert netsor(*words).stdout == netsor(*words, "--coordinate", "15").stdout
    found = netsor(
        "plan", "mine.py:shifted", "--bind", "n=32", "--coordinate", "-1", cwd=folder
    ).stdout
    assert found.startswith("plan of shifted() at n = 32, coordinate -1\n")
    found = netsor(
        "compare", "mine.py:shifted", "--bind", "n=32", "--draws", "100", cwd=folder
    ).stdout
    assert "note: coordinates of the output differ" in found
    found = netsor(
        "compare",
        "mine.py:shifted",
        "--bind",
        "n=32",
        "--draws",
        "100",
        "--coordinate",
        "1",
        cwd=folder,
    )
    assert "note" not in found.stdout
    assert found.returncode == 0


def mine_law():
    n, d = ns.Width("n"), ns.Width("d")
    net = ns.Program(ns.nn.attention(ns.tanh(ns.gaussian(n, 2)), 3, head_dim=d))
    return net[0].law(n=16, d=ns.inf, draws=500, seed=2)


def test_compare_user_program(folder):
    words = [
        "compare",
        "mine.py:own[0]",
        "--bind",
        "n=16",
        "--bind",
        "d=4",
        "--draws",
        "500",
        "--json",
    ]
    found = json.loads(netsor(*words, cwd=folder).stdout)
    assert found["kl"]["value"] > 0
    assert found["method"][0] == "exact engine at n = 16, d = 4"


OWN = {
    (
        "mine.py:own[0]",
    ): "--bind width d, n is not bound: give d=…, a positive integer or inf",
    ("mine.py:own[0]", "--bind", "n=4"): "--bind width d is not bound: give d=…",
    (
        "mine.py:own[0]",
        "--bind",
        "n=0",
    ): "--bind width n=0 must be a positive integer or inf",
    (
        "mine.py:own[0]",
        "--bind",
        "m=4",
    ): "--bind width m=4 is not used; this program's widths are d, n",
    ("mine.py:own[0]", "--bind", "n"): "--bind 'n' must be a name, =, and a value",
    ("mine.py:own[0]", "--bind", "n=4", "--bind", "n=5"): "--bind n is given twice",
    (
        "mine.py:own",
        "--bind",
        "n=4",
        "--bind",
        "d=4",
    ): "own(heads=2) has several outputs: choose one",
    (
        "mine.py:own[0]",
        "--arg",
        "head=3",
    ): "PROGRAM 'mine.py:own[0]' cannot be built: got an unexpected keyword",
    (
        "mine.py:built",
        "--arg",
        "heads=3",
    ): "--arg heads is given, but PROGRAM 'mine.py:built' is not a function",
    (
        "mine.py:own[0]",
        "--heads",
        "3",
    ): "--heads belongs to the built-in layer; FILE:PROGRAM takes --bind and --arg",
    ("mine.py:own[0]", "--width", "64"): (
        "--width belongs to the built-in layer; FILE:PROGRAM takes --bind n=64 --bind"
        " d=64\n"
    ),
    (
        "mine.py:several[2]",
        "--arg",
        "both=True",
    ): "PROGRAM 'mine.py:several[2]' has no such part: it has 2 outputs\n",
    (
        "mine.py:own[0]",
        "--widht",
        "64",
    ): "No such option --widht: did you mean --width or --bind?\n",
    (
        "mine.py:shifted",
        "--bind",
        "n=9",
        "--coordinate",
        "3",
    ): "--coordinate 3 must be from -3 to 2",
    (
        "mine.py:score",
        "--bind",
        "n=9",
        "--coordinate",
        "0",
    ): "--coordinate 0 must be left out: a scalar",
    (
        "mine.py:own[0]",
        "--coordinate",
        "x",
    ): "Invalid value for '--coordinate': 'x' must be an integer",
    ("mine.py:fails", "--bind", "n=99"): "FILE:PROGRAM failed: KeyError: 'theirs'",
    (
        "mine.py:own[0]",
        "--bind",
        "n=1000000000000",
        "--bind",
        "d=4",
    ): "an array of shape (1, 2, 1000000000000)",
    (
        "mine.py:own[0]",
        "--bind",
        "n=10000000",
        "--bind",
        "d=4",
        "--draws",
        "10000000",
    ): "--bind n=10000000 --bind d=4 and --draws 10000000 would take about",
    (
        "mine.py:own[0]",
        "--bind",
        "n=4",
        "--bind",
        "d=4",
        "--draws",
        "1000000000000000",
    ): "--bind n=4 --bind d=4 and --draws 1000000000000000 would take about",
    (
        "mine.py:constant",
        "--bind",
        "n=9",
    ): "the excess kurtosis is nan: it does not exist",
}


@pytest.mark.parametrize("arguments", OWN)
@pytest.mark.parametrize("command", ["law", "compare", "plan"])
def test_errors_in_user_program_end_in_one_line(command, arguments, folder):
    if command == "plan" and (
        not OWN[arguments].startswith(("--", "PROGRAM")) or "--draws" in OWN[arguments]
    ):
        pytest.skip("a plan draws nothing")
    if command == "compare" and "constant" in arguments[0]:
        pytest.skip("a point has no density to compare")
    result = netsor(command, *arguments, cwd=folder)
    assert result.returncode == 2
    assert result.stderr.startswith(f"netsor: {OWN[arguments]}")
    assert result.stderr.count("\n") == 1


def test_compare_rejects_infinite_widths(folder):
    result = netsor(
        "compare", "mine.py:own[0]", "--bind", "n=inf", "--bind", "d=inf", cwd=folder
    )
    assert result.returncode == 2
    assert result.stderr.startswith("netsor: --bind inf is the limit itself")


class Plan:
    bytes, operations, random_numbers, place = 100, 2000, 30, "one core"

    def __init__(self, net, widths):
        self.text = f"a plan of {net.name} at {widths}"

    def __str__(self):
        return self.text


def test_plan_of_user_program(folder, monkeypatch):
    monkeypatch.setattr(
        ns.Program,
        "plan",
        lambda net, coordinates, backend, device, **widths: Plan(net, widths),
    )
    result = netsor(
        "plan", "mine.py:own", "--bind", "n=16", "--bind", "d=inf", cwd=folder
    )
    assert (result.returncode, result.stdout) == (
        0,
        "a plan of own(heads=2) at {'n': 16, 'd': inf}\n",
    )
    found = json.loads(netsor("plan", "--width", "64", "--json").stdout)
    assert found["plan"].endswith("at {'n': 64}")
    assert (found["bytes"], found["operations"], found["random_numbers"]) == (
        100,
        2000,
        30,
    )


def test_help_says_that_file_is_executed():
    for command in ("check", "law", "compare", "plan"):
        assert "executed" in " ".join(netsor(command, "--help").stdout.split())


def test_bad_programs_are_rejected_before_planning(folder, monkeypatch):
    for name in ("plan", "law"):
        monkeypatch.setattr(
            ns.Program, name, lambda *_, **__: pytest.fail("it is begun")
        )
    for words, said in {
        (
            "law",
            "mine.py:several",
            "--bind",
            "n=8",
        ): "several(tokens=2, both=False) has several outputs: choose one",
        (
            "law",
            "mine.py:several",
            "--bind",
            "n=8",
            "--arg",
            "both=True",
        ): "has several outputs: choose one",
        (
            "compare",
            "mine.py:several",
            "--bind",
            "n=8",
        ): "has several outputs: choose one, mine.py:several[0]",
        (
            "compare",
            "mine.py:deep",
            "--bind",
            "n=inf",
        ): "--bind inf is the limit itself",
        (
            "law",
            "mine.py:own",
            "--bind",
            "n=8",
            "--bind",
            "d=9007199254740991",
        ): "--bind width 2d at d=9007199254740991 must be below 2^53",
        (
            "compare",
            "mine.py:good",
            "--bind",
            "n=8",
            "--keep-head-dim",
        ): "--keep-head-dim needs --head-dim D",
        (
            "compare",
            "--width",
            "8",
            "--keep-head-dim",
        ): "--keep-head-dim needs --head-dim D",
        (
            "compare",
            "--head-dim",
            "2",
            "--keep-head-dim",
            "--infinite-heads",
        ): "cannot be combined",
        ("compare", "--width", "inf"): "--width inf is the limit itself",
        (
            "law",
            "--width",
            "8",
            "--infinite-heads",
        ): "--infinite-heads needs --width inf",
    }.items():
        result = netsor(*words, cwd=folder)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (
            2,
            "",
            1,
        )
        assert said in result.stderr


def test_compare_output_that_is_always_zero(folder):
    result = netsor(
        "compare",
        "mine.py:zero",
        "--bind",
        "n=8",
        "--draws",
        "100",
        "--json",
        cwd=folder,
    )
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert all(
        abs(found[name]["value"]) < 1e-9
        for name in ("kl", "total_variation", "wasserstein1", "kolmogorov")
    )


def test_argument_error_names_the_option(folder):
    result = netsor(
        "law",
        "mine.py:offset",
        "--bind",
        "n=4",
        "--draws",
        "100",
        "--precision",
        "float32",
        cwd=folder,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "netsor: --precision 'float32' must be 'float64': single precision is not"
        " accurate"
    )


def test_announced_time_includes_further_plans(folder, monkeypatch):
    """A plan that takes 7 s is kept for the law, which makes two more at infinite
    width, for its errors.
    """
    seconds = itertools.count(0, 7)
    monkeypatch.setattr(_subject.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(_subject, "ANNOUNCE_SECONDS", 1.0)
    for width, said in (
        ("8", ""),
        ("inf", "netsor: this will take about 14 s; Ctrl-C stops it\n"),
    ):
        assert (
            netsor(
                "law",
                "mine.py:deep",
                "--bind",
                f"n={width}",
                "--draws",
                "100",
                cwd=folder,
            ).stderr
            == said
        )


def test_plan_prints_planning_time(folder, monkeypatch):
    """Of 300 layers at infinite width the draws take next to nothing, and the plan a
    second.
    """
    seconds = itertools.count(0, 7)
    monkeypatch.setattr(_program_commands.time, "perf_counter", lambda: next(seconds))
    result = netsor("plan", "mine.py:deep", "--bind", "n=inf", cwd=folder)
    assert result.stdout.endswith(
        "the plan itself took 7 s; a law makes 3 plans, which adds to its time\n"
    )
    found = json.loads(
        netsor("plan", "mine.py:deep", "--bind", "n=8", "--json", cwd=folder).stdout
    )
    assert found["planning_seconds"] == 7


def test_control_characters_of_file_are_escaped(folder):
    said = netsor("check", "mine.py:steered", cwd=folder).stderr
    assert len(said) < 3000
    assert said[:-1].isprintable()
    for words in (
        ("plan", "mine.py:named", "--bind", "n=8"),
        ("check", "mine.py:named"),
    ):
        shown = netsor(*words, cwd=folder).stdout
        assert r"\x1b[31mred" in shown
        assert "\x1b" not in shown


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipe_as_program_is_rejected(folder):
    os.mkfifo(folder / "pipe.py")
    result = netsor("check", "pipe.py:x", cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert (
        "FILE 'pipe.py' cannot be imported: it is a folder, a device or a pipe"
        in result.stderr
    )


def test_law_of_entry_of_tuple_output(tmp_path):
    tmp_path.joinpath("two.py").write_text(
        "import netsor as ns\n"
        "x = ns.gaussian(ns.Width('n'), 2)\n"
        "two = ns.Program((ns.mean_dot(x[0], x[1]), ns.mean_dot(x, x)[0]))\n"
    )
    words = ("--bind", "n=8", "--draws", "100")
    assert (
        "choose one, two.py:two[1,0]"
        in netsor("law", "two.py:two[1]", *words, cwd=tmp_path).stderr
    )
    assert netsor("law", "two.py:two[1,0]", *words, cwd=tmp_path).returncode == 0
    assert (
        "has no such part"
        in netsor("law", "two.py:two[1,2]", *words, cwd=tmp_path).stderr
    )


CONFIGURED = """
class NetConfig:
    sizes = 3

class Net:
    def __init__(self, config):
        self.sizes = config.sizes
"""


def test_a_configuration_is_named_by_whole_words(tmp_path):
    """The name of Attention ends in n, and SecondConfig is another name of a class."""
    (tmp_path / "net.py").write_text(
        "class Attention: pass\n"
        "class ModelConfig: pass\n"
        "SecondModelConfig = ModelConfig\n"
        "def narrow(n): pass\n"
        "def configured(model_config): pass\n"
    )
    remedies = {"narrow": "n=…", "configured": '"model_config=ModelConfig()"'}
    for function, remedy in remedies.items():
        result = netsor("check", f"net.py:{function}", cwd=tmp_path)
        assert result.stderr.rstrip().endswith(f"pass it: --arg {remedy}")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([], 'pass it: --arg "config=NetConfig()"'),
        (
            ["--arg", "config=NetConfig"],
            "config is the word 'NetConfig': did you mean --arg \"config=NetConfig()\"?",
        ),
    ],
)
def test_a_missing_configuration_has_a_remedy(tmp_path, arguments, remedy):
    (tmp_path / "net.py").write_text(CONFIGURED)
    result = netsor("check", "net.py:Net", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.rstrip().endswith(remedy)
