"""The Kullback–Leibler divergence of joint laws, from draws of the first: E_p[log p − log q]."""

from __future__ import annotations

import math

import numpy as np

from .._arrays import one_blas_thread
from ._estimate import Estimate, combined
from ._joint import Joint
from ._replicas import average

DRAWS = 4000


@one_blas_thread()
def joint_kl(p: Joint, q: Joint, seed: int = 2025) -> Estimate:
    """D(p ‖ q), with the bias that the noise of both densities gives it removed and counted as an error."""
    if _same(p, q):  # one law: the divergence is 0, and the noise of both cancels
        return Estimate(0.0, 0.0, p.sources | q.sources)
    if p.singular.value > 0:  # p has mass on a set to which q gives none, as an atom in one dimension
        return Estimate(math.inf, 0.0, p.sources | q.sources)
    y = p.rvs(DRAWS, seed)
    value, error = average(np.asarray(p.logpdf(y) - q.logpdf(y)), None)
    shares = []
    for law in (p, q):
        density, spread = law._normals.pdf_with_error(y)
        shares.append(np.divide(spread, density, out=np.zeros_like(density), where=density > 0))
    bias = 0.5 * float(np.mean(np.minimum(shares[0] ** 2 + shares[1] ** 2, 1.0)))
    # the noise of q's density is the same at neighbouring points: it does not average out over draws
    common = float(np.mean(np.minimum(shares[1], 1.0)))
    return Estimate(value - bias, combined(error, bias, common), p.sources | q.sources)


def _same(p: Joint, q: Joint) -> bool:
    """Whether both are one law, made of the same replicas."""
    pairs = [(p.component_mean, q.component_mean), (p.component_cov, q.component_cov)]
    weights = (law.weight if law.weight is not None else np.full(law.replicas, 1 / law.replicas) for law in (p, q))
    return p is q or all(np.array_equal(a, b) for a, b in [*pairs, tuple(weights)])
