"""Sliced Wasserstein distance of joint laws: the mean of W1 over directions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import one_blas_thread
from ..language._given import shown
from ._checked import checked_generator, whole
from ._distance import wasserstein1
from ._estimate import Estimate, combined
from ._foreign import as_joint
from ._joint import Joint
from ._law_error import LawError
from ._replicas import Replicas

MOST = 10_000  # most directions


@one_blas_thread()
def sliced_wasserstein(p: Any, q: Any, directions: int = 16, seed: int = 2025) -> Estimate:
    """The mean over random unit directions of the W1 distance of Σ_i u_i Y_i under both laws.

    Parameters
    ----------
    p : Joint, frozen scipy.stats.multivariate_normal, or array_like
        The first law; an array (draws, entries) is a sample. One of the two must be a joint law.
    q : Joint, frozen scipy.stats.multivariate_normal, or array_like
        The second.
    directions : int
        How many.
    seed : int
        What the directions depend on.

    Returns
    -------
    Estimate
        The distance, with the error of the laws and that of the directions.

    Raises
    ------
    LawError
        If neither is a joint law, or they have different numbers of entries.

    Examples
    --------
    >>> law = ns.Program(ns.nn.attention(ns.gaussian(ns.Width("n"), 2), heads=1)).law(n=ns.inf, draws=200)
    >>> print(f"{ns.sliced_wasserstein(law, law.gaussian(), directions=2).value:.3f}")
    0.003
    """
    joint = [law for law in (p, q) if isinstance(law, Joint)]
    if not joint:
        raise LawError(
            "sliced_wasserstein",
            f"is between joint laws, got {shown(p)} and {shown(q)}; for one variable, wasserstein1",
        )
    p, q = (as_joint(law, joint[0].dim, "sliced_wasserstein") for law in (p, q))
    count = whole(directions, "directions", "sliced_wasserstein", least=2)
    if count > MOST:
        raise LawError("sliced_wasserstein", f"directions={count} must be at most {MOST}, each a distance")
    u = checked_generator(seed, "sliced_wasserstein").standard_normal((count, p.dim))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    found = [wasserstein1(p.combination(w), q.combination(w)) for w in u]
    each, replicas = np.array([one.value for one in found]), Replicas(count)
    value, over = float(replicas.mean(each)), float(replicas.spread(each))
    # directions share their draws, so their errors are one
    return Estimate(value, combined(over, float(np.mean([one.error for one in found]))), p.sources | q.sources)
