"""What vanishes as n → ∞: parts of vectors that a matrix acts on again, and arguments
of functions that jump.
"""

import numpy as np
import pytest

import netsor as ns
from netsor import inf
from tests.internals import SmallParts, _Matrices, _quadrature_error

from .compare import exact_draws
from .test_gradients import smallest_p_of_draws

n = ns.Width("n")


def read_by_one_vector():
    """The gradient of a sum over tokens: the gradients of all tokens are multiples of
    r, but for small parts.
    """
    x, r = ns.gaussian(n, 2), ns.gaussian(n)
    # coordinates are asked for: no very large width gives it
    y = x + ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ x)
    y = ns.rms_norm(y + ns.nn.attention(y, 1), eps=0.0)
    p = ns.dot(r, y.sum(axis=0))
    g = ns.grad(p, x)
    return ns.Program(
        (p, ns.mean_dot(g[0], g[0]), ns.dot(g[0], x[1]), ns.dot(g[1], x[1]))
    )


@pytest.mark.slow
def test_gradients_that_differ_by_vanishing_parts_match_a_large_width(monkeypatch):
    """Against a large width; and the comparison sees a wrong small part."""
    wide = exact_draws(read_by_one_vector(), 300, seed=12, n=250)
    assert (
        smallest_p_of_draws(exact_draws(read_by_one_vector(), 300, n=inf), wide, 250)
        > 1e-3
    )
    split = SmallParts._split
    monkeypatch.setattr(SmallParts, "_split", lambda self, x: 0.0 * split(self, x))
    assert (
        smallest_p_of_draws(exact_draws(read_by_one_vector(), 300, n=inf), wide, 250)
        < 1e-6
    )


def test_vanishing_parts_use_the_units_of_their_width():
    """A concatenation of heads is wider than one: the variance of ⟨g_0, x_0⟩ was 1.5
    times too large.
    """
    x, r = ns.gaussian(n, 2), ns.gaussian(n)
    f = ns.dot(r, ns.nn.attention(x, heads=2))[0]
    g = ns.grad(f, x)
    net = ns.Program((f, ns.dot(g[0], x[0]), ns.dot(g[1], x[0])))
    limit, wide = (
        np.var(net.draw(n=width, draws=2000, seed=3, progress=False), axis=1)
        for width in (inf, 512)
    )
    # four standard errors of a ratio of variances
    np.testing.assert_allclose(limit, wide, rtol=0.15)


def test_vanishing_parts_after_a_lazy_step_match_a_large_width():
    """After a lazy step W acts on what it acted on before, but for small parts. In the
    limit f' is linear in f.
    """
    w, r = ns.weight(n, n), ns.gaussian(n)
    x = ns.weight(n, 3) @ ns.data(np.random.default_rng(0).standard_normal((1, 3)))
    x = x + 0.5 * (w.T @ (w @ x))
    f = ns.dot(r, x + w @ ns.rms_norm(x, eps=0.0))
    _, after = ns.step(
        [f, f.sum()], 0.5 * ((f + 1.0) ** 2).sum(), lambda fan_in, fan_out: 0.3 / fan_in
    )
    first, wide = (net_slope(ns.Program((f, after)), width) for width in (inf, 20_000))
    np.testing.assert_allclose(first, wide, rtol=0.01)


def net_slope(net, width):
    before, after = (
        v.ravel() for v in net.draw(n=width, draws=400, seed=2, progress=False)
    )
    return np.polyfit(before, after, 1)


def test_rounding_is_not_taken_for_a_vanishing_part():
    """Hard attention makes tokens nearly equal: rounding was taken for a part of order
    ε.
    """
    x, r = ns.gaussian(n, 3), ns.gaussian(n)
    q, k, v, o = (ns.weight(n, n, std=std) for std in (2.0, 1.0, 1.0, 1.0))
    f = ns.dot(
        r, ns.layer_norm(o @ (ns.softmax(ns.dot(q @ x, k @ x), "causal") @ (v @ x)))
    )
    loss = 0.5 * ((f - np.array([1.0, -1.0, 0.5])) ** 2).sum()
    net = ns.Program(
        ns.step(
            f,
            loss,
            {x: 0.3, None: lambda fan_in, fan_out: 0.3 / fan_in},
            weights=[q, k, v, o, x],
        )
    )
    assert np.isfinite(net.draw(n=inf, draws=50, seed=1, progress=False)).all()


@pytest.mark.slow
def test_unfollowed_vanishing_parts_raise_an_error(monkeypatch):
    monkeypatch.setattr(
        _Matrices, "deficient", lambda self, x, side, orders, context: False
    )
    with pytest.raises(ValueError, match=r"part of order n\^\(-1/2\)"):
        read_by_one_vector().law(n=inf, draws=100, seed=5)


def test_all_guards_are_tried_in_one_run_of_the_plan(monkeypatch):
    """Training makes thousands of guards, and a run for each never ended: the time
    grew like their square.
    """
    monkeypatch.setattr(
        _Matrices, "deficient", lambda self, x, side, orders, context: False
    )
    two = ns.Program((*read_by_one_vector().outputs, *read_by_one_vector().outputs))
    guards = [step for step in two.plan(n=inf).steps if step.kind == "lost"]
    assert len(guards) > 1
    runs = []
    sample_block = _quadrature_error.sample_block
    monkeypatch.setattr(
        _quadrature_error,
        "sample_block",
        lambda plan, *options: runs.append(plan) or sample_block(plan, *options),
    )
    with pytest.raises(ValueError, match=r"part of order n\^\(-1/2\)"):
        two.law(n=inf, draws=100, seed=5)
    assert len(runs) == 1


def test_nan_is_not_taken_for_a_vanishing_part():
    net = read_by_one_vector()
    wrong = ns.Program(
        (*net.outputs, ns.apply(lambda p: np.where(p > 1, np.nan, p), net.outputs[0]))
    )
    assert any(step.kind == "lost" for step in wrong.plan(n=inf).steps)
    with pytest.raises(ValueError, match="a function of the program gave NaN"):
        wrong.law(n=inf, draws=100, seed=5)


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e-9, 1e9])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_norm_of_a_small_vector_is_relative_to_its_size(scale, eps):
    """Sizes are relative: a norm with eps = 0 forgets the scale."""
    x = ns.gaussian(n)
    law = ns.Program(ns.rms_norm(scale * x, eps=eps)).law(n=inf, draws=10)
    np.testing.assert_allclose(law.var(), scale**2 / (scale**2 + eps), rtol=1e-9)
    relu = ns.mean_dot(ns.rms_norm(scale * ns.relu(x), eps=0.0), x)
    np.testing.assert_allclose(
        ns.Program(relu).law(n=inf, draws=10).mean(), 0.5**0.5, rtol=1e-9
    )


def test_vanishing_scalars_of_two_widths_add_up():
    """⟨x, x'⟩/n + ⟨y, y'⟩/(2n) is n^(−1/2) N(0, 3/2); with y of another width m the
    limit depends on n/m.
    """
    m, x, z = ns.Width("m"), ns.gaussian(n, 2), ns.gaussian(n, 1)

    def score(width):
        y = ns.gaussian(width, 2)
        c = ns.mean_dot(x[:1], x[1:]) + ns.mean_dot(y[:1], y[1:])
        return ns.Program(ns.dot(c[0, 0] * z, z))

    # 4 standard errors
    assert abs(score(2 * n).law(n=inf, draws=20_000, seed=1).std() - 1.5**0.5) < 0.025
    with pytest.raises(ns.ExactError, match="depends on terms of order 1/n"):
        score(m).law(n=inf, m=inf, draws=10)


def test_norm_of_a_cancelling_sum_raises_an_error():
    """0.1 x + 0.2 x − 0.3 x is 0 but for rounding, so that its direction is not
    known.
    """
    x = ns.gaussian(n, 2)
    rest = 0.1 * x[0] + 0.2 * x[0] - 0.3 * x[0]
    assert ns.Program(ns.mean_dot(rest, rest)).law(n=inf, draws=10).mean() == 0.0
    with pytest.raises(ns.ExactError, match="jumps"):
        ns.Program(ns.rms_norm(rest, eps=0.0)).law(n=inf, draws=10)
    m = ns.mean_dot(x, x)
    zero = (0.1 * m + 0.2 * m - 0.3 * m)[0, 0]
    with pytest.raises(ns.ExactError, match="jumps"):
        ns.Program(ns.apply(np.sign, zero)).law(n=inf, draws=10)


@pytest.mark.parametrize("norm", [ns.layer_norm, ns.rms_norm])
def test_product_of_gradient_and_normed_input_is_zero(norm):
    """Norms forget the size of h, so that ⟨∂p/∂h, h⟩ is 0 but for eps: its terms
    cancel, up to rounding.
    """
    e = ns.gaussian(n, 2)
    h = e + ns.gelu(ns.weight(n, n) @ e)
    g = ns.grad(ns.dot(ns.gaussian(n), norm(h, eps=0.0)[0]), h)
    law = ns.Program(ns.dot(g[0], h[0])).law(n=inf, draws=50)
    assert abs(law.mean()) + law.std() < 1e-12


@pytest.mark.slow
def test_output_that_is_zero_up_to_node_errors_is_zero():
    """⟨∂f/∂x, x⟩ is 0, because f does not depend on the length of x; at nodes it is of
    order 1e-3.
    """
    x, w = ns.relu(ns.weight(n, 4) @ ns.data([[-0.1, 0.4, 0.9, -1.0]])), ns.weight(n, n)
    f = ns.dot(ns.gaussian(n), w.T @ ns.erf(w @ ns.rms_norm(x, eps=0.0)))[0]
    g = ns.grad(f, x)[0]
    zero = ns.dot(g, x[0])
    net = ns.Program((f, zero, zero + 1e-3 * f, g))
    law = net.law(n=inf, draws=200)
    assert np.ptp(net.draw(n=inf, draws=50)[1]) > 1e-4
    assert law[1].var() == law[1].mean() == 0
    assert law[2].var() > 0.5e-6 * law[0].var()  # as small, but not 0


@pytest.mark.parametrize("size", [1e-4, 1e-6])
def test_small_difference_of_scalars_is_kept(size):
    """A variance from the mean of the squares: relative to that mean it is size², and
    was 0 below 1e-12.
    """
    x = ns.ones(n) + size * ns.gaussian(n)
    mean = ns.mean_dot(x, ns.ones(n))
    law = ns.Program((ns.mean_dot(x, x) - mean * mean) / size**2).law(n=inf)
    np.testing.assert_allclose(law.mean(), 1.0, rtol=1e-15 / size**2)


def test_rounding_of_large_terms_is_zero():
    """The sum is known to be 0 up to rounding of its first terms, which are much larger
    than its last ones.
    """
    c = ns.mean_dot(x := ns.gaussian(n, cov=0.7), x)
    rounded = ((c + 1e-8) - 0.7) - 1e-8
    with pytest.raises(ValueError, match="sign jumps at the limit of its argument"):
        ns.Program(ns.apply(np.sign, rounded)).law(n=inf)
    # c − c is no rounding
    assert ns.Program((c - c + 1e-15 * c) / 1e-15).law(n=inf).mean() == pytest.approx(
        0.7
    )
    assert ns.Program((1.7e308 * c - 1.2e308 * c) * 1e-308).law(
        n=inf
    ).mean() == pytest.approx(0.35)  # its size overflows


def test_function_of_a_constant_scalar_has_no_vanishing_part():
    """Otherwise its small part is unknown, and so is the score; a very large width had
    to give the law.
    """
    x, y = ns.gaussian(n), ns.gaussian(n)
    c = ns.apply(np.exp, 0.0 * ns.mean_dot(x, x))
    assert not ns.Program(ns.dot(c * (x + y), x - y)).plan(n=inf).notes
