"""netsor audit on the command line: its contract, its errors, its signals. No test depends on the clock."""

import json
import os
import signal
import subprocess
import sys
from functools import lru_cache

import pytest

from netsor.cli import _cost
from netsor.engine import NoLimitError
from netsor.models import Probes
from netsor.studies.audit import _audit, _draw, _request
from netsor.studies.audit._quantities import BLOCKS

from .command import netsor
from .inline import Inline
from .studies.paper.test_processes import HANG, Running

CONFIG = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 30}
SMALL = ["audit", "tiny.json", "--tokens", "3", "--draws", "40"]
POSIX = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr(_audit, "Workers", Inline)
    return tmp_path


def test_json_is_the_contract(folder):
    result = netsor(*SMALL, "--json", cwd=folder)
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert {"model", "status", "layers", "final", "findings", "random_numbers", "seconds"} <= found.keys()
    assert (found["model"], found["status"], len(found["layers"])) == ("tiny", "exact", 2)
    for layer in (*found["layers"], found["final"], *found["limit"]["layers"]):
        for name, three in layer.items():
            assert three.keys() == {"median", "low", "high"}, name
            assert three["low"] <= three["median"] <= three["high"]
    assert found["final"].keys() == {"logit_std", "loss", "max_probability"}
    for finding in found["findings"]:
        assert {"rule", "measured", "verdict"} <= finding.keys()
    assert found["random_numbers"] > 0
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.json"]  # no --out: nothing is written


def test_the_cost_is_told_first(folder):
    result = netsor(*SMALL, cwd=folder)
    assert result.stderr.startswith("netsor: tiny: 40 draws from ")
    assert "less than a second" in result.stderr
    assert "growth: " in result.stdout


def test_a_second_model_or_the_same_otherwise(folder):
    (folder / "other.json").write_text(json.dumps({**CONFIG, "n_layer": 3}))
    lines = {
        ("--compare", "other.json"): ("tiny", "other"),
        ("--compare-set", "std=0.3"): ("tiny", "tiny, std=0.3"),
        ("--set", "qk_norm=true", "--compare-set", "std=0.3"): ("tiny, qk_norm=true", "tiny, qk_norm=true, std=0.3"),
        ("--compare", "other.json", "--compare-set", "std=0.3"): ("tiny", "other, std=0.3"),
        ("--set", "std=0.3", "--compare", "tiny.json"): ("tiny, std=0.3", "tiny"),
    }
    squares = {}
    for words, names in lines.items():
        found = json.loads(netsor(*SMALL, "--widths", "actual", "--json", *words, cwd=folder).stdout)
        assert (found["model"], found["compare"]["model"]) == names
        for each in (found, found["compare"]):
            squares.setdefault(each["model"], set()).add(each["layers"][0]["mean_square"]["median"])
    assert all(len(values) == 1 for values in squares.values())  # one model, one law, wherever it stands
    assert len({*map(max, squares.values())}) == len(squares) - 1  # but for QK-norm, which the first squares hardly see


def test_ids_are_the_tokens(folder):
    repeated = json.loads(
        netsor("audit", "tiny.json", "--ids", "3,7,7,1", "--draws", "40", "--json", cwd=folder).stdout
    )
    assert repeated["tokens"] == 4


def test_out_has_the_report_and_goes_on(folder, monkeypatch):
    monkeypatch.setattr(_draw, "BLOCKS", BLOCKS[:1])  # pictures take most of the time
    words = [*SMALL, "--out", "out", "--set", "std=0.1"]
    first = netsor(*words, cwd=folder)
    assert first.stdout.rstrip().endswith("report: out/report.html")
    again = netsor(*words, cwd=folder)
    assert again.stdout == first.stdout
    command = json.loads((folder / "out" / "manifest.json").read_text())["command"]
    assert command == ("netsor audit tiny.json --set std=0.1 --draws 40 --widths both --tokens 3 --seed 0 --out out")
    before = (folder / "out" / "audit.csv").read_bytes()
    assert netsor(*command.split()[1:], cwd=folder).returncode == 0
    assert (folder / "out" / "audit.csv").read_bytes() == before


BAD = {
    ("nothing",): "MODEL 'nothing': model 'nothing' is no file",
    ("tiny.json", "--set", "stdd=1"): "--set 'stdd=1': stdd is no field",
    ("tiny.json", "--set", "layers=x"): "--set 'layers=x': layers='x'",
    ("tiny.json", "--set", "layers"): "--set 'layers': 'layers' must be written field=value",
    ("tiny.json", "--compare-set", "std=-1"): "--compare-set 'std=-1': std=-1",
    ("tiny.json", "--compare", "gpt5"): "--compare 'gpt5': model 'gpt5' is no file",
    ("tiny.json", "--tokens", "17"): "--tokens=17 must be an integer from 1 to 16",
    ("tiny.json", "--tokens", "1"): "--tokens=1: quantities of an audit need two tokens or more",
    ("tiny.json", "--ids", "1,x"): "--ids '1,x' must be whole numbers",
    ("tiny.json", "--ids", "1,99"): "--ids=99 must be an integer from 0 to 29",
    ("tiny.json", "--ids", "1,2", "--tokens", "2"): "--ids and --tokens exclude each other",
    ("tiny.json", "--draws", "9"): "Invalid value for '--draws': '9' must be an integer, 10 or more",
    ("tiny.json", "--draws", "1000000000000"): "--draws=1000000000000 would need",
    ("tiny.json", "--out", "tiny.json"): "--out 'tiny.json' must be a folder that can be written to",
    ("tiny.json", "--out", "theirs"): "--out='theirs' holds a report.html that is not of an earlier run",
    ("tiny.json", "--set", "std=1e300"): "must be a finite number, 0 or from 1e-50 to 1e+50",
    ("text.json",): "is no JSON",
    ("list.json",): "must hold an object",
    ("llama-3-8b", "--tokens", "1000000"): "--tokens=1000000",
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_and_no_file(words, folder):
    (folder / "theirs").mkdir()
    (folder / "theirs" / "report.html").write_text("mine")
    (folder / "text.json").write_text("{")
    (folder / "list.json").write_text("[]")
    before = sorted(folder.rglob("*"))
    given = () if {"--tokens", "--ids"} & {*words} else ("--tokens", "3")
    result = netsor("audit", *words, *given, cwd=folder)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("netsor: ")
    assert BAD[words] in result.stderr
    assert " (at " not in result.stderr  # no line of ours
    assert result.stdout == ""
    assert sorted(folder.rglob("*")) == before


def test_what_would_take_too_long_is_refused(folder, monkeypatch):
    monkeypatch.setattr(_cost, "LONGEST", 1.0)
    result = netsor(*SMALL[:-1], "1000000", cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("netsor: --draws 1000000 of 3 tokens would take about")


def test_a_limit_that_cannot_be_done_is_told(folder, monkeypatch):
    """With both widths the model's own go on; asked for alone, it is an error."""
    made = Probes.plan

    def refuses(self, **widths):
        if widths["n"] == float("inf"):
            raise NoLimitError("the scores diverge")
        return made(self, **widths)

    monkeypatch.setattr(Probes, "plan", refuses)
    monkeypatch.setattr(_request, "_plan", lru_cache(_request._plan.__wrapped__))
    found = json.loads(netsor(*SMALL, "--json", cwd=folder).stdout)
    assert (found["limit"], found["no_limit"], len(found["layers"])) == (None, "the scores diverge", 2)
    assert "no limit: the scores diverge" in netsor(*SMALL, cwd=folder).stdout
    alone = netsor(*SMALL, "--widths", "inf", cwd=folder)
    assert (alone.returncode, alone.stderr) == (2, "netsor: the scores diverge\n")


@POSIX
@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupt_keeps_what_is_done(kept, tmp_path):
    """An endless audit, so that it is the signal that ends it, and nothing is left running."""
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    words = ["--tokens", "3", "--draws", "400000", "--widths", "actual", "--workers", "2"]
    command = [sys.executable, "-m", "netsor", "audit", "tiny.json", *words, *(["--out", "out"] if kept else [])]
    with Running(command, cwd=tmp_path, stdout=subprocess.PIPE) as run:
        run.stderr.readline()  # what it will take
        if kept:
            run.until(lambda: len(list((tmp_path / "out" / "parts").glob("*.npz"))) > 0)
        run.send_signal(signal.SIGINT)
        out, error = run.communicate(timeout=HANG)
        assert run.returncode == 130
        assert out == ""
        said = "finished draws are kept" if kept else "nothing was kept"
        assert f"netsor: interrupted; {said}" in error.splitlines()[-1]
        assert "Traceback" not in error
        run.gone()
    assert not (tmp_path / "out" / "report.html").exists()
