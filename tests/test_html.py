"""What notebooks show: HTML that is well formed, escapes what a user named, and has the
numbers of the law.
"""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import netsor as ns
from tests.internals import Provenance, _process_pool, powers

from .inline import Inline

n = ns.Width("n")
ORIGIN = Provenance("exact", "by <hand> & eye")


def shown(result):
    """The elements of what a notebook shows, which parses, without its formulas."""
    text = re.sub(r"\$\$.*?\$\$", "", result._repr_html_(), flags=re.DOTALL)
    return ElementTree.fromstring(f"<div>{text.replace('<br>', '<br/>')}</div>")


def words(result):
    return " ".join("".join(shown(result).itertext()).split())


LAWS = {
    "mixture": lambda: ns.Mixture([0.0, 0.5], [1.0, 2.0], ORIGIN),
    "atoms": lambda: ns.Mixture([0.0, 0.0, 1.0], [0.0, 0.0, 2.0], ORIGIN),
    "a point": lambda: ns.Mixture(3.0, 0.0, ORIGIN),
    "heads": lambda: ns.Attention(np.eye(2)).law(heads=2, points=1024),
    "draws": lambda: ns.Empirical(np.linspace(-1, 1, 50)),
    "few draws": lambda: ns.Empirical([0.1, 0.2]),
}


@pytest.mark.parametrize("name", LAWS)
def test_cell_of_a_law_has_its_numbers_and_a_finite_picture(name):
    law = LAWS[name]()
    text = words(law)
    assert f"{law.std():.3g}"[:4] in text
    assert law.method in text
    (picture,) = shown(law).iter("{http://www.w3.org/2000/svg}svg")
    paths = [path.get("d") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
    assert not any("nan" in path or "inf" in path for path in paths)
    assert ("P(Y = 0)" in text) == (name == "atoms")


def test_cell_of_a_joint_law_lists_entries_and_correlations():
    cov = np.array([[1.0, 0.5], [0.5, 4.0]])
    text = words(ns.Joint(np.zeros((3, 2)), np.stack([cov] * 3), ORIGIN))
    assert "Joint law of 2 entries" in text
    assert "0.250" in text  # the correlation
    many = ns.Joint(np.zeros((2, 20)), np.stack([np.eye(20)] * 2), ORIGIN)
    assert "and 12 more entries" in words(many)
    still = ns.Joint(np.zeros((2, 2)), np.stack([np.diag([1.0, 0.0])] * 2), ORIGIN)
    assert "–" in words(still)  # no correlation with what does not vary
    assert "log evidence" in words(
        ns.Joint(np.zeros((1, 2)), cov[None], ORIGIN).condition({0: 1.0})
    )


def test_cell_of_an_estimate_has_value_and_error():
    assert words(ns.Estimate(0.5, 0.01)) == "0.5 ± 0.01"
    assert "1, 03 ± 0.1" in words(ns.Estimate(np.array([[1.0, 2.0], [3.0, 4.0]]), 0.1))
    assert "and 8 more, of shape (20,)" in words(
        ns.Estimate(np.arange(20.0), np.ones(20))
    )
    assert "inf" in words(ns.Estimate(1.0, math.inf))


def test_cells_of_programs_checks_and_plans_escape_names():
    x = ns.gaussian(n, 2)
    net = ns.Program(ns.weight(n, n, name="<b>") @ ns.tanh(x), "a < b & c")
    text = words(net)
    assert "program a < b & c, widths n" in text
    assert "<b>" in text
    assert "limit proved (Yang 2019: there are no scores)" in text
    assert net._repr_latex_().startswith("$$")
    assert "holds" in words(net.check())
    assert repr(net.check()).startswith("<Report on a < b & c: limit proved")
    assert "random numbers" in words(net.plan(n=8))
    tied = ns.Program(ns.dot(*[ns.weight(n, n) @ ns.gaussian(n)] * 2))
    assert "fails" in words(tied.check())
    assert "The limit does not exist" in tied._repr_latex_()


SMALL = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 8,
}
OUTSIDE = re.compile(
    r"<(?:script|link|iframe|img)\b|\b(?:src|href)=|url\(|@import|\bon\w+=",
    re.IGNORECASE,
)


def test_cells_need_no_script_and_no_other_file(monkeypatch):
    """No script and no other file: a notebook shows the same in VS Code, on a page
    without Jupyter, or offline.
    """
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    net = ns.paper.layer()
    audit = ns.audit(SMALL, compare={**SMALL, "n_layer": 3}, quick=True, progress=False)
    check = ns.coord_check(
        {**SMALL, "n_layer": 1},
        widths=(16, 32),
        parametrisation="mup",
        draws=4,
        progress=False,
    )
    results = [law() for law in LAWS.values()]
    results += [
        net,
        net.check(),
        net.plan(n=8),
        net.law(n=8, draws=50),
        ns.rate(net, [8, 16], draws=200),
    ]
    results += [ns.Estimate(0.5, 0.01), audit, audit[0], audit[0].findings[0], check]
    for result in results:
        assert OUTSIDE.findall(result._repr_html_()) == []
    assert OUTSIDE.findall('<link rel="x" href="y">') == ["<link", "href="]


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("scale by n^(−1/2).", "scale by n<sup>−1/2</sup>."),
        ("shifts like n^-2.2.", "shifts like n<sup>-2.2</sup>."),
        ("like n^a", "like n<sup>a</sup>"),
        ("<b>^2 & x", "&lt;b&gt;^2 &amp; x"),
        ("n^(<i>)", "n<sup>&lt;i&gt;</sup>"),
    ],
)
def test_exponents_are_raised_and_the_rest_is_escaped(text, markup):
    assert str(powers(text)) == markup
