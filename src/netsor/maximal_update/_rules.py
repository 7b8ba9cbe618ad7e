"""Derived rules: exponents of every parameter, and factors of outputs of modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ._power import Power

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # of a layer, in the path of a parameter


ZERO = Power()


@dataclass(frozen=True)
class ParameterRule:
    """The powers of width and depth by which to multiply the settings of a parameter.

    Attributes
    ----------
    std, lr, eps, weight_decay : Power
        Factors of the initial values, the learning rate, Adam's eps and the decay. That
        of `std` is relative to the initialisation of the module as it is.
    is_free : bool
        Whether the parameter may start smaller, or at 0: its output is of order 1 only
        after a step.
    has_unknown_eps : bool
        Whether gradients do not determine the power of eps, which is then constant.

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
    has_unknown_eps: bool = False


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
        """The rule of a parameter, by its name or its pattern."""
        for pattern in patterns_of(name):
            if pattern in self.parameters:
                return self.parameters[pattern]
        return ParameterRule()

    def without_rows(self) -> ScalingRule:
        """The same without factors of rows of parameters."""
        scales = tuple(x for x in self.scales if not x.parameters)
        return ScalingRule(self.parameters, scales)

    def placed(
        self, paths: Collection[str], names: Collection[str]
    ) -> tuple[OutputScale, ...]:
        """The factors with the paths, and the names of parameters, of a network for
        patterns of them.
        """
        placed = []
        for scale in self.scales:
            if scale.parameters:
                parameters: list[str] = []
                for pattern in scale.parameters:
                    parameters += matches(pattern, names)
                placed.append(replace(scale, parameters=tuple(parameters)))
            else:
                for path in matches(scale.path, paths):
                    placed.append(replace(scale, path=path))
        return tuple(placed)

    def by_pattern(self) -> ScalingRule:
        """The same for networks of every depth: names with * for the number of a
        layer.
        """
        scales = {}
        for scale in self.scales:
            patterns = dict.fromkeys(map(layer_pattern_of, scale.parameters))
            path = layer_pattern_of(scale.path)
            of_layers = replace(scale, path=path, parameters=tuple(patterns))
            scales[path, scale.part] = of_layers
        parameters: dict[str, ParameterRule] = {}
        for pattern, names in groups_of(self.parameters).items():
            rules = {name: self.parameters[name] for name in names}
            if len(set(rules.values())) == 1:
                parameters[pattern] = rules[names[0]]
            else:
                parameters |= rules
        return ScalingRule(parameters, tuple(scales.values()))


def collapsed(
    rules: Mapping[str, ParameterRule], repeated: Collection[str] = ()
) -> dict[str, ParameterRule]:
    """The rules by the most general patterns whose parameters all have the same.

    `repeated` are patterns of parameters that repeat from layer to layer. They have a
    rule in any case, the most common one of their layers, so that networks with more
    layers have it too; layers with another rule have it by name.
    """
    rules_of_pattern: dict[str, Counter[ParameterRule]] = {}
    for name, rule in rules.items():
        for pattern in patterns_of(name):
            rules_of_pattern.setdefault(pattern, Counter())[rule] += 1
    result: dict[str, ParameterRule] = {}
    for name, rule in rules.items():
        most_general = name
        for pattern in patterns_of(name):  # from the name to all numbers
            if len(rules_of_pattern[pattern]) == 1:
                most_general = pattern
        layers = layer_pattern_of(name)
        if layers in repeated and most_general == name != layers:
            ((most_common, _),) = rules_of_pattern[layers].most_common(1)
            result.setdefault(layers, most_common)
            if rule == most_common:
                continue
        result.setdefault(most_general, rule)
    return result


def patterns_of(name: str) -> tuple[str, str, str]:
    """A path, and the same with * for the number of a layer, and for all numbers."""
    return name, layer_pattern_of(name), pattern_of(name)


def layer_pattern_of(name: str) -> str:
    """A path with * for its first number, that of a layer."""
    return NUMBER.sub("*", name, count=1)


def pattern_of(name: str) -> str:
    """A path with * for all numbers, those of layers and of parts of them."""
    return NUMBER.sub("*", name)


def matches(pattern: str, names: Iterable[str]) -> list[str]:
    """The names of a pattern, in order."""
    return [name for name in names if pattern in patterns_of(name)]


def groups_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by pattern, with * for the number of a layer."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(layer_pattern_of(name), []).append(name)
    return groups
