"""Laws of i.i.d. numbers, as functions of standard normal numbers.

A number of distribution function F is F⁻¹(Φ(z)), z ~ N(0, 1). So a vector with i.i.d.
coordinates of any law is a coordinatewise function of a Gaussian vector, exactly and at
every width. `Distribution` is such a function. Code that initialises a parameter draws
from a basic law and may then apply functions to each entry, as in exp(uniform):
`transformed` follows it.

Examples
--------
>>> from netsor.functions.quantiles import Distribution, transformed
>>> uniform = Distribution("uniform", (0.0, 1.0))
>>> uniform(np.array([-40.0, 0.0, 40.0])).round(4).tolist()
[-1.7321, 0.0, 1.7321]
>>> transformed("exp", uniform).name
'log-uniform'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Array, Floats, array_namespace
from .activations import Function, _in_library, _special

NEVER = 1e-14  # a probability of what no draw shows
# Numbers beyond so many standard deviations are rarer than 1e-16.
NEVER_BEYOND = 8.3
# Laws that a shift and a factor keep: the first two arguments are mean and standard
# deviation of the law before truncation, the others are points of it.
LOCATED = ("normal", "uniform", "truncated normal")


@dataclass(frozen=True)
class Distribution:
    """The law of a number, as the function F⁻¹(Φ(z)) of a standard normal z.

    Attributes
    ----------
    law : str
        A basic law, or a function in `FUNCTIONS` that is applied to a number of another
        law. Basic laws and their arguments are "normal" (mean, standard deviation),
        "uniform" (the same), "truncated normal" (mean and standard deviation before
        truncation, least, largest) and "exponential" (rate).
    arguments : tuple
        Numbers, and for a function the laws of its arguments. All laws in it are
        functions of the same z.
    """

    law: str
    arguments: tuple[Any, ...]

    def __call__(self, z: Array) -> Array:
        """F⁻¹(Φ(z)) of an array."""
        match self.law, self.arguments:
            case "normal", (mean, std):
                return mean + std * z
            case "uniform", (mean, std):
                return _uniform(z, *_ends(self))
            case "truncated normal", (mean, std, low, high):
                return mean + std * _truncated(
                    z, (low - mean) / std, (high - mean) / std
                )
            case "exponential", (rate,):
                return -_special("log_ndtr", -z) / rate
        numbers = []
        for argument in self.arguments:
            if isinstance(argument, Distribution):
                numbers.append(argument(z))
            else:
                numbers.append(argument)
        return FUNCTIONS[self.law](*numbers)

    @property
    def is_normal(self) -> bool:
        """Whether it is a normal law."""
        return self.law == "normal"

    @property
    def name(self) -> str:
        """The name of the law, for people."""
        if self.law in BASIC:
            return self.law
        argument = self.arguments[0]
        if self.law == "mul" and isinstance(argument, Distribution):
            return argument.name  # of the law that is multiplied
        if self.law == "exp" and argument.law == "uniform":
            return "log-uniform"
        return "i.i.d."

    @property
    def mean(self) -> float:
        """The mean."""
        if self.law in ("normal", "uniform"):
            return float(self.arguments[0])
        return self._moments.mean

    @property
    def std(self) -> float:
        """The standard deviation."""
        if self.law in ("normal", "uniform"):
            return float(self.arguments[1])
        return self._moments.std

    @property
    def kurtosis(self) -> float:
        """The fourth moment of the centred number, over its squared variance."""
        return self._moments.kurtosis

    @cached_property
    def _moments(self) -> _Moments:
        """The moments, by the trapezoidal rule over z.

        It is exact to rounding for smooth functions.
        """
        z = np.linspace(-9.0, 9.0, 36_001)
        weights = np.exp(-0.5 * z * z)
        weights /= weights.sum()
        with np.errstate(all="ignore"):
            x: Floats = np.asarray(self(z))
        is_finite = np.isfinite(x)
        # the logarithm of 1 − U is infinite where U rounds to 1, which no draw does
        if weights[~is_finite].sum() < NEVER:
            x = np.where(is_finite, x, 0.0)
            weights = np.where(is_finite, weights, 0.0)
        mean = float(weights @ x)
        variance = float(weights @ (x - mean) ** 2)
        fourth = float(weights @ (x - mean) ** 4)
        std = math.sqrt(variance)
        if abs(mean) < 1e-12 * std:  # rounding of a symmetric law
            mean = 0.0
        return _Moments(mean, std, fourth / variance**2)

    def function(self, parameter: str | None = None) -> Quantile:
        """The function for `ns.nonlin` and `ns.apply` that makes a parameter."""
        is_basic = self.law in BASIC
        is_bounded = self.law in ("uniform", "truncated normal")
        is_centred_uniform = self.law == "uniform" and self.arguments[0] == 0
        return Quantile(
            name=f"{self.name} of normal",
            f=self,
            bounded=True if is_bounded else None,
            lipschitz=True if is_basic else None,
            breaks=() if is_basic else None,
            parity=-1 if is_centred_uniform else None,
            mean_square=self.mean**2 + self.std**2,
            parameter=parameter,
        )


class _Moments(NamedTuple):
    """The mean, the standard deviation, and the fourth moment over squared variance."""

    mean: float
    std: float
    kurtosis: float


@dataclass(frozen=True, eq=False)
class Quantile(Function):
    """F⁻¹(Φ(z)): it makes a random parameter of a Gaussian vector.

    It has no derivative: a gradient ends at the parameter, which is its value.
    """

    mean_square: float = 0.0  # of its values
    parameter: str | None = None  # the name of the parameter


BASIC = (*LOCATED, "exponential")


def _uniform(z: Array, low: float, high: float) -> Array:
    """F⁻¹(Φ(z)) for a uniform law between low and high, with all digits near both."""
    tail = (high - low) * _special("ndtr", -abs(z))
    return array_namespace(z).where(z < 0, low + tail, high - tail)


def _truncated(z: Array, low: float, high: float) -> Array:
    """F⁻¹(Φ(z)) for a standard normal between low and high.

    It is the number with the probability P(below low) + P(between) Φ(z) below it.
    Probabilities are those of the nearer tail: near 1 they have no digits left.
    """
    xp = array_namespace(z)
    below_low = _phi(low)
    above_high = _phi(-high)
    if low < 0:
        between = _phi(high) - below_low
    else:
        between = _phi(-low) - above_high
    below = below_low + between * _special("ndtr", z)
    above = above_high + between * _special("ndtr", -z)
    size = _special("ndtri", xp.minimum(below, above))
    x = xp.where(below < above, size, -size)
    return xp.clip(x, low, high)


def _phi(x: float) -> float:
    """Φ(x), with all digits in the lower tail."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def truncated_normal(mean: float, std: float, low: float, high: float) -> Distribution:
    """A normal law between two numbers.

    It is the normal law itself if numbers beyond them never occur.
    """
    if min(high - mean, mean - low) > NEVER_BEYOND * std:
        return Distribution("normal", (mean, std))
    return Distribution("truncated normal", (mean, std, low, high))


# Functions of entries


def _clamp(x: Array, low: float | None = None, high: float | None = None) -> Array:
    """x between the bounds; None stands for no bound."""
    return array_namespace(x).clip(x, low, high)


# by the names that ATen gives them
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "clamp": _clamp,
    "erfinv": lambda x: _special("ndtri", 0.5 + 0.5 * x) / math.sqrt(2.0),
}
for _name in ("abs", "cos", "exp", "expm1", "log", "log1p", "sin", "sqrt", "square"):
    FUNCTIONS[_name] = _in_library(_name)
FUNCTIONS["tanh"] = _in_library("tanh")


def transformed(function: str, *arguments: Any) -> Distribution | None:
    """The law of a function of numbers of one draw; None if it is not in `FUNCTIONS`.

    Shifts and multiples of a basic law are basic laws where they can be.
    """
    function, arguments = _in_canonical_form(function, arguments)
    if function not in FUNCTIONS:
        return None
    return _basic_law(function, arguments) or Distribution(function, arguments)


def reflects(function: str, *arguments: Any) -> bool:
    """Whether a function multiplies a number of a basic law by a negative number.

    `transformed` returns the law of the product then, but the product is another
    function of the draw than other numbers of that law: −z and z are both N(0, 1). So
    its law must not be combined with that of another function of the same draw.
    """
    if function in ("mul", "div"):
        numbers = [x for x in arguments if isinstance(x, int | float)]
        negated = arguments if any(number < 0 for number in numbers) else ()
    elif function == "sub":
        negated = arguments[1:]
    elif function in ("rsub", "neg"):
        negated = arguments[:1]
    else:
        negated = ()
    return any(isinstance(x, Distribution) and x.law in LOCATED for x in negated)


def _in_canonical_form(
    function: str, arguments: tuple[Any, ...]
) -> tuple[str, tuple[Any, ...]]:
    """A function and its arguments by fewer names.

    Differences, negatives and quotients by numbers become sums and products: sub(x, 2)
    becomes add(x, −2). In these a law comes first, and a number second. Clamps with one
    bound become clamps. Other functions stay as they are.
    """
    if function == "neg":
        return "mul", (arguments[0], -1.0)
    if function == "clamp_min":
        return "clamp", arguments
    if function == "clamp_max":
        return "clamp", (arguments[0], None, arguments[1])
    if function in ("sub", "rsub"):
        x, y = arguments if function == "sub" else arguments[::-1]
        if isinstance(y, Distribution):
            negative: Any = transformed("mul", y, -1.0)
        else:
            negative = -y
        function = "add"
        arguments = (x, negative)
    elif function == "div" and not isinstance(arguments[1], Distribution):
        function = "mul"
        arguments = (arguments[0], 1 / arguments[1])
    if function in ("add", "mul") and not isinstance(arguments[0], Distribution):
        arguments = arguments[::-1]
    return function, tuple(arguments)


def _basic_law(function: str, arguments: tuple[Any, ...]) -> Distribution | None:
    """The law of a function as a basic law; None if it is not one.

    The function is as `_in_canonical_form` returns it.
    """
    x, *others = arguments
    if not isinstance(x, Distribution):
        return None
    if function == "erfinv" and x.law == "uniform":
        return _normal_between(x)
    if function == "clamp" and _clamp_changes_nothing(*arguments):
        return x
    if function not in ("add", "mul") or x.law not in LOCATED:
        return None
    (number,) = others
    if isinstance(number, Distribution):
        return None
    if function == "add":
        return _shifted(x, number)
    return _multiple(x, number) if number else None  # 0 · x is no random number


def _multiple(x: Distribution, factor: float) -> Distribution:
    """The law of factor · x for a factor other than 0."""
    mean, std, *ends = x.arguments
    ends = sorted(end * factor for end in ends)
    return Distribution(x.law, (mean * factor, std * abs(factor), *ends))


def _shifted(x: Distribution, number: float) -> Distribution:
    """The law of x + number."""
    mean, std, *ends = x.arguments
    shifted_ends = [end + number for end in ends]
    return Distribution(x.law, (mean + number, std, *shifted_ends))


def _normal_between(x: Distribution) -> Distribution:
    """The law of erfinv(x) for a uniform number x: √½ times a truncated normal one."""
    std = math.sqrt(0.5)

    def transformed_end(end: float) -> float:
        """erfinv(end) = √½ Φ⁻¹((1 + end)/2)."""
        # ends in single precision may lie beyond ±1 by rounding
        probability = min(max(0.5 + 0.5 * end, 0.0), 1.0)
        return std * float(_special("ndtri", np.asarray(probability)))

    low, high = _ends(x)
    return truncated_normal(
        mean=0.0, std=std, low=transformed_end(low), high=transformed_end(high)
    )


def _ends(x: Distribution) -> tuple[float, float]:
    """The least and the largest number that x can be."""
    if x.law == "truncated normal":
        return x.arguments[2], x.arguments[3]
    if x.law == "uniform":
        mean, std = x.arguments
        half_length = math.sqrt(3.0) * std

        def without_rounding(end: float) -> float:
            """0 for an end that is 0 up to rounding, the sign of which would count."""
            return 0.0 if abs(end) < 1e-14 * half_length else end

        low = without_rounding(mean - half_length)
        high = without_rounding(mean + half_length)
        return low, high
    return -math.inf, math.inf


def _clamp_changes_nothing(
    x: Distribution, low: float | None = None, high: float | None = None
) -> bool:
    """Whether all numbers x are between two bounds anyway, up to rounding.

    None is no bound.
    """
    least, largest = _ends(x)
    if x.law == "normal":
        mean, std = x.arguments
        least = mean - NEVER_BEYOND * std
        largest = mean + NEVER_BEYOND * std
    rounding = 1e-6 * (largest - least)
    above_low = low is None or low <= least + rounding
    below_high = high is None or high >= largest - rounding
    return above_low and below_high
