"""Laws: distributions in the manner of scipy.stats, each with its errors and its standing."""

from ._attention import Attention
from ._distance import distances, kl, kolmogorov, paper_kl, total_variation, wasserstein1
from ._empirical import Empirical
from ._fourier import HeadSum
from ._law import Estimate, Law, Origin
from ._mixture import Joint, Mixture

__all__ = [
    "Attention",
    "Empirical",
    "Estimate",
    "HeadSum",
    "Joint",
    "Law",
    "Mixture",
    "Origin",
    "distances",
    "kl",
    "kolmogorov",
    "paper_kl",
    "total_variation",
    "wasserstein1",
]
