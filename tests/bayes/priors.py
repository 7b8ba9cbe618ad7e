"""Priors over functions of sets of tokens, and data, for the tests of posteriors."""

import numpy as np

import netsor as ns

n = ns.Width("n")


def tokens(count, features=3, seed=0):
    """(count, features, features + 1): a one-hot name and a value."""
    rng = np.random.default_rng(seed)
    names = np.broadcast_to(np.eye(features), (count, features, features))
    return np.concatenate([names, rng.standard_normal((count, features, 1))], axis=2)


@ns.program
def prior(x, heads=1, sharp=2.0):
    """One query reads the tokens of every example; (count,) outputs."""
    h = ns.erf(ns.weight(n, x.shape[-1], std=1.1) @ ns.data(x))
    q = ns.weight(n, n, batch=heads, std=sharp) @ ns.gaussian(n, 1)
    k, v = (ns.weight(n, n, batch=heads) @ h for _ in range(2))
    a = ns.softmax(ns.dot(q[:, None], k))
    return ns.weight(1, heads * n, std=2.0) @ ns.concat(a @ v, axis=0)[:, 0]


@ns.program
def deep(x):
    """Two layers of attention between the tokens of one example, residual: an output
    for each token.
    """
    h = ns.weight(n, x.shape[-1]) @ ns.data(x)
    for _ in range(2):
        h = h + ns.nn.attention(ns.rms_norm(h), heads=1)
    return ns.weight(1, n) @ h


@ns.program
def perceptron(x):
    """No attention: at infinite width nothing random is left, and the prior is a
    Gaussian process.
    """
    return ns.weight(1, n) @ ns.erf(ns.weight(n, x.shape[-1]) @ ns.data(x))


@ns.program
def shifted(x):
    """Scores of one head, with values that are constants: given the scores the outputs
    have a mean, and little else.
    """
    h = ns.erf(ns.weight(n, x.shape[-1]) @ ns.data(x))
    q = ns.weight(n, n, std=2.0) @ ns.gaussian(n, 1)
    a = ns.softmax(ns.dot(q[None], ns.weight(n, n) @ h))  # (count, 1, tokens)
    fixed = ns.gaussian(n, x.shape[:2], mean=x[..., -1], cov=0.01)
    return (a @ fixed)[:, 0]


@ns.program
def pooled(x, heads=1):
    """Two residual blocks of causal attention between the tokens of each example, whose
    mean is read: (count,).
    """
    h = ns.weight(n, x.shape[-1]) @ ns.data(x)
    for _ in range(2):
        h = h + ns.nn.attention(
            ns.rms_norm(h), heads=heads, mask="causal", sigma_q=4.0, sigma_v=2.0
        )
    return ns.weight(1, n) @ (np.full((1, x.shape[1]), 1 / x.shape[1]) @ h)[:, 0]
