"""Networks whose exponents are known: perceptrons as Tensor Programs IV has them, and a
small GPT-2.
"""

import netsor as ns

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 60,
}
X = [[1.0, 0.0], [0.6, 0.8]]


@ns.program
def mean_head(n):
    """Maximal updates: the output is a mean."""
    h = ns.probe("hidden", ns.tanh(ns.weight(n, 2, name="in") @ ns.data(X)))
    h = ns.probe("hidden", ns.tanh(ns.weight(n, n, name="matrix") @ h))
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - [1.0, -1.0]) ** 2).mean()


@ns.program
def sum_head(n):
    """Standard: the output is a sum with weights of size n^(−1/2)."""
    h = ns.probe("hidden", ns.tanh(ns.weight(n, 2, name="in") @ ns.data(X)))
    h = ns.probe("hidden", ns.tanh(ns.weight(n, n, name="matrix") @ h))
    away = ns.weight(1, n, name="head") @ h - ns.data([[1.0], [-1.0]])
    return ns.mean_dot(away[:, None], away[:, None]).mean()


def one_over(fan_in, out):
    return 1 / fan_in


def width(fan_in, out):
    return out


RATES = {
    "mup": (mean_head, {"in": width, "matrix": 1.0, "head": width}),
    "ntk": (sum_head, {"in": 1.0, "matrix": one_over, "head": one_over}),
    "sp": (sum_head, 0.001),
}
# what the first and the second layer, the output and the updates of in, matrix and head
# go like (Yang and Hu 2021)
THEORY = {
    "mup": {1: 0.0, 2: 0.0, "in": 0.0, "matrix": 0.0, "head": 0.0},
    "ntk": {1: -0.5, 2: -0.5, "in": -0.5, "matrix": -0.5, "head": 0.0},
    "sp": {1: -0.5, 2: 0.5, "in": -0.5, "matrix": 0.5, "head": 1.0},
}
