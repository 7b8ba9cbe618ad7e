"""Layers in plain numpy, a loop at a time, given their matrices, which `opened` reads
off literal draws.
"""

import numpy as np

import netsor as ns
from tests.internals import Gaussian, topological_order, weights_of


def softmax(p, allowed):
    weights = np.where(allowed, np.exp(p - p[allowed].max()), 0.0)
    return weights / weights.sum()


def turned(v, position, base, fraction):
    """Rotary positions by complex numbers."""
    r = round(fraction * len(v))
    z = (v[: r // 2] + 1j * v[r // 2 : r]) * np.exp(
        1j * position * base ** (-2 * np.arange(r // 2) / r)
    )
    return np.concatenate([z.real, z.imag, v[r:]])


def attention(
    x,
    context,
    matrices,
    biases,
    *,
    heads,
    groups,
    allowed,
    rotary=None,
    norm=None,
    cap=None,
    bias=None,
    factor=None,
):
    """One draw: outputs, scores, weights. `matrices` are q, k, v (heads, d, n) and o
    (n, heads·d), `biases` alike.
    """
    (wq, wk, wv, wo), (bq, bk, bv, bo) = matrices, biases
    d = wq.shape[1]
    scores = np.zeros((heads, len(x), len(context)))
    weights = np.zeros_like(scores)
    mixed = []
    for a in range(heads):
        g = a // (heads // groups)
        q = [wq[a] @ u + bq[a] for u in x]
        k = [wk[g] @ u + bk[g] for u in context]
        if norm:
            q, k = ([norm(u) for u in side] for side in (q, k))
        if rotary:
            base, fraction, positions = rotary
            q, k = (
                [
                    turned(u, t, base, fraction)
                    for u, t in zip(side, positions, strict=True)
                ]
                for side in (q, k)
            )
        rows = []
        for i in range(len(x)):
            for j in range(len(context)):
                p = q[i] @ k[j] * (d**-0.5 if factor is None else factor)
                p = p if cap is None else cap * np.tanh(p / cap)
                scores[a, i, j] = p + (0.0 if bias is None else bias[a, i, j])
            weights[a, i] = softmax(scores[a, i], allowed[i])
            rows.append(
                sum(
                    weights[a, i, j] * (wv[g] @ context[j] + bv[g])
                    for j in range(len(context))
                )
            )
        mixed.append(np.array(rows))
    return np.concatenate(mixed, axis=-1) @ wo.T + bo, scores, weights


def opened(*outputs, draws=3, **widths):
    """Literal draws of the outputs, with the matrices and the biases that act in them:
    three lists.

    A matrix is read off by its action on the unit vectors, so its width must be a
    number.
    """
    values = topological_order(outputs)
    weights = list({w.source: w for w in weights_of(values)}.values())
    read = [w @ ns.data(np.eye(w.in_width.factor)) for w in weights]
    biases = [
        v for v in values if isinstance(v.op, Gaussian) and v.op.source.name == "b"
    ]
    drawn = ns.Program((*outputs, *read, *biases)).simulate(
        draws=draws, seed=2, **widths
    )
    first, second = len(outputs), len(outputs) + len(weights)
    found = [np.swapaxes(a, -1, -2) for a in drawn[first:second]]
    return drawn[:first], found, drawn[second:]
