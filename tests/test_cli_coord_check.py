"""netsor coord-check on the command line: its contract, its errors, and what it leaves
in a folder.
"""

import csv
import json
import os
import re

import numpy as np
import pytest

import netsor as ns
from tests.internals import _process_pool, _training_report
from tests.internals import studies_study as _study

from .command import netsor
from .inline import Inline

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 12,
}
SMALL = [
    "coord-check",
    "tiny.json",
    "--widths",
    "16,32",
    "--draws",
    "4",
    "--tokens",
    "2",
]
MINE = """
import netsor as ns

@ns.program
def net(n):
    h = ns.probe("hidden", ns.weight(n, 2, name="in") @ ns.data([[1.0, 0.5]]))
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - 1.0) ** 2).mean()

@ns.program
def no_loss(n):
    return ns.probe("hidden", ns.weight(n, 2) @ ns.data([[1.0, 0.5]]))

def text(n):
    return "no program"

def triple(n):
    return net(n), 0.1, 0.2

def alone():
    return net(4)

def fails(n):
    raise RuntimeError("on purpose")

rates = {"in": lambda fan_in, out: 0.1 * out, "head": lambda fan_in, out: 0.1 * out}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "odd.toml").write_text("like = 3")
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    return tmp_path


def test_help_has_every_optimiser_and_its_learning_rate():
    """The help does not import numpy, and so repeats the names."""
    names: dict[float, list[str]] = {}
    for name, optimiser in ns.optim.NAMED.items():
        names.setdefault(optimiser.lr, []).append(name)
    rates = [f"{lr:g} for {' and '.join(same)}" for lr, same in names.items()]
    text = " ".join(netsor("coord-check", "--help").stdout.split())
    assert f"[default: {', '.join(rates)}]" in text
    *first, last = ns.optim.NAMED
    assert f"NAME {', '.join(first)} or {last};" in text


def test_coord_check_json_has_documented_fields(folder):
    result = netsor(*SMALL, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["model"], found["axis"], found["at"], found["draws"]) == (
        "tiny",
        "width",
        [16, 32],
        4,
    )
    assert len(found["ids"]) == len(found["targets"]) == 2
    assert [check["parametrisation"]["name"] for check in found["checks"]] == [
        "sp",
        "mup",
    ]
    for check in found["checks"]:
        assert set(check["verdicts"]) == {
            "embedding",
            "scores",
            "attention",
            "mlp",
            "stream",
            "final",
            "logits",
            "vocabulary",
            "loss",
        }
        for row in check["activations"]:
            assert row["verdict"] in (
                "as expected",
                "grows",
                "shrinks",
                "undecided",
                "not judged",
                "does not move",
            )
            assert len(row["sizes"]) == 2
            assert (
                row["exponent"]["low"]
                <= row["exponent"]["value"]
                <= row["exponent"]["high"]
            )
        assert {row["name"] for row in check["updates"]} == {
            "embedding",
            "position",
            "query",
            "key",
            "value",
            "output",
            "in",
            "out",
            "head",
        }
    assert sorted(path.name for path in folder.iterdir()) == [
        "mine.py",
        "odd.toml",
        "tiny.json",
    ]  # no --out: nothing is written


def test_coord_check_prints_table_and_writes_folder(folder, monkeypatch):
    run = [*SMALL, "--out", "out", "--parametrisation", "mup"]
    result = netsor(*run, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "about" in result.stderr  # the cost, before the work
    verdict = result.stdout.splitlines()[0]
    assert re.match(r"tiny\. mup: (all|\d+ of) \d+ exponents", verdict), verdict
    assert "head update" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    names = {
        "report.html",
        "coord-check.csv",
        "coord-check.json",
        "coord-check.pdf",
        "coord-check.png",
        "manifest.json",
    }
    assert names <= {path.name for path in (folder / "out").iterdir()}
    rows = list(
        csv.DictReader((folder / "out" / "coord-check.csv").read_text().splitlines())
    )
    assert {row["width"] for row in rows} == {"16", "32"}
    assert {row["what"] for row in rows} == {"size", "change", "update"}
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert "--parametrisation mup" in manifest["command"]
    page = (folder / "out" / "report.html").read_text()
    assert "<svg" in page
    assert "nothing grows or shrinks" in page or "Scale the learning rate" in page
    parts = {
        path: path.stat().st_mtime_ns for path in (folder / "out" / "parts").iterdir()
    }
    assert len(parts) == 2
    for module in (_study, _training_report):
        monkeypatch.setattr(
            module, "rendered", lambda figure, *kinds: [b"<svg/>"] * len(kinds)
        )
    again = netsor(*run, cwd=folder)  # what is there is not drawn again
    assert again.stdout == result.stdout
    assert {
        path: path.stat().st_mtime_ns for path in (folder / "out" / "parts").iterdir()
    } == parts
    spent = 0.0
    for path in parts:
        with np.load(path) as arrays:
            spent += float(arrays["seconds"])
    found = json.loads((folder / "out" / "coord-check.json").read_text())
    # of the first run, though the second had nothing to do
    assert found["seconds"] == pytest.approx(spent, abs=1e-3)


def test_coord_check_keeps_foreign_files(folder):
    (folder / "out").mkdir()
    (folder / "out" / "report.html").write_text("mine")
    result = netsor(*SMALL, "--out", "out", cwd=folder)
    assert result.returncode == 2
    assert "report.html" in result.stderr
    assert (folder / "out" / "report.html").read_text() == "mine"


def test_coord_check_of_function_of_width(folder):
    run = ["coord-check", "mine.py:net", "--widths", "64,512,inf", "--draws", "99"]
    result = netsor(*run, "--lr", "rates", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    (check,) = json.loads(result.stdout)["checks"]
    assert set(check["verdicts"]) == {"hidden", "loss"}
    assert check["verdicts"]["hidden"] == "as expected"
    assert check["limit"]
    result = netsor(*run, "--lr", "0.1", "--fail", cwd=folder)
    # one rate for all: what the step changes falls like 1/n
    assert result.returncode == 3
    assert "by n: " in result.stdout


def test_coord_check_fail_covers_weight_updates(folder):
    """The update of one matrix grows, by a rate so small that no activation shows
    it.
    """
    (folder / "wrong.toml").write_text('like = "mup"\noutput.lr = {width = 0.0}\n')
    run = [
        "coord-check",
        "tiny.json",
        "--widths",
        "16,64",
        "--draws",
        "8",
        "--tokens",
        "2",
        "--optimiser",
        "adam",
        "--lr",
        "output=1e-8",
        "--tolerance",
        "0.3",
        "--fail",
    ]
    result = netsor(*run, "--parametrisation", "wrong.toml", cwd=folder)
    assert result.returncode == 3
    assert "Scale the learning rate of output by 1/n: " in " ".join(
        result.stdout.split()
    )
    assert "not as expected: wrong (update of output)" in result.stderr
    result = netsor(*run, "--parametrisation", "mup", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "nothing grows or shrinks" in result.stdout


def test_coord_check_fail_covers_checks_that_decide_little(folder):
    """Four draws at neighbouring widths decide nothing: that is no pass."""
    run = [*SMALL, "--parametrisation", "mup", "--fail"]
    result = netsor(*run, "--json", cwd=folder)
    assert result.returncode == 3
    assert "mostly undecided: mup (" in result.stderr
    (check,) = json.loads(result.stdout)["checks"]
    assert check["status"] == "undecided"
    assert check["is_mostly_undecided"]
    judged = len(check["undecided"])
    printed = netsor(*run, cwd=folder)
    counts = f"mup: {judged} of {judged} exponents undecided, none flagged"
    assert counts in printed.stdout.splitlines()[0]


@pytest.mark.slow
def test_coord_check_reads_parametrisation_file(folder):
    (folder / "mine.toml").write_text(
        'like = "mup"\n[logits]\nwidth = -0.5\n[embedding]\nlr = {width = 0.5}\n'
    )
    result = netsor(
        *SMALL,
        "--parametrisation",
        "mine.toml",
        "--parametrisation",
        "mup",
        "--json",
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    first, second = json.loads(result.stdout)["checks"]
    assert first["parametrisation"]["name"] == "mine"
    assert first["parametrisation"]["logits"]["width"] == -0.5
    assert first["parametrisation"]["embedding"]["lr"]["width"] == 0.5
    assert second["parametrisation"]["embedding"]["lr"]["width"] == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--widths", "16,x"], "'--widths': '16,x' must be whole numbers"),
        (["--widths", "16"], "--widths 16 must be two or more"),
        (["--widths", "16,20"], "--widths 20 must be a multiple of 8 for tiny"),
        (["--widths", "16,9007199254740992"], "(below 2^53)"),
        (["--widths", "16,inf"], "must be finite"),
        (
            ["--widths", "16,32", "--depths", "1,2"],
            "one of them must be a single number",
        ),
        (
            ["--parametrisation", "mut"],
            "must be one of fixed, sp, ntk, mup, mean-field",
        ),
        (
            ["--parametrisation", "none.toml"],
            "must be a valid .json or .toml file: No such file",
        ),
        (
            ["--parametrisation", "odd.toml"],
            "must be a valid .json or .toml file: like=3 of a parametrisation",
        ),
        (["--set", "heads=0"], "--set heads=0 must be"),
        (["--lr", "fast"], "--lr 'fast' must be a number"),
        (
            ["--lr", "heads=1"],
            "--lr 'heads' must be for one of the kinds of weights embedding",
        ),
        (["--lr", "-1"], "must be a finite number from 0 to 1e+12"),
        (["--ids", "3"], "--ids 3 must be two or more"),
        (["--tokens", "1.5"], "'--tokens': '1.5' must be a positive integer"),
        (["--ids", "3,99"], "below the vocabulary of 12"),
        (["--targets", "3,1"], "must be left out without ids"),
        (["--tokens", "17"], "must be at most 16"),
        (["--draws", "3"], "must be an integer, 4 or more"),
        (["--tolerance", "0"], "must be a positive number"),
        (["--set", "n=3"], "is not a field"),
    ],
)
def test_coord_check_bad_options_end_in_one_line(folder, options, said):
    # an option may be given only once, and --ids replace --tokens
    replaced = {*options, "--tokens"} if "--ids" in options else set(options)
    command, model, *pairs = SMALL
    kept = [
        word
        for name, value in zip(pairs[::2], pairs[1::2], strict=True)
        if name not in replaced
        for word in (name, value)
    ]
    result = netsor(command, model, *kept, *options, cwd=folder)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["mine.py:net"], "--lr must be given"),
        (["mine.py:net", "--lr", "none"], "must be a number, or the name of rates"),
        (
            ["mine.py:net", "--lr", "nan"],
            "--lr nan must be a finite number from 0 to 1e+12",
        ),
        (
            ["mine.py:net", "--lr", "1e99"],
            "--lr 1e+99 must be a finite number from 0 to 1e+12",
        ),
        (
            ["mine.py:net", "--lr", "1", "--widths", "8,inf"],
            "--widths 8 must be two or more that are finite",
        ),
        (
            ["mine.py:net", "--lr", "1", "--parametrisation", "mup"],
            "must be left out: ",
        ),
        (["mine.py:net", "--lr", "1", "--ids", "1,2"], "must be left out: "),
        (["mine.py:no_loss", "--lr", "1", "--widths", "4,8"], "must return its loss"),
        (
            ["mine.py:alone", "--lr", "1"],
            "MODEL 'alone' must be a function of the width alone: too many positional",
        ),
        (
            ["mine.py:fails", "--lr", "1"],
            "FILE:PROGRAM failed: RuntimeError: on purpose",
        ),
        (["", "--lr", "1"], "MODEL '' must be the name of a model, or a file"),
        (
            ["mine.py:text", "--lr", "1", "--widths", "4,8"],
            "that returns a Program, not",
        ),
        (
            ["mine.py:triple", "--lr", "1", "--widths", "4,8"],
            "that returns a Program, not (",
        ),
        (["gpt3"], "must be the path of a file"),
    ],
)
def test_coord_check_bad_models_end_in_one_line(folder, options, said):
    result = netsor("coord-check", *options, cwd=folder)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"query": {"lr": {"width": ' + "1" * 400 + "}}}"),
        ("a.toml", "query.lr.width = " + "1" * 400),
        ("a.json", '{"name": "\\ud800"}'),
        ("a.toml", ".".join("a" * 50_000) + " = 1"),
        ("a.toml", ".".join("a" * 20_000) + " = 1"),
        ("a.json", '{"name": "a", "name": "b"}'),
        ("a.json", None),
        ("a.toml", None),
    ],
)
def test_malformed_parametrisation_file_is_rejected(name, text, folder):
    if text is not None:
        (folder / name).write_text(text)
    elif hasattr(os, "mkfifo"):
        os.mkfifo(folder / name)
    result = netsor(*SMALL, "--parametrisation", name, "--out", "out", cwd=folder)
    assert result.returncode == 2
    assert result.stderr.startswith(f"netsor: --parametrisation '{name}' ")
    assert result.stderr.count("\n") == 1
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_model_name_with_dollar_is_printed(folder):
    """Matplotlib would take it for TeX, after all the work."""
    (folder / "a.json").write_text(json.dumps({"name": r"$\foo$"}))
    result = netsor(*SMALL, "--parametrisation", "a.json", "--out", "out", cwd=folder)
    assert (result.returncode, (folder / "out" / "report.html").exists()) == (0, True)
