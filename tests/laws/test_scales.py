"""Distances, quantiles and entropies at every scale and place: closed forms, and
independent quadrature.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

import netsor as ns
from tests.internals import Provenance, distances

from ..keep import keep

ORIGIN = Provenance("exact", "made for a test")
SCALES = (1e-8, 1e-3, 1.0, 1e3, 1e8)


def gaussian(mean, std):
    return ns.Mixture(mean, std**2, ORIGIN)


def exact(m, s, n, t):
    """KL, total variation, W1 and Kolmogorov of N(m, s²) and N(n, t²), from
    textbooks.
    """
    p, q = stats.norm(m, s), stats.norm(n, t)
    kl = math.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5
    if s == t:
        cross = [(m + n) / 2]
    else:  # log p = log q
        a, b = 1 / t**2 - 1 / s**2, 2 * (m / s**2 - n / t**2)
        c = n**2 / t**2 - m**2 / s**2 + 2 * math.log(t / s)
        root = math.sqrt(b**2 - 4 * a * c)
        far = (-b - math.copysign(root, b)) / (2 * a) if b else root / (2 * abs(a))
        cross = sorted([far, c / (a * far)])
    d = [0.0, *(q.cdf(x) - p.cdf(x) for x in cross), 0.0]
    variation = 0.5 * sum(abs(y - x) for x, y in itertools.pairwise(d))
    if s == t:
        area = abs(m - n)
    else:  # P = Q at one point, y; E|X − Y| of the comonotone pair, m − n + (s − t) Z
        law = stats.norm(m - n, abs(s - t))
        z = (m - n) / abs(s - t)
        area = (m - n) * (2 * stats.norm.cdf(z) - 1) + 2 * abs(s - t) * law.pdf(
            0
        ) * abs(s - t)
    return {
        "kl": kl,
        "total_variation": variation,
        "wasserstein1": area,
        "kolmogorov": max(map(abs, d)),
    }


CASES = [
    (m, s, n, t)
    for s, t in itertools.product(SCALES, SCALES)
    for m, n in ((0.0, 0.0), (50.0, 0.0))
]
CASES += [
    (0.0, 1.0, 1e-4, 1.0),
    (0.0, 1.0, 0.0, 1.0 + 1e-6),
    (1e8, 1.0, 1e8 + 1, 1.0),
    (-3.0, 1.0, 4.0, 0.1),
]


# every third pair of scales, and the special ones
@pytest.mark.parametrize(("m", "s", "n", "t"), keep(CASES, *CASES[::3], *CASES[-4:]))
def test_gaussians_at_every_scale(m, s, n, t):
    if (s, m) == (t, n):
        pytest.skip("one law")
    found = distances(gaussian(m, s), gaussian(n, t))
    for name, right in exact(m, s, n, t).items():
        assert found[name].value == pytest.approx(
            right, rel=2e-5, abs=2e-9 if name != "wasserstein1" else 2e-9 * (s + t)
        )
        assert found[name].error == 0
    assert 0 <= found["total_variation"].value <= 1
    assert 0 <= found["kolmogorov"].value <= 1


def test_mixtures_against_independent_quadrature():
    rng = np.random.default_rng(3)
    for scale in (1e-8, 1.0, 1e8):
        a = ns.Mixture(
            scale * np.array([-1.0, 0.0, 7.0]),
            scale**2 * np.array([0.01, 1.0, 4.0]),
            ORIGIN,
        )
        b = ns.Mixture(0.0, scale**2 * rng.gamma(2.0, 1.0, 30), ORIGIN)
        y = scale * np.linspace(-40, 40, 40_001)
        f, g, p, q = a.pdf(y), b.pdf(y), a.cdf(y), b.cdf(y)
        found = {
            name: _plain(a, b, name)
            for name in ("kl", "total_variation", "wasserstein1", "kolmogorov")
        }
        some = g > 0
        log_ratio = np.where(
            f > 1e-300, np.log(np.maximum(f, 1e-300)) - b.logpdf(y), 0.0
        )
        assert found["kl"] == pytest.approx(
            np.trapezoid(np.where(some | (f > 0), f * log_ratio, 0), y), rel=1e-5
        )
        assert found["total_variation"] == pytest.approx(
            0.5 * np.trapezoid(np.abs(f - g), y), rel=1e-5
        )
        assert found["wasserstein1"] == pytest.approx(
            np.trapezoid(np.abs(p - q), y), rel=1e-5
        )
        assert found["kolmogorov"] == pytest.approx(np.abs(p - q).max(), rel=1e-5)


def _plain(a, b, name):
    """The distance of the two laws as they are, without what is done for noise."""
    from tests.internals import DistanceEstimator

    return DistanceEstimator(a, b, couple=False)._distance(name, errors=False).value


@pytest.mark.slow
def test_heavy_and_light_from_linear_attention_at_width_one_and_two():
    n = ns.Width("n")
    x = ns.gaussian(n, 3)
    w = [ns.weight(n, n) for _ in range(4)]
    net = ns.Program((w[3] @ (ns.dot(w[0] @ x, w[1] @ x) @ (w[2] @ x)))[0])
    one, two = (net.law(n=k, draws=4000) for k in (1, 2))
    for name, found in distances(one, two).items():
        assert found.error > 0
        if name in ("total_variation", "kolmogorov"):
            assert 0 <= found.value <= 1


@pytest.mark.parametrize("std", SCALES)
def test_entropy_and_quantiles_at_every_scale(std):
    law = gaussian(3.0, std)
    assert law.entropy() == pytest.approx(
        0.5 * math.log(2 * math.pi * math.e * std**2), abs=1e-7
    )
    q = np.array([1e-200, 1e-10, 0.3, 0.5, 0.9])
    np.testing.assert_allclose(
        (law.ppf(q) - 3) / std, stats.norm.ppf(q), rtol=1e-7, atol=1e-7
    )
    assert (law.isf(1e-100) - 3) / std == pytest.approx(
        stats.norm.isf(1e-100), rel=1e-7
    )


@pytest.mark.slow
def test_quantiles_of_a_limit_at_a_tiny_scale():
    q = np.array([0.01, 0.5, 0.78, 0.999])
    one = ns.paper.layer().law(n=ns.inf).ppf(q)
    for scale in (1e-13, 1e13):
        np.testing.assert_allclose(
            ns.paper.layer(sigma_o=scale).law(n=ns.inf).ppf(q),
            scale * one,
            rtol=1e-9,
            atol=1e-14 * scale,
        )


@pytest.mark.slow
def test_width_one_of_the_papers_layer():
    """W1 and Kolmogorov by quadrature on a fine grid of their own."""
    p, q = (ns.paper.layer().law(n=k, draws=20_000) for k in (1, ns.inf))
    found = distances(p, q)
    y = np.sinh(np.linspace(-math.asinh(3000), math.asinh(3000), 20_001))
    gap = np.abs(p.cdf(y) - q.cdf(y))
    assert found["kolmogorov"].value == pytest.approx(
        gap.max(), abs=3 * found["kolmogorov"].error
    )
    assert found["wasserstein1"].value == pytest.approx(
        np.trapezoid(gap, y), abs=3 * found["wasserstein1"].error
    )
    assert found["kolmogorov"].value == pytest.approx(0.206, abs=0.01)
    assert found["wasserstein1"].value == pytest.approx(0.304, abs=0.03)


def test_uniform_and_other_frozen_distributions():
    uniform = stats.uniform(0, 1)
    assert ns.total_variation(uniform, stats.uniform(0.25, 1)).value == pytest.approx(
        0.25, abs=1e-6
    )
    assert ns.wasserstein1(uniform, stats.uniform(0.25, 1)).value == pytest.approx(
        0.25, abs=1e-6
    )
    assert ns.kl(stats.norm(), uniform).value == math.inf
    assert ns.kl(uniform, stats.norm()).value == pytest.approx(
        1 / 6 + 0.5 * math.log(2 * math.pi), abs=1e-5
    )
    t, normal = stats.t(3), stats.norm()
    heavy = ns.total_variation(t, normal).value
    # both are symmetric
    right = integrate.quad(
        lambda x: abs(t.pdf(x) - normal.pdf(x)), 0, np.inf, limit=400
    )[0]
    assert heavy == pytest.approx(right, abs=1e-5)
    with pytest.raises(ValueError, match="has no mean"):
        ns.wasserstein1(stats.cauchy(), stats.norm())
    with pytest.raises(ns.LawError, match="is discrete"):
        ns.kl(stats.poisson(3), stats.norm())
    with pytest.raises(ns.LawError, match="frozen distributions or draws, got str"):
        ns.kl("law", stats.norm())


def test_shift_changes_no_entropy_and_no_distance():
    """All means one: the lattice of means (`binned`) must widen nothing, and take
    nothing off.
    """
    var = np.exp(0.3 * np.random.default_rng(0).standard_normal(5000))
    here, there = (ns.Mixture(np.full(5000, mean), var, ORIGIN) for mean in (0.0, 1.0))
    assert there.entropy() == pytest.approx(here.entropy(), abs=1e-5)
    found = [ns.total_variation(law, law.gaussian()).value for law in (here, there)]
    assert found[1] == pytest.approx(found[0], abs=1e-5)
