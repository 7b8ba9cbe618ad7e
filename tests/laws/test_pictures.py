"""Pictures and formulas of one law."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

import netsor as ns
from tests.internals import Provenance, new, rendered

ORIGIN = Provenance("exact", "made for a test")
n = ns.Width("n")


@pytest.fixture
def axes():
    return Figure().subplots()


def curves(axes):
    """The lines by their labels."""
    return {line.get_label(): line for line in axes.lines}


def test_plot_shows_the_gaussian(axes):
    law = ns.Mixture([0.0, 0.0], [0.2, 2.0], ORIGIN)
    law.plot(axes, label="ours")
    found = curves(axes)
    assert list(found) == ["ours", "Gaussian, equal variance"]
    gaussian = found["Gaussian, equal variance"]
    assert gaussian.get_linestyle() == "--"
    y, density = gaussian.get_data()
    np.testing.assert_allclose(density, np.exp(-(y**2) / 2.2) / np.sqrt(2.2 * np.pi))
    np.testing.assert_allclose(found["ours"].get_ydata(), law.pdf(y))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(found)
    law.plot(axes, gaussian=False)
    assert len(axes.lines) == 3
    assert axes.lines[2].get_color() != axes.lines[0].get_color()


def test_logarithmic_plot_shows_the_tails(axes):
    law = ns.Mixture([0.0, 0.0], [0.2, 2.0], ORIGIN)
    law.plot(axes, log=True)
    assert axes.get_yscale() == "log"
    low, high = axes.get_xlim()
    assert law.cdf(low) == pytest.approx(5e-7, rel=1e-6)
    assert axes.get_ylim()[0] == pytest.approx(law.pdf(low) / 2)
    assert high == -low
    for wrong in ({"log": 1}, {"gaussian": None}):
        with pytest.raises(ValueError, match=r"must be True or False"):
            law.plot(axes, **wrong)


def test_arrows_begin_at_the_axis(axes):
    """0 is no point of a logarithmic axis."""
    ns.Mixture([0.0, 1.0], [0.0, 1.0], ORIGIN).plot(axes, log=True)
    (arrow,) = axes.texts
    assert arrow.xyann[1] == pytest.approx(axes.get_ylim()[0])


def test_point_masses_have_no_gaussian(axes):
    ns.Mixture(1.0, 0.0, ORIGIN).plot(axes)
    assert "Gaussian, equal variance" not in curves(axes)


def test_law_at_infinite_width_has_the_formula_of_its_program():
    net = ns.Program(ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
    law = net.law(n=ns.inf)
    assert f"$${law.latex()}$$" == net._repr_latex_()
    assert r"\boxed" in law.latex()
    assert pickle.loads(pickle.dumps(law)).var() == law.var()  # a copy is data alone
    layer = ns.paper.layer()
    assert f"$${layer.law(n=ns.inf).latex()}$$" == layer._repr_latex_()
    joint = ns.Program(ns.nn.attention(ns.gaussian(n, 2), 1)).law(n=ns.inf, draws=2)
    assert r"\operatorname{Cov}" in joint.latex()


def test_formulas_of_laws_without_a_program():
    assert ns.Mixture(0.5, 2.0, ORIGIN).latex() == r"Y \sim \mathcal{N}(0.5, 2)"
    assert (
        r"\frac{1}{3} \sum_{a=1}^{3} w_a"
        in ns.Attention(np.eye(2)).law(heads=3).latex()
    )
    with pytest.raises(
        ns.LawError, match="no formula is known for a law by the exact engine at n = 4"
    ):
        ns.Program(ns.weight(n, n) @ ns.gaussian(n)).law(n=4, draws=10).latex()


def test_last_law_is_blue_and_the_others_darken():
    laws = [ns.Empirical(np.linspace(-s, s, 50)) for s in (1.0, 2.0, 3.0, 4.0)]
    axes = ns.plot(*laws, labels=list("abcd"), ax=Figure().subplots())
    *others, last = [to_rgb(line.get_color()) for line in axes.lines]
    assert last == to_rgb("#0072b2")
    luminances = [sum(colour) for colour in others]
    assert luminances == sorted(luminances, reverse=True)
    assert len(set(luminances)) == 3


@pytest.mark.parametrize(("columns", "width"), [(1, 3.4), (2, 7.0)])
def test_paper_style_sets_the_size_and_ends(columns, width):
    before = dict(plt.rcParams)
    with ns.paper_style(columns, height=2):
        figure = plt.figure()
    plt.close(figure)
    assert figure.get_size_inches().tolist() == [width, 2.0]
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("wrong", [{"columns": 3}, {"height": 0}, {"height": "tall"}])
def test_paper_style_names_what_it_rejects(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))), ns.paper_style(**wrong):
        pass


def test_rendered_figure_is_laid_out_once_and_drawn_once_for_each_file(monkeypatch):
    """Also where the user's settings name a layout for every figure."""
    drawn, laid_out = [], []
    draw, execute = Figure.draw, ConstrainedLayoutEngine.execute

    def counted_draw(figure, *arguments):
        drawn.append(figure)
        return draw(figure, *arguments)

    def counted_layout(engine, figure):
        laid_out.append(figure)
        return execute(engine, figure)

    monkeypatch.setattr(Figure, "draw", counted_draw)
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", counted_layout)
    figure = new()
    figure.subplots().set_ylabel("one\ntwo\nthree")
    with plt.rc_context({"figure.constrained_layout.use": True}):
        svg, png = rendered(figure, "svg", "png")
    assert svg.lstrip().startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")
    assert (len(drawn), len(laid_out)) == (2, 1)
