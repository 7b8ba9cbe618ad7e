"""Generated command lines, with the contract as the oracle.

Exit code 0 with a finite, sane answer, or exit code 2 with one line; no other file is
touched.
"""

import json
import math
import os
import random
from types import SimpleNamespace

import pytest

from tests.internals import AuditRequest as Request
from tests.internals import Folder, _process_pool, _reproduce, _subject

from .command import netsor
from .inline import Inline

TINY = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 20,
}

PROGRAMS = """
import sys
import numpy as np
import netsor as ns
n, d = ns.Width("n"), ns.Width("d")
print("a file may print")

@ns.program
def layer(heads=2, tokens=2):
    return ns.nn.attention(ns.tanh(ns.gaussian(n, tokens)), heads, head_dim=d)

@ns.program
def linear():
    return ns.weight(n, n) @ ns.gaussian(n)

@ns.program
def fixed():
    return ns.weight(3, 4) @ ns.relu(ns.gaussian(4))

@ns.program
def pair():
    x, w = ns.gaussian(n), ns.weight(n, n)
    return w @ x, ns.mean_dot(x, x)

@ns.program
def infinite():
    return ns.weight(n, n) @ ns.nonlin(lambda x: x * np.inf, ns.gaussian(n))

@ns.program
def fails():
    def f(x):
        if x.size > 50:
            raise KeyError("in a function")
        return x
    return ns.weight(n, n) @ ns.nonlin(f, ns.gaussian(n))

@ns.program
def tied():
    x, w = ns.gaussian(n), ns.weight(n, n)
    return ns.dot(w @ x, w @ x)

@ns.program
def zero():
    x = ns.gaussian(n)
    return ns.weight(n, n) @ (x - x)

constant = ns.Program(ns.ones(n))
steered = ns.Program(ns.ones(n), "\x1b[2J")
built = linear()
number = 3
nothing = None

def leaves():
    sys.exit("bye")

def loops():
    return loops()
"""

HUGE = [
    "9" * 400,
    "1" + "0" * 30,
    "1e200",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "",
    " ",
    "x",
    "1.5",
    "0x10",
    "é",
    "1e-320",
]
HUGE += [
    "9007199254740991",
    "1000000000000",
    "٣",
    "True",
    "[]",
    "--",
    "\udcff",
    "a\nb",
    "²",
]
NUMBERS = {
    "--width": ["1", "2", "8", "33", "inf", "1000000000000"],
    "--heads": ["1", "2", "7", "1000000000"],
    "--tokens": ["1", "2", "5", "100000"],
    "--token": ["1", "2", "6"],
    "--head-dim": ["1", "2", "8", "inf"],
    "--activation": ["clip", "relu", "erf", "tanh", "gelu", "identity", "swish"],
    "--clip": ["100", "1", "1e-8", "1e8", "1e-200"],
    "--scaling": ["sqrt", "linear", "both"],
    "--mask": ["causal", "none"],
    "--sigma-q": ["1", "0", "1e-8", "1e8", "1e200"],
    "--sigma-k": ["1", "0", "3"],
    "--sigma-v": ["1", "1e-8", "1e8", "0"],
    "--sigma-o": ["1", "1e-8", "1e8", "1e-300"],
    "--sigma-w": ["1", "1e-8", "1e8"],
    "--draws": ["100", "101", "250", "99", "1000000000000"],
    "--seed": ["0", "7", str(2**127), str(2**128)],
}
FLAGS = ["--infinite-heads", "--json", "--no-such-option", "-h"]
TARGETS = [
    "mine.py:" + name
    for name in (
        "layer",
        "layer[0]",
        "layer[9]",
        "layer[-1]",
        "linear",
        "fixed",
        "pair",
        "pair[1]",
        "infinite",
        "fails",
        "tied",
        "constant",
        "built",
        "zero",
        "steered",
        "number",
        "nothing",
        "leaves",
        "loops",
        "absent",
        "1",
        "",
    )
] + ["mine:linear", "none.py:x", "none:x", ":", "x", "..:x", "a.b:c", "/:x", "mine.py"]
BINDS = [
    "n=4",
    "n=16",
    "n=inf",
    "d=2",
    "d=inf",
    "n=0",
    "n",
    "=",
    "n=x",
    "m=4",
    "n=1e3",
    "n=" + "9" * 400,
]
ARGS = [
    "heads=2",
    "heads=0",
    "heads='x'",
    "tokens=3",
    "tokens=[",
    "other=1",
    "=",
    "heads",
]
PLOTS = [
    "p.png",
    "p.pdf",
    "p.svg",
    "p.gif",
    "no/p.png",
    "",
    ".",
    "\udcff.png",
    "dir.png",
    "/proc/p.png",
]
POINTS = ["0", "1", "-2.5", "1e300", "-1e300", "1e-300", "nan", "x"]

MODELS = [
    "none.json",
    "mine.py",
    "theirs",
    "",
    "\udcff",
    "a\0b",
    "/dev/zero",
    "pipe.json",
    "loop.json",
    "a" * 300,
]
MODELS += ["nested.json", "twice.json", "escape.json"]
AUDIT = {
    "--set": [
        "std=0.1",
        "layers=1",
        "width=8",
        "width=0",
        "layers=99999",
        "std=x",
        "std=1e-300",
        "vocabulary=1",
        "qk_norm=true",
        "heads=3",
        "=",
        "x=1",
    ],
    "--compare": ["tiny.json", "gpt5", "file", "", "theirs"],
    "--compare-set": [
        "std=0.3",
        "causal=false",
        "std=1e300",
        "vocabulary=none",
        "vocabulary=5",
        "order=post",
    ],
    "--tokens": ["2", "3", "16", "17", "1", "1000000", "2,5", "5,5", "3,x"],
    "--sweep": [
        "std=0.1,0.2",
        "layers=1,2",
        "std=1",
        "norm=rms,layer",
        "=",
        "heads=1,3",
        "std=0.1,1e300",
    ],
    "--baseline": ["tiny.json", "file", "", "theirs", "old.json"],
    "--fail-on": ["growth", "entropy,loss", "limit", "scores", "x", ""],
    "--ids": ["3,1", "3,7,7,1", "0,0", "1", "1,x", "1,99", ",", "-1,2"],
    "--draws": ["15", "20", "14", "1000000000"],
    "--widths": ["actual", "inf", "both", "none"],
    "--seed": ["0", "7", str(2**128)],
    "--workers": ["1", "2", "1024", "2000"],
    "--out": ["out", "", "file", "file/out", "theirs", "\udcff"],
}


def audit_line(random):
    """An audit of a small model."""
    words = ["audit", random.choice(["tiny.json"] * 12 + MODELS)]
    if random.random() < 0.8:
        words += ["--draws", "15"]
    for option in random.sample(sorted(AUDIT), random.randint(0, 3)):
        words += [option, value(random, AUDIT[option])]
    return words + ["--json"] * (random.random() < 0.6)


def line(random):
    """A command line: mostly right, with a wrong value or two."""
    command = random.choice(
        ["law"] * 5 + ["compare"] * 3 + ["check"] * 2 + ["reproduce"] + ["audit"] * 2
    )
    if command == "audit":
        return audit_line(random)
    words = [command]
    if command == "reproduce":
        words += random.sample(
            ["1b", "2a", "all", "exp1", "6a", "", "5"], random.randint(0, 2)
        )
        pools = {
            "--samples": ["100", "99", "1000000000000000"],
            "--trials": ["1", "2", "10000", "10001"],
            "--workers": ["1", "1024", "10000"],
            "--tokens": ["1", "5000", "100000"],
            "--seed": ["0", "3"],
            "--estimator": ["paper", "exact", "best"],
            "--out": ["out", "", "file", "file/out", "theirs", "\udcff"],
        }
        for option in random.sample(sorted(pools), random.randint(0, 3)):
            words += [option, value(random, pools[option])]
        return words + ["--quick"] * random.randint(0, 1)
    own = command == "check" or random.random() < 0.35
    if own:
        words.append(random.choice(TARGETS))
        words += [
            word
            for _ in range(random.randint(0, 2))
            for word in ("--arg", random.choice(ARGS))
        ]
        if command != "check":
            words += ["--draws", "150"]
            words += [
                word
                for _ in range(random.randint(0, 3))
                for word in ("--bind", random.choice(BINDS))
            ]
    if not own or random.random() < 0.1:
        if random.random() < 0.9:
            words += ["--width", random.choice(["2", "8", "33"]), "--draws", "150"]
        for option in random.sample(sorted(NUMBERS), random.randint(0, 4)):
            words += [option, value(random, NUMBERS[option])]
    if command == "law":
        words += [
            word
            for _ in range(random.randint(0, 2))
            for word in ("--at", random.choice(POINTS))
        ]
    if command != "check" and random.random() < 0.1:
        words += ["--plot", random.choice(PLOTS)]
    words += ["--json"] * (random.random() < 0.5)
    return words + [random.choice(FLAGS)] * (random.random() < 0.1)


def value(random, pool):
    return random.choice(HUGE) if random.random() < 0.1 else random.choice(pool)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with programs and somebody's files; no command may take long, and none
    reproduces anything.
    """
    (tmp_path / "mine.py").write_text(PROGRAMS)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "report.html").write_text("mine")
    (tmp_path / "dir.png").mkdir()
    (tmp_path / "nested.json").write_text("[" * 100_000)
    (tmp_path / "twice.json").write_text('{"n_embd": 8, "n_embd": 16}')
    (tmp_path / "escape.json").write_text(json.dumps({**TINY, "\x1b[2J": "\a"}))
    (tmp_path / "loop.json").symlink_to("loop.json")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
    monkeypatch.setattr(_subject, "LONGEST", 3.0)
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    real = Folder.prepare

    def prepare(folder, names):
        if folder.command == Request.command:
            return real(folder, names)
        return folder._refuse_foreign(names, folder._manifest())  # and make no folder

    def reproduced(study, executor=None):
        return SimpleNamespace(
            report=study.request.out / "report.html", summary=("one", "two", "three")
        )

    monkeypatch.setattr(_process_pool, "Workers", Inline)
    monkeypatch.setattr(Folder, "prepare", prepare)
    monkeypatch.setattr(_reproduce.PaperStudy, "run", reproduced)
    return tmp_path


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def constant(text):
    raise AssertionError(f"{text} is not JSON")


def sane(command, found):
    """The answer is one that can be."""
    if command == "law":
        assert found["variance"] >= 0
        spread = found["excess_kurtosis_error"]
        assert spread is None or found["excess_kurtosis"] > -2 - 10 * spread - 1e-9
        for row in found["pdf"]:
            assert row["value"] >= -(row["error"] or 0)
        for row in found["cdf"]:
            assert (
                -(row["error"] or 0) - 1e-12
                <= row["value"]
                <= 1 + (row["error"] or 0) + 1e-12
            )
        assert found["status"] in ("proved", "exact", "conjectured")
        assert found["random_numbers"] >= 0
    elif command == "compare":
        for name in ("kl", "total_variation", "wasserstein1", "kolmogorov"):
            assert (
                found[name]["value"] >= -8 * (found[name]["error"] or math.inf) - 1e-9
            )
        assert found["total_variation"]["value"] <= 1 + 1e-6
        assert found["kolmogorov"]["value"] <= 1 + 1e-6
    elif command == "audit":
        assert found["status"] in ("exact", "conjectured")
        for layer in found["layers"]:
            assert all(
                three["low"] <= three["median"] <= three["high"]
                for three in layer.values()
            )
            assert 0 <= layer["entropy"]["low"] <= layer["entropy"]["high"] <= 1 + 1e-9
            assert (
                -1 - 1e-9
                <= layer["cosine"]["low"]
                <= layer["cosine"]["high"]
                <= 1 + 1e-9
            )
            # of medians
            assert (
                layer["attention_share"]["median"] + layer["mlp_share"]["median"] <= 1.1
            )
        assert all(
            f["verdict"] in ("FLAG", "ok", "undecided", "n/a")
            for f in found["findings"]
        )
    elif command == "check":
        assert found["verdict"] in ("proved", "conjectured", "no limit")


def examine(folder, words):
    before = files(folder)
    result = netsor(*words, cwd=folder)
    said = result.stderr.splitlines()
    assert "\x1b" not in result.stdout + result.stderr
    added = {
        name for name, content in files(folder).items() if before.get(name) != content
    }
    if result.returncode == 2:
        said = (
            [text for text in said if text != "a file may print"]
            if "--json" in words
            else said
        )
        assert len(said) == 1, result.stderr
        assert said[0].startswith("netsor: ")
        assert result.stdout in ("", "a file may print\n")
        assert not added
        return 2
    failed = {"--fail-on", "--baseline"} & set(words) and result.returncode == 3
    assert (
        result.returncode == 0
        or failed
        or (words[0] == "check" and result.returncode == 1)
    )
    assert result.stdout
    plots = {words[i + 1] for i, word in enumerate(words) if word == "--plot"}
    outs = (
        {words[i + 1] for i, word in enumerate(words) if word == "--out"}
        if words[0] == "audit"
        else set()
    )
    assert all(name in plots or name.partition("/")[0] in outs for name in added)
    for name in added:
        (folder / name).unlink()
    if "--json" in words and "-h" not in words:
        sane(words[0], json.loads(result.stdout, parse_constant=constant))
    return 0


def many(folder, seed, count):
    source = random.Random(seed)
    codes = []
    for _ in range(count):
        words = line(source)
        try:
            codes.append(examine(folder, words))
        except BaseException as error:
            error.add_note(f"netsor {words}")
            raise
    # it says something about both
    assert min(codes.count(0), codes.count(2)) > count / 20


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3, 4))]
)
def test_random_command_lines_end_in_one_line_or_output(seed, folder):
    # so many say something about both exit codes
    many(folder, seed, 20 if seed else 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_command_lines_end_in_one_line_or_output(seed, folder):
    many(folder, seed, 150)
