"""The limit of one attention layer: the paper's, to many digits, and the two older
theories.
"""

import numpy as np
import pytest
from scipy import integrate, stats

import netsor as ns
from tests.internals import _attention_head

from ..keep import keep
from .test_laws import grid

# The limit of the paper's layer: numbers from an independent computation (Sobol 2^20,
# good to about 1e-6)

TABLE = {
    ("clip", 1): (
        0.39197144,
        0.24331843,
        [0.653488, 0.461907, 0.169234, 0.0053430, 6.994e-5],
    ),
    ("clip", 2): (
        0.39197144,
        0.12165921,
        [0.646080, 0.462403, 0.173195, 0.0046889, 2.9135e-5],
    ),
    ("clip", 256): (
        0.39197144,
        0.00095046,
        [0.637286, 0.463211, 0.177908, 0.0038826, 6.686e-6],
    ),
    ("relu", 2): (
        0.25476595,
        0.00180949,
        [0.790560, 0.483831, 0.111002, 3.117e-4, 1.84e-8],
    ),
}


# What docs/accuracy.md states for four tokens. The points of the quadrature lie along
# eigenvectors of the scores, which are equal in all directions here: each linear
# algebra chooses its own. Over 30 random choices no error exceeds 1.5e-8.
ACCURACY = 1e-7


@pytest.mark.parametrize(("activation", "heads"), TABLE)
def test_limit_of_the_paper(activation, heads):
    law = ns.paper.layer(heads=heads, activation=activation).law(n=ns.inf)
    variance, kurtosis, densities = TABLE[activation, heads]
    assert law.var() == pytest.approx(variance, abs=1e-8)
    assert law.kurtosis() == pytest.approx(kurtosis, abs=1e-8)
    found, error = law.with_error.pdf([0, 0.5, 1, 2, 3])
    np.testing.assert_allclose(
        found, densities, rtol=1e-3 if activation == "relu" else 2e-4, atol=2e-6
    )
    np.testing.assert_allclose(found[:3], densities[:3], atol=2e-6)
    assert (error < ACCURACY).all()


def test_limit_of_the_paper_does_not_depend_on_the_eigenvectors(monkeypatch):
    """Another basis moves the points of the quadrature: the density stays within its
    error, and so do moments.
    """
    y = [0, 0.5, 1, 2, 3]
    plain = ns.paper.layer(heads=2).law(n=ns.inf)
    expected, error = plain.with_error.pdf(y)
    decompose = np.linalg.eigh

    def turned(matrix):
        """Eigenvalue 0 comes first; the others are equal."""
        values, vectors = decompose(matrix)
        rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
        return values, np.hstack([vectors[:, :1], vectors[:, 1:] @ rotation])

    _attention_head.head_law.cache_clear()
    monkeypatch.setattr(np.linalg, "eigh", turned)
    law = ns.paper.layer(heads=2).law(n=ns.inf)
    found, other_error = law.with_error.pdf(y)
    _attention_head.head_law.cache_clear()
    assert (found != expected).any()
    assert (np.abs(found - expected) < 6 * np.hypot(error, other_error)).all()
    assert law.var() == pytest.approx(plain.var(), rel=1e-9)
    assert law.kurtosis() == pytest.approx(plain.kurtosis(), rel=1e-8)


@pytest.mark.parametrize("tokens", keep([2, 5, 8], 2))
def test_accuracy_of_the_density_is_better_than_1e_7(tokens, monkeypatch):
    """By its own estimate; and the same points without the known moments agree within
    their larger error.
    """
    law = ns.Attention(np.eye(tokens) + 0.2).law(heads=2)
    y = np.linspace(0, 2, 5)
    assert (law.with_error.pdf(y).error < 1e-7).all()
    monkeypatch.setattr(
        _attention_head, "exchangeable_moments", lambda scores, values: None
    )
    _attention_head.head_law.cache_clear()
    plain = ns.Attention(np.eye(tokens) + 0.2).law(heads=2)
    _attention_head.head_law.cache_clear()
    assert plain.head.moments is None
    value, error = plain.with_error.pdf(y)
    assert (np.abs(law.pdf(y) - value) < 6 * error + 1e-8).all()


@pytest.mark.parametrize("large", keep([10.0, 1e3, 1e4], 1e4))
def test_draws_of_a_law_with_a_narrow_core(large):
    law = ns.Attention(np.diag([1.0, large, 1.0])).law(1)
    assert stats.kstest(law.rvs(30_000, seed=1), law.cdf).pvalue > 1e-4
    q = np.geomspace(1e-9, 0.5, 30)
    np.testing.assert_allclose(law.cdf(law.ppf(q)), q, rtol=1e-9)


def test_limit_of_small_scores_has_a_density():
    law = ns.paper.layer(sigma_q=0.01).law(n=ns.inf)
    assert law.var() == pytest.approx(0.25, abs=1e-4)
    assert law.pdf(0.3) == pytest.approx(stats.norm.pdf(0.3, scale=law.std()), rel=1e-5)


@pytest.mark.parametrize("heads", keep([1, 2, 256], 2))
def test_draws_of_a_head_sum(heads):
    law = ns.paper.layer().law(n=ns.inf).with_heads(heads)
    assert law.infinite_heads().var() == pytest.approx(0.39197144, abs=1e-8)
    assert law.infinite_heads().kurtosis() == 0
    assert stats.kstest(law.rvs(30_000, seed=1), law.cdf).pvalue > 1e-4


def test_convolution_is_fourier_inversion():
    """The law of a sum over heads by repeated squaring, against its characteristic
    function, inverted here.
    """
    law = ns.paper.layer().law(n=ns.inf)
    for heads in (1, 3, 256):
        one = law.with_heads(heads)
        t, step = np.linspace(0, 30 / law.std(), 6001, retstep=True)
        cf = one.cf(t).real * np.where(t == 0, 0.5, 1.0)
        for y in (0.0, 0.4, 1.5, 3.0):
            density = step / np.pi * np.sum(np.cos(t * y) * cf)
            assert one.pdf(y) == pytest.approx(density, abs=2e-9)


@pytest.mark.slow
def test_fourier_and_engine_agree():
    law = ns.paper.layer(tokens=5, heads=3, sigma_q=1.3, activation="tanh").law(
        n=ns.inf, draws=60_000
    )
    y = np.linspace(0, 2.5, 6)
    value, error = law.mixture.with_error.pdf(y)
    assert (np.abs(law.pdf(y) - value) < 4.5 * error).all()  # 6 points: level 4e-5


def test_fourier_for_a_general_kernel_against_quadrature():
    """Two tokens: one Gaussian variable, the difference of two scores."""
    kernel = np.array([[1.0, 0.3], [0.3, 2.0]])
    law = ns.Attention(kernel, sigma_q=1.2, sigma_k=0.9, sigma_v=0.8, sigma_o=1.1).law(
        heads=1, token=1
    )
    spread = np.sqrt(
        (1.2 * 0.9) ** 2
        * kernel[1, 1]
        * (kernel[0, 0] + kernel[1, 1] - 2 * kernel[0, 1])
    )

    def density(y):
        def integrand(z):
            a = 1 / (1 + np.exp(-spread * z))
            w = np.array([a, 1 - a])
            v = (0.8 * 1.1) ** 2 * w @ kernel @ w
            return stats.norm.pdf(y, scale=np.sqrt(v)) * stats.norm.pdf(z)

        return integrate.quad(integrand, -12, 12, epsabs=1e-12, limit=200)[0]

    for y in (0.0, 0.7, 2.0):
        assert law.pdf(y) == pytest.approx(density(y), abs=1e-7)


def test_any_number_of_heads():
    for heads in (1, 10, 10**6):
        law = ns.Attention(np.eye(4)).law(heads=heads)
        assert law.kurtosis() == pytest.approx(0.24331843 / heads, rel=1e-6)
        assert law.pdf(0.0) > 0


@pytest.mark.slow
def test_more_tokens_than_a_matrix_is_made_for():
    # beyond 64, where no matrix is left
    law = ns.Attention(np.eye(80)).law(heads=2, points=2**14)
    y, w = grid(law)
    assert np.sum(w * law.pdf(y)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("heads", [0, -1, 2.5, True])
def test_invalid_heads_raise(heads):
    with pytest.raises(ValueError, match="must be a positive integer"):
        ns.Attention(np.eye(2)).law(heads=heads)


def test_more_points_are_more_accurate():
    kernel = np.diag([1.0, 2.0, 0.5, 1.5, 0.7, 1.2]) + 0.1
    few, more = (ns.Attention(kernel).law(heads=2, points=p) for p in (2**12, 2**18))
    errors = [law.with_error.pdf([0.0, 0.5, 1.0]).error.max() for law in (few, more)]
    assert errors[1] < 0.1 * errors[0]
    for points in (1000, 512, -4):
        with pytest.raises(
            ValueError, match=r"points=.* must be a power of 2, 1024 or more"
        ):
            ns.Attention(kernel).law(heads=2, points=points)


@pytest.mark.parametrize("name", ["sigma_v", "sigma_o"])
def test_invalid_sigma_raises(name):
    with pytest.raises(ValueError, match=rf"{name}=0.0 must be a positive number"):
        ns.Attention(np.eye(2), **{name: 0.0})


def test_invalid_kernel_raises():
    with pytest.raises(ValueError, match="positive semidefinite matrix over tokens"):
        ns.Attention([[1.0, 2.0], [2.0, 1.0]])


# The older theories

KERNEL = np.array([[1.0, 0.4, 0.1], [0.4, 1.5, 0.2], [0.1, 0.2, 0.8]])


def test_infinitely_many_heads_with_the_identity_is_the_published_kernel():
    """E[P K P^T] = σ_Q²σ_K² tr(K²) K for P = σ_Qσ_K L N L^T (Hron et al. 2020)."""
    layer = ns.Attention(
        KERNEL, sigma_q=1.1, sigma_k=0.7, sigma_v=0.9, function=lambda p: p
    )
    found = layer.infinite_heads(2**14)
    expected = (1.1 * 0.7 * 0.9) ** 2 * np.trace(KERNEL @ KERNEL) * KERNEL
    assert (np.abs(found.cov() - expected) < 6 * found.with_error.cov().error).all()
    assert found.origin.quadrature_error < 0.01


@pytest.mark.slow
def test_infinitely_many_heads_have_the_variance_of_finitely_many():
    layer = ns.Attention(KERNEL)
    joint = layer.infinite_heads()
    for token in range(3):
        error = 6 * joint.origin.quadrature_error
        assert joint[token].var() == pytest.approx(
            layer.law(heads=2, token=token).var(), rel=error
        )


def test_infinitely_many_heads_agree_with_the_engine():
    n = ns.Width("n")
    net = ns.Program(ns.nn.attention(ns.gaussian(n, 3, cov=KERNEL), 2))
    cov, error = net.law(n=ns.inf, draws=100_000).with_error.cov()
    joint = ns.Attention(KERNEL).infinite_heads()
    assert (
        np.abs(joint.cov() - cov) < 4.5 * np.hypot(error, joint.with_error.cov().error)
    ).all()


def test_linear_scaling_is_the_published_kernel():
    layer = ns.Attention(KERNEL, sigma_v=0.5)
    # (1/s²) Σ K_jk for all pairs
    np.testing.assert_allclose(layer.linear_scaling().cov(), 0.25 * KERNEL.mean())
    # tied: scores are K itself
    a = np.exp(KERNEL) / np.exp(KERNEL).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        layer.linear_scaling(tied=True).cov(), 0.25 * a @ KERNEL @ a.T
    )
    n = ns.Width("n")
    x = ns.gaussian(n, 3, cov=KERNEL)
    engine = ns.Program(ns.nn.attention(x, 2, scaling="linear", sigma_v=0.5)).law(
        n=ns.inf
    )
    np.testing.assert_allclose(engine.cov(), layer.linear_scaling().cov())
    w = ns.weight(n, n)
    tied = ns.softmax(ns.mean_dot(w @ x, w @ x)) @ (ns.weight(n, n, std=0.5) @ x)
    np.testing.assert_allclose(
        ns.Program(tied).law(n=ns.inf).cov(),
        layer.linear_scaling(tied=True).cov(),
        rtol=1e-10,
    )
