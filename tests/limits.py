"""Random networks with a limit at infinite width: outputs, gradients and steps of an
optimiser, by a seed.
"""

from __future__ import annotations

import numpy as np

import netsor as ns

from .gradients import GradientBuilder

KINDS = "forward", "gradient", "step"
SMOOTH = [ns.tanh, ns.gelu, ns.silu, ns.erf]
ACTIVATIONS = [*SMOOTH, ns.relu, lambda x: ns.leaky_relu(x, 0.2)]
N = ns.Width("n")


def _same(x):
    return x


def _perceptron(builder, x):
    """A perceptron, with a gate or without."""
    hidden = builder.choose([N, 2 * N])
    u = ns.weight(hidden, N) @ x
    phi = builder.choose(ACTIVATIONS)
    h = phi(ns.weight(hidden, N) @ x) * u if builder.often(0.25) else phi(u)
    return ns.weight(N, hidden) @ h


def _attention(builder, x, scaling):
    mask = "causal" if builder.often(0.3) else None
    return ns.nn.attention(
        x, builder.choose([1, 2]), builder.choose([N, 2 * N]), mask, scaling=scaling
    )


def _stream(builder, y, most, scaling):
    """Blocks of a residual stream: attention, perceptrons, a matrix that acts again, or
    with its transpose.
    """
    shared = ns.weight(N, N)
    for _ in range(builder.rng.integers(1, most + 1)):
        norm = builder.choose([ns.rms_norm, ns.layer_norm, _same])
        kind, x = (
            builder.choose(
                ["attention", "attention", "perceptron", "perceptron", "again", "both"]
            ),
            norm(y),
        )
        if kind == "attention":
            branch = _attention(builder, x, scaling)
        elif kind == "perceptron":
            branch = _perceptron(builder, x)
        elif kind == "both":
            branch = 0.5 * (shared.T @ (shared @ x))
        else:
            branch = shared @ x
        y = y + branch if builder.often(0.8) else branch
    return y


def _beginning(builder, tokens):
    if builder.often(0.3):
        rows = builder.rng.standard_normal((tokens, 3))
        return ns.weight(N, 3) @ ns.data(rows)
    return ns.gaussian(N, tokens, cov=builder.choose([1.0, np.eye(tokens) + 0.5]))


def network(seed):
    """A program of one of the kinds, with one width n."""
    builder = GradientBuilder([seed, 42], (N,))
    kind = KINDS[seed % len(KINDS)]
    tokens = builder.choose([1, 2, 2, 3])
    x = _beginning(builder, tokens)
    # scores of queries and keys that moved together grow like √n
    mup = kind == "step" and builder.often(0.5)
    y = _stream(builder, x, 2, "linear" if mup else "sqrt")
    if builder.often(0.5):
        y = builder.choose([ns.rms_norm, ns.layer_norm])(y)
    r = ns.gaussian(N)
    if kind == "forward":
        return kind, ns.Program((y[-1], ns.mean_dot(y, y), ns.dot(r, y)))
    f = ns.dot(r, y)
    if kind == "gradient":
        p = f[-1] if builder.often(0.5) else 0.5 * ((f - 0.3) ** 2).sum()
        g = ns.grad(p, x)
        i, j = builder.rng.integers(tokens, size=2)
        found = [p, ns.mean_dot(g[i], g[i])]
        if builder.often(0.5):
            found.append(ns.ntk(f))
        if builder.often(0.5):
            found += [ns.dot(g[i], x[i]), ns.dot(g[j], y[i])]
        return kind, ns.Program(tuple(found))
    if mup:
        f = ns.mean_dot(r, y)
    targets = builder.rng.choice([-1.0, 1.0], tokens)
    values = after = [f, 0.5 * ((f - targets) ** 2).sum()]
    for _ in range(builder.choose([1, 1, 2])):
        after = ns.step(
            after, after[1], lambda fan_in, fan_out: 0.3 if mup else 0.3 / fan_in
        )
    return kind, ns.Program((values[0], after[0]))
