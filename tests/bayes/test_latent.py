"""A plan as a function of normals: the same law, with shortcuts that change nothing."""

import numpy as np
import pytest

import netsor as ns
from tests.internals import Latent, embedding, sample_block

from ..keep import keep
from .priors import deep, n, perceptron, prior, shifted, tokens

CASES = {
    "inf": (prior(tokens(5)), ns.inf),
    "inf, two heads": (prior(tokens(5), heads=2), ns.inf),
    "16": (prior(tokens(4), heads=2), 16),
    "3": (prior(tokens(4)), 3),
    "means": (shifted(tokens(4)), 5),
    "means, inf": (shifted(tokens(4)), ns.inf),
    "many, inf": (prior(tokens(25), heads=2), ns.inf),
    "deep, inf": (deep(tokens(1)[0]), ns.inf),
    "deep, 8": (deep(tokens(1)[0]), 8),
}


def covariances(mean, columns):
    return mean, columns @ np.swapaxes(columns, 1, 2)


@pytest.mark.parametrize("case", keep(CASES, *(set(CASES) - {"many, inf"})))
def test_standard_normals_give_the_engines_law(case):
    """Means of V, of V² and of means, against as many replicas of the engine: level
    1e-5, at 5 standard errors.
    """
    net, width = CASES[case]
    plan = net.plan(n=width)
    latent = Latent(plan, 1)
    z = np.random.default_rng(1).standard_normal((6000, latent.size))
    ours, theirs = (
        covariances(*latent.given(z)),
        covariances(*sample_block(plan, 0, 6000)),
    )
    for of in (
        lambda m, c: c,
        lambda m, c: np.minimum(c**2, 50.0),
        lambda m, c: m,
        lambda m, c: m**2,
    ):
        a, b = of(*ours), of(*theirs)
        error = (
            np.sqrt((a.var(axis=0) + b.var(axis=0)) / 6000) + 1e-12 * np.abs(a).max()
        )
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 5 * error)


@pytest.mark.parametrize("heads", [1, 4])
def test_many_rows_of_few_directions_cost_their_directions(heads):
    """Tokens on three curves: of 300 directions of the keys a few dozen are not 0. No
    other normals are moved over.
    """
    latent = Latent(prior(tokens(100), heads=heads).plan(n=ns.inf), 1)
    columns = latent.given(np.zeros((1, latent.size)))[1]
    assert columns.shape[:2] == (1, 100)
    assert columns.shape[2] < 80 * heads
    assert latent.size < 80 * heads
    assert not [step for step in latent.plan.steps if step.kind == "reduced"]


def test_latent_law_leaves_its_normals_unchanged():
    latent = Latent(CASES["16"][0].plan(n=16), 1)
    z = np.random.default_rng(3).standard_normal((50, latent.size))
    before = z.copy()
    latent.given(z)
    np.testing.assert_array_equal(z, before)


@pytest.mark.parametrize("width", [ns.inf, 16, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_embedding_finds_the_normals_of_shared_outputs(width, heads):
    x = tokens(9)
    small, large = (
        Latent(prior(part, heads=heads).plan(n=width), 1) for part in (x[:6], x)
    )
    places = embedding(small, large)
    assert places is not None
    z = np.random.default_rng(4).standard_normal((3, large.size))
    (mean, cov), (more, wider) = (
        covariances(*small.given(z[:, places])),
        covariances(*large.given(z)),
    )
    np.testing.assert_allclose(more[:, :6], mean, atol=1e-9)
    np.testing.assert_allclose(wider[:, :6, :6], cov, atol=1e-9)


def test_embedding_of_different_outputs_is_none():
    x = tokens(9)
    small = Latent(prior(x[:5]).plan(n=ns.inf), 1)
    assert embedding(small, Latent(prior(x[::-1]).plan(n=ns.inf), 1)) is None
    assert embedding(small, Latent(perceptron(x[:, 0]).plan(n=8), 1)) is None
    # 15 tokens are fewer than 16 coordinates, 27 are more: the engine draws other
    # numbers
    assert (
        embedding(*(Latent(prior(part).plan(n=16), 1) for part in (x[:5], x))) is None
    )


def test_threads_do_not_change_the_bits():
    plan = prior(tokens(30)).plan(n=ns.inf)
    latent = Latent(plan, 1)
    z = np.random.default_rng(5).standard_normal((4 * latent.block - 1, latent.size))
    one, three = (
        np.concatenate(Latent(plan, k).over(z, lambda mean, columns: columns))
        for k in (1, 3)
    )
    np.testing.assert_array_equal(one, three)


def test_latent_of_one_token_has_one_entry():
    """n is bound by its name; a single output has one entry."""
    latent = Latent(
        ns.Program(ns.nn.attention(ns.gaussian(n, 2), heads=1)[0]).plan(n=4), 1
    )
    assert latent.entries == 1
