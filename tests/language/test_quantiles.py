"""Laws of i.i.d. numbers as functions of normal ones, against scipy."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import Distribution, transformed, truncated_normal

UNIFORM = Distribution("uniform", (0.5, 1 / math.sqrt(12)))
CASES = {
    "uniform": (UNIFORM, stats.uniform()),
    "exponential": (Distribution("exponential", (2.0,)), stats.expon(scale=0.5)),
    "both": (truncated_normal(0.0, 1.0, -1.0, 2.0), stats.truncnorm(-1, 2)),
    "upper tail": (truncated_normal(0.0, 1.0, 6.0, 9.0), stats.truncnorm(6, 9)),
    "lower tail": (
        truncated_normal(1.0, 2.0, -15.0, -11.0),
        stats.truncnorm(-8, -6, 1, 2),
    ),
    "one end far away": (
        truncated_normal(0.0, 1.0, -1.0, 100.0),
        stats.truncnorm(-1, 100),
    ),
    "log-uniform": (
        transformed("exp", transformed("mul", UNIFORM, math.log(100.0))),
        stats.loguniform(1, 100),
    ),
}


# Functions of uniform numbers that are infinite at an end of the interval


def log_of_uniform(high):
    """log U, U uniform between 0 and `high`: the law of log high minus an exponential
    number.
    """
    uniform = Distribution("uniform", (high / 2, high / math.sqrt(12)))
    return transformed("log", uniform)


@pytest.mark.parametrize("high", [7e-8, 0.3, 1.0, 16.0])
def test_log_of_uniform_from_zero_has_the_moments_of_an_exponential(high):
    """The decays of gated delta rules are logarithms of U(0, 16)."""
    law = log_of_uniform(high)
    assert law.mean == pytest.approx(math.log(high) - 1, rel=1e-12)
    assert law.std == pytest.approx(1.0, rel=1e-12)
    assert law.kurtosis == pytest.approx(9.0, rel=1e-12)
    z = np.array([-8.0, -7.0, -1.0, 2.0])
    expected = math.log(high) + stats.norm.logcdf(z)
    assert law(z) == pytest.approx(expected, rel=1e-12)


def test_negative_log_of_negative_log_of_uniform_has_the_moments_of_gumbel():
    exponential = transformed("neg", log_of_uniform(1.0))
    law = transformed("neg", transformed("log", exponential))
    gumbel = stats.gumbel_r()
    assert law.mean == pytest.approx(gumbel.mean(), rel=1e-9)
    assert law.std == pytest.approx(gumbel.std(), rel=1e-9)
    assert law.kurtosis == pytest.approx(3 + gumbel.stats("k"), rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_distribution_is_the_quantile_function_of_scipy(case):
    law, peer = CASES[case]
    z = np.linspace(-5, 5, 101)  # scipy loses digits beyond
    lower = peer.ppf(stats.norm.cdf(z[z < 0]))
    upper = peer.isf(stats.norm.sf(z[z >= 0]))
    assert np.asarray(law(z)) == pytest.approx(np.concatenate([lower, upper]), rel=1e-7)
    assert law.mean == pytest.approx(peer.mean(), rel=1e-7)
    assert law.std == pytest.approx(peer.std(), rel=1e-6)
    assert pickle.loads(pickle.dumps(law)) == law
    assert np.isfinite(law(np.array([-40.0, 40.0]))).all()


def test_truncated_normal_keeps_its_digits_in_the_tail():
    law = truncated_normal(0.0, 1.0, -1.0, 100.0)
    expected = stats.norm.isf(stats.norm.sf(8.0) * stats.norm.cdf(1.0))
    assert law(np.array([8.0])) == pytest.approx(expected, rel=1e-12)


def test_shifts_and_multiples_stay_basic_laws():
    law = transformed("add", transformed("mul", UNIFORM, -6.0), 3.0)
    assert (law.law, law.mean) == ("uniform", 0.0)
    assert law.std == pytest.approx(math.sqrt(3))
    law = transformed("rsub", truncated_normal(0.0, 1.0, -1.0, 2.0), 5.0)
    assert law == Distribution("truncated normal", (5.0, 1.0, 3.0, 6.0))
    assert truncated_normal(0.0, 0.02, -2.0, 2.0) == Distribution("normal", (0.0, 0.02))
    assert transformed("cumsum", UNIFORM) is None


def test_erfinv_of_uniform_numbers_is_a_truncated_normal():
    low, high = 2 * stats.norm.cdf(-1) - 1, 2 * stats.norm.cdf(2) - 1
    middle, std = (low + high) / 2, (high - low) / math.sqrt(12)
    law = transformed("erfinv", Distribution("uniform", (middle, std)))
    law = transformed("clamp", transformed("mul", law, math.sqrt(2)), -1.0, 2.0)
    assert law.law == "truncated normal"
    assert law.arguments == pytest.approx((0.0, 1.0, -1.0, 2.0))


def test_clamps_with_one_bound_are_clamps():
    law = transformed("exp", UNIFORM)
    assert transformed("clamp_min", law, 0.7) == transformed("clamp", law, 0.7)
    assert transformed("clamp_max", law, 1.2) == transformed("clamp", law, None, 1.2)
    assert transformed("clamp_min", UNIFORM, -9.0) is UNIFORM


def test_uniform_vector_at_infinite_width_has_the_closed_form_variance():
    n = ns.Width("n")
    uniform = Distribution("uniform", (0.0, math.sqrt(3.0)))  # between −3 and 3
    x = ns.nonlin(uniform.function(), ns.gaussian(n))
    net = ns.Program(ns.weight(n, n) @ ns.relu(x - ns.ones(n)))
    assert net.law(n=ns.inf).var() == pytest.approx(4 / 9, rel=1e-3)
    assert net.law(n=32, draws=4000).var() == pytest.approx(4 / 9, rel=0.05)
