"""Laws: distributions in the manner of scipy.stats, each with its errors and its standing."""

from ._distance import distances, kl, kolmogorov, total_variation, wasserstein1
from ._empirical import Empirical
from ._estimate import Estimate
from ._head_sum import head_sum
from ._heads import HeadSum
from ._joint import Joint
from ._law import Law
from ._law_error import LawError
from ._mixture import Mixture
from ._origin import Origin
from ._paper_kl import paper_kl
from ._plot_several import plot
from ._sliced import sliced_wasserstein
from ._store import load

__all__ = [
    "Empirical",
    "Estimate",
    "HeadSum",
    "Joint",
    "Law",
    "LawError",
    "Mixture",
    "Origin",
    "distances",
    "head_sum",
    "kl",
    "kolmogorov",
    "load",
    "paper_kl",
    "plot",
    "sliced_wasserstein",
    "total_variation",
    "wasserstein1",
]
