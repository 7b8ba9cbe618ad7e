"""The calls of laws with right arguments, for misuse."""

import functools

import numpy as np
from matplotlib.figure import Figure

import netsor as ns
from tests.internals import Provenance

ORIGIN = Provenance("exact", "by hand")


@functools.cache
def mixture():
    return ns.Mixture([0.0, 0.5], [1.0, 2.0], ORIGIN)


@functools.cache
def joint():
    return ns.Joint(np.zeros((3, 2)), np.stack([np.eye(2)] * 3), ORIGIN)


@functools.cache
def gaussian():
    return joint().gaussian()


@functools.cache
def empirical():
    return ns.Empirical(np.linspace(-1, 1, 50))


@functools.cache
def head_sum():
    return ns.Attention(np.eye(2)).law(heads=2, points=1024)


ONE = (
    ("pdf", 0.5),
    ("logpdf", 0.5),
    ("cdf", [0.1, 0.2]),
    ("sf", 0.5),
    ("ppf", 0.3),
    ("isf", 0.3),
    ("cf", 0.5),
    ("moment", 2),
    ("logcdf", 0.5),
    ("logsf", 0.5),
    ("stats", "mv"),
    ("rvs", 3),
    ("interval", 0.9),
)

# what to call, and right arguments for it: those of a name are given by it
LAWS = {
    "Attention": (
        lambda **a: ns.Attention(**a).law(2, points=1024).var(),
        {
            "kernel": np.eye(2),
            "sigma_q": 1.0,
            "sigma_o": 1.0,
            "mask": "causal",
            "function": lambda p: p,
        },
    ),
    "attention law": (
        lambda **a: ns.Attention(np.eye(2)).law(**a).var(),
        {"heads": 2, "token": 0, "points": 1024},
    ),
    "infinite heads": (
        lambda **a: ns.Attention(np.eye(2)).infinite_heads(**a).var(),
        {"points": 64},
    ),
    "Mixture": (
        lambda **a: ns.Mixture(**a).var(),
        {"mean": [0.0, 1.0], "var": [1.0, 2.0], "origin": ORIGIN, "weight": [0.2, 0.8]},
    ),
    "Joint": (
        lambda **a: ns.Joint(**a).var(),
        {
            "mean": np.zeros((2, 2)),
            "cov": np.stack([np.eye(2)] * 2),
            "origin": ORIGIN,
            "weight": [0.2, 0.8],
        },
    ),
    "Empirical": (lambda *a: ns.Empirical(*a).var(), {0: np.linspace(0, 1, 20)}),
    "Empirical bandwidth": (
        lambda **a: ns.Empirical([0.0, 1.0], **a).var(),
        {"bandwidth": 0.1},
    ),
    "with_heads": (lambda *a: head_sum().with_heads(*a).var(), {0: 3}),
    **{
        f"{made.__name__} {method}": (
            lambda *a, m=made, f=method: getattr(m(), f)(*a),
            {0: right},
        )
        for made in (mixture, empirical, head_sum)
        for method, right in ONE
    },
    **{
        f"with_error {method}": (
            lambda *a, f=method: getattr(mixture().with_error, f)(*a),
            {0: right},
        )
        for method, right in ONE
        if method in ("pdf", "cdf", "sf", "ppf", "moment")
    },
    "rvs": (lambda **a: mixture().rvs(**a), {"size": 3, "seed": 1}),
    "joint rvs": (lambda **a: joint().rvs(**a), {"size": 3, "seed": 1}),
    "joint pdf": (lambda *a: joint().pdf(*a), {0: [0.1, 0.2]}),
    "joint logpdf": (lambda *a: joint().logpdf(*a), {0: [0.1, 0.2]}),
    "joint cdf": (
        lambda **a: joint().cdf(**a),
        {"y": [0.1, 0.2], "lower": [-1.0, -1.0]},
    ),
    "joint part": (lambda *a: joint()[a[0]], {0: 1}),
    "marginal": (lambda **a: joint().marginal(**a).var(), {"entries": [1, 0]}),
    "combination": (
        lambda **a: joint().combination(**a).var(),
        {"weights": [1.0, 2.0]},
    ),
    "condition": (
        lambda **a: gaussian().condition(**a).var(),
        {"observed": {0: 0.4}, "noise": 0.1},
    ),
    "observation": (
        lambda *a: gaussian().condition({0: a[0]}, noise=0.5).var(),
        {0: 0.1},
    ),
    **{
        name: (lambda *a, f=name: getattr(ns, f)(*a), {0: mixture(), 1: mixture()})
        for name in ("kl", "total_variation", "wasserstein1", "kolmogorov")
    },
    "distances": (
        lambda **a: ns.distances(mixture(), mixture(), **a)["kl"],
        {"names": ["kl"]},
    ),
    "sliced_wasserstein": (
        lambda *a, **b: ns.sliced_wasserstein(*a, **b),
        {0: joint(), 1: joint(), "directions": 2},
    ),
    "paper_kl": (
        lambda *a: ns.paper_kl(*a),
        {0: np.linspace(-1, 1, 50), 1: np.linspace(-1, 1.1, 50), 2: None},
    ),
    "plot": (
        lambda **a: ns.plot(
            mixture(), ax=Figure().subplots(), **a
        ).figure.get_figwidth(),
        {"labels": ["one"]},
    ),
    "contours": (
        lambda **a: float(len(joint().plot(Figure().subplots(), **a).collections)),
        {"entries": (0, 1)},
    ),
}
