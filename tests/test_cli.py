"""The command line, as a user meets it: the built-in layer, options and errors."""

import json
import subprocess
import sys
import threading

import click
import numpy as np
import pytest
import tqdm

import netsor as ns
from tests.internals import (
    PaperStudy,
    _cost,
    _memory,
    _parallel,
    _subject,
    echo_error,
    figures,
    shown,
)
from tests.internals import ReproduceRequest as Request

from .command import netsor


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Two cores and 16 GiB: what is refused does not depend on the machine."""
    monkeypatch.setattr(_subject, "cores", lambda: 2)
    for module in (_memory, _cost):
        monkeypatch.setattr(module, "memory", lambda: 2.0**34)


def test_module_runs_as_command():
    result = subprocess.run(
        [sys.executable, "-m", "netsor", "law", "--heads", "0"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert (
        result.stderr
        == "netsor: Invalid value for '--heads': '0' must be a positive integer\n"
    )


@pytest.mark.parametrize(
    "arguments", [["chek"], ["check"], ["check", "a:b", "--no-such-option"]]
)
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
    assert (found["mean"], found["mean_error"]) == (0.0, 0.0)
    assert [row["y"] for row in found["pdf"]] == [0, 1]
    assert found["pdf"][0]["value"] == pytest.approx(0.646080, abs=2e-6)
    assert set(found["cdf"][0]) == {"y", "value", "error"}
    assert (found["status"], found["random_numbers"]) == ("proved", 0)
    assert "convolution" in found["method"]


def test_law_at_a_finite_width_in_words():
    result = netsor(
        "law",
        "--width",
        "64",
        "--draws",
        "5000",
        "--at",
        "0.5",
        "--activation",
        "relu",
        "--head-dim",
        "16",
    )
    assert result.returncode == 0
    assert result.stdout.startswith(
        "attention layer of 4 tokens and 2 heads, width 64: exact, 5,000 draws of "
    )
    assert "pdf" in result.stdout


def test_law_of_infinite_heads_and_linear_scaling_is_gaussian():
    heads = json.loads(netsor("law", "--infinite-heads", "--json").stdout)
    assert heads["variance"] == pytest.approx(0.39197144, abs=1e-7)
    assert heads["excess_kurtosis"] == 0
    linear = json.loads(netsor("law", "--scaling", "linear", "--json").stdout)
    assert linear["variance"] == pytest.approx(0.25)


def test_compare_prints_distances_with_errors(tmp_path):
    picture = tmp_path / "picture.png"
    result = netsor(
        "compare", "--width", "64", "--draws", "4000", "--json", "--plot", str(picture)
    )
    found = json.loads(result.stdout)
    assert found["kl"]["value"] == pytest.approx(2.121e-3, abs=5 * found["kl"]["error"])
    assert set(found["total_variation"]) == {"value", "error"}
    assert {"wasserstein1", "kolmogorov"} < set(found)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


@pytest.mark.slow
def test_compare_tolerance_finds_sufficient_width():
    arguments = [
        "compare",
        "--width",
        "64",
        "--draws",
        "2000",
        "--tolerance",
        "0.1",
        "--of",
        "variance",
    ]
    needed = json.loads(netsor(*arguments, "--json").stdout)["width_needed"]
    assert needed["low"] < 0.757 / 0.392 / 0.1 < needed["high"]
    assert (needed["of"], needed["tolerance"]) == ("variance", 0.1)
    assert (
        f"between {needed['low']} and {needed['high']:.0f} on"
        in netsor(*arguments).stdout.splitlines()[0]
    )


@pytest.mark.slow
def test_compare_head_dim_is_infinite_in_limit_unless_kept():
    arguments = [
        "compare",
        "--width",
        "64",
        "--head-dim",
        "8",
        "--draws",
        "20000",
        "--json",
    ]
    free, kept = (
        json.loads(netsor(*arguments, *more).stdout)
        for more in ([], ["--keep-head-dim"])
    )
    assert free["kl"]["value"] > 2 * kept["kl"]["value"]


BAD_OPTIONS = {
    ("audit",): "Missing argument 'MODEL': see netsor audit --help",
    (
        "audit",
        "my_model.py",
    ): "MODEL 'my_model.py' must name a function in the file, such as my_model.py:build",
    (
        "check-init",
        "gpt2",
    ): "MODEL 'gpt2' must be FILE:FUNCTION, such as my_model.py:build",
    ("law", "--widht", "8"): "No such option --widht: did you mean --width or --bind?",
    ("reproduce", "--heads", "2"): "No such option --heads: netsor reproduce has the"
    " paper's settings; for others use netsor law --heads or netsor compare --heads",
    ("law", "--heads", "0"): "'--heads': '0' must be a positive integer",
    ("law", "--width", "-3"): "'--width': '-3' must be a positive integer or inf",
    ("law", "--width", "2.5"): "'--width': '2.5' must be a positive integer or inf",
    ("law", "--activation", "swish"): "'--activation': 'swish' is not one of",
    ("law", "--at", "nan"): "'--at': 'nan' must be a finite number",
    (
        "law",
        "--sigma-q",
        "nan",
    ): "'--sigma-q': 'nan' must be a finite number, 0 or from 1e-08 to 1e+08",
    (
        "law",
        "--sigma-o",
        "0",
    ): "'--sigma-o': '0' must be a finite number from 1e-08 to 1e+08",
    (
        "law",
        "--clip",
        "-1",
    ): "'--clip': '-1' must be a finite number from 1e-08 to 1e+08",
    ("law", "--draws", "5"): "'--draws': '5' must be an integer, 100 or more",
    ("law", "--seed", "x"): "'--seed': 'x' must be an integer, 0 or more",
    ("law", "--plot", "x.gif"): "--plot 'x.gif' must end in .png, .pdf or .svg",
    (
        "law",
        "--plot",
        "nowhere/x.png",
    ): ("--plot 'nowhere/x.png' must be in a writable folder: No such file"),
    ("law", "--width", "8", "--infinite-heads"): "--infinite-heads needs --width inf",
    (
        "law",
        "--width",
        "8",
        "--head-dim",
        "9",
    ): "--head-dim 9 must be at most --width 8",
    ("compare", "--width", "inf"): "--width must give a positive integer",
    ("compare", "--tolerance", "0"): "--tolerance 0.0 must be a positive number",
    (
        "compare",
        "--tolerance",
        "1",
        "--of",
        "mean",
    ): "--of 'mean' must be 'kl', 'tv', 'variance', 'kurtosis', or a",
    (
        "compare",
        "--tolerance",
        "1",
        "--head-dim",
        "8",
    ): "--tolerance is about one width, not n, d; --keep-head-dim",
    (
        "compare",
        "--tolerance",
        "1",
        "--infinite-heads",
    ): "--tolerance and --infinite-heads cannot be combined",
    (
        "law",
        "--heads",
        "9" * 400,
    ): "…999999999' must be a positive integer (below 2^53)",
    (
        "law",
        "--sigma-q",
        "1e200",
    ): "'1e200' must be a finite number, 0 or from 1e-08 to 1e+08",
    ("law", "--clip", "1e-200"): "'1e-200' must be a finite number from 1e-08 to 1e+08",
    ("law", "--draws", "1" + "0" * 30): "must be an integer, 100 or more (below 2^53)",
    (
        "law",
        "--width",
        "9007199254740991",
    ): "width 2n at n=9007199254740991 must be below 2^53, or inf",
    (
        "plan",
        "--width",
        "9007199254740991",
    ): "width 2n at n=9007199254740991 must be below 2^53, or inf",
    ("law", "--heads", "1000000000"): "--heads 1000000000 would need",
    ("law", "--tokens", "100000"): "--tokens 100000 would need",
    ("law", "--tokens", "1000000"): "--tokens 1000000 would need",
    (
        "law",
        "--width",
        "1000000000",
        "--activation",
        "relu",
    ): "--width 1000000000 would need",
    (
        "law",
        "--width",
        "10000000",
        "--draws",
        "1000000",
        "--activation",
        "tanh",
    ): "--draws 1000000 and --width 10000000 would take about 6.1 days",
    (
        "law",
        "--width",
        "8",
        "--draws",
        "1000000000000",
    ): "--draws 1000000000000 and --width 8 would take about",
    ("compare", "--heads", "1000000000"): "--heads 1000000000 would need",
    ("plan", "--tokens", "100000"): "--tokens 100000 would need",
    ("plan", "--infinite-heads"): "--infinite-heads has no plan: the law is a formula",
    (
        "law",
        "--activation",
        "tanh",
        "--clip",
        "2",
    ): "--clip 2 is for --activation clip, not tanh",
    ("law", "--token", "5"): "--token 5 must be at most --tokens 4",
    ("law", "--mask", "none"): "'--mask': 'none' is not",
    ("law", "--bind", "n=4"): "--bind n=4 needs a FILE:PROGRAM",
    ("law", "--arg", "n=4"): "--arg n=4 needs a FILE:PROGRAM",
    (
        "law",
        "--plot",
        "/proc/x.png",
    ): "--plot '/proc/x.png' must be in a writable folder",
    ("law", "--plot", ""): "--plot '' must name a file",
    ("reproduce", "--out", ""): "--out '' must name a folder; for this one give '.'",
    ("reproduce", "--workers", "10000"): "'10000' must be an integer from 1 to 1,024",
    (
        "reproduce",
        "--trials",
        "1000000000",
    ): "'1000000000' must be an integer from 1 to 10,000",
    (
        "reproduce",
        "--samples",
        "1" + "0" * 30,
    ): "must be an integer, 100 or more (below 2^53)",
    (
        "reproduce",
        "--samples",
        "1000000000000000",
    ): "trials of 1,000,000,000,000,000 draws would need",
    ("reproduce", "--tokens", "50000"): "50,000 tokens would need",
    (
        "reproduce",
        "--out",
        "/proc/x",
    ): "--out '/proc/x' must be a writable folder",
    ("reproduce", "9z"): "FIGURE '9z' must be one of",
}


@pytest.mark.parametrize("arguments", BAD_OPTIONS)
def test_bad_options_end_in_one_line(arguments, tmp_path):
    result = netsor(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert BAD_OPTIONS[arguments] in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def trial(heads, width=256):
    """The seconds that a plan says for a trial of figure 2b."""
    return ns.paper.layer(heads=heads).plan(n=width).seconds(50_000)


def test_reproduce_estimate_counts_drawn_trials(tmp_path):
    """The limit of 256 heads needs none, and the paper's estimator needs none of any
    limit.
    """
    asked = {
        e: Request(("2b",), out=tmp_path, trials=3, workers=1, estimator=e)
        for e in ("paper", "exact")
    }
    one, many, limit = trial(1), trial(256), trial(1, ns.inf)
    assert PaperStudy(asked["paper"]).estimate().seconds == pytest.approx(
        3 * (one + many)
    )
    assert PaperStudy(asked["exact"]).estimate().seconds == pytest.approx(
        3 * (one + many + limit)
    )


def test_reproduce_estimate_skips_finished_trials(tmp_path):
    asked = Request(("2b",), out=tmp_path, trials=3, workers=1, estimator="paper")
    one, many = trial(1), trial(256)
    every = asked.plan.parts(figures()["2b"])
    for part in every:
        asked.plan.store.folder.mkdir(exist_ok=True)
        asked.plan.store.save(part.key, {"draws": np.zeros(2)})
        if part.trial == 1 and part.case.heads == 256:
            assert PaperStudy(asked).estimate().seconds == pytest.approx(one + many)
    assert PaperStudy(asked).estimate().seconds == 0
    other = Request(
        ("2b",), out=tmp_path, trials=3, workers=1, estimator="paper", seed=1
    )
    assert PaperStudy(other).estimate().seconds == pytest.approx(3 * (one + many))


def test_slow_planning_prints_notice(monkeypatch, capsys):
    with _subject.slow_notice("planning"):
        pass
    monkeypatch.setattr(_subject, "SILENT", 0.0)
    said = threading.Event()
    monkeypatch.setattr(
        _subject, "echo_error", lambda text: (echo_error(text), said.set())
    )
    with _subject.slow_notice("planning"):
        assert said.wait(60)
    assert capsys.readouterr().err == "netsor: planning …; Ctrl-C stops it\n"


def test_long_command_is_announced(capsys):
    _subject.announce(9.0)
    assert capsys.readouterr().err == ""
    _subject.announce(300.0)
    assert (
        capsys.readouterr().err
        == "netsor: this will take about 5 min; Ctrl-C stops it\n"
    )


@pytest.mark.parametrize(
    ("long", "words"),
    [
        (True, ["--width", "10000000", "--activation", "tanh"]),
        (True, ["--width", "64", "--heads", "20000", "--draws", "1000000"]),
        (False, ["--heads", "100000"]),
        (False, ["--width", "1000000000000"]),
        (False, ["--tokens", "1000"]),
    ],
)
def test_time_estimate_separates_minutes_from_seconds(long, words, monkeypatch):
    """Those that are not long take about a second on one core."""

    def announced(seconds):
        found.append(seconds)
        raise click.UsageError("enough")

    found = []
    monkeypatch.setattr(_subject, "announce", announced)
    monkeypatch.setattr(_memory, "memory", lambda: 1e15)
    assert netsor("law", *words).returncode == 2
    assert (found[0] > 60) == long


def test_causal_mask_hides_later_tokens():
    """Token i of a causal layer has the law of a layer of i tokens, in the limit."""
    for token in (1, 3):
        masked, alone = (
            json.loads(netsor("law", "--json", *words).stdout)
            for words in (
                ["--mask", "causal", "--token", str(token)],
                ["--tokens", str(token)],
            )
        )
        assert masked["variance"] == pytest.approx(alone["variance"], rel=1e-9)
        assert masked["excess_kurtosis"] == pytest.approx(
            alone["excess_kurtosis"], abs=1e-9
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_rejects_nan_and_infinity(value, monkeypatch):
    """An answer that is no number is an error; an error that is not known is null."""
    exact = ns.Mixture.with_error

    class Broken:
        def __init__(self, law):
            self.law = law

        def var(self):
            return ns.Estimate(self.law.var() if unknown else value, value)

        def mean(self):
            return exact.fget(self.law).mean()

        def kurtosis(self):
            return exact.fget(self.law).kurtosis()

    monkeypatch.setattr(ns.Mixture, "with_error", property(Broken))
    words = ["law", "--width", "8", "--draws", "100", "--json"]
    unknown = False
    result = netsor(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"netsor: the variance is {value}")
    unknown = True
    assert json.loads(netsor(*words).stdout)["variance_error"] is None


def test_internal_error_asks_for_report_in_one_line(monkeypatch):
    """Exit code 1: nobody but us can mend it."""

    def broken(*_, **__):
        return {}["a key"]

    monkeypatch.setattr(ns.Program, "law", broken)
    result = netsor("law")
    assert result.returncode == 1
    assert result.stderr.startswith(
        "netsor: an internal error of netsor, please report it: KeyError at"
        " cli/_subject.py:"
    )
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "there is not enough memory: use fewer draws"),
        (RuntimeWarning("overflow"), "the numbers leave double precision (overflow)"),
        (
            OSError(28, "No space left"),
            "a file cannot be read or written: [Errno 28] No space left",
        ),
        (ValueError("two\nlines"), "an internal error of netsor"),  # not raised by us
    ],
)
def test_library_and_system_errors_end_in_one_line(error, said, monkeypatch):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(ns.Program, "law", broken)
    result = netsor("law")
    assert result.stderr.startswith(f"netsor: {said}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("foreign", ["report.html", "manifest.json", "2a.csv"])
def test_reproduce_keeps_foreign_files(foreign, tmp_path):
    (tmp_path / foreign).write_text("[]")
    result = netsor(
        "reproduce", "2a", "--samples", "100", "--trials", "1", "--out", str(tmp_path)
    )
    assert result.returncode == 2
    said = (
        f"netsor: --out {shown(str(tmp_path))} must be another folder: it holds a"
        f" {foreign} that is not"
    )
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (foreign, "[]")
    ]


def test_missing_threads_are_not_reported_as_overflow(monkeypatch):
    """Without memory for a further thread tqdm warns, as numpy does of numbers, and
    Python raises a RuntimeError.
    """

    def fails(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_parallel, "on_terminal", lambda: True)
    monkeypatch.setattr(tqdm.tqdm, "monitor", None)
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 10)
    monkeypatch.setattr(tqdm.std, "TMonitor", fails)
    assert netsor("law", "--width", "4", "--draws", "100").returncode == 0
    assert tqdm.tqdm.monitor_interval == 0  # it has warned
    monkeypatch.setattr(_subject, "announce", fails)
    result = netsor("law", "--width", "4", "--draws", "100")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "netsor: no more threads can be started: use fewer --workers"
    )
