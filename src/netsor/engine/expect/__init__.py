"""Gaussian expectations: moments and kernels of nonlinearities of Gaussian vectors,
each with its error.
"""

from ._kernel import closed_form, has_closed_form, kernel, moments
from ._multivariate import kernel_of_several, moments_of_several
from ._univariate import BatchedFunction

__all__ = [
    "BatchedFunction",
    "closed_form",
    "has_closed_form",
    "kernel",
    "kernel_of_several",
    "moments",
    "moments_of_several",
]
