"""The estimator of KL that the paper used, to be compared with ours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..language._given import shown
from ._checked import numbers
from ._empirical import Empirical
from ._law_error import LawError


def paper_kl(
    finite: npt.ArrayLike | Empirical, limit: npt.ArrayLike | Empirical, grid: npt.ArrayLike | None = None
) -> float:
    """The paper's estimator: D(finite ‖ limit) of two kernel estimates on a grid of 500 points, from draws of each.

    Both estimates have 1e-12 added and are normalised by the trapezoidal rule. It cannot see below about 5e-4: `ns.kl`
    can, and docs/estimator.md shows it.

    Parameters
    ----------
    finite : array_like or Empirical
        Draws at finite width.
    limit : array_like or Empirical
        Draws of the limit.
    grid : array_like, optional
        The points, which span both samples unless given (the paper's span the draws of all trials).

    Returns
    -------
    float
        The estimate, without an error.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> same = ns.paper_kl(law.rvs(50_000, seed=0), law.rvs(50_000, seed=1))  # of a law and itself
    >>> print(f"{same:.0e}")
    4e-04
    """
    a, b = (law if isinstance(law, Empirical) else Empirical(law) for law in (finite, limit))
    if grid is None:
        grid = np.linspace(min(a.draws[0], b.draws[0]), max(a.draws[-1], b.draws[-1]), 500)
    y = numbers(grid, "paper_kl", "grid")
    if y.ndim != 1 or y.size < 2 or not (np.diff(y) > 0).all():
        raise LawError("paper_kl", f"grid={shown(grid)} must be two or more points, each above the one before")
    f, g = (law.pdf(y) + 1e-12 for law in (a, b))
    f, g = f / np.trapezoid(f, y), g / np.trapezoid(g, y)
    return float(np.trapezoid(f * np.log(f / g), y))
