"""netsor audit on the command line: its contract, its errors, its signals. No test depends on the clock."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from functools import lru_cache

import pytest

from netsor.cli import _cost
from netsor.engine import NoLimitError, _montecarlo
from netsor.models import Probes, read
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


def test_gradients_are_in_the_layers(folder):
    result = netsor(*SMALL, "--gradients", "--widths", "actual", "--json", cwd=folder)
    found = json.loads(result.stdout)
    names = {"grad_mean_square", *(f"grad_{kind}" for kind in ("query", "key", "value", "output", "in", "out"))}
    for layer in found["layers"]:
        assert names <= layer.keys()
        assert all(0 < layer[name]["low"] <= layer[name]["median"] <= layer[name]["high"] for name in names)
    assert {"grad_input", "grad_embedding", "grad_embedding_ratio"} <= found["final"].keys()
    assert {"vanishing", "exploding", "scores", "dominance"} <= {finding["name"] for finding in found["findings"]}


def test_the_cost_is_told_first(folder):
    result = netsor(*SMALL, cwd=folder)
    assert result.stderr.startswith("netsor: tiny: 40 draws from ")
    assert int(re.search(r"about (\d+) s", result.stderr)[1]) >= 1  # workers begin, and plan what this process planned
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
    assert command == (
        "netsor audit tiny.json --set std=0.1 --draws 40 --widths both --tokens 3 --no-gradients --seed 0 --out out"
    )
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
    ("tiny.json", "--ids", "1,2," * 5000 + "1"): "--ids=(1, 2, 1, 2, 1, 2, ...) are 10001 tokens, and tiny",
    ("tiny.json", "--ids", "1,2", "--tokens", "2"): "--ids and --tokens exclude each other",
    ("tiny.json", "--draws", "9"): "Invalid value for '--draws': '9' must be an integer, 10 or more",
    ("tiny.json", "--draws", "1000000000000"): "--draws=1000000000000 would need",
    ("tiny.json", "--out", "tiny.json"): "--out 'tiny.json' must be a folder that can be written to",
    ("tiny.json", "--out", "theirs"): "--out='theirs' holds a report.html that is not of an earlier run",
    ("tiny.json", "--set", "std=1e300"): "--set 'std=1e300': std=1e+300 of a Transformer must be a finite number, 0 or",
    ("tiny.json", "--set", "std=1e-300"): "--set 'std=1e-300': std=1e-300 of a Transformer must be a finite number",
    ("tiny.json", "--set", "vocabulary=1"): "--tokens=3 must be at most 1: so many different ids",
    ("tiny.json", "--out", "a" * 300): "a' must be a folder that can be written to: File name too long\n",
    ("b" * 300,): "cannot be read (File name too long), and none of the models that ship",
    ("twice.json",): "MODEL 'twice.json': 'twice.json' has the field 'n_layer' twice",
    ("deep.json",): "MODEL 'deep.json': 'deep.json' is no configuration: its brackets are nested too deeply",
    ("escape.json",): r"'\x1b[2J'=1",
    ("/dev/zero",): "MODEL '/dev/zero': '/dev/zero' must be a file",
    ("llama-3-8b", "--set", "heads=1000000000", "--set", "head_dim=2", "--tokens", "2"): "1,000,000,000 heads, hid",
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
    (folder / "twice.json").write_text('{"n_layer": 1, "n_layer": 2}')
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "escape.json").write_text(json.dumps({**CONFIG, "\x1b[2J": 1}))
    before = sorted(folder.rglob("*"))
    given = () if {"--tokens", "--ids"} & {*words} else ("--tokens", "3")
    result = netsor("audit", *words, *given, cwd=folder)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("netsor: ")
    assert BAD[words] in result.stderr
    assert len(result.stderr) < 1000
    assert result.stderr[:-1].isprintable()
    assert " (at " not in result.stderr  # no line of ours
    assert result.stdout == ""
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def unplanned(monkeypatch):
    """A plan is begun, and that is told."""

    def begins(*_, **__):
        raise ValueError("a plan is begun")

    monkeypatch.setattr(Probes, "plan", begins)
    monkeypatch.setattr(_request, "_planned", lru_cache(_request._planned.__wrapped__))


def test_what_cannot_be_planned_is_refused_before_it_is_tried(unplanned, monkeypatch):
    """GPT-2 on 1,024 tokens: the covariances of its scores at infinite width, 12 blocks of 12 · 1,024² of them."""
    monkeypatch.setattr(_montecarlo, "memory", lambda: 2.0**34)
    result = netsor("audit", "gpt2", "--tokens", "1024")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("netsor: --tokens=1024 of gpt2 (width 768, 12 heads, hidden 3,072")
    assert "--widths actual" in result.stderr
    actual = netsor("audit", "gpt2", "--tokens", "1024", "--widths", "actual")
    assert actual.stderr.endswith("netsor: a plan is begun\n")


def test_a_long_plan_is_announced_before_it_is_begun(unplanned, monkeypatch):
    monkeypatch.setattr(_montecarlo, "memory", lambda: 2.0**40)
    heads = ("--set", "heads=1000000", "--set", "head_dim=64")
    for words in (("--tokens", "1024"), ("--tokens", "2", *heads)):
        first, second = netsor("audit", "gpt2", *words).stderr.splitlines()
        size = float(re.search(r"planning this takes about [\d.]+ (?:s|min|h) and ([\d.]+) GiB; Ctrl-C", first)[1])
        assert 4 < size < 100  # measured: 26 GiB for so many tokens, 7.9 GiB for two blocks of so many heads
        assert second == "netsor: a plan is begun"


def test_the_cost_counts_plans_and_workers(folder):
    request = _request.Request(read(str(folder / "tiny.json")), tokens=3, draws=600, workers=1)
    found = _audit.cost(request)
    draws = sum(subject.plan.seconds(600) for subject in request.subjects)
    plans = sum(subject.planning for subject in request.subjects)  # one worker makes each once
    assert plans > 0
    assert found.seconds == pytest.approx(draws + plans, rel=1e-9)
    assert found.first == _audit.START
    kept = dataclasses.replace(request, out=folder / "out")
    assert _audit.cost(kept).first == _audit.START + _audit.REPORT


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
    monkeypatch.setattr(_request, "_planned", lru_cache(_request._planned.__wrapped__))
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
