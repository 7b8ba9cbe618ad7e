"""`law.with_error` has every method of a law that returns numbers, with errors that
agree with each other.
"""

import inspect

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import Provenance

ORIGIN = Provenance("exact", "made for a test")
RNG = np.random.default_rng(0)
V = RNG.gamma(8.0, 0.1, 400)
DRAWS = RNG.standard_normal(400)
LAWS = {
    "Gaussian": lambda: ns.Mixture(0.0, 2.0, ORIGIN),
    "replicas": lambda: ns.Mixture(0.0, V, ORIGIN),
    "means": lambda: ns.Mixture(DRAWS, V, ORIGIN),
    "draws": lambda: ns.Mixture(DRAWS, 0.0, ORIGIN),
    "kernels": lambda: ns.Empirical(DRAWS),
    "atom": lambda: ns.Mixture(0.0, np.where(V > 0.8, V, 0.0), ORIGIN),
    "limit": lambda: ns.paper.layer(tokens=2).law(n=ns.inf),
}
# what returns no number, or a law
OTHERS = {
    "correction",
    "doubt",
    "gaussian",
    "latex",
    "plot",
    "rvs",
    "save",
    "support",
}
JOINT_OTHERS = (OTHERS - {"doubt", "support"}) | {
    "combination",
    "condition",
    "marginal",
}
MOMENTS = {"mean", "var", "std", "skewness", "kurtosis", "median", "entropy"}
ARGUMENTS = {
    "ppf": (0.3,),
    "isf": (0.3,),
    "interval": (0.9,),
    "stats": ("mvsk",),
    "moment": (4,),
    "expect": (np.abs,),
} | dict.fromkeys(MOMENTS, ())


def methods(cls):
    return {
        name
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def test_every_number_of_a_law_has_an_error():
    law = LAWS["replicas"]()
    assert methods(ns.Law) - OTHERS == methods(type(law.with_error))
    joint = ns.Joint(DRAWS.reshape(-1, 2), np.eye(2) * V[:200, None, None], ORIGIN)
    assert methods(ns.Joint) - JOINT_OTHERS == methods(type(joint.with_error))


@pytest.mark.parametrize("name", LAWS)
def test_estimates_have_the_values_of_the_law(name):
    law = LAWS[name]()
    for method in methods(ns.Law) - OTHERS:
        arguments = ARGUMENTS.get(method, (0.4,))
        value = getattr(law, method)(*arguments)
        estimate = getattr(law.with_error, method)(*arguments)
        if isinstance(value, tuple):
            assert isinstance(estimate, tuple)
            estimate = tuple(each.value for each in estimate)
        else:
            estimate = estimate.value
        np.testing.assert_allclose(estimate, value, rtol=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_errors_of_upper_quantiles_are_those_of_lower_ones(name):
    law = LAWS[name]()
    q = np.array([1e-3, 0.2, 0.5, 0.9])
    lower, upper = law.with_error.ppf(1 - q), law.with_error.isf(q)
    np.testing.assert_allclose(upper.value, lower.value, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(upper.error, lower.error, rtol=1e-4, atol=1e-9)
    first, last = law.with_error.interval(0.8)
    assert first == law.with_error.ppf((1 - 0.8) / 2)
    assert last == law.with_error.isf((1 - 0.8) / 2)


@pytest.mark.parametrize("name", LAWS)
def test_errors_of_logarithms_are_relative_errors(name):
    law = LAWS[name]().with_error
    y = np.array([-0.5, 0.4, 1.0])
    for logarithm, probability in ((law.logcdf, law.cdf), (law.logsf, law.sf)):
        (logs, log_error), (value, error) = logarithm(y), probability(y)
        np.testing.assert_allclose(logs, np.log(value), rtol=1e-9)
        np.testing.assert_allclose(log_error, error / value, rtol=1e-3, atol=1e-12)


def test_log_probabilities_without_doubt_are_exact_far_out():
    law = LAWS["Gaussian"]().with_error
    value, error = law.logsf(100.0)
    assert value == pytest.approx(stats.norm.logsf(100.0, scale=np.sqrt(2.0)))
    assert error == 0.0
    assert law.logcdf(-100.0) == (value, 0.0)


def test_log_probability_that_underflows_keeps_its_error():
    """Variances that differ by a thousandth say much about P(Y > 60)."""
    v = 1 + 1e-3 * RNG.standard_normal(500)
    value, error = ns.Mixture(0.0, v, ORIGIN).with_error.logsf(60.0)
    # at v = 1 + σZ: log E[P(√v Z > 60)] = −1800 (1 − 900 · 1e-6), up to its prefactor
    assert value == pytest.approx(stats.norm.logsf(60.0) + 0.5 * (1800e-3) ** 2, abs=1)
    assert 0.1 < error < 10


def test_log_probability_beyond_all_draws_is_not_known():
    for name in ("draws", "kernels"):
        law = LAWS[name]().with_error
        assert law.logsf(60.0).error == np.inf
        assert law.logcdf(-60.0).error == np.inf


def test_joint_standard_deviations_and_log_densities_have_errors():
    joint = ns.Joint(DRAWS.reshape(-1, 2), np.eye(2) * V[:200, None, None], ORIGIN)
    (std, error), (var, var_error) = joint.with_error.std(), joint.with_error.var()
    np.testing.assert_allclose(std, np.sqrt(var))
    np.testing.assert_allclose(error, var_error / (2 * std))
    y = [[0.3, -0.2], [1.0, 2.0]]
    (logs, log_error), (value, error) = (
        joint.with_error.logpdf(y),
        joint.with_error.pdf(y),
    )
    np.testing.assert_allclose(logs, np.log(value))
    np.testing.assert_allclose(log_error, error / value)
    assert joint.with_error.logpdf([60.0, 60.0]).error == np.inf
    one = ns.Joint(np.zeros((1, 2)), np.eye(2)[None], ORIGIN)
    assert one.with_error.logpdf([60.0, 0.0]).error == 0.0
    assert one.with_error.logpdf([60.0, 0.0]).value == pytest.approx(
        -1800 - np.log(2 * np.pi)
    )
