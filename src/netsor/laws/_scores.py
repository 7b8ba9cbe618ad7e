"""The law of one head from the covariance of its row of scores: quasi-random points, more of them for rare events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from ..activations import row_softmax
from ._exchangeable import alike, exchangeable_moments
from ._head import Head

Array = npt.NDArray[np.float64]

SETS = 16  # independently scrambled sets of quasi-random points, for the error
SHIFTS = (3.0, 6.0, 9.0, 12.0, 18.0, 27.0)  # how far points are moved towards a rare event, in standard deviations
RARE = 2**13  # points in each set for rare events
SOBOL = 21_201  # most dimensions of scipy's Sobol points; beyond, points are random


class Scores(NamedTuple):
    """What the law of one head depends on."""

    scores: bytes
    values: bytes
    tokens: int
    function: Callable[[Array], Array]


@lru_cache(maxsize=8)
def head_law(given: Scores, points: int) -> Head:
    """The law of w = Σ_jk a_j K_jk a_k in one head; the last few are remembered."""
    weigh = _Weigh(given)
    samples = np.stack([weigh.plain(points // SETS, number) for number in range(SETS)])
    moments = exchangeable_moments(weigh.scores, weigh.values) if given.function is row_softmax else None
    return Head(samples, moments, weigh.rare)


class _Weigh:
    """From normals z to w: scores are F z, with F F^T their covariance."""

    def __init__(self, given: Scores) -> None:
        s = given.tokens
        self.function = given.function
        self.scores, self.values = (np.frombuffer(data).reshape(s, s) for data in given[:2])
        soft = self.function is row_softmax
        self.iid = soft and s > 64 and alike(self.scores) and alike(self.values)
        if self.iid:  # what all have in common cancels in a softmax, and no matrix is left
            self.spread = float(np.sqrt(max(self.scores[0, 0] - self.scores[0, 1], 0.0)))
            self.dimension = s if self.spread else 0
            return
        # what all scores have in common cancels in a softmax: one dimension less, and the rest by falling variance
        centre = np.eye(s) - 1 / s if soft else np.eye(s)
        eigenvalues, vectors = np.linalg.eigh(centre @ self.scores @ centre)
        keep = eigenvalues > 1e-12 * max(eigenvalues[-1], 1e-300)
        self.factor = (vectors[:, keep] * np.sqrt(eigenvalues[keep]))[:, ::-1]
        self.dimension = self.factor.shape[1]

    def __call__(self, z: Array) -> Array:
        """w for rows of normals."""
        if self.iid:
            a = self.function(self.spread * z) if self.dimension else np.full((len(z), len(self.values)), 1.0)
            a = a / a.sum(axis=1, keepdims=True)
            off = float(self.values[0, 1])
            return np.asarray(np.maximum((self.values[0, 0] - off) * np.einsum("ri,ri->r", a, a) + off, 1e-300))
        a = self.function(z @ self.factor.T)
        return np.asarray(np.maximum(np.einsum("ri,ri->r", a @ self.values, a), 1e-300))

    def plain(self, points: int, number: int) -> Array:
        """A sample of w of equal weights."""
        return np.concatenate([self(z) for z in normals(self.dimension, points, number)])

    def rare(self) -> tuple[Array, Array]:
        """w and log weights (sets, points), from normals moved towards where w is large.

        One part of the points is as it is, the others moved towards each token's own score (for another function than
        softmax, along the main axes), by several distances; the weights are those of the mixture of all.
        """
        steps = self._steps()
        points = int(2 ** np.clip(np.log2(2**22 / max(self.dimension, 1)), 8, np.log2(RARE)))
        w, log_weight = np.empty((2, SETS, points))
        for number in range(SETS):
            start = 0
            for z, which in _chosen(self.dimension, points, SETS + number, len(steps)):
                z = z + steps[which]
                part = slice(start, start + len(z))
                w[number, part] = self(z)
                exponent = z @ steps.T - 0.5 * (steps**2).sum(axis=1)
                log_weight[number, part] = (
                    np.log(len(steps)) - scipy.special.logsumexp(exponent, axis=1) - np.log(points)
                )
                start += len(z)
        return w, log_weight

    def _steps(self) -> Array:
        """The moves (moves, dimension): none, and SHIFTS of each direction."""
        d = self.dimension
        if d == 0:
            return np.zeros((1, 0))
        if self.iid:
            directions = np.eye(d)[:16]
        elif self.function is row_softmax:
            chosen = np.argsort(-np.diag(self.values), kind="stable")[:16]
            directions = self.factor[chosen]
        else:
            directions = np.concatenate([np.eye(d)[:8], -np.eye(d)[:8]])
        length = np.linalg.norm(directions, axis=1, keepdims=True)
        unit = (directions / np.where(length > 0, length, 1.0))[length[:, 0] > 0]
        return np.concatenate([np.zeros((1, d)), *(t * unit for t in SHIFTS)])


def _chosen(dimension: int, points: int, number: int, parts: int) -> Iterator[tuple[Array, npt.NDArray[np.intp]]]:
    """Quasi-random normals, each with the part of a mixture that it belongs to: one more dimension says which."""
    for z in normals(dimension + 1, points, number):
        which = np.minimum((scipy.special.ndtr(z[:, 0]) * parts).astype(np.intp), parts - 1)
        yield z[:, 1:], which


def normals(dimension: int, points: int, number: int) -> Iterator[Array]:
    """Quasi-random standard normals (points, dimension), in pieces: a scrambled Sobol set, or random beyond those."""
    rng = np.random.default_rng([2020, number])
    piece = 2 ** int(np.log2(min(points, max(2**4, 2**21 // max(dimension, 1)))))
    if dimension > SOBOL:
        for start in range(0, points, piece):
            yield rng.standard_normal((min(piece, points - start), dimension))
        return
    sobol = scipy.stats.qmc.Sobol(max(dimension, 1), scramble=True, rng=rng)
    for start in range(0, points, piece):
        uniform = sobol.random(min(piece, points - start))[:, :dimension]
        yield np.asarray(scipy.special.ndtri(np.clip(uniform, 1e-15, 1 - 1e-15)))
