"""A plan as a function of given standard normals.

χ are functions of normals (see `backends._chi`), so a replica is a function of one row
z of independent normals. Given z, the outputs are N(mean(z), cov(z)), which is all that
Markov chains over z need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._array_api import Floats, Ints, one_blas_thread
from .._validate import ArgumentError, whole
from ..engine.backends import Backend, Device, Numpy
from ..engine.backends._base import DEVICE_BLOCK_BYTES
from ..engine.backends._chi import chi
from ..engine.backends._numpy import _laid_out
from ..engine.plan._ir import Step
from ..engine.plan._plan import BLOCK_BYTES, Plan, in_numpy, run
from ..engine.run._rng_keys import CHUNK
from ..runtime._executors import thread_pool
from ..runtime._parallel import cores


class Latent:
    """A plan as a function of standard normals.

    Each row of normals (replicas, size) gives the mean and the covariance of the
    outputs of one replica. `positions` are the columns of each random step.
    """

    def __init__(
        self, plan: Plan, workers: int | None = None, backend: Backend | None = None
    ) -> None:
        """`workers` threads compute on a CPU; by default one for each core."""
        self.plan = plan
        self.backend = backend or Numpy()
        if self.backend.precision != "float64":
            raise ArgumentError(
                "precision",
                self.backend.precision,
                "'float64': chains need double precision",
            )
        self.workers = cores() if workers is None else whole(workers, "workers")
        self.positions: dict[Step, slice] = {}
        self.size = 0  # normals of a replica
        for step in self.plan.steps:
            if step.kind in ("normals", "chi"):
                end = self.size + math.prod(self.shape(step))
                self.positions[step] = slice(self.size, end)
                self.size = end

    @property
    def entries(self) -> int:
        """The number of outputs."""
        return self.plan.mean.size

    @property
    def block(self) -> int:
        """The replicas computed at a time; depends only on the plan."""
        bytes_of_replica = max(self.plan.bytes + 8 * self.entries**2, 1)
        return max(1, min(CHUNK, BLOCK_BYTES // bytes_of_replica))

    def shape(self, step: Step) -> tuple[int, ...]:
        """The shape of the normals behind a random step, in one replica.

        Variables χ of shape (…, k) are functions of normals (…, normals of k of them).
        """
        if step.kind == "normals":
            return step.out.shape
        normals = chi(step.params["freedom"], "float64").normals
        return *step.out.shape[:-1], normals

    def given(self, z: Floats) -> tuple[Floats, Floats]:
        """Mean and coefficients C of the outputs given normals.

        The shapes are (replicas, entries) and (replicas, entries, ·); C C^T is the
        covariance.
        """
        mean, columns = run(
            self.plan,
            draw=lambda step: self._drawn(step, z),
            constant=lambda register: register.value,
            compute=in_numpy,
        )
        if not (np.isfinite(mean).all() and np.isfinite(columns).all()):
            raise ValueError(
                "the law is not finite: a function of the program gave NaN or infinity,"
                " or it overflowed"
            )
        # what does not depend on z has one replica
        mean = np.broadcast_to(mean, (len(z), self.entries))
        columns = np.broadcast_to(columns, (len(z), *columns.shape[1:]))
        return mean, columns

    def over(self, z: Floats, function: Callable[[Floats, Floats], Any]) -> list[Any]:
        """`function(mean, columns)` for each block of replicas, in threads.

        Only the blocks in flight are in memory.
        """
        blocks = _blocks(z, self.block)

        def of_block(block: Floats) -> Any:
            """The function of the replicas with these normals."""
            mean, columns = self.given(block)
            return function(mean, columns)

        with one_blas_thread():
            if self.workers == 1 or len(blocks) == 1:
                return [of_block(block) for block in blocks]
            with thread_pool(min(self.workers, len(blocks))) as pool:
                return list(pool.map(of_block, blocks))

    def on_device(
        self, function: Callable[[Any, Any, Any], Any]
    ) -> Callable[[Floats], Floats]:
        """The function of normals that evaluates `function(library, mean, columns)`.

        It runs on the device, block by block; `mean` and `columns` are as in `given`.
        """
        assert isinstance(self.backend, Device)
        # a likelihood holds four matrices of the size of the covariance, in double
        # precision: the noise, the covariance, its root, and one while it is computed
        bytes_of_matrices = 4 * 8 * self.entries**2
        bytes_of_replica = max(self.plan.bytes + bytes_of_matrices, 1)
        budget = DEVICE_BLOCK_BYTES[self.backend.kind] // bytes_of_replica
        replicas = self.backend.replicas_that_fit(self.plan, max(1, min(CHUNK, budget)))
        of_draws = self.backend.summary_of_draws(self.plan, function)

        def of_normals(z: Floats) -> Floats:
            """The function of normals z, one block of replicas after the other."""
            results = []
            for block in _blocks(z, replicas):
                draws = {step.out: self._drawn(step, block) for step in self.positions}
                results.append(of_draws(draws))
            return np.concatenate(results)

        return of_normals

    def _drawn(self, step: Step, z: Floats) -> Any:
        """The random numbers of a step, made from its normals."""
        normals = z[:, self.positions[step]]
        drawn: Any = normals.reshape(len(z), *self.shape(step))
        if step.kind == "chi":
            drawn = chi(step.params["freedom"], "float64").of(np, drawn)
        drawn = _laid_out(drawn)
        # a step may overwrite dead arrays, but z belongs to the caller
        drawn.flags.writeable = False
        return drawn


def _blocks(z: Floats, replicas: int) -> list[Floats]:
    """Consecutive rows of z, so many at a time; the last block may have fewer."""
    return [z[k : k + replicas] for k in range(0, len(z), replicas)]


def matched(small: Latent, large: Latent) -> Ints | None:
    """The positions of the normals of one plan among those of another, (small.size,).

    They are normals of steps with the same key. The result is None if the other plan
    does not have them all. A draw of the other plan may be larger: its first entries
    along every axis match the smaller one. For example, a (2, 2) draw of `small` has
    the positions 4, 5, 7 and 8 in `large` if that draw is (2, 3), at 4, …, 9.
    """
    step_of_key = {(step.kind, step.params["key"]): step for step in large.positions}
    all_positions = np.arange(large.size)
    matches = [np.zeros(0, dtype=np.intp)]
    for step in small.positions:
        shape = small.shape(step)
        large_step = step_of_key.get((step.kind, step.params["key"]))
        if large_step is None:
            return None
        large_shape = large.shape(large_step)
        if len(large_shape) != len(shape):
            return None
        of_large_step = all_positions[large.positions[large_step]].reshape(large_shape)
        first_entries = tuple([slice(length) for length in shape])
        positions = of_large_step[first_entries]
        if positions.shape != shape:  # the other draw is smaller
            return None
        matches.append(positions.ravel())
    return np.concatenate(matches)


# Rounding errors of equal functions are far below this relative difference, differences
# of others far above.
SAME_RTOL = 1e-7


def embedding(small: Latent, large: Latent) -> Ints | None:
    """The positions of a plan's normals in those of a plan with more outputs.

    They are those of `matched`, (small.size,). The result is None if the outputs of the
    first plan are not the first ones of the second, as functions of the normals.
    """
    positions = matched(small, large)
    if positions is None:
        return None
    # Random normals test whether these outputs are the same functions of them.
    z = np.random.default_rng(0).standard_normal((2, large.size))
    with one_blas_thread():
        mean, columns = small.given(z[:, positions])
        all_means, all_columns = large.given(z)
    first_outputs = slice(small.entries)
    mean_in_large = all_means[:, first_outputs]
    columns_in_large = all_columns[:, first_outputs]
    cov = columns @ np.swapaxes(columns, 1, 2)
    cov_in_large = columns_in_large @ np.swapaxes(columns_in_large, 1, 2)

    largest_variance = np.diagonal(cov, axis1=1, axis2=2).max()
    std = np.sqrt(largest_variance)
    same_mean = np.abs(mean_in_large - mean).max() < SAME_RTOL * std
    same_cov = np.abs(cov_in_large - cov).max() < SAME_RTOL * std**2
    return positions if same_mean and same_cov else None
