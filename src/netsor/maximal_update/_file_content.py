"""What a written file of a derived rule says, in any framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._validate import Shape
from ..reader._graph import UnsupportedError
from ._power import Power
from ._rules import OutputScale, ParameterRule

LONGEST = 88  # characters of a line


class Reference(NamedTuple):
    """The parameter whose shape shows the width."""

    name: str
    axis: int
    ratio: float  # the number of its entries along the axis, over the width


def reference_of(
    shapes: Sequence[Mapping[str, Shape]], widths: Sequence[int]
) -> Reference:
    """A parameter with an axis proportional to the width, best equal to it.

    `shapes` are those of all parameters, at each of the widths.
    """
    proportional: list[Reference] = []
    for name, shape in shapes[0].items():
        for axis in range(len(shape)):
            ratios = {
                at_width[name][axis] / width
                for at_width, width in zip(shapes, widths, strict=True)
            }
            if len(ratios) == 1:
                proportional.append(Reference(name, axis, ratios.pop()))
    if not proportional:
        raise UnsupportedError(
            "no parameter has an axis in proportion to the width: build(width) must"
            " make a module that grows with its argument"
        )
    return min(proportional, key=lambda x: x.ratio != 1)


class FileContent(NamedTuple):
    """What an emitted file says."""

    module: str  # its name
    optimiser: str
    parameters: Mapping[str, ParameterRule]  # by patterns
    scales: Sequence[OutputScale]
    reference: Reference
    # of a parameter that every layer has; None: no exponents of the depth
    depth_pattern: str | None
    verified: Sequence[str]  # sentences
    base_width: int
    base_depth: int | None = None
    matrices: Sequence[str] = ()  # patterns, if they have an optimiser of their own


def rule_text(rule: ParameterRule) -> str:
    """The exponents of a parameter that are not 0, as code."""
    words = []
    for field in ("std", "lr", "eps", "weight_decay"):
        power: Power = getattr(rule, field)
        if power != Power():
            words.append(f"{field}={pair_text(power)}")
    return f"Rule({', '.join(words)})"


def pair_text(power: Power) -> str:
    """Exponents of width and depth, as code."""
    return f"({power.width + 0.0:g}, {power.depth + 0.0:g})"


def wrapped(sentences: Sequence[str]) -> list[str]:
    """Sentences in lines."""
    lines = [""]
    for word in " ".join(sentences).split():
        if len(lines[-1]) + len(word) >= LONGEST:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
