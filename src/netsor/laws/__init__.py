"""Laws: distributions in the manner of scipy.stats, each with its errors and its standing."""

from ._attention_limit import HeadSum, head_sum
from ._compare import distances, kl, kolmogorov, plot, sliced_wasserstein, total_variation, wasserstein1
from ._distance_estimator import paper_kl
from ._estimate import Estimate
from ._joint import Joint
from ._law import Law
from ._law_base import LawError, Provenance, load
from ._mixture import Empirical, Mixture
