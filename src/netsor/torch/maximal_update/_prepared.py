"""A module and the groups of its optimiser under a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...maximal_update._rules import OutputScale, ScalingRule
from ._parameter_names import parameters_of
from ._scale_hooks import add_scale


def prepare(rule: ScalingRule, module: Any, width: float, depth: float) -> None:
    """Rescale the initial numbers of a new module, and scale its outputs."""
    with torch.no_grad():
        for name, p in parameters_of(module).items():
            factor = rule.of(name).std.of(width, depth)
            if factor != 1:
                p.mul_(factor)
    for scale in placed_scales(rule, module):
        add_scale(module, scale, scale.power.of(width, depth))


def placed_scales(rule: ScalingRule, module: Any) -> tuple[OutputScale, ...]:
    """The factors of a rule with the paths of a module for patterns of paths."""
    paths = [path for path, _ in module.named_modules()]
    return rule.placed(paths, [*parameters_of(module)])


def groups_of_rule(
    rule: ScalingRule,
    module: Any,
    lr: float,
    width: float,
    depth: float,
    matrices: Mapping[str, Sequence[int] | None],
) -> list[dict[str, Any]]:
    """The groups of an optimiser, one for each parameter.

    `width` and `depth` are relative to the base, at which `lr` is the learning rate.
    `matrices` are those that may have an optimiser of their own, with the sizes of
    their parts if they are fused.
    """
    groups: list[dict[str, Any]] = []
    for name, p in parameters_of(module).items():
        if not p.requires_grad:
            continue
        group = {
            "params": [p],
            "lr": lr * rule.of(name).lr.of(width, depth),
            "is_matrix": name in matrices,
            "split": matrices.get(name),
        }
        groups.append(group)
    return groups
