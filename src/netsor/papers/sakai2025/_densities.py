"""Densities and distances at each width, from the trials of a run.

The paper's estimator is one kernel estimate for each trial. Ours uses the limit as a
control variate: f_n = f_∞ + E[N(y; v_n) − N(y; v_∞)], an average over the replicas of
all trials, with the limit's own density f_∞, and v_n and v_∞ from the same random
numbers (coupled). KL follows by quadrature, with a jackknife over blocks of replicas.

That is right only if f_∞ is E[N(y; v_∞)], so this is tested first; where it fails,
nothing is coupled. Above `COUPLED` heads v_∞ hardly varies, so that coupling gains
nothing, and E[N(y; v_n)] is used without it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ...engine.backends import Backend, Numpy
from ...engine.run._rng_keys import generator
from ...laws import Empirical, Estimate, HeadSum, Law, Mixture
from ...laws._distance_estimator import kl_terms
from ...laws._estimate import Replicated, jackknife
from ...laws._mixture_components import Blocks, compress
from ...studies import Arrays, Store, cache_key, derive_seed
from ._experiments import Case, Figure, limit_law

Array = npt.NDArray[np.float64]

BLOCKS = 8  # blocks of replicas in a trial, for the jackknife
COUPLED = 16  # heads up to which widths are coupled with the limit
# What random numbers are for: each purpose has its own stream.
ENGINE, NOISE, LIMIT, GAUSS, AGAIN = range(5)


def _even_grid(scale: float, points: int, reach: float = 16.0) -> tuple[Array, Array]:
    """Nodes and weights for integrals over the line, up to `reach` times the scale.

    The nodes are y = scale · sinh(u) at equally spaced u: dense near 0, sparse far out.
    """
    x, step = np.linspace(-1, 1, points, retstep=True)
    last = float(np.arcsinh(reach))
    nodes = scale * np.sinh(last * x)
    weights = step * last * scale * np.cosh(last * x)
    return nodes, weights


# The outputs have standard deviations near 0.6.
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
        """All that its numbers depend on, in a form that JSON can store."""
        case = asdict(self.case)
        for name, value in case.items():
            if value == math.inf:
                case[name] = "inf"
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
        """Draw the trial.

        Returns `draws`, one output each, in single precision to save space, and
        `density`, a row of E[N(y; v)] on the grid for each block of replicas. The limit
        has no `draws`: they come from its quantile function. A score has no `density`.
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
        outputs = law.component_mean + np.sqrt(law.component_var) * noise
        arrays: Arrays = {"draws": outputs.astype(np.float32)}
        if not case.score:
            arrays["density"] = block_densities(law, GRID, BLOCKS)
        arrays["numbers"] = np.array((law.random_numbers + 1) * self.samples)
        return arrays


def block_densities(law: Mixture, y: Array, blocks: int) -> Array:
    """The mean density at y of each block of replicas, an array (blocks, points).

    The components of the law must have mean 0. Those of variance 0 have no density, and
    count as 0 in the mean.
    """
    # the block of each replica: equally many follow each other in a block
    labels = np.arange(law.replicas) * blocks // law.replicas
    positive = law.component_var > 0
    groups = Blocks(labels[positive], blocks)
    rule = compress(law.component_var[positive], blocks=groups)
    factor = positive.sum() * blocks / law.replicas
    return np.asarray(rule.pdf(y).T * factor)


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
        """Whether to use the paper's estimator."""
        return self.estimator != "exact"

    @property
    def exact(self) -> bool:
        """Whether to use ours."""
        return self.estimator != "paper"

    def part(self, case: Case, trial: int) -> TrialTask:
        """One trial of a case."""
        return TrialTask(
            case=case,
            trial=trial,
            samples=self.samples or case.samples,
            seed=self.seed,
            backend=self.backend,
        )

    def parts(self, figure: Figure) -> list[TrialTask]:
        """The trials that a figure needs.

        All cases of a trial come before the next trial, for a good estimate of the time
        left.
        """
        parts = []
        for trial in range(self.trials):
            parts += [self.part(case, trial) for case in self.cases(figure)]
        return parts

    def cases(self, figure: Figure) -> list[Case]:
        """The cases that a figure needs, with the limits that are coupled to them."""
        cases = list(figure.cases)
        for case in figure.cases:
            if self.exact and _coupled(case) and case.limit not in cases:
                cases.append(case.limit)
        return cases

    @lru_cache(maxsize=12)  # noqa: B019 (a process has few plans)
    def load(self, case: Case) -> list[Arrays]:
        """All trials of a case."""
        trials = [self.part(case, trial) for trial in range(self.trials)]
        loaded = [self.store.load(task.key) for task in trials]
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
        """Kernel estimates of draws of the limit, independent of those of any width."""
        law = limit_law(limit)
        laws = []
        for trial in range(self.trials):
            task = self.part(limit, trial)
            laws.append(Empirical(law.rvs(task.samples, task.stream(purpose))))
        return laws

    def gaussian_draws(self, limit: Case) -> list[Empirical]:
        """Kernel estimates of draws of the Gaussian of infinitely many heads."""
        std = limit_law(limit).infinite_heads().std()
        laws = []
        for trial in range(self.trials):
            task = self.part(limit, trial)
            normals = generator(task.stream(GAUSS)).standard_normal(task.samples)
            laws.append(Empirical(std * normals))
        return laws

    def replicated(self, case: Case) -> Array:
        """E[N(y; v)] at this width by blocks of replicas (blocks, points)."""
        return np.concatenate([arrays["density"] for arrays in self.load(case)])

    def agreement(self, case: Case) -> Agreement | None:
        """Whether the limit agrees with the engine at infinite width.

        None for cases that are not coupled with it.
        """
        if not _coupled(case):
            return None
        return self._agreement(case.limit)

    @lru_cache(maxsize=32)  # noqa: B019
    def _agreement(self, limit: Case) -> Agreement:
        """Whether a limit agrees with the engine at infinite width."""
        return agreement(limit_law(limit), self.replicated(limit))

    def _is_coupled(self, case: Case) -> bool:
        """Whether the case is measured through its limit."""
        agreement = self.agreement(case)
        return agreement is not None and agreement.agrees

    def blocks(self, case: Case) -> Array:
        """Our estimate of the density at this width by blocks of replicas, (blocks,
        points): E[N(y; v_n)], or f_∞ + E[N(y; v_n) − N(y; v_∞)] if it is coupled.
        """
        density = self.replicated(case)
        if not self._is_coupled(case):
            return density
        _, log_limit = on_grid(case.limit)
        difference = density - self.replicated(case.limit)
        return np.asarray(np.exp(log_limit) + difference)

    def variance(self, case: Case) -> Estimate:
        """The variance at this width, by quadrature over the density of each block."""
        squares = self.replicated(case) @ (WEIGHTS * GRID**2)
        error = float(squares.std(ddof=1) / math.sqrt(len(squares)))
        return Estimate(float(squares.mean()), error)

    def kl(self, case: Case) -> Estimate:
        """Our D(width n ‖ limit), with its error and bias by the jackknife over blocks
        of replicas and over the sets of points of the limit.
        """
        coupled = self._is_coupled(case)
        rows = self.replicated(case)
        if coupled:  # rows of f_n − f_∞ instead of f_n
            rows = rows - self.replicated(case.limit)
        limit_sets, log_limit = on_grid(case.limit)
        groups = [Replicated(rows, np.full(len(rows), 1 / len(rows))), limit_sets]

        def divergence(row: Array, limit: Array) -> Array:
            """KL by quadrature, from a mean of rows and the limit's density (…,
            points).
            """
            density = limit + row if coupled else row
            terms = kl_terms(density, limit, log_limit)
            return np.asarray(np.sum(WEIGHTS * terms, axis=-1))

        return jackknife(divergence, groups).corrected()


@dataclass(frozen=True)
class Agreement:
    """How far the limit's density is from the engine's at infinite width.

    `deviation` is the largest one in standard errors, `allowed` its threshold.
    """

    deviation: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether the two are one law, as far as these draws can tell."""
        return self.deviation < self.allowed


AGREEMENT_LEVEL = 1e-6  # the probability that draws of the same law do not agree
# In standard deviations of the limit: how far densities are compared, where |y| is cut
# off in moments, and the ends of the intervals around 0.
COMPARED = 6
CUT_OFF = 4.0
INTERVAL_ENDS = np.linspace(0.2, 3.0, 15)
INTEGRAL_RTOL = 1e-9  # rounding, and the error of integrals by the points of GRID


def agreement(limit: Law, blocks: Array) -> Agreement:
    """Compare the density of a limit with `blocks` (blocks, points) of draws of it.

    A test of level AGREEMENT_LEVEL on the probabilities of intervals around 0 and the
    second and fourth moment. In the moments |y| is cut off at CUT_OFF standard
    deviations, beyond which they are mostly noise.
    """
    scale = limit.std()
    near = np.abs(GRID) < COMPARED * scale  # beyond, too little of the density is left
    y = GRID[near]
    value, error = limit.with_error.pdf(y)
    cut_off = np.minimum(np.abs(y) / scale, CUT_OFF)
    intervals = [np.abs(y) < end * scale for end in INTERVAL_ENDS]
    # each test is the integral of a function against the density: (tests, points)
    tests = np.stack([*intervals, cut_off**2, cut_off**4]) * WEIGHTS[near]

    observed = blocks[:, near] @ tests.T  # (blocks, tests)
    expected = tests @ value  # (tests,)
    gap = np.abs(observed.mean(axis=0) - expected)
    spread = observed.std(axis=0, ddof=1) / math.sqrt(len(observed))
    limit_error = np.abs(tests) @ error
    rounding = INTEGRAL_RTOL * (np.abs(tests) @ value)
    noise = np.sqrt(spread**2 + limit_error**2 + rounding**2)

    level = AGREEMENT_LEVEL / (2 * len(tests))  # two-sided, shared by all tests
    freedom = max(len(blocks) - 1, 1)
    allowed = float(scipy.special.stdtrit(freedom, 1 - level))
    return Agreement(float(np.max(gap / noise)), allowed)


def _coupled(case: Case) -> bool:
    """Whether widths of a case are coupled with its limit, if that passes its test."""
    return not case.score and case.heads <= COUPLED
