"""netsor transfer on the command line: its contract, its errors, and what it leaves in
a folder.
"""

import csv
import json

import pytest

from tests.internals import _process_pool

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
    "transfer",
    "tiny.json",
    "--widths",
    "16,32",
    "--draws",
    "4",
    "--tokens",
    "2",
    "--steps",
    "1",
    "--lr",
    "0.02,0.08,0.32,1.28",
]
MINE = """
import netsor as ns

@ns.program
def net(n):
    h = ns.weight(n, 2, name="in") @ ns.data([[1.0, 0.5]])
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - 1.0) ** 2).mean()

def text(n):
    return "no program"

maximal = ns.optim.SGD(lambda fan_in, fan_out: fan_out)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    return tmp_path


def test_transfer_json_has_documented_fields(folder):
    result = netsor(*SMALL, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["model"], found["steps"], found["optimiser"], found["draws"]) == (
        "tiny",
        1,
        "sgd",
        4,
    )
    assert len(found["ids"]) == len(found["targets"]) == 2
    assert [sweep["parametrisation"] for sweep in found["sweeps"]] == ["sp", "mup"]
    for sweep in found["sweeps"]:
        assert [each["width"] for each in sweep["widths"]] == [16, 32]
        assert all(each["lr"] == [0.02, 0.08, 0.32, 1.28] for each in sweep["widths"])
        assert all(len(each["loss"]) == 4 for each in sweep["widths"])
        assert [each["from"] for each in sweep["exponents"]] == [16]
        assert all(
            each["low"] <= each["value"] <= each["high"] for each in sweep["exponents"]
        )
    first, second = (sweep["widths"][0]["loss"] for sweep in found["sweeps"])
    # at the width of the model both are the model
    assert first[0] == pytest.approx(second[0])
    # no --out: nothing is written
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py", "tiny.json"]


@pytest.mark.slow
def test_transfer_prints_table_and_writes_folder(folder):
    run = [*SMALL, "--out", "out", "--parametrisation", "mup", "--verbose"]
    result = netsor(*run, cwd=folder)
    assert result.returncode == 0, result.stderr
    # the cost
    assert "4 learning rates, 4 draws at widths 16, 32; about" in " ".join(
        result.stderr.split()
    )
    assert result.stdout.startswith("tiny: mup ")
    for words in (
        "Loss after one step of sgd, 2 tokens",
        "Best learning rates",
        "n = 32",
        "How verdicts are reached",
    ):
        assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    names = {
        "report.html",
        "transfer.csv",
        "transfer.json",
        "transfer.pdf",
        "transfer.png",
        "manifest.json",
    }
    assert names <= {path.name for path in (folder / "out").iterdir()}
    rows = list(
        csv.DictReader((folder / "out" / "transfer.csv").read_text().splitlines())
    )
    assert [(row["width"], row["lr"]) for row in rows[3:5]] == [
        ("16", "1.28"),
        ("32", "0.02"),
    ]
    assert "<svg" in (folder / "out" / "report.html").read_text()
    assert (
        "--parametrisation mup"
        in json.loads((folder / "out" / "manifest.json").read_text())["command"]
    )
    parts = {
        path: path.stat().st_mtime_ns for path in (folder / "out" / "parts").iterdir()
    }
    assert len(parts) == 2
    again = netsor(*run, cwd=folder)  # what is there is not drawn again
    assert again.stdout == result.stdout
    assert "Finished parts in --out are reused" in again.stderr
    assert {
        path: path.stat().st_mtime_ns for path in (folder / "out" / "parts").iterdir()
    } == parts


def test_transfer_of_function_of_width(folder):
    run = [
        "transfer",
        "mine.py:net",
        "--widths",
        "16,64,inf",
        "--steps",
        "1",
        "--lr",
        "0.1,0.2,0.4,0.8,1.6",
        "--json",
    ]
    result = netsor(*run, "--optimiser", "maximal", cwd=folder)
    assert result.returncode == 0, result.stderr
    (sweep,) = json.loads(result.stdout)["sweeps"]
    assert sweep["parametrisation"] == "program"
    assert [each["width"] for each in sweep["widths"]] == [16, 64, "inf"]
    limit = sweep["widths"][-1]
    assert limit["loss"] == pytest.approx(
        [(1 - 3.75 * lr) ** 2 for lr in limit["lr"]], rel=1e-6
    )  # |x|² + |x|²/2 = 1.875
    assert all(
        each["best"]["low"] < 1 / 3.75 < each["best"]["high"]
        for each in sweep["widths"]
    )


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("tiny.json", ["--lr", "0"], "--lr 0 must be three or more positive numbers"),
        (
            "tiny.json",
            ["--lr", "fast"],
            "'--lr': 'fast' must be numbers with commas between",
        ),
        ("tiny.json", ["--lr", "0.1,1,10"], "must be at most a factor of 4 apart"),
        ("tiny.json", ["--widths", "16"], "--widths 16 must be two or more"),
        (
            "tiny.json",
            ["--widths", "16,20"],
            "--widths 20 must be a multiple of 8 for tiny",
        ),
        ("tiny.json", ["--widths", "16,32,inf"], "must be finite for tiny"),
        (
            "tiny.json",
            ["--optimiser", "lamb"],
            "--optimiser 'lamb' must be 'sgd', 'muon', 'adam' or 'lion'",
        ),
        ("tiny.json", ["--tokens", "17"], "must be at most 16"),
        (
            "mine.py:net",
            ["--optimiser", "lamb"],
            "'lamb' must be sgd, muon, adam, lion, or the name of one in FILE",
        ),
        ("mine.py:net", ["--ids", "1,2"], "--ids 1,2 must be left out"),
        ("mine.py:net", ["--set", "layers=1"], "--set is for models"),
        ("mine.py:net", ["--parametrisation", "mup"], "must be left out"),
        ("mine.py:text", [], "that returns a Program"),
    ],
)
def test_transfer_bad_options_end_in_one_line(folder, model, options, said):
    result = netsor("transfer", model, *options, cwd=folder)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
