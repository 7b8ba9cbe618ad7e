"""A two-sample test between the exact engine and the literal interpreter."""

import numpy as np
from scipy import stats

import netsor as ns
from tests.internals import Numpy, PlanQuery, Sampling, engine

FEWEST = 100  # draws of a sample that tests compare: p-values here are asymptotic


def conditional(
    outputs,
    widths,
    draws,
    seed=0,
    without=(),
    picked=None,
    backend=None,
    progress=False,
):
    """Replicas of the conditional law of some coordinates of the outputs."""
    picked = None if picked is None else tuple(picked)
    asked = PlanQuery(tuple(outputs), tuple(widths.items()), picked, tuple(without))
    return engine.sample_conditional_law(
        asked,
        Sampling(draws, seed, progress=progress, backend=backend or Numpy(), least=2),
    )


def symmetric_root(cov):
    """The symmetric square roots of covariance matrices.

    Eigenvectors have signs, and bases if eigenvalues are equal, that depend on the
    linear algebra of the processor. This root does not.
    """
    values, vectors = np.linalg.eigh(cov)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return scaled @ np.swapaxes(vectors, -1, -2)


def replica_draws(found, draws, seed=3):
    """Draws of a conditional law: one from each replica, or all from its only replica
    if the plan is constant.
    """
    replicas, entries = found.mean.shape
    assert replicas in (1, draws), (
        f"{replicas} replicas are too few for {draws} draws: no replica may be used"
        " twice"
    )
    noise = np.random.default_rng(seed).standard_normal((draws, entries, 1))
    return found.mean + (symmetric_root(found.cov) @ noise)[..., 0]


def exact_draws(net, draws, seed=11, without=(), **widths):
    """Draws of one coordinate of every output vector, and of the scalars, side by
    side.
    """
    found = conditional(
        net.outputs, widths, draws, seed, progress=False, without=without
    )
    return replica_draws(found, draws)


def mixture(law):
    """A law as a mixture over replicas of the engine."""
    return law.mixture if isinstance(law, ns.HeadSum) else law


def literal_draws(net, draws, seed=5, **widths):
    drawn = net.simulate(draws=draws, seed=seed, coordinates=0, **widths)
    drawn = drawn if isinstance(drawn, tuple) else (drawn,)
    return np.concatenate([a.reshape(draws, -1) for a in drawn], axis=1)


def smallest_p(net, draws=1500, without=(), **widths):
    """The smallest p-value of Kolmogorov–Smirnov tests between the engine and the
    literal interpreter.
    """
    return smallest_of(
        exact_draws(net, draws, without=without, **widths),
        literal_draws(net, draws, **widths),
    )


def smallest_of(a, b):
    """The smallest p-value between two samples (draws, entries), the second literal.

    Tested are each entry, and random mixtures of entries and of squares.
    """
    check_samples(a, b)
    assert np.isfinite(a).all()
    largest = np.abs(b).max() + 1e-300
    # what cancels, on both sides in its own way
    rounding = np.abs(b).max(axis=0) < 1e-12 * largest
    assert (np.abs(a[:, rounding]) < 1e-7 * largest).all()
    a, b = (np.where(rounding, 0.0, x) for x in (a, b))
    scale = b.std(axis=0)
    scale = np.where(scale > 1e-9 * np.abs(b).max(axis=0), scale, largest)
    weights = np.random.default_rng(3).standard_normal((a.shape[1], 3))
    pairs = [
        (a, b),
        (a / scale @ weights, b / scale @ weights),
        ((a / scale) ** 2 @ weights, (b / scale) ** 2 @ weights),
    ]
    columns = []
    for x, y in pairs:
        for i in range(x.shape[1]):
            size = max(np.abs(y[:, i]).max(), 1e-300)
            if np.ptp(y[:, i]) < 1e-9 * size:  # not random: then it is the same number
                np.testing.assert_allclose(
                    x[:, i], y[:, i], rtol=1e-6, atol=1e-7 * np.abs(y).max()
                )
            else:  # rounded, so that ties of one law are ties of the other
                columns.append(
                    (np.round(x[:, i] / size, 9), np.round(y[:, i] / size, 9))
                )
    return smallest_ks(columns)


def check_samples(*samples):
    """Refuse samples of a few draws.

    The standard error of one draw, estimated from that draw, is the draw itself: a test
    of it has no level.
    """
    for sample in samples:
        assert len(sample) >= FEWEST, (
            f"{len(sample)} draws are too few for a test of a law: take {FEWEST} or more"
        )


def apart(a, b):
    """The largest distance between the distribution functions of two samples.

    That of `a` rises at its own points alone, so the distance is largest at one of
    them, or just before it.
    """
    a, b = np.sort(a), np.sort(b)
    rank = np.arange(len(a) + 1) / len(a)
    above = rank[1:] - b.searchsorted(a, "right") / len(b)
    below = b.searchsorted(a, "left") / len(b) - rank[:-1]
    return max(above.max(), below.max())


def smallest_ks(pairs):
    """The smallest asymptotic p-value of Kolmogorov–Smirnov tests between pairs of
    samples, all of the same two sizes.

    It is that of the largest distance; scipy's `ks_2samp` gives the same number, and
    takes five times as long or more.
    """
    pairs = list(pairs)
    if not pairs:
        return 1.0
    check_samples(*pairs[0])
    first, second = map(len, pairs[0])
    return stats.kstwo.sf(
        max(apart(a, b) for a, b in pairs), round(first * second / (first + second))
    )


n, d = ns.Width("n"), ns.Width("d")
