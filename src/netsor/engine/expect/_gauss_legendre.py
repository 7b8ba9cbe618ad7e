"""Adaptive Gauss–Legendre integration: panels are halved until the integrand is a
polynomial on each panel.

The test is that the last Legendre coefficients of its values are negligible. The
unresolved part is the error. It integrates many functions at once, weighted by a
density; the cells of one law are integrated by `integrated` in `laws/_numerics.py`,
whose test is that a cell agrees with its halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from ..._array_api import Array

NODE_COUNT = 16  # the Gauss–Legendre nodes of a panel
HALVINGS = 48  # maximum: then the length of a panel is the round-off of its edges
# unresolved part relative to the largest value on a panel, above which `rough` includes
# it
ROUGH = 1e-6
# half length relative to 1 + |x|: on shorter panels the largest finite value replaces
# an infinite one
SHORT = 1e-12
# double precision: a panel of this length relative to its left end holds a few numbers
LEAST_PANEL = 1e-15
# half length relative to 1 + |x|: shorter panels have no number between their ends
LEAST_HALF = 1e-16

# of the panel [-1, 1]: the nodes, increasing, and their weights; (NODE_COUNT,) each
NODE_POINTS, WEIGHTS = scipy.special.roots_legendre(NODE_COUNT)
# also checked: otherwise a jump between the last node and the end would be missed
NEXT = 1.0 - 1e-6
# where functions are evaluated: the nodes, then a point next to each end,
# (NODE_COUNT + 2,)
POINTS = np.concatenate([NODE_POINTS, [-NEXT, NEXT]])


def _checks() -> Array:
    """The matrix (POINTS, 5) that shows how far values are from those of a polynomial.

    For values f at POINTS, f @ checks are the last three Legendre coefficients of the
    polynomial through the values at the nodes, and a tenth of how far it misses the two
    values next to the ends.
    """
    # Legendre polynomials P_k, k < NODE_COUNT, (points, NODE_COUNT)
    last_degree = NODE_COUNT - 1
    p_at_nodes = np.polynomial.legendre.legvander(NODE_POINTS, last_degree)
    p_at_points = np.polynomial.legendre.legvander(POINTS, last_degree)
    p_next_to_ends = p_at_points[NODE_COUNT:]

    # Coefficient k is (k + 1/2) ∫ f P_k: by the rule, column k of this matrix takes the
    # values at the nodes to it. The values next to the ends do not count.
    degree = np.arange(NODE_COUNT)
    to_coefficients = p_at_nodes * WEIGHTS[:, None] * (degree + 0.5)
    of_ends = np.zeros((2, 3))
    last_coefficients = np.concatenate([to_coefficients[:, -3:], of_ends])
    # the value next to an end minus that of the polynomial there
    to_polynomial_at_ends = to_coefficients @ p_next_to_ends.T
    misses = np.concatenate([-to_polynomial_at_ends, np.eye(2)])
    checks = np.concatenate([last_coefficients, 0.1 * misses], axis=1)

    def make_orthogonal(columns: slice, polynomials: int) -> None:
        """Make columns exactly 0 on polynomials with so many coefficients.

        Their round-off then does not count.
        """
        q, _ = np.linalg.qr(p_at_points[:, :polynomials])
        checks[:, columns] -= q @ (q.T @ checks[:, columns])

    make_orthogonal(slice(0, 3), NODE_COUNT - 3)
    make_orthogonal(slice(3, 5), NODE_COUNT)
    return checks


CHECKS = _checks()  # (POINTS, 5): `values @ CHECKS` is 0 for a polynomial


class Resolved(NamedTuple):
    """The panels on which each integrand is resolved, with its values at their
    nodes.
    """

    row: Array  # (panels,): which integral, in increasing order
    x: Array  # (panels, NODE_COUNT)
    weight: Array  # (panels, NODE_COUNT), of Lebesgue measure
    values: Array  # (panels, NODE_COUNT)
    error: Array  # (rows,): ∫ |unresolved part| · density
    # (rows,): ∫ |values · unresolved part| under N(0, 1), over panels where that is
    # large (ROUGH)
    rough: Array

    def integrate(self, values: Array) -> Array:
        """Σ weight · values for each row; values have shape (panels, NODE_COUNT)."""
        of_panels = np.sum(self.weight * values, axis=1)
        rows = len(self.error)
        return np.bincount(self.row, of_panels, rows)


class _Panels(NamedTuple):
    """Panels that need no halving: the first fields of `Resolved`."""

    row: Array
    x: Array
    weight: Array
    values: Array


def log_density(x: Array) -> Array:
    """The logarithm of the density of N(0, 1)."""
    return -0.5 * x * x - 0.5 * np.log(2 * np.pi)


def unresolved(values: Array) -> Array:
    """The unresolved part of values (…, POINTS): how far they are from those of a
    polynomial.
    """
    return np.sum(np.abs(values @ CHECKS), axis=-1)


def largest_density(left: Array, right: Array) -> Array:
    """The density of N(0, 1) where it is largest in [left, right]."""
    return np.exp(log_density(np.clip(0.0, left, right)))


def resolve(
    values_at: Callable[[Array, Array], Array],
    edges: Array,
    density: Callable[[Array, Array], Array],
    tolerance: float,
    scale: Array | None = None,
    failing: int = 400,
    squares: bool = False,
) -> Resolved:
    """Panels on which the integrands, one per row, are polynomials up to a tolerance.

    They are the intervals between the edges of each row, halved where necessary.

    Parameters
    ----------
    values_at : callable
        The integrands: `values_at(row, x)` for row numbers (panels,) and points
        (panels, POINTS).
    edges : array
        (rows, edges), in any order.
    density : callable
        `density(left, right)` is the largest weight of the values on panels (panels,).
    tolerance : float
        Of the unresolved part of a panel, weighted by the density, relative to `scale`.
    scale : array or None
        (rows,); None means the root mean squares of the values.
    failing : int
        An integral of which more panels fail in one round is noise or an endless
        oscillation, and its panels are not halved.
    squares : bool
        Whether the tolerance applies to the root mean square of the unresolved part;
        the density must be that of N(0, 1). It is for values that grow in the tails.
    """
    rows = len(edges)
    row, left, right = _first_panels(edges)  # the panels of this round
    error = np.zeros(rows)
    rough = np.zeros(rows)
    finished: list[_Panels] = []
    for halving in range(HALVINGS + 1):
        centre = 0.5 * (left + right)
        half = 0.5 * (right - left)
        x = centre[:, None] + half[:, None] * POINTS
        weight = half[:, None] * WEIGHTS
        values = values_at(row, x)
        has_finite_value = np.isfinite(values).any(axis=1)
        values = _finite_on_short_panels(values, left, half)
        is_finite = np.isfinite(values).all(axis=1)

        # what the panels do not resolve
        with np.errstate(invalid="ignore", over="ignore"):
            largest_weight = density(left, right)
            if scale is None:
                masses = _masses(values, weight, largest_weight)
                scale = np.sqrt(np.bincount(row[is_finite], masses[is_finite], rows))
            missing = np.where(is_finite, unresolved(values), np.inf)
            rough_part = _rough_part(values, missing, left, right)
            if squares:
                missing = np.sqrt(2 * half) * missing * np.sqrt(largest_weight)
            else:
                missing = missing * 2 * half * largest_weight

        # which panels to halve
        is_halved = np.zeros(len(row), dtype=bool)
        if halving < HALVINGS:
            is_halved = (missing > tolerance * scale[row]) & has_finite_value
            is_endless = np.bincount(row[is_halved], minlength=rows) > failing
            is_halved &= ~is_endless[row]
            is_halved &= half > LEAST_HALF * (1.0 + np.abs(left))

        # the others are finished
        is_finished = ~is_halved
        finished_row = row[is_finished]
        error += np.bincount(finished_row, missing[is_finished], rows)
        rough += np.bincount(finished_row, rough_part[is_finished], rows)
        panels = _Panels(
            row=finished_row,
            x=x[is_finished, :NODE_COUNT],
            weight=weight[is_finished],
            values=values[is_finished, :NODE_COUNT],
        )
        finished.append(panels)
        if not is_halved.any():
            break

        # the panels of the next round: all left halves, then all right halves
        middle = centre[is_halved]
        halved_row = row[is_halved]
        row = np.concatenate([halved_row, halved_row])
        left = np.concatenate([left[is_halved], middle])
        right = np.concatenate([middle, right[is_halved]])
    return _resolved(finished, error, rough)


def _first_panels(edges: Array) -> tuple[Array, Array, Array]:
    """The intervals between the edges (rows, edges) of each row, in any order.

    Returns the row of each panel, and its left and right ends, (panels,) each. Panels
    that hold only a few numbers are left out.
    """
    edges = np.sort(edges, axis=1)
    left = edges[:, :-1]
    right = edges[:, 1:]
    is_panel = right - left > LEAST_PANEL * np.abs(left)  # near 0 short ones count too
    row, _ = np.nonzero(is_panel)
    return row, left[is_panel], right[is_panel]


def _masses(values: Array, weight: Array, largest_weight: Array) -> Array:
    """∫ values² on each panel, (panels,), with the density at its largest.

    From values (panels, POINTS), weights (panels, NODE_COUNT) and densities (panels,).
    """
    # multiply by the root of the density first: squares of growing values would
    # overflow
    at_nodes = values[:, :NODE_COUNT]
    root_of_density = np.sqrt(largest_weight)[:, None]
    rooted = at_nodes * root_of_density
    masses: Array = np.sum(weight * rooted**2, axis=1)
    return masses


def _resolved(finished: Sequence[_Panels], error: Array, rough: Array) -> Resolved:
    """The panels of all rounds in the order of their rows."""
    row = np.concatenate([panels.row for panels in finished])
    x = np.concatenate([panels.x for panels in finished])
    weight = np.concatenate([panels.weight for panels in finished])
    values = np.concatenate([panels.values for panels in finished])
    order = np.argsort(row, kind="stable")
    return Resolved(
        row=row[order],
        x=x[order],
        weight=weight[order],
        values=values[order],
        error=error,
        rough=rough,
    )


def _finite_on_short_panels(values: Array, left: Array, half: Array) -> Array:
    """Values (panels, POINTS) with the infinite ones replaced on very short panels.

    On these, the largest finite value takes their place, for example for a logarithm at
    0. `half` are the half lengths of the panels.
    """
    is_finite = np.isfinite(values)
    if is_finite.all():
        return values
    largest = np.max(np.abs(values), axis=1, where=is_finite, initial=0.0)
    is_short = is_finite.any(axis=1) & (half <= SHORT * (1.0 + np.abs(left)))
    is_replaced = is_short[:, None] & ~is_finite
    return np.where(is_replaced, largest[:, None], values)


def _rough_part(values: Array, missing: Array, left: Array, right: Array) -> Array:
    """∫ |values · unresolved part| under N(0, 1) on each panel.

    It is 0 where the unresolved part `missing` (panels,) is small relative to the
    values.
    """
    half = 0.5 * (right - left)
    largest_value = np.max(np.abs(values), axis=1)
    is_rough = missing > ROUGH * largest_value
    integral_of_missing = np.where(is_rough, 2 * half * missing, 0.0)
    mass_of_missing = integral_of_missing * largest_density(left, right)
    # a mass of 0 counts as 0 even where values are infinite
    return np.where(mass_of_missing > 0, mass_of_missing * largest_value, 0.0)
