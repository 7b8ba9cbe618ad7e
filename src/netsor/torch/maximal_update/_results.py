"""A derived rule with its evidence, as a table and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...laws._power_law import Exponent, Fit
from ._measure import Measurement, Subject
from ._responses import Edge
from ._rules import ParameterRule, Power, ScalingRule, collapsed, pattern_of
from ._scale_hooks import OutputScale


class Evidence(NamedTuple):
    """The exponents of the width that belong to a parameter; None: of a size that is 0.

    Attributes
    ----------
    std : Exponent or None
        Of its initial standard deviation, as the module has it; None for constants.
    written_before, written : Exponent or None
        Of what it writes, as the module is, and under the rule.
    update_before, update : Exponent or None
        Of the change that its own update makes in what it writes, before and under the
        rule.
    """

    std: Exponent | None
    written_before: Exponent | None
    written: Exponent | None
    update_before: Exponent | None
    update: Exponent | None


def evidence_of(
    before: Measurement, after: Measurement, rule: ScalingRule
) -> dict[str, Evidence]:
    """The evidence of all parameters: of several uses, those that change most."""
    evidence = {}
    for name in before.operations.graph.parameters:
        std = before.stds.get(name)
        evidence[name] = Evidence(
            std=None if std is None else std.exponent,
            written_before=_largest(before, before.exponents.written, name),
            written=_largest(after, after.exponents.written, name),
            update_before=_largest(before, before.exponents.updates, name),
            update=_largest(after, after.exponents.updates, name),
        )
    return evidence


def _largest(
    found: Measurement, fits: Mapping[Edge, Fit | None], name: str
) -> Exponent | None:
    """The largest exponent over the uses of a parameter."""
    exponents = []
    for operation in found.operations.operations:
        for k, names in operation.weights.items():
            fit = fits.get(Edge(operation.index, k))
            if name in names and fit is not None:
                exponents.append(fit.exponent)
    return max(exponents, key=lambda x: x.value, default=None)


@dataclass(frozen=True, eq=False)
class DerivedRule:
    """A parametrisation that was derived for a module.

    Attributes
    ----------
    rule : ScalingRule
        Exponents of all parameters, and factors of outputs.
    evidence : dict
        What was measured, by name of a parameter.
    growing : tuple of str
        Operations whose change grows, whatever the exponents.
    """

    subject: Subject
    widths: Sequence[int]
    draws: int
    rule: ScalingRule
    evidence: Mapping[str, Evidence]
    growing: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, ParameterRule]:
        """The exponents of each parameter, by patterns of names."""
        return collapsed(self.rule.parameters)

    @property
    def scales(self) -> tuple[OutputScale, ...]:
        """The factors of outputs of modules."""
        return self.rule.scales

    def __str__(self) -> str:
        lines = []
        for pattern, rule in self.parameters.items():
            names = [x for x in self.evidence if pattern in (x, pattern_of(x))]
            shown = self.evidence[names[0]]
            lines.append(
                f"{pattern:40} std {_text(rule.std)} lr {_text(rule.lr)}"
                f" eps {_text(rule.eps)}  update {_exponent(shown.update_before)} →"
                f" {_exponent(shown.update)}"
            )
        for scale in self.scales:
            lines.append(f"{scale.path} {scale.part} {scale.what} {_text(scale.power)}")
        return "\n".join(lines)


def _text(power: Power) -> str:
    """An exponent of the width."""
    return f"{power.width:+.2f}"


def _exponent(exponent: Exponent | None) -> str:
    """A measured exponent with its interval."""
    if exponent is None:
        return "0"
    return f"{exponent.value:+.2f} ({exponent.low:+.2f},{exponent.high:+.2f})"
