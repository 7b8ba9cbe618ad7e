"""How a rule follows the depth: exponents of branches, learning rates and eps.

With branches L^−a of a stream of L layers, the stream stays of order 1 if a ≥ 1/2.
Updates of all layers add up along the gradient, so that learning rates within layers
follow L^(a−1). If a is 1, every update within a branch is of order 1 as well; if a is
smaller, a branch that has several layers is in the limit a linear function of its
parameters. Both exponents follow here from measurements at several depths: the size of
every branch, and what the updates of a parameter in all layers change in the loss.

Parameters outside of layers write as much at every depth, and their learning rates do
not follow it, even where their effect on the loss does at first: a class token that
sees its patches through L random branches 1/L sees them as L^(−1/2), until the branches
are trained.

They are measured with weak branches, which have a further constant factor. Layers then
see the same stream and the same gradient, and exponents are those of large depths: with
branches as strong as the stream, powers bend at depths such as 2 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from .._validate import ArgumentError
from ..laws._power_law import Exponent, Fit
from ..reader._graph import UnsupportedError
from ._branches import Term
from ._power import Power
from ._rules import (
    OutputScale,
    ParameterRule,
    ScalingRule,
    layer_pattern_of,
    patterns_of,
)
from ._solve import halves, is_decided
from ._subject import Family, Subject

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
        """The name of an output in networks of every depth: those of the middle layer
        have "middle" for its number, and None is one of another layer. Half of the
        layers are before the middle one; the stream is that of the layer before.
        """
        is_stream = path == layer_of(path, self.pattern)
        if is_stream and layer_pattern_of(path) not in self.branches:
            return named_output(path, self.pattern, size[1] - 2)
        return named_output(path, self.pattern, size[1])

    @property
    def worst(self) -> float:
        """The largest exponent that is left under the rule."""
        remaining = [x.after.value for x in self._decided if x.after is not None]
        return max(map(abs, remaining), default=0.0)

    @property
    def _decided(self) -> list[DepthEvidence]:
        """The parameters within layers whose updates were measured well enough."""
        return [x for k, x in self._in_layers.items() if k not in self.undecided]

    @property
    def _in_layers(self) -> dict[str, DepthEvidence]:
        """The parameters within layers, whose learning rates follow the depth."""
        return {k: x for k, x in self.parameters.items() if layer_of(k, self.pattern)}

    @property
    def undecided(self) -> list[str]:
        """The parameters whose updates were measured too imprecisely for a rule."""
        return [
            pattern
            for pattern, x in self._in_layers.items()
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
    def verified(self) -> list[str]:
        """What is known, in sentences of a file."""
        depths = ", ".join(map(str, self.depths))
        return [
            self.words,
            f"Measured at depths {depths}, with weak branches: the updates of a"
            " parameter in all layers change the loss by order 1 (exponents of the"
            f" depth within ±{self.worst:.2f} of 0).",
        ]

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


def layer_of(path: str, pattern: str) -> str:
    """The layer that an output belongs to, by its path; "" for none."""
    prefix = pattern.partition("*")[0]
    if not path.startswith(prefix):
        return ""
    return prefix + path.removeprefix(prefix).partition(".")[0]


def named_output(path: str, pattern: str, depth: int) -> str | None:
    """See `DepthRule.named`; `pattern` is that of a parameter in every layer."""
    prefix = pattern.partition("*")[0]
    if not path.startswith(prefix):
        return path
    number, dot, inside_layer = path.removeprefix(prefix).partition(".")
    if number != str(depth // 2):
        return None
    return f"{prefix}{MIDDLE}{dot}{inside_layer}"


@dataclass
class Measured:
    """What was measured at several depths under a rule: exponents by pattern."""

    branches: Mapping[str, Fit | None]
    changes: Mapping[str, Fit | None]
    gradients: Mapping[str, Fit | None]
    outputs: Mapping[str, Fit | None]  # their changes, in the middle layer
    pattern: str  # of a parameter that every layer has


class Depths(Protocol):
    """Networks of several depths and one width, as a framework makes and runs them."""

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths, the smallest first."""

    @property
    def draws(self) -> int:
        """The number of initialisations at each."""

    def found_terms(self) -> dict[str, list[Term]]:
        """The terms of streams of the deepest network, by pattern."""

    def measure(self, rule: ScalingRule) -> Measured:
        """Measure all depths under a rule of patterns."""

    def placed(self, rule: ScalingRule) -> tuple[OutputScale, ...]:
        """The factors of a rule of patterns, in the smallest network."""


def derive_depth(
    subject: Subject,
    networks: Depths,
    rule: ScalingRule,
    branch_power: float | None,
    say: Callable[[str], None],
) -> tuple[ScalingRule, DepthRule]:
    """The rule with its exponents of the depth, by patterns, and the evidence."""
    terms = networks.found_terms()
    power = branch_power
    if power is None:
        is_deep = any(any(term.is_deep for term in layers) for layers in terms.values())
        power = DEEP if is_deep else SHALLOW
    rule = rule.by_pattern()
    # those with an optimiser of their own have no eps
    matrices = {*map(layer_pattern_of, subject.matrices_of_size(subject.base_width))}
    depths = ", ".join(map(str, networks.depths))
    first: Measured | None = None
    for round_number in range(1, MOST_ROUNDS + 1):
        say(
            f"depth, round {round_number}: {networks.draws} initialisations at {depths}"
        )
        last = networks.measure(rule)
        first = first or last
        changed = _changed(rule, last, power, family=subject.family, matrices=matrices)
        if changed == rule:
            return rule, _evidence(first, last, terms, networks.depths, power)
        rule = changed
    raise ArgumentError(
        "depths",
        [*networks.depths],
        f"some whose exponents settle: they still change after {MOST_ROUNDS} rounds"
        " (give larger depths, or more draws)",
    )


def _changed(
    rule: ScalingRule,
    measured: Measured,
    power: float,
    *,
    family: Family,
    matrices: Collection[str],
) -> ScalingRule:
    """The rule with the factors of branches changed; if none is, with other rates.

    `power` is the exponent that branches must have.
    """
    scales = _branch_scales(rule, measured, power)
    if scales != rule.scales:
        return ScalingRule(rule.parameters, scales)
    parameters = {}
    for name, before in rule.parameters.items():
        change = 0.0
        if layer_of(name, measured.pattern):
            change = _excess(measured.changes.get(name))
        lr = Power(before.lr.width, before.lr.depth - change + 0.0)
        after = replace(before, lr=lr, weight_decay=_decay(before, lr))
        if family.has_eps and name not in matrices:
            after = _with_eps(after, measured.gradients.get(name))
        if family.decays_gradient:
            # relative to the gradient, which eps follows; parameters stay of their size
            decay = Power(after.weight_decay.width, after.eps.depth)
            after = replace(after, weight_decay=decay)
        parameters[name] = after
    return ScalingRule(parameters, rule.scales)


def _with_eps(rule: ParameterRule, gradient: Fit | None) -> ParameterRule:
    """The rule with the eps that follows a gradient; constant if that is unknown."""
    is_known = gradient is None or is_decided(gradient.exponent)
    if rule.has_unknown_eps or not is_known:
        return replace(rule, eps=Power(), has_unknown_eps=True)
    return replace(rule, eps=Power(rule.eps.width, halves(_value(gradient))))


def _excess(fit: Fit | None) -> float:
    """The exponent of a change, a multiple of 1/2; 0 if the interval contains 0."""
    if fit is None or fit.exponent.low <= 0 <= fit.exponent.high:
        return 0.0
    return halves(fit.exponent.value)


def _branch_scales(
    rule: ScalingRule, measured: Measured, power: float
) -> tuple[OutputScale, ...]:
    """The factors with which all branches have this exponent of the depth."""
    scales = {(scale.path, scale.part): scale for scale in rule.scales}
    for pattern, fit in measured.branches.items():
        change = halves(power - _value(fit))
        if not change:
            continue
        whole_output = (pattern, None)
        without_factor = OutputScale(pattern, None, Power(), "branch")
        before = scales.get(whole_output, without_factor)
        after = Power(before.power.width, before.power.depth + change)
        scales[whole_output] = replace(before, power=after)
    return tuple(scale for scale in scales.values() if scale.power != Power())


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
            is_deep=any(term.is_deep for term in of_layers),
        )
        for pattern, of_layers in terms.items()
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


def _expected(measured: Measured) -> dict[str, float]:
    """The exponents of changes of outputs of the middle layer. What is before and
    behind the layers changes by order 1.
    """
    layer = measured.pattern.partition("*")[0] + MIDDLE
    return {
        path: halves(_value(fit))
        for path, fit in measured.outputs.items()
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
        "no parameter is in every layer once: build(width, depth) must make `depth`"
        " layers with numbered names"
    )


def check_names(rule: ScalingRule, names: Mapping[str, Sequence[str]]) -> None:
    """Reject parameters whose names at one depth say nothing about other depths."""
    if not rule.parameters:
        return
    patterns = set(map(layer_pattern_of, rule.parameters))
    for pattern, of_pattern in names.items():
        for name in of_pattern:
            if {*patterns_of(name)} & rule.parameters.keys():
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
