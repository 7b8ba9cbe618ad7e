"""Laws of more replicas than are kept: the same numbers as if all were kept, in bounded
memory.
"""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

import netsor as ns
from tests.internals import MomentAccumulator, Provenance, _sampler, cells_for, summed

from ..keep import keep

n = ns.Width("n")
DRAWS = 30_000
Y = np.linspace(-4, 4, 33)


@ns.program
def residual():
    """A residual block, whose conditional mean varies."""
    x = ns.gaussian(n, 3)
    return x + ns.nn.attention(ns.rms_norm(x), 2)


@ns.program
def gated():
    """An output that is 0 with probability 1/4."""
    x = ns.relu(ns.weight(1, n) @ ns.gaussian(n, 2))
    return ns.weight(n, 1) @ x[0] + 2.0 * (ns.weight(n, 1) @ x[1])


NETS = {
    "centred": (ns.paper.layer(), {"n": 16}, 1e-9),
    "means vary": (residual()[0], {"n": 12}, 1e-6),
    "one mean": (ns.paper.layer().output + 3.0, {"n": 16}, 1e-9),
    "an atom": (gated(), {"n": 8}, 1e-9),
    "tiny": (1e-8 * ns.paper.layer().output, {"n": 16}, 1e-9),
    "huge": (1e8 * ns.paper.layer().output, {"n": 16}, 1e-9),
}


@cache
def both(name, **where):
    net, widths, close = NETS[name]
    net = net if isinstance(net, ns.Program) else ns.Program(net)
    kept = net.law(draws=DRAWS, seed=3, progress=False, **widths, **where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sampler, "MAX_STORED_REPLICAS", 10_000)
        return (
            kept,
            net.law(draws=DRAWS, seed=3, progress=False, **widths, **where),
            close,
        )


def cells_of(mean, var):
    """The law of replicas by Gaussians that stand for many of them."""
    cells = cells_for(mean, var, "these")
    tally = MomentAccumulator(cells)
    tally.add(summed(cells, mean, var))
    mean, var, count = tally.nodes()
    return ns.Mixture(mean, var, ORIGIN, count=count)


JAX = {"backend": "jax", "device": "cpu"}
ORIGIN = Provenance("exact", "given")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, {}) for name in NETS),
        *(pytest.param(name, JAX, marks=pytest.mark.slow) for name in NETS),
    ],
)
def test_law_is_that_of_all_replicas(name, where):
    kept, gathered, close = both(name, **where)
    assert isinstance(kept, ns.Mixture)
    assert kept.count is None
    assert len(gathered.count) < kept.replicas
    assert gathered.replicas == DRAWS
    y = Y * kept.std()
    top = kept.pdf(y).max()
    np.testing.assert_allclose(gathered.pdf(y), kept.pdf(y), atol=close * top, rtol=0)
    assert (
        np.abs(gathered.pdf(y) - kept.pdf(y)).max()
        < 20 * gathered.binning * top + 1e-13 * top
    )
    np.testing.assert_allclose(gathered.cdf(y), kept.cdf(y), atol=close)
    np.testing.assert_allclose(gathered.sf(y), kept.sf(y), atol=close)
    np.testing.assert_allclose(
        gathered.ppf([0.01, 0.3, 0.9]),
        kept.ppf([0.01, 0.3, 0.9]),
        atol=10 * close * kept.std(),
    )
    np.testing.assert_allclose(gathered.var(), kept.var(), rtol=max(close, 1e-9))
    np.testing.assert_allclose(
        gathered.kurtosis(), kept.kurtosis(), atol=max(10 * close, 1e-8)
    )
    np.testing.assert_allclose(
        gathered.skewness(), kept.skewness(), atol=max(10 * close, 1e-8)
    )
    np.testing.assert_allclose(
        gathered.moment(4), kept.moment(4), rtol=max(10 * close, 1e-9)
    )
    np.testing.assert_allclose(
        gathered.cf(1 / kept.std()), kept.cf(1 / kept.std()), atol=10 * close
    )


@pytest.mark.parametrize("name", NETS)
def test_errors_are_those_of_all_replicas(name):
    kept, gathered, _ = both(name)
    y = Y[8:25] * kept.std()
    for method in ("pdf", "cdf"):
        one, two = (
            getattr(law.with_error, method)(y).error for law in (kept, gathered)
        )
        # with an atom the density diverges at 0, where one of two factors is left: both
        # errors are infinite there
        np.testing.assert_allclose(
            two, one, rtol=0.02, atol=1e-3 * one[np.isfinite(one)].max()
        )
    for method in ("var", "kurtosis", "skewness", "mean"):
        one, two = (
            float(getattr(law.with_error, method)().error) for law in (kept, gathered)
        )
        # most of the error of a kurtosis is what lies beyond the twenty largest draws,
        # which cells know up to their width: over ten seeds of the law with an atom the
        # two errors are 0.92 to 1.24 of each other
        assert two == pytest.approx(
            one, rel=0.35 if method == "kurtosis" else 0.01, abs=1e-12 * kept.std()
        )
    assert [at for at, _ in kept.atoms] == [at for at, _ in gathered.atoms]
    for (_, one), (_, two) in zip(kept.atoms, gathered.atoms, strict=True):
        assert two.value == pytest.approx(one.value)
        assert two.error == pytest.approx(one.error, rel=0.01)


def test_shape_of_a_law_whose_means_vary_is_kept():
    """Cells that forget the spread of their variances move the kurtosis by 1e-3: far
    more than 10⁹ draws do.
    """
    rng = np.random.default_rng(5)
    var = np.exp(0.3 * rng.standard_normal(40_000))
    for mean in (rng.standard_normal(40_000), 3.0 * np.sqrt(var)):
        kept, gathered = ns.Mixture(mean, var, ORIGIN), cells_of(mean, var)
        assert gathered.kurtosis() == pytest.approx(kept.kurtosis(), abs=1e-6)
        assert gathered.moment(4) == pytest.approx(kept.moment(4), rel=1e-7)
        y = kept.mean() + kept.std() * Y
        np.testing.assert_allclose(gathered.cdf(y), kept.cdf(y), atol=1e-7)


@pytest.mark.parametrize("centre", [3.0, -1e6])
def test_common_mean_keeps_the_accuracy_of_none(centre):
    var = np.exp(0.3 * np.random.default_rng(5).standard_normal(20_000))
    gathered = cells_of(np.full(20_000, centre), var)
    plain = cells_of(np.zeros(20_000), var)
    np.testing.assert_array_equal(gathered.component_var, plain.component_var)
    np.testing.assert_allclose(gathered.pdf(centre + Y), plain.pdf(Y), rtol=1e-9)


def test_far_out_a_distribution_function_has_an_error():
    """Differences of squares near 1 are rounding there; those of the other tail are
    not.
    """
    law = ns.Mixture([0.0, 0.0], [1.0, 2.0], ORIGIN, count=[500.0, 500.0])
    low, high = (law.with_error.cdf(y).error for y in (-9.5, 9.5))
    assert 0 < high == pytest.approx(low, rel=1e-9)


@pytest.mark.slow
def test_distances_and_their_errors():
    """Blocks are split at random here; their spread must be that of blocks of
    replicas.
    """
    kept, gathered, _ = both("centred")
    limit = ns.paper.layer().law(n=ns.inf, progress=False)
    for distance in (ns.kl, ns.total_variation, ns.wasserstein1, ns.kolmogorov):
        one, two = distance(kept, limit), distance(gathered, limit)
        assert two.value == pytest.approx(one.value, abs=2 * one.error)
        assert 0.4 < two.error / one.error < 2.5


@pytest.mark.parametrize(
    "distance",
    keep([ns.total_variation, ns.wasserstein1, ns.kolmogorov], ns.kolmogorov),
)
def test_atom_is_split_into_blocks_too(distance):
    """With the whole atom in every block the distance was half of what it is; and far
    out there was rounding alone.
    """
    kept, gathered, _ = both("an atom")
    limit = ns.Mixture(0.0, 1.0, ORIGIN)
    one, two = distance(kept, limit), distance(gathered, limit)
    assert two.value == pytest.approx(one.value, abs=2 * one.error)
    assert 0.4 < two.error / one.error < 2.5
    assert gathered.isf(1e-200) == pytest.approx(kept.isf(1e-200), rel=1e-3)


def test_gathering_gives_the_same_bits_with_workers_and_executors(monkeypatch):
    monkeypatch.setattr(_sampler, "MAX_STORED_REPLICAS", 10_000)
    net = ns.paper.layer()
    with ThreadPoolExecutor(3) as pool:
        laws = [
            net.law(n=16, draws=60_000, progress=False, **how)
            for how in ({"workers": 1}, {"executor": pool})
        ]
    assert laws[0].count.tobytes() == laws[1].count.tobytes()
    assert laws[0].component_var.tobytes() == laws[1].component_var.tobytes()


def test_memory_does_not_grow_with_the_draws(monkeypatch):
    monkeypatch.setattr(_sampler, "MAX_STORED_REPLICAS", 10_000)
    net, peaks = ns.paper.layer(), []
    net.law(n=16, draws=20_000, workers=1, progress=False)
    for draws in (30_000, 120_000):
        tracemalloc.start()
        law = net.law(n=16, draws=draws, workers=1, progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert law.replicas == draws
    assert peaks[1] < 1.3 * peaks[0] + 2**20


def test_law_goes_to_disk_and_back(tmp_path):
    _, gathered, _ = both("centred")
    gathered.save(tmp_path / "law.npz")
    again = ns.load(tmp_path / "law.npz")
    assert again.pdf(0.3) == gathered.pdf(0.3)
    assert again.with_error.var().error == gathered.with_error.var().error
    assert "30,000 replicas gathered" in again.notes[-1]


def test_unsupported_questions_of_gathered_laws_raise(monkeypatch):
    monkeypatch.setattr(_sampler, "MAX_STORED_REPLICAS", 10_000)
    x = ns.weight(n, n) @ ns.gaussian(n)
    known_by_draws = ns.Program(ns.mean_dot(x, x))
    with pytest.raises(
        ValueError, match=r"draws=20000: this law is known only from draws"
    ):
        known_by_draws.law(n=4, draws=20_000, progress=False)
    with pytest.raises(ValueError, match=r"draws=10{15} must be at most 2\^34"):
        ns.paper.layer().law(n=4, draws=10**15, progress=False)
    with pytest.raises(
        ValueError,
        match=(
            r"draws=10{15} of 3 outputs would need .*of one output at a time, any"
            r" number"
        ),
    ):
        residual().law(n=4, draws=10**15, progress=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([0.0], [1.0, 2.0], [1.0]), r"count=\[1\.0\] must be 2 finite numbers"),
        (([0.0], [-1.0], [1.0]), "var has -1"),
        (
            ([0.0], [1.0], [-2.0]),
            r"count=\[-2\.0\] must be 1 finite numbers, 0 or more",
        ),
        (([0.0], [1.0], [0.0]), "not all 0"),
        (([np.nan], [1.0], [2.0]), "numbers must be finite"),
        (("x", [1.0], [2.0]), "mean='x' must be"),
    ],
)
def test_invalid_components_raise(given, words):
    mean, var, count = given
    with pytest.raises(ValueError, match=words):
        ns.Mixture(mean, var, ORIGIN, count=count)


def test_weights_follow_from_counts():
    with pytest.raises(ValueError, match="weight and count cannot both be given"):
        ns.Mixture([0.0], [1.0], ORIGIN, [1.0], count=[2.0])


def test_points_with_counts_are_atoms():
    """As many kept one by one say the same, errors included."""
    at, count = np.array([0.0, 1.0, 3.0]), np.array([20, 50, 30])
    kept = ns.Mixture(np.repeat(at, count), 0.0, ORIGIN)
    law = ns.Mixture(at, 0.0, ORIGIN, count=count)
    assert [(a, m.value, m.error) for a, m in law.atoms] == [
        (a, pytest.approx(m.value), m.error) for a, m in kept.atoms
    ]
    np.testing.assert_allclose(
        law.with_error.cdf([0.5, 2.0]), kept.with_error.cdf([0.5, 2.0]), rtol=1e-12
    )
    assert (
        law.ppf([0.1, 0.2, 0.3, 0.9]).tolist()
        == kept.ppf([0.1, 0.2, 0.3, 0.9]).tolist()
    )
    assert law.with_error.var() == pytest.approx(kept.with_error.var())


def test_arguments_are_checked_as_those_of_other_laws():
    law = ns.Mixture([0.0], [1.0], ORIGIN, count=[10.0])
    for wrong in (
        lambda: law.rvs(-1),
        lambda: law.rvs(3, seed="x"),
        lambda: law.cf(np.inf),
    ):
        with pytest.raises(ValueError, match=r"size=|seed=|t="):
            wrong()


def test_replicas_outside_all_cells_are_kept(monkeypatch):
    """Cells laid by one sample, a far wider one put into them: strays count one by one,
    none is lost.
    """
    rng = np.random.default_rng(3)
    cells = cells_for(np.zeros(100), np.exp(0.001 * rng.standard_normal(100)), "x")
    var = np.exp(30 * rng.standard_normal(5000))
    var[:7] = 0.0
    gathered = MomentAccumulator(cells)
    gathered.add(summed(cells, np.zeros(5000), var))
    mean, found, count = gathered.nodes()
    assert count.sum() == pytest.approx(5000)
    assert count[found == 0] == 7
    assert count @ np.sqrt(found) == pytest.approx(np.sqrt(var).sum(), rel=1e-9)
    assert not mean.any()
