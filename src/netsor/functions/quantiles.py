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
from typing import Any

import numpy as np

from .._array_api import Array, Floats, array_namespace
from .activations import Function, _special

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
                half_length = math.sqrt(3.0) * std
                return mean + half_length * _special("erf", math.sqrt(0.5) * z)
            case "truncated normal", (mean, std, low, high):
                return mean + std * _truncated(
                    z, (low - mean) / std, (high - mean) / std
                )
            case "exponential", (rate,):
                return -_special("log_ndtr", -z) / rate
        arguments = [x(z) if isinstance(x, Distribution) else x for x in self.arguments]
        return FUNCTIONS[self.law](*arguments)

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
            return argument.name
        if self.law == "exp" and argument.law == "uniform":
            return "log-uniform"
        return "i.i.d."

    @property
    def mean(self) -> float:
        """The mean."""
        if self.law in ("normal", "uniform"):
            return float(self.arguments[0])
        return self._moments[0]

    @property
    def std(self) -> float:
        """The standard deviation."""
        if self.law in ("normal", "uniform"):
            return float(self.arguments[1])
        return self._moments[1]

    @property
    def kurtosis(self) -> float:
        """The fourth moment of the centred number, over its squared variance."""
        return self._moments[2]

    @cached_property
    def _moments(self) -> tuple[float, float, float]:
        # the trapezoidal rule, which is exact to rounding for smooth functions
        z = np.linspace(-9.0, 9.0, 36_001)
        weights = np.exp(-0.5 * z * z)
        weights /= weights.sum()
        x: Floats = np.asarray(self(z))
        mean = float(weights @ x)
        variance = float(weights @ (x - mean) ** 2)
        fourth = float(weights @ (x - mean) ** 4)
        std = math.sqrt(variance)
        if abs(mean) < 1e-12 * std:  # rounding of a symmetric law
            mean = 0.0
        return mean, std, fourth / variance**2

    def function(self, parameter: str | None = None) -> Quantile:
        """The function for `ns.nonlin` and `ns.apply` that makes a parameter."""
        centred_uniform = self.law == "uniform" and self.arguments[0] == 0
        return Quantile(
            name=f"{self.name} of normal",
            f=self,
            bounded=True if self.law in ("uniform", "truncated normal") else None,
            lipschitz=True if self.law in BASIC else None,
            breaks=() if self.law in BASIC else None,
            parity=-1 if centred_uniform else None,
            mean_square=self.mean**2 + self.std**2,
            parameter=parameter,
        )


@dataclass(frozen=True, eq=False)
class Quantile(Function):
    """F⁻¹(Φ(z)): it makes a random parameter of a Gaussian vector.

    It has no derivative: a gradient ends at the parameter, which is its value.
    """

    mean_square: float = 0.0  # of its values
    parameter: str | None = None  # the name of the parameter


BASIC = (*LOCATED, "exponential")


def _truncated(z: Array, low: float, high: float) -> Array:
    """F⁻¹(Φ(z)) for a standard normal between low and high.

    Probabilities are those of the nearer tail: near 1 they have no digits left.
    """
    xp = array_namespace(z)
    least, largest = _phi(low), _phi(-high)
    mass = _phi(high) - least if low < 0 else _phi(-low) - largest
    below = least + mass * _special("ndtr", z)
    above = largest + mass * _special("ndtr", -z)
    nearer = xp.minimum(below, above)
    x = _special("ndtri", nearer)
    return xp.clip(xp.where(below < above, x, -x), low, high)


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


def _of(name: str) -> Callable[[Array], Array]:
    return lambda x: getattr(array_namespace(x), name)(x)


def _clamp(x: Array, low: float | None = None, high: float | None = None) -> Array:
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
    FUNCTIONS[_name] = _of(_name)
FUNCTIONS["tanh"] = _of("tanh")


def transformed(function: str, *arguments: Any) -> Distribution | None:
    """The law of a function of numbers of one draw; None if it is not in `FUNCTIONS`.

    Shifts and multiples of a basic law are basic laws where they can be.
    """
    function, arguments = _as_sum_or_product(function, arguments)
    if function not in FUNCTIONS:
        return None
    return _basic_law(function, arguments) or Distribution(function, arguments)


def _as_sum_or_product(
    function: str, arguments: tuple[Any, ...]
) -> tuple[str, tuple[Any, ...]]:
    """Differences, negatives and quotients by numbers as sums and products.

    In sums and products a law comes first, and a number second.
    """
    if function == "neg":
        return "mul", (arguments[0], -1.0)
    if function in ("sub", "rsub"):
        x, y = arguments if function == "sub" else arguments[::-1]
        negative = transformed("mul", y, -1.0) if isinstance(y, Distribution) else -y
        function, arguments = "add", (x, negative)
    elif function == "div" and not isinstance(arguments[1], Distribution):
        function, arguments = "mul", (arguments[0], 1 / arguments[1])
    if function in ("add", "mul") and not isinstance(arguments[0], Distribution):
        arguments = arguments[::-1]
    return function, tuple(arguments)


def _basic_law(function: str, arguments: tuple[Any, ...]) -> Distribution | None:
    """The law of a function as a basic law, where it has one."""
    x, *others = arguments
    if not isinstance(x, Distribution):
        return None
    if function == "erfinv" and x.law == "uniform":
        return _normal_between(x)
    if function == "clamp" and _clamp_changes_nothing(*arguments):
        return x
    if x.law not in LOCATED or len(others) != 1 or isinstance(others[0], Distribution):
        return None
    (number,) = others
    if function == "mul" and number:
        return _multiple(x, number)
    if function == "add":
        return _shifted(x, number)
    return None


def _multiple(x: Distribution, factor: float) -> Distribution:
    mean, std, *ends = x.arguments
    ends = sorted(end * factor for end in ends)
    return Distribution(x.law, (mean * factor, std * abs(factor), *ends))


def _shifted(x: Distribution, number: float) -> Distribution:
    mean, std, *ends = x.arguments
    return Distribution(x.law, (mean + number, std, *(end + number for end in ends)))


def _normal_between(x: Distribution) -> Distribution:
    """erfinv of a uniform number in [a, b]: √½ times a normal one between its ends."""
    low, high = _ends(x)
    # ends in single precision may lie beyond ±1 by rounding
    ends = [
        float(_special("ndtri", np.asarray(min(max(0.5 + 0.5 * end, 0.0), 1.0))))
        for end in (low, high)
    ]
    std = math.sqrt(0.5)
    return truncated_normal(0.0, std, *(std * end for end in ends))


def _ends(x: Distribution) -> tuple[float, float]:
    """The least and the largest number."""
    if x.law == "truncated normal":
        return x.arguments[2], x.arguments[3]
    if x.law == "uniform":
        mean, std = x.arguments
        return mean - math.sqrt(3.0) * std, mean + math.sqrt(3.0) * std
    return -math.inf, math.inf


def _clamp_changes_nothing(
    x: Distribution, low: float | None = None, high: float | None = None
) -> bool:
    """Whether all numbers are between two bounds anyway, up to rounding."""
    first, last = _ends(x)
    if x.law == "normal":
        mean, std = x.arguments
        first, last = mean - NEVER_BEYOND * std, mean + NEVER_BEYOND * std
    rounding = 1e-6 * (last - first)
    above_low = low is None or low <= first + rounding
    below_high = high is None or high >= last - rounding
    return above_low and below_high
