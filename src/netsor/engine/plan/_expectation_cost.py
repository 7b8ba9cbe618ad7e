"""The cost of expectations of functions of several vectors, which
`expect/_multivariate` integrates numerically.

It is known before any work begins, from the shapes of a step alone, and decides how
many points each expectation gets.
"""

from __future__ import annotations

import math

MAX_TOTAL_POINTS = 2**25  # over all expectations of one call
SETS = 16  # independent scramblings of the Sobol points; their spread is the error
FEWEST, MOST = 9, 14  # bounds on log₂ of the points of a Sobol set for one expectation
# Seconds per point and argument of the integrand on one core, with the product rules
# that check Sobol points: 12 to 19 ns were measured for kernels of functions of 3 to 25
# arguments, and 24 ns for moments, which have more outputs and count their arguments
# twice. A function that does much more for each argument takes longer.
SECONDS_PER_ARGUMENT = 1.7e-8
# of one core, for all expectations of several vectors that one law needs
MAX_SECONDS = 3600.0


def log_points(expectations: int) -> int:
    """The binary logarithm of the points of a Sobol set; more expectations in one call
    get fewer points each.
    """
    share = math.log2(MAX_TOTAL_POINTS / (SETS * max(expectations, 1)))
    return int(min(max(share, FEWEST), MOST))


def integration_seconds(expectations: int, arguments: float) -> float:
    """The estimated seconds of so many expectations in one call, of integrands whose
    functions have so many arguments, on average.
    """
    points = expectations * (SETS << log_points(expectations))
    return SECONDS_PER_ARGUMENT * points * arguments
