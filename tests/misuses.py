"""What a user may write by mistake, and the calls of the language with right arguments,
for misuse.
"""

from decimal import Decimal
from fractions import Fraction

import numpy as np

import netsor as ns

n, d = ns.Width("n"), ns.Width("d")


def layer():
    return ns.nn.attention(ns.tanh(ns.gaussian(n, 2)), 2)


def net():
    return ns.Program(layer()[0])


def vectors():
    return ns.gaussian(n, 3)


def scores():
    return ns.mean_dot(vectors(), vectors())


@ns.program
def traced(heads):
    return ns.nn.attention(vectors(), heads)


class Number(float):
    """A float that is called otherwise."""


def further():
    """Wrong, or odd and right, in rarer ways: other kinds of numbers, what numpy casts
    in silence, our own values.
    """
    one = np.ma.array([1.0, 2.0], mask=[False, True])
    return [
        Fraction(1, 2),
        Decimal("0.5"),
        Decimal("NaN"),
        Number(0.5),
        np.True_,
        np.array(True),
        np.array([True, False]),
        10**5000,
        -(2**63),
        2**53,
        np.longdouble("1e4000"),
        np.array(2, dtype=object),
        np.array(["1.5"], dtype=object),
        np.array(1j),
        np.datetime64("2025-01-01"),
        np.zeros(2, dtype=[("a", float)]),
        [[1], [1, 2]],
        [[1, [2]]],
        [True, None],
        ["1"],
        [1j],
        [0.5, "a"],
        (0,),
        (-1,),
        (1,) * 99,
        (2, 2.0),
        (10**9, 10**9),
        [slice(None)],
        one,
        frozenset({1}),
        bytearray(b"12"),
        memoryview(b"12"),
        {1: 2}.keys(),
        "a\nb",
        "{",
        "é" * 999,
        "lambda",
        "None",
        np.str_("x"),
        NotImplemented,
        vectors(),
        scores(),
        [vectors()],
        (scores(), vectors()),
        ns.weight(n, n),
        net(),
        traced,
        layer,
        2 * d,
        ns.inf,
        -ns.inf,
        np.nan,
        -0.0,
        5e-324,
        1.7e308,
        np.full((3, 3), 1e200),
        np.full(3, 5e-324),
        type,
        Exception("x"),
    ]


FURTHER = further()

# what to call, and right arguments for it: those of a name are given by it
LANGUAGE = {
    "Width": (lambda **a: ns.Width(**a), {"name": "n", "factor": 2}),
    "multiple of a width": (lambda *a: (n * a[0], a[0] * n), {0: 2}),
    "weight": (
        lambda *a, **b: ns.weight(*a, **b),
        {0: n, 1: n, "batch": 2, "std": 1.0, "name": "W"},
    ),
    "weight index": (lambda *a: ns.weight(n, n, (2, 3))[a[0]], {0: 1}),
    "matmul": (lambda *a: ns.weight(n, n) @ a[0], {0: vectors()}),
    "each": (lambda *a: ns.weight(n, n, 3).each(a[0]), {0: vectors()}),
    "gaussian": (
        lambda *a, **b: ns.gaussian(*a, **b),
        {0: n, 1: 2, "mean": 0.0, "cov": np.eye(2), "name": "h"},
    ),
    "gaussian of a variance": (
        lambda *a, **b: ns.gaussian(n, *a, **b),
        {0: 2, "cov": 2.0},
    ),
    "normal": (lambda *a, **b: ns.normal(*a, **b), {0: 2, "std": 1.0, "name": "z"}),
    "ones": (lambda *a: ns.ones(*a), {0: n}),
    "data": (lambda *a: ns.data(*a), {0: np.ones((2, 3))}),
    **{
        name: (lambda *a, f=name: getattr(ns, f)(*a), {0: vectors()})
        for name in (
            "identity",
            "relu",
            "abs",
            "erf",
            "tanh",
            "sigmoid",
            "gelu",
            "silu",
            "sin",
            "cos",
        )
    },
    "clip": (lambda *a, **b: ns.clip(*a, **b), {0: vectors(), "bound": 2.0}),
    "leaky_relu": (
        lambda *a, **b: ns.leaky_relu(*a, **b),
        {0: vectors(), "slope": 0.1},
    ),
    "rms_norm": (
        lambda *a, **b: ns.rms_norm(*a, **b),
        {0: vectors(), "eps": 1e-5, "gain": 2.0},
    ),
    "layer_norm": (
        lambda *a, **b: ns.layer_norm(*a, **b),
        {0: vectors(), "eps": 1e-5, "gain": 2.0},
    ),
    "rotary": (
        lambda *a, **b: ns.rotary(*a, **b),
        {0: vectors(), "positions": [0, 1, 2], "base": 100.0, "fraction": 0.5},
    ),
    "softmax": (lambda *a, **b: ns.softmax(*a, **b), {0: scores(), "mask": "causal"}),
    "dot": (
        lambda *a: ns.dot(*a),
        {0: ns.weight(n, n) @ vectors(), 1: ns.weight(n, n) @ vectors()},
    ),
    "mean_dot": (lambda *a: ns.mean_dot(*a), {0: vectors(), 1: vectors()}),
    "concat": (lambda *a, **b: ns.concat(*a, **b), {0: vectors(), "axis": 0}),
    "stack": (
        lambda *a, **b: ns.stack(*a, **b),
        {0: [vectors(), vectors()], "axis": 0},
    ),
    "join": (lambda *a, **b: ns.join(*a, **b), {0: [scores(), scores()], "axis": 1}),
    "nonlin": (
        lambda *a, **b: ns.nonlin(*a, **b),
        {
            0: np.hypot,
            1: vectors(),
            2: scores()[0],
            "name": "f",
            "bounded": True,
            "lipschitz": None,
        },
    ),
    "apply": (
        lambda *a, **b: ns.apply(*a, **b),
        {
            0: np.hypot,
            1: scores(),
            2: 1.0,
            "axes": 0,
            "name": "f",
            "bounded": True,
            "lipschitz": None,
        },
    ),
    "Function": (
        lambda **a: ns.nonlin(ns.Function(**a), vectors()),
        {"name": "f", "f": np.tanh, "bounded": True, "lipschitz": True},
    ),
    "index": (lambda *a: vectors()[a[0]], {0: 1}),
    "index of two axes": (lambda *a: scores()[a[0], a[1]], {0: 1, 1: 2}),
    "slice": (lambda *a: vectors()[a[0] : a[1] : a[2]], {0: 0, 1: 3, 2: 1}),
    "reshape": (lambda *a: scores().reshape(*a), {0: 1, 1: 9}),
    "reshape to a shape": (lambda *a: vectors().reshape(a[0]), {0: (3, 1)}),
    "transpose": (lambda *a: scores().transpose(*a), {0: 1, 1: 0}),
    "transpose to an order": (lambda *a: vectors().transpose(a[0]), {0: (0,)}),
    "broadcast_to": (lambda **a: vectors().broadcast_to(**a), {"shape": (2, 3)}),
    "sum": (lambda **a: vectors().sum(**a), {"axis": 0}),
    "mean": (lambda **a: scores().mean(**a), {"axis": (0, 1)}),
    "arithmetic of vectors": (
        lambda *a: vectors() * a[0] + vectors() / a[1] - a[2],
        {0: 2.0, 1: 3.0, 2: 1.0},
    ),
    "arithmetic of scalars": (
        lambda *a: scores() * a[0] + a[1] / scores() - a[2],
        {0: 2.0, 1: 3.0, 2: 1.0},
    ),
    "power": (lambda *a: scores() ** a[0], {0: 2}),
    "mix": (lambda *a: a[0] @ vectors(), {0: np.ones((2, 3))}),
    "scalar matmul": (
        lambda *a: (scores() @ a[0], a[0] @ scores()),
        {0: np.ones((3, 3))},
    ),
    "attention": (
        lambda *a, **b: ns.nn.attention(*a, **b),
        {
            0: vectors(),
            "heads": 2,
            "head_dim": d,
            "mask": "causal",
            "context": vectors(),
            "scaling": "sqrt",
            "sigma_q": 1.0,
            "sigma_k": 1.0,
            "sigma_v": 1.0,
            "sigma_o": 2.0,
        },
    ),
    "attend": (
        lambda *a, **b: ns.nn.attend(*a, **b).output,
        {
            0: vectors(),
            "heads": 2,
            "mask": "causal",
            "groups": 1,
            "window": 2,
            "rotary": ns.nn.Rotary(),
            "qk_norm": ns.rms_norm,
            "softcap": 2.0,
            "bias": np.zeros((2, 3, 3)),
            "scaling": 2.0,
            "sigma_b": 0.1,
        },
    ),
    "Rotary": (
        lambda **a: ns.nn.attention(vectors(), 2, 2 * d, rotary=ns.nn.Rotary(**a)),
        {"base": 100.0, "fraction": 0.5, "positions": [0, 1, 2]},
    ),
    "block": (
        lambda *a, **b: ns.nn.block(*a, **b).output,
        {
            0: vectors(),
            "attend": ns.tanh,
            "feed": ns.relu,
            "norm": ns.rms_norm,
            "order": "pre",
        },
    ),
    "embedding": (
        lambda *a, **b: ns.nn.embedding(*a, **b),
        {
            0: [3, 7, 3],
            "width": n,
            "std": 0.02,
            "position_std": 0.01,
            "positions": [0, 1, 2],
        },
    ),
    "tied logits": (
        lambda *a, **b: ns.nn.Embedding([3, 7], n, 0.02).logits(*a, **b),
        {0: vectors(), "vocabulary": 9, "fan_in": 64, "spread": False},
    ),
    "vectors of ids": (lambda *a: ns.nn.Embedding([3, 7], n)(*a), {0: [7, 3, 3]}),
    "logits": (
        lambda *a, **b: ns.nn.logits(*a, **b),
        {0: vectors(), "vocabulary": 9, "sigma": 0.5},
    ),
    "causal": (
        lambda **a: ns.softmax(scores(), ns.nn.causal(**a)),
        {"tokens": 3, "window": 2},
    ),
    "alibi": (lambda **a: scores() + ns.nn.alibi(**a)[0], {"heads": 2, "tokens": 3}),
    "relative_bias": (
        lambda **a: ns.nn.relative_bias(**a),
        {
            "heads": 2,
            "tokens": 3,
            "buckets": 8,
            "max_distance": 20,
            "std": 0.5,
            "bidirectional": True,
        },
    ),
    "shared": (
        lambda layer, x: ns.nn.shared(layer)(x),
        {"layer": ns.tanh, "x": vectors()},
    ),
    "mlp": (
        lambda *a, **b: ns.nn.mlp(*a, **b),
        {
            0: vectors(),
            "hidden": [n, d],
            "out": n,
            "activation": ns.tanh,
            "gate": True,
            "sigma_w": 1.0,
            "sigma_gate": 1.0,
            "sigma_out": 1.0,
            "sigma_b": 0.1,
        },
    ),
    "Program": (lambda *a, **b: ns.Program(*a, **b), {0: vectors(), "name": "name"}),
    "part of a program": (lambda *a: net()[a[0]], {0: ...}),
    "part of two": (lambda *a: ns.Program((vectors(), scores()))[a[0]], {0: 1}),
    "program": (lambda *a: ns.program(*a), {0: layer}),
    "call of a program": (lambda *a: traced(*a), {0: 2}),
    "layer": (
        lambda **a: ns.paper.layer(**a),
        {
            "tokens": 2,
            "heads": 2,
            "activation": "clip",
            "clip": 3.0,
            "low_rank": False,
            "scaling": "sqrt",
            "sigma_q": 1.0,
            "sigma_k": 1.0,
            "sigma_v": 1.0,
            "sigma_o": 1.0,
            "sigma_w": 1.0,
            "token": 0,
            "mask": "causal",
        },
    ),
}
