"""Maximal-update parametrisations of modules, derived by measurement.

`_forward_graph` records the operations of a module, `_responses` measures how each
responds to changes of its inputs and its weights, `_measure` finds how these depend on
the width, and `_solve` finds the exponents under which every change is of order 1.
`_branches` finds residual streams, and `_depth` the exponents of the depth.
`_emitted_file` writes them as plain PyTorch, and `_real_training` checks the result by
real steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..._validate import ArgumentError, Shape, also_spelled, one_of, real, whole
from ._depth import derive_depth
from ._emitted_file import reference_of
from ._measure import Graphs, Measurement, Size, Subject, measure
from ._optimisers import FAMILIES, Family
from ._parameter_names import parameters_of
from ._power import Power
from ._results import DerivedRule, Solved, evidence_of
from ._rules import ParameterRule, ScalingRule
from ._scale_hooks import OutputScale, place_of_scale
from ._solve import Solution, Solver, halves

__all__ = ["parametrise"]

CLASSES = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
WIDTHS = (64, 128, 256)
DRAWS = 4
MOST_ROUNDS = 8  # of measuring and changing


@also_spelled(optimizer="optimiser")
def parametrise(
    build: Callable[..., Any],
    *,
    optimiser: str | Callable[[Any], Any] = "adamw",
    widths: Sequence[int] = WIDTHS,
    depths: Sequence[int] | None = None,
    branch_power: float | None = None,
    batch: Any = None,
    split_sizes: Mapping[str, int | Callable[[int], Sequence[int]]] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> DerivedRule:
    """Derive how initialisation and learning rates must follow the width, so that every
    activation and every update is of order 1 (maximal updates, µP).

    The module is run at several widths, and every operation is measured: how large its
    result is, how much it responds to changes of its inputs in the direction of
    gradients, and how much the update of each weight changes it. The exponents follow
    from these numbers, not from shapes or names, and are measured again after they are
    applied, until nothing remains to change.

    Parameters
    ----------
    build : callable
        A function of the width that returns a module with logits. All that should grow
        must grow with it.
    optimiser : str or callable
        "adamw", "adam", "sgd", "lion", "sign", "muon" (with AdamW for all but
        matrices), "adamh" or "muonh" (matrices of a fixed Frobenius norm). Or a
        function of the module that returns its AdamW, Adam or SGD with your own groups:
        then `rule.departures` lists what is not maximal in them and in the module. You
        can also write `optimizer`.
    widths : sequence of int
        Widths to measure, at least two. The smallest is the base of the exponents.
    depths : sequence of int, optional
        Numbers of layers to measure, at least two, for the exponents of the depth, too.
        `build` is then a function of the width and the depth. Widths are measured at
        the smallest depth, and depths at the smallest width.
    branch_power : float, optional
        The exponent of the depth that the branches of the residual stream get, from -1
        to -1/2. By default the one under which updates are largest: -1, or -1/2 if each
        branch is a linear function of its parameters.
    batch : tuple, optional
        (inputs, targets): tensors that the module takes, and the right class for each
        row of its logits. By default two sequences of eight random tokens, each the
        target of the one before.
    split_sizes : mapping, optional
        For "muon", "adamh" and "muonh": fused matrices that are optimised in parts, by
        names or patterns, such as {"*.c_attn.weight": 3}. A value is the number of
        equal parts, or a function of the width that returns the sizes.
    draws : int
        Initialisations at each width, at least 2.
    seed : int
        The first seed of PyTorch; initialisation k has seed + k.
    progress : callable, optional
        Called with a line of text at each stage.

    Returns
    -------
    rule : DerivedRule
        `rule.parameters` has the exponents of each parameter, `rule.scales` the factors
        of outputs, and `rule.evidence` what was measured; `rule.depth` is what was
        measured at several depths, or None. Print the rule for the table;
        `rule.source()` is a file of plain PyTorch, and `rule.check()` tests it by real
        training.

    Examples
    --------
    >>> rule = ns.torch.parametrise(build, optimiser="adamw")  # doctest: +SKIP
    >>> print(rule)  # doctest: +SKIP
    >>> Path("mup.py").write_text(rule.source(), "utf-8")  # doctest: +SKIP
    """
    sizes = _widths(widths)
    whole(draws, "draws", least=2)
    if not callable(build) or isinstance(build, torch.nn.Module):
        raise ArgumentError(
            "build", type(build).__name__, "a function of the width, not a module"
        )
    layers = _depths(depths, branch_power)
    base = sizes[:1] if layers is None else (sizes[0], layers[0])
    family = _family(build, optimiser, base)
    subject = Subject(
        build=build,
        family=family,
        batch=batch,
        seed=whole(seed, "seed", least=0),
        base_width=sizes[0],
        base_depth=None if layers is None else layers[0],
        split_sizes=_split_sizes(split_sizes, family.is_mixed),
        make=None if isinstance(optimiser, str) else optimiser,
    )
    say = progress or (lambda line: None)
    derived = _derived(subject, sizes, draws, say)
    rule, depth = derived.rule, None
    if layers is not None:
        of_patterns, depth = derive_depth(
            subject, rule, layers, 2 * draws, branch_power, say
        )
        rule = _at_base(subject, of_patterns)
    return DerivedRule(
        subject=subject,
        widths=sizes,
        draws=draws,
        rule=rule,
        depth=depth,
        evidence=evidence_of(derived.first, derived.last),
        expected=_expected(derived.last),
        reference=reference_of(_unscaled_shapes(derived), sizes),
        growing=tuple(
            _describe(derived.last.found, k) for k in derived.last.solution.growing
        ),
        matrices=tuple(derived.last.found.matrices),
        given=_given_exponents(subject, sizes),
    )


def _at_base(subject: Subject, rule: ScalingRule) -> ScalingRule:
    """A rule of patterns for the names of the smallest network."""
    module = subject.at_base_depth(subject.base_width)
    parameters = {name: rule.of(name) for name in parameters_of(module)}
    return ScalingRule(parameters, rule.placed(module))


def _depths(
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
    if len(layers) < 2:
        raise ArgumentError("depths", list(depths), "two depths or more")
    return layers


def _family(build: Callable[..., Any], optimiser: Any, size: tuple[int, ...]) -> Family:
    """The optimiser of a name, or that of the user, by its class."""
    if isinstance(optimiser, str) or not callable(optimiser):
        one_of(optimiser, "optimiser", "", tuple(FAMILIES))
        return FAMILIES[optimiser]
    made = optimiser(build(*size))
    for name, of_torch in CLASSES.items():
        if type(made) is of_torch:
            return FAMILIES[name]
    raise ArgumentError(
        "optimiser",
        type(made).__name__,
        "a name, or a function that returns torch.optim.AdamW, Adam or SGD",
    )


def _given_exponents(subject: Subject, widths: Sequence[int]) -> dict[str, float]:
    """The exponents of the learning rates of the optimiser of the user."""
    if subject.make is None:
        return {}
    rates = []
    for width in (widths[0], widths[-1]):
        module = subject.new(width, subject.base_depth, subject.seed, ScalingRule())
        rates.append(subject.given_rates(module))
    ratio = math.log(widths[-1] / widths[0])
    return {
        name: round(math.log(rates[1][name] / rate) / ratio, 3) + 0.0
        for name, rate in rates[0].items()
        if rate and rates[1][name]
    }


def _split_sizes(split_sizes: Any, is_mixed: bool) -> Mapping[str, Any]:
    """The parts of fused matrices, validated."""
    if split_sizes is None:
        return {}
    if not is_mixed:
        raise ArgumentError(
            "split_sizes",
            split_sizes,
            "left out: this optimiser moves every entry of a matrix by itself",
        )
    allowed = "a dict of the number of parts, or a function of the width, by patterns"
    if not isinstance(split_sizes, Mapping):
        raise ArgumentError("split_sizes", split_sizes, allowed)
    for parts in split_sizes.values():
        if not callable(parts) and not (isinstance(parts, int) and parts > 0):
            raise ArgumentError("split_sizes", split_sizes, allowed)
    return split_sizes


def _widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Widths, sorted, each once."""
    sizes = tuple(sorted({whole(width, "widths") for width in widths}))
    if len(sizes) < 2:
        raise ArgumentError("widths", list(widths), "two widths or more")
    return sizes


def _unscaled_shapes(derived: Derived) -> list[dict[str, Shape]]:
    """The shapes of the parameters that have no factor, at each width."""
    scaled = {name for x in derived.rule.scales for name in x.parameters}
    return [
        {name: shape for name, shape in shapes.items() if name not in scaled}
        for shapes in derived.last.found.shapes
    ]


class Derived(NamedTuple):
    """A rule, and what was measured before and under it."""

    rule: ScalingRule
    first: Solved
    last: Solved


def _derived(
    subject: Subject, widths: Sequence[int], draws: int, say: Callable[[str], None]
) -> Derived:
    """Measure and change until nothing remains to change."""
    rule, graphs = ScalingRule(), Graphs(subject)
    first: Solved | None = None
    sizes: list[Size] = [(width, subject.base_depth) for width in widths]
    for round_number in range(1, MOST_ROUNDS + 1):
        say(f"round {round_number}: {draws} initialisations at {len(widths)} widths")
        found = measure(graphs, rule, sizes, draws)
        solution = Solver(found.operations, found.exponents, found.random).solve()
        last = Solved(found, solution)
        first = first or last
        changed = _changed(rule, solution, found, subject.family)
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
        for operation in last.found.operations.operations
        if operation.path and operation.index in last.solution.change
    }


def _describe(found: Measurement, index: int) -> str:
    """An operation by its name and the nearest module after it."""
    by_index = {x.index: x for x in found.operations.operations}
    later = (x.path for k, x in by_index.items() if k >= index and x.path)
    return f"{by_index[index].name} in {next(later, 'the module')}"


def _changed(
    rule: ScalingRule, solution: Solution, found: Measurement, family: Family
) -> ScalingRule:
    """The rule with one kind of change: of standard deviations, of scales, or of rates.

    The numbers that decide the later ones depend on the earlier ones.
    """
    parameters = {name: rule.of(name) for name in found.operations.graph.parameters}
    for name in parameters:
        change = halves(solution.std.get(name, 0.0))
        if change:
            std = Power(parameters[name].std.width + change)
            parameters[name] = _replaced(parameters[name], std=std)
    if parameters != {name: rule.of(name) for name in parameters}:
        return ScalingRule(parameters, rule.scales)
    if solution.scales:
        return ScalingRule(parameters, _with_scales(rule, solution, found))
    without_decay = found.matrices if family.is_sphere else {}
    for name, each in parameters.items():
        lr = Power(each.lr.width + solution.lr.get(name, 0.0) + 0.0)
        eps = each.eps
        gradient = found.gradients.get(name)
        if family.has_eps and name not in found.matrices and gradient is not None:
            eps = Power(round(2 * gradient.exponent.value) / 2 + 0.0)
        parameters[name] = ParameterRule(
            std=each.std,
            lr=lr,
            eps=eps,
            weight_decay=Power() if name in without_decay else Power(-lr.width + 0.0),
            is_free=name in solution.free,
        )
    return ScalingRule(parameters, rule.scales)


def _replaced(rule: ParameterRule, *, std: Power) -> ParameterRule:
    """A rule with another standard deviation."""
    return ParameterRule(std, rule.lr, rule.eps, rule.weight_decay, rule.is_free)


def _with_scales(
    rule: ScalingRule, solution: Solution, found: Measurement
) -> tuple[OutputScale, ...]:
    """The factors of outputs, with further ones."""
    scales = {(x.path, x.part): x for x in rule.scales}
    last = found.operations.last
    for index, exponent in solution.scales.items():
        is_logits = _leads_to(found, index, last)
        place = place_of_scale(found.operations, index, found.values)
        earlier = scales.get((place.path, place.part))
        if earlier is not None:
            exponent += earlier.power.width
        scales[(place.path, place.part)] = OutputScale(
            path=place.path,
            part=place.part,
            power=Power(round(2 * exponent) / 2),
            what="logits" if is_logits else "scores",
            parameters=place.parameters,
        )
    return tuple(scale for scale in scales.values() if scale.power.width)


def _leads_to(found: Measurement, index: int, last: int) -> bool:
    """Whether a result is the logits, up to views and factors."""
    by_index = {x.index: x for x in found.operations.operations}
    while last != index:
        operation = by_index.get(last)
        if operation is None or operation.source is None:
            return False
        if index == operation.source:
            return True
        (last, *_) = operation.inputs
    return True
