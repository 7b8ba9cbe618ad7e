"""The first correction in 1/n of one attention layer, by quadrature: equation (10) of docs/theory.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from .._html import table, title
from .._sobol import Sobol
from ..activations import row_softmax
from ._estimate import Array, Estimate
from ._law_base import LawError, numbers, real

STEP = 0.04  # step of finite differences of fourth order: errors of STEP⁴, rounding errors of 1e-12/STEP²
HERMITE = 16, 24  # nodes per variable of two product rules, for scores of spread 1; their difference is the error
MAX_POINTS = 2**19  # most points of a product rule
SOBOL_POINTS = 2**15  # points of each of two quasi-random sets, if a product rule would have too many
MAX_SPREAD = 2.0  # largest spread of scores for which these points suffice
MAX_TOKENS = 8
CELLS = 8000  # number of cells of equal size for values of w, with two moments each
REACH, MAX_REACH = 10.0, 40.0  # standard deviations to each side that integrals cover, at least and at most
TAIL = 8.0  # standard deviations of the widest conditional law that they cover within these bounds
MAX_ERROR = 0.1  # relative error of the total variation up to which the density is resolved
NEGLIGIBLE = 1e-11  # density relative to the largest, below which the ratio of densities is a rounding error
DECAYED = 1e-13  # size of the characteristic function at which its inversion ends


@dataclass(frozen=True, eq=False)
class LayerFluctuations:
    """What the correction of a layer depends on, in addition to its heads and its scale."""

    gram: Array  # the limit K of the Gram matrix of the query token and of the tokens it attends to
    directions: Array  # V of the generator Σ ∂_V², along the first axis
    temperature: float  # scores have the covariance temperature · K_qq K

    @classmethod
    def from_arrays(cls, gram: Any, directions: Any, temperature: Any) -> LayerFluctuations:
        """From a file."""
        gram, directions = numbers(gram, "correction", "gram"), numbers(directions, "correction", "directions")
        size = gram.shape[0] if gram.ndim else 0
        if gram.shape != (size, size) or directions.shape[1:] != gram.shape or size < 2:
            raise LawError("correction", f"gram {gram.shape} and directions {directions.shape} do not fit")
        return cls(gram, directions, real(temperature, "temperature", "correction", above=0.0))


@dataclass(frozen=True, eq=False)
class Correction:
    """The terms of order 1/n of a law at width n: its density is f + g/n, with errors of order 1/n².

    `law.correction()` makes it, for the limit of one attention layer over Gaussian tokens.

    Parameters
    ----------
    variance, kurtosis : Estimate
        n times the differences of variance and excess kurtosis from those of the limit.
    total_variation, kl : Estimate
        n times the total variation distance to the limit, ½ ∫ |g|; n² times KL from the limit, ½ ∫ g²/f.
    frequencies, transform : numpy.ndarray
        The cosine transform of g, at equally spaced frequencies from 0.

    Examples
    --------
    >>> first = ns.paper.layer(tokens=2, heads=2).law(n=ns.inf).correction()
    >>> print(f"variance + {first.variance.value:.3f}/n, KL {first.kl.value:.2f}/n²")
    variance + 0.339/n, KL 6.77/n²
    >>> float(first.pdf(0.0)) > 0  # at finite width there is more mass in the centre, and in the tails
    True
    """

    variance: Estimate
    kurtosis: Estimate
    total_variation: Estimate
    kl: Estimate
    frequencies: Array
    transform: Array

    def pdf(self, y: Array | float) -> Array:
        """g(y): n times the difference of the density from the limit's; refused if quadrature does not resolve it."""
        if self.total_variation.error > MAX_ERROR * self.total_variation.value:
            problem = f"quadrature does not resolve its density (total variation {self.total_variation})"
            raise LawError("correction", f"{problem}; ns.width_needed compares any law with its limit")
        return np.asarray(_inverse(np.asarray(y, dtype=float), self.frequencies, self.transform))

    @property
    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("variance", f"+ ({self.variance})/n"),
            ("excess kurtosis", f"+ ({self.kurtosis})/n"),
            ("total variation", f"({self.total_variation})/n"),
            ("KL", f"({self.kl})/n²"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:16} {term}" for name, term in self._rows)

    def _repr_html_(self) -> str:
        return title("First correction in 1/n") + table(self._rows, ("", "term"))


def correction(layer: LayerFluctuations, heads: int, scale: float) -> Correction:
    """The correction by two quadrature rules: the finer gives the values, and their difference the errors."""
    values, vectors = np.linalg.eigh(_centred(layer.gram))
    basis = vectors[:, values > 1e-12 * max(values[-1], layer.gram.max())]
    spread = math.sqrt(layer.temperature * layer.gram[0, 0] * max(values[-1], 0.0))
    rules = _rules(basis.shape[1], spread)
    (coarse, *_), (fine, frequencies, transform) = (_terms(layer, heads, scale, basis, *rule) for rule in rules)
    pairs = zip(coarse, fine, strict=True)
    variance, kurtosis, tv, kl = (Estimate(value, abs(value - other) + 1e-6 * abs(value)) for other, value in pairs)
    return Correction(variance, kurtosis, tv, kl, frequencies, transform)


def _centred(gram: Array) -> Array:
    """The Gram matrix of the tokens less their mean: a softmax depends only on differences of scores."""
    less = gram[1:, 1:] - gram[1:, 1:].mean(axis=0)
    return np.asarray(less - less.mean(axis=1, keepdims=True))


def _rules(variables: int, spread: float) -> Iterator[tuple[Array, Array]]:
    """Two rules for z ~ N(0, I): nodes (points, variables) and weights, for functions of a softmax of scores."""
    # The softmax of scores σ z has its poles at a distance of π/σ from the real line, so the nodes grow like σ²
    counts = [math.ceil(count * max(1.0, spread**2)) for count in HERMITE]
    product = variables < 64 and counts[-1] ** variables <= MAX_POINTS
    if not product and spread > MAX_SPREAD:
        problem = f"scores of standard deviation {spread:.3g} are too large for its quadrature"
        raise LawError("correction", f"{problem}; ns.width_needed compares any law with its limit")
    for number, count in enumerate(counts):
        if variables == 0:  # one token, or equal ones
            yield np.zeros((1, 0)), np.ones(1)
        elif product:
            x, w = scipy.special.roots_hermitenorm(count)
            z = np.stack(np.meshgrid(*[x] * variables, indexing="ij"), axis=-1).reshape(-1, variables)
            weight = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * variables, indexing="ij")), axis=0).ravel()
            keep = weight > 1e-13
            yield z[keep], weight[keep] / weight[keep].sum()
        else:
            points = Sobol(variables, np.random.default_rng([number, variables]))
            half = scipy.special.ndtri(np.clip(points.random(SOBOL_POINTS // 2), 1e-12, 1 - 1e-12))
            yield np.concatenate([half, -half]), np.full(SOBOL_POINTS, 1 / SOBOL_POINTS)


def _terms(
    layer: LayerFluctuations, heads: int, scale: float, basis: Array, z: Array, weight: Array
) -> tuple[tuple[float, ...], Array, Array]:
    """The four numbers of a correction by one quadrature rule, and the frequencies and the transform of g."""
    gram = layer.gram

    def w_at_nodes(gram: Array, tau: float) -> Array:
        """aᵀ K a."""
        root = basis @ np.linalg.cholesky(basis.T @ _centred(gram) @ basis)
        p = math.sqrt(layer.temperature * tau * gram[0, 0]) * z @ root.T
        a = row_softmax(p)
        return np.asarray(np.einsum("ri,ij,rj->r", a, gram[1:, 1:], a))

    w = w_at_nodes(gram, 1.0)
    most, std = float(w.max()), math.sqrt(scale * float(weight @ w))  # of w; of the output in the limit
    end = 8.0 / std  # grows until the characteristic function has decayed
    while end * std < 500 and float(weight @ np.exp(-scale * end**2 / (2 * heads) * w)) ** heads > DECAYED:
        end *= 1.25
    reach = std * min(max(REACH, TAIL * math.sqrt(scale * most) / std), MAX_REACH)
    frequencies = np.arange(0.0, end, math.pi / (1.5 * reach))
    c = frequencies**2 * scale / (2 * heads)  # the argument of ψ

    def expected(gram: Array, tau: float = 1.0) -> Array:
        """E[w], E[w²], and ψ = E[exp(−c w)] at every frequency."""
        w = w_at_nodes(gram, tau)
        cell = np.minimum((w * (CELLS / most)).astype(np.intp), 2 * CELLS - 1)
        mass, first, second = (np.bincount(cell, weight * w**k, 2 * CELLS) for k in range(3))
        some = mass > 0
        mass, mean = mass[some], first[some] / mass[some]
        var = second[some] / mass - mean**2
        psi = (np.exp(-np.outer(c, mean)) * (1 + 0.5 * np.outer(c**2, var))) @ mass
        return np.concatenate([[weight @ w, weight @ w**2], psi])

    limit = expected(gram)

    def derivatives(direction: Array | None) -> tuple[Array, Array]:
        """First and second derivatives along a direction of K, or by τ, with errors of fourth order."""
        one, less, two, least = (
            expected(gram, 1 + step) if direction is None else expected(gram + step * direction)
            for step in (STEP, -STEP, 2 * STEP, -2 * STEP)
        )
        second = (16 * (one + less) - two - least - 30 * limit) / (12 * STEP**2)
        return (8 * (one - less) - (two - least)) / (12 * STEP), second

    # 𝓛 of E[w], E[w²] (without u) and ψ^H, and Σ (∂E[w])²
    (a, b), psi, (_, second) = limit[:2], limit[2:], derivatives(None)
    by_u = c**2 * ((weight * w**2) @ np.exp(-np.outer(w, c)))
    transform = heads * psi ** (heads - 1) * (second[2:] + by_u)
    mean, square, slopes = second[0], second[1], 0.0
    for direction in layer.directions:
        first, second = derivatives(direction)
        inner = psi ** (heads - 1) * second[2:]
        if heads > 1:
            inner = inner + (heads - 1) * psi ** (heads - 2) * first[2:] ** 2
        transform = transform + heads * inner
        mean, square = mean + second[0], square + second[1]
        slopes += first[0] ** 2
    v2 = b / heads + (1 - 1 / heads) * a**2
    v2_1 = (square + 2 * b) / heads + (1 - 1 / heads) * (2 * a * mean + 2 * slopes)
    kurtosis = 3 * (v2_1 / a**2 - 2 * v2 * mean / a**3)
    y, dy = np.linspace(-reach, reach, round(200 * reach / std) + 1, retstep=True)
    f, g = (_inverse(y, frequencies, hat) for hat in (psi**heads, transform))
    some = f > NEGLIGIBLE * f.max()
    kl = 0.5 * float(np.sum(g[some] ** 2 / f[some])) * dy
    return (scale * float(mean), float(kurtosis), 0.5 * float(np.abs(g).sum()) * dy, kl), frequencies, transform


def _inverse(y: Array, frequencies: Array, transform: Array) -> Array:
    """The function of y with this cosine transform."""
    weight = np.full(len(frequencies), frequencies[1])
    weight[0] /= 2
    return np.asarray(np.cos(np.multiply.outer(y, frequencies)) @ (weight * transform) / math.pi)
