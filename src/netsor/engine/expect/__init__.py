"""Gaussian expectations: what a nonlinearity makes of Gaussian vectors of infinite width, each with its error.

One argument: closed forms (`_closed`), Hermite series from a table (`_hermite`, `_table`), and conditioning where the
series is too long (`_conditioning`). `_breaks` finds the kinks, jumps and spikes that the rules of
`_panels` must respect, `_poles` integrates around poles, and `_tails` says how far out an integral goes.
Several arguments (`_kernel_of_several`): product rules and randomised quasi-Monte Carlo (`_several`, `_quadrature`).
"""

from ._closed import closed_form
from ._kernel import kernel, moments
from ._kernel_of_several import kernel_of_several, moments_of_several
from ._rows import Rows

__all__ = ["Rows", "closed_form", "kernel", "kernel_of_several", "moments", "moments_of_several"]
