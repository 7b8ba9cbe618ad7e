"""How a rule follows the depth: exponents of branches, learning rates and eps.

With branches L^−a of a stream of L layers, the stream stays of order 1 if a ≥ 1/2.
Updates of all layers add up along the gradient, so that learning rates within layers
follow L^(a−1). If a is 1, every update within a branch is of order 1 as well; if a is
smaller, a branch that has several layers is in the limit a linear function of its
parameters. Both exponents follow here from measurements at several depths: the size of
every branch, and what the updates of a parameter in all layers change in the loss.

They are measured with weak branches, which have a further constant factor. Layers then
see the same stream and the same gradient, and exponents are those of large depths: with
branches as strong as the stream, powers bend at depths such as 2 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._validate import ArgumentError
from ...laws._power_law import Exponent, Fit
from ...reader._graph import UnsupportedError
from ._batch import Batch, logits_in
from ._branches import Term, branches_of, by_pattern
from ._measure import (
    Draw,
    Graphs,
    Size,
    Subject,
    fits_of,
    groups_for,
    network_of,
    steps_of,
)
from ._parameter_names import parameters_of
from ._power import Power
from ._real_training import recorded
from ._responses import rms
from ._rules import ParameterRule, ScalingRule, groups_of, pattern_of
from ._scale_hooks import OutputScale, add_scale
from ._solve import halves

MOST_ROUNDS = 8  # of measuring and changing
DEEP, SHALLOW = -1.0, -0.5  # exponents of branches
WIDEST = 0.5  # half an interval of an exponent: steps of rules are halves
WEAK = 0.01  # the size of a branch, relative to the stream, in measurements
MIDDLE = "middle"  # for the number of a layer
NAMES = {DEEP: "CompleteP", SHALLOW: "depth-µP"}


class DepthEvidence(NamedTuple):
    """The exponents of the depth that belong to the parameters of a pattern.

    Attributes
    ----------
    before, after : Exponent or None
        Of what the updates of these parameters in all layers change in the loss, before
        and under the rule. None: they change nothing.
    """

    before: Exponent | None
    after: Exponent | None


class BranchEvidence(NamedTuple):
    """The exponents of the depth of a branch.

    Attributes
    ----------
    before, after : Exponent or None
        Of its size, before and under the rule.
    is_deep : bool
        Whether something in it reads what one of its parameters writes.
    """

    before: Exponent | None
    after: Exponent | None
    is_deep: bool


@dataclass(frozen=True)
class DepthRule:
    """What was derived and measured at several depths.

    Attributes
    ----------
    depths : tuple of int
        The depths; the smallest is the base.
    branches : dict
        `BranchEvidence` by paths of submodules, with * for the number of a layer.
    parameters : dict
        `DepthEvidence` by names of parameters, with * for the number of a layer.
    pattern : str
        Of a parameter that every layer has.
    power : float
        The exponent of branches under the rule.

    Examples
    --------
    >>> rule = ns.torch.parametrise(build, depths=[2, 4, 8])  # doctest: +SKIP
    >>> rule.depth.power  # doctest: +SKIP
    -1.0
    """

    depths: tuple[int, ...]
    branches: Mapping[str, BranchEvidence]
    parameters: Mapping[str, DepthEvidence]
    pattern: str
    power: float
    # exponents of the changes of outputs in the middle layer, by path
    expected: Mapping[str, float] = field(default_factory=dict)

    def named(self, path: str, size: tuple[int, ...]) -> str | None:
        """The name of an output in networks of every depth: those of the middle layer,
        which half of the layers are before, have "middle" for its number, and None is
        one of another layer.
        """
        return named_output(path, self.pattern, size[1])

    @property
    def worst(self) -> float:
        """The largest exponent that is left under the rule."""
        left = [x.after.value for x in self._decided if x.after is not None]
        return max(map(abs, left), default=0.0)

    @property
    def _decided(self) -> list[DepthEvidence]:
        """The parameters whose updates were measured well enough."""
        return [x for k, x in self.parameters.items() if k not in self.undecided]

    @property
    def undecided(self) -> list[str]:
        """The parameters whose updates were measured too coarsely for a rule."""
        return [
            pattern
            for pattern, x in self.parameters.items()
            if x.after is not None and x.after.high - x.after.low > 2 * WIDEST
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "depths": list(self.depths),
            "branch_power": self.power,
            "branches": {
                path: {
                    "before": _as_dict(x.before),
                    "after": _as_dict(x.after),
                    "is_deep": x.is_deep,
                }
                for path, x in self.branches.items()
            },
            "parameters": {
                pattern: {"before": _as_dict(x.before), "after": _as_dict(x.after)}
                for pattern, x in self.parameters.items()
            },
        }

    @property
    def words(self) -> str:
        """The rule in a sentence, and what is free."""
        name = NAMES.get(self.power)
        text = f"Branches follow the depth L like L^{self.power:g}"
        text += f" ({name})." if name else "."
        if any(x.is_deep for x in self.branches.values()):
            return (
                f"{text} Any exponent -a from -1 to -1/2 keeps the stream and its"
                " changes of order 1, with learning rates like L^(a-1) in layers; with"
                " -1 updates within branches are of order 1 as well."
            )
        return (
            f"{text} Each branch is a linear function of its parameters, so that any"
            " exponent from -1 to -1/2 keeps all updates of order 1; this is the"
            " largest."
        )


def _as_dict(exponent: Exponent | None) -> dict[str, float] | None:
    """For JSON."""
    return None if exponent is None else exponent.as_dict()


def named_output(path: str, pattern: str, depth: int) -> str | None:
    """See `DepthRule.named`; `pattern` is that of a parameter in every layer."""
    prefix = pattern.partition("*")[0]
    if not path.startswith(prefix):
        return path
    number, dot, rest = path.removeprefix(prefix).partition(".")
    is_middle = number == str(depth // 2)
    return f"{prefix}{MIDDLE}{dot}{rest}" if is_middle else None


@dataclass
class Measured:
    """What was measured at several depths under a rule: exponents by pattern."""

    branches: Mapping[str, Fit | None]
    changes: Mapping[str, Fit | None]
    gradients: Mapping[str, Fit | None]
    outputs: Mapping[str, Fit | None]  # their changes, in the middle layer
    pattern: str  # of a parameter that every layer has


@dataclass
class Depths:
    """The networks of a subject at several depths and one width."""

    subject: Subject
    depths: Sequence[int]
    draws: int
    # by patterns of paths of branches: what makes them weak
    factors: dict[str, float] = field(default_factory=dict)
    # by pattern and depth: the factor between the output of a submodule and the term of
    # the stream, which `forward` may have
    passed_on: dict[tuple[str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graphs = Graphs(self.subject)

    def size(self, depth: int) -> Size:
        """The size of a network."""
        return self.subject.base_width, depth

    def found_terms(self) -> dict[str, list[Term]]:
        """The terms of streams of the deepest network, by pattern."""
        for depth in self.depths:
            network = network_of(self.graphs, ScalingRule(), self.size(depth))
            terms = branches_of(network.operations, network.values, depth)
            module = self.subject.new(
                *self.size(depth), self.subject.seed, ScalingRule()
            )
            batch, nodes = self.subject.batch_for(module), network.operations.nodes
            found = by_pattern(terms)
            with torch.no_grad(), without_zeros(module):
                numbers = {k: p.detach() for k, p in parameters_of(module).items()}
                values = network.operations.graph.values(numbers, batch)
            for pattern, (first, *_) in found.items():
                size = rms(values[nodes[first.operation]])
                self.passed_on[pattern, depth] = size / rms(values[nodes[first.output]])
                if pattern not in self.factors:
                    stream = rms(values[nodes[first.stream]])
                    self.factors[pattern] = WEAK * stream / size
        return found

    def measure(self, rule: ScalingRule) -> Measured:
        """Measure all depths under a rule of patterns."""
        drawn = [
            [self._draw(rule, depth, k) for k in range(self.draws)]
            for depth in self.depths
        ]

        def fits(kind: int) -> dict[str, Fit | None]:
            """The exponents of one kind of sizes."""
            at = [float(depth) for depth in self.depths]
            return fits_of([[draw[kind] for draw in draws] for draws in drawn], at)

        return Measured(
            branches=fits(0),
            changes=fits(1),
            gradients=fits(2),
            outputs=fits(3),
            pattern=self.pattern,
        )

    @cached_property
    def pattern(self) -> str:
        """A pattern that as many parameters have as there are layers."""
        counts = []
        for depth in self.depths:
            module = self.subject.new(
                *self.size(depth), self.subject.seed, ScalingRule()
            )
            names = groups_of(parameters_of(module))
            counts.append({pattern: len(found) for pattern, found in names.items()})
        return layer_pattern(counts, self.depths)

    def _draw(self, rule: ScalingRule, depth: int, k: int) -> DepthDraw:
        """Measure initialisation k at a depth."""
        subject, size = self.subject, self.size(depth)
        module = subject.new(*size, subject.seed + k, rule)
        names = groups_of(parameters_of(module))
        _check_names(rule, names)
        batch = subject.batch_for(module)
        for path, _ in [*module.named_modules()]:
            factor = self.factors.get(pattern_of(path))
            if factor is not None:
                add_scale(module, OutputScale(path, None, Power(), "branch"), factor)
        outputs = output_sizes(module, batch, [*self.factors])
        branches = {k: x * self.passed_on[k, depth] for k, x in outputs.items()}
        groups = groups_for(subject, rule, module, size, self.graphs.matrices_of(size))
        with torch.no_grad(), recorded(module, {}) as before:
            module(*batch.inputs)
        draw = steps_of(subject.family, module, batch, groups)
        with torch.no_grad(), recorded(module, {}) as after:
            module(*batch.inputs)
        outputs = {}
        for path, value in after.items():
            name = named_output(path, self.pattern, depth)
            if name is not None and value.shape == before[path].shape:
                outputs[name] = rms(value - before[path])
        gradients = {
            pattern: math.sqrt(
                np.mean([draw.gradients.get(name, 0.0) ** 2 for name in of_pattern])
            )
            for pattern, of_pattern in names.items()
        }
        changes = loss_changes(module, batch, draw, names)
        return DepthDraw(branches, changes, gradients, outputs)


class DepthDraw(NamedTuple):
    """What was measured in one draw of a network, by pattern."""

    branches: Mapping[str, float]
    changes: Mapping[str, float]
    gradients: Mapping[str, float]
    outputs: Mapping[str, float]


def _check_names(rule: ScalingRule, names: Mapping[str, Sequence[str]]) -> None:
    """Reject parameters whose names at one depth say nothing about other depths."""
    if not rule.parameters:
        return
    patterns = set(map(pattern_of, rule.parameters))
    for pattern, of_pattern in names.items():
        for name in of_pattern:
            if {name, pattern} & rule.parameters.keys():
                continue
            if pattern in patterns:
                raise UnsupportedError(
                    f"layers have different rules for {pattern}: use more draws or"
                    " wider widths, and layers that are alike"
                )
            raise UnsupportedError(
                f"no rule for {name}: networks of all depths must have the same names"
                " of parameters, up to the number of a layer"
            )


def output_sizes(
    module: Any, batch: Batch, patterns: Sequence[str]
) -> dict[str, float]:
    """The sizes of outputs of submodules by pattern, where matrices of zeros have
    random numbers.
    """
    squares: dict[str, list[float]] = {}
    handles = []
    for path, part in module.named_modules():
        if pattern_of(path) in patterns:
            of_pattern = squares.setdefault(pattern_of(path), [])
            handles.append(part.register_forward_hook(_recorder(of_pattern)))
    with torch.no_grad(), without_zeros(module):
        module(*batch.inputs)
    for handle in handles:
        handle.remove()
    return {pattern: math.sqrt(np.mean(found)) for pattern, found in squares.items()}


@contextmanager
def without_zeros(module: Any) -> Iterator[None]:
    """A context in which matrices of zeros have random numbers."""
    zeros = [p for p in module.parameters() if p.ndim >= 2 and not p.any()]
    generator = torch.Generator().manual_seed(0)
    for p in zeros:
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        p.data.copy_(noise / math.sqrt(p[0].numel()))
    try:
        yield
    finally:
        for p in zeros:
            p.data.zero_()


def _recorder(squares: list[float]) -> Callable[..., None]:
    """A hook that records the square of the size of an output."""

    def record(module: Any, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        squares.append(rms(first) ** 2)

    return record


def loss_changes(
    module: Any, batch: Batch, draw: Draw, names: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """How much the updates of the parameters of each pattern change the loss: all
    parameters are those after the steps, but for those of the pattern.
    """
    parameters = parameters_of(module)

    def loss() -> float:
        """The loss of the batch."""
        return float(batch.loss(logits_in(module(*batch.inputs))))

    changes = {}
    moved = {name: x.clone() for name, x in draw.after.items()}
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(moved[name])
        after = loss()
        for pattern, of_pattern in names.items():
            for name in of_pattern:
                parameters[name].copy_(draw.before[name])
            changes[pattern] = abs(loss() - after)
            for name in of_pattern:
                parameters[name].copy_(moved[name])
    return changes


def derive_depth(
    subject: Subject,
    rule: ScalingRule,
    depths: Sequence[int],
    draws: int,
    branch_power: float | None,
    say: Callable[[str], None],
) -> tuple[ScalingRule, DepthRule]:
    """The rule with its exponents of the depth, by patterns, and the evidence."""
    networks = Depths(subject, depths, draws)
    terms = networks.found_terms()
    is_deep = any(term.is_deep for found in terms.values() for term in found)
    power = branch_power or (DEEP if is_deep else SHALLOW)
    rule = rule.by_pattern()
    # those with an optimiser of their own have no eps
    matrices = {*map(pattern_of, subject.matrices_of_size(subject.base_width))}
    first: Measured | None = None
    for round_number in range(1, MOST_ROUNDS + 1):
        numbers = ", ".join(map(str, depths))
        say(f"depth, round {round_number}: {draws} initialisations at {numbers}")
        found = networks.measure(rule)
        first = first or found
        changed = _changed(
            rule, found, power, has_eps=subject.family.has_eps, matrices=matrices
        )
        if changed == rule:
            evidence = _evidence(first, found, terms, depths, power)
            return rule, evidence
        rule = changed
    raise ArgumentError(
        "depths",
        [*depths],
        f"some whose exponents settle: they still change after {MOST_ROUNDS} rounds"
        " (give larger depths, or more draws)",
    )


def _changed(
    rule: ScalingRule,
    found: Measured,
    power: float,
    *,
    has_eps: bool,
    matrices: Collection[str],
) -> ScalingRule:
    """The rule with the factors of branches changed; if none is, with other rates."""
    scales = {(x.path, x.part): x for x in rule.scales}
    for pattern, fit in found.branches.items():
        change = halves(power - _value(fit))
        if change:
            earlier = scales.get((pattern, None))
            earlier = earlier or OutputScale(pattern, None, Power(), "branch")
            moved = Power(earlier.power.width, earlier.power.depth + change)
            scales[(pattern, None)] = replace(earlier, power=moved)
    kept = tuple(scale for scale in scales.values() if scale.power != Power())
    if kept != rule.scales:
        return ScalingRule(rule.parameters, kept)
    parameters = dict(rule.parameters)
    for name, each in rule.parameters.items():
        pattern = pattern_of(name)
        change = halves(_value(found.changes.get(pattern)))
        lr = Power(each.lr.width, each.lr.depth - change + 0.0)
        eps = each.eps
        if has_eps and pattern not in matrices:
            gradient = found.gradients.get(pattern)
            eps = Power(each.eps.width, halves(_value(gradient)))
        parameters[name] = replace(each, lr=lr, eps=eps, weight_decay=_decay(each, lr))
    return ScalingRule(parameters, rule.scales)


def _value(fit: Fit | None) -> float:
    """A measured exponent; 0 of a size that is 0."""
    return 0.0 if fit is None else fit.exponent.value


def _decay(rule: ParameterRule, lr: Power) -> Power:
    """The power of weight decay: its product with the learning rate stays, but for
    matrices whose norm is fixed.
    """
    if rule.lr.width and not rule.weight_decay.width:
        return rule.weight_decay
    return Power(rule.weight_decay.width, -lr.depth + 0.0)


def _evidence(
    first: Measured,
    last: Measured,
    terms: Mapping[str, list[Term]],
    depths: Sequence[int],
    power: float,
) -> DepthRule:
    """What was measured before and under the rule."""
    branches = {
        pattern: BranchEvidence(
            before=_exponent(first.branches.get(pattern)),
            after=_exponent(last.branches.get(pattern)),
            is_deep=any(term.is_deep for term in found),
        )
        for pattern, found in terms.items()
    }
    parameters = {
        pattern: DepthEvidence(
            before=_exponent(first.changes.get(pattern)),
            after=_exponent(last.changes.get(pattern)),
        )
        for pattern in first.changes
    }
    return DepthRule(
        depths=tuple(depths),
        branches=branches,
        parameters=parameters,
        pattern=last.pattern,
        power=power,
        expected=_expected(last),
    )


def _expected(found: Measured) -> dict[str, float]:
    """The exponents of changes of outputs of the middle layer. What is before and
    behind the layers changes by order 1.
    """
    layer = found.pattern.partition("*")[0] + MIDDLE
    return {
        path: halves(_value(fit))
        for path, fit in found.outputs.items()
        if path == layer or path.startswith(f"{layer}.")
    }


def _exponent(fit: Fit | None) -> Exponent | None:
    """The exponent of a fit."""
    return None if fit is None else fit.exponent


def layer_pattern(counts: Sequence[Mapping[str, int]], depths: Sequence[int]) -> str:
    """A pattern that as many parameters have as there are layers."""
    for pattern in counts[0]:
        if all(of.get(pattern) == d for of, d in zip(counts, depths, strict=True)):
            return pattern
    raise UnsupportedError(
        "no parameter is in every layer once: build(width, depth) must make as many"
        " layers, with numbers in their names, as its second argument says"
    )
