"""Two laws over the same random numbers, whose difference has little noise.

Two laws that share a seed are coupled: with v_n and v_∞ made from the same random numbers,
f_n = f_∞ + E[N(y; v_n) − N(y; v_∞)], and the nearer the two laws are, the less noise their difference has. That is
right only if f_∞ is the law of those v_∞. So a limit is first compared with its own replicas, and is coupled through
them only if they agree; if they do not, the distance is to the limit as it was given.
"""

from __future__ import annotations

import numpy as np
import scipy

from ._estimate import combined
from ._heads import HeadSum
from ._law import Law
from ._mixture import Mixture

LEVEL = 1e-7  # of the test that a limit law agrees with its own replicas


def coupled(p: Law, q: Law) -> tuple[Mixture, Mixture] | None:
    """Both laws as mixtures over the same random numbers, if they are."""
    if isinstance(p, HeadSum) or not isinstance(p, Mixture) or p.origin.seed is None or p.replicas < 2:
        return None
    other = q.mixture if isinstance(q, HeadSum) else q
    if not isinstance(other, Mixture) or other.replicas != p.replicas or p.origin.seed != other.origin.seed:
        return None
    if p.weight is not None or other.weight is not None or (other is not q and not agrees(q, other)):
        return None
    return p, other


def agrees(law: Law, replicas: Mixture) -> bool:
    """Whether a law is that of these replicas, within the errors of both.

    Compared are the distribution function at quantiles, the variance and the fourth moment, by the largest deviation in
    standard errors: a test of level 1e-7.
    """
    return deviation(law, replicas) < float(scipy.special.stdtrit(39, 1 - LEVEL / 2 / 20))


def deviation(law: Law, replicas: Mixture) -> float:
    """The largest deviation of a law from replicas of it, in standard errors."""
    y = np.unique(np.concatenate([law.ppf(np.linspace(0.5, 0.999, 18)), [law.mean()]]))
    checks = [(law.with_error.cdf(y), replicas.with_error.cdf(y))]
    checks += [(law.with_error.moment(k), replicas.with_error.moment(k)) for k in (2, 4)]
    worst = 0.0
    for one, other in checks:
        gap = np.abs(np.asarray(one.value) - other.value)
        error = combined(one.error, other.error, 1e-12 * np.abs(np.asarray(one.value)))
        worst = max(worst, float(np.max(gap / np.where(error > 0, error, np.inf), initial=0.0)))
    return worst
