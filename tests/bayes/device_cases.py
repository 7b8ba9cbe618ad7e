"""Likelihoods on arrays of another library than numpy, for the tests of JAX and
PyTorch.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import Latent, Observations, _bayes, choose

from .priors import deep, n, pooled, prior, shifted, tokens


@ns.program
def own(x):
    """Weights by a function that numpy alone knows: other libraries ask it, on the
    host.
    """
    h = ns.weight(n, x.shape[-1]) @ ns.data(x)
    p = ns.dot((ns.weight(n, n) @ ns.gaussian(n, 1))[None], ns.weight(n, n) @ h)
    return (
        ns.weight(1, n) @ (ns.apply(lambda q: np.exp(-np.square(np.asarray(q))), p) @ h)
    )[:, 0]


CASES = {
    "few columns, inf": (prior(tokens(120, 2)), ns.inf),
    "many columns, inf": (prior(tokens(5), heads=2), ns.inf),
    "16": (prior(tokens(4), heads=2), 16),
    "means, 5": (shifted(tokens(4)), 5),
    "means, inf": (shifted(tokens(4)), ns.inf),
    "blocks, inf": (pooled(tokens(4, 2)), ns.inf),
    "blocks, 8": (pooled(tokens(4, 2), heads=2), 8),
    "a user's function, inf": (own(tokens(4)), ns.inf),
    "deep, 8": (deep(tokens(1)[0]), 8),
}


def assert_same_heights(case, noise, **where):
    """On 21 rows of normals: as numpy's to nine digits, also where a library is unsure
    and numpy is asked.
    """
    net, width = CASES[case]
    plan = net.plan(n=width)
    there, here = Latent(plan, 1, choose(**where)), Latent(plan, 1)
    count = here.entries - 1
    data = Observations(
        np.arange(count), np.linspace(-1, 2, count), noise * np.linspace(1, 2, count)
    )
    z = np.random.default_rng(1).standard_normal((21, here.size))
    expected = _bayes.likelihood(here, data)(z)
    ask = _bayes.likelihood(there, data)
    for count in (21, 20):
        np.testing.assert_allclose(
            ask(z[:count]), expected[:count], rtol=1e-9, atol=1e-9
        )


def assert_same_posterior(**where):
    """Means and variances by numpy and elsewhere, of chains of other seeds: 5 standard
    errors, level 1e-5 an entry.
    """
    seen = {0: 0.3, 1: -0.8, 2: 1.1}
    net = prior(tokens(5))
    how = {"n": ns.inf, "draws": 400, "particles": 128, "thin": 4}
    ours = net.posterior(seen, 0.3, **how)
    theirs = net.posterior(seen, 0.3, **how, seed=1, **where)
    assert where["backend"] in theirs.law.method
    for of in ("mean", "var"):
        a, b = (getattr(found.law.with_error, of)() for found in (ours, theirs))
        assert np.all(np.abs(a.value - b.value) < 5 * np.hypot(a.error, b.error))
    few = {"n": ns.inf, "runs": 4, "particles": 128, "moves": 2}
    a, b = (
        net.log_evidence(seen, 0.3, **few),
        net.log_evidence(seen, 0.3, **few, seed=1, **where),
    )
    assert abs(a.value - b.value) < 5 * np.hypot(a.error, b.error)
    with pytest.raises(ns.LawError, match="give noise above 0"):
        prior(np.repeat(tokens(1), 2, axis=0)).posterior(
            {0: 0.5, 1: 0.5}, n=ns.inf, **where
        )
