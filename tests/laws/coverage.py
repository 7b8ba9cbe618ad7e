"""How often an error covers the truth: what `test_coverage` asserts, and what the
tables in the docs were made by.

Y = m + √v Z with v of a gamma law, and m normal where a law can have means: so Y and
its joint laws are known by a Gauss rule over v. `python -m tests.laws.coverage` prints
the tables, in some ten minutes.
"""

import math

import numpy as np
from scipy import optimize, special, stats

import netsor as ns
from tests.internals import Head, Provenance, head_rule

SHAPE, SCALE = 8.0, 0.1  # of the gamma law of v
CENTRE, SPREAD = 0.5, 0.3  # of the means, where there are any
SIZE = 500  # replicas, or draws
DIRECTIONS = 16  # of sliced distances
ORIGIN = Provenance("exact", "made for a test")
MIXED = np.array([[1.0, 0.5], [0.5, 1.0]])  # the covariance of two entries, times v


def rule():
    """Nodes and weights for v."""
    v, weight = special.roots_genlaguerre(60, SHAPE - 1)
    return v * SCALE, weight / special.gamma(SHAPE)


GRID = np.linspace(-16, 17, 33_001)


class Truth:
    """The law of Y, with means or without."""

    def __init__(self, means):
        v, self.weight = rule()
        self.centre, self.var = (CENTRE, v + SPREAD**2) if means else (0.0, v)

    def pdf(self, y):
        return (
            stats.norm.pdf(np.asarray(y)[..., None], self.centre, np.sqrt(self.var))
            @ self.weight
        )

    def cdf(self, y):
        return (
            stats.norm.cdf(np.asarray(y)[..., None], self.centre, np.sqrt(self.var))
            @ self.weight
        )

    def numbers(self):
        f = self.pdf(GRID)
        moments = [np.trapezoid(f * (GRID - self.centre) ** k, GRID) for k in range(5)]
        return {
            "pdf": float(self.pdf(0.5)),
            "cdf": float(self.cdf(0.5)),
            "sf": 1 - float(self.cdf(0.5)),
            "logpdf": math.log(self.pdf(0.5)),
            "cf": complex(np.exp(1j * self.centre - self.var / 2) @ self.weight),
            "ppf": optimize.brentq(lambda y: float(self.cdf(y)) - 0.8, -5, 5),
            "median": self.centre,
            "mean": self.centre,
            "var": moments[2],
            "std": math.sqrt(moments[2]),
            "kurtosis": moments[4] / moments[2] ** 2 - 3,
            "moment 6": np.trapezoid(f * GRID**6, GRID),
            "entropy": -np.trapezoid(f * np.log(f), GRID),
        }

    def distances(self):
        """To N(0, 1)."""
        f, p = self.pdf(GRID), self.cdf(GRID)
        g, q = stats.norm.pdf(GRID), stats.norm.cdf(GRID)
        return {
            "kl": np.trapezoid(f * (np.log(f) - stats.norm.logpdf(GRID)), GRID),
            "total_variation": 0.5 * np.trapezoid(np.abs(f - g), GRID),
            "wasserstein1": np.trapezoid(np.abs(p - q), GRID),
            "kolmogorov": np.abs(p - q).max(),
        }


def numbers(law):
    known = law.with_error
    return {
        "pdf": known.pdf(0.5),
        "cdf": known.cdf(0.5),
        "sf": known.sf(0.5),
        "logpdf": known.logpdf(0.5),
        "cf": known.cf(1.0),
        "ppf": known.ppf(0.8),
        "median": known.median(),
        "mean": known.mean(),
        "var": known.var(),
        "std": known.std(),
        "kurtosis": known.kurtosis(),
        "moment 6": known.moment(6),
        "entropy": known.entropy(),
    }


def laws(seed):
    """The law of Y in five ways, and whether it has means."""
    rng = np.random.default_rng([2026, seed])

    def v(*shape):
        return rng.gamma(SHAPE, SCALE, shape or SIZE)

    def draws():
        return (
            CENTRE
            + SPREAD * rng.standard_normal(SIZE)
            + np.sqrt(v()) * rng.standard_normal(SIZE)
        )

    means = CENTRE + SPREAD * rng.standard_normal(SIZE)
    yield "Mixture", False, ns.Mixture(0.0, v(), ORIGIN)
    yield "with means", True, ns.Mixture(means, v(), ORIGIN)
    yield (
        "weights",
        False,
        ns.Mixture(0.0, v(), ORIGIN, np.repeat([1.0, 2.0], SIZE // 2)),
    )
    yield "draws", True, ns.Mixture(draws(), 0.0, ORIGIN)
    yield "Empirical", True, ns.Empirical(draws())
    yield (
        "HeadSum",
        False,
        ns.HeadSum(Head([head_rule(w) for w in v(16, 500)]), 1, 1.0, ORIGIN),
    )


def joint(seed):
    rng = np.random.default_rng([2027, seed])
    cov = rng.gamma(SHAPE, SCALE, SIZE)[:, None, None] * MIXED
    return ns.Joint(SPREAD * rng.standard_normal((SIZE, 2)), cov, ORIGIN)


RECTANGLE = np.array([-0.4, -0.6]), np.array([0.7, 0.3])
STANDARD = ns.Joint(np.zeros((1, 2)), np.eye(2)[None], ORIGIN)


def joint_truth():
    v, weight = rule()
    covs = [r * MIXED + SPREAD**2 * np.eye(2) for r in v]
    each = [stats.multivariate_normal(cov=cov) for cov in covs]
    var, cross = SHAPE * SCALE + SPREAD**2, SHAPE * SCALE * MIXED[0, 1]
    side = np.linspace(-9, 9, 361)
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    f = sum(w * one.pdf(points) for w, one in zip(weight, each, strict=True))
    log_g = stats.multivariate_normal(cov=np.eye(2)).logpdf(points)
    sliced = []
    y = np.linspace(-12, 12, 2401)
    for angle in (np.arange(200) + 0.5) * np.pi / 200:
        u = np.array([np.cos(angle), np.sin(angle)])
        spread = np.sqrt([u @ cov @ u for cov in covs])
        sliced.append(
            np.trapezoid(
                np.abs(
                    stats.norm.cdf(y[:, None], scale=spread) @ weight
                    - stats.norm.cdf(y)
                ),
                y,
            )
        )
    lower, upper = RECTANGLE
    return {
        "mean": 0.0,
        "var": var,
        "cov": cross,
        "corr": cross / var,
        "pdf": float(
            sum(w * one.pdf([0.5, 0.2]) for w, one in zip(weight, each, strict=True))
        ),
        "cdf": sum(
            w * one.cdf(upper, lower_limit=lower)
            for w, one in zip(weight, each, strict=True)
        ),
        "log_evidence": math.log(
            stats.norm.pdf(0.4, scale=np.sqrt(v + 2 * SPREAD**2)) @ weight
        ),
        "kl": np.trapezoid(np.trapezoid(f * (np.log(f) - log_g), side), side),
        "sliced_wasserstein": np.mean(sliced),
    }


def joint_numbers(law, seed):
    known = law.with_error
    first = {name: getattr(known, name)() for name in ("mean", "var", "cov", "corr")}
    place = {"mean": 0, "var": 0, "cov": (0, 1), "corr": (0, 1)}
    return {
        **{
            name: (e.value[place[name]], e.error[place[name]])
            for name, e in first.items()
        },
        "pdf": known.pdf([0.5, 0.2]),
        "cdf": known.cdf(RECTANGLE[1], RECTANGLE[0]),
        "log_evidence": law.condition({0: 0.4}, noise=SPREAD).log_evidence,
        "kl": ns.kl(law, STANDARD),
        "sliced_wasserstein": ns.sliced_wasserstein(
            law, STANDARD, directions=DIRECTIONS, seed=seed
        ),
    }


def counted(found, right, hits, name):
    """Add to the hits whether the numbers lie within one error of the truth, and within
    two.
    """
    for quantity, (value, error) in found.items():
        off = abs(value - right[quantity])
        pull = off / error if error else (0.0 if off < 1e-12 else math.inf)
        once, twice = hits.get((name, quantity), (0, 0))
        hits[name, quantity] = (once + int(pull < 1), twice + int(pull < 2))


def covered(seeds, read, right):
    """For each law and number: how many of the seeds lie within one error of the truth,
    and within two.
    """
    hits, truths = {}, [right(Truth(means)) for means in (False, True)]
    for seed in range(seeds):
        for name, means, law in laws(seed):
            counted(read(law), truths[means], hits, name)
    return hits


def covered_numbers(seeds=200):
    """Of densities, distribution functions and moments."""
    return covered(seeds, numbers, Truth.numbers)


def covered_distances(seeds=200):
    """Of distances to N(0, 1)."""
    return covered(seeds, lambda law: ns.distances(law, stats.norm()), Truth.distances)


def covered_joint(seeds=200):
    """Of joint laws."""
    hits, right = {}, joint_truth()
    for seed in range(seeds):
        counted(joint_numbers(joint(seed), seed), right, hits, "Joint")
    return hits


def table(hits, seeds):
    """In per cent, within one error and within two."""
    names = list(dict.fromkeys(name for name, _ in hits))
    print("| number | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for quantity in dict.fromkeys(quantity for _, quantity in hits):
        cells = [
            f"{100 * a / seeds:.0f} / {100 * b / seeds:.0f}"
            for a, b in (hits[name, quantity] for name in names)
        ]
        print(f"| {quantity} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    for made in (covered_numbers, covered_joint, covered_distances):
        table(made(200), 200)
