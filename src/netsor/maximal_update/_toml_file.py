"""Derived rules as TOML, which coordinate checks and learning-rate sweeps read.

A file has what a file of plain PyTorch has, without code: exponents by patterns of
names, factors of outputs, and which parameters show the width and the depth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._validate import ArgumentError, shown
from ..runtime._files import fields
from ._file_content import FileContent, Reference, wrapped
from ._power import Power
from ._rules import OutputScale, ParameterRule, Part, ScalingRule

MAX_FILE_BYTES = 2**20
MAX_EXPONENT = 4.0  # of the absolute value of an exponent
POWERS = ("std", "lr", "eps", "weight_decay")  # of a `ParameterRule`
HEADING = (
    "# Maximal updates (µP) of a module, derived by netsor: powers of width and depth"
)


def toml_of(content: FileContent) -> str:
    """The text of a TOML file."""
    lines = _heading_lines(content)
    for pattern, rule in content.parameters.items():
        lines += ["", f"[parameters.{_text(pattern)}]"]
        for name in POWERS:
            lines += _power_lines(f"{name}.", getattr(rule, name))
    for scale in ScalingRule({}, tuple(content.scales)).by_pattern().scales:
        lines += ["", *_scale_lines(scale)]
    return "\n".join(lines) + "\n"


def _heading_lines(content: FileContent) -> list[str]:
    """What a file says about the network, before its rules."""
    lines = [
        HEADING,
        *(f"# {line}" for line in wrapped(content.verified)),
        f"module = {_text(content.module)}",
        f"optimiser = {_text(content.optimiser)}",
        f"base_width = {content.base_width}",
    ]
    if content.depth_pattern is not None:
        lines.append(f"base_depth = {content.base_depth}")
        lines.append(f"layer = {_text(content.depth_pattern)}  # in every layer")
    if content.matrices:
        names = ", ".join(map(_text, content.matrices))
        lines.append(f"matrices = [{names}]  # with an optimiser of their own")
    reference = content.reference
    return [
        *lines,
        "",
        "[width]  # is the size of this axis over the ratio",
        f"parameter = {_text(reference.name)}",
        f"axis = {reference.axis}",
        f"ratio = {float(reference.ratio)!r}",
    ]


def _scale_lines(scale: OutputScale) -> list[str]:
    """The table of a factor of an output."""
    paths = ", ".join(map(_text, scale.parameters or (scale.path,)))
    lines = [
        "[[scales]]",
        f"of = {_text(scale.what)}",
        f"paths = [{paths}]",
        f"is_parameter = {'true' if scale.parameters else 'false'}",
    ]
    if scale.part is not None:
        lines.append(f"part = [{scale.part.start!r}, {scale.part.stop!r}]")
        if scale.part.axis:
            lines.append(f"axis = {scale.part.axis}")
    return lines + _power_lines("", scale.power)


def _text(text: str) -> str:
    """A string of TOML."""
    return json.dumps(text, ensure_ascii=False)


def _power_lines(prefix: str, power: Power) -> list[str]:
    """The exponents of a power that are not 0."""
    exponents = power._asdict().items()
    return [f"{prefix}{size} = {float(x)!r}" for size, x in exponents if x]


def content_of_file(path: Path) -> FileContent:
    """The rule in a TOML file."""
    try:
        return _content(fields(path, MAX_FILE_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(
            "parametrisation",
            str(path),
            f"a TOML file of netsor parametrise: {reason}",
        ) from None


def _content(tables: dict[str, Any]) -> FileContent:
    """The content of a file, validated."""
    _check_keys(
        tables,
        "the file",
        ("module", "optimiser", "base_width", "width", "parameters"),
        ("base_depth", "layer", "matrices", "scales"),
    )
    if ("base_depth" in tables) != ("layer" in tables):
        raise ValueError("base_depth and layer must be given together")
    module = tables["module"]
    optimiser = tables["optimiser"]
    if not isinstance(module, str) or not module.isidentifier():
        raise ValueError(f"module={shown(module)} must be the name of a function")
    if not isinstance(optimiser, str) or not optimiser.isidentifier():
        raise ValueError(
            f"optimiser={shown(optimiser)} must be the name of an optimiser"
        )
    layer_pattern = base_depth = None
    if "base_depth" in tables:
        layer_pattern = _name(tables["layer"], "layer")
        base_depth = _size(tables["base_depth"], "base_depth")
    rules = _table(tables["parameters"], "parameters")
    scales = _list(tables.get("scales", []), "scales")
    matrices = _list(tables.get("matrices", []), "matrices")
    return FileContent(
        module=module,
        optimiser=optimiser,
        parameters={name: _rule(name, rule) for name, rule in rules.items()},
        scales=[_scale(scale) for scale in scales],
        reference=_reference(_table(tables["width"], "width")),
        depth_pattern=layer_pattern,
        verified=[],
        base_width=_size(tables["base_width"], "base_width"),
        base_depth=base_depth,
        matrices=[_name(pattern, "matrices") for pattern in matrices],
    )


def _check_keys(
    table: Mapping[str, Any],
    where: str,
    needed: tuple[str, ...],
    others: tuple[str, ...],
) -> None:
    """Reject keys that mean nothing, and missing ones."""
    for key in table:
        if key not in (*needed, *others):
            known = ", ".join((*needed, *others))
            raise ValueError(f"{shown(key)} is not part of {where}; it has {known}")
    for key in needed:
        if key not in table:
            raise ValueError(f"{where} must have {key}")


def _table(value: Any, name: str) -> Mapping[str, Any]:
    """A table."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={shown(value)} must be a table")
    return value


def _list(value: Any, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{name}={shown(value)} must be a list")
    return value


def _name(value: Any, name: str) -> str:
    """A name of a parameter or a path of a module, or a pattern of them."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name}={shown(value)} must be a name")
    return value


def _size(value: Any, name: str) -> int:
    """A width, a depth, or the number of an axis."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name}={shown(value)} must be a whole number, 0 or more")
    return value


def _number(value: Any, name: str, most: float) -> float:
    """A number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or abs(value) > most:
        raise ValueError(f"{name}={shown(value)} must be a number, {most:g} at most")
    return float(value)


def _power(table: Mapping[str, Any], name: str) -> Power:
    """The powers of width and depth in a table."""
    exponents = {
        axis: _number(table.get(axis, 0.0), f"{name}.{axis}", MAX_EXPONENT)
        for axis in Power._fields
    }
    return Power(**exponents)


def _rule(name: str, value: Any) -> ParameterRule:
    """The exponents of a parameter."""
    table = _table(value, name)
    _check_keys(table, _name(name, "parameters"), (), POWERS)
    powers: dict[str, Any] = {}
    for kind, each in table.items():
        of_kind = _table(each, f"{name}.{kind}")
        _check_keys(of_kind, f"{name}.{kind}", (), Power._fields)
        powers[kind] = _power(of_kind, f"{name}.{kind}")
    return ParameterRule(**powers)


def _axis(value: Any) -> int:
    """The axis of a part."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"axis={shown(value)} must be an integer")
    return value


def _scale(value: Any) -> OutputScale:
    """A factor of an output."""
    table = _table(value, "scales")
    needed = ("of", "paths", "is_parameter")
    _check_keys(table, "scales", needed, ("part", "axis", *Power._fields))
    paths = tuple(_name(x, "paths") for x in _list(table["paths"], "paths"))
    if not paths or not isinstance(table["is_parameter"], bool):
        raise ValueError("scales must have paths, and is_parameter true or false")
    part = None
    if "part" in table:
        ends = [_number(x, "part", 1.0) for x in _list(table["part"], "part")]
        if len(ends) != 2 or not 0 <= ends[0] < ends[1]:
            raise ValueError(f"part={shown(ends)} must be two shares, in order")
        part = Part(ends[0], ends[1], _axis(table.get("axis", 0)))
    return OutputScale(
        path=paths[0],
        part=part,
        power=_power(table, "scales"),
        what=_name(table["of"], "of"),
        parameters=paths if table["is_parameter"] else (),
    )


def _reference(table: Mapping[str, Any]) -> Reference:
    """The parameter whose shape shows the width."""
    _check_keys(table, "width", ("parameter", "axis", "ratio"), ())
    ratio = _number(table["ratio"], "ratio", 1e6)
    if ratio <= 0:
        raise ValueError(f"ratio={ratio:g} must be positive")
    return Reference(
        _name(table["parameter"], "parameter"), _size(table["axis"], "axis"), ratio
    )


def unreadable_file(path: Path, error: Exception) -> ArgumentError:
    """The error for a Python file that is not a rule, or that fails."""
    words = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    if isinstance(error, KeyError):
        words = f"it has no function {error}"
    return ArgumentError(
        "parametrisation", str(path), f"a file that netsor parametrise wrote: {words}"
    )


def check_optimiser(of_rule: str, optimiser: str, source: str) -> None:
    """Reject a rule for another optimiser."""
    if of_rule != optimiser:
        raise ArgumentError("optimiser", optimiser, f"{of_rule}, which {source} is for")
