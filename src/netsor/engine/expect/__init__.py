"""Gaussian expectations: moments and kernels of nonlinearities of Gaussian vectors, each with its error.

One argument: closed forms, Hermite series with cached coefficients (`_hermite_series`), and conditioning where the
series is too long (`_kernel`). `_breakpoints` finds the kinks, jumps and spikes that the rules
of `_gauss_legendre` must respect, and `_univariate` integrates around poles and decides where to truncate an integral.
Several arguments: product rules and randomised quasi-Monte Carlo (`_multivariate`).
"""

from ._kernel import closed_form, kernel, moments
from ._multivariate import kernel_of_several, moments_of_several
from ._univariate import BatchedFunction

__all__ = ["BatchedFunction", "closed_form", "kernel", "kernel_of_several", "moments", "moments_of_several"]
