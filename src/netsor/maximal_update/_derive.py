"""Derives a rule: measures and changes until nothing remains to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .._validate import ArgumentError, Shape, real, whole
from ._depth_rule import Depths, derive_depth
from ._file_content import reference_of
from ._measurement import (
    Graphs,
    Measurement,
    Size,
    measure,
    repeated_groups,
)
from ._own_optimiser import OwnOptimiser
from ._power import Power
from ._results import DerivedRule, Solved, evidence_of
from ._rules import OutputScale, ParameterRule, Part, ScalingRule, layer_pattern_of
from ._solve import Solution, Solver, halves, is_decided, nearest_half
from ._subject import Family, Subject

WIDTHS = (64, 128, 256)
DRAWS = 4
TOO_FEW = ": two initialisations give intervals that decide no exponent"
MOST_ROUNDS = 8  # of measuring and changing


def derive(
    subject: Subject,
    graphs: Graphs,
    widths: Sequence[int],
    draws: int,
    *,
    own: OwnOptimiser,
    progress: Callable[[str], None] | None,
    depths: Depths | None = None,
    branch_power: float | None = None,
) -> DerivedRule:
    """The rule of a subject.

    `own` is the optimiser of the user, which the rule changes, and `depths` measures
    networks of several depths, if these matter.
    """
    say = progress or (lambda line: None)
    derived = _derived(subject, graphs, widths, draws, own, say)
    rule, depth = derived.rule, None
    if depths is not None:
        of_patterns, depth = derive_depth(subject, depths, rule, branch_power, say)
        rule = ScalingRule(
            {name: of_patterns.of(name) for name in rule.parameters},
            depths.placed(of_patterns),
        )
    return DerivedRule(
        subject=subject,
        widths=widths,
        draws=draws,
        rule=rule,
        depth=depth,
        evidence=evidence_of(derived.first, derived.last),
        expected=_expected(derived.last),
        reference=reference_of(_unscaled_shapes(derived), widths),
        growing=tuple(
            _describe(derived.last.measurement, k)
            for k in derived.last.solution.growing
        ),
        matrices=tuple(derived.last.measurement.matrices),
        repeated=_repeated_patterns(derived.last.measurement.shapes),
        own=own,
    )


def validated_splits(split_sizes: Any, is_mixed: bool) -> Mapping[str, Any]:
    """The parts of fused matrices, validated."""
    if split_sizes is None:
        return {}
    if not is_mixed:
        raise ArgumentError(
            "split_sizes",
            split_sizes,
            "left out: this optimiser moves each entry of a matrix separately",
        )
    allowed = "a dict of the number of parts, or a function of the width, by patterns"
    if not isinstance(split_sizes, Mapping):
        raise ArgumentError("split_sizes", split_sizes, allowed)
    for parts in split_sizes.values():
        if not callable(parts) and not (isinstance(parts, int) and parts > 0):
            raise ArgumentError("split_sizes", split_sizes, allowed)
    return split_sizes


def validated_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Widths, sorted, each once."""
    sizes = tuple(sorted({whole(width, "widths") for width in widths}))
    if not sizes:
        raise ArgumentError("widths", [], "two or more")
    if len(sizes) < 2:
        raise ArgumentError(
            "widths",
            list(sizes),
            f"two or more, such as {sizes[0]},{2 * sizes[0]}: one has no exponent",
        )
    return sizes


def validated_depths(
    depths: Sequence[int] | None, branch_power: float | None
) -> tuple[int, ...] | None:
    """Depths, sorted, each once; None: only the width matters."""
    if branch_power is not None:
        real(branch_power, "branch_power", least=-1, most=-0.5)
    if depths is None:
        if branch_power is not None:
            raise ArgumentError("branch_power", branch_power, "left out without depths")
        return None
    layers = tuple(sorted({whole(depth, "depths") for depth in depths}))
    if not layers:
        raise ArgumentError("depths", [], "two or more")
    if len(layers) < 2:
        raise ArgumentError(
            "depths",
            list(layers),
            f"two or more, such as {layers[0]},{2 * layers[0]}: one has no exponent",
        )
    return layers


def _unscaled_shapes(derived: Derived) -> list[dict[str, Shape]]:
    """The shapes of the parameters that have no factor, at each width."""
    scaled = {name for x in derived.rule.scales for name in x.parameters}
    return [
        {name: shape for name, shape in shapes.items() if name not in scaled}
        for shapes in derived.last.measurement.shapes
    ]


def _repeated_patterns(shapes: Sequence[Mapping[str, Shape]]) -> frozenset[str]:
    """Patterns whose parameters have the same shape in every layer."""
    groups_with_pattern: Counter[str] = Counter()
    for names in repeated_groups(shapes):
        patterns = {layer_pattern_of(name) for name in names}
        groups_with_pattern.update(patterns)
    # one whose layers differ in shape is in several groups
    return frozenset(
        pattern for pattern, groups in groups_with_pattern.items() if groups == 1
    )


class Derived(NamedTuple):
    """A rule, and what was measured before and under it."""

    rule: ScalingRule
    first: Solved
    last: Solved


def _derived(
    subject: Subject,
    graphs: Graphs,
    widths: Sequence[int],
    draws: int,
    own: OwnOptimiser,
    say: Callable[[str], None],
) -> Derived:
    """Measure and change until nothing remains to change."""
    rule = ScalingRule()
    first: Solved | None = None
    sizes: list[Size] = [(width, subject.base_depth) for width in widths]
    for round_number in range(1, MOST_ROUNDS + 1):
        say(f"round {round_number}: {draws} initialisations at {len(widths)} widths")
        measurement = measure(graphs, rule, sizes, draws)
        solver = Solver(
            measurement.operations, measurement.exponents, measurement.random
        )
        last = Solved(measurement, solver.solve())
        first = first or last
        changed = _changed(rule, last, subject.family, graphs, own)
        if changed == rule:
            return Derived(rule, first, last)
        rule = changed
    raise ArgumentError(
        "build",
        getattr(subject.build, "__name__", "build"),
        f"a module whose exponents settle: they still change after {MOST_ROUNDS} rounds"
        " (give larger widths, or more draws)",
    )


def _expected(last: Solved) -> dict[str, float]:
    """The exponent of the change of the output of each submodule."""
    return {
        operation.path: last.solution.change[operation.index]
        for operation in last.measurement.operations.operations
        if operation.path and operation.index in last.solution.change
    }


def _describe(measurement: Measurement, index: int) -> str:
    """An operation by its name and the nearest module after it."""
    by_index = {x.index: x for x in measurement.operations.operations}
    for later_index, operation in by_index.items():
        if later_index >= index and operation.path:
            return f"{by_index[index].name} in {operation.path}"
    return f"{by_index[index].name} in the module"


def _changed(
    rule: ScalingRule,
    solved: Solved,
    family: Family,
    graphs: Graphs,
    own: OwnOptimiser,
) -> ScalingRule:
    """The rule with one kind of change: of standard deviations, of scales, or of rates.

    The numbers that decide the later ones depend on the earlier ones.
    """
    solution = solved.solution
    measurement = solved.measurement
    names = measurement.operations.graph.parameters
    before = {name: rule.of(name) for name in names}
    with_stds = {name: _with_std(before[name], name, solution) for name in names}
    if with_stds != before:
        return ScalingRule(with_stds, rule.scales)
    if solution.scales:
        scales = _with_scales(rule, solution, measurement, graphs)
        return ScalingRule(before, scales)
    with_rates = {
        name: _with_rates(before[name], name, solved, family, own.lr.get(name, 0.0))
        for name in names
    }
    return ScalingRule(with_rates, rule.scales)


def _with_std(rule: ParameterRule, name: str, solution: Solution) -> ParameterRule:
    """The rule of a parameter with its standard deviation changed."""
    change = halves(solution.std.get(name, 0.0))
    if not change:
        return rule
    return replace(rule, std=Power(rule.std.width + change))


def _with_rates(
    rule: ParameterRule,
    name: str,
    solved: Solved,
    family: Family,
    own_rate: float,
) -> ParameterRule:
    """The rule of a parameter with its learning rate, weight decay and eps changed.

    The eps of Adam follows the size of the gradient. `own_rate` is the exponent of the
    learning rate of the user, which that of the rule multiplies.
    """
    solution = solved.solution
    measurement = solved.measurement
    is_matrix = name in measurement.matrices
    lr = Power(rule.lr.width + solution.lr.get(name, 0.0) + 0.0)
    eps = rule.eps
    gradient = measurement.gradients.get(name)
    is_unknown = False
    if family.has_eps and not is_matrix and gradient is not None:
        is_unknown = not is_decided(gradient.exponent)
        eps = Power() if is_unknown else Power(nearest_half(gradient.exponent))
    rate = own_rate + lr.width
    if family.is_sphere and is_matrix:
        weight_decay = Power()  # the norm is fixed
    elif family.decays_gradient:
        weight_decay = _decay_of_gradient(name, solved, rate)
    else:
        weight_decay = Power(-rate + 0.0)  # times the learning rate, it stays
    return ParameterRule(
        std=rule.std,
        lr=lr,
        eps=eps,
        weight_decay=weight_decay,
        is_free=name in solution.free,
        has_unknown_eps=is_unknown,
    )


def _decay_of_gradient(name: str, solved: Solved, rate: float) -> Power:
    """The power of a weight decay that is added to Adam's gradient: the size of the
    gradient over that of the parameter, so that it is as large a part at every width.

    `rate` is the exponent of the learning rate. A parameter is as large as its initial
    numbers or its updates; one that may start at 0 as these.
    """
    measurement = solved.measurement
    gradient, std = measurement.gradients.get(name), measurement.stds.get(name)
    if gradient is None or not is_decided(gradient.exponent):
        return Power()
    size = 0.0 if std is None else nearest_half(std.exponent)
    if name in solved.solution.free:
        size = rate
    return Power(nearest_half(gradient.exponent) - max(size, rate) + 0.0)


def _with_scales(
    rule: ScalingRule, solution: Solution, measurement: Measurement, graphs: Graphs
) -> tuple[OutputScale, ...]:
    """The factors of outputs: those of the rule, times those that the solution adds.

    Several operations may have one place, such as those of all layers of a scan, or of
    a module that is called twice. They get one factor, the smallest that one of them
    needs. An exponent of 0 is no factor.
    """
    scales = {(scale.path, scale.part): scale for scale in rule.scales}
    exponents_before = {key: scale.power.width for key, scale in scales.items()}
    added_exponents: dict[tuple[str, Part | None], float] = {}
    for index, exponent in solution.scales.items():
        place = graphs.place_of_scale(measurement, index)
        key = (place.path, place.part)
        added = min(exponent, added_exponents.get(key, exponent))
        added_exponents[key] = added
        total = exponents_before.get(key, 0.0) + added
        is_logits = _leads_to(measurement, index, measurement.operations.last)
        scales[key] = OutputScale(
            path=place.path,
            part=place.part,
            power=Power(round(2 * total) / 2),
            what="logits" if is_logits else "scores",
            parameters=place.parameters,
        )
    return tuple(scale for scale in scales.values() if scale.power.width)


def _leads_to(measurement: Measurement, index: int, last: int) -> bool:
    """Whether the operation `last` is that of this index, up to views and factors."""
    by_index = {x.index: x for x in measurement.operations.operations}
    while last != index:
        operation = by_index.get(last)
        if operation is None or operation.source is None:
            return False
        if index == operation.source:
            return True
        last = operation.inputs[0]
    return True
