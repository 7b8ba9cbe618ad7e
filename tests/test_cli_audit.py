"""netsor audit on the command line: its contract, its errors, its signals. No test
depends on the clock.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from functools import lru_cache

import pytest

from netsor import audit
from netsor.models import RECIPES, read
from tests.internals import _process_pool, _request

from .command import netsor
from .inline import Inline
from .papers.paper.test_processes import HANG, Running

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 30,
}
SMALL = ["audit", "tiny.json", "--tokens", "3", "--draws", "40"]
POSIX = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    return tmp_path


def test_audit_json_has_documented_fields(folder):
    result = netsor(*SMALL, "--json", cwd=folder)
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert {
        "model",
        "status",
        "layers",
        "final",
        "findings",
        "random_numbers",
        "seconds",
    } <= found.keys()
    assert (found["model"], found["status"], len(found["layers"])) == (
        "tiny",
        "exact",
        2,
    )
    for layer in (*found["layers"], found["final"], *found["limit"]["layers"]):
        for name, three in layer.items():
            assert three.keys() - {"error"} == {"median", "low", "high"}, name
            assert three["low"] <= three["median"] <= three["high"]
    assert not any(
        "error" in three for layer in found["layers"] for three in layer.values()
    )
    # of quadrature
    errors = [
        three["error"] for layer in found["limit"]["layers"] for three in layer.values()
    ]
    assert 0 < max(errors) < 1e-6
    assert found["final"].keys() == {"logit_std", "loss", "max_probability"}
    for finding in found["findings"]:
        assert {"rule", "measured", "verdict"} <= finding.keys()
    assert found["random_numbers"] > 0
    # no --out: nothing is written
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.json"]


def test_audit_json_layers_contain_gradients(folder):
    result = netsor(*SMALL, "--gradients", "--widths", "actual", "--json", cwd=folder)
    found = json.loads(result.stdout)
    names = {
        "grad_mean_square",
        *(f"grad_{kind}" for kind in ("query", "key", "value", "output", "in", "out")),
    }
    for layer in found["layers"]:
        assert names <= layer.keys()
        assert all(
            0 < layer[name]["low"] <= layer[name]["median"] <= layer[name]["high"]
            for name in names
        )
    assert {"grad_input", "grad_embedding", "grad_embedding_ratio"} <= found[
        "final"
    ].keys()
    assert {"vanishing", "exploding", "scores", "dominance"} <= {
        finding["name"] for finding in found["findings"]
    }


def test_audit_announces_cost_before_verdict(folder):
    result = netsor(*SMALL, cwd=folder)
    assert result.stderr.startswith("netsor: tiny: 40 draws of 3 tokens; about ")
    # workers begin, and plan again
    assert float(re.search(r"about ([\d.]+) s", result.stderr)[1]) >= 1
    assert "ok        growth " in result.stdout
    assert result.stdout.startswith("tiny: no problem found. ")
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_audit_compares_other_or_changed_model(folder):
    (folder / "other.json").write_text(json.dumps({**CONFIG, "n_layer": 3}))
    lines = {
        ("--compare", "other.json"): ("tiny", "other"),
        ("--compare-set", "std=0.3"): ("tiny", "tiny, std=0.3"),
        ("--set", "qk_norm=true", "--compare-set", "std=0.3"): (
            "tiny, qk_norm=true",
            "tiny, qk_norm=true, std=0.3",
        ),
        ("--compare", "other.json", "--compare-set", "std=0.3"): (
            "tiny",
            "other, std=0.3",
        ),
        ("--set", "std=0.3", "--compare", "tiny.json"): ("tiny, std=0.3", "tiny"),
    }
    squares = {}
    for words, names in lines.items():
        found = json.loads(
            netsor(*SMALL, "--widths", "actual", "--json", *words, cwd=folder).stdout
        )
        (other,) = found["compare"]
        assert (found["model"], other["model"]) == names
        for each in (found, other):
            squares.setdefault(each["model"], set()).add(
                each["layers"][0]["mean_square"]["median"]
            )
    # one model, one law, wherever it stands
    assert all(len(values) == 1 for values in squares.values())
    # but for QK-norm, which the first squares hardly see
    assert len({*map(max, squares.values())}) == len(squares) - 1


def test_audit_ids_are_used_as_tokens(folder):
    repeated = json.loads(
        netsor(
            "audit",
            "tiny.json",
            "--ids",
            "3,7,7,1",
            "--draws",
            "40",
            "--widths",
            "actual",
            "--no-gradients",
            "--json",
            cwd=folder,
        ).stdout
    )
    assert repeated["tokens"] == 4


def test_audit_out_writes_report_and_resumes(folder, unillustrated):
    words = [*SMALL, "--out", "out", "--set", "std=0.1"]
    first = netsor(*words, cwd=folder)
    assert first.stdout.rstrip().endswith("report: out/report.html")
    command = json.loads((folder / "out" / "manifest.json").read_text())["command"]
    # as it was typed
    assert (
        command
        == "netsor audit tiny.json --tokens 3 --draws 40 --out out --set std=0.1"
    )
    before = (folder / "out" / "audit.csv").read_bytes()
    again = netsor(*command.split()[1:], cwd=folder)
    assert again.stdout == first.stdout
    assert (folder / "out" / "audit.csv").read_bytes() == before


def test_audit_prints_verdicts_by_length(folder):
    words = [
        "audit",
        "tiny.json",
        "--tokens",
        "3,12",
        "--draws",
        "100",
        "--widths",
        "actual",
    ]
    # a mean over more tokens is shorter
    changes = ["--set", "std=0.5", "--set", "std_q=0.02", "--set", "std_o=0.38"]
    result = netsor(*words, *changes, "--verbose", cwd=folder)
    assert re.search(r"^status +3 tokens +12 tokens$", result.stdout, re.MULTILINE)
    found = json.loads(netsor(*words, *changes, "--json", cwd=folder).stdout)
    assert [each["tokens"] for each in found["lengths"]] == [3, 12]
    assert found["layers"] == found["lengths"][0]["layers"]
    verdicts = [
        {f["name"]: f["verdict"] for f in each["findings"]} for each in found["lengths"]
    ]
    worst = {finding["name"]: finding for finding in found["findings"]}
    assert found["changing"] == ["branches"]
    assert [each["branches"] for each in verdicts] == ["ok", "FLAG"]
    assert (worst["branches"]["verdict"], worst["branches"]["tokens"]) == ("FLAG", [12])
    assert worst["entropy"]["tokens"] == [3, 12]
    assert "It is ok at 3 tokens: audit the length you train on." in result.stdout
    assert "FLAG      branches    12 tokens: " in result.stdout


def test_audit_default_lengths_and_draws():
    """Two lengths, as far as models reach; draws fall as the square of the length, and
    decide at the longest.
    """
    model = read(CONFIG)
    request = _request.Request((model,))
    assert (request.lengths, request.draws_of(16)) == ((16,), 200)
    wide = _request.Request((model.replace(length=512, vocabulary=500),))
    assert [(n, wide.draws_of(n)) for n in (*wide.lengths, 32)] == [
        (16, 200),
        (128, 16),
        (32, 50),
    ]
    assert _request.Request(
        (model, model.replace(length=512, vocabulary=500))
    ).lengths == (16,)
    assert _request.Request((model.replace(length=70, vocabulary=500),)).lengths == (
        16,
        70,
    )
    quick = _request.Request((model.replace(length=512, vocabulary=500),), quick=True)
    assert (quick.lengths, quick.draws_of(16), quick.widths) == ((16,), 16, "actual")
    assert [each.tokens for each in wide.asked if each.infinite] == [16]


def test_quick_audit_names_unchecked_rules(folder):
    def second(*options):
        paragraphs = netsor(
            "audit", "tiny.json", "--set", "length=64", *options, cwd=folder
        ).stdout.split("\n\n")
        return " ".join(paragraphs[1].split())

    assert (
        second("--quick")
        == "Quick audit; not checked: gradients, infinite width, more than 16 tokens. "
        "Full audit: netsor audit tiny.json --set length=64"
    )
    more = ["--tokens", "4", "--widths", "both", "--gradients"]
    assert (
        second("--quick", *more)
        == "Quick audit. Full audit: netsor audit tiny.json --set length=64"
        f" {' '.join(more)}"
    )
    assert second(*SMALL[2:], "--no-gradients").startswith("2 blocks, width 16")
    found = audit(read(CONFIG), quick=True)
    assert (
        "Quick audit; not checked: gradients, infinite width. Full audit: leave out"
        " quick=True" in " ".join(str(found).split())
    )


def test_fail_on_flagged_rule_exits_with_3(folder):
    sharp = ["audit", "tiny.json", "--quick", "--set", "std_q=1", "--set", "std_k=1"]
    found = netsor(*sharp, "--fail-on", "growth,entropy", cwd=folder)
    # the cost, and the reason
    assert (found.returncode, found.stderr.count("netsor: ")) == (3, 2)
    assert (
        "netsor: tiny, std_q=1, std_k=1: entropy FLAG at 16 tokens: 0." in found.stderr
    )
    assert max(map(len, found.stderr.splitlines())) <= 80
    assert "growth" not in found.stderr
    assert "FLAG      entropy " in found.stdout
    assert netsor(*sharp, "--fail-on", "growth", cwd=folder).returncode == 0
    quiet = netsor(*sharp, "--fail-on", "entropy", "--json", cwd=folder)
    assert (quiet.returncode, json.loads(quiet.stdout)["findings"][3]["verdict"]) == (
        3,
        "FLAG",
    )
    absent = netsor(*sharp, "--fail-on", "limit", cwd=folder)
    assert (absent.returncode, absent.stderr.count("\n")) == (2, 1)
    assert absent.stderr.startswith(
        "netsor: --fail-on 'limit': limit was not measured for tiny"
    )
    open_ = netsor(
        "audit",
        "tiny.json",
        "--set",
        "std=0.7",
        *SMALL[2:],
        "--fail-on",
        "loss",
        cwd=folder,
    )
    assert (open_.returncode, "loss undecided at 3 tokens" in open_.stderr) == (3, True)


def test_baseline_departure_exits_with_3(folder):
    quick = ["audit", "tiny.json", "--quick"]
    (folder / "old.json").write_text(netsor(*quick, "--json", cwd=folder).stdout)
    same = netsor(*quick, "--seed", "1", "--baseline", "old.json", cwd=folder)
    assert (same.returncode, same.stderr.count("netsor: ")) == (0, 1)  # the cost
    assert same.stdout.splitlines()[:2] == [
        "baseline 'old.json': all 24 medians are within their bands",
        "",
    ]
    (folder / "tiny.json").write_text(json.dumps({**CONFIG, "initializer_range": 0.03}))
    other = netsor(*quick, "--seed", "1", "--baseline", "old.json", cwd=folder)
    verdict = " ".join(other.stdout.partition("\n\n")[0].split())
    assert re.fullmatch(
        r"baseline 'old.json': \d+ of 24 medians left their bands; [a-zA-Z' ]+ in block"
        r" 2 at 16 tokens has a median of "
        r"[\d.]+, [\d.]+ above its band of [\d.]+ to [\d.]+",
        verdict,
    )
    assert (
        other.returncode,
        " ".join(other.stderr.split()).endswith(f"netsor: {verdict}"),
    ) == (3, True)
    found = json.loads(
        netsor(
            *quick, "--seed", "1", "--baseline", "old.json", "--json", cwd=folder
        ).stdout
    )["baseline"]
    assert (found["verdict"], found["compared"]) == (verdict, 24)
    assert found["departures"][0].keys() == {
        "quantity",
        "tokens",
        "block",
        "median",
        "low",
        "high",
    }
    both = netsor(*quick, "--baseline", "old.json", "--fail-on", "loss", cwd=folder)
    assert (both.returncode, both.stderr.count("loss undecided")) == (3, 0)


@pytest.mark.slow
def test_recipes_are_listed_with_a_line_each(folder):
    """The list needs no MODEL, and has all names that --recipe takes."""
    result = netsor("audit", "--recipes", cwd=folder)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    for line, listed in zip(lines, RECIPES.values(), strict=True):
        assert line.endswith(listed.words)


def test_audit_compares_several_models_and_sweeps(folder, unillustrated):
    words = ["audit", "tiny.json", "--quick"]
    sweep = [*words, "--sweep", "std_q=0.02,1,20", "--set", "std_k=1"]
    found = json.loads(netsor(*sweep, "--json", "--out", "out", cwd=folder).stdout)
    assert found["sweep"] == {"field": "std_q", "values": [0.02, 1.0, 20.0]}
    assert [found["model"], *(each["model"] for each in found["compare"])] == [
        f"tiny, std_k=1, std_q={value}" for value in ("0.02", "1", "20")
    ]
    assert found["differences"]["fields"] == {"std_q": [0.02, 1.0, 20.0]}
    assert found["differences"]["preferred"] == "tiny, std_k=1, std_q=0.02"
    command = json.loads((folder / "out" / "manifest.json").read_text())["command"]
    again = json.loads(netsor(*command.split()[1:], cwd=folder).stdout)
    assert again["differences"] == found["differences"]
    page = (folder / "out" / "report.html").read_text()
    assert 'id="figure-mean_square-swept"' in page
    text = netsor(*sweep, cwd=folder).stdout
    assert text.splitlines()[0] == "Prefer “std_q=0.02” (better entropy)."
    whole = netsor(*words, "--sweep", "layers=1,2,3", cwd=folder).stdout
    assert "layers         1         2         3" in whole
    by_norm = netsor(
        *words, "--sweep", "norm=layer,rms", "--out", "norms", cwd=folder
    ).stdout
    assert "tiny, norm=layer and tiny, norm=rms. " in by_norm
    page = (folder / "norms" / "report.html").read_text()
    assert 'id="figure-mean_square-swept"' in page
    (folder / "other.json").write_text(json.dumps({**CONFIG, "n_layer": 3}))
    three = netsor(
        *words, "--compare", "other.json", "--compare", "tiny.json", cwd=folder
    ).stdout
    assert three.splitlines()[2].startswith("Quick audit; not checked: ")
    assert "\ntiny, other and tiny, again. " in three


BAD = {
    (
        "nothing",
    ): "MODEL 'nothing' must be the path of a file, or the name of a built-in model",
    ("tiny.json", "--set", "stdd=1"): "--set 'stdd=1': stdd is not a field",
    ("tiny.json", "--set", "layers=x"): "--set layers='x' must be a positive integer",
    ("tiny.json", "--set", "layers"): "--set 'layers' must be written field=value",
    ("tiny.json", "--compare-set", "std=-1"): "--compare-set std=-1",
    ("tiny.json", "--compare", "gpt5"): "--compare 'gpt5' must be the path of a file",
    ("tiny.json", "--tokens", "17"): "--tokens 17 must be an integer from 1 to 16",
    (
        "tiny.json",
        "--tokens",
        "1",
    ): "--tokens 1 must be 2 or more: an audit compares tokens",
    ("tiny.json", "--ids", "1,x"): "'--ids': '1,x' must be whole numbers",
    ("tiny.json", "--ids", "1,99"): "--ids 99 must be an integer from 0 to 29",
    (
        "tiny.json",
        "--ids",
        "1,2," * 5000 + "1",
    ): "--ids 1,2,1,2,1,2,… must be at most 16 tokens",
    ("tiny.json", "--ids", "1"): "--ids 1 must be two or more",
    (
        "tiny.json",
        "--ranges",
        "--widths",
        "inf",
    ): "--ranges must be left out where all widths are infinite",
    ("",): "MODEL '' must be the name of a model, or a file",
    (
        "tiny.json",
        "--ids",
        "1,2",
        "--tokens",
        "3",
    ): "must be left out: the ids say how many tokens there are",
    (
        "tiny.json",
        "--draws",
        "14",
    ): "'14' must be an integer, 15 or more: fewer decide no rule",
    (
        "tiny.json",
        "--tokens",
        "3,x",
    ): "'--tokens': '3,x' must be whole numbers with commas between, as 16,128",
    (
        "tiny.json",
        "--tokens",
        "3,3",
    ): "--tokens 3,3 must be one length or more, each once",
    (
        "tiny.json",
        "--fail-on",
        "grwth",
    ): "--fail-on 'grwth' must be one of growth, branches",
    (
        "tiny.json",
        "--no-gradients",
        "--fail-on",
        "exploding",
    ): "exploding was not measured for tiny",
    (
        "tiny.json",
        "--fail-on",
        "load",
    ): "--fail-on 'load': load was not measured for tiny: no block chooses among experts",
    (
        "tiny.json",
        "--set",
        "vocabulary=none",
        "--fail-on",
        "loss",
    ): "loss was not measured for tiny, vocabulary=none: th",
    ("tiny.json", "--baseline", ""): "--baseline '' must name a file",
    (
        "tiny.json",
        "--baseline",
        "none.json",
    ): "'none.json' must be a readable JSON file of an audit: No such file",
    ("tiny.json", "--baseline", "theirs"): "'theirs' must be a regular file",
    ("tiny.json", "--baseline", "/dev/zero"): "'/dev/zero' must be a regular file",
    (
        "tiny.json",
        "--baseline",
        "pipe",
    ): "'pipe' must be a regular file, not a folder, a device or a pipe",
    ("tiny.json", "--baseline", "text.json"): "'text.json' is not valid JSON",
    ("tiny.json", "--baseline", "list.json"): "'list.json' must hold an object",
    (
        "tiny.json",
        "--baseline",
        "tiny.json",
    ): "--baseline 'tiny.json' must be an audit: it has no 'tokens'; write it w",
    (
        "tiny.json",
        "--baseline",
        "other.json",
    ): "--baseline 'other.json' must be of the same model: it has 3 blocks",
    (
        "tiny.json",
        "--baseline",
        "old.json",
        "--gradients",
    ): "must be an audit with grad_mean_square in block 0",
    (
        "tiny.json",
        "--baseline",
        "old.json",
        "--tokens",
        "4",
    ): "must be an audit of 4 tokens, not of 3",
    (
        "tiny.json",
        "--baseline",
        "old.json",
        "--widths",
        "inf",
    ): "must be at the same widths, not at",
    (
        "tiny.json",
        "--baseline",
        "old.json",
        "--sweep",
        "std=1,2",
    ): "--baseline is for one model: leave out --compare",
    (
        "tiny.json",
        "--sweep",
        "std",
    ): "'--sweep': 'std' must be written field=value,value,…, as std=0.005,0.01",
    (
        "tiny.json",
        "--sweep",
        "std=0.1,x",
    ): "--sweep std='x' must be a finite number, 0 or from",
    (
        "tiny.json",
        "--sweep",
        "norm=layer,rmsnorm",
    ): "--sweep norm='rmsnorm' must be 'layer' or 'rms'",
    (
        "tiny.json",
        "--sweep",
        "foo=1,2",
    ): "--sweep foo is not a field of a Transformer: choose one of std, name, family",
    (
        "tiny.json",
        "--sweep",
        "std=0.1",
    ): "--sweep std must be over two or more numbers or words, each once",
    (
        "tiny.json",
        "--sweep",
        "std=0.1,0.2",
        "--compare",
        "gpt2",
    ): "--sweep and --compare cannot be combined",
    (
        "tiny.json",
        "--compare",
        "gpt2",
        "--compare",
        "gpt2",
        "--compare-set",
        "std=1",
    ): "--compare-set is for one",
    ("tiny.json", "--draws", "1000000000000"): "1,000,000,000,000 draws would need",
    (
        "tiny.json",
        "--out",
        "tiny.json",
    ): "--out 'tiny.json' must be a writable folder",
    (
        "tiny.json",
        "--out",
        "theirs",
    ): "--out 'theirs' must be another folder: it holds a report.html that",
    (
        "tiny.json",
        "--set",
        "std=1e300",
    ): "--set std=1e+300 must be a finite number, 0 or",
    ("tiny.json", "--set", "std=1e-300"): "--set std=1e-300 must be a finite number",
    (
        "tiny.json",
        "--set",
        "vocabulary=1",
    ): "--tokens 3 must be at most 1, the number of ids",
    (
        "tiny.json",
        "--out",
        "a" * 300,
    ): "a' must be a writable folder: File name too long\n",
    ("b" * 300,): (
        "must be the path of a readable file (File name too long), or the name"
        " of a built-in model"
    ),
    (
        "twice.json",
    ): "MODEL 'twice.json' is not valid JSON: it has the field 'n_layer' twice",
    ("deep.json",): "MODEL 'deep.json' is nested too deeply",
    ("escape.json",): r"'\x1b[2J'=1",
    ("/dev/zero",): "MODEL '/dev/zero' must be a regular file",
    (
        "llama-3-8b",
        "--set",
        "heads=1000000000",
        "--set",
        "head_dim=2",
        "--tokens",
        "2",
    ): "1,000,000,000 heads, hid",
    ("text.json",): "is not valid JSON",
    ("list.json",): "must hold an object",
    ("llama-3-8b", "--tokens", "1000000"): "--tokens 1000000",
}


@lru_cache
def earlier(layers):
    """What an audit was, on 3 tokens."""
    return audit(
        {**CONFIG, "n_layer": layers},
        tokens=3,
        draws=20,
        widths="actual",
        progress=False,
    ).as_dict()


@pytest.mark.parametrize("words", BAD)
def test_audit_bad_input_is_one_line_and_writes_no_file(words, folder):
    (folder / "theirs").mkdir()
    (folder / "theirs" / "report.html").write_text("mine")
    (folder / "text.json").write_text("{")
    for name, layers in (("old", 2), ("other", 3)):
        (folder / f"{name}.json").write_text(json.dumps(earlier(layers)))
    os.mkfifo(folder / "pipe")
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


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_audit_interrupt_keeps_finished_draws(kept, tmp_path):
    """An endless audit, so that it is the signal that ends it, and nothing is left
    running.
    """
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    words = [
        "--tokens",
        "3",
        "--draws",
        "400000",
        "--widths",
        "actual",
        "--workers",
        "2",
    ]
    command = [
        sys.executable,
        "-m",
        "netsor",
        "audit",
        "tiny.json",
        *words,
        *(["--out", "out"] if kept else []),
    ]
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


def test_unknown_model_type_names_what_to_install(tmp_path):
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "olmoe"}')
    done = netsor("audit", str(path))
    assert "model_type='olmoe' must be one of bert, gemma2, " in done.stderr
    assert "pip install torch transformers" in done.stderr
