"""Gaussian expectations: what a nonlinearity makes of Gaussian vectors of infinite width, each with its error.

One argument: closed forms (`_closed`), Hermite series from a table (`_hermite`, `_table`), and conditioning where the
series is too long (`_condition`). `_features` and `_narrow` find the kinks, jumps and spikes that the rules of
`_panels` must respect, `_poles` integrates around poles, and `_tails` says how far out an integral goes.
Several arguments (`_joint`): product rules and randomised quasi-Monte Carlo (`_several`, `_nodes`).
"""

from ._closed import closed_form
from ._joint import kernel_of_several, moments_of_several
from ._kernel import kernel, moments
from ._rows import Rows

__all__ = ["Rows", "closed_form", "kernel", "kernel_of_several", "moments", "moments_of_several"]
