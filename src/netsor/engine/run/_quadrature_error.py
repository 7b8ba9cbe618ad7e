"""The effect of errors of Gaussian expectations on a law.

Every expectation has an error estimate. A program is planned again with every
expectation shifted by its error, and both plans run on the same random numbers: the
outputs move by about their errors. Where quasi-random nodes replace expectations, plans
with fewer and more nodes show the bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..._array_api import Bools, Floats, one_blas_thread
from ..backends import Backend
from ..backends._numpy import NUMPY, Streams
from ..backends._numpy import block as numpy_block
from ..plan._expectation_ops import remembering_expectations
from ..plan._ir import Register
from ..plan._plan import QUADRATURE_PROBE_REPLICAS, Plan
from ..plan._plan_query import PlanQuery

# error of the outputs, relative to their spread, that makes a law meaningless
UNKNOWN = 1.0
ROUNDING_RTOL = 1e-13  # the same, from rounding errors
FEW = 2  # replicas that show whether there is any effect
# effect in these, relative to the spread of an output, below which no more replicas are
# tried
NONE = 1e-6
SMALL = 0.05  # largest draw of an output that may be 0, relative to its terms
ZERO_MEAN = 5.0  # standard errors: bound on the mean of an output that is 0
NODE_REPLICAS = 128  # replicas to compare an output with fewer nodes and with more
# The least ratio of the median size of a 0 with a quarter of the nodes to that with
# four times as many: errors of order NODES^(−1/2) to NODES^(−1) give 4 to 16. Nonzero
# outputs give 1, or up to 3 if they are below 1.4 errors.
NODE_GROWTH = 3.0
MOST_BIAS_SETS = 256  # of a quarter of the nodes, to measure a bias
# standard errors from which a change with the number of nodes counts as a bias
BIAS_SHOWS = 2.0
COVARIANCE_BYTES = 2**24  # of rows of covariances compared at a time


@one_blas_thread()
def sample_block(
    plan: Plan, seed: int, replicas: int, backend: Backend = NUMPY
) -> tuple[Floats, Floats]:
    """The law of the outputs given the random numbers of each replica.

    In a replica the outputs are the means (replicas, entries) plus the coefficients
    (replicas, entries, ·) times independent standard normals. Both are in double
    precision, computed on an accelerator, or else by numpy.
    """
    # for so few replicas, compiling a plan takes longer than numpy's run of it
    if backend.kind == "cpu" or backend.compiles:
        # all replicas are one chunk, the one with the key 0
        streams = Streams(seed, chunks=0)
        mean, columns = numpy_block(plan, streams, replicas)
    else:
        mean, columns = _blocks_on_device(plan, seed, replicas, backend)
    # an array that is the same in all replicas is computed once
    mean = np.broadcast_to(mean, (replicas, *mean.shape[1:]))
    columns = np.broadcast_to(columns, (replicas, *columns.shape[1:]))
    return mean, columns


def _blocks_on_device(
    plan: Plan, seed: int, replicas: int, backend: Backend
) -> tuple[Floats, Floats]:
    """Means and coefficients in double precision, from blocks that fit on a device."""
    backend = replace(backend, precision="float64", rounded=False)
    # a small block has the same random numbers for every plan
    size = backend.replicas_that_fit(plan, min(replicas, 16))
    all_means = []
    all_columns = []
    for mean, columns in backend.sample(
        plan, seed, range(replicas), size, lambda count: None
    ):
        all_means.append(backend.numpy(mean))
        all_columns.append(backend.numpy(columns))
    return np.concatenate(all_means), np.concatenate(all_columns)


@dataclass(frozen=True)
class Moves:
    """The moves of the outputs in a few replicas if every expectation is shifted by its
    error.

    There are two moves: all expectations are shifted upward, or with mixed signs.
    """

    mean: Floats  # (moves, replicas, entries): of the conditional means
    # (replicas, entries): the spread of each output, or its size if it is not random
    scale: Floats
    # (moves,): largest move of a conditional covariance, relative to the spreads
    cov: Floats

    @property
    def relative(self) -> float:
        """The largest error of an output, relative to its spread."""
        relative_mean = np.max(np.abs(self.mean) / self.scale, axis=(1, 2))
        error = float(np.max(np.maximum(relative_mean, self.cov)))
        if np.isnan(error):  # a function is not defined there
            return np.inf
        return error if error > ROUNDING_RTOL else 0.0

    @property
    def signed(self) -> Floats:
        """The moves of the means over replicas, (moves, entries).

        They are scaled so that the error is about their root mean square.
        """
        return np.asarray(2**0.5 * self.mean.mean(axis=1))

    @property
    def each(self) -> Floats:
        """The absolute error of the mean of every output over replicas, (entries,)."""
        error: Floats = np.max(np.abs(self.mean).mean(axis=1), axis=0)
        return np.where(error > ROUNDING_RTOL * self.scale.mean(axis=0), error, 0.0)


def checked_quadrature_error(moves: Moves | None) -> float:
    """The error of a law from Gaussian expectations, relative to its spread.

    It is 0 without expectations (None); an exception is raised if it is too large.
    """
    error = 0.0 if moves is None else moves.relative
    if error > UNKNOWN:
        raise ValueError(
            "Gaussian expectations are too inexact for this law at width inf: their"
            f" errors change an output by {error:.1g} of its spread. The law depends on"
            " a small difference of large vectors, or on a function that is hard to"
            " integrate; take a finite width, where vectors have coordinates, or a"
            " larger difference"
        )
    return error


def moves_of_draws(query: PlanQuery, backend: Backend) -> Moves | None:
    """`moves`, from only FEW replicas if these show almost no effect.

    So a few draws stay cheap.
    """
    from_few = moves(query, FEW, backend)
    if from_few is None or from_few.relative < NONE:
        return from_few
    return moves(query, backend=backend)


# every shift needs its own plan, and a program is often sampled more than once
@lru_cache(maxsize=4)
def moves(
    query: PlanQuery,
    replicas: int = QUADRATURE_PROBE_REPLICAS,
    backend: Backend = NUMPY,
) -> Moves | None:
    """How the outputs move if every Gaussian expectation is shifted by its error.

    The same replicas are sampled from the plan and from its two shifted plans. None if
    there are no such expectations, or a number is not finite.
    """
    plan = query.plan()
    if not plan.expects:
        return None
    if plan.constant:
        replicas = 1  # all are equal
    with one_blas_thread(), remembering_expectations():
        mean, columns = sample_block(plan, seed=0, replicas=replicas, backend=backend)
        if not (np.isfinite(mean).all() and np.isfinite(columns).all()):
            return None  # reported when the law is made
        variance = np.square(columns).sum(axis=-1)
        variance = np.where(variance > 0, variance, mean.var(axis=0))
        scale = relative_scale(mean, variance)
        relative_columns = columns / scale[..., None]
        mean_moves = []
        cov_moves = []
        for shift in (1, 2):
            shifted_plan = query.plan(shift)
            shifted_mean, shifted_columns = sample_block(
                shifted_plan, seed=0, replicas=replicas, backend=backend
            )
            shifted_relative = shifted_columns / scale[..., None]
            mean_moves.append(shifted_mean - mean)
            cov_moves.append(_largest_change(relative_columns, shifted_relative))
        # perhaps a limit of 0, where terms cancel
        if np.max(np.abs(mean_moves) / scale, initial=0.0) > UNKNOWN:
            scale = np.maximum(scale, ROUNDING_RTOL * _largest_term(plan, replicas))
    return Moves(mean=np.array(mean_moves), scale=scale, cov=np.array(cov_moves))


def _largest_term(plan: Plan, replicas: int) -> float:
    """The size of the largest term of the last sums that make the means of outputs.

    It sets the size of their rounding errors. The search goes back from the means
    through steps that only rearrange entries, to sums and functions.
    """
    step_of = {step.out: step for step in plan.steps}
    terms: dict[Register, None] = {}
    pending = [plan.mean]
    while pending:
        step = step_of.get(pending.pop())
        if step is None:
            continue
        if step.kind in ("add", "apply"):
            terms |= dict.fromkeys(step.args)
        elif step.instruction.keeps_entries:
            pending += step.args
    largest = 0.0
    for term in terms:
        values, _ = sample_block(replace(plan, mean=term), seed=0, replicas=replicas)
        largest = max(largest, float(np.max(np.abs(values), initial=0.0)))
    return largest


# The number of the plan with other nodes, for `PlanQuery.plan`: a quarter of them, and
# four times as many
SHIFT_TO_FEWER_NODES, SHIFT_TO_MORE_NODES = 3, 5


def _means(plan: Plan, seed: int = 0) -> Floats:
    """The means of a few replicas, (replicas, entries)."""
    means, _ = sample_block(plan, seed, QUADRATURE_PROBE_REPLICAS)
    return means


def node_bias(query: PlanQuery) -> Floats:
    """The bias of each output's mean from the finite number of nodes, (entries,).

    It is estimated from the difference with a quarter of the nodes. Errors of single
    expectations average out over replicas, but their squares do not: the square of a
    zero is of order NODES^−2.
    """
    plan = query.plan()
    if not plan.nodes:
        return np.zeros(plan.mean.shape)
    mean = _means(plan).mean(axis=0)
    mean_of_fewer = _means(query.plan(SHIFT_TO_FEWER_NODES)).mean(axis=0)
    # with a quarter of the nodes a bias of this order is 16 times as large, so that it
    # is a 15th of the difference; twice that covers a bias of 0
    return np.asarray(2 * np.abs(mean_of_fewer - mean) / 15)


def bias_beside(query: PlanQuery, means: Floats) -> Floats:
    """The bias of each output's mean from the number of nodes, (entries,).

    `means` (sets, entries) are means over different sets of nodes. The bias is 0 where
    none shows beside their noise. A function of a mean over nodes, such as its square,
    has errors of one sign, which no number of sets reduces.
    """
    # with a quarter of the nodes, half as many sets
    sets = int(np.clip(len(means) // 2, QUADRATURE_PROBE_REPLICAS, MOST_BIAS_SETS))
    plan = query.plan(SHIFT_TO_FEWER_NODES)
    samples = math.ceil(sets / QUADRATURE_PROBE_REPLICAS)
    means_of_fewer = np.concatenate([_means(plan, seed) for seed in range(samples)])

    difference = np.abs(means_of_fewer.mean(axis=0) - means.mean(axis=0))
    noise = np.hypot(_standard_error(means_of_fewer), _standard_error(means))
    shows_bias = difference > BIAS_SHOWS * noise
    # a bias that falls like 1/nodes or faster is at most a third of its change from a
    # quarter of the nodes to all
    return np.where(shows_bias, difference / 3, 0.0)


def _standard_error(samples: Floats) -> Floats:
    """The standard errors of means over the rows of samples, (entries,)."""
    return np.asarray(samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))


def bias_of_replicas(query: PlanQuery) -> Floats | None:
    """`bias_beside` for outputs that depend on other random numbers, from a few
    replicas.

    None if the plan has no nodes.
    """
    plan = query.plan()
    if not plan.nodes:
        return None
    with one_blas_thread():
        # replicas that agree in all but their nodes
        means = _means(plan)
        means_of_fewer = _means(query.plan(SHIFT_TO_FEWER_NODES))
    change = means_of_fewer - means
    noise = change.std(axis=0, ddof=1) / np.sqrt(len(change))
    difference = np.abs(change.mean(axis=0))
    return np.where(difference > BIAS_SHOWS * noise, difference / 3, 0.0)


def node_zeros(query: PlanQuery, means: Floats, covs: Floats) -> Bools:
    """Which outputs are 0 up to errors of nodes, (entries,).

    `means` (draws, entries) and `covs` (draws, entries, entries) are conditional. Terms
    may cancel although the structure does not show it: ⟨∂f/∂x, x⟩ = 0 if f does not
    depend on |x|.
    """
    plan = query.plan()
    size = np.abs(means).max(axis=0)
    has_variance = np.diagonal(covs, axis1=1, axis2=2).any(axis=0)
    error = means.std(axis=0) / np.sqrt(len(means))
    is_zero: Bools = ~has_variance & (size > 0)
    is_zero &= np.abs(means.mean(axis=0)) < ZERO_MEAN * error
    if not (plan.nodes and is_zero.any()):
        return np.zeros_like(is_zero)
    with one_blas_thread():
        is_zero &= size < SMALL * _largest_term(plan, FEW)
        if is_zero.any():
            with_fewer = _median_size(query.plan(SHIFT_TO_FEWER_NODES))
            with_more = _median_size(query.plan(SHIFT_TO_MORE_NODES))
            is_zero &= with_fewer > NODE_GROWTH * with_more
    return is_zero


def _median_size(plan: Plan) -> Floats:
    """The median size of each output over replicas."""
    means, _ = sample_block(plan, seed=0, replicas=NODE_REPLICAS)
    return np.asarray(np.median(np.abs(means), axis=0))


def relative_scale(mean: Floats, variance: Floats) -> Floats:
    """The scale for relative errors of outputs: their spread.

    Without randomness it is the size of the output or, if that is 0, a thousandth of
    the largest one. The arguments and the result have one shape.
    """
    spread = np.sqrt(variance)
    size = np.abs(mean)
    largest = (spread + size).max() or 1.0
    is_random = spread > 1e-9 * largest
    return np.where(is_random, spread, np.maximum(size, 1e-3 * largest))


def _largest_change(columns: Floats, shifted_columns: Floats) -> float:
    """The largest difference of covariances from coefficients (replicas, entries, ·).

    A few rows are computed at a time, because all rows may not fit in memory.
    """
    replicas, entries, _ = columns.shape
    if not (columns.any() or shifted_columns.any()):
        return 0.0
    rows_per_batch = max(1, COVARIANCE_BYTES // (8 * replicas * entries))
    largest = 0.0
    for start in range(0, entries, rows_per_batch):
        rows = slice(start, start + rows_per_batch)
        cov = columns[:, rows] @ np.swapaxes(columns, 1, 2)
        shifted = shifted_columns[:, rows] @ np.swapaxes(shifted_columns, 1, 2)
        largest = max(largest, float(np.abs(shifted - cov).max()))
    return largest
