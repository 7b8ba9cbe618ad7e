"""Moves, diagnostics, tempering and the algebra of likelihoods, each against a closed
form.
"""

import numpy as np
import pytest
from scipy import stats

from tests.internals import (
    PRIOR,
    Observations,
    Reference,
    _likelihood,
    adapt_schedule,
    advance_chains,
    effective,
    evidences,
    fitted,
    init_chains,
    log_likelihood,
    mean_of_logs,
    r_hat,
    updated,
    updated_by_columns,
)
from tests.internals import mcmc_reference as reference

from ..keep import keep

VALUES = np.array([1.0, -2.0, 0.5])


def conjugate(noise):
    """z ~ N(0, I), values z + noise: the log likelihood, the posterior's standard
    deviation and the log evidence.
    """
    scale = np.sqrt(1 + noise**2)
    return (
        lambda z: stats.norm.logpdf(VALUES, z, noise).sum(axis=1),
        noise / scale,
        stats.norm.logpdf(VALUES, 0, scale).sum(),
    )


WRONG = Reference(
    np.array([0, 2]), np.array([0.5, -1.0]), np.array([[0.7, 0.0], [0.5, 1.3]])
)


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(PRIOR, id="prior", marks=pytest.mark.slow),
        pytest.param(WRONG, id="another Gaussian"),
    ],
)
@pytest.mark.parametrize(
    ("far", "noise"),
    keep([(0.0, 0.2), (0.0, 2.0), (100.0, 0.2), (100.0, 2.0)], (100.0, 0.2)),
)
def test_chains_find_the_posterior(far, noise, around):
    """Means and variances of a conjugate posterior, from anywhere, around anything: 5
    standard errors, level 1e-5.
    """
    like, std, _ = conjugate(noise)
    rng = np.random.default_rng(0)
    chains, draws = init_chains(like, np.full((40, 3), far)), []
    for k in range(300):
        chains = advance_chains(like, chains, rng, around=around)
        if k >= 100:
            draws.append(chains.z)
    z = np.moveaxis(np.array(draws), 0, 1)
    assert r_hat(z).max() < 1.1
    mean = VALUES / (1 + noise**2)
    error = std / np.sqrt(effective(z))
    assert np.all(np.abs(z.mean(axis=(0, 1)) - mean) < 5 * error)
    square = (z - mean) ** 2
    assert np.all(
        np.abs(square.mean(axis=(0, 1)) - std**2)
        < 5 * square.std(axis=(0, 1)) / np.sqrt(effective(square))
    )
    np.testing.assert_allclose(chains.height, like(chains.z))


def test_flat_likelihood_gives_independent_draws():
    rng = np.random.default_rng(1)
    chains = init_chains(lambda z: np.zeros(len(z)), np.full((4000, 1), 3.0))
    chains = advance_chains(lambda z: np.zeros(len(z)), chains, rng)
    assert chains.evaluations == 8000  # at the start, and once for each chain
    chains = advance_chains(lambda z: np.zeros(len(z)), chains, rng)
    assert (
        abs(
            np.corrcoef(
                np.full(4000, 3.0) + 1e-9 * rng.standard_normal(4000), chains.z[:, 0]
            )[0, 1]
        )
        < 0.1
    )


def test_gaussian_near_the_posterior_makes_every_move_free():
    """Particles of a narrow posterior in 3 of 50 directions: they are found, and a
    bracket seldom shrinks.
    """
    like, _, _ = conjugate(0.05)
    rng = np.random.default_rng(2)
    z = rng.standard_normal((400, 50))
    z[:, :3] = VALUES / 1.0025 + 0.05 / np.sqrt(1.0025) * rng.standard_normal((400, 3))
    found = reference(z)
    assert set(found.coordinates) >= {0, 1, 2}
    assert len(found.coordinates) < 10
    assert reference(rng.standard_normal((400, 5))).coordinates.size == 0
    evaluations = []
    for around in (PRIOR, found):
        chains = init_chains(lambda z: like(z[:, :3]), z)
        evaluations.append(
            advance_chains(
                lambda z: like(z[:, :3]), chains, rng, around=around
            ).evaluations
            / 400
            - 1
        )
    assert evaluations[1] < 2 < 4 < evaluations[0]


def test_narrow_directions_across_coordinates_are_kept():
    """Values of sums and differences: variances of 1e-4 to 1 in directions of no
    coordinate; tries stay few.
    """
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 20)))[0]
    noise = np.geomspace(1e-2, 1.0, 20)

    def like(z):
        return stats.norm.logpdf(z @ turn.T, 0.5, noise).sum(axis=1)

    rng = np.random.default_rng(3)
    std = noise / np.sqrt(1 + noise**2)
    z = (0.5 / (1 + noise**2) + std * rng.standard_normal((400, 20))) @ turn
    around = reference(z)
    assert len(around.coordinates) == 20
    chains = init_chains(like, z)
    for _ in range(10):
        chains = advance_chains(like, chains, rng, around=around)
    assert chains.evaluations / 400 - 1 < 10 * 3
    along = chains.z @ turn.T
    assert np.all(
        np.abs(along.mean(axis=0) - 0.5 / (1 + noise**2)) < 5 * std / np.sqrt(400)
    )
    assert np.all(np.abs(along.var(axis=0) / std**2 - 1) < 5 * np.sqrt(2 / 400))


def test_chains_reach_a_tail_that_is_heavier_than_their_reference():
    """Two values of N(0, e^(6z)): the posterior of z falls as e^(−6z). In five moves
    chains go from its median to its last 0.2 %.
    """

    def like(z):
        return stats.norm.logpdf([20.0, -15.0], 0, np.exp(3 * z)).sum(axis=1)

    grid = np.linspace(-2, 6, 80_001)
    weight = np.exp(stats.norm.logpdf(grid) + like(grid[:, None]))
    level = np.cumsum(weight) / weight.sum()
    median, far = np.interp([0.5, 0.998], level, grid)
    rng = np.random.default_rng(4)
    around = reference(np.interp(rng.uniform(size=(512, 1)), level, grid))
    chains = init_chains(like, np.full((40_000, 1), median))
    for _ in range(5):
        chains = advance_chains(like, chains, rng, around=around)
    assert np.mean(chains.z > far) == pytest.approx(
        0.002, abs=4 * np.sqrt(0.002 / 40_000)
    )


def autoregressive(rho, chains=8, length=2000, seed=0):
    rng = np.random.default_rng(seed)
    x = np.empty((chains, length, 1))
    x[:, 0] = rng.standard_normal((chains, 1))
    for k in range(1, length):
        x[:, k] = rho * x[:, k - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(
            (chains, 1)
        )
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_autoregressive_chains(rho):
    """N (1 − ρ)/(1 + ρ); of normal draws the ranks have nearly the same."""
    assert effective(autoregressive(rho))[0] == pytest.approx(
        16_000 * (1 - rho) / (1 + rho), rel=0.15
    )


def test_r_hat_sees_chains_that_differ():
    x = autoregressive(0.5)
    assert r_hat(x)[0] < 1.01
    moved_one = x.copy()
    moved_one[0] += 3.0
    assert r_hat(moved_one)[0] > 1.1
    assert effective(moved_one)[0] < 100
    wider = x.copy()
    wider[0] *= 5.0  # the same median, another spread
    assert r_hat(wider)[0] > 1.1
    drifting = x + np.linspace(0, 3, 2000)[None, :, None]
    assert r_hat(drifting)[0] > 1.1
    assert r_hat(np.ones((4, 10, 1)))[0] == 1.0


@pytest.mark.parametrize("noise", keep([0.1, 1.0, 10.0], 1.0))
def test_evidence_of_a_conjugate_model(noise):
    """Forty estimates of four runs each: one error covers the truth in 68 % or more,
    level 1e-5.
    """
    like, _, truth = conjugate(noise)
    rng = np.random.default_rng(2)
    way = adapt_schedule(like, 64, 3, 2, rng)
    assert way.powers[0] == 0
    assert way.powers[-1] == 1
    assert np.all(np.diff(way.powers) > 0)
    logs = np.concatenate(
        [evidences(like, way, 8, 64, 2, rng, lambda: None)[0] for _ in range(20)]
    )
    value, error, _ = mean_of_logs(logs)
    assert abs(value - truth) < 4.4 * error + 1e-12
    missed = [
        abs(v - truth) > e + 1e-12 for v, e, _ in map(mean_of_logs, np.split(logs, 40))
    ]
    assert stats.binom.sf(sum(missed) - 1, 40, 0.3173) > 1e-5


def test_mean_of_logs_does_not_overflow():
    value, error, spread = mean_of_logs(1e4 + np.log([1.0, 3.0]))
    assert value == pytest.approx(1e4 + np.log(2.0), abs=1e-10)
    assert spread == pytest.approx(np.sqrt(2) / 2)
    assert error > spread / np.sqrt(2)


@pytest.mark.parametrize("runs", [4, 8])
def test_two_errors_of_few_runs_cover(runs):
    """In 95.45 % of 5,000 estimates, and one error in 68 % or more: 4 standard
    deviations.
    """
    logs = 0.01 * np.random.default_rng(5).standard_normal((5_000, runs))
    value, error, _ = np.transpose([mean_of_logs(some) for some in logs])
    assert np.mean(np.abs(value) <= 2 * error) == pytest.approx(0.9545, abs=0.0118)
    assert np.mean(np.abs(value) <= error) > 0.68


def test_last_particles_are_of_the_posterior():
    like, std, _ = conjugate(0.3)
    rng = np.random.default_rng(3)
    _, z = evidences(
        like, adapt_schedule(like, 100, 3, 5, rng), 4, 250, 5, rng, lambda: None
    )
    assert np.all(np.abs(z.mean(axis=0) - VALUES / 1.09) < 6 * std / np.sqrt(300))


@pytest.mark.parametrize("columns", [2, 30])
@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e4])
def test_likelihood_by_columns_and_by_covariances(columns, noise, monkeypatch):
    """Few columns and many: the density of scipy, and the conditional mean of the
    covariance's formula.
    """
    rng = np.random.default_rng(4)
    mean, c = rng.standard_normal((3, 40)), rng.standard_normal((3, 40, columns))
    tau = noise * rng.uniform(1, 2, 20)
    data = Observations(np.arange(5, 25), rng.standard_normal(20), tau)
    found = log_likelihood(mean, c, data)
    for r in range(3):
        cov = c[r, 5:25] @ c[r, 5:25].T + np.diag(tau**2)
        assert found[r] == pytest.approx(
            stats.multivariate_normal(mean[r, 5:25], cov).logpdf(data.values), rel=1e-7
        )
    whole, some = updated(mean, c @ np.swapaxes(c, 1, 2), data)[:2], slice(20, 30)
    own_mean, own_var = fitted(mean, c, data)
    np.testing.assert_allclose(own_mean, whole[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(
        own_var, np.diagonal(whole[1], axis1=1, axis2=2), rtol=1e-6, atol=1e-7
    )
    found_mean, found_cov = updated_by_columns(mean, c, data, some)
    np.testing.assert_allclose(found_mean, whole[0][:, some], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found_cov, whole[1][:, some, some], rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(_likelihood, "MIN_NOISE_RATIO", np.inf)  # never by columns
    np.testing.assert_allclose(log_likelihood(mean, c, data), found, rtol=1e-8)
