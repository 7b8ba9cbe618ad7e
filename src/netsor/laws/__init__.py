"""Laws: distributions in the manner of scipy.stats, each with its errors and its standing."""

from ._law import Estimate, Law, Origin
from ._mixture import Mixture

__all__ = ["Estimate", "Law", "Mixture", "Origin"]
