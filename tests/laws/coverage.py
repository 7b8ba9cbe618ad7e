"""How often an error covers the truth: what `test_coverage` asserts, and what the table in the docs was made by.

`python -m tests.laws.coverage` prints the table.
"""

import math

import numpy as np
from scipy import special, stats

import netsor as ns
from netsor.laws import Origin
from netsor.laws._head import Head

SHAPE, SCALE = 8.0, 0.1  # of the gamma law of v: Y is then a variance gamma law, known in closed form


def truth():
    """Numbers of Y = √v Z, v ~ Gamma(8, 0.1), by quadrature."""
    v, weight = special.roots_genlaguerre(60, SHAPE - 1)
    weight, v = weight / special.gamma(SHAPE), v * SCALE
    one = SHAPE * SCALE
    return {
        "pdf": float(weight @ stats.norm.pdf(0.5, scale=np.sqrt(v))),
        "cdf": float(weight @ stats.norm.cdf(0.5, scale=np.sqrt(v))),
        "var": one,
        "kurtosis": 3 / SHAPE,
        "moment 6": 15 * one * (one + SCALE) * (one + 2 * SCALE),
    }, (v, weight)


def numbers(law):
    with_error = law.with_error
    return {
        "pdf": with_error.pdf(0.5),
        "cdf": with_error.cdf(0.5),
        "var": with_error.var(),
        "kurtosis": with_error.kurtosis(),
        "moment 6": with_error.moment(6),
    }


def laws(seed):
    """The same law in three ways."""
    rng = np.random.default_rng([2026, seed])
    origin = Origin("exact", "made for a test")
    v = rng.gamma(SHAPE, SCALE, 2000)
    yield "Mixture", ns.Mixture(0.0, v, origin)
    yield "draws", ns.Mixture(np.sqrt(rng.gamma(SHAPE, SCALE, 2000)) * rng.standard_normal(2000), 0.0, origin)
    yield "Empirical", ns.Empirical(np.sqrt(rng.gamma(SHAPE, SCALE, 2000)) * rng.standard_normal(2000))
    yield "HeadSum", ns.HeadSum(Head(rng.gamma(SHAPE, SCALE, (16, 500))), 1, 1.0, origin)


def distance_truth(v, weight):
    """Distances to the Gaussian of variance 1, by quadrature on a grid."""
    y = np.linspace(-14, 14, 28_001)
    f = stats.norm.pdf(y[:, None], scale=np.sqrt(v)) @ weight
    p = stats.norm.cdf(y[:, None], scale=np.sqrt(v)) @ weight
    g, q = stats.norm.pdf(y), stats.norm.cdf(y)
    return {
        "kl": np.trapezoid(f * np.log(f / g), y),
        "total_variation": 0.5 * np.trapezoid(np.abs(f - g), y),
        "wasserstein1": np.trapezoid(np.abs(p - q), y),
        "kolmogorov": np.abs(p - q).max(),
    }


def covered(seeds, read, right):
    """For each law and number: how many of the seeds lie within one error of the truth, and within two."""
    hits = {}
    for seed in range(seeds):
        for name, law in laws(seed):
            for quantity, (value, error) in read(law).items():
                pull = abs(value - right[quantity]) / error if error else math.inf
                once, twice = hits.get((name, quantity), (0, 0))
                hits[name, quantity] = (once + int(pull < 1), twice + int(pull < 2))
    return hits


def covered_numbers(seeds=200):
    """Of densities, distribution functions and moments."""
    return covered(seeds, numbers, truth()[0])


def covered_distances(seeds=40):
    """Of distances to N(0, 1)."""
    return covered(seeds, lambda law: ns.distances(law, stats.norm()), distance_truth(*truth()[1]))


def table(hits, seeds):
    """In per cent, within one error and within two."""
    names = list(dict.fromkeys(name for name, _ in hits))
    print("| number | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for quantity in dict.fromkeys(quantity for _, quantity in hits):
        cells = [f"{100 * a / seeds:.0f} / {100 * b / seeds:.0f}" for a, b in (hits[name, quantity] for name in names)]
        print(f"| {quantity} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    table(covered_numbers(), 200)
    table(covered_distances(), 40)
