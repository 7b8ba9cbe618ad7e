"""Joint laws: densities, rectangles, parts, data, distances and pictures."""

import copy
import math
import pickle

import numpy as np
import pytest
from examples import attention_layer
from scipy import stats

import netsor as ns
from tests.internals import OF_ONE_OUTPUT, Provenance, Replicas

ORIGIN = Provenance("exact", "made for a test")


def mixture(replicas, dim, seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    root = np.eye(dim) + spread * rng.standard_normal((replicas, dim, dim))
    return ns.Joint(
        spread * rng.standard_normal((replicas, dim)),
        root @ np.swapaxes(root, 1, 2),
        ORIGIN,
    )


def plain(law, y):
    """The density, component by component."""
    parts = zip(law.component_mean, law.component_cov, strict=True)
    return np.mean([stats.multivariate_normal(m, v).pdf(y) for m, v in parts], axis=0)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_density_component_by_component(scale):
    law = mixture(50, 3)
    scaled = ns.Joint(scale * law.component_mean, scale**2 * law.component_cov, ORIGIN)
    y = np.random.default_rng(1).standard_normal((4, 5, 3))
    np.testing.assert_allclose(
        scaled.pdf(scale * y) * scale**3, plain(law, y), rtol=1e-9
    )
    np.testing.assert_allclose(
        scaled.logpdf(scale * y) + 3 * math.log(scale), np.log(plain(law, y)), atol=1e-8
    )
    value, error = law.with_error.pdf(y)
    np.testing.assert_allclose(value, plain(law, y), rtol=1e-9)
    parts = zip(law.component_mean, law.component_cov, strict=True)
    each = np.array([stats.multivariate_normal(m, v).pdf(y) for m, v in parts])
    np.testing.assert_allclose(
        law._pdf_with_error(y.reshape(-1, 3), unseen=False).error.reshape(4, 5),
        each.std(axis=0, ddof=1) / 50**0.5,
        rtol=0.02,
    )
    np.testing.assert_allclose(
        error, Replicas(len(each)).average(each).error, rtol=1e-3
    )


def test_density_far_out_and_far_apart():
    law = ns.Joint([[0.0, 0.0], [1e9, 0.0]], [np.eye(2), np.eye(2)], ORIGIN)
    assert law.logpdf([1e9, 1.0]) == pytest.approx(
        stats.norm.logpdf(0) + stats.norm.logpdf(1) - math.log(2)
    )
    assert law.logpdf([100.0, 0.0]) == pytest.approx(
        stats.norm.logpdf(100) + stats.norm.logpdf(0) - math.log(2)
    )


@pytest.mark.slow
def test_large_grid_is_many_points_at_once():
    """61 × 61 points and 50,000 components: the density of one point at a time, from
    all of them.
    """
    law = mixture(50_000, 2)
    side = np.linspace(-3, 3, 61)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    found = law.pdf(grid)
    assert found.shape == (61, 61)
    for i, j in ((0, 0), (30, 30), (12, 50)):
        assert found[i, j] == pytest.approx(
            float(np.exp(law.logpdf(grid[i, j]))), rel=1e-10
        )


def test_probabilities_of_rectangles():
    law = mixture(60, 3)
    lower, upper = np.array([-1.0, -0.5, -2.0]), np.array([0.5, 1.0, 0.7])
    value, error = law.with_error.cdf(upper, lower)
    parts = zip(law.component_mean, law.component_cov, strict=True)
    right = np.array(
        [
            stats.multivariate_normal(m, v).cdf(upper, lower_limit=lower)
            for m, v in parts
        ]
    )
    assert value == pytest.approx(right.mean(), abs=1e-3)
    assert error == pytest.approx(right.std(ddof=1) / 60**0.5, rel=0.3)
    assert law.marginal([1]).cdf([0.3]) == pytest.approx(law[1].cdf(0.3), rel=1e-12)
    assert law.cdf(np.inf) == pytest.approx(1)
    one = ns.Joint([[0.0, 0.0]], [[[1.0, 0.6], [0.6, 1.0]]], ORIGIN)
    assert one.cdf([0.0, 0.0]) == pytest.approx(
        0.25 + math.asin(0.6) / (2 * math.pi),
        abs=5 * one.with_error.cdf([0.0, 0.0]).error,
    )
    # singular: Y₂ = Y₁
    tied = ns.Joint([[0.0, 0.0]], [[[1.0, 1.0], [1.0, 1.0]]], ORIGIN)
    assert tied.cdf([0.5, 1.0]) == pytest.approx(stats.norm.cdf(0.5), abs=1e-2)
    with pytest.raises(ValueError, match="must be at most"):
        law.cdf(lower, upper)


def test_moments_and_their_errors():
    law = mixture(500, 2)
    np.testing.assert_allclose(law.var(), np.diag(law.cov()))
    np.testing.assert_allclose(
        law.corr()[0, 1], law.cov()[0, 1] / np.sqrt(np.prod(law.var()))
    )
    assert law.corr()[0, 0] == 1
    # over bootstrap samples of the replicas, the correlation varies as its error says
    rng = np.random.default_rng(0)
    again = []
    for _ in range(300):
        k = rng.integers(500, size=500)
        again.append(
            ns.Joint(law.component_mean[k], law.component_cov[k], ORIGIN).corr()[0, 1]
        )
    assert law.with_error.corr().error[0, 1] == pytest.approx(np.std(again), rel=0.2)
    doubtful = ns.Joint(
        law.component_mean,
        law.component_cov,
        Provenance("exact", "test", quadrature_error=0.1),
    )
    assert (np.diag(doubtful.with_error.cov().error) > 0.1 * law.var()).all()


def test_constant_entry_has_no_correlations():
    """And says so by NaN, without a warning."""
    law = mixture(100, 3).combination([[1, 0, 0], [0, 0, 0], [0, 1, 1]])
    for found in (law.corr(), law.with_error.corr().value):
        np.testing.assert_array_equal(
            np.isnan(found),
            [[False, True, False], [True, True, True], [False, True, False]],
        )
        assert found[0, 0] == found[2, 2] == 1


def test_names_of_one_output_say_what_to_write():
    law = mixture(5, 2)
    text = r"a joint law of 2 outputs has no 'kurtosis': .* law\[0\]\.kurtosis"
    with pytest.raises(AttributeError, match=text):
        law.kurtosis()
    of_one = {name for name in dir(ns.Law) if name[0] != "_" and name != "doubt"}
    missing = {name for name in of_one if not hasattr(law, name)}
    assert missing == set(OF_ONE_OUTPUT)
    assert isinstance(pickle.loads(pickle.dumps(law))[0], ns.Law)
    assert copy.copy(law).dim == 2


def test_several_combinations_are_a_joint_law():
    law = mixture(100, 3)
    w = np.array([[1.0, -1.0, 0.0], [0.5, 0.5, 2.0]])
    two = law.combination(w)
    np.testing.assert_allclose(two.cov(), w @ law.cov() @ w.T)
    assert two[1].var() == pytest.approx(law.combination(w[1]).var())


# Of a program


@pytest.fixture(scope="module")
def joint():
    return attention_layer.net().law(n=16, draws=4000)


def test_joint_density_has_mass_one(joint):
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
    assert [joint.rvs().shape, joint.rvs((2, 3)).shape] == [(4,), (2, 3, 4)]
    np.testing.assert_allclose(np.cov(drawn.T), joint.cov(), atol=0.03)
    weights = np.array([1.0, -0.5, 0.0, 2.0])
    assert joint.combination(weights).var() == pytest.approx(
        weights @ joint.cov() @ weights, rel=1e-9
    )
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
    singular = ns.Program(
        ns.stack([*[ns.weight(1, ns.Width("n")) @ ns.gaussian(ns.Width("n"))] * 2])
    ).law(n=3)
    with pytest.raises(
        ValueError, match="every replica has a singular covariance: take a marginal"
    ):
        singular.logpdf([0.0, 0.0])
    assert singular.singular == (1.0, 0.0)


def test_density_of_singular_entries_raises_and_that_of_the_others_does_not():
    """One replica of 1,000 is singular to all digits: as in one dimension, it has a
    mass, and the others a density.
    """
    n = ns.Width("n")
    x = ns.gaussian(n, 4)
    a = ns.softmax(ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x))
    found = ns.Program(ns.weight(n, n) @ (a @ (ns.weight(n, n) @ x))).law(
        n=64, draws=1000
    )
    cov = found.component_cov.copy()
    cov[234] = 0.3  # all tokens attend to the same one
    law = ns.Joint(found.component_mean, cov, ORIGIN)
    mass = law.singular
    assert mass.value == pytest.approx(1 / 1000)
    assert 1 / 1000 < mass.error < 2 / 1000
    assert any("P(Y has no joint density) = 0.001" in note for note in law.notes)
    rest = np.linalg.eigvalsh(law.component_cov)[:, 0] > 1e-14
    assert rest.sum() == 999
    point = np.full(4, 0.1)
    parts = zip(law.component_mean[rest], law.component_cov[rest], strict=True)
    right = (
        sum(
            stats.multivariate_normal(m, v, allow_singular=True).pdf(point)
            for m, v in parts
        )
        / 1000
    )
    assert law.pdf(point) == pytest.approx(right, rel=1e-6)
    assert law.logpdf(point) == pytest.approx(math.log(right), abs=1e-6)
    assert ns.kl(law, law.gaussian()).value == math.inf  # as of an atom
    assert np.isfinite(ns.kl(law.gaussian(), law).value)


def test_entries_of_very_different_scales_are_not_singular():
    scale = np.array([1e-8, 1.0, 1e8])
    law = mixture(40, 3)
    other = ns.Joint(
        law.component_mean * scale, law.component_cov * np.outer(scale, scale), ORIGIN
    )
    assert other.singular.value == 0
    assert other.pdf(0.3 * scale) == pytest.approx(law.pdf([0.3, 0.3, 0.3]), rel=1e-9)
    assert other.logpdf(0.3 * scale) == pytest.approx(
        law.logpdf([0.3, 0.3, 0.3]), rel=1e-9
    )


def test_error_of_a_joint_density_covers():
    """Of 200 laws of 30 replicas each, v of six χ²_4/4 and two entries: within two
    errors, at level 1e-5 of 90 %.
    """
    v = (np.random.default_rng(12).chisquare(4, (200, 30, 6)) / 4).prod(axis=-1)
    many = (np.random.default_rng(13).chisquare(4, (200_000, 6)) / 4).prod(axis=-1)
    point = np.array([0.5, 1.0])
    right = np.mean(np.exp(-(point @ point) / (2 * many)) / (2 * np.pi * many))
    found = [
        ns.Joint(
            np.zeros((30, 2)), w[:, None, None] * np.eye(2), ORIGIN
        ).with_error.pdf(point)
        for w in v
    ]
    assert sum(abs(e.value - right) <= 2 * e.error for e in found) >= stats.binom(
        200, 0.9
    ).ppf(1e-5)


# Data


def test_gaussian_given_data_matches_the_textbook_formula():
    cov = np.array([[2.0, 0.8], [0.8, 1.0]])
    law = ns.Joint([[0.5, -1.0]], [cov], ORIGIN)
    given = law.condition({0: 1.5}, noise=0.3)
    gain = cov[:, 0] / (2.0 + 0.09)
    np.testing.assert_allclose(given.mean(), [0.5, -1.0] + gain * 1.0)
    np.testing.assert_allclose(given.cov(), cov - np.outer(gain, cov[0]))
    assert given.log_evidence.value == pytest.approx(
        stats.norm.logpdf(1.5, 0.5, math.sqrt(2.09))
    )
    exact = law.condition({0: 1.5})
    assert exact.mean()[0] == 1.5
    assert exact.var()[0] == 0


def test_mixture_given_data_equals_quadrature():
    law = mixture(100, 2, seed=5)
    with pytest.warns(UserWarning, match="effective sample"):
        given = law.condition({1: 0.9}, noise=0.5)

    y, z = np.linspace(-7, 7, 141), np.linspace(-7, 7, 141)
    table = plain(
        law, np.stack(np.meshgrid(y, z, indexing="ij"), axis=-1)
    ) * stats.norm.pdf(0.9, z, 0.5)
    # p(y) p(obs | y): the posterior but for the evidence
    density = np.trapezoid(table, z, axis=1)
    evidence = np.trapezoid(density, y)
    assert given.log_evidence.value == pytest.approx(math.log(evidence), abs=1e-5)
    np.testing.assert_allclose(given[0].pdf(y), density / evidence, atol=1e-6)
    assert 1 < given.effective < 100
    assert given.log_evidence.error > 0


def test_data_that_leave_few_replicas_warn():
    law = mixture(300, 2)
    with pytest.warns(
        UserWarning,
        match=(
            r"effective sample of \d+ of 300 replicas; take more draws, or more noise"
        ),
    ):
        given = law.condition({0: 9.0, 1: -9.0}, noise=0.01)
    assert given.effective < 100
    assert "given data, log evidence" in repr(given)


def test_invalid_data_raise():
    law = mixture(10, 2)
    tied = ns.Joint([[0.0, 0.0]], [[[1.0, 1.0], [1.0, 1.0]]], ORIGIN)
    for observed, noise, problem in (
        ({2: 1.0}, 0.1, "entry 2 must be an integer from 0 to 1"),
        ({0: np.nan}, 0.1, "observed\\[0\\]=nan must be finite"),
        ({}, 0.1, "must be a non-empty mapping"),
        ({0: 1.0, -2: 1.0}, 0.1, "names an entry twice"),
        ({0: 1.0}, -0.1, "noise=-0.1 must be a standard deviation, 0 or more"),
    ):
        with pytest.raises(ValueError, match=problem):
            law.condition(observed, noise)
    with pytest.raises(
        ValueError, match="some observations determine others: give noise above 0"
    ):
        tied.condition({0: 1.0, 1: 1.0})


# Distances and pictures


def test_divergence_of_joint_laws():
    a, b = np.array([[1.0, 0.3], [0.3, 1.0]]), np.eye(2)
    p, q = (ns.Joint([[0.0, m]], [v], ORIGIN) for m, v in ((0.4, a), (0.0, b)))
    found = ns.kl(p, q)
    right = 0.5 * (np.trace(a) + 0.16 - 2 - np.linalg.slogdet(a)[1])
    assert abs(found.value - right) < 4.5 * found.error
    assert found.error < 0.02
    law = mixture(800, 2)
    same = ns.kl(law, mixture(800, 2, seed=9))
    assert abs(same.value) < 3 * same.error
    assert ns.kl(law, law.gaussian()).value > 0


def test_sliced_distance_of_joint_laws():
    p = ns.Joint([[0.0, 0.0]], [np.eye(2)], ORIGIN)
    q = ns.Joint([[3.0, 4.0]], [np.eye(2)], ORIGIN)
    found = ns.sliced_wasserstein(p, q, directions=64)  # E|⟨u, (3, 4)⟩| = 5 · 2/π
    assert abs(found.value - 10 / math.pi) < 4.5 * found.error
    with pytest.raises(ns.LawError, match="sliced_wasserstein: needs joint laws"):
        ns.sliced_wasserstein(p, q[0])
    with pytest.raises(
        ValueError, match="joint laws of 2 and 3 entries; take marginals"
    ):
        ns.sliced_wasserstein(p, np.zeros((9, 3)))


def test_distance_of_a_joint_law_from_itself_is_zero():
    law, other = mixture(100, 2), mixture(100, 2)
    assert ns.kl(law, law) == ns.kl(law, other) == ns.Estimate(0.0, 0.0)
    assert (
        ns.kl(law, ns.Joint(law.component_mean + 0.5, law.component_cov, ORIGIN)) > 0.01
    )


def test_distances_of_joint_laws_to_scipy_laws_and_samples():
    """A frozen normal of scipy.stats is the Gaussian that it says, and an array of
    draws is what drew it.
    """
    a = np.array([[2.0, 0.6], [0.6, 1.0]])
    p, q = (
        ns.Joint([[0.4, 0.0]], [a], ORIGIN),
        ns.Joint([[0.0, 0.0]], [np.eye(2)], ORIGIN),
    )
    frozen = stats.multivariate_normal([0.0, 0.0], np.eye(2))
    assert ns.kl(p, frozen) == ns.kl(p, q)
    assert ns.sliced_wasserstein(frozen, p, directions=2) == ns.sliced_wasserstein(
        q, p, directions=2
    )
    draws = frozen.rvs(200, random_state=5)
    near, far = (
        ns.sliced_wasserstein(q, draws + shift, directions=4) for shift in (0.0, 5.0)
    )
    assert near.value < 4 * near.error < 0.6
    assert far.value > 4 * far.error


def test_density_at_infinite_and_nan_points():
    law = mixture(100, 2)
    at = [
        [math.inf, 0.0],
        [0.0, -1e200],
        [math.nan, 0.0],
        [math.nan, math.inf],
        [0.1, 0.2],
    ]
    value, error = law.with_error.pdf(at)
    assert value[:2].tolist() == error[:2].tolist() == [0.0, 0.0]
    assert np.isnan(value[2:4]).all()
    assert law.pdf([0.1, 0.2]) > 0
    # sums of one point and of five are rounded
    assert value[4] == pytest.approx(law.pdf([0.1, 0.2]), rel=1e-12)
    assert law.logpdf(at)[:2].tolist() == [-math.inf, -math.inf]


def test_plots_of_joint_laws(tmp_path):
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    plt.switch_backend("Agg")
    one, other = (
        ns.Mixture(0.0, [1.0, 2.0], ORIGIN),
        ns.Mixture([0.0, 0.0, 1.0], [0.0, 0.0, 2.0], ORIGIN),
    )
    axes = Figure().subplots()
    assert one.plot(ax=axes, label="one") is axes
    plt.close("all")
    _, (left, right) = plt.subplots(1, 2)
    assert one.plot() is right  # the current axes
    plt.sca(left)
    assert one.plot().lines[0].get_ydata().max() == pytest.approx(
        one.pdf(0.0), rel=1e-3
    )
    assert len(other.plot().texts) == 1  # an arrow for the atom
    pair = ns.plot(one, other, labels=["one", "other"])
    assert list(pair) == plt.gcf().axes  # of a new figure, which is the current one
    plt.savefig(tmp_path / "laws.png")
    given = Figure().subplots(2, 1)
    assert ns.plot(one, one.gaussian(), ax=given)[0] is given[0]
    assert ns.plot(one, [0.1, 0.2, 0.4, 0.5], ax=given[0]) is given[0]
    for wrong in (3, given[:1], [given[0], 3]):
        with pytest.raises(
            ValueError,
            match=r"plot: ax=.* must be one of matplotlib's axes, or two of them",
        ):
            ns.plot(one, one, ax=wrong)
    with pytest.raises(
        ValueError, match=r"plot: ax=3 must be one of matplotlib's axes"
    ):
        one.plot(ax=3)
    plt.close("all")
    assert mixture(100, 3).plot(entries=(0, 2)).get_xlabel() == "entry 0"
    assert len(plt.get_fignums()) == 1
    plt.close("all")
    with pytest.raises(ValueError, match="must be 2 names"):
        ns.plot(one, other, labels=["one"])
    with pytest.raises(ns.LawError, match=r"a joint law has joint\.plot"):
        ns.plot(mixture(10, 2))


def test_constant_entries_have_a_relative_quadrature_error():
    """The mean square of a function at infinite width is a number, by quadrature."""
    doubtful = Provenance("proved", "made for a test", quadrature_error=1e-3)
    one = ns.Mixture(-4.0, 0.0, doubtful)
    assert tuple(one.with_error.mean()) == (-4.0, pytest.approx(4e-3))
    assert one.with_error.cdf(-3.0).value == 1
    both = ns.Joint([[-4.0, 1.0]], [np.diag([0.0, 9.0])], doubtful)
    np.testing.assert_allclose(both.with_error.mean().error, [4e-3, 3e-3])
    n = ns.Width("n")
    x = ns.nonlin(
        lambda a, b: np.sin(3 * a) * np.floor(b), ns.gaussian(n), ns.gaussian(n)
    )
    law = ns.Program(ns.mean_dot(x, x)).law(n=ns.inf)
    value, error = law.with_error.mean()
    k = np.arange(-40, 40)  # E[sin² 3a] E[⌊b⌋²]
    right = (
        (1 - np.exp(-18)) / 2 * np.sum(k**2 * np.diff(stats.norm.cdf(np.append(k, 40))))
    )
    assert abs(value - right) < 3 * error
    assert 0 < error < 0.01


def test_entry_that_repeats_an_observed_one_is_known():
    n = ns.Width("n")
    x = ns.weight(n, 2) @ ns.data([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    net = ns.Program(ns.weight(1, n) @ ns.tanh(x))
    given = net.law(n=3, draws=2000).condition({0: 0.5}, noise=0.0)
    assert not given.component_cov[:, :2].any()
    assert (given.std()[:2] < 1e-12).all()
    assert np.isnan(given.corr()[:2]).all()
    assert given.corr()[2, 2] == 1


@pytest.mark.parametrize("name", ["posterior", "posterior_cost", "log_evidence"])
def test_errors_name_the_method(name):
    n = ns.Width("n")
    net = ns.Program(ns.weight(1, n) @ ns.tanh(ns.weight(n, 2) @ ns.data(np.eye(2))))
    with pytest.raises(
        ns.LawError, match=f"^{name}: observed: entry 9 must be an integer from 0 to 1"
    ):
        getattr(net, name)({9: 1.0}, noise=0.1, n=3)
    same = ns.Program(
        ns.weight(1, n) @ ns.tanh(ns.weight(n, 2) @ ns.data(np.ones((2, 2))))
    )
    with pytest.raises(
        ns.LawError, match=f"^{name}: some observations determine others"
    ):
        getattr(same, name)({0: 1.0, 1: 1.0}, n=3)


@pytest.mark.parametrize("doubt", ["mean_error", "quadrature_error"])
def test_errors_of_means_count_in_densities_and_probabilities(doubt):
    """A joint law of one entry has the errors of its marginal law; of two independent
    entries, f(x) f(y) changes by both means.
    """
    is_quadrature = doubt == "quadrature_error"
    origin = Provenance("exact", "test", quadrature_error=0.01 * is_quadrature)
    mean_error = None if is_quadrature else np.full(2, 0.02)
    both = ns.Joint([[1.0, -1.0]], [4 * np.eye(2)], origin, mean_error=mean_error)
    one = both.marginal([0])
    at = 2.5
    alone = both[0].with_error
    for name in ("pdf", "cdf"):
        error = getattr(one.with_error, name)([at]).error
        if is_quadrature:
            assert error == pytest.approx(getattr(alone, name)(at).error, rel=0.05)
        else:  # of the density φ(0.75)/2 and the probability Φ(0.75)
            density = stats.norm.pdf(0.75) / 2
            slope = density * 0.75 / 2 if name == "pdf" else density
            assert error == pytest.approx(slope * 0.02, rel=0.05)
    point = np.array([at, 1.0])
    shifts = (point - [1.0, -1.0]) / 4
    by_means = both.pdf(point) * 0.02 * np.hypot(*shifts)
    error = both.with_error.pdf(point).error
    if is_quadrature:
        assert error > by_means
    else:
        assert error == pytest.approx(by_means, rel=0.05)


def test_corner_of_nan_is_named():
    law = ns.Joint([[0.0, 0.0]], [np.eye(2)], ORIGIN)
    with pytest.raises(ValueError, match="y=nan must be numbers without NaN"):
        law.cdf(math.nan)
