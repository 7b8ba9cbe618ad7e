"""Gaussian expectations as instructions of a plan: the Gram matrices of nonlinearities
at infinite width.

An infinitely wide vector is a row of coordinates along orthonormal directions: its
entries are i.i.d. copies of a Gaussian variable, and inner products of rows are
covariances. If there are means, the first direction is (1, …, 1), and the first
coordinate is the mean.

A `shift` measures the effect of errors: 1 shifts all expectations up by their errors, 2
with alternating signs in a chessboard pattern (a Gram matrix stays positive), and 3 to
5 use other quasi-random nodes, a quarter as many, or four times as many.

Only numpy computes them, except kernels with a closed form: see `kernel_needs_numpy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
import scipy

from ..._array_api import Array
from ..._sobol import Sobol
from ...functions.activations import Function
from ...language.theorem._check_function import content
from .._exceptions import InfiniteError
from ._ops import gram, is_numpy, squares
from ._register import Register

# quasi-random points that replace the coordinates of an infinitely wide vector
COORDINATE_NODES = 2**12
COORDINATE_NODES_OF_SHIFT = {
    3: COORDINATE_NODES // 4,
    4: COORDINATE_NODES // 4,
    5: COORDINATE_NODES * 4,
}
DIMENSIONS = 16  # of a Sobol set, one per source; more sources use more sets


_memory: ContextVar[dict[Any, tuple[Array, ...]] | None] = ContextVar(
    "memory", default=None
)


@contextmanager
def remembering_expectations() -> Iterator[None]:
    """Compute equal expectations of functions of several vectors once.

    Shifted plans ask for those of their first layers again.
    """
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


def _remembered(
    compute: Callable[..., tuple[Array, ...]], *arguments: Any
) -> tuple[Array, ...]:
    """The result of `compute`, from memory if it had equal arguments before."""
    memory = _memory.get()
    if memory is None:
        return compute(*arguments)
    key = compute.__name__, _key(arguments)
    if key not in memory:
        memory[key] = compute(*arguments)
    return memory[key]


def _key(argument: Any) -> Any:
    """A key that is equal for arguments with the same functions and numbers."""
    if isinstance(argument, tuple):
        return tuple(map(_key, argument))
    return content(argument)


def kernel_needs_numpy(args: Sequence[Register], params: Mapping[str, Any]) -> bool:
    """Whether `kernel` needs a series, a table or quadrature, which only numpy has.

    Other libraries compute kernels of functions of one vector each, without means and
    parameters, for which a formula is known.
    """
    from .. import expect  # slow to import, and finite widths do not need it

    u, v, *function_params = args
    have_one_argument = u.shape[-2] == v.shape[-2] == 1
    if not have_one_argument or params["constant"] or function_params:
        return True
    return not expect.has_closed_form(params["f"], params["g"])


def _mean_and_deviation(u: Array, constant: bool) -> tuple[Array, Array]:
    """Split arguments (…, i, r, directions) into their means (…, i, r) and the rest.

    If `constant`, the first direction is (1, …, 1); otherwise the means are 0.
    """
    if constant:
        return u[..., 0], u[..., 1:]
    return np.zeros(u.shape[:-1]), u


def kernel(
    xp: Any,
    u: Array,
    v: Array,
    *params: Array,
    f: Function,
    g: Function,
    params_of_f: int,
    constant: bool,
    shift: int,
) -> Array:
    """E[f(u_i) g(v_j)] for all pairs of rows, (…, i, j).

    Each row has the r arguments of a function: u is (…, i, r, directions), and v is
    (…, j, s, directions), in coordinates along orthonormal directions; see
    `_mean_and_deviation` for `constant`. The first `params_of_f` of the `params` are
    further arguments of f, and the others are those of g.
    """
    from .. import expect  # as above

    if not is_numpy(xp):
        return _closed_form(xp, u, v, f, g)  # exact, so a shift does not change it
    f_params = params[:params_of_f]
    g_params = params[params_of_f:]
    is_symmetric = u is v and f is g
    if is_symmetric:  # f and g have equally many params
        is_symmetric = all(p is q for p, q in zip(f_params, g_params, strict=True))
    mu, a = _mean_and_deviation(u, constant)
    x = expect.BatchedFunction(f, mu, f_params)
    if is_symmetric:  # the same object twice, so that only half of it is computed
        y = x
        b = a
    else:
        nu, b = _mean_and_deviation(v, constant)
        y = expect.BatchedFunction(g, nu, g_params)
    if a.shape[-2] == b.shape[-2] == 1:
        xx = a @ np.swapaxes(a, -1, -2)
        yy = xx if is_symmetric else b @ np.swapaxes(b, -1, -2)
        covariances = a[..., 0, :] @ np.swapaxes(b[..., 0, :], -1, -2)
        xy = covariances[..., None, None]
        value, error = expect.kernel(x, y, xx, xy, yy)
    else:
        value, error = _remembered(expect.kernel_of_several, x, y, a, b)
    _check_error_is_finite(value, error, functions=(f, g), a=a)
    return _shifted(value, error, shift)


def _closed_form(xp: Any, u: Array, v: Array, f: Function, g: Function) -> Array:
    """`kernel` by a formula, for rows u (…, i, 1, directions), v (…, j, 1, directions).

    It must exist: see `kernel_needs_numpy`.
    """
    from .. import expect

    x = u[..., 0, :]  # (…, i, directions)
    y = v[..., 0, :]  # (…, j, directions)
    variances_of_x = squares(xp, x)[..., :, None]
    variances_of_y = squares(xp, y)[..., None, :]
    exact = expect.closed_form(
        f, g, mu=0.0, nu=0.0, a=variances_of_x, c=gram(xp, x, y), b=variances_of_y
    )
    if exact is None:
        raise TypeError(f"no formula for E[{f.name}(u) {g.name}(v)]: numpy only")
    return exact


def moments(
    xp: Any, u: Array, *params: Array, f: Function, constant: bool, shift: int
) -> Array:
    """The mean E[f(u_i)], and the coefficients of the regression of f(u_i) on u_i.

    Each row u_i has the r arguments of f: u is (…, i, r, directions). The result is
    (…, i, 1 + r), the mean first.
    """
    from .. import expect  # as above

    mu, a = _mean_and_deviation(u, constant)
    x = expect.BatchedFunction(f, mu, params)
    if a.shape[-2] == 1:
        mean, slope, error = expect.moments(x, a @ np.swapaxes(a, -1, -2))
    else:
        mean, slope, error = _remembered(expect.moments_of_several, x, a)
    _check_error_is_finite(mean, error, functions=(f,), a=a)
    mean_and_slope = np.concatenate([mean[..., None], slope], axis=-1)
    errors = _errors_of_moments(error, a)
    # the chessboard pattern is for Gram matrices
    is_shifted = shift in (1, 2)
    return _shifted(mean_and_slope, errors, shift=1 if is_shifted else 0)


def _errors_of_moments(error: Array, a: Array) -> Array:
    """The errors of the mean and of β, (…, i, 1 + r), from those of the mean and β u.

    `error` (…, i) is the common error of the mean and of each β u. That of β is this
    error divided by the standard deviation of u; a (…, i, r, directions) has the
    coordinates of u without its mean.
    """
    std = np.linalg.norm(a, axis=-1)  # (…, i, r)
    safe_std = np.where(std > 0, std, 1.0)
    slope_factor = np.where(std > 0, 1.0 / safe_std, 0.0)
    *rows, _ = std.shape
    mean_factor = np.ones((*rows, 1))
    factors = np.concatenate([mean_factor, slope_factor], axis=-1)
    common_error = np.asarray(error)[..., None]
    return np.asarray(common_error * factors)


def _check_error_is_finite(
    value: Array, error: Array, functions: tuple[Function, ...], a: Array
) -> None:
    """Raise an error if the error of an expectation is infinite.

    NaN values pass: the sampler reports them. `a` has the coordinates of the arguments,
    whose norms are the standard deviations in the message.
    """
    is_infinite = np.isinf(error) & ~np.isnan(value)
    if not is_infinite.any():
        return
    names = " and ".join(dict.fromkeys(f.name for f in functions))
    std = np.max(np.linalg.norm(a, axis=-1), initial=0.0)
    raise InfiniteError(
        f"the second moment of {names} looks infinite, or {names} varies faster than"
        " can be resolved, for a Gaussian argument of standard deviation up to"
        f" {std:.4g}: bound the function, or take a smaller standard deviation"
    )


def _shifted(value: Array, error: Array, shift: int) -> Array:
    """Expectations (…, i, j) moved by their errors, as the shift of the plan says."""
    if shift == 1:
        return value + error
    if shift == 2:
        i, j = np.indices(value.shape[-2:])
        chessboard = 1 - 2 * ((i + j) % 2)  # 1 and −1
        return value + chessboard * error
    return value


# Nodes replace the coordinates of an infinitely wide vector if a nonlinearity acts on
# combinations of outputs of other nonlinearities. Every replica has its own nodes, so
# their errors are independent and part of the standard errors.


@cache
def _sobol_set(number: int, count: int) -> Array:
    """Points (DIMENSIONS, count) of a scrambled Sobol set in [0, 1).

    All sets but set 0 are in random order: sets are then independent of each other.
    """
    rng = np.random.default_rng([20190910, number])
    points = Sobol(DIMENSIONS, rng).random(count)
    if number > 0:
        points = rng.permutation(points)
    return points.T


def nodes(
    xp: Any, shifts: Array, *earlier: Array, first: int, count: int = COORDINATE_NODES
) -> Array:
    """Values of independent N(0, 1) variables at `count` nodes, over √count.

    The variables are the sources from number `first` on, whose normals (…, sources) are
    `shifts`. The result is (…, sources, count). Its rows are orthonormal, also to the
    rows `earlier` of other sources and to (1, …, 1), so inner products of Gaussian
    vectors are exact.
    """
    # Points of Sobol sets are shifted modulo 1 by the uniform Φ(shifts), mapped to
    # normals, and joined by their mirror images.
    points = _points_of_sources(first, stop=first + shifts.shape[-1], count=count // 2)
    uniform = np.asarray(scipy.special.ndtr(shifts))[..., None]
    shifted = (points + uniform) % 1.0
    inside = np.clip(shifted, 1e-12, 1 - 1e-12)  # finite normals
    half = scipy.special.ndtri(inside) / np.sqrt(count)
    half -= half.mean(axis=-1, keepdims=True)

    # Gram–Schmidt, twice for round-off; with mirror images, half the points determine
    # all inner products
    for _ in range(2):
        for rows in earlier:
            half_row = rows[..., : count // 2]
            coefficients = 2 * (half @ np.swapaxes(half_row, -1, -2))
            half -= coefficients @ half_row
    gram = 2 * half @ np.swapaxes(half, -1, -2)
    lower = np.linalg.cholesky(gram)
    half = np.linalg.solve(lower, half)
    return np.concatenate([half, -half], axis=-1)


def _points_of_sources(first: int, stop: int, count: int) -> Array:
    """Sobol points in [0, 1) for the sources `first` … `stop` − 1, (sources, count).

    Source k is dimension k modulo DIMENSIONS of set k // DIMENSIONS.
    """
    first_set = first // DIMENSIONS
    last_set = (stop - 1) // DIMENSIONS
    sets = [_sobol_set(number, count) for number in range(first_set, last_set + 1)]
    points = np.concatenate(sets)
    source_of_first_row = first_set * DIMENSIONS
    return points[first - source_of_first_row : stop - source_of_first_row]
