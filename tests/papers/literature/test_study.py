"""The study of published results as such: files, resuming, the command; and that every
verdict has another side.
"""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import netsor as ns
from tests.internals import (
    AGREES,
    DISAGREES,
    OUTSIDE,
    RESULTS,
    Claim,
    Finished,
    LiteratureStudy,
    Part,
    PartTask,
    Picture,
    Result,
    Watch,
    _process_pool,
    cli,
    combine,
    decide_below,
    extrapolate,
    literature_command,
    mean,
    new,
    within,
)
from tests.internals import CLAIM_UNDECIDED as UNDECIDED
from tests.internals import LiteratureRequest as Request
from tests.internals import literature_study as _study

from ...inline import Inline

DONE = []


def halves(of, seed):
    DONE.append(of)
    return {"value": np.array([of / 2, seed])}


def picture(numbers):
    figure = new()
    figure.subplots().plot([float(arrays["value"][0]) for arrays in numbers.values()])
    return figure


def rows(numbers):
    for label, arrays in numbers.items():
        yield {"label": label, "half": float(arrays["value"][0])}


def judge(numbers):
    verdict = decide_below(ns.Estimate(float(numbers["one"]["value"][0]), 0.0), 1.0)
    return [Claim("Half of it is below 1.", "It is.", "0.5.", verdict)]


SMALL = Result(
    name="small",
    title="Halves <of numbers>",
    source="Nobody.",
    links=("https://example.org",),
    setting="None.",
    quick="two.",
    parts=lambda quick: [
        Part(name, halves, {"of": of})
        for name, of in (("one", 1), ("two", 2))[: 1 if quick else 2]
    ],
    judge=judge,
    pictures=(Picture("small-halves", "Halves.", picture, rows),),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(RESULTS, "small", SMALL)
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    DONE.clear()


@pytest.mark.slow
def test_run_writes_files_and_is_not_repeated(small, tmp_path):
    study = LiteratureStudy(Request(("small",), out=tmp_path, workers=1))
    announced = study.estimate().seconds
    first = study.run()
    assert (
        announced - study.estimate().seconds
        == sum(p.seconds for p in SMALL.parts(False))
        > 0
    )  # what is there takes none
    assert first.claims["small"][0].verdict == AGREES
    for kind in ("csv", "pdf", "png"):
        assert (tmp_path / f"small-halves.{kind}").stat().st_size > 0
    page = first.report.read_text()
    assert "Halves &lt;of numbers&gt;" in page
    assert 'class="good"' in page
    assert "1 statement from 1 paper: 1 agree" in page
    assert (
        json.loads((tmp_path / "manifest.json").read_bytes())["command"]
        == "netsor literature, called from Python"
    )
    assert DONE == [1, 2]
    again = LiteratureStudy(Request(("small",), out=tmp_path, workers=1)).run()
    assert DONE == [1, 2]
    # the first screen, and its own section
    assert again.report.read_text().count("<svg") == 2
    LiteratureStudy(Request(("small",), out=tmp_path, seed=1)).run()
    assert DONE == [1, 2, 1, 2]  # other random numbers


def test_foreign_files_are_kept(small, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(
        ValueError, match=r"holds a report.html that is not of an earlier run"
    ):
        LiteratureStudy(Request(("small",), out=tmp_path)).run()
    assert (tmp_path / "report.html").read_text() == "mine"
    assert DONE == []


def test_literature_command(small, tmp_path, monkeypatch):
    def asked(*words):
        return CliRunner().invoke(cli, ["literature", *words], obj=Watch())

    done = asked("small", "--quick", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("netsor: literature: small; about 4.5 s on 1 worker")
    assert done.stdout.startswith("1 statement from 1 paper: 1 agree")
    assert DONE == [1]
    wrong = asked("nobody", "--out", str(tmp_path / "other"))
    assert wrong.exit_code == 2
    assert "RESULT 'nobody' must be one of giorlandino" in wrong.output
    assert not (tmp_path / "other").exists()


def test_help_names_every_result():
    for name in RESULTS:
        assert name in literature_command.help


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="out='' must be the name of a folder"):
        ns.literature(out="")
    with pytest.raises(ValueError, match="names='x' must be one of"):
        ns.literature("x")
    with pytest.raises(ValueError, match="quick=3 must be True or False"):
        Request(quick=3)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_has_all_fields(name):
    """Parts are kept apart, on disk too; figures have different names; a quick run is
    quicker.
    """
    result = RESULTS[name]
    for quick in (True, False):
        parts = result.parts(quick)
        assert len({part.label for part in parts}) == len(parts)
        assert len(
            {json.dumps(PartTask(name, part, 0).key, sort_keys=True) for part in parts}
        ) == len(parts)
        assert all(
            part.work.__module__.startswith("netsor.papers.literature")
            for part in parts
        )
    assert sum(p.seconds for p in result.parts(True)) <= sum(
        p.seconds for p in result.parts(False)
    )
    names = [p.name for other in RESULTS.values() for p in other.pictures]
    assert len(set(names)) == len(names)
    assert all(p.name.startswith(result.name) for p in result.pictures)
    assert result.setting.endswith(".")
    assert result.quick
    assert all(link.startswith("https://") for link in result.links)
    assert [r.name for r in _study.chosen((name,))] == [name]


def test_within_compares_with_share():
    assert within(1.05, ns.Estimate(1.0, 1e-3), 0.1) == "agrees"
    assert within(1.2, ns.Estimate(1.0, 1e-3), 0.1) == "disagrees"
    assert within(1.11, ns.Estimate(1.0, 1e-2), 0.1) == "undecided"


def test_extrapolate_turns_disagreement_into_outside():
    assert extrapolate(DISAGREES) == OUTSIDE
    assert [extrapolate(verdict) for verdict in (AGREES, UNDECIDED)] == [
        AGREES,
        UNDECIDED,
    ]
    assert combine(AGREES, OUTSIDE) == OUTSIDE
    assert combine(OUTSIDE, DISAGREES) == DISAGREES
    assert combine(OUTSIDE, UNDECIDED) == UNDECIDED


def test_report_counts_outside_and_marks_unread(small, monkeypatch, tmp_path):
    def partly(numbers):
        claim = judge(numbers)[0]
        return [
            claim,
            replace(claim, verdict=OUTSIDE),
            replace(claim, verdict=UNDECIDED),
        ]

    monkeypatch.setitem(
        RESULTS, "small", replace(SMALL, judge=partly, unread="the second half.")
    )
    found = LiteratureStudy(Request(("small",), out=tmp_path, workers=1)).run()
    assert (
        found.summary
        == "3 statements from 1 paper: 1 agree, 0 disagree, 1 outside their stated"
        " range, 1 undecided."
    )
    head, row, *_ = found.table().split("\n\n")[2].splitlines()
    assert head.split() == ["result", "agree", "disagree", "outside", "undecided"]
    assert row.split() == ["Halves", "<of", "numbers>", "*", "1", "0", "1", "1"]
    assert (
        "* We could read only a part of the paper; verdicts are about that part."
        in found.table()
    )
    assert max(map(len, found.table(verbose=True).splitlines())) <= 80
    page = found.report.read_text()
    assert "Not read: the second half." in page
    assert '<span class="absent">outside its stated range' in page
    monkeypatch.setitem(RESULTS, "small", SMALL)
    assert (
        "We could read only"
        not in LiteratureStudy(Request(("small",), out=tmp_path / "read", workers=1))
        .run()
        .table()
    )


def test_means_have_errors():
    draws = np.random.default_rng(0).standard_normal(400)
    assert mean(draws).error == pytest.approx(draws.std(ddof=1) / 20)
    assert mean([3.0]).error == np.inf


def test_statements_as_dataframe(monkeypatch):
    """A row for each statement; pandas is optional, so that its constructor is stood in
    for here.
    """
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    claim = Claim("published", "rule", "ours", AGREES)
    rows = Finished.to_dataframe(
        SimpleNamespace(claims={"hron": (claim, claim), "noci": (claim,)})
    )
    assert [row["result"] for row in rows] == ["hron", "hron", "noci"]
    assert rows[0] == {
        "result": "hron",
        "published": "published",
        "rule": "rule",
        "ours": "ours",
        "verdict": AGREES,
    }
