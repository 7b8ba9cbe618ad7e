"""What a check of an initialisation finds, and tests of one pass.

Each test yields an `InitFinding` with its p-value, whether it departs or not;
`check_init` adjusts the p-values for the number of tests. `_parameter_tests` has the
tests of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._array_api import Floats


@dataclass(frozen=True)
class InitFinding:
    """A departure from the declared initialisation.

    Attributes
    ----------
    where : str
        The path of the parameter or module.
    what : str
        "std", "mean", "shape", "tails", "rows", "columns", "value", "tie",
        "independence", "mask", "finite", or a quantity of a pass, such as "entropy" or
        "grad_query".
    p : float
        Its p-value, adjusted for the number of tests.
    text : str
        What was found, in words.

    Examples
    --------
    >>> check = ns.torch.check_init(build, ids)  # doctest: +SKIP
    >>> check.findings[0].where  # doctest: +SKIP
    'model.layers.3.self_attn.o_proj.weight'
    """

    where: str
    what: str
    p: float
    text: str


def holm(p: Sequence[float]) -> Floats:
    """p-values adjusted for their number by Holm's method."""
    order = np.argsort(p)
    increasing_p = np.asarray(p, float)[order]
    remaining = np.arange(len(p), 0, -1)  # tests with this p-value or a larger one
    multiplied = increasing_p * remaining
    # none is smaller than that of a test with a smaller p-value
    adjusted_in_order = np.minimum(np.maximum.accumulate(multiplied), 1.0)
    adjusted = np.empty(len(p))
    adjusted[order] = adjusted_in_order
    return adjusted


def two_sided(z: float) -> float:
    """The p-value of a standard normal."""
    return math.erfc(abs(z) / math.sqrt(2))


def normal_score(mean_square: Any, freedom: float) -> Any:
    """A χ² over its degrees of freedom, as a nearly standard normal number.

    It is the cube root of Wilson and Hilferty.
    """
    variance = 2 / (9 * freedom)
    return (mean_square ** (1 / 3) - 1 + variance) / math.sqrt(variance)


def pass_tests(
    real: Mapping[tuple[str, int], float], law: Mapping[tuple[str, int], Floats]
) -> list[float]:
    """Adjusted p-values of quantities of one pass among draws of their joint law.

    They are in the order of `real`.
    """
    # The largest deviation of a draw has a law that knows how quantities depend on each
    # other, and the p-value of a quantity is how often that exceeds its deviation
    # (Westfall and Young 1993): its rank among the draws, and beyond their largest
    # tenth an exponential tail.
    deviations = _deviations(real, law)
    of_draws = deviations[:, :-1]
    of_pass = deviations[:, -1]  # (quantities,)
    largest_of_draw = np.sort(of_draws.max(axis=0))  # (draws,)

    draws_beyond = np.sum(largest_of_draw >= of_pass[:, None], axis=1)
    p_by_rank = (draws_beyond + 1) / (len(largest_of_draw) + 1)

    tail_start = float(np.quantile(largest_of_draw, 0.9))
    tail_scale = _mean_excess(largest_of_draw, tail_start)
    p_by_tail = 0.1 * np.exp(-(of_pass - tail_start) / tail_scale)
    is_before_tail = of_pass <= tail_start
    p_values = np.where(is_before_tail, p_by_rank, np.minimum(p_by_rank, p_by_tail))
    return [float(p) for p in p_values]


def _mean_excess(deviations: Floats, threshold: float) -> float:
    """The mean excess over a threshold of deviations beyond it: an exponential tail.

    Deviations of discrete quantities may have none beyond it, because their largest
    ones are equal. The excess over the median then stands for it. It is at least the
    rounding of a deviation, 1e-3.
    """
    for start in (threshold, float(np.median(deviations))):
        beyond = deviations[deviations > start]
        if beyond.size:
            return max(float(np.mean(beyond - start)), 1e-3)
    return 1e-3


def _deviations(
    real: Mapping[tuple[str, int], float], law: Mapping[tuple[str, int], Floats]
) -> Floats:
    """The absolute deviations of quantities in standard deviations of their draws.

    The result is (quantities, draws and pass); the pass is the last column. Quantities
    that are above 0 in all draws and in the pass are compared by their logarithms. A
    quantity that is exactly 0 in the pass only, such as a dead gradient, deviates by
    infinity, and so does one that is not finite.
    """
    numbers = np.array([[*law[key], value] for key, value in real.items()])
    use_logarithms = (numbers > 0).all(axis=1, keepdims=True)
    positive_or_one = np.where(use_logarithms, numbers, 1.0)
    compared = np.where(use_logarithms, np.log(positive_or_one), numbers)
    draws = compared[:, :-1]
    centre = draws.mean(axis=1, keepdims=True)
    spread = draws.std(axis=1, keepdims=True)
    # a relative rounding error is an absolute one of the logarithm
    has_unit_one = use_logarithms | (centre == 0)
    rounding = 1e-3 * np.where(has_unit_one, 1.0, np.abs(centre))
    deviations = np.abs(compared - centre) / np.hypot(spread, rounding)
    deviations[_is_zero_in_pass_only(numbers), -1] = np.inf
    return np.where(np.isfinite(compared), deviations, np.inf)


def _is_zero_in_pass_only(numbers: Floats) -> npt.NDArray[np.bool_]:
    """Which quantities (quantities, draws and pass) are 0 in the pass alone.

    Their draws must be positive and all different, as those of a continuous law are: a
    discrete quantity, such as the load of an expert, may be 0 by chance.
    """
    in_draws = np.sort(numbers[:, :-1], axis=1)
    in_pass = numbers[:, -1]
    is_positive = in_draws[:, 0] > 0
    all_differ = (np.diff(in_draws, axis=1) > 0).all(axis=1)
    is_zero_in_pass = in_pass == 0
    return np.asarray(is_zero_in_pass & is_positive & all_differ)
