"""Derived rules: exponents of every parameter, and factors of outputs of modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ._parameter_names import parameters_of
from ._power import Power
from ._scale_hooks import OutputScale, add_scale

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


@dataclass(frozen=True)
class ScalingRule:
    """The exponents of a module: by names of parameters, and factors of outputs."""

    parameters: Mapping[str, ParameterRule] = field(default_factory=dict)
    scales: tuple[OutputScale, ...] = ()

    def of(self, name: str) -> ParameterRule:
        """The rule of a parameter, by its name or its pattern."""
        if name in self.parameters:
            return self.parameters[name]
        return self.parameters.get(pattern_of(name), ParameterRule())

    def without_rows(self) -> ScalingRule:
        """The same without factors of rows of parameters."""
        scales = tuple(x for x in self.scales if not x.parameters)
        return ScalingRule(self.parameters, scales)

    def prepare(self, module: Any, width: float, depth: float) -> None:
        """Rescale the initial numbers of a new module, and scale its outputs."""
        with torch.no_grad():
            for name, p in parameters_of(module).items():
                factor = self.of(name).std.of(width, depth)
                if factor != 1:
                    p.mul_(factor)
        for scale in self.placed(module):
            add_scale(module, scale, scale.power.of(width, depth))

    def placed(self, module: Any) -> tuple[OutputScale, ...]:
        """The factors with the paths of a module for patterns of paths."""
        paths = [path for path, _ in module.named_modules()]
        names = [*parameters_of(module)]
        placed = []
        for scale in self.scales:
            if scale.parameters:
                of_scale = tuple(x for y in scale.parameters for x in matches(y, names))
                placed.append(replace(scale, parameters=of_scale))
                continue
            of_module = matches(scale.path, paths)
            placed += [replace(scale, path=path) for path in of_module]
        return tuple(placed)

    def by_pattern(self) -> ScalingRule:
        """The same for networks of every depth: names with * for the number of a
        layer.
        """
        scales = {}
        for x in self.scales:
            names = tuple(dict.fromkeys(map(pattern_of, x.parameters)))
            each = replace(x, path=pattern_of(x.path), parameters=names)
            scales[(each.path, each.part)] = each
        return ScalingRule(collapsed(self.parameters), tuple(scales.values()))

    def groups(
        self,
        module: Any,
        lr: float,
        width: float,
        depth: float,
        matrices: Mapping[str, Sequence[int] | None],
    ) -> list[dict[str, Any]]:
        """The groups of an optimiser, one for each parameter.

        `matrices` are those that may have an optimiser of their own, with the sizes of
        their parts if they are fused.
        """
        groups: list[dict[str, Any]] = []
        for name, p in parameters_of(module).items():
            if not p.requires_grad:
                continue
            rate = lr * self.of(name).lr.of(width, depth)
            group = {"params": [p], "lr": rate, "is_matrix": name in matrices}
            groups.append({**group, "split": matrices.get(name)})
        return groups


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


def matches(pattern: str, names: Iterable[str]) -> list[str]:
    """The names of a pattern, in order."""
    return [name for name in names if pattern in (name, pattern_of(name))]


def groups_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by pattern."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(pattern_of(name), []).append(name)
    return groups
