"""The habits of scipy.stats: logcdf, logsf, stats, expect and rng, against scipy's own
normal and closed forms.
"""

import math

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import Provenance

ORIGIN = Provenance("exact", "by hand")
FAR = np.array([-1e3, -60.0, -39.0, -8.0, -0.3, 0.0, 0.7, 9.0, 41.0, 300.0])
NORMAL = ns.Mixture(0.0, 1.0, ORIGIN)


def test_logarithms_of_tails_of_a_normal():
    np.testing.assert_allclose(NORMAL.logsf(FAR), stats.norm.logsf(FAR), rtol=1e-12)
    np.testing.assert_allclose(NORMAL.logcdf(FAR), stats.norm.logcdf(FAR), rtol=1e-12)
    assert NORMAL.logsf([-np.inf, np.inf]).tolist() == [0.0, -np.inf]
    assert math.isnan(NORMAL.logcdf(np.nan))


def test_logarithms_of_tails_of_a_mixture():
    """Each side has its own components."""
    law = ns.Mixture([-1.0, 2.0], [1.0, 0.25], ORIGIN)
    low, high = stats.norm(-1.0, 1.0), stats.norm(2.0, 0.5)
    for y in (-70.0, -3.0, 1.0, 60.0):
        both = [
            np.logaddexp(getattr(low, f)(y), getattr(high, f)(y)) - math.log(2)
            for f in ("logcdf", "logsf")
        ]
        np.testing.assert_allclose([law.logcdf(y), law.logsf(y)], both, rtol=1e-11)


def test_logarithms_of_tails_of_heads():
    """Two heads at infinite width: as sf where that is a double; beyond, the slope is
    that of the density.
    """
    law = ns.Attention(np.eye(4)).law(heads=2, points=1024)
    near = np.array([-2.0, 0.0, 1.0, 5.0])
    np.testing.assert_allclose(np.exp(law.logsf(near)), law.sf(near), rtol=1e-12)
    np.testing.assert_allclose(np.exp(law.logcdf(near)), law.cdf(near), rtol=1e-12)
    far = 80 * law.std()
    assert law.sf(far) == 0.0
    h = 1e-4
    hazard = (law.logsf(far - h) - law.logsf(far + h)) / (2 * h)  # f/(1 − F)
    assert math.log(hazard) == pytest.approx(law.logpdf(far) - law.logsf(far), abs=1e-3)
    assert law.logcdf(-far) == law.logsf(far)


def test_logarithms_of_tails_of_point_masses():
    law = ns.Mixture([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], ORIGIN)
    assert law.logcdf(0.0) == pytest.approx(math.log(law.cdf(0.0)), rel=1e-12)
    assert law.expect(lambda y: y**2 + 1) == pytest.approx(law.moment(2) + 1, rel=1e-9)
    point = ns.Mixture(3.0, 0.0, ORIGIN)
    assert point.expect(np.exp) == math.exp(3.0)
    assert point.logsf(2.0) == 0.0


def test_stats_returns_the_chosen_moments():
    law = ns.Mixture([0.0, 1.0], [1.0, 2.0], ORIGIN)
    assert law.stats() == (law.mean(), law.var())
    assert law.stats("kv") == (law.var(), law.kurtosis())  # in scipy's order
    assert law.stats("s") == law.skewness()
    for wrong in ("", "x", "mvx", 3):
        with pytest.raises(
            ns.LawError, match=r"stats: moments=.* must be letters among m, v, s and k"
        ):
            law.stats(wrong)


@pytest.mark.parametrize(
    ("f", "value"),
    [
        (np.cos, math.exp(-0.5)),
        (np.abs, math.sqrt(2 / math.pi)),
        (lambda y: y > 1, stats.norm.sf(1.0)),
        (np.ones_like, 1),
    ],
)
def test_expectations_of_a_normal(f, value):
    """Smooth, with a kink, with a jump, constant."""
    assert NORMAL.expect(f) == pytest.approx(value, rel=1e-7)


def test_expectations_with_errors():
    """Of a law from draws the error covers E[Y²] as the engine's own moment has it; of
    an exact one there is none.
    """
    law = ns.paper.layer().law(n=64, draws=2_000)
    value, error = law.with_error.expect(np.square)
    assert value == pytest.approx(law.moment(2), rel=1e-7)
    assert error == pytest.approx(law.with_error.moment(2).error, rel=0.5)
    assert NORMAL.with_error.expect(np.square).error == 0.0
    sample = ns.Empirical(np.random.default_rng(0).standard_normal(5_000))
    value, error = sample.with_error.expect(np.square)
    assert value == pytest.approx(sample.moment(2), rel=1e-6)
    assert 0 < error < 0.1


def test_expect_raises_for_functions_without_expectation():
    for wrong, words in (
        (3, "func=3 must be a function of numbers"),
        (lambda y: y[:2], "it must act on each number"),
        (lambda y: np.where(y > 0, np.inf, 0.0), "is not finite"),
        (lambda y: np.exp(1j * y), "func gave complex numbers"),
    ):
        with pytest.raises(ns.LawError, match=words):
            NORMAL.expect(wrong)


def test_rvs_takes_seeds_and_generators():
    """The same numbers as a seed, and each time new ones from a generator that goes
    on.
    """
    joint = ns.Joint(np.zeros((3, 2)), np.stack([np.eye(2)] * 3), ORIGIN)
    for law in (NORMAL, joint):
        np.testing.assert_array_equal(law.rvs(5, seed=3), law.rvs(5, rng=3))
        np.testing.assert_array_equal(
            law.rvs(5, seed=3), law.rvs(5, rng=np.random.default_rng(3))
        )
        rng = np.random.default_rng(3)
        assert (law.rvs(5, rng=rng) != law.rvs(5, rng=rng)).all()
        with pytest.raises(
            ns.LawError,
            match="seed=1 must be left out with rng: both determine the draws",
        ):
            law.rvs(5, seed=1, rng=2)
        with pytest.raises(
            ns.LawError, match=r"rng='a' must be a numpy.random.Generator or an integer"
        ):
            law.rvs(5, rng="a")
