"""Posteriors and evidence of programs: against weights over many replicas, closed
forms, and bad data.
"""

import warnings

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import (
    Latent,
    Observations,
    _bayes,
    _memory,
    adapt_schedule,
    evidences,
    log_likelihood,
    mean_of_logs,
    tail_index,
    updated_by_columns,
)

from ..keep import keep
from .priors import deep, perceptron, pooled, prior, shifted, tokens

X = tokens(8)
Y = np.array([0.3, -0.8, 1.1, 0.2, -0.4])
SEEN = dict(enumerate(Y))
CASES = {
    "one head, inf": (prior(X, sharp=4.0), ns.inf, 0.2),
    "two heads, 6": (prior(X, heads=2), 6, 0.3),
    "with means, 5": (shifted(X), 5, 0.3),
    "deep, inf": (deep(tokens(1, 4)[0]), ns.inf, 0.5),
    "deep, 5": (deep(tokens(1, 4)[0]), 5, 0.5),
}


@pytest.mark.parametrize("case", keep(CASES, "deep, inf"))
def test_posterior_and_evidence_by_weights(case):
    """Means, variances and the evidence, against 20,000 weighted replicas: 5 standard
    errors, level 1e-5 an entry.
    """
    net, width, noise = CASES[case]
    seen = {k: v for k, v in SEEN.items() if k < (5 if "deep" not in case else 2)}
    weighted = net.law(n=width, draws=20_000).condition(seen, noise=noise)
    assert weighted.effective > 300
    thin = 16 if case == "one head, inf" else 8  # its R-hat is 1.054 with 8
    found = net.posterior(
        seen, noise, n=width, seed=1, draws=480, particles=192, thin=thin
    )
    assert found.r_hat < 1.05
    for of in ("mean", "var"):
        a, b = (getattr(law.with_error, of)() for law in (found.law, weighted))
        assert np.all(np.abs(a.value - b.value) < 5 * np.hypot(a.error, b.error))
    evidence = net.log_evidence(seen, noise, n=width, seed=2)
    assert abs(evidence.value - weighted.log_evidence.value) < 5 * np.hypot(
        evidence.error, weighted.log_evidence.error
    )
    assert evidence.error < 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "sharp", "noise", "draws"),
    [(ns.inf, 4.0, 0.1, 3200), (16, 2.0, 0.3, 1600)],
)
def test_posterior_means_by_a_million_replicas(width, sharp, noise, draws):
    """Four observations, weighted replicas of the prior: 5 standard errors, level 1e-5
    an entry.
    """
    net = prior(X, heads=1, sharp=sharp)
    seen = {k: v for k, v in SEEN.items() if k < 4}
    found = [
        net.posterior(seen, noise, n=width, draws=draws, chains=32, seed=k)
        for k in range(2)
    ]
    laws = [
        net.law(n=width, draws=100_000, seed=k + 10).condition(seen, noise=noise)
        for k in range(10)
    ]
    share = np.exp([law.log_evidence.value for law in laws])
    mean, error = np.zeros(8), np.zeros(8)
    for law, weight in zip(laws, share / share.sum(), strict=True):
        part = law.with_error.mean()
        mean, error = mean + weight * part.value, error + (weight * part.error) ** 2
    for posterior in found:
        assert posterior.r_hat < 1.05
        ours = posterior.law.with_error.mean()
        assert np.all(np.abs(ours.value - mean) < 5 * np.sqrt(ours.error**2 + error))


def by_quadrature(latent, data):
    """By Gauss and Hermite over all that is drawn: its mean and columns, and the log of
    what each point weighs.
    """
    x, w = np.polynomial.hermite_e.hermegauss(16)
    grid = np.stack(np.meshgrid(*[x] * latent.size), axis=-1).reshape(-1, latent.size)
    weight = np.prod(
        np.stack(np.meshgrid(*[w / w.sum()] * latent.size), axis=-1).reshape(
            grid.shape
        ),
        axis=1,
    )
    mean, columns = latent.given(grid)
    return mean, columns, log_likelihood(mean, columns, data) + np.log(weight)


@pytest.mark.slow
@pytest.mark.parametrize(("value", "noise"), [(0.7, 0.3), (0.2, 1e-3), (30.0, 0.5)])
def test_two_scores_by_quadrature(value, noise):
    """One example of two tokens: evidence and means by Gauss and Hermite, with data far
    from the prior too.
    """
    net = prior(tokens(2, 2, seed=2), sharp=3.0)
    latent = Latent(net.plan(n=ns.inf), 1)
    data = Observations(np.array([0]), np.array([value]), np.array([noise]))
    mean, columns, logs = by_quadrature(latent, data)
    truth = np.logaddexp.reduce(logs)
    evidence = net.log_evidence({0: value}, noise, n=ns.inf)
    assert abs(evidence.value - truth) < 5 * evidence.error + 1e-3
    found = net.posterior({0: value}, noise, n=ns.inf, draws=640, particles=256)
    other = updated_by_columns(mean, columns, data)[0][:, 1]
    expected = np.exp(logs - truth) @ other
    ours = found.law.with_error.mean()
    assert abs(ours.value[1] - expected) < 5 * ours.error[1] + 1e-3 * abs(expected)


def scales():
    """Three outputs e^(3q) u_i, two of them observed; and the variance of the third
    given them, by quadrature.
    """
    n = ns.Width("n")
    q, u = ns.normal(()), ns.gaussian(n, 3)
    net = ns.Program(ns.stack([ns.apply(np.exp, 3 * q) * u[i] for i in range(3)]))
    grid = np.linspace(-3, 7, 100_001)
    var, seen = np.exp(6 * grid), {0: 20.0, 1: -15.0}
    values = stats.norm.logpdf(
        np.array(list(seen.values()))[:, None], 0, np.sqrt(var + 0.01)
    ).sum(axis=0)
    weight = np.exp(stats.norm.logpdf(grid) + values)
    return net, seen, weight @ var / weight.sum()


A_HEAVY_TAIL = pytest.mark.filterwarnings("ignore:posterior. the variance of entry")


@A_HEAVY_TAIL
def test_error_of_heavy_tailed_variance_covers():
    """It was 812 ± 56 for 1232.9: three errors."""
    net, seen, truth = scales()
    assert truth == pytest.approx(1232.87, abs=0.01)
    value, error = net.posterior(seen, 0.1, n=ns.inf).law[2].with_error.var()
    assert abs(value - truth) < 3 * error < truth


@pytest.mark.slow
@A_HEAVY_TAIL
def test_errors_of_heavy_tailed_variances_cover_at_their_rate():
    """Two errors, of forty seeds: a count below the 1e-5 quantile of the binomial law.
    The errors are not so large that they say nothing.
    """
    net, seen, truth = scales()
    seeds, departures, errors = 40, [], []
    for seed in range(seeds):
        law = net.posterior(seen, 0.1, n=ns.inf, seed=seed).law[2]
        value, error = law.with_error.var()
        departures.append(abs(value - truth) / error)
        errors.append(error / truth)
    covered = np.sum(np.array(departures) <= 2)
    assert covered >= stats.binom(seeds, 0.9545).ppf(1e-5)
    assert np.median(errors) < 1.0


def test_tail_too_heavy_for_a_variance_warns():
    """Given one value, the variance has a tail of index 1 over a wide range, and the
    states of a run hardly ever hold it.
    """
    with pytest.warns(
        UserWarning,
        match=r"the variance of entry \d has a heavy tail over the states \(index \d",
    ):
        scales()[0].posterior(
            {0: 20.0}, 0.1, n=ns.inf, draws=1600, particles=64, thin=1
        )


def test_bounded_variance_does_not_warn():
    """The variances and means of this layer are bounded. Hill's estimate from twenty of
    its states was 0.71, so it warned.
    """
    states = np.concatenate([np.full(220, 0.05), np.linspace(0.1, 0.19, 20)])[:, None]
    uniform = np.random.default_rng(0).random((200, 50))
    assert np.all(tail_index(states) < _bayes.MAX_TAIL_INDEX)
    assert np.all(tail_index(uniform) < 0.3)


@pytest.mark.parametrize(("power", "share"), [(0.3, 0.02), (1.2, 0.8)])
def test_tail_index_separates_finite_from_infinite_variance(power, share):
    """Of a thousand samples of u^−power, few are told if the variance is finite, and
    most if the mean is infinite.
    """
    samples = np.random.default_rng(1).random((400, 1000)) ** -power
    told = np.mean(tail_index(samples) > _bayes.MAX_TAIL_INDEX)
    assert told < share if power < 0.5 else told > share


@pytest.mark.slow
@A_HEAVY_TAIL
def test_errors_of_a_heavy_tail_cover():
    """Sixty seeds: two errors cover 95 % or more, level 1e-5; it was 52 %, then 88
    %.
    """
    net, seen, truth = scales()
    found = [
        net.posterior(seen, 0.1, n=ns.inf, seed=k).law[2].with_error.var()
        for k in range(60)
    ]
    assert sum(abs(e.value - truth) < 2 * e.error for e in found) >= stats.binom(
        60, 0.95
    ).ppf(1e-5)


@A_HEAVY_TAIL
def test_r_hat_counts_variances(monkeypatch):
    """An output that nothing is seen of has mean 0 in all states: its variance alone
    tells how chains fare.
    """
    shapes = []
    monkeypatch.setattr(
        _bayes.mcmc,
        "r_hat",
        lambda traces: shapes.append(traces.shape) or np.ones(traces.shape[-1]),
    )
    scales()[0].posterior({0: 20.0}, 0.1, n=ns.inf, draws=160, particles=64)
    assert shapes == [(16, 10, 1 + 2 * 3)]


@pytest.mark.parametrize(
    ("value", "noise"),
    keep([(0.7, 0.3), (0.2, 1e-6), (30.0, 0.5), (1e6, 1e6)], (0.7, 0.3), (0.2, 1e-6)),
)
def test_errors_of_the_evidence_cover(value, noise):
    """Forty estimates of four runs each, against quadrature: one error covers in 68 %
    or more, and two in 95 %.
    """
    latent = Latent(prior(tokens(2, 2, seed=2), sharp=3.0).plan(n=ns.inf), 1)
    data = Observations(np.array([0]), np.array([value]), np.array([noise]))
    truth = np.logaddexp.reduce(by_quadrature(latent, data)[2])
    ask, rng = _bayes.likelihood(latent, data), np.random.default_rng(0)
    logs = evidences(
        ask, adapt_schedule(ask, 64, latent.size, 2, rng), 160, 64, 2, rng, lambda: None
    )[0]
    found = [mean_of_logs(four) for four in np.split(logs, 40)]
    for errors, rate in ((1, 0.3173), (2, 0.0455)):
        missed = sum(
            abs(value - truth) > errors * error + 1e-9 for value, error, _ in found
        )
        assert stats.binom.sf(missed - 1, 40, rate) > 1e-5


def test_errors_of_expectations_are_in_the_evidence():
    """A second plan stands in for one whose expectations are moved by their errors,
    which count.
    """
    data = Observations(np.arange(5), Y, np.full(5, 0.3))
    plans = [Latent(prior(X, sharp=sharp).plan(n=ns.inf), 1) for sharp in (2.0, 3.0)]
    how = _bayes.Schedule(particles=64, moves=1), 2, 0, False
    alone, doubted = (
        _bayes.evidence(plans[0], data, *how, more) for more in ([], plans[1:])
    )
    assert alone.value == doubted.value
    assert doubted.error > alone.error + 0.01
    # expectations that are moved leave more directions than there were, and more
    # normals are read
    net = prior(tokens(25))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = net.log_evidence(SEEN, 0.3, n=ns.inf, runs=2, particles=32, moves=1)
    assert np.isfinite([found.value, found.error]).all()


def test_cost_counts_likelihoods_and_memory():
    """How many likelihoods are asked for, within a factor of 3; memory grows with the
    draws' covariances.
    """
    net, asked = prior(X), []
    latent, data = (
        Latent(net.plan(n=ns.inf), 1),
        Observations(np.arange(5), Y, np.full(5, 0.1)),
    )
    how = _bayes.Schedule(draws=160, chains=8, thin=2, particles=128, moves=2)
    expected = _bayes.cost(latent, data, how)
    over = latent.over
    latent.over = lambda z, what: asked.append(len(z)) or over(z, what)
    done = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short chains say so
        _bayes.sampled(
            latent, data, how, seed=0, progress=lambda *now: done.append(now)
        )
    assert sum(asked) / 3 < expected.likelihoods < 3 * sum(asked)
    assert expected.seconds > 0
    assert "likelihoods" in str(expected)
    again = net.posterior_cost(
        SEEN, 0.1, n=ns.inf, draws=160, particles=128, workers=1, seed=1, progress=False
    )
    assert again.bytes > 8 * latent.size**2  # correlations of what is drawn
    assert net.posterior_cost(SEEN, 0.1, n=ns.inf, draws=8000).bytes > 16 * 8000 * 64
    moves, totals = zip(*done, strict=True)
    assert list(moves) == sorted(moves)
    assert moves[-1] == totals[-1]
    assert all(a <= b for a, b in done)


def test_interrupt_ends_the_chains():
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prior(X).posterior(SEEN, 0.1, n=ns.inf, progress=stop)


@pytest.mark.slow
def test_steep_data_are_mixed():
    """Sixty values with noise of 1 % of their size: R-hat was 1.5, and 31 of 800 draws
    were worth something.
    """
    net = prior(tokens(60, seed=3), sharp=4.0)
    y = net.draw(n=ns.inf, draws=1, seed=11)[0] + 0.01 * np.random.default_rng(
        0
    ).standard_normal(60)
    found = net.posterior(dict(enumerate(y)), 0.01, n=ns.inf)
    assert found.r_hat < 1.1
    assert found.effective > 100


def test_gaussian_process_is_exact():
    """Without scores nothing random is left at infinite width: closed forms, no chains,
    no error.
    """
    net = perceptron(X[:, 0])
    law = net.law(n=ns.inf)
    found = net.posterior(SEEN, 0.1, n=ns.inf)
    given = law.condition(SEEN, noise=0.1)
    np.testing.assert_allclose(
        found.law.component_mean, given.component_mean, atol=1e-12
    )
    np.testing.assert_allclose(found.law.component_cov, given.component_cov, atol=1e-12)
    cov = law.component_cov[0, :5, :5] + 0.01 * np.eye(5)
    truth = stats.multivariate_normal(np.zeros(5), cov).logpdf(Y)
    assert net.log_evidence(SEEN, 0.1, n=ns.inf).value == pytest.approx(
        truth, rel=1e-10
    )


@pytest.mark.slow
def test_many_heads_are_nearly_a_gaussian_process():
    """The evidence of 64 heads against that of the Gaussian with the prior's
    covariance: to 0.05, with both errors.
    """
    gaussian = (
        prior(X)
        .law(n=ns.inf, draws=10_000)
        .gaussian()
        .condition(SEEN, noise=0.3)
        .log_evidence
    )
    many = prior(X, heads=64).log_evidence(SEEN, 0.3, n=ns.inf)
    assert abs(many.value - gaussian.value) < 0.05 + 5 * (many.error + gaussian.error)
    assert many.error < 0.02


@pytest.mark.slow
def test_with_many_data_chains_go_on_where_weights_end():
    """Sixty observations: a few of 2,000 weighted replicas are left, and the chains
    agree.
    """
    x = tokens(60, seed=3)
    net = prior(x, sharp=2.0)
    y = net.draw(n=ns.inf, draws=1, seed=11)[0] + 0.3 * np.random.default_rng(
        0
    ).standard_normal(60)
    seen = dict(enumerate(y))
    with pytest.warns(UserWarning, match="effective sample"):
        assert net.law(n=ns.inf, draws=2_000).condition(seen, noise=0.3).effective < 100
    found = net.posterior(seen, 0.3, n=ns.inf, particles=256)
    assert found.effective > 100
    evidence = [net.log_evidence(seen, 0.3, n=ns.inf, seed=k) for k in range(2)]
    assert abs(evidence[0].value - evidence[1].value) < 5 * (
        evidence[0].error + evidence[1].error
    )
    assert evidence[0].error < 1


@pytest.mark.parametrize("noise", keep([1e-6, 1e-2, 1.0, 1e3, 1e6], 1e6))
def test_noise_of_any_size(noise):
    net = prior(X)
    y = (
        net.draw(n=ns.inf, draws=1, seed=4)[0]
        if noise < 1
        else noise * np.linspace(-1, 1, 8)
    )
    with warnings.catch_warnings():
        # chains of steep likelihoods are slow, and say so
        warnings.simplefilter("ignore")
        found = net.posterior(
            dict(enumerate(y[:5])), noise, n=ns.inf, draws=160, particles=64
        )
        evidence = net.log_evidence(
            dict(enumerate(y[:5])), noise, n=ns.inf, runs=4, particles=64
        )
    assert np.isfinite(
        [found.r_hat, found.effective, evidence.value, evidence.error]
    ).all()
    if noise <= 1e-2:
        np.testing.assert_allclose(found.law.mean()[:5], y[:5], atol=5 * noise)
    if noise >= 1e3:  # the data say nothing: the prior, and the density of the noise
        law = net.law(n=ns.inf, draws=4_000)
        error = np.hypot(found.law.with_error.var().error, law.with_error.var().error)
        assert np.all(np.abs(found.law.var() - law.var()) < 5 * error)
        assert evidence.value == pytest.approx(
            stats.norm.logpdf(y[:5], 0, noise).sum(), abs=1e-3
        )


@pytest.fixture(scope="module")
def twice():
    """A prior with equal inputs."""
    return prior(np.concatenate([X[:3], X[:3] + 1e-9]))


@pytest.mark.slow
def test_degenerate_data_have_a_posterior_if_noise_allows(twice):
    """Equal inputs, one observation, constant targets."""
    net = twice
    found = net.posterior(
        {0: 0.5, 3: 0.5, 1: 0.5}, 1e-3, n=ns.inf, draws=160, chains=8, particles=128
    )
    assert found.law.mean()[0] == pytest.approx(found.law.mean()[3], abs=1e-4)
    assert np.all(found.law.var() > -1e-12)
    one = net.posterior({-1: 2.0}, 0.1, n=8, draws=160, chains=8, particles=128)
    assert one.law.mean()[-1] == pytest.approx(2.0, abs=0.2)


def test_degenerate_or_impossible_data_are_refused(twice, monkeypatch):
    """Equal inputs without noise, too many draws, and wrong numbers."""
    net = twice
    with pytest.raises(ns.LawError, match="give noise above 0"):
        net.posterior({0: 0.5, 3: 0.5}, n=ns.inf, draws=160)
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**20)
    with pytest.raises(
        ValueError,
        match=(
            r"6 entries with a covariance for each of draws=80000 would need .* fewer"
            r" draws"
        ),
    ):
        net.posterior({0: 0.5}, 0.1, n=ns.inf, draws=80_000)
    monkeypatch.undo()
    with pytest.raises(ns.LawError, match="entry 6 must be an integer from 0 to 5"):
        net.posterior({6: 1.0}, n=ns.inf)
    with pytest.raises(ValueError, match="chains=1 must be an integer from 2 to"):
        net.posterior({0: 1.0}, 0.1, n=ns.inf, chains=1)
    with pytest.raises(ValueError, match="at least 4 for each of chains=16"):
        net.posterior({0: 1.0}, 0.1, n=ns.inf, draws=32)


def test_short_chains_warn():
    x = tokens(14, seed=3)
    net = prior(x, sharp=6.0)
    y = net.draw(n=ns.inf, draws=1, seed=5)[0]
    with pytest.warns(
        UserWarning,
        match=r"R-hat is .* effective sample size .* give thin=\d+ instead of thin=1;",
    ):
        found = net.posterior(
            dict(enumerate(y)),
            1e-3,
            n=ns.inf,
            draws=64,
            chains=8,
            thin=1,
            particles=8,
            moves=1,
        )
    assert found.r_hat > 1.05
    # errors take replicas for independent
    assert found.law.replicas <= 1.4 * found.effective + 8
    assert "R-hat" in repr(found)


def test_seed_determines_the_posterior():
    net, short = prior(X), {"draws": 64, "chains": 8, "thin": 2, "particles": 32}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short chains say so
        first, again, other = (
            net.posterior(
                SEEN, 0.3, n=ns.inf, seed=seed, workers=workers, **short
            ).law.mean()
            for seed, workers in ((0, 1), (0, 3), (1, 1))
        )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def ranks(net, width, noise=0.1, count=160):
    """Of truths drawn from the prior, among 31 posterior draws: one of each of 31
    chains. (count, quantities).

    All outputs but the last are seen. The quantities are the last output, the first,
    the size of the last, and the log likelihood of what was drawn: this one depends on
    the chains alone.
    """
    latent, rng = Latent(net.plan(n=width), 1), np.random.default_rng(100)
    truths = rng.standard_normal((count, latent.size))
    mean, columns = latent.given(truths)
    outputs = mean + np.einsum(
        "rnk,rk->rn", columns, rng.standard_normal(columns.shape[::2])
    )
    seen, found = np.arange(latent.entries - 1), []
    for k, f in enumerate(outputs):
        data = Observations(
            seen,
            f[:-1] + noise * rng.standard_normal(len(seen)),
            np.full(len(seen), noise),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such short chains say so
            z = _bayes.sampled(
                latent, data, _bayes.Schedule(128, 32, 3, 128, 3), k, False
            ).z
        z = z[:: len(z) // 32][:31]
        given = zip(*updated_by_columns(*latent.given(z), data), strict=True)
        first, *_, last = np.transpose(
            [rng.multivariate_normal(*each) for each in given]
        )
        ask = _bayes.likelihood(latent, data)
        found.append(
            [
                np.sum(last < f[-1]),
                np.sum(first < f[0]),
                np.sum(np.abs(last) < abs(f[-1])),
                np.sum(ask(z) < ask(truths[k : k + 1])),
            ]
        )
    return np.array(found)


CALIBRATED = {
    "one query, inf": (prior(tokens(5), sharp=4.0), ns.inf),
    "one query, two heads, 6": (prior(tokens(5), heads=2, sharp=4.0), 6),
    "blocks, inf": (pooled(tokens(4, 2)), ns.inf),
    "blocks, two heads, 5": (pooled(tokens(4, 2), heads=2), 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CALIBRATED)
def test_simulation_based_calibration(case):
    """Talts et al. (2018): ranks of the truth among posterior draws are uniform; χ²
    over 8 cells, level 1e-4.
    """
    net, width = CALIBRATED[case]
    levels = [
        stats.chisquare(np.bincount(each // 4, minlength=8)).pvalue
        for each in ranks(net, width).T
    ]
    assert min(levels) > 1e-4, np.round(levels, 5)
