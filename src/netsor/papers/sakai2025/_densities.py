"""Densities and distances at each width from the trials of a run, with the limit as a
control variate.

Paper's estimator: one kernel estimate a trial. Ours: f_n = f_∞ + E[N(y; v_n) − N(y;
v_∞)] over the replicas of all trials, f_∞ the limit's own density and v_n, v_∞ from the
same random numbers (coupled), then KL by quadrature with a jackknife over blocks. That
is right only if f_∞ is E[N(y; v_∞)], so this is tested first, and where it fails
nothing is coupled. Above `COUPLED` heads v_∞ hardly varies, coupling gains nothing, and
E[N(y; v_n)] is used without it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ...engine._rng_keys import generator
from ...engine.backends import Backend, Numpy
from ...laws import Empirical, Estimate, HeadSum, Law, Mixture
from ...laws._distance_estimator import kl_terms
from ...laws._estimate import Replicated, jackknife
from ...laws._mixture_components import Blocks, compress
from ...studies import Arrays, Store, cache_key, derive_seed
from ._experiments import Case, Figure, limit_law

Array = npt.NDArray[np.float64]

BLOCKS = 8  # blocks of replicas in a trial, for the jackknife
ENGINE, NOISE, LIMIT, GAUSS, AGAIN = range(5)  # purposes of random numbers


def _even_grid(scale: float, points: int, reach: float = 16.0) -> tuple[Array, Array]:
    """Nodes and weights for integrals over the line, equally spaced in arcsinh(y):
    dense near 0, sparse far out.
    """
    x, step = np.linspace(-1, 1, points, retstep=True)
    last = float(np.arcsinh(reach))
    return scale * np.sinh(last * x), step * last * scale * np.cosh(last * x)


# the outputs have standard deviations near 0.6
GRID, WEIGHTS = _even_grid(0.6, points=501)


@dataclass(frozen=True)
class TrialTask:
    """One trial of one case: a task of the study."""

    case: Case
    trial: int
    samples: int
    seed: int
    backend: Backend = Numpy()  # noqa: RUF009 (it is frozen)

    @property
    def key(self) -> dict[str, Any]:
        """All that its numbers depend on, as JSON can hold it."""
        case = {
            name: "inf" if value == math.inf else value
            for name, value in asdict(self.case).items()
        }
        values = {
            "case": case,
            "trial": self.trial,
            "samples": self.samples,
            "seed": self.seed,
        }
        return cache_key(values, self.backend)

    def stream(self, purpose: int) -> int:
        """A seed for one purpose; cases of one trial share it, which couples widths."""
        return derive_seed(self.seed, self.trial, purpose)

    def run(self) -> Arrays:
        """Draw: `draws`, one output each, and `density`, a row of E[N(y; v)] on the
        grid for each block of replicas.

        Draws have single precision, to save space. The limit has no `draws`: its
        quantile function gives them.
        """
        case = self.case
        law = case.program.law(
            draws=self.samples,
            seed=self.stream(ENGINE),
            workers=1,
            progress=False,
            backend=self.backend,
            **case.widths,  # type: ignore[arg-type]
        )
        if isinstance(law, HeadSum):
            mixture = law.mixture
            assert mixture is not None
            return {
                "density": block_densities(mixture, GRID, BLOCKS),
                "numbers": np.array(mixture.random_numbers * self.samples),
            }
        assert isinstance(law, Mixture)
        noise = generator(self.stream(NOISE)).standard_normal(self.samples)
        draws = (law.component_mean + np.sqrt(law.component_var) * noise).astype(
            np.float32
        )
        numbers = np.array((law.random_numbers + 1) * self.samples)
        if case.score:
            return {"draws": draws, "numbers": numbers}
        return {
            "draws": draws,
            "density": block_densities(law, GRID, BLOCKS),
            "numbers": numbers,
        }


def block_densities(law: Mixture, y: Array, blocks: int) -> Array:
    """The density of each block of replicas (blocks, points), of a law with components
    of mean 0.
    """
    labels = np.arange(law.replicas) * blocks // law.replicas
    alive = law.component_var > 0
    rule = compress(law.component_var[alive], blocks=Blocks(labels[alive], blocks))
    return np.asarray(rule.pdf(y).T * (alive.sum() * blocks / law.replicas))


COUPLED = 16  # heads up to which widths are coupled with the limit


@lru_cache(maxsize=32)
def on_grid(limit: Case) -> tuple[Replicated, Array]:
    """The density of a limit, by its sets of points, and its logarithm."""
    law = limit_law(limit)
    return law._densities(GRID), np.asarray(law.logpdf(GRID))


@dataclass(frozen=True)
class Plan:
    """Which trials a run needs, and how their numbers are read."""

    store: Store
    trials: int
    samples: int | None  # the paper's, if None
    seed: int
    estimator: str
    backend: Backend = Numpy()  # noqa: RUF009 (it is frozen)

    @property
    def paper(self) -> bool:
        """Whether the paper's estimator is wanted."""
        return self.estimator != "exact"

    @property
    def exact(self) -> bool:
        """Whether ours is wanted."""
        return self.estimator != "paper"

    def part(self, case: Case, trial: int) -> TrialTask:
        """One trial of a case."""
        return TrialTask(
            case, trial, self.samples or case.samples, self.seed, self.backend
        )

    def parts(self, figure: Figure) -> list[TrialTask]:
        """The trials that a figure needs; all cases of a trial before the next, for a
        good estimate of time left.
        """
        return [
            self.part(case, trial)
            for trial in range(self.trials)
            for case in self.cases(figure)
        ]

    def cases(self, figure: Figure) -> list[Case]:
        """The cases that a figure needs, with the limits that are coupled to them."""
        limits = dict.fromkeys(
            case.limit for case in figure.cases if self.exact and _coupled(case)
        )
        return [*figure.cases, *limits]

    @lru_cache(maxsize=12)  # noqa: B019 (a process has few plans)
    def load(self, case: Case) -> list[Arrays]:
        """All trials of a case."""
        loaded = [
            self.store.load(self.part(case, trial).key) for trial in range(self.trials)
        ]
        if any(arrays is None for arrays in loaded):
            raise RuntimeError(
                f"a trial of {case} was removed while it was needed; run the command"
                " again"
            )
        return [arrays for arrays in loaded if arrays is not None]

    def draws(self, case: Case) -> list[Empirical]:
        """Kernel estimates of the outputs, one a trial."""
        return [Empirical(arrays["draws"]) for arrays in self.load(case)]

    @lru_cache(maxsize=32)  # noqa: B019
    def limit_draws(self, limit: Case, purpose: int = LIMIT) -> list[Empirical]:
        """Kernel estimates of draws of the limit, which are independent of those of any
        width.
        """
        parts = [self.part(limit, trial) for trial in range(self.trials)]
        return [
            Empirical(limit_law(limit).rvs(part.samples, part.stream(purpose)))
            for part in parts
        ]

    def gaussian_draws(self, limit: Case) -> list[Empirical]:
        """Kernel estimates of draws of the Gaussian of infinitely many heads."""
        parts = [self.part(limit, trial) for trial in range(self.trials)]
        std = limit_law(limit).infinite_heads().std()
        return [
            Empirical(std * generator(part.stream(GAUSS)).standard_normal(part.samples))
            for part in parts
        ]

    def replicated(self, case: Case) -> Array:
        """E[N(y; v)] at this width by blocks of replicas (blocks, points)."""
        return np.concatenate([arrays["density"] for arrays in self.load(case)])

    def agreement(self, case: Case) -> Agreement | None:
        """Whether the limit agrees with the engine at infinite width; None where
        nothing is coupled through it.
        """
        return self._agreement(case.limit) if _coupled(case) else None

    @lru_cache(maxsize=32)  # noqa: B019
    def _agreement(self, limit: Case) -> Agreement:
        return agreement(limit_law(limit), self.replicated(limit))

    def _through_limit(self, case: Case) -> bool:
        tested = self.agreement(case)
        return tested is not None and tested.agrees

    def blocks(self, case: Case) -> Array:
        """The density at this width by blocks of replicas (blocks, points)."""
        density = self.replicated(case)
        if not self._through_limit(case):
            return density
        return np.asarray(
            np.exp(on_grid(case.limit)[1]) + (density - self.replicated(case.limit))
        )

    def variance(self, case: Case) -> Estimate:
        """The variance at this width."""
        squares = self.replicated(case) @ (WEIGHTS * GRID**2)
        return Estimate(
            float(squares.mean()), float(squares.std(ddof=1) / math.sqrt(len(squares)))
        )

    def kl(self, case: Case) -> Estimate:
        """Our D(width n ‖ limit)."""
        coupled = self._through_limit(case)
        rows = self.replicated(case) - (self.replicated(case.limit) if coupled else 0.0)
        densities, logs = on_grid(case.limit)
        groups = [Replicated(rows, np.full(len(rows), 1 / len(rows))), densities]

        def divergence(f: Array, limit: Array) -> Array:
            return np.asarray(
                np.sum(
                    WEIGHTS * kl_terms(limit + f if coupled else f, limit, logs),
                    axis=-1,
                )
            )

        return jackknife(divergence, groups).corrected()


@dataclass(frozen=True)
class Agreement:
    """The limit's density against the engine's own at infinite width: the largest
    deviation, in standard errors.
    """

    deviation: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether the two are one law, as far as these draws can tell."""
        return self.deviation < self.allowed


def agreement(limit: Law, blocks: Array) -> Agreement:
    """Compare a density with blocks of replicas of it: probabilities of intervals,
    second and fourth moment.

    A test of level 1e-6. In the moments |y| is cut off at four standard deviations,
    beyond which they are mostly noise.
    """
    scale = limit.std()
    near = np.abs(GRID) < 6 * scale  # beyond, too little of the density is left
    y = GRID[near]
    value, error = limit.with_error.pdf(y)
    shape = np.minimum(np.abs(y) / scale, 4.0)
    inside = [np.abs(y) < c * scale for c in np.linspace(0.2, 3.0, 15)]
    tests = np.stack([*inside, shape**2, shape**4]) * WEIGHTS[near]
    numbers = blocks[:, near] @ tests.T
    gap = np.abs(numbers.mean(axis=0) - tests @ value)
    spread = numbers.std(axis=0, ddof=1) / math.sqrt(len(numbers))
    # the last term: rounding, and the error of integrals by 501 points
    noise = np.sqrt(
        spread**2 + (np.abs(tests) @ error) ** 2 + (1e-9 * (np.abs(tests) @ value)) ** 2
    )
    allowed = float(
        scipy.special.stdtrit(max(len(blocks) - 1, 1), 1 - 1e-6 / (2 * len(tests)))
    )
    return Agreement(float(np.max(gap / noise)), allowed)


def _coupled(case: Case) -> bool:
    return not case.score and case.heads <= COUPLED
