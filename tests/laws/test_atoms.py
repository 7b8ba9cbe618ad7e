"""Mixtures with points: atoms have a mass, draws a kernel estimate, and everything else
is as for other laws.
"""

import math

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import Provenance, distances

from ..keep import keep

ORIGIN = Provenance("exact", "made for a test")


@pytest.fixture(scope="module")
def half():
    """An eighth of the mass at 0.5, the rest N(0, 1)."""
    return ns.Mixture(
        np.repeat([0.5, 0.0], [125, 875]), np.repeat([0.0, 1.0], [125, 875]), ORIGIN
    )


def test_law_with_an_atom_has_its_mass_and_density(half):
    ((at, mass),) = half.atoms
    assert at == 0.5
    assert mass.value == pytest.approx(0.125, rel=1e-12)
    assert mass.error == pytest.approx(math.sqrt(0.125 * 0.875 / 1000), rel=0.02)
    y = np.array([-1.0, 0.4999, 0.5, 2.0])
    np.testing.assert_allclose(
        half.cdf(y), 0.875 * stats.norm.cdf(y) + 0.125 * (y >= 0.5), rtol=1e-12
    )
    np.testing.assert_allclose(
        half.sf(y), 0.875 * stats.norm.sf(y) + 0.125 * (y < 0.5), rtol=1e-12
    )
    np.testing.assert_allclose(half.pdf(y), 0.875 * stats.norm.pdf(y), rtol=1e-12)
    below = 0.875 * stats.norm.cdf(0.5)
    assert half.ppf(below + 0.06) == 0.5
    assert half.ppf(below - 0.01) == pytest.approx(
        stats.norm.ppf((below - 0.01) / 0.875)
    )
    assert half.ppf(0.99) == pytest.approx(stats.norm.isf(0.01 / 0.875))
    assert "P(Y = 0.5) = 0.125" in repr(half)
    assert any("the density describes the rest" in note for note in half.notes)
    assert half.entropy() == -math.inf


def test_quantiles_between_atoms_are_not_atoms():
    """A level that the search hits exactly, with its bracket still wide: an atom inside
    it is another quantile.
    """
    law = ns.Mixture([-2.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], ORIGIN)
    y = law.mean() + law.std() * np.array([-8.0, 0.0, 2.0, 8.0])
    np.testing.assert_allclose(law.ppf(law.cdf(y[:3])), y[:3], atol=1e-12)
    np.testing.assert_allclose(law.isf(law.sf(y[1:])), y[1:], atol=1e-12)
    assert law.ppf(law.cdf([-2.0, -1.0])).tolist() == [-2.0, -1.0]
    assert law.isf(law.sf([-2.0, -1.0])).tolist() == [-2.0, -1.0]


def test_distances_of_two_points():
    """Two laws of one point each: there is no cell between two nodes to look into."""
    point, other = (
        ns.Mixture(np.full(5, at), np.zeros(5), ORIGIN) for at in (0.0, 3.0)
    )
    assert {
        name: found.value for name, found in distances(point, point).items()
    } == dict.fromkeys(("kl", "total_variation", "wasserstein1", "kolmogorov"), 0.0)
    apart = distances(point, other)
    assert [
        apart[name].value for name in ("total_variation", "wasserstein1", "kolmogorov")
    ] == [1.0, 3.0, 1.0]


def test_distances_see_atoms(half):
    other = ns.Mixture(
        np.repeat([0.5, 0.0], [250, 750]), np.repeat([0.0, 1.0], [250, 750]), ORIGIN
    )
    found = distances(half, other)
    assert found["total_variation"].value == pytest.approx(0.125, abs=0.01)
    kl = 0.125 * math.log(0.5) + 0.875 * math.log(0.875 / 0.75)
    assert found["kl"].value == pytest.approx(kl, abs=3 * found["kl"].error)
    assert ns.total_variation(half, stats.norm()).value == pytest.approx(
        0.125, abs=0.02
    )
    assert ns.kl(half, stats.norm()).value == math.inf
    assert ns.kl(stats.norm(), half).value == pytest.approx(-math.log(0.875), abs=0.02)
    assert (
        ns.wasserstein1(
            ns.Mixture(1.0, 0.0, ORIGIN), ns.Mixture(3.0, 0.0, ORIGIN)
        ).value
        == 2
    )
    assert (
        ns.total_variation(
            ns.Mixture(1.0, 0.0, ORIGIN), ns.Mixture(3.0, 0.0, ORIGIN)
        ).value
        == 1
    )


@pytest.mark.parametrize("width", [3, 8, 16])
def test_dead_relu_gives_an_atom(width):
    """W relu(g): all coordinates of g are negative with probability 2^−n, and then the
    output is 0.
    """
    n = ns.Width("n")
    law = ns.Program(ns.weight(n, n) @ ns.relu(ns.gaussian(n))).law(
        n=width, draws=20_000
    )
    rng = np.random.default_rng(0)
    g = np.maximum(rng.standard_normal((400_000, width)), 0.0)
    drawn = np.sqrt((g**2).mean(axis=1)) * rng.standard_normal(len(g))
    for y in (-0.3, 0.5):
        error = np.hypot(law.with_error.cdf(y).error, 0.5 / math.sqrt(len(g)))
        assert law.cdf(y) == pytest.approx((drawn <= y).mean(), abs=4.5 * error)
    assert law.ppf(0.9) == pytest.approx(np.quantile(drawn, 0.9), abs=0.02)
    assert law.pdf(0.5) > 0
    if width == 3:
        ((_, mass),) = law.atoms
        assert mass.value == pytest.approx(2.0**-width, abs=4.5 * mass.error)


def test_relu_layer_of_the_paper_at_width_three_has_an_atom():
    law = ns.paper.layer(activation="relu").law(n=3, draws=20_000)
    assert 0.3 < law.ppf(0.9) < 0.8
    assert law.cdf(law.ppf(0.9)) == pytest.approx(0.9, abs=1e-9)
    assert law.pdf(0.3) > 0


def test_repeated_points_are_atoms_and_single_points_are_draws():
    rng = np.random.default_rng(1)
    discrete = ns.Mixture(rng.poisson(3.0, 5000), 0.0, ORIGIN)
    assert len(discrete.atoms) > 8
    with pytest.raises(
        ValueError,
        match=r"made of point masses at 0, 1, 2, …, which has no density; law\.atoms",
    ):
        discrete.pdf(1.0)
    assert discrete.ppf(0.5) == 3
    assert discrete.cdf(2.5) == pytest.approx(stats.poisson.cdf(2, 3), abs=0.03)
    # a rectified normal
    both = ns.Mixture(np.maximum(rng.standard_normal(5000), 0.0), 0.0, ORIGIN)
    ((at, mass),) = both.atoms
    assert at == 0
    assert mass.value == pytest.approx(0.5, abs=0.03)
    assert both.pdf(1.0) == pytest.approx(stats.norm.pdf(1.0), abs=0.03)


@pytest.mark.parametrize("size", keep([2, 5, 9], 2))
def test_distances_of_a_few_draws_to_their_law_have_errors_that_cover_zero(size):
    """A few different points were atoms once: KL ∞ ± 0, total variation 1 ± 0."""
    drawn = np.random.default_rng(size).standard_normal((6, size))
    names = ["kl", "total_variation"]
    samples = [distances(sample, stats.norm(), names) for sample in drawn]
    for name in names:
        found = [sample[name] for sample in samples]
        assert sum(abs(each.value) <= 2 * each.error for each in found) >= 4


def test_points_that_differ_by_rounding_are_one_atom():
    """|x|²/n of a normed vector is 1, and a normed vector of two coordinates (1, −1) or
    (−1, 1).
    """
    n = ns.Width("n")
    x, y = ns.rms_norm(ns.gaussian(n)), ns.layer_norm(ns.gaussian(n))
    net = ns.Program(ns.mean_dot(x, x))
    assert len(set(net.draw(n=3, draws=2000))) > 1
    one = net.law(n=3, draws=2000)
    assert [at for at, _ in one.atoms] == [1.0]
    assert one.cdf(1.0) == pytest.approx(1.0, rel=1e-12)
    assert (one.sf(1.0), one.var()) == (0.0, 0.0)
    assert ns.kl(one, net.law(n=7, draws=2000, seed=1)) == (0.0, 0.0)
    (low, mass), (high, _) = ns.Program(y).law(n=2, draws=2000).atoms
    assert (low, high) == pytest.approx((-1.0, 1.0), rel=1e-12)
    assert abs(mass.value - 0.5) < 0.05
    assert ns.Program(y).law(n=2, draws=2000).cdf(low) == pytest.approx(
        mass.value, rel=1e-12
    )


def test_draws_near_an_atom_stay_where_they_are():
    drawn = 1 + 1e-7 * np.random.default_rng(0).standard_normal(1000)
    law = ns.Mixture(np.concatenate([np.ones(50), drawn]), 0.0, ORIGIN)
    np.testing.assert_array_equal(law.component_mean[50:], drawn)
    assert [at for at, _ in law.atoms] == [1.0]


def test_density_and_moments_of_a_law_known_by_draws():
    rng = np.random.default_rng(2)
    law = ns.Mixture(rng.standard_normal(3_000), 0.0, ORIGIN)
    assert not law.atoms
    value, error = law.with_error.pdf([0.0, 1.0])
    assert (np.abs(value - stats.norm.pdf([0.0, 1.0])) < 3 * error).all()
    assert (error < 0.02).all()
    assert any("kernel estimate of bandwidth" in note for note in law.notes)
    assert law.ppf(0.5) == pytest.approx(0, abs=0.03)
    for name, found in distances(law, stats.norm()).items():
        assert abs(found.value) < 3 * found.error, name
    shifted = distances(law, stats.norm(1.0))
    assert shifted["wasserstein1"].value == pytest.approx(
        1.0, abs=4 * shifted["wasserstein1"].error
    )
    assert shifted["kolmogorov"].value == pytest.approx(
        0.3829, abs=4 * shifted["kolmogorov"].error
    )
    assert shifted["total_variation"].value == pytest.approx(
        0.3829, abs=4 * shifted["total_variation"].error
    )
    assert shifted["kl"].value == pytest.approx(0.5, abs=4 * shifted["kl"].error)
    assert all(found.error < 0.05 for found in shifted.values())


@pytest.mark.slow
def test_distance_of_two_samples_of_one_law_covers_zero():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 2000))
    for first, second in ((a, b), (ns.Empirical(a), ns.Empirical(b))):
        for name, found in distances(first, second).items():
            assert found.error > 0
            assert found.value < 3 * found.error, name


def test_scores_of_a_program_have_a_law():
    n = ns.Width("n")
    x = ns.gaussian(n)
    law = ns.Program(ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)).law(
        n=16, draws=5000
    )
    assert law.pdf(0.0) > 0.3
    assert ns.wasserstein1(law, law.gaussian()).error > 0


def test_few_replicas_have_an_error():
    for count in (2, 5, 40, 79):
        law = ns.Mixture(0.0, np.linspace(1, 2, count), ORIGIN)
        for found in distances(law, stats.norm()).values():
            assert found.error > 0
    draws = ns.Mixture(np.linspace(0, 1, 50), 0.0, ORIGIN)
    assert draws.with_error.cdf(-1.0).error > 0
    assert draws.with_error.cdf(2.0).error > 0


def test_quantiles_at_atoms_have_errors():
    """Y = ±1 with P(Y = −1) = 0.52: the median of 500 draws is 1 for every fifth
    sample, within two errors of −1.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        law = ns.Mixture(np.where(rng.random(500) < 0.52, -1.0, 1.0), 0.0, ORIGIN)
        found.append(law.with_error.median())
    assert sum(each.value == 1 for each in found) > 5
    # at 95 %, fewer has probability 1e-4
    assert sum(abs(each.value + 1) <= 2 * each.error for each in found) >= 50


def test_errors_of_quantiles_far_from_a_jump():
    """No jump is near: at an atom the quantile is known, and without one it has the
    error that its slope gives.
    """
    law = ns.Mixture(np.repeat([-1.0, 1.0], [100, 400]), 0.0, ORIGIN)
    assert law.with_error.median() == (1.0, 0.0)
    smooth = ns.Mixture(np.linspace(-0.1, 0.1, 500), 1.0, ORIGIN).with_error
    value, error = smooth.ppf(0.9)
    assert error == pytest.approx(
        smooth.cdf(value).error / smooth.pdf(value).value, rel=0.02
    )


@pytest.mark.parametrize(
    "kind", [lambda draws: ns.Mixture(draws, 0.0, ORIGIN), ns.Empirical]
)
@pytest.mark.parametrize(
    "truth", [stats.expon(), pytest.param(stats.uniform(), marks=pytest.mark.slow)]
)
def test_errors_of_densities_at_an_edge(kind, truth):
    """Kernels lose half of the density there, which narrower ones show."""
    found = [
        kind(truth.rvs(5000, random_state=seed)).with_error.pdf(0.02)
        for seed in range(12)
    ]
    covered = sum(abs(value - truth.pdf(0.02)) < 2 * error for value, error in found)
    assert covered >= 7  # at 95 %, fewer has probability 1e-5


def test_errors_of_densities_away_from_edges():
    """Narrower kernels show nothing but noise: the error is that of sampling and of the
    wider kernels.
    """
    law = ns.Mixture(stats.norm().rvs(5000, random_state=0), 0.0, ORIGIN)
    value, error = law.with_error.pdf(0.0)
    wide, wider = (law.smoothed(factor).pdf(0.0) for factor in (math.sqrt(2), 2.0))
    growth = (wider - wide) / (wide - value)
    assert math.sqrt(2) < growth < 2
    # the change and its growth are known with errors: the growth is the least within
    # its error, at least that of a cusp, and the change the largest within its error
    narrow, broad = (
        stats.norm.pdf(law.component_mean, scale=factor * law.bandwidth)
        for factor in (1.0, math.sqrt(2))
    )
    noise = np.std(broad - narrow) / math.sqrt(5000)
    change = abs(wide - value) + noise
    sampling = law.smoothed().with_error.pdf(0.0).error
    assert error >= math.hypot(sampling, change / (growth - 1)) * 0.99
    assert error <= math.hypot(sampling, change / (math.sqrt(2) - 1)) * 1.01


@pytest.mark.parametrize(
    ("truth", "peak"),
    [
        (stats.laplace(), 0.0),
        pytest.param(stats.triang(0.5), 0.5, marks=pytest.mark.slow),
    ],
)
def test_errors_of_densities_at_cusps_count_the_noise_of_their_bias(truth, peak):
    """Of sixty samples of 100 draws, two errors cover 52 densities or more; without the
    noise of the bias they cover 51 (Laplace) and 49.
    """
    inside = 0
    for seed in range(60):
        sample = truth.rvs(100, random_state=np.random.default_rng(seed))
        value, error = ns.Empirical(sample).with_error.pdf(peak)
        inside += abs(value - truth.pdf(peak)) <= 2 * error
    assert inside >= 52


@pytest.mark.parametrize(
    "kind", [lambda draws: ns.Mixture(draws, 0.0, ORIGIN), ns.Empirical]
)
@pytest.mark.parametrize(
    "truth", [stats.expon(), pytest.param(stats.uniform(), marks=pytest.mark.slow)]
)
def test_errors_of_entropies_and_divergences_with_an_edge(kind, truth):
    """The bias of kernels is proportional to h there, not to h²: the change to twice
    the variance is 0.41 of it.
    """
    law, other = (
        kind(truth.rvs(300, random_state=0)),
        stats.norm(truth.mean(), 1.3 * truth.std()),
    )
    entropy, divergence = law.with_error.entropy(), ns.kl(law, other)
    assert abs(entropy.value - truth.entropy()) < 1.5 * entropy.error
    y = np.linspace(0, 20, 400_001)[1:]
    f = truth.pdf(y)
    exact = np.trapezoid(
        np.where(f > 0, f * (np.log(np.where(f > 0, f, 1.0)) - other.logpdf(y)), 0.0), y
    )
    assert abs(divergence.value - exact) < 1.5 * divergence.error


def test_errors_of_divergences_where_edges_meet():
    """Kernels lose half of the divergence of a uniform law from 500 draws; the error
    was a third of what they lose.
    """
    truth, other = stats.uniform(), stats.norm(0.5, 1 / math.sqrt(12))
    exact = 0.5 * math.log(2 * math.pi / 12) + 0.5
    found = [
        ns.kl(ns.Mixture(truth.rvs(500, random_state=seed), 0.0, ORIGIN), other)
        for seed in range(4)
    ]
    assert all(abs(value - exact) < 2 * error < 2 * exact for value, error in found)


def test_errors_of_entropies_without_an_edge():
    """There the bias is proportional to h², and the error is not much more than the
    change to twice the variance.
    """
    law = ns.Mixture(stats.norm().rvs(3000, random_state=0), 0.0, ORIGIN)
    wide = law.smoothed(math.sqrt(2)).entropy() - law.entropy()
    assert (
        wide
        < law.with_error.entropy().error
        < 1.5 * math.hypot(wide, law.smoothed().with_error.entropy().error)
    )
