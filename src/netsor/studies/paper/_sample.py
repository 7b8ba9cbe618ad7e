"""The work of one trial: draws for the paper's estimator, and Rao–Blackwell densities for ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..._arrays import one_blas_thread
from ...engine._montecarlo import generator
from ...laws import HeadSum, Mixture
from ...laws._gaussians import Gaussians, compress
from .._store import Arrays, Store
from ._cases import Part

Array = npt.NDArray[np.float64]

BLOCKS = 8  # blocks of replicas in a trial, for the jackknife
ENGINE, NOISE, LIMIT, GAUSS, AGAIN = range(5)  # purposes of random numbers


def _even_grid(scale: float, points: int, reach: float = 16.0) -> tuple[Array, Array]:
    """Nodes and weights for integrals over the line, equally spaced in arcsinh(y): dense near 0, sparse far out."""
    x, step = np.linspace(-1, 1, points, retstep=True)
    last = float(np.arcsinh(reach))
    return scale * np.sinh(last * x), step * last * scale * np.cosh(last * x)


GRID, WEIGHTS = _even_grid(0.6, points=501)  # the outputs have standard deviations near 0.6


class Cost(NamedTuple):
    """What a trial took."""

    random_numbers: int
    seconds: float


def draw(part: Part, folder: Path) -> Cost:
    """Do a trial and keep it."""
    arrays = timed(part)
    Store(folder).save(part.key, arrays)
    return cost(arrays)


def timed(part: Part) -> Arrays:
    """Do a trial, and say how long that took."""
    start = time.perf_counter()
    with one_blas_thread():
        arrays = sampled(part)
    arrays["seconds"] = np.array(time.perf_counter() - start)
    return arrays


def cost(arrays: Arrays) -> Cost:
    """What a kept trial took."""
    return Cost(int(arrays["numbers"]), round(float(arrays["seconds"]), 4))


def sampled(part: Part) -> Arrays:
    """The numbers of one trial.

    `draws`, one output each (of single precision, to save space), and `density`, a row of E[N(y; v)] on the grid for
    each block of replicas. The limit has no `draws`: its quantile function gives them when they are needed.
    """
    case = part.case
    law = case.program.law(
        draws=part.samples,
        seed=part.stream(ENGINE),
        workers=1,
        progress=False,
        backend=part.backend,
        **case.widths,  # type: ignore[arg-type]
    )
    if isinstance(law, HeadSum):
        mixture = law.mixture
        assert mixture is not None
        return {
            "density": block_densities(mixture, GRID, BLOCKS),
            "numbers": np.array(mixture.random_numbers * part.samples),
        }
    assert isinstance(law, Mixture)
    noise = generator(part.stream(NOISE)).standard_normal(part.samples)
    draws = _single(law.component_mean + np.sqrt(law.component_var) * noise)
    numbers = np.array((law.random_numbers + 1) * part.samples)
    if case.score:
        return {"draws": draws, "numbers": numbers}
    return {"draws": draws, "density": block_densities(law, GRID, BLOCKS), "numbers": numbers}


def _single(draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    return draws.astype(np.float32)


def block_densities(law: Mixture, y: Array, blocks: int) -> Array:
    """The density of each block of replicas (blocks, points), of a law with components of mean 0."""
    labels = np.arange(law.replicas) * blocks // law.replicas
    alive = law.component_var > 0
    nodes, weight = compress(law.component_var[alive], labels=labels[alive])
    share = weight * (alive.sum() * blocks / law.replicas)
    return np.asarray(Gaussians(np.zeros_like(nodes), nodes, share).pdf(y).T)
