"""What a written file of a derived rule says, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    @property
    def divided(self) -> str:
        """What follows the number of entries in code, to make it the width."""
        return "" if self.ratio == 1 else f" / {self.ratio:g}"


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
            "no parameter has an axis that grows like the width: build(width) must"
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


def rule_lines(parameters: Mapping[str, ParameterRule]) -> list[str]:
    """The rules of all patterns as lines of code."""
    lines = [f"    {name!r}: {rule_text(rule)}," for name, rule in parameters.items()]
    return ["RULES = {", *lines, "}"]


def tuple_lines(name: str, lines: Sequence[str]) -> list[str]:
    """A tuple of a file as lines of code."""
    return [f"{name} = (", *lines, ")"] if lines else [f"{name} = ()"]


def scale_lines(
    scales: Sequence[OutputScale],
    patterns: Callable[[OutputScale], Sequence[str]],
    *,
    with_axis: bool,
) -> list[str]:
    """The factors of outputs as lines of code, each once.

    `patterns` are those of the paths that a factor has in a framework. The part of an
    axis that is multiplied is written `with_axis` if it may be along any axis.
    """
    lines: dict[str, None] = {}
    for scale in scales:
        fields = [pair_text(scale.power)]
        if scale.part is not None:
            if with_axis:
                fields.append(str(scale.part.axis))
            fields += [repr(scale.part.start), repr(scale.part.stop)]
        for pattern in patterns(scale):
            code = ", ".join([repr(pattern), *fields])
            lines[f"    Scale({code}),  # {scale.what}"] = None
    return list(lines)


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
