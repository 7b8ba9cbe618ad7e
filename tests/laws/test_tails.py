"""Limits far out, at any scale, for any number of heads, and with spikes: against
integrals done here.
"""

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns

from ..keep import keep


def two_tokens(y, tau, heads):
    """log f(y) for two independent tokens with K = I and scores of standard deviation
    tau, by the trapezoidal rule.
    """
    z, step = np.linspace(-30, 30, 6001, retstep=True)
    a = special.expit(tau * np.sqrt(2) * z)
    w = a**2 + (1 - a) ** 2
    log_p = stats.norm.logpdf(z) + np.log(step)
    if heads == 2:
        few = slice(None, None, 8)
        w = (w[few, None] + w[few]).ravel() / 2
        log_p = (log_p[few, None] + log_p[few]).ravel() + 2 * np.log(8)
    return special.logsumexp(log_p - y**2 / (2 * w) - 0.5 * np.log(2 * np.pi * w))


@pytest.mark.parametrize(
    ("heads", "tau"),
    keep([(h, t) for t in (0.3, 1.0, 3.0) for h in (1, 2)], (1, 1.0), (2, 3.0)),
)
def test_far_tails_against_integrals(heads, tau):
    law = ns.Attention(np.eye(2), sigma_q=tau).law(heads)
    # at 200, 280 standard deviations out, it is off by 0.2 of 20,295
    for y in (0.0, 2.0, 5.0, 10.0, 40.0):
        assert law.logpdf(y) == pytest.approx(
            two_tokens(y, tau, heads), rel=1e-5, abs=2e-3
        )
    value, error = law.with_error.pdf([5.0, 8.0])
    right = [np.exp(two_tokens(y, tau, heads)) for y in (5.0, 8.0)]
    assert (np.abs(value - right) < 5 * error + 1e-4 * np.abs(right)).all()


def test_far_tail_of_the_example_in_the_docs():
    """log f(40) of the paper's limit: −840.50 by importance sampling."""
    assert ns.paper.layer().law(n=ns.inf).logpdf(40.0) == pytest.approx(
        -840.50, abs=0.1
    )


def test_tails_are_smooth_where_rules_meet():
    law = ns.paper.layer().law(n=ns.inf)
    y = np.linspace(2.0, 30.0, 600)
    value, error = law.with_error.logpdf(y)
    assert error.max() < 0.05
    # log f is concave. Where one rule follows the other, it may jump by the error of
    # the second rule, which depends on the basis among equal eigenvalues.
    allowed = error[:-2] + 2 * error[1:-1] + error[2:]
    assert (np.diff(value, 2) < 2 * allowed).all()
    assert np.abs(np.diff(np.log(law.sf(y)), 2)).max() < 0.05


def test_many_heads_are_gaussian():
    law = ns.paper.layer().law(n=ns.inf)
    many = law.with_heads(10**18)
    assert many.std() == pytest.approx(law.std(), rel=1e-12)
    assert many.kurtosis() == pytest.approx(2 * law.kurtosis() / 10**18, rel=1e-9)
    for y in (0.0, 1.0, 5.0, 12.0):
        assert many.logpdf(y) == pytest.approx(
            stats.norm.logpdf(y, scale=law.std()), rel=1e-8
        )
    assert many.moment(8) == pytest.approx(105 * law.var() ** 4, rel=1e-9)


def test_moments_of_a_sum_over_heads():
    law = ns.Attention(np.eye(3), sigma_q=1.4).law(1)
    # E[v^k]
    one = [law.moment(2 * k) / special.factorial2(2 * k - 1) for k in range(1, 4)]
    three = law.with_heads(3)
    second = (3 * one[1] + 6 * one[0] ** 2) / 9
    third = (3 * one[2] + 18 * one[1] * one[0] + 6 * one[0] ** 3) / 27
    assert three.moment(4) == pytest.approx(3 * second, rel=1e-9)
    assert three.moment(6) == pytest.approx(15 * third, rel=1e-9)
    assert np.isfinite(law.moment(300))
    with pytest.raises(
        ValueError, match="order=100000 must be an integer from 0 to 300: beyond it"
    ):
        law.moment(10**5)
    with pytest.raises(OverflowError, match=r"above the largest double"):
        ns.Attention(1e8 * np.eye(3)).law(2).moment(200)


SPIKES = {
    "zero token": (
        lambda heads: ns.Attention(np.diag([1.0, 0.0, 1.0]), sigma_q=6.0).law(heads)
    ),
    "small tokens": lambda heads: ns.Attention(np.diag([1.0, 1e-6, 1e-6])).law(heads),
    "steep scores": lambda heads: ns.Attention(np.diag([1.0, 1e4, 1.0])).law(heads),
}


@pytest.mark.parametrize("name", keep(SPIKES, "zero token"))
@pytest.mark.parametrize("heads", keep([1, 2, 8], 1))
def test_limits_with_a_spike_match_draws(name, heads):
    law = SPIKES[name](heads)
    assert len(law._rule.var) <= 4000  # the work is bounded
    rng = np.random.default_rng(0)
    v = law.scale * rng.choice(
        law.head.nodes[0], (200_000, heads), p=law.head.weights[0]
    ).mean(axis=1)
    for y in (1e-3 * law.std(), 0.1 * law.std(), law.std()):
        each = special.ndtr(y / np.sqrt(v))
        assert law.cdf(y) == pytest.approx(
            each.mean(), abs=5 * each.std() / len(v) ** 0.5 + 1e-3
        )
        assert law.cdf(law.ppf(law.cdf(y))) == pytest.approx(law.cdf(y), abs=1e-9)


@pytest.mark.parametrize("scale", keep([1e-8, 1e8], 1e-8))
def test_kernels_at_any_scale(scale):
    """K → cK with σ_Q → σ_Q/c leaves the scores, and multiplies the output by √c."""
    kernel = np.array([[1.0, 0.3], [0.3, 2.0]])
    one, other = (
        ns.Attention(kernel).law(2),
        ns.Attention(scale * kernel, sigma_q=1 / scale).law(2),
    )
    y = np.array([0.0, 0.3, 2.0, 9.0])
    np.testing.assert_allclose(
        other.logpdf(np.sqrt(scale) * y) + 0.5 * np.log(scale),
        one.logpdf(y),
        rtol=1e-6,
        atol=2e-3,
    )
    assert other.kurtosis() == pytest.approx(one.kurtosis(), rel=1e-8)
    with pytest.raises(ValueError, match="positive semidefinite"):
        ns.Attention(scale * np.array([[1.0, 2.0], [2.0, 1.0]]))


# What is given to a layer


def test_masks_agree_with_those_of_softmax():
    kernel = np.eye(3) + 0.2
    causal = ns.Attention(kernel, mask="causal")
    for token in range(3):
        by_array = ns.Attention(kernel, mask=np.tri(3) > 0).law(2, token)
        assert causal.law(2, token).var() == by_array.var()
    padding = ns.Attention(kernel, mask=np.array([True, True, False]))
    assert padding.law(2).var() == ns.Attention(kernel[:2, :2]).law(2).var()
    np.testing.assert_allclose(
        padding.linear_scaling().cov()[:2, :2],
        ns.Attention(kernel[:2, :2]).linear_scaling().cov(),
    )
    for mask, problem in (
        (
            np.tri(3),
            (
                "must be 'causal' or a boolean array, got an array of float64: write"
                " mask > 0"
            ),
        ),
        (
            np.array([0, 1, 1]),
            "must be 'causal' or a boolean array, got an array of int64",
        ),
        ("upper", "mask='upper' must be 'causal' or a boolean array"),
        (np.ones((2, 3), bool), r"mask of shape \(2, 3\) does not broadcast"),
        (
            np.array([[True, True, True], [False, False, False], [True, False, False]]),
            "leaves a row without any entry",
        ),
    ):
        with pytest.raises(ValueError, match=problem):
            ns.Attention(kernel, mask=mask)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="token=3 must be an integer from -3 to 2"):
        ns.Attention(np.eye(3)).law(2, token=3)
    with pytest.raises(ValueError, match="output is 0, without a density"):
        ns.Attention(np.zeros((2, 2))).law(1)
    with pytest.raises(ValueError, match="must be a real square matrix"):
        ns.Attention(np.eye(2) * 1j)
    for draws, problem in (
        (np.array([1.0, 2.0]) * 1j, "must be real numbers"),
        (np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), "must not be masked"),
    ):
        with pytest.raises(ValueError, match=problem):
            ns.Empirical(draws)
    for bandwidth in (-1.0, 0.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"bandwidth=.* must be a positive number"):
            ns.Empirical([0.0, 1.0], bandwidth=bandwidth)


@pytest.mark.slow
def test_limit_of_many_tokens():
    joint = ns.Attention(np.eye(150)).infinite_heads()
    one = ns.Attention(np.eye(150)).law(1)
    assert joint[0].var() == pytest.approx(
        one.var(), rel=6 * joint.origin.quadrature_error
    )
    assert joint.origin.quadrature_error < 0.1
    # Σ a² → E[e^2z]/E[e^z]²/s
    assert ns.Attention(np.eye(3000)).law(1).var() == pytest.approx(
        np.e / 3000, rel=0.02
    )
