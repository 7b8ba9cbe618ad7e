"""Points beyond the largest draw: a law that is known from replicas says little there,
and its errors say so.

Y is normal with mean 0 and variance 1 + BLUR². The laws are made of 2,000 draws of its
mean, so the truth is known at any point.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import Provenance

ORIGIN = Provenance("exact", "made for a test")
SIZE = 2000
BLUR = 0.1
FAR = np.array([-12.0, -6.0, -4.95, 4.95, 6.0, 12.0, 60.0])
TRUTH = stats.norm(0.0, np.hypot(1.0, BLUR))


def sample(seed=0):
    return np.random.default_rng(seed).standard_normal(SIZE)


LAWS = {
    "kernels around draws": lambda: ns.Empirical(sample()),
    "draws": lambda: ns.Mixture(sample(), 0.0, ORIGIN),
    "narrow components": lambda: ns.Mixture(sample(), BLUR**2, ORIGIN),
    "weights": lambda: ns.Mixture(sample(), BLUR**2, ORIGIN, weight=np.exp(sample(1))),
    "five replicas": lambda: ns.Mixture(sample()[:5], BLUR**2, ORIGIN),
}


@pytest.mark.parametrize("name", LAWS)
def test_errors_beyond_the_largest_draw_cover(name):
    law = LAWS[name]().with_error
    for known, truth in (
        (law.pdf, TRUTH.pdf),
        (law.cdf, TRUTH.cdf),
        (law.sf, TRUTH.sf),
    ):
        value, error = known(FAR)
        assert (np.abs(value - truth(FAR)) <= 2 * error).all()


@pytest.mark.parametrize("name", LAWS)
def test_a_density_that_no_draw_reaches_is_not_known(name):
    law = LAWS[name]()
    value, error = law.with_error.pdf([-60.0, 60.0])
    assert value.tolist() == [0.0, 0.0]
    assert (error == np.inf).all()
    # at most the share of one more draw, or so
    shares = law.with_error.sf([-60.0, 60.0]).error
    assert ((shares >= 0.5 / law.effective) & (shares < 3 / law.effective)).all()


def test_joint_laws_far_out():
    means = np.random.default_rng(2).standard_normal((SIZE, 2))
    law = ns.Joint(means, np.broadcast_to(BLUR**2 * np.eye(2), (SIZE, 2, 2)), ORIGIN)
    value, error = law.with_error.pdf([[4.95, 4.95], [60.0, 0.0], [0.0, 0.0]])
    assert value[1] == 0.0
    assert error[1] == np.inf
    assert np.isfinite(error[[0, 2]]).all()
    assert abs(value[0] - TRUTH.pdf(4.95) ** 2) <= error[0]
    for corner in ([4.95, 4.95], [60.0, 60.0]):
        value, error = law.with_error.cdf(np.inf, lower=corner)
        assert abs(value - TRUTH.sf(corner[0]) ** 2) <= error < 3 / SIZE
    assert law.with_error.cdf(np.inf) == (1.0, 0.0)


def test_laws_without_doubt_stay_exact_far_out():
    """One Gaussian, and many replicas that agree."""
    joint = ns.Joint(np.zeros((50, 2)), np.broadcast_to(np.eye(2), (50, 2, 2)), ORIGIN)
    assert joint.with_error.pdf([60.0, 60.0]) == (0.0, 0.0)
    assert joint.with_error.cdf(np.inf, lower=[60.0, 60.0]) == (0.0, 0.0)
    alike = 1 + 1e-6 * np.random.default_rng(3).standard_normal(SIZE)
    for law in (
        ns.Mixture(0.0, 1.0, ORIGIN),
        ns.Mixture(0.0, np.ones(SIZE), ORIGIN),
        ns.Mixture(0.0, alike, ORIGIN),
    ):
        assert law.with_error.pdf(60.0) == (0.0, 0.0)
        assert law.with_error.sf(60.0) == (0.0, 0.0)
    value, error = ns.Mixture(0.0, 1.0, ORIGIN).with_error.logpdf(60.0)
    assert value == pytest.approx(stats.norm.logpdf(60.0))
    assert error == 0.0


def test_both_tails_of_a_symmetric_law_have_one_error():
    """Errors of the upper tail were those of 1 minus the lower one: 0, or rounding."""
    of_replicas = ns.Mixture(0.0, np.exp(sample()), ORIGIN).with_error
    of_attention = ns.paper.layer().law(n=ns.inf).with_error
    for law, at in ((of_replicas, 60.0), (of_attention, 10.0)):
        assert law.sf(at).error == pytest.approx(law.cdf(-at).error, rel=1e-6)
        assert law.sf(at).error > 0


@pytest.mark.parametrize("level", [5e-324, 1e-308])
def test_the_error_of_a_quantile_of_a_subnormal_level_is_infinite(level):
    """It overflowed: the log odds of such a level are known to nobody."""
    law = ns.paper.layer().law(n=8, draws=200)
    value, error = law.with_error.ppf(level)
    assert np.isfinite(value)
    assert error == np.inf
