"""Reproducing the paper: the same bytes however a run is cut up, and verdicts that
could be negative.
"""

import csv
import dataclasses
import html
import json
import re
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    GRID,
    GROUPS,
    NAMES,
    WEIGHTS,
    Case,
    PaperStudy,
    Store,
    _claims,
    _estimators,
    _figures,
    _process_pool,
    _reproduce,
    figures,
    mathml,
)
from tests.internals import ReproduceRequest as Request
from tests.internals import sakai2025_plots as _plots

from ...inline import Inline
from ...keep import keep

SMALL = {"samples": 600, "trials": 2, "workers": 1, "tokens": 4}
FIGURE = figures(tokens=4)["2a"]


def read(folder, pattern="*.csv"):
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def stamps(folder):
    return {
        path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("*.npz")
    }


@pytest.fixture(scope="module", autouse=True)
def shorter():
    """Two numbers of heads instead of nine."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_claims, _plots, _estimators):
            patch.setattr(module, "HEADS", (1, 256))
        yield


@pytest.fixture
def inline(monkeypatch):
    """In this process: to begin another takes longer than the work."""
    monkeypatch.setattr(_process_pool, "Workers", Inline)


@pytest.fixture
def unillustrated(monkeypatch):
    """Runs without pictures, which take most of their time."""
    monkeypatch.setattr(_reproduce, "drawn", lambda data: {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All figures, small, in this process. The first is drawn, as every file, and
    stands for the others.

    The others are drawn by `test_every_figure_is_drawn`, and one of each kind by
    `test_reproduce_with_one_estimator`.
    """
    out, first = tmp_path_factory.mktemp("whole"), {}

    def drawn(data):
        if not first:
            first.update(_plots.drawn(data))
        return first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_process_pool, "Workers", Inline)
        patch.setattr(_reproduce, "drawn", drawn)
        return out, PaperStudy(Request(out=out, **SMALL)).run()


@pytest.mark.slow
def test_every_figure_is_drawn(inline, tmp_path):
    PaperStudy(Request(out=tmp_path, **SMALL)).run()
    for kind in ("pdf", "png"):
        pictures = read(tmp_path, f"*.{kind}")
        assert len(pictures) == len(NAMES)
        # with four tokens, both panels of figure 4 are those of figure 1
        assert len(set(pictures.values())) == len(NAMES) - 2


def test_every_figure_has_its_files(whole):
    out, done = whole
    for name in NAMES:
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        rows = table(out / f"{name}.csv")
        assert rows
        for row in rows:
            for column in {"y", "density", "kl", "left", "right"} & set(row):
                float(row[column])
    assert done.report == out / "report.html"
    assert len(done.summary) == 3
    assert not list(out.rglob("*.part"))


def test_report_has_a_row_for_each_claim(whole):
    _, done = whole
    page = done.report.read_text()
    assert (
        page.count("<figure ")
        == page.count("<svg") - page.count('role="img"')
        == len(NAMES)
    )
    assert page.count('<td data-head="Verdict"') == len(_claims.CLAIMS) == 7
    assert not re.search(r'(?:src|href)="(?!#)', page.replace("xlink:href", "href"))
    assert "<script" not in page
    relu = re.search(r'<tr><td data-head="Figure"><a href="#figure-5b">.*?</tr>', page)[
        0
    ]
    assert re.search(
        r">none of these</td><td [^>]*>1 head \(KL 6.8e-08\);", relu
    )  # what differs from width 1024, and what does not


def test_figures_keep_the_papers_order(whole):
    """Their trials are drawn in another: those that take longest first, and so to the
    end no process waits.
    """
    out, done = whole
    page = done.report.read_text()
    shown = re.findall(r'<figure id="figure-(\w+)"', page)
    # how KL falls, on the first screen
    assert shown == ["1b", *(name for name in NAMES if name != "1b")]
    apart = " ".join(
        re.findall(r'<tr><td data-head="Figure"><a href="#figure-(\w+)">', page)
    )
    assert apart == "1b 3b 3b 3b 4b 5b heads heads"
    cases = [
        part["case"]
        for part in json.loads((out / "manifest.json").read_text())["parts"]
    ]
    assert cases[1]["heads"] == 256


def test_report_shows_limit_law(whole):
    """Its formulas, the last of them in a box, and the LaTeX that they are of."""
    _, done = whole
    page = done.report.read_text()
    source = html.unescape(re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)[1])
    assert source == ns.paper.layer().latex(document=False, style="paper")
    box = re.search(r'<div class="formula boxed">.*?<details>', page, re.DOTALL)[0]
    assert r"\operatorname{Var}(Z^{u^{(4)}} \mid \mathring p) = \frac{1}{2} \sum" in box
    elements = [
        ElementTree.fromstring(text) for text in re.findall(r"<math.*?</math>", page)
    ]
    assert len(elements) == 9
    last = "".join(elements[-1].itertext())
    assert last == "Var(Zu(4)∣p˚)=12∑i,j,ka˚i,ja˚i,k𝔼[ZxjZxk]"


def test_mathml_of_formulas():
    """Primes, fractions, text, and letters of an alphabet of their own."""
    (row,) = ElementTree.fromstring(mathml(r"x_{i'}^2 + \frac{1}{2} \text{ if } Z"))
    tags = [each.tag.rpartition("}")[2] for each in row]
    assert tags == ["msubsup", "mo", "mfrac", "mtext", "mi"]
    assert "".join(row.itertext()) == "xi′2+12\xa0if\xa0Z"
    law = ElementTree.fromstring(mathml(r"Z \sim \mathcal N(0, \mathbb{E} x)"))
    assert "".join(law.itertext()) == "Z∼𝒩(0,𝔼x)"


def test_manifest_records_the_run(whole):
    out, _ = whole
    manifest = json.loads((out / "manifest.json").read_text())
    assert set(manifest["versions"]) == {
        "netsor",
        "python",
        "numpy",
        "scipy",
        "matplotlib",
    }
    assert manifest["seed"] == 0
    assert manifest["options"]["trials"] == 2
    assert manifest["seconds"]["all"] > 0
    assert manifest["random_numbers"] == sum(
        part["random_numbers"] for part in manifest["parts"]
    )
    for part in manifest["parts"]:
        case = part["case"]
        s, heads = case["tokens"], case["heads"]
        # the count by formula, and one for the output
        if not case["score"] and case["activation"] == "clip":
            limit = case["width"] == "inf"
            numbers = heads * s if limit else s * (s + 1) // 2 + 1 + heads * (s + 2) + 1
            if s <= (16 if limit else case["width"]) - 1:
                assert part["random_numbers"] == 600 * numbers


@pytest.mark.parametrize("workers", keep([1, 2, 3, 7], 2))
def test_results_are_independent_of_workers(workers, whole, tmp_path, monkeypatch):
    # no pictures; a partial can be sent
    monkeypatch.setattr(_reproduce, "drawn", partial(dict.fromkeys, ()))
    PaperStudy(Request(("1b",), out=tmp_path, **{**SMALL, "workers": workers})).run()
    assert read(tmp_path) == {"1b.csv": read(whole[0])["1b.csv"]}


def test_second_run_recomputes_nothing(whole, inline, unillustrated):
    out, _ = whole
    before, files = stamps(out), read(out)
    PaperStudy(Request(("1a",), out=out, **SMALL)).run()
    assert stamps(out) == before
    assert read(out) == files


def test_damaged_parts_are_recomputed(whole, inline, unillustrated):
    out, _ = whole
    before, files = stamps(out), read(out)
    options = Request(("2a",), out=out, **SMALL)
    first, second, third = (
        options.plan.store.path(part.key) for part in options.plan.parts(FIGURE)[:3]
    )
    first.write_bytes(first.read_bytes()[:-100])
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(content)
    other = next(
        path
        for path in (out / "parts").glob("*.npz")
        if path not in (first, second, third)
    )
    third.write_bytes(other.read_bytes())  # whole, but of other options
    PaperStudy(options).run()
    after = stamps(out)
    assert {name for name in before if before[name] != after[name]} == {
        first.name,
        second.name,
        third.name,
    }
    assert read(out) == files


def test_other_options_never_mix_with_old_data(whole, inline, unillustrated, tmp_path):
    out, _ = whole
    old = Request(("2a",), out=tmp_path, **SMALL)
    PaperStudy(old).run()
    files = read(tmp_path)
    assert files["2a.csv"] == read(out)["2a.csv"]
    PaperStudy(dataclasses.replace(old, seed=1)).run()
    assert read(tmp_path) != files
    PaperStudy(old).run()
    assert read(tmp_path) == files
    part = old.plan.parts(FIGURE)[0]
    changes = [{"seed": 1}, {"samples": 700}, {"trial": 5}]
    changes += [
        {"case": dataclasses.replace(part.case, **c)}
        for c in ({"width": 64}, {"heads": 3}, {"score": False})
    ]
    others = [
        old.plan.store.path(dataclasses.replace(part, **change).key)
        for change in changes
    ]
    assert len({old.plan.store.path(part.key), *others}) == 1 + len(changes)


def test_part_is_read_only_for_its_own_key(tmp_path):
    store = Store(tmp_path)
    store.save({"a": 1}, {"x": np.arange(3)})
    found = store.load({"a": 1})
    assert found is not None
    assert found["x"].tolist() == [0, 1, 2]
    assert store.load({"a": 2}) is None
    store.path({"a": 2}).write_bytes(store.path({"a": 1}).read_bytes())
    assert store.load({"a": 2}) is None
    whole = store.path({"a": 1}).read_bytes()
    for place in (*range(32), *range(32, len(whole), 13), len(whole) - 1):
        store.path({"a": 1}).write_bytes(
            whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        )
        assert store.load({"a": 1}) is None
        store.path({"a": 1}).write_bytes(whole[:place])
        assert store.load({"a": 1}) is None


def test_request_resolves_names_and_groups():
    assert Request(("all",)).chosen == Request().chosen == list(NAMES)
    assert Request(("heads", "1")).chosen == ["1a", "1b", "heads"]
    assert Request(("exp1",)).chosen == ["1a", "1b", "2b", "heads"]
    assert set(GROUPS) == {
        "all",
        "1",
        "2",
        "3",
        "4",
        "5",
        "exp1",
        "exp2",
        "exp3",
        "exp4",
    }
    every = figures(tokens=9)
    assert [case.width for case in every["1b"].cases] == [16, 64, 256, 1024]
    assert {case.tokens for case in every["4a"].cases} == {9}
    assert [(c.heads, c.width, c.head_dim) for c in every["3b"].cases] == [
        (1, 64, 64),
        (4, 256, 64),
        (16, 1024, 64),
    ]
    assert {case.samples for case in every["5b"].cases} == {100_000}
    assert {case.samples for case in every["1b"].cases} == {50_000}
    plan = Request().plan
    assert plan.trials == 10
    assert {part.samples for part in plan.parts(every["5b"])} == {100_000}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"names": ("6a",)}, "names='6a'"),
        ({"estimator": "best"}, "estimator='best'"),
        ({"samples": 10}, "samples=10"),
        ({"trials": 0}, "trials=0"),
    ],
)
def test_bad_options_are_named(wrong, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        Request(**wrong)


def test_rao_blackwell_and_draws_are_of_one_law(tmp_path):
    """The variance by densities and by draws, at level 1e-6."""
    plan = Request(("1b",), out=tmp_path, samples=40_000).plan
    arrays = plan.part(Case(width=16), 0).run()
    by_density = float(arrays["density"].mean(axis=0) @ (WEIGHTS * GRID**2))
    square = arrays["draws"].astype(float) ** 2
    assert abs(square.mean() - by_density) < 4.9 * square.std() / len(square) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["paper", "exact"])
def test_reproduce_with_one_estimator(estimator, inline, tmp_path, monkeypatch):
    """A figure of each kind, drawn as the report has it."""
    monkeypatch.setattr(_figures, "KINDS", ("svg",))
    done = ns.paper.reproduce(
        "1b", "2a", "heads", out=tmp_path, estimator=estimator, **SMALL
    )
    rows = table(tmp_path / "1b.csv")
    assert {row["estimator"] for row in rows} == {estimator}
    assert done.report.exists()
