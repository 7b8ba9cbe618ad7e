"""Derived rules: exponents of every parameter, and factors of outputs of modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from ._power import Power

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # of a layer, in the path of a parameter


ZERO = Power()


@dataclass(frozen=True)
class ParameterRule:
    """By which powers of the width and depth to multiply what belongs to a parameter.

    Attributes
    ----------
    std, lr, eps, weight_decay : Power
        Factors of the initial numbers, the learning rate, Adam's eps and the decay.
        That of `std` is relative to the initialisation of the module as it is.
    is_free : bool
        Whether the parameter may start smaller, or at 0: what it writes is of order 1
        only after a step.

    Examples
    --------
    >>> derived = ns.torch.parametrise(build, optimiser="adamw")  # doctest: +SKIP
    >>> exponent = derived.parameters["head.weight"].std.width  # doctest: +SKIP
    """

    std: Power = ZERO
    lr: Power = ZERO
    eps: Power = ZERO
    weight_decay: Power = ZERO
    is_free: bool = False


class Part(NamedTuple):
    """Entries of an axis, as shares of their number."""

    start: float
    stop: float
    # of a parameter of JAX; of a module of PyTorch it is the last axis of its output,
    # or the first one of a parameter
    axis: int = 0


@dataclass(frozen=True)
class OutputScale:
    """A factor of the output of a module, or of the rows of a parameter."""

    path: str
    part: Part | None  # None: the whole output
    power: Power
    what: str  # that it scales: "scores", "logits" or "branch"
    # those with the factor, if no submodule has the output; `path` is the first
    parameters: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where a factor can be put."""

    path: str
    part: Part | None
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingRule:
    """The exponents of a module: by names of parameters, and factors of outputs."""

    parameters: Mapping[str, ParameterRule] = field(default_factory=dict)
    scales: tuple[OutputScale, ...] = ()

    def of(self, name: str) -> ParameterRule:
        """The rule of a parameter, by its pattern."""
        if name in self.parameters:
            return self.parameters[name]
        for pattern, rule in self.parameters.items():
            if fnmatchcase(name, pattern):
                return rule
        return ParameterRule()

    def without_rows(self) -> ScalingRule:
        """The same without factors of rows of parameters."""
        scales = tuple(x for x in self.scales if not x.parameters)
        return ScalingRule(self.parameters, scales)


def collapsed(rules: Mapping[str, ParameterRule]) -> dict[str, ParameterRule]:
    """The rules by patterns with * for the number of a layer, where layers agree."""
    by_pattern: dict[str, set[ParameterRule]] = {}
    for name, rule in rules.items():
        by_pattern.setdefault(pattern_of(name), set()).add(rule)
    patterns: dict[str, ParameterRule] = {}
    for name, rule in rules.items():
        pattern = pattern_of(name)
        is_alike = len(by_pattern[pattern]) == 1
        patterns.setdefault(pattern if is_alike else name, rule)
    return patterns


def pattern_of(name: str) -> str:
    """A path with * for the numbers of layers."""
    return NUMBER.sub("*", name)


def groups_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by pattern."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(pattern_of(name), []).append(name)
    return groups
