"""Infinite width: closed forms, independent quadrature, and convergence from finite
widths.
"""

import numpy as np
import pytest
from examples import attention_layer, residual_block
from scipy import integrate, stats

import netsor as ns

from ..keep import keep
from .compare import conditional, d, mixture, n


def test_score_covariance_is_the_product_of_kernels():
    cov = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, 0.0], [0.2, 0.0, 2.0]])
    x = ns.gaussian(n, 3, cov=cov)
    q, k = ns.weight(d, n, std=1.5) @ x, ns.weight(d, n, std=0.8) @ x
    net = ns.Program(ns.dot(q, k))
    # Cov(p_ij, p_i'j') = σ_Q² σ_K² K_ii' K_jj'
    expected = 1.5**2 * 0.8**2 * np.kron(cov, cov)
    np.testing.assert_allclose(net.law(n=ns.inf, d=ns.inf).cov(), expected, atol=1e-12)
    widths = {"n": ns.inf, "d": ns.inf}
    scores = conditional(
        net.outputs, widths, 200_000, progress=False, without=["condition"]
    ).mean  # as a layer draws them
    diagonal = np.diag(expected)
    error = np.sqrt((expected**2 + np.outer(diagonal, diagonal)) / len(scores))
    # 81 entries: level 1e-5
    assert (np.abs(np.cov(scores.T) - expected) < 5.5 * error).all()
    assert (np.abs(scores.mean(0)) < 5 * np.sqrt(diagonal / len(scores))).all()


def test_scores_among_jointly_drawn_sources_match_a_finite_width():
    """Initial vectors of one call, and matrices of one batch, have scores among
    themselves too.
    """
    x = ns.gaussian(n, 3, cov=[[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
    scores = ns.stack([ns.dot(x[0], x[1]), ns.dot(x[1], x[2]), ns.dot(x[2], x[0])])
    drawn = ns.Program(scores).law(n=ns.inf, draws=100_000).component_mean
    # 10 standard errors or more
    np.testing.assert_allclose(np.cov(drawn.T), np.diag([2.0, 1.0, 0.5]), atol=0.05)
    w = ns.weight(d, n, 2, std=1.2) @ ns.gaussian(n, 2)
    drawn = (
        ns.Program(ns.dot(w[0], w[1]))
        .law(n=ns.inf, d=ns.inf, draws=100_000)
        .component_mean
    )
    np.testing.assert_allclose(np.cov(drawn.T), 1.2**4 * np.eye(4), atol=0.1)
    finite = (
        ns.Program(ns.dot(w[0], w[1]))
        .law(n=10**6, d=10**6, draws=100_000)
        .component_mean
    )
    np.testing.assert_allclose(finite, drawn, atol=0.1)  # coupled


VARIANCES = [(16, 0.4339), (64, 0.4032), (256, 0.3948), (1024, 0.3927)]


@pytest.mark.parametrize(
    ("width", "variance"), keep(VARIANCES, (16, 0.4339), (1024, 0.3927))
)
def test_layer_of_the_paper_has_its_variance_at_each_width(width, variance):
    estimate = attention_layer.net()[0].law(n=width, draws=100_000).with_error.var()
    # the figure is rounded to four digits
    assert abs(estimate.value - variance) < 4 * estimate.error + 5e-5


# variance, excess kurtosis: one-dimensional integrals, see test_moments below for their
# origin
LIMITS = {
    ("clip", 1): (0.39197144, 0.24331843),
    ("clip", 2): (0.39197144, 0.12165921),
    ("clip", 256): (0.39197144, 0.00095046),
    ("relu", 2): (0.25476595, 0.00180949),
}


@pytest.mark.parametrize(
    ("activation", "heads"), keep(LIMITS, ("clip", 2), ("relu", 2))
)
def test_layer_of_the_paper_has_its_limit_moments(activation, heads):
    g = ns.weight(n, n, 4) @ ns.gaussian(n)
    x = ns.clip(g, 100) if activation == "clip" else ns.relu(g)
    law = mixture(
        ns.Program(ns.nn.attention(x, heads)[0]).law(
            n=ns.inf, draws=20_000 if heads > 2 else 100_000
        )
    )
    estimates = law.with_error.var(), law.with_error.kurtosis()
    for estimate, expected in zip(estimates, LIMITS[activation, heads], strict=True):
        assert abs(estimate.value - expected) < 4 * estimate.error
        assert estimate.error < 0.1 * expected


def test_limit_moments_equal_one_dimensional_integrals():
    """An independent derivation of the limits above: 1/S² = ∫ t e^(−tS) dt with S a sum
    of independent terms.
    """
    x, w = np.polynomial.hermite_e.hermegauss(200)
    w = w / w.sum()

    def moments(a, c, s=4):
        tau = np.sqrt(a * (a - c))
        # exact to rounding: a smooth function that vanishes at both ends
        u = np.linspace(-45, 12, 1001)
        t = np.exp(u)
        g = {
            k: np.exp(k * tau * x - t[:, None] * np.exp(tau * x)) @ w for k in (0, 2, 4)
        }
        first = s * np.trapezoid(t * t * g[2] * g[0] ** (s - 1), u)
        second = s * np.trapezoid(t**4 / 6 * g[4] * g[0] ** (s - 1), u)
        second += s * (s - 1) * np.trapezoid(t**4 / 6 * g[2] ** 2 * g[0] ** (s - 2), u)
        mean = (a - c) * first + c
        variance = (a - c) ** 2 * (second - first**2)
        return mean, 3 * variance / mean**2

    for (activation, heads), (variance, kurtosis) in LIMITS.items():
        a, c = (1.0, 0.0) if activation == "clip" else (0.5, 1 / (2 * np.pi))
        mean, one_head = moments(a, c)
        assert mean == pytest.approx(variance, abs=2e-8)
        assert one_head / heads == pytest.approx(kurtosis, abs=2e-8)


def test_multilayer_perceptron_is_the_known_gaussian_process():
    """The arc-cosine kernel, composed."""
    points = np.array([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.5]])
    h = ns.relu(ns.weight(n, 2, std=np.sqrt(2)) @ ns.data(points))
    h = ns.relu(ns.weight(n, n, std=np.sqrt(2)) @ h)
    law = ns.Program(ns.weight(1, n) @ h).law(n=ns.inf)

    def arc_cosine(k):
        s = np.sqrt(np.outer(np.diag(k), np.diag(k)))
        r = np.clip(k / s, -1, 1)
        return s / (2 * np.pi) * (np.sqrt(1 - r * r) + r * (np.pi - np.arccos(r)))

    expected = arc_cosine(2 * arc_cosine(2 * points @ points.T / 2))
    np.testing.assert_allclose(law.component_cov[0], expected, rtol=1e-10)
    assert law.origin.quadrature_error == 0


def test_functions_of_several_vectors_use_nodes_with_an_error():
    x = ns.gaussian(n, 2, cov=[[1.0, 0.4], [0.4, 1.0]])
    gated = ns.nonlin(lambda u, v: np.tanh(u) * v, x[0], x[1])
    law = ns.Program(ns.weight(1, n) @ gated).law(n=ns.inf)
    # E[v² | u] = 0.4² u² + (1 − 0.4²)
    right, _ = integrate.quad(
        lambda u: np.tanh(u) ** 2 * (0.16 * u**2 + 0.84) * stats.norm.pdf(u), -12, 12
    )
    error = law.origin.quadrature_error
    assert 0 < error < 0.02
    assert abs(law.component_var[0] - right) < 4 * error


def test_deep_stack_keeps_a_random_kernel():
    """Four residual attention blocks, s = 4, H = 2: the cosine of two tokens has mean
    0.584, sd 0.033 at n = ∞.
    """

    @ns.program
    def stack(blocks=4):
        x = ns.gaussian(n, 4)
        for _ in range(blocks):
            x = x + ns.nn.attention(ns.rms_norm(x), 2)
        y = ns.rms_norm(x)
        return ns.mean_dot(y[0], y[1])

    cosine = stack().law(n=ns.inf, draws=8000).component_mean
    assert cosine.mean() == pytest.approx(0.584, abs=0.002)
    assert cosine.std() == pytest.approx(0.033, abs=0.002)


def structured():
    """Programs in which a part of order 1/√n could get lost on the way to infinity."""
    x = ns.gaussian(n, 3, mean=[0.5, 0.0, -0.3])

    def w(std=1.0):
        return ns.weight(n, n, std=std)

    first, second = (
        ns.concat(ns.weight(d, n, 2, std=s) @ x, axis=0) for s in (1.0, 0.7)
    )
    again = w()
    reused = again @ ns.tanh(again @ x)
    mixed = w() @ ns.relu(x) + x
    scores = ns.dot(w() @ x, w() @ x)
    shifted = ns.nonlin(lambda u, p: np.tanh(u + p), x, scores[0])
    return {
        "concatenation": (ns.dot(first, second), ns.inf),
        "concatenation and initial vectors": (
            ns.dot(first + ns.gaussian(2 * d, 3, mean=0.2), second),
            ns.inf,
        ),
        "norm": (
            (
                ns.dot(w() @ ns.layer_norm(x), w() @ ns.layer_norm(x)),
                w() @ ns.layer_norm(x),
            ),
            None,
        ),
        "reuse": ((reused, ns.dot(reused, w() @ x)), None),
        "residual": (
            (ns.mean_dot(mixed, mixed), ns.dot(w() @ mixed, w() @ mixed)),
            None,
        ),
        "score in a nonlinearity": ((ns.mean_dot(shifted, shifted), shifted), None),
        "score with a nonlinear vector": (ns.dot(w() @ x, ns.relu(x)), None),
        "two layers": (
            ns.nn.attention(ns.relu(ns.nn.attention(ns.tanh(x), 2)), 2),
            None,
        ),
        "low rank": (
            ns.nn.attention(
                ns.rms_norm(x + ns.nn.attention(ns.rms_norm(x), 2, head_dim=d)), 2
            ),
            3,
        ),
    }


@pytest.mark.parametrize(
    "name",
    keep(
        structured(), "reuse", "residual", "two layers", "score with a nonlinear vector"
    ),
)
def test_structured_programs_match_their_limit_at_large_width(name):
    """Means and covariances at width 400, within 0.2 and 0.28: 5 standard errors of
    1,000 replicas, and a bias.
    """
    output, head_dim = structured()[name]
    net = ns.Program(output)
    widths = {} if head_dim is None else {"d": head_dim}
    limit = net.law(n=ns.inf, draws=4000, **widths)
    if head_dim == ns.inf:
        widths = {"d": 400}
    wide = net.law(n=400, draws=1000, seed=1, **widths)
    size = np.sqrt(wide.var()) + 0.2
    assert (np.abs(limit.mean() - wide.mean()) < 0.2 * size).all()
    assert (np.abs(limit.cov() - wide.cov()) < 0.28 * np.outer(size, size)).all()


def test_programs_without_a_known_limit_raise_an_error():
    w, x = ns.weight(n, n), ns.gaussian(n, 2)
    a, b = (
        ns.softmax(ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)) for _ in range(2)
    )
    with pytest.raises(ns.NoLimitError, match="correlated"):
        ns.Program(ns.dot((a @ x - b @ x)[0], x[0])).law(n=ns.inf)
    # uncorrelated, as E[x (x² − 3) x] = 0, so that it has a limit; but this does not
    # follow from signs
    with pytest.raises(ns.ExactError, match="share a source"):
        ns.Program(ns.dot(ns.nonlin(lambda u: u * (u * u - 3), x[0]), x[0])).law(
            n=ns.inf
        )
    with pytest.raises(ns.NoLimitError, match="has no limit"):
        ns.Program(ns.dot(w @ x, w @ x)).law(n=ns.inf)


def test_block_at_infinite_width_matches_a_wide_one():
    net = residual_block.net()[0]
    limit, wide = (
        net.law(n=ns.inf, draws=2000).with_error.var(),
        net.law(n=200, draws=10_000).with_error.var(),
    )
    assert abs(limit.value - wide.value) < 4 * np.hypot(limit.error, wide.error) + 0.01
    assert wide.error < 0.03


@pytest.mark.parametrize("kind", keep([bool, np.int8, np.float32], bool, np.float32))
def test_functions_may_return_booleans_and_integers(kind):
    """Products of them are taken in double precision: E[1(u > 0)²] = 1/2 at every
    width.
    """
    positive = ns.nonlin(
        lambda u: (u > 0).astype(kind), ns.weight(n, n) @ ns.gaussian(n)
    )
    net = ns.Program(ns.weight(n, n) @ positive)
    # five standard errors
    assert net.law(n=300, draws=5000).var() == pytest.approx(0.5, abs=2e-3)
    assert (
        net.simulate(n=300, draws=50, coordinates=slice(100)) ** 2
    ).mean() == pytest.approx(0.5, abs=0.05)


def test_complex_functions_raise_an_error():
    with pytest.raises(ns.TraceError, match="complex"):
        ns.nonlin(lambda u: 1j * u, ns.gaussian(n))


def test_kernel_of_a_function_with_a_jump_equals_the_normal_probability():
    """E[1(u > 1) 1(v > 1)] = P(u > 1, v > 1), for which scipy has a formula."""
    jump = ns.nonlin(lambda u: u > 1.0, ns.gaussian(n, 2, cov=[[1.0, 0.5], [0.5, 1.0]]))
    cov = ns.Program(ns.weight(n, n) @ jump).law(n=ns.inf).with_error.cov()
    joint = stats.multivariate_normal.cdf([-1.0, -1.0], cov=[[1.0, 0.5], [0.5, 1.0]])
    expected = np.array([[stats.norm.sf(1.0), joint], [joint, stats.norm.sf(1.0)]])
    assert (np.abs(cov.value - expected) < 1e-9 + 4 * cov.error).all()


@pytest.mark.parametrize(
    ("f", "error"), [(ns.tanh, 5e-3), (ns.relu, 1e-9), (ns.erf, 1e-9)]
)
def test_nearly_equal_tokens_keep_the_variance_of_one_token(f, error):
    """Gram matrices near a singular one, known up to quadrature: the variance stays
    what one token alone has.
    """
    rng = np.random.default_rng(3)
    base = rng.standard_normal((3, 6))
    rows = np.concatenate([base, base[:2] + 2e-6 * rng.standard_normal((2, 6))])
    rows *= 20 / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    x = f(ns.gaussian(n, 5, cov=rows @ rows.T))
    cov = ns.Program(ns.weight(n, n) @ x).law(n=ns.inf).cov()
    alone = (
        ns.Program(ns.weight(n, n) @ f(ns.gaussian(n, cov=400.0))).law(n=ns.inf).var()
    )
    np.testing.assert_allclose(np.diag(cov), alone, rtol=error)
    np.testing.assert_allclose(cov[0, 3], alone, rtol=max(error, 1e-5))


def test_masked_diverging_scores_do_not_prevent_a_limit():
    """Tokens that are queries and keys: their scores with themselves diverge, and the
    mask leaves them out.

    A score of a token with another is the same both ways. The covariance of two outputs
    at width 10⁹, from the same random numbers, is that of the limit up to 1/√n.
    """
    g = ns.gaussian(n, 3)
    p = ns.dot(g, g)
    assert ns.Program(p[0, 1]).law(n=ns.inf).status == "proved"
    scores = ns.Program(p[[0, 1], [1, 0]]).draw(n=ns.inf, draws=100)
    np.testing.assert_array_equal(scores[:, 0], scores[:, 1])
    net = ns.Program(ns.softmax(p, mask=np.eye(3) < 1) @ (ns.weight(n, n) @ g))
    limit, wide = (net.law(n=width, draws=2000).cov() for width in (ns.inf, 10**9))
    np.testing.assert_allclose(limit, wide, atol=2e-4)
    with pytest.raises(ns.NoLimitError):
        ns.Program(ns.softmax(p, mask="causal") @ g).law(n=ns.inf)
    q = ns.weight(n, n) @ g
    shared = ns.Program(ns.softmax(ns.dot(q, q), mask=np.eye(3) < 1) @ g)
    assert shared.check().verdict == "conjectured"


def test_score_of_a_zero_vector_is_zero():
    g = ns.gaussian(n, 2)
    for q in (g, ns.weight(n, n) @ g):
        for zero in (q[0] - q[0], 2 * q[0] - (q[0] + q[0])):
            law = ns.Program(ns.dot(zero, q[0])).law(n=ns.inf)
            assert law.mean() == law.var() == 0.0


def _jumping():
    x, y, p = ns.gaussian(n), ns.gaussian(n), ns.dot(ns.gaussian(n), ns.gaussian(n))
    c = ns.mean_dot(x, y)  # vanishes like n^(−1/2), with either sign
    ones = ns.gaussian(n, 1, mean=[1.0], cov=[[0.0]])[0]
    positive = ns.Function("positive", lambda u: np.where(u > 0, 1.0, 0.0))
    return {
        "a scalar that vanishes": ns.apply(np.sign, c),
        "a scalar whose limit is 1": ns.apply(np.floor, ns.mean_dot(x, x)),
        "rounding on the other side": ns.apply(np.sign, 0.3 * ns.mean_dot(x, x) - 0.3),
        "a tie": ns.apply(
            lambda q: np.argmax(q, axis=-1) * 1.0,
            ns.mean_dot(x, ns.gaussian(n, 3)),
            axes=1,
        ),
        "next to a score": ns.apply(lambda a, b: np.where(a > 0, b, -b), c, p),
        "a vector that vanishes": ns.nonlin(positive, c * x),
        "times a score": ns.apply(np.sign, c * p),
        "a norm of it": ns.rms_norm(c * x, eps=0.0),
        "a vector that becomes a number": ns.nonlin(
            lambda u: np.where(u > 1, 1.0, 0.0), ones + c * x
        ),
    }


@pytest.mark.parametrize("name", _jumping())
def test_function_with_a_jump_at_the_limit_of_its_argument_raises_an_error(name):
    with pytest.raises(ns.ExactError, match="jumps at the limit of its argument"):
        ns.Program(_jumping()[name]).law(n=ns.inf, draws=10)


def test_function_with_a_jump_elsewhere_has_a_limit():
    x = ns.gaussian(n)
    ones = ns.gaussian(n, 1, mean=[1.0], cov=[[0.0]])[0]
    assert (
        ns.Program(ns.apply(np.sign, ns.mean_dot(x, x) - 0.5))
        .law(n=ns.inf, draws=10)
        .mean()
        == 1.0
    )
    # 1 at every width
    assert ns.Program(ns.nonlin(np.floor, ones)).law(n=ns.inf, draws=10).mean() == 1.0
    # 0 at every width
    assert ns.Program(ns.nonlin(np.sign, x - x)).law(n=ns.inf, draws=10).mean() == 0.0
    c = ns.mean_dot(x, ns.gaussian(n))
    # a kink is no jump
    assert ns.Program(ns.apply(np.abs, c)).law(n=ns.inf, draws=10).mean() == 0.0
    assert (
        ns.Program(ns.apply(lambda u: np.sqrt(np.abs(u)), c))
        .law(n=ns.inf, draws=10)
        .mean()
        == 0.0
    )
