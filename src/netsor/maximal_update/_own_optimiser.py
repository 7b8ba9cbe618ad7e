"""How the optimiser of the user follows the width, and what must change in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ._power import Power
from ._rules import ParameterRule

# An eps below this share of a gradient changes an update by no more than this: it is
# not judged, whether or not it follows the width.
NEGLIGIBLE_EPS = 0.01


class Settings(NamedTuple):
    """The settings of an optimiser at one width, by names of parameters."""

    lr: Mapping[str, float]
    eps: Mapping[str, float]
    weight_decay: Mapping[str, float]
    gradients: Mapping[str, float]  # sizes of those of the first step


@dataclass(frozen=True)
class OwnOptimiser:
    """The exponents of the width of the settings of an optimiser, by parameters.

    Those of eps are of parameters whose updates it changes, and those of weight decay
    of parameters that have one.
    """

    lr: Mapping[str, float] = field(default_factory=dict)
    eps: Mapping[str, float] = field(default_factory=dict)
    weight_decay: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: Sequence[Settings], widths: Sequence[int], default_decay: float
    ) -> OwnOptimiser:
        """The exponents between the first and the last width.

        `default_decay` is the weight decay of the class. Where all parameters have it,
        the user did not choose one, and it is not judged.
        """
        decays = [set(at_width.weight_decay.values()) for at_width in settings]
        has_own_decay = any(values != {default_decay} for values in decays)
        eps = _exponents([at_width.eps for at_width in settings], widths)
        acting = _acting_eps(settings)
        decay: dict[str, float] = {}
        if has_own_decay:
            decay = _exponents([x.weight_decay for x in settings], widths)
        return cls(
            lr=_exponents([at_width.lr for at_width in settings], widths),
            eps={name: x for name, x in eps.items() if name in acting},
            weight_decay=decay,
        )

    def powers_to_change(
        self, name: str, rule: ParameterRule
    ) -> list[tuple[str, Power]]:
        """What must change for a parameter, as (words, power of the width or depth).

        The learning rate of `rule` is relative to that of the user, its eps and its
        weight decay are those that the parameter must have.
        """
        changes = []
        if name in self.lr:
            changes.append(("learning rate", rule.lr))
        if name in self.eps and not rule.has_unknown_eps:
            changes.append(("eps", _difference(rule.eps, self.eps[name])))
        if name in self.weight_decay:
            decay = self.weight_decay[name]
            changes.append(("weight decay", _difference(rule.weight_decay, decay)))
        return changes


def _difference(needed: Power, width: float) -> Power:
    """The power by which to multiply a setting that has a power of the width: a
    multiple of 1/2.
    """
    return Power(round(2 * (needed.width - width)) / 2 + 0.0, needed.depth)


def _exponents(
    settings: Sequence[Mapping[str, float]], widths: Sequence[int]
) -> dict[str, float]:
    """The exponents of the settings that are not 0."""
    ratio = math.log(widths[-1] / widths[0])
    first, last = settings[0], settings[-1]
    return {
        name: round(math.log(last[name] / value) / ratio, 3) + 0.0
        for name, value in first.items()
        if value and last.get(name)
    }


def _acting_eps(settings: Sequence[Settings]) -> set[str]:
    """The parameters with an eps that changes updates at some width."""
    return {
        name
        for at_width in settings
        for name, gradient in at_width.gradients.items()
        if at_width.eps.get(name, 0.0) > NEGLIGIBLE_EPS * gradient > 0
    }
