"""Parameters that repeat from layer to layer have one measurement and one rule."""

from __future__ import annotations

import pytest

from tests.internals import (
    ParameterRule,
    PowerOfSizes,
    _pooled,
    collapsed,
    repeated_groups,
)

MATRIX = ParameterRule(lr=PowerOfSizes(-1.0))
VECTOR = ParameterRule()
SMALL_EPS = ParameterRule(eps=PowerOfSizes(-1.0))


def shapes(width):
    """Of two blocks with a scalar each, and of a stack of three matrices."""
    return {
        "blocks.0.scale": (),
        "blocks.1.scale": (),
        "stack.0.weight": (width, 3),
        "stack.2.weight": (width, width),
        "stack.4.weight": (width, width),
        "head.weight": (5, width),
    }


def test_parameters_of_the_same_name_and_shapes_are_a_group():
    assert repeated_groups([shapes(8), shapes(16)]) == [
        ["blocks.0.scale", "blocks.1.scale"],
        ["stack.0.weight"],
        ["stack.2.weight", "stack.4.weight"],
        ["head.weight"],
    ]


def test_experts_are_a_group_and_unlike_parts_of_layers_are_not():
    experts = {
        f"layers.{k}.experts.{e}.up.weight": (8, 8) for k in range(2) for e in range(3)
    }
    parts = {
        f"layers.{k}.mlp.{j}.{name}": (8,)
        for k in range(2)
        for j, name in ((0, "weight"), (1, "weight"), (1, "bias"))
    }
    groups = [set(x) for x in repeated_groups([{**experts, **parts}])]
    assert set(experts) in groups
    assert {"layers.0.mlp.0.weight", "layers.1.mlp.0.weight"} in groups
    assert len(groups) == 4


def test_pooled_size_is_the_geometric_mean_without_zeros():
    groups = [["a.0.x", "a.1.x", "a.2.x"], ["b"], ["c.0.y", "c.1.y"]]
    sizes = {"a.0.x": 1.0, "a.1.x": 0.0, "a.2.x": 4.0, "b": 3.0, "c.0.y": 0.0}
    pooled = _pooled(sizes, groups)
    assert [pooled[name] for name in groups[0]] == pytest.approx([2.0] * 3)
    assert pooled["b"] == pytest.approx(3.0)
    assert pooled["c.0.y"] == 0.0


def test_layers_with_one_rule_have_a_pattern():
    rules = {"blocks.0.w.weight": MATRIX, "blocks.1.w.weight": MATRIX}
    assert collapsed(rules) == {"blocks.*.w.weight": MATRIX}


def test_repeated_layers_that_differ_have_a_pattern_and_exceptions():
    names = [f"blocks.{k}.scale" for k in range(3)]
    rules = dict(zip(names, [SMALL_EPS, VECTOR, VECTOR], strict=True))
    found = collapsed(rules, repeated={"blocks.*.scale"})
    assert found == {"blocks.*.scale": VECTOR, "blocks.0.scale": SMALL_EPS}


def test_layers_of_other_shapes_that_differ_have_no_pattern():
    """A deeper stack has another matrix in the place of the last one."""
    rules = {"stack.0.weight": VECTOR, "stack.2.weight": MATRIX}
    assert collapsed(rules) == rules
