"""Laws: distributions with the methods of scipy.stats, standard errors, and a status
such as proved or estimated.
"""

from ._compare import (
    distances,
    kl,
    kolmogorov,
    plot,
    sliced_wasserstein,
    total_variation,
    wasserstein1,
)
from ._distance_estimator import paper_kl
from ._estimate import Estimate
from ._joint import Joint
from ._law import Law
from ._law_base import LawError, Provenance, load
from ._mixture import Empirical, Mixture
from .attention._attention_limit import HeadSum
