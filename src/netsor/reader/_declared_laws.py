"""Laws that a user declares for parameters, by name or pattern.

A declaration is the standard deviation of a Gaussian, a frozen distribution of
scipy.stats, a `Parameter`, or a list of these for equal parts of the first axis, such
as heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from .._validate import ArgumentError, as_number, scale
from ..functions.quantiles import Distribution, transformed, truncated_normal
from ._laws import DECLARED, LAWS, PARTS, Parameter

# a declaration: see above
Declaration = Any
ALLOWED = (
    "a standard deviation, a frozen distribution of scipy.stats (norm, uniform,"
    " truncnorm, expon or loguniform), a Parameter, or a list of these for equal parts"
    " of the first axis"
)


def check_declared(declared: Any) -> None:
    """Reject all but a mapping of names or patterns to laws."""
    if declared is None:
        return
    if not isinstance(declared, Mapping) or not all(
        isinstance(name, str) for name in declared
    ):
        allowed = (
            "a mapping of names or patterns of parameters to standard deviations, as"
            " {'*.bias': 0.02}"
        )
        raise ArgumentError("declared", declared, allowed)
    for pattern, declaration in declared.items():
        law_of_declaration(declaration, f"declared[{pattern!r}]")


def law_of_declaration(declaration: Declaration, argument: str) -> Parameter:
    """The law that a user declares; `argument` is what an error names."""
    if isinstance(declaration, Parameter):
        if declaration.law not in LAWS:
            raise ArgumentError(
                f"{argument}.law", declaration.law, f"one of {', '.join(LAWS)}"
            )
        scale(declaration.std, f"{argument}.std")
        return declaration
    if isinstance(declaration, list | tuple) and declaration:
        laws = tuple(
            law_of_declaration(part, f"{argument}[{k}]")
            for k, part in enumerate(declaration)
        )
        return Parameter(name="", shape=(), law=PARTS, note=DECLARED, value=laws)
    if hasattr(declaration, "dist") and hasattr(declaration, "ppf"):
        return _law_of_scipy(declaration, argument)
    if as_number(declaration) is None:
        raise ArgumentError(argument, declaration, ALLOWED)
    scale(declaration, argument)
    if declaration == 0:
        return constant(0.0)
    return Parameter(
        name="", shape=(), law="normal", std=float(declaration), note=DECLARED
    )


def constant(value: float) -> Parameter:
    """The law of a parameter with one number in every entry.

    Parameters
    ----------
    value : float
        The number.

    Examples
    --------
    >>> check = ns.torch.check_init(
    ...     build, declared={"*.norm.weight": ns.torch.constant(1.0)}
    ... )  # doctest: +SKIP
    """
    number = as_number(value)
    if number is None:
        raise ArgumentError("value", value, "a number")
    return Parameter(name="", shape=(), law="constant", value=number, note=DECLARED)


def _law_of_scipy(frozen: Any, argument: str) -> Parameter:
    """The law of a frozen distribution of scipy.stats."""
    name = frozen.dist.name
    shapes, location, size = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
    shapes = [float(shape) for shape in shapes]
    location = float(location)
    size = float(size)
    law: Distribution | None = None
    match name:
        case "norm":
            law = Distribution("normal", (location, size))
        case "uniform":
            std = size / math.sqrt(12)
            law = Distribution("uniform", (location + size / 2, std))
        case "truncnorm":
            start, stop = shapes
            low = location + size * start
            high = location + size * stop
            law = truncated_normal(location, size, low, high)
        case "expon" if location == 0:
            law = Distribution("exponential", (1 / size,))
        case "loguniform" | "reciprocal" if location == 0:
            start, stop = shapes
            low = math.log(size * start)
            high = math.log(size * stop)
            of_log = ((low + high) / 2, (high - low) / math.sqrt(12))
            law = transformed("exp", Distribution("uniform", of_log))
    if law is None:
        raise ArgumentError(argument, name, ALLOWED)
    return Parameter(
        name="",
        shape=(),
        law=law.name,
        mean=law.mean,
        std=law.std,
        note=DECLARED,
        kurtosis=law.kurtosis,
        entries=law,
    )


def with_declared(
    rows: Mapping[str, Parameter], declared: Mapping[str, Declaration]
) -> dict[str, Parameter]:
    """The laws, replaced by those that a user declares, by name or pattern."""
    check_declared(declared)
    laws = dict(rows)
    for pattern, declaration in declared.items():
        names = [name for name in laws if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(
                f"declared={pattern!r} names no parameter; there are"
                f" {', '.join(list(laws)[:4])}, …"
            )
        new = law_of_declaration(declaration, f"declared[{pattern!r}]")
        for name in names:
            sampled = laws[name]
            laws[name] = replace(
                new,
                name=name,
                shape=sampled.shape,
                fan_in=sampled.fan_in,
                framework=sampled.framework,
            )
    for name, sampled in rows.items():
        if sampled.law == "copy" and _same_number(laws[name], laws[str(sampled.of)]):
            laws[name] = replace(sampled, std=laws[name].std)  # it stays a copy
    return laws


def _same_number(first: Parameter, second: Parameter) -> bool:
    """Whether two laws are declared by the same standard deviation."""
    as_numbers = first.note == second.note == DECLARED
    return as_numbers and first.law == second.law and first.std == second.std
