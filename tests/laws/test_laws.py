"""One property suite over every kind of law."""

import numpy as np
import pytest
from examples import attention_layer
from scipy import stats

import netsor as ns
from tests.internals import Head, Provenance, compress, head_rule

from ..keep import keep

ORIGIN = Provenance("exact", "made for a test", seed=None)
rng = np.random.default_rng(7)


def gated():
    """A program whose output is known by draws alone."""
    n = ns.Width("n")
    return ns.Program(ns.tanh(ns.weight(n, n) @ ns.gaussian(n))).law(n=8, draws=20_000)


LAWS = {
    "gaussian": lambda: ns.Mixture(0.0, 0.7, ORIGIN),
    "mixture": lambda: ns.Mixture(0.0, rng.gamma(3.0, 0.2, 5000), ORIGIN),
    "small mixture": lambda: ns.Mixture(0.0, [0.1, 1.0, 4.0], ORIGIN),
    "mixture with means": lambda: ns.Mixture([-1.0, 0.5, 0.4], [0.3, 0.2, 1.0], ORIGIN),
    "width 64": lambda: attention_layer.net()[0].law(n=64, draws=20_000),
    "one head": lambda: attention_layer.net(heads=1)[0].law(n=ns.inf),
    "two heads": lambda: attention_layer.net()[0].law(n=ns.inf),
    "many heads": lambda: attention_layer.net(heads=1000)[0].law(n=ns.inf),
    "sixteen tokens": lambda: attention_layer.net(tokens=16)[0].law(n=ns.inf),
    "masked": lambda: ns.Attention(
        np.eye(4) + 0.3, mask=np.tri(4) > 0, sigma_q=1.5
    ).law(heads=3, token=2),
    "combination": lambda: (
        attention_layer.net().law(n=16, draws=5000).combination([1.0, -1.0, 0.5, 0.0])
    ),
    "kernel estimate": lambda: ns.Empirical(rng.standard_normal(3000)),
}


def grid(law, points=4001, reach=40.0):
    """Nodes and weights for integrals over the line, even in arcsinh(y)."""
    x, step = np.linspace(-1, 1, points, retstep=True)
    last = np.arcsinh(reach)
    return law.mean() + law.std() * np.sinh(
        last * x
    ), step * last * law.std() * np.cosh(last * x)


@pytest.fixture(
    scope="module",
    params=keep(LAWS, *(set(LAWS) - {"sixteen tokens", "two heads", "masked"})),
)
def law(request):
    return LAWS[request.param]()


def test_density_integrates_to_one(law):
    y, w = grid(law)
    assert np.sum(w * law.pdf(y)) == pytest.approx(1, abs=1e-6)


def test_distribution_function_differentiates_to_the_density(law):
    y = np.linspace(-2, 2, 9) * law.std() + law.mean()
    h = 1e-4 * law.std()
    np.testing.assert_allclose(
        (law.cdf(y + h) - law.cdf(y - h)) / (2 * h), law.pdf(y), rtol=2e-5, atol=1e-7
    )


def test_survival_function_is_one_minus_cdf(law):
    y = np.linspace(-3, 3, 7) * law.std() + law.mean()
    np.testing.assert_allclose(law.cdf(y) + law.sf(y), 1, atol=1e-9)
    assert law.sf(law.mean() + 8 * law.std()) >= 0


def test_quantiles_invert_the_cdf(law):
    q = np.array([1e-3, 0.1, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(law.cdf(law.ppf(q)), q, atol=1e-7)
    assert law.ppf(0.0) == -np.inf
    low, high = law.interval(0.8)
    assert law.cdf(high) - law.cdf(low) == pytest.approx(0.8, abs=1e-6)


def test_moments_agree_with_integration(law):
    y, w = grid(law)
    f = w * law.pdf(y)
    mean = np.sum(f * y)
    assert law.mean() == pytest.approx(mean, abs=2e-6)
    variance = np.sum(f * (y - mean) ** 2)
    assert law.var() == pytest.approx(variance, rel=1e-5)
    assert law.std() == pytest.approx(variance**0.5, rel=1e-5)
    assert law.kurtosis() == pytest.approx(
        np.sum(f * (y - mean) ** 4) / variance**2 - 3, abs=1e-4
    )
    assert law.skewness() == pytest.approx(
        np.sum(f * (y - mean) ** 3) / variance**1.5, abs=1e-4
    )
    assert law.moment(4) == pytest.approx(np.sum(f * y**4), rel=1e-4)
    assert law.support() == (-np.inf, np.inf)


def test_entropy_and_characteristic_function(law):
    y, w = grid(law)
    f = law.pdf(y)
    assert law.entropy() == pytest.approx(
        -np.sum(w * f * np.log(np.maximum(f, 1e-300))), abs=1e-4
    )
    t = np.array([0.0, 0.5, 1.7])
    np.testing.assert_allclose(
        law.cf(t), np.exp(1j * t[:, None] * y) @ (w * f), atol=2e-5
    )


def test_draws_follow_the_distribution_function(law):
    drawn, (y, _) = law.rvs(20_000, seed=3), grid(law)
    share = law.cdf(y)

    def cdf(at):
        return np.interp(at, y, share)  # wrong by at most 1e-6

    assert stats.kstest(drawn, cdf).pvalue > 1e-5  # level 1e-5
    assert np.array_equal(drawn, law.rvs(20_000, seed=3))
    assert np.ndim(law.rvs()) == 0
    assert law.rvs((2, 3), seed=3).ravel().tolist() == law.rvs(6, seed=3).tolist()
    shifted = stats.kstest(drawn + 0.05 * law.std(), cdf).pvalue
    assert shifted < 1e-5  # a law that is off by a twentieth of its width fails


def test_points_of_any_shape(law):
    grid = np.array([[0.1, 0.2], [0.3, 0.4]])
    assert law.pdf(grid).shape == (2, 2)
    assert np.ndim(law.pdf(0.1)) == 0
    assert law.pdf(0.1) == pytest.approx(law.pdf(grid)[0, 0], rel=1e-12)
    assert law.logpdf(0.3) == pytest.approx(np.log(law.pdf(0.3)), abs=1e-7)
    value, error = law.with_error.pdf(grid)
    assert value.shape == error.shape == (2, 2)
    assert (np.asarray(error) >= 0).all()
    assert np.isnan(law.pdf(np.nan))
    assert law.pdf([]).shape == (0,)
    for method, ends in (
        (law.pdf, (0, 0)),
        (law.logpdf, (-np.inf, -np.inf)),
        (law.cdf, (0, 1)),
        (law.sf, (1, 0)),
    ):
        assert tuple(method([-np.inf, np.inf])) == ends
    assert 0 <= law.cdf(law.mean() + 1e4 * law.std()) <= 1
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        law.ppf(1.5)
    with pytest.raises(
        ValueError, match="interval: confidence=2 must be between 0 and 1"
    ):
        law.interval(2)
    for order in (-1, 2.5):
        with pytest.raises(ValueError, match="must be an integer from 0 to 300"):
            law.moment(order)


WRONG = {
    "quantile": lambda law: law.ppf(1.5),
    "order": lambda law: law.moment(-1),
    "size": lambda law: law.rvs(-1),
    "points": lambda law: law.pdf("x"),
    "density": lambda law: ns.Mixture(0.0, 0.0, ORIGIN).pdf(0.0),
    "means": lambda law: ns.Mixture(np.nan, 1.0, ORIGIN),
    "bandwidth": lambda law: ns.Empirical([0.0, 1.0], bandwidth=-1.0),
    "other": lambda law: ns.kl(law, "x"),
    "no mean": lambda law: ns.wasserstein1(law, stats.cauchy()),
    "joint": lambda law: ns.kl(
        law, ns.Joint(np.zeros((1, 2)), np.eye(2)[None], ORIGIN)
    ),
    "singular": lambda law: ns.Joint(np.zeros((1, 2)), np.ones((1, 2, 2)), ORIGIN).pdf(
        [0.0, 0.0]
    ),
    "entries": lambda law: ns.Joint(np.zeros((1, 2)), np.eye(2)[None], ORIGIN).marginal(
        [2]
    ),
    "observed": lambda law: ns.Joint(
        np.zeros((1, 2)), np.eye(2)[None], ORIGIN
    ).condition({}),
    "file": lambda law: ns.load(__file__),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_arguments_raise_law_errors(wrong):
    """It is a ValueError, names the line that asked, and is none of a program's."""
    with pytest.raises(ns.LawError, match=r": .* \(at .*test_laws\.py:\d+: ") as caught:
        WRONG[wrong](ns.Mixture(0.0, [1.0, 2.0], ORIGIN))
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, ns.TraceError)


def test_repr_names_the_law(law):
    assert type(law).__name__ in repr(law)
    assert law.method in repr(law)
    assert law.status in ("proved", "exact", "conjectured", "estimated")


def test_far_tails_are_right():
    two = ns.Mixture(0.0, [0.5, 1.0], ORIGIN)
    right = np.logaddexp(
        stats.norm.logpdf(40, scale=0.5**0.5), stats.norm.logpdf(40)
    ) - np.log(2)
    assert two.logpdf(40.0) == pytest.approx(right, rel=1e-12)
    # one head, two values of w: the head sum is the same mixture, by convolution
    samples = np.tile([0.5, 1.0], (4, 3000))
    head = ns.HeadSum(Head([head_rule(sample) for sample in samples]), 1, 1.0, ORIGIN)
    for y in (3.0, 8.0, 30.0):
        assert head.logpdf(y) == pytest.approx(two.logpdf(y), rel=1e-9)
        assert np.log(head.sf(y)) == pytest.approx(np.log(two.sf(y)), rel=1e-7)
    # two heads: w is 0.5, 0.75 or 1
    three = ns.Mixture(0.0, [0.5, 0.75, 0.75, 1.0], ORIGIN)
    head = head.with_heads(2)
    for y in (0.0, 1.0, 5.0, 30.0):
        assert head.logpdf(y) == pytest.approx(three.logpdf(y), rel=1e-8)


def test_compression_keeps_the_law():
    v = rng.gamma(2.0, 0.3, 50_000) + 0.05
    _, var, weight = compress(v)
    assert len(var) < 1500
    y = np.linspace(-4, 4, 101)[:, None]

    def density(v):
        return np.exp(-(y**2) / (2 * v)) / np.sqrt(2 * np.pi * v)

    np.testing.assert_allclose(
        density(var) @ weight, density(v).mean(axis=1), atol=1e-8
    )


def test_functions_of_a_point_mass():
    law = ns.Mixture(1.5, 0.0, ORIGIN)
    assert law.ppf(0.3) == 1.5
    assert (law.cdf(1.4), law.cdf(1.6)) == (0, 1)
    assert np.isnan(law.kurtosis())
    with pytest.raises(
        ValueError, match=r"the point mass at 1\.5, which has no density"
    ):
        law.pdf(1.0)


# Kernel estimates


@pytest.mark.slow
def test_kernel_estimate_matches_scipy():
    draws = np.random.default_rng(1).standard_normal(100_000) ** 3 / 3
    y = np.linspace(draws.min(), draws.max(), 500)
    ours = ns.Empirical(draws)
    np.testing.assert_allclose(ours.pdf(y), stats.gaussian_kde(draws)(y), atol=1e-6)


def test_invalid_draws_raise():
    for draws in ([1.0], [2.0, 2.0], [0.0, np.nan]):
        with pytest.raises(
            ValueError, match="at least two finite numbers, not all equal"
        ):
            ns.Empirical(draws)


def test_error_of_the_skewness_covers():
    """200 seeds: errors that are normal and of this size have a sum of squares within
    these, at level 1e-4.
    """
    means = stats.beta(2, 5)
    spread = 16 * means.var()
    right = float(means.stats("s")) * (spread / (spread + 1)) ** 1.5
    total = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        law = ns.Mixture(4 * rng.beta(2, 5, 2000), rng.gamma(8, 1 / 8, 2000), ORIGIN)
        value, error = law.with_error.skewness()
        total += ((value - right) / error) ** 2
    low, high = stats.chi2(200).ppf([5e-5, 1 - 5e-5])
    assert low < total < high


def test_every_number_has_an_error(law):
    """The median, the logarithm of the density and the characteristic function too,
    with the values of the law.
    """
    known = law.with_error
    y, t = (
        law.mean() + law.std() * np.array([[-0.3], [6.5]]),
        np.array([0.0, 0.7 / law.std()]),
    )
    value, error = known.logpdf(y)
    np.testing.assert_array_equal(value, law.logpdf(y))
    pdf = known.pdf(y)
    np.testing.assert_allclose(error[0], pdf.error[0] / pdf.value[0], rtol=1e-12)
    assert (error >= 0).all()
    assert error.shape == y.shape
    value, error = known.cf(t)
    np.testing.assert_array_equal(value, law.cf(t))
    assert error.shape == t.shape
    assert error[0] < 1e-12
    assert np.isfinite(error).all()
    assert isinstance(known.cf(0.1).error, float)
    assert known.median().value == law.median()
    assert known.median().error == known.ppf(0.5).error
    assert known.ppf([0.0, 1.0]).error.tolist() == [0.0, 0.0]
