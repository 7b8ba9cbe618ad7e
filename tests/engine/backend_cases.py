"""Programs on which backends are held against numpy, and the test that does it."""

import numpy as np
from scipy import stats

import netsor as ns
from netsor.engine import conditional
from netsor.engine.backends import choose

n = ns.Width("n")
LEVEL = 1e-4 / 12  # of one comparison: a dozen of them are made
DRAWS = 8000


@ns.program
def layer(tokens=4, heads=2):
    x = ns.clip(ns.weight(n, n, batch=tokens) @ ns.gaussian(n), 100)
    return ns.nn.attention(x, heads)


@ns.program
def transformer(tokens=2, activation=ns.gelu):
    """Norms, residuals, a causal mask, and two equal tokens at the end: a Gram matrix without full rank."""
    x = ns.gaussian(n, tokens)
    x = ns.join([x, x[:1]])
    x = x + ns.nn.attention(ns.rms_norm(x), 2, mask="causal")
    return (x + ns.nn.mlp(ns.layer_norm(x, eps=0.01), 2 * n, activation=activation))[-1]


def squashed(x):
    """A function of one's own that only numpy can compute."""
    return np.asarray(np.arctan(np.asarray(x)))


@ns.program
def own_function():
    x = ns.nonlin(squashed, ns.weight(n, n, batch=3) @ ns.gaussian(n))
    return ns.weight(n, n) @ (ns.apply(squashed, ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)) @ x)[0]


CASES = {
    "layer": (layer()[0], {"n": 64}),
    "few degrees of freedom": (layer()[0], {"n": 5}),
    "frame that fills up": (layer(tokens=6)[:2], {"n": 3}),
    "transformer": (transformer(), {"n": 24}),
    "limit, in closed form": (transformer(activation=ns.relu), {"n": ns.inf}),
    "limit, by the host": (transformer(activation=ns.tanh), {"n": ns.inf}),
    "own function": (own_function(), {"n": 8}),
}


def replicas(net, widths, seed=1, draws=DRAWS, **where):
    """One draw of each entry from every replica."""
    found = conditional(net.outputs, widths, draws, seed, progress=False, backend=choose(**where))
    std = np.sqrt(np.diagonal(found.cov, axis1=1, axis2=2))
    return found.mean + std * np.random.default_rng([seed, 3]).standard_normal(std.shape), std


def smallest_p(case, **where):
    """The smallest p-value between numpy and another backend: outputs, and their conditional deviations."""
    net, widths = CASES[case]
    ours, theirs = replicas(net, widths, seed=1), replicas(net, widths, seed=2, **where)
    return min(stats.ks_2samp(a[:, 0], b[:, 0]).pvalue for a, b in zip(ours, theirs, strict=True))
