"""One property suite over every kind of law."""

import numpy as np
import pytest
from examples import attention_layer
from scipy import integrate, stats

import netsor as ns
from netsor.laws import Origin, _scores
from netsor.laws._gaussians import compress
from netsor.laws._head import Head

ORIGIN = Origin("exact", "made for a test", seed=None)
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
    "masked": lambda: ns.Attention(np.eye(4) + 0.3, mask=np.tri(4) > 0, sigma_q=1.5).law(heads=3, token=2),
    "combination": lambda: attention_layer.net().law(n=16, draws=5000).combination([1.0, -1.0, 0.5, 0.0]),
    "kernel estimate": lambda: ns.Empirical(rng.standard_normal(3000)),
}


def grid(law, points=4001, reach=40.0):
    """Nodes and weights for integrals over the line, even in arcsinh(y)."""
    x, step = np.linspace(-1, 1, points, retstep=True)
    last = np.arcsinh(reach)
    return law.mean() + law.std() * np.sinh(last * x), step * last * law.std() * np.cosh(last * x)


@pytest.fixture(scope="module", params=LAWS)
def law(request):
    return LAWS[request.param]()


def test_density_integrates_to_one(law):
    y, w = grid(law)
    assert np.sum(w * law.pdf(y)) == pytest.approx(1, abs=1e-6)


def test_distribution_function_differentiates_to_the_density(law):
    y = np.linspace(-2, 2, 9) * law.std() + law.mean()
    h = 1e-4 * law.std()
    np.testing.assert_allclose((law.cdf(y + h) - law.cdf(y - h)) / (2 * h), law.pdf(y), rtol=2e-5, atol=1e-7)


def test_survival_is_the_rest(law):
    y = np.linspace(-3, 3, 7) * law.std() + law.mean()
    np.testing.assert_allclose(law.cdf(y) + law.sf(y), 1, atol=1e-9)
    assert law.sf(law.mean() + 8 * law.std()) >= 0


def test_quantiles_invert(law):
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
    assert law.kurtosis() == pytest.approx(np.sum(f * (y - mean) ** 4) / variance**2 - 3, abs=1e-4)
    assert law.moment(4) == pytest.approx(np.sum(f * y**4), rel=1e-4)


def test_entropy_and_characteristic_function(law):
    y, w = grid(law)
    f = law.pdf(y)
    assert law.entropy() == pytest.approx(-np.sum(w * f * np.log(np.maximum(f, 1e-300))), abs=1e-4)
    t = np.array([0.0, 0.5, 1.7])
    np.testing.assert_allclose(law.cf(t), np.exp(1j * t[:, None] * y) @ (w * f), atol=2e-5)


def test_draws_follow_the_distribution_function(law):
    drawn = law.rvs(20_000, seed=3)
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-5  # level 1e-5
    assert np.array_equal(drawn, law.rvs(20_000, seed=3))
    shifted = stats.kstest(drawn + 0.05 * law.std(), law.cdf).pvalue
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
    for method, ends in ((law.pdf, (0, 0)), (law.logpdf, (-np.inf, -np.inf)), (law.cdf, (0, 1)), (law.sf, (1, 0))):
        assert tuple(method([-np.inf, np.inf])) == ends
    assert 0 <= law.cdf(law.mean() + 1e4 * law.std()) <= 1
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        law.ppf(1.5)
    with pytest.raises(ValueError, match="interval: confidence=2 must be between 0 and 1"):
        law.interval(2)
    for order in (-1, 2.5):
        with pytest.raises(ValueError, match="must be an integer, 0 or more"):
            law.moment(order)


def test_laws_describe_themselves(law):
    assert type(law).__name__ in repr(law)
    assert law.method in repr(law)
    assert law.status in ("proved", "exact", "conjectured", "estimated")


def test_far_tails_are_right():
    two = ns.Mixture(0.0, [0.5, 1.0], ORIGIN)
    right = np.logaddexp(stats.norm.logpdf(40, scale=0.5**0.5), stats.norm.logpdf(40)) - np.log(2)
    assert two.logpdf(40.0) == pytest.approx(right, rel=1e-12)
    # one head, two values of w: the head sum is the same mixture, by convolution
    samples = np.tile([0.5, 1.0], (4, 3000))
    head = ns.HeadSum(Head(samples), 1, 1.0, ORIGIN)
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
    var, weight = compress(v)
    assert len(var) < 1500
    y = np.linspace(-4, 4, 101)[:, None]

    def density(v):
        return np.exp(-(y**2) / (2 * v)) / np.sqrt(2 * np.pi * v)

    np.testing.assert_allclose(density(var) @ weight, density(v).mean(axis=1), atol=1e-8)


def test_a_point_mass():
    law = ns.Mixture(1.5, 0.0, ORIGIN)
    assert law.ppf(0.3) == 1.5
    assert (law.cdf(1.4), law.cdf(1.6)) == (0, 1)
    assert np.isnan(law.kurtosis())
    with pytest.raises(ValueError, match=r"the point mass at 1\.5, which has no density"):
        law.pdf(1.0)


# The limit of the paper's layer: numbers from an independent computation (Sobol 2^20, good to about 1e-6)

TABLE = {
    ("clip", 1): (0.39197144, 0.24331843, [0.653488, 0.461907, 0.169234, 0.0053430, 6.994e-5]),
    ("clip", 2): (0.39197144, 0.12165921, [0.646080, 0.462403, 0.173195, 0.0046889, 2.9135e-5]),
    ("clip", 256): (0.39197144, 0.00095046, [0.637286, 0.463211, 0.177908, 0.0038826, 6.686e-6]),
    ("relu", 2): (0.25476595, 0.00180949, [0.790560, 0.483831, 0.111002, 3.117e-4, 1.84e-8]),
}


@pytest.mark.parametrize(("activation", "heads"), TABLE)
def test_the_papers_limit(activation, heads):
    law = ns.paper.layer(heads=heads, activation=activation).law(n=ns.inf)
    variance, kurtosis, densities = TABLE[activation, heads]
    assert law.var() == pytest.approx(variance, abs=1e-8)
    assert law.kurtosis() == pytest.approx(kurtosis, abs=1e-8)
    found, error = law.with_error.pdf([0, 0.5, 1, 2, 3])
    np.testing.assert_allclose(found, densities, rtol=1e-3 if activation == "relu" else 2e-4, atol=2e-6)
    np.testing.assert_allclose(found[:3], densities[:3], atol=2e-6)
    assert (error < 1e-8).all()


@pytest.mark.parametrize("tokens", [2, 5, 8])
def test_accuracy_of_the_density_is_better_than_1e_7(tokens, monkeypatch):
    """By its own estimate; and the same points without the known moments agree within their larger error."""
    law = ns.Attention(np.eye(tokens) + 0.2).law(heads=2)
    y = np.linspace(0, 2, 5)
    assert (law.with_error.pdf(y).error < 1e-7).all()
    monkeypatch.setattr(_scores, "exchangeable_moments", lambda scores, values: None)
    _scores.head_law.cache_clear()
    plain = ns.Attention(np.eye(tokens) + 0.2).law(heads=2)
    _scores.head_law.cache_clear()
    assert plain.head.moments is None
    value, error = plain.with_error.pdf(y)
    assert (np.abs(law.pdf(y) - value) < 6 * error + 1e-8).all()


@pytest.mark.parametrize("large", [10.0, 1e3, 1e4])
def test_draws_of_a_law_with_a_narrow_core(large):
    law = ns.Attention(np.diag([1.0, large, 1.0])).law(1)
    assert stats.kstest(law.rvs(50_000, seed=1), law.cdf).pvalue > 1e-4
    q = np.geomspace(1e-9, 0.5, 30)
    np.testing.assert_allclose(law.cdf(law.ppf(q)), q, rtol=1e-9)


def test_small_scores_have_a_law():
    law = ns.paper.layer(sigma_q=0.01).law(n=ns.inf)
    assert law.var() == pytest.approx(0.25, abs=1e-4)
    assert law.pdf(0.3) == pytest.approx(stats.norm.pdf(0.3, scale=law.std()), rel=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 256])
def test_draws_of_a_head_sum(heads):
    law = ns.paper.layer().law(n=ns.inf).with_heads(heads)
    assert law.infinite_heads().var() == pytest.approx(0.39197144, abs=1e-8)
    assert law.infinite_heads().kurtosis() == 0
    assert stats.kstest(law.rvs(100_000, seed=1), law.cdf).pvalue > 1e-4


def test_convolution_is_fourier_inversion():
    """The law of a sum over heads by repeated squaring, against its characteristic function, inverted here."""
    law = ns.paper.layer().law(n=ns.inf)
    for heads in (1, 2, 3, 17, 256):
        one = law.with_heads(heads)
        t, step = np.linspace(0, 30 / law.std(), 6001, retstep=True)
        cf = one.cf(t).real * np.where(t == 0, 0.5, 1.0)
        for y in (0.0, 0.4, 1.5, 3.0):
            density = step / np.pi * np.sum(np.cos(t * y) * cf)
            assert one.pdf(y) == pytest.approx(density, abs=2e-9)


def test_fourier_and_engine_agree():
    law = ns.paper.layer(tokens=5, heads=3, sigma_q=1.3, activation="tanh").law(n=ns.inf, draws=200_000)
    y = np.linspace(0, 2.5, 6)
    value, error = law.mixture.with_error.pdf(y)
    assert (np.abs(law.pdf(y) - value) < 4.5 * error).all()  # 6 points: level 4e-5


def test_fourier_for_a_general_kernel_against_quadrature():
    """Two tokens: one Gaussian variable, the difference of two scores."""
    kernel = np.array([[1.0, 0.3], [0.3, 2.0]])
    law = ns.Attention(kernel, sigma_q=1.2, sigma_k=0.9, sigma_v=0.8, sigma_o=1.1).law(heads=1, token=1)
    spread = np.sqrt((1.2 * 0.9) ** 2 * kernel[1, 1] * (kernel[0, 0] + kernel[1, 1] - 2 * kernel[0, 1]))

    def density(y):
        def integrand(z):
            a = 1 / (1 + np.exp(-spread * z))
            w = np.array([a, 1 - a])
            v = (0.8 * 1.1) ** 2 * w @ kernel @ w
            return stats.norm.pdf(y, scale=np.sqrt(v)) * stats.norm.pdf(z)

        return integrate.quad(integrand, -12, 12, epsabs=1e-12, limit=200)[0]

    for y in (0.0, 0.7, 2.0):
        assert law.pdf(y) == pytest.approx(density(y), abs=1e-7)


def test_any_number_of_heads_and_tokens():
    for heads in (1, 10, 10**6):
        law = ns.Attention(np.eye(4)).law(heads=heads)
        assert law.kurtosis() == pytest.approx(0.24331843 / heads, rel=1e-6)
        assert law.pdf(0.0) > 0
    law = ns.Attention(np.eye(512)).law(heads=2)
    y, w = grid(law)
    assert np.sum(w * law.pdf(y)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("heads", [0, -1, 2.5, True])
def test_bad_heads(heads):
    with pytest.raises(ValueError, match="must be a positive integer"):
        ns.Attention(np.eye(2)).law(heads=heads)


def test_more_points_are_more_accurate():
    kernel = np.diag([1.0, 2.0, 0.5, 1.5, 0.7, 1.2]) + 0.1
    few, more = (ns.Attention(kernel).law(heads=2, points=p) for p in (2**12, 2**18))
    errors = [law.with_error.pdf([0.0, 0.5, 1.0]).error.max() for law in (few, more)]
    assert errors[1] < 0.1 * errors[0]
    for points in (1000, 512, -4):
        with pytest.raises(ValueError, match=r"points=.* must be a power of 2, 1024 or more"):
            ns.Attention(kernel).law(heads=2, points=points)


@pytest.mark.parametrize("name", ["sigma_v", "sigma_o"])
def test_bad_sigma(name):
    with pytest.raises(ValueError, match=rf"{name}=0.0 must be a finite number above 0"):
        ns.Attention(np.eye(2), **{name: 0.0})


def test_bad_kernel():
    with pytest.raises(ValueError, match="positive semidefinite matrix over tokens"):
        ns.Attention([[1.0, 2.0], [2.0, 1.0]])


# The older theories

KERNEL = np.array([[1.0, 0.4, 0.1], [0.4, 1.5, 0.2], [0.1, 0.2, 0.8]])


def test_infinitely_many_heads_with_the_identity_is_the_published_kernel():
    """E[P K P^T] = σ_Q²σ_K² tr(K²) K for P = σ_Qσ_K L N L^T (Hron et al. 2020)."""
    layer = ns.Attention(KERNEL, sigma_q=1.1, sigma_k=0.7, sigma_v=0.9, function=lambda p: p)
    found = layer.infinite_heads(2**14)
    expected = (1.1 * 0.7 * 0.9) ** 2 * np.trace(KERNEL @ KERNEL) * KERNEL
    assert (np.abs(found.cov() - expected) < 6 * found.with_error.cov().error).all()
    assert found.origin.quadrature_error < 0.01


def test_infinitely_many_heads_have_the_variance_of_finitely_many():
    layer = ns.Attention(KERNEL)
    joint = layer.infinite_heads()
    for token in range(3):
        error = 6 * joint.origin.quadrature_error
        assert joint[token].var() == pytest.approx(layer.law(heads=2, token=token).var(), rel=error)


def test_infinitely_many_heads_agree_with_the_engine():
    n = ns.Width("n")
    net = ns.Program(ns.nn.attention(ns.gaussian(n, 3, cov=KERNEL), 2))
    cov, error = net.law(n=ns.inf, draws=100_000).with_error.cov()
    joint = ns.Attention(KERNEL).infinite_heads()
    assert (np.abs(joint.cov() - cov) < 4.5 * np.hypot(error, joint.with_error.cov().error)).all()


def test_linear_scaling_is_the_published_kernel():
    layer = ns.Attention(KERNEL, sigma_v=0.5)
    np.testing.assert_allclose(layer.linear_scaling().cov(), 0.25 * KERNEL.mean())  # (1/s²) Σ K_jk for all pairs
    a = np.exp(KERNEL) / np.exp(KERNEL).sum(axis=1, keepdims=True)  # tied: scores are K itself
    np.testing.assert_allclose(layer.linear_scaling(tied=True).cov(), 0.25 * a @ KERNEL @ a.T)
    n = ns.Width("n")
    x = ns.gaussian(n, 3, cov=KERNEL)
    engine = ns.Program(ns.nn.attention(x, 2, scaling="linear", sigma_v=0.5)).law(n=ns.inf)
    np.testing.assert_allclose(engine.cov(), layer.linear_scaling().cov())
    w = ns.weight(n, n)
    tied = ns.softmax(ns.mean_dot(w @ x, w @ x)) @ (ns.weight(n, n, std=0.5) @ x)
    np.testing.assert_allclose(ns.Program(tied).law(n=ns.inf).cov(), layer.linear_scaling(tied=True).cov(), rtol=1e-10)


# Joint laws


@pytest.fixture(scope="module")
def joint():
    return attention_layer.net().law(n=16, draws=4000)


def test_joint_density(joint):
    two = joint.marginal([0, 2])
    y = np.linspace(-6, 6, 241)
    grid = np.stack(np.meshgrid(y, y, indexing="ij"), axis=-1)[::4, ::4]
    mass = np.exp(two.marginal([0, 1]).logpdf(grid)).sum() * (y[4] - y[0]) ** 2
    assert mass == pytest.approx(1, abs=0.01)
    one = joint.marginal([1])
    assert one.logpdf([[0.3]])[0] == pytest.approx(joint[1].logpdf(0.3), abs=1e-9)


def test_joint_moments_and_draws(joint):
    drawn = joint.rvs(40_000, seed=2)
    assert drawn.shape == (40_000, 4)
    np.testing.assert_allclose(np.cov(drawn.T), joint.cov(), atol=0.03)
    weights = np.array([1.0, -0.5, 0.0, 2.0])
    assert joint.combination(weights).var() == pytest.approx(weights @ joint.cov() @ weights, rel=1e-9)
    assert stats.kstest(drawn @ weights, joint.combination(weights).cdf).pvalue > 1e-5
    assert len(joint) == 4
    assert "Joint over 4 entries" in repr(joint)
    np.testing.assert_allclose(joint.mean(), 0)


def test_joint_errors(joint):
    with pytest.raises(ValueError, match=r"weights of shape \(2,\) must be \(4,\)"):
        joint.combination([1.0, 2.0])
    with pytest.raises(IndexError, match="entry 7 of a joint law of 4 entries"):
        joint[7]
    with pytest.raises(ValueError, match="must have 4 entries along the last axis"):
        joint.logpdf([1.0])
    singular = ns.Program(ns.stack([*[ns.weight(1, ns.Width("n")) @ ns.gaussian(ns.Width("n"))] * 2])).law(n=3)
    with pytest.raises(ValueError, match="singular covariance"):
        singular.logpdf([0.0, 0.0])


# Kernel estimates


def test_kernel_estimate_is_scipys():
    draws = np.random.default_rng(1).standard_normal(100_000) ** 3 / 3
    y = np.linspace(draws.min(), draws.max(), 500)
    ours = ns.Empirical(draws)
    np.testing.assert_allclose(ours.pdf(y), stats.gaussian_kde(draws)(y), atol=1e-6)


def test_bad_draws():
    for draws in ([1.0], [2.0, 2.0], [0.0, np.nan]):
        with pytest.raises(ValueError, match="at least two finite numbers, not all alike"):
            ns.Empirical(draws)
