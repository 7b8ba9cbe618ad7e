"""The width beyond which a law is near its limit."""

import numpy as np
import pytest

import netsor as ns
from netsor import inf
from tests.internals import _convergence, difference

from ..keep import keep

n = ns.Width("n")
NET = ns.paper.layer()
# over the width
FIRST = {"variance": 0.757412 / 0.391971, "kurtosis": 26.8505 / 0.121659, "tv": 1.09967}
DRAWS = 8000


@pytest.mark.parametrize(
    ("of", "tolerance"),
    keep(
        [("variance", 0.05), ("kurtosis", 0.5), ("tv", 0.01)],
        ("variance", 0.05),
    ),
)
def test_interval_has_the_width_of_the_first_correction(of, tolerance):
    found = ns.width_needed(NET, tolerance, of, draws=DRAWS)
    # the next order is some percent
    assert 0.85 * found.low < FIRST[of] / tolerance < 1.15 * found.high
    assert found.high < 3 * found.low
    value, error = found.differences[int(found.high)]
    assert value + 2 * error <= tolerance
    value, error = found.differences[found.low]
    assert value - 2 * error >= tolerance


@pytest.mark.slow
def test_width_needed_for_kl_contains_the_first_correction():
    found = ns.width_needed(NET, 1e-3, draws=DRAWS)
    assert found.low < np.sqrt(11.0587 / 1e-3) < 1.1 * found.high


@pytest.mark.slow
def test_width_needed_for_quantiles_grows_in_the_tails():
    tail = ns.width_needed(NET, 0.05, 0.999, draws=DRAWS)
    # tails need more
    assert tail.low > 4 * ns.width_needed(NET, 0.05, 0.9, draws=DRAWS).low
    q = NET.law(n=inf).ppf(0.999)
    right = abs(NET.law(n=512, draws=40_000).ppf(0.999) - q) / NET.law(n=inf).std()
    value, error = difference(
        NET.law(n=512, draws=40_000), NET.law(n=inf, draws=40_000), 0.999
    )
    assert value == pytest.approx(right, abs=4 * error + 0.1 * right)


@pytest.mark.slow
def test_more_draws_give_a_smaller_interval():
    few, many = (
        ns.width_needed(NET, 0.02, "variance", draws=draws) for draws in (2000, 32_000)
    )
    assert many.high / many.low < few.high / few.low


def test_width_needed_may_be_unbounded_on_either_side(monkeypatch):
    near = ns.width_needed(NET, 0.99, "variance", draws=500)
    assert near.low == 1
    assert "or from a smaller width" in near.summary
    monkeypatch.setattr(_convergence, "MOST", 512)
    never = ns.width_needed(NET, 1e-9, 0.99, draws=500)
    assert never.high == inf
    assert "not up to n =" in never.summary


def test_width_needed_keeps_the_other_widths():
    low_rank = ns.paper.layer(low_rank=True)
    found = ns.width_needed(low_rank, 0.05, "variance", width="n", d=8, draws=2000)
    assert found.width == "n"
    assert found.low < found.high


def test_width_needed_prints_its_summary():
    found = ns.width_needed(NET, 0.1, "variance", draws=500)
    assert str(found).splitlines()[-1] == found.summary
    assert repr(found) == f"<WidthNeeded of {NET.name}: {found.summary}>"
    assert found.summary in found._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((NET, 0.0), "tolerance=0.0 must be a positive number"),
        ((NET, 0.1, "mean"), "of='mean' must be 'kl', 'tv'"),
        ((NET, 0.1, 2.0), "of=2.0 must be 'kl', 'tv'"),
        ((NET, 0.1, lambda law: law.var()), "of=<function .* must be 'kl', 'tv'"),
        (
            (ns.paper.layer(low_rank=True), 0.1),
            "width=None must be one of the widths that are not given, n, d",
        ),
        ((ns.Program(ns.gaussian(n, 2)), 0.1), "a program with one entry"),
        (
            (ns.Program(ns.gaussian(n)), 0.1, "kurtosis"),
            "a quantity that is not 0 in the limit",
        ),
        ((3, 0.1), "net=3 must be a program"),
    ],
)
def test_width_needed_with_invalid_arguments_raises(arguments, match):
    with pytest.raises(ValueError, match=match):
        ns.width_needed(*arguments, draws=100)


@pytest.mark.parametrize(
    "call",
    [
        lambda **a: ns.rate(NET, [16, 32], **a),
        lambda **a: ns.width_needed(NET, 0.1, **a),
    ],
)
def test_other_arguments_are_widths(call):
    with pytest.raises(
        ValueError, match="progress=False must be left out: other arguments are widths"
    ):
        call(progress=False)


def test_widths_below_the_first_guess_count():
    """A perceptron has no correction, so the search begins at a fixed width; from 256
    on was its answer once.
    """
    n = ns.Width("n")
    net = ns.Program(
        (ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ ns.gaussian(n, 2)))[0]
    )
    found = ns.width_needed(net, 3.0, "variance", draws=500)
    assert (found.low, found.high) == (1, 2)
