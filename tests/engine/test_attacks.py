"""Programs that once had a wrong law, silently: each against simulation, a closed form,
or a large width.
"""

import numpy as np
import pytest
from scipy import integrate, stats

import netsor as ns
from netsor import inf

from .compare import d, n, smallest_p

LEVEL = 1e-7  # of each test against the literal interpreter; about 30 of them


def near(net, draws=5000, wide=1000, **widths):
    """Whether variances and means at infinity are those of a large width: 4.5 standard
    errors, and 1/√n of bias.
    """
    limit = net.law(draws=draws, **(dict.fromkeys(net.widths, inf) | widths))
    finite = net.law(draws=draws, seed=1, **(dict.fromkeys(net.widths, wide) | widths))
    if isinstance(limit, ns.HeadSum):
        limit = limit.mixture
    pairs = (
        [(limit, finite)]
        if not isinstance(limit, ns.Joint)
        else zip(limit, finite, strict=True)
    )
    for a, b in pairs:
        (x, e), (y, f) = a.with_error.var(), b.with_error.var()
        assert abs(x - y) < 4.5 * np.hypot(e, f) + 3 * y / np.sqrt(wide), (x, y)
        (x, e), (y, f) = a.with_error.mean(), b.with_error.mean()
        assert abs(x - y) < 4.5 * np.hypot(e, f) + 3 * b.std() / np.sqrt(wide), (x, y)


def summed_heads(members):
    x = ns.gaussian(n, 3)
    wq, wk, wv, wo = (ns.weight(n, n, count) for count in (4, 2, 2, 4))
    q, k, v = wq @ x, wk[members] @ x, wv[members] @ x
    return ns.Program(wo.each(ns.softmax(ns.dot(q, k)) @ v).sum(axis=0))[0]


def test_repeated_members_are_one_matrix():
    w, x = ns.weight(n, n, 2), ns.gaussian(n, 2)
    copies = ns.Program(w[[0, 0, 1]] @ x[0])
    for width in (8, inf):
        cov = copies.law(n=width, draws=20_000).cov()
        assert cov[0, 1] == pytest.approx(cov[0, 0], rel=1e-12)
        assert abs(cov[0, 2]) < 0.05  # 7 standard errors
    assert (
        smallest_p(
            ns.Program(w[[0, 1, 0]].each(ns.stack([x[0], x[1], x[1]]))), draws=4000, n=3
        )
        > LEVEL
    )
    assert smallest_p(summed_heads([0, 0, 1, 1]), draws=6000, n=8) > LEVEL
    near(summed_heads([0, 0, 1, 1]))


def test_vector_in_score_and_nonlinearity_has_right_law():
    g, h = ns.gaussian(n), ns.gaussian(n)
    both = ns.Program(
        (ns.weight(n, n) @ ns.tanh(h) + ns.weight(n, n) @ ns.tanh(g), ns.mean_dot(g, h))
    )
    square = integrate.quad(lambda u: np.tanh(u) ** 2 * stats.norm.pdf(u), -10, 10)[0]
    assert both.law(n=inf).cov()[0, 0] == pytest.approx(2 * square, rel=1e-9)
    x = ns.gaussian(n, 3)
    q, k = ns.weight(n, n) @ x, ns.weight(n, n) @ x
    near(ns.Program(ns.weight(n, n) @ (ns.softmax(ns.dot(q, k)) @ ns.tanh(k)))[0])


def relu(x):
    return 2**0.5 * np.maximum(x, 0)


def identity(x):
    return 3 * x


def erf(x):
    return x**2


def clip(x):
    return np.clip(x, -0.5, 0.5)


def softmax(p):
    weights = np.exp(p / 3 - np.max(p / 3, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("f", "variance"), [(relu, 1.0), (identity, 9.0), (erf, 3.0)])
def test_functions_are_known_by_identity(f, variance):
    net = ns.Program(ns.weight(n, n) @ ns.nonlin(f, ns.gaussian(n)))
    assert net.law(n=inf).var() == pytest.approx(variance, rel=1e-8)
    assert smallest_p(net, draws=4000, n=5) > LEVEL


def test_own_softmax_uses_its_own_formula():
    x = ns.gaussian(n, 3)
    q, k, v = ns.weight(n, n) @ x, ns.weight(n, n) @ x, ns.weight(n, n) @ x

    def layer(f):
        return ns.Program(ns.weight(n, n) @ (f(ns.dot(q, k)) @ v))[0]

    own, usual = layer(lambda p: ns.apply(softmax, p, axes=1)), layer(ns.softmax)
    # a higher temperature mixes more
    assert own.law(n=inf).var() < 0.9 * usual.law(n=inf).var()
    near(own)
    clipped = ns.Program(ns.weight(n, n) @ ns.nonlin(clip, ns.gaussian(n)))
    assert clipped.law(n=inf).var() < 0.25


@pytest.mark.parametrize(
    ("f", "sd", "variance"),
    [
        (ns.tanh, 10, 0.9205368634),
        (ns.tanh, 30, 0.9734159888),
        (ns.sigmoid, 30, 0.4867261362),
    ],
)
def test_kernels_at_large_variance(f, sd, variance):
    function = {ns.tanh: np.tanh, ns.sigmoid: lambda u: 1 / (1 + np.exp(-u))}[f]
    right = integrate.quad(
        lambda u: function(u) ** 2 * stats.norm.pdf(u / sd) / sd,
        -400,
        400,
        points=[-5, 0, 5],
        limit=500,
    )
    assert right[0] == pytest.approx(variance, rel=1e-9)
    law = ns.Program(ns.weight(n, n) @ f(ns.gaussian(n, cov=float(sd**2)))).law(n=inf)
    assert law.var() == pytest.approx(variance, rel=1e-9)


def test_narrow_function_has_exact_variance():
    law = ns.Program(
        ns.weight(n, n) @ ns.nonlin(lambda u: np.exp(-300 * u**2), ns.gaussian(n))
    ).law(n=inf)
    assert law.var() == pytest.approx(1 / np.sqrt(1201), rel=1e-8)


def test_gate_is_a_product_of_expectations():
    g, u = ns.weight(n, n) @ ns.gaussian(n), ns.weight(n, n) @ ns.gaussian(n)
    right = integrate.quad(
        lambda t: (t / (1 + np.exp(-t))) ** 2 * stats.norm.pdf(t), -12, 12
    )[0]
    assert ns.Program(ns.weight(n, n) @ (ns.silu(g) * u)).law(
        n=inf
    ).var() == pytest.approx(right, rel=1e-10)
    assert ns.Program(ns.weight(n, n) @ (g * ns.sigmoid(g))).law(
        n=inf
    ).var() == pytest.approx(right, rel=1e-8)
    near(ns.Program(ns.weight(n, n) @ (ns.silu(g + u) * u)), wide=1000, draws=2000)


@pytest.mark.parametrize("width", [1000, inf])
def test_means_that_vanish_count_in_scores(width):
    """n^(−1/2) ⟨g − mean(g), 1 + h⟩: the part of order 1/√n along (1, …, 1) counts, and
    takes off what ⟨g, 1⟩ adds.
    """
    net = ns.Program(ns.dot(ns.layer_norm(ns.gaussian(n)), ns.gaussian(n, mean=1)))
    # 4 standard errors
    assert net.law(n=width, draws=20_000).var() == pytest.approx(1.0, abs=0.04)
    # E[Z^x Z^x'] = 0, and yet the variance is 2: both orders count
    w, x = ns.weight(n, n), ns.gaussian(n, 2)
    assert ns.Program(ns.dot(w @ x[0], w @ x[1])).law(
        n=width, draws=20_000
    ).var() == pytest.approx(2.0, abs=0.09)


@pytest.mark.parametrize(
    "f", [lambda x: ns.dot(x, x), lambda x: ns.dot(ns.relu(x[0]), ns.relu(x[1]))]
)
def test_program_without_limit_has_no_law(f):
    net = ns.Program(f(ns.gaussian(n, 2)))
    assert net.check().verdict == "no limit"
    with pytest.raises(ns.NoLimitError, match="has no limit"):
        net.law(n=inf)
    with pytest.raises(ns.NoLimitError, match="has no limit"):
        net.plan(n=inf)
    assert np.isfinite(np.asarray(net.law(n=30, draws=100).rvs(10))).all()


def test_scores_after_the_last_nonlinearity():
    x = ns.gaussian(n, 2)
    q, k = ns.weight(n, n) @ x, ns.weight(n, n) @ x
    p = ns.dot(q, k)
    z = ns.nonlin(lambda u, p: np.tanh(u + p), q[0], p[0, 0])
    near(ns.Program(ns.dot((1 + ns.mean_dot(z, z)) * q[1], k)[0]), draws=1000)
    near(ns.Program((ns.dot(z, k)[1], p[0, 1])), draws=1000)


def test_clip_of_data_clips():
    given = np.zeros(1000)
    given[0] = 100.0
    net = ns.Program(ns.weight(n, 1000) @ ns.clip(ns.data(given), 50))
    assert net.law(n=5).var() == pytest.approx(2.5, rel=1e-12)
    assert net.law(n=inf).var() == pytest.approx(2.5, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e-7, 1e7, 1e8, 1e30])
@pytest.mark.parametrize("width", [5, inf])
def test_scales_do_not_matter(scale, width):
    w, x = ns.weight(n, n), ns.gaussian(n, 2)
    cov = (
        ns.Program(ns.stack([w @ x[0], w @ (scale * x[1]), w @ x[1]]))
        .law(n=width, draws=2000)
        .cov()
    )
    assert cov[1, 2] / np.sqrt(cov[1, 1]) / np.sqrt(cov[2, 2]) == pytest.approx(
        1.0, abs=1e-12
    )
    assert cov[1, 2] / scale == pytest.approx(cov[2, 2], rel=1e-12)


def test_tied_score_of_small_vectors_is_refused_too():
    w, x = ns.weight(n, n, std=1e-7), ns.gaussian(n, 2)
    with pytest.raises(ns.NoLimitError):
        ns.Program(ns.dot(w @ x, w @ x)).law(n=inf)


@pytest.mark.slow
def test_nearly_converged_recurrent_state_has_right_law():
    """Ten steps of a contraction: states differ by 1e-10 and less, and the matrix acts
    on all of them.
    """
    w = ns.weight(n, n, std=0.1)
    b = ns.gaussian(n)
    x = b
    for _ in range(10):
        x = w @ ns.tanh(x) + b
    assert smallest_p(ns.Program((x, w @ x)), draws=3000, n=4) > LEVEL
    law = ns.Program(x).law(n=inf)
    assert law.var() == pytest.approx(
        ns.Program(x).law(n=300, draws=3000).var(), rel=0.15
    )


CRASHED = {
    "a source plus a nonlinearity": lambda x: ns.weight(n, n) @ x + ns.tanh(x),
    "a nonlinearity plus a source": lambda x: ns.tanh(x) + ns.weight(n, n) @ x,
    "one token and one key matrix": lambda x: (
        ns.weight(n, 2 * d)
        @ ns.concat(
            ns.softmax(ns.dot(ns.weight(d, n, 2) @ x[:1], ns.weight(d, n, 1) @ x))
            @ (ns.weight(d, n, 1) @ x),
            axis=0,
        )
    ),
    "two batches on one value": lambda x: (
        ns.weight(n, n, 3).each(ns.stack([x, x], axis=1))
        + ns.weight(n, n, (3, 2)).each(ns.stack([x, x], axis=1))
    ),
    "a mask for each head": lambda x: ns.nn.attention(
        x, 2, d, mask=np.tri(3, dtype=bool)[None] | np.eye(2, dtype=bool)[:, :1, None]
    )[0],
}


@pytest.mark.parametrize("name", CRASHED)
def test_valid_programs_that_crashed(name):
    net = ns.Program(CRASHED[name](ns.gaussian(n, 3)))
    widths = {"n": 5, "d": 3} if "d" in net.widths else {"n": 5}
    assert smallest_p(net, draws=3000, **widths) > LEVEL
    near(net, draws=2000)


def test_norms_inside_a_head():
    """QK-LayerNorm: both factors have a mean of order 1/√n along (1, …, 1), whose
    product vanishes.
    """
    x = ns.gaussian(n, 3)
    q, k = ns.layer_norm(ns.weight(n, n) @ x), ns.layer_norm(ns.weight(n, n) @ x)
    near(ns.Program(ns.dot(q, k)))


def test_rotary_positions_at_finite_width():
    x = ns.gaussian(n, 3)
    q, k = ns.weight(d, n, 2) @ x, ns.weight(d, n, 1)[[0, 0]] @ x
    a = ns.softmax(
        ns.dot(ns.rotary(q, fraction=0.5), ns.rotary(k, fraction=0.5))
        + ns.normal((3,), 0.5),
        "causal",
    )
    net = ns.Program(
        (a[0, 2], ns.weight(n, 2 * d) @ ns.concat(a @ (ns.weight(d, n, 2) @ x), axis=0))
    )
    assert smallest_p(net, draws=4000, n=5, d=4) > LEVEL
    near(net, draws=1500, wide=600, d=4)


def test_constants_in_the_limit_have_sane_errors():
    x = ns.gaussian(n, 2, cov=[[1.0, 0.5], [0.5, 2.0]])
    law = ns.Program((ns.weight(n, n) @ (x * x), ns.mean_dot(x * x, x))).law(
        n=inf, draws=200
    )
    assert law.origin.quadrature_error < 1e-6


def test_matrix_acts_again_on_a_concatenation_with_more_directions():
    x, wo = ns.gaussian(n), ns.weight(n, 2 * d)
    y = wo @ ns.concat(ns.weight(d, n, 2) @ x, axis=0)
    z = wo @ ns.concat(ns.weight(d, n, 2) @ y, axis=0)
    # mean 0; 0.47 when blocks were mistaken for each other
    net = ns.Program(ns.mean_dot(y, z))
    assert smallest_p(net, draws=4000, n=16, d=8) > LEVEL


def test_stretched_rotary_frequencies():
    """The rule of Llama 3.1 written out."""
    stretch, at = (8.0, 1.0, 4.0, 64.0), [0.0, 3.0, 40.0]
    theta = 100.0 ** (-2 * np.arange(8) / 16)
    wavelength = 2 * np.pi / theta
    smooth = (64.0 / wavelength - 1.0) / 3.0
    right = np.where(
        wavelength < 16.0, theta, (1 - smooth) * theta / 8 + smooth * theta
    )
    right = np.where(wavelength > 64.0, theta / 8, right)
    assert (wavelength < 16).any()
    assert (wavelength > 64).any()
    assert ((wavelength > 16) & (wavelength < 64)).any()
    turned = ns.rotary(ns.gaussian(16, 3), at, base=100.0, stretch=stretch)
    np.testing.assert_allclose(turned.op.angles(16), np.outer(at, right), rtol=1e-12)
    x = ns.gaussian(n, 3, cov=[[1.0, 0.5, 0.2], [0.5, 1.0, 0.0], [0.2, 0.0, 2.0]])
    q, k = (
        ns.rotary(ns.weight(d, n) @ x, at, base=100.0, stretch=stretch)
        for _ in range(2)
    )
    net = ns.Program(ns.dot(q, k))
    assert smallest_p(net, draws=4000, n=5, d=4) > LEVEL
