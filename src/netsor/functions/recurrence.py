"""Functions of scalars that turn a linear recurrence over tokens into coefficients.

A recurrent layer computes y_t = Σ_{s ≤ t} c_ts v_s, and its coefficients c are products
of three things: scores, `decays` of the state between two tokens, and, for the delta
rule, the inverse of a triangular matrix.
"""

from __future__ import annotations

from .._array_api import Array, array_namespace
from .activations import SIGMOID, Function


def _softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    xp = array_namespace(x)
    # max(x, 0) + log(1 + e^(−|x|)): this exponential does not overflow
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


SOFTPLUS = Function(
    "softplus", _softplus, bounded=False, lipschitz=True, derivative=SIGMOID
)


def decays(u: Array) -> Array:
    """D_ts = exp(−Σ_{s < r ≤ t} u_r) for s ≤ t, and 0 for s > t; (…, T) to (…, T, T).

    A negative u_r counts as 0, so that the function is bounded and Lipschitz on all
    arguments. Every sum has its own terms, all of one sign: a difference of sums up to
    t and up to s would lose the digits of small terms after large ones.
    """
    xp = array_namespace(u)
    tokens = u.shape[-1]
    ones = xp.ones((tokens, tokens), dtype=u.dtype, device=u.device)
    after = xp.tril(ones, k=-1)  # 1 in row r and column s if s < r
    terms = xp.maximum(u, 0.0)[..., :, None] * after
    return xp.exp(-_running_sum(terms)) * xp.tril(ones)


def _running_sum(rows: Array) -> Array:
    """The sums of all rows up to and including each, along the axis before the last."""
    xp = array_namespace(rows)
    if hasattr(xp, "cumulative_sum"):
        return xp.cumulative_sum(rows, axis=-2)
    return xp.cumsum(rows, axis=-2)


DECAYS = Function("decays", decays, bounded=True, lipschitz=True)


def unit_lower_inverse(a: Array) -> Array:
    """(I + L)^(−1), with L the part of a below the diagonal.

    It is computed by halves, [[A, 0], [B, C]]^(−1) = [[A', 0], [−C' B A', C']], which
    is forward substitution in matrix products. Its entries are polynomials of those of
    L.
    """
    xp = array_namespace(a)
    size = a.shape[-1]
    if size == 1:
        return xp.ones_like(a)
    half = size // 2
    upper_left = unit_lower_inverse(a[..., :half, :half])  # A'
    lower_right = unit_lower_inverse(a[..., half:, half:])  # C'
    lower_left = -(lower_right @ (a[..., half:, :half] @ upper_left))
    upper_right = xp.zeros_like(a[..., :half, half:])
    upper = xp.concat([upper_left, upper_right], axis=-1)
    lower = xp.concat([lower_left, lower_right], axis=-1)
    return xp.concat([upper, lower], axis=-2)


UNIT_LOWER_INVERSE = Function(
    "unit_lower_inverse", unit_lower_inverse, bounded=False, lipschitz=True
)
