"""How KL falls with the width: against the numbers of independent scripts."""

import math
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

import netsor as ns
from tests.internals import Rate, slope_of

# KL(width n ‖ limit) of the paper's layer (clip, 4 tokens, 2 heads), coupled and
# Rao–Blackwellised, with its error
KNOWN = {16: (2.218e-2, 0.01e-2), 64: (2.121e-3, 0.006e-3), 256: (1.58e-4, 0.015e-4)}


@pytest.fixture(scope="module")
def found():
    return ns.rate(ns.paper.layer(), [16, 64, 256], draws=4_000)


def test_rate_of_paper_layer_matches_independent_values(found):
    """Each KL within 4.5 errors (level 1e-5) of what independent scripts found; the
    slopes follow.
    """
    for (n, (value, error)), measured in zip(KNOWN.items(), found.kl, strict=True):
        assert abs(measured.value - value) < 4.5 * math.hypot(measured.error, error), n
    values = [value for value, _ in KNOWN.values()]
    between = [math.log(b / a) / math.log(4) for a, b in pairwise(values)]
    for slope, right in zip(found.slopes, between, strict=True):
        assert abs(slope.value - right) < 4.5 * slope.error
    # three even steps
    assert found.slope.value == pytest.approx(
        sum(s.value for s in found.slopes) / 2, rel=1e-9
    )


def test_rate_prints_and_plots_kl_against_width(found):
    assert repr(found).startswith("<Rate of layer(")
    assert f"n =     64: KL {found.kl[1]}" in str(found)
    assert "KL ± error" in found._repr_html_()
    axes = Figure().subplots()
    assert found.plot(axes, label="layer") is axes
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "width n")


def test_rate_grows_one_of_several_widths():
    """One grows; the other stays, in the limit too."""
    net = ns.paper.layer(low_rank=True)
    found = ns.rate(net, [8, 32], d=4, draws=300)
    assert found.limit.var() == net.law(n=ns.inf, d=4, draws=300).var()
    assert ns.rate(net, [8, 32], width="d", n=8, draws=300).width == "d"


def test_slope_of_infinite_or_zero_kl_is_nan():
    """Of a KL that is infinite or exactly 0 there is no slope; more draws help only
    where an error hides it.
    """
    few = "nan ± inf (too few draws for an error)"
    known = ns.Estimate(0.02, 0.001)
    cases = {(math.inf, 0.0): "nan ± nan", (0.0, 0.0): "nan ± nan", (-1e-9, 1e-8): few}
    for (value, error), said in cases.items():
        assert str(slope_of([4, 16], [known, ns.Estimate(value, error)])) == said
    n = ns.Width("n")
    equal = ns.rate(
        ns.Program(ns.weight(n, 1) @ ns.data(np.ones(1))), [4, 16], draws=100
    )
    assert "too few" not in str(equal)


def rate_with(values):
    """A rate at widths 4, 8, 16, … with these KL."""
    widths = tuple(4 * 2**k for k in range(len(values)))
    kl = tuple(ns.Estimate(value, 0.01 * min(value, 1.0)) for value in values)
    return Rate("net", "n", widths, kl, laws=(), limit=None)


def test_slope_of_rate_leaves_out_widths_of_infinite_kl():
    rate = rate_with([math.inf, 0.04, 0.01])
    assert rate.slope.value == pytest.approx(-2)
    assert str(rate).endswith("without n = 4, where KL is infinite")
    label = rate.plot(Figure().subplots()).get_legend().get_texts()[0].get_text()
    assert label.startswith("slope -2.00")


def test_rate_with_one_finite_kl_says_why_it_has_no_slope():
    rate = rate_with([math.inf, math.inf, 0.01])
    assert math.isnan(rate.slope.value)
    end = "no slope: KL is infinite at n = 4, 8; give larger widths"
    assert str(rate).endswith(end)
    rate.plot(Figure().subplots())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, [1, 2]), "net=3 must be a program"),
        (
            (ns.paper.layer(), [16]),
            r"widths=\[16\] must be two or more growing positive integers",
        ),
        ((ns.paper.layer(), [64, 16]), "must be two or more growing positive integers"),
        (
            (ns.paper.layer(), [1.5, 16]),
            "must be two or more growing positive integers",
        ),
        ((ns.paper.layer(), 16), "must be two or more growing positive integers"),
        (
            (ns.paper.layer(low_rank=True), [16, 32]),
            "width=None must be one of the widths that are not given, n, d",
        ),
        (
            (ns.Program(ns.weight(8, 8) @ ns.gaussian(8)), [16, 32]),
            "widths that are not given, none",
        ),
        (
            (ns.Program(ns.weight(ns.Width("n"), 8) @ ns.gaussian(8, 2)), [2, 4]),
            "must be a program with one entry, such as",
        ),
    ],
)
def test_rate_with_invalid_arguments_raises(arguments, words):
    with pytest.raises(ValueError, match=words):
        ns.rate(*arguments, draws=100)
    with pytest.raises(
        ValueError, match="width='m' must be one of the widths that are not given, n"
    ):
        ns.rate(ns.paper.layer(), [16, 32], width="m")
