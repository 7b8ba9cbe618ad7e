"""The view of your own program: a slider for each of its numbers and widths, its law, and its audit."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .._program import Program
from ..language import inf
from ..models._metric_program import ProgramModel
from ._audit_view import AuditViewRequest
from ._law_views import IMPORTS, law_view, width_code
from ._view import View


@dataclass(frozen=True)
class Target:
    """A program as FILE:PROGRAM names it: what was found there, the part of it, and arguments for its function."""

    module: str  # a file or a module
    name: str
    found: Callable[..., Program] | Program
    part: int | tuple[int, ...] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def build(self, arguments: Mapping[str, Any]) -> Program:
        """The program with these arguments in addition to its own."""
        if isinstance(self.found, Program):
            return self.found
        net = self.found(**{**self.arguments, **arguments})
        if not isinstance(net, Program):
            raise TypeError(f"{self.name} must return a program (see ns.program), returned {type(net).__name__}")
        return net

    @functools.cached_property
    def widths(self) -> tuple[str, ...]:
        """The names of its widths."""
        return self.build({}).widths

    @functools.cached_property
    def watched(self) -> bool:
        """Whether it names something to be watched by an audit."""
        return bool(self.build({}).probes)

    @property
    def lines(self) -> list[str]:
        """Python that finds it."""
        if not self.module.endswith(".py"):
            return [f"from {self.module} import {self.name}"]
        path = str(Path(self.module).resolve())
        folder = str(Path(path).parent)
        return [
            "import runpy",
            "import sys",
            "",
            f"sys.path.insert(0, {folder!r})",
            f"{self.name} = runpy.run_path({path!r})[{self.name!r}]",
        ]


class Slider(NamedTuple):
    """A numeric argument: where its slider begins and ends, and its steps."""

    name: str
    start: float
    low: float
    high: float
    step: float


def sliders(target: Target) -> tuple[Slider, ...]:
    """A slider for each argument that is a number, about the value that it has."""
    if isinstance(target.found, Program):
        return ()
    numeric = []
    try:
        parameters = inspect.signature(target.found).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return ()
    for parameter in parameters:
        value = target.arguments.get(parameter.name, parameter.default)
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not named or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if isinstance(value, int):
            low, high = (1, max(4 * value, 8)) if value > 0 else (4 * value, 8)
            numeric.append(Slider(parameter.name, value, low, high, 1))
        else:
            size = abs(value) or 1.0
            numeric.append(Slider(parameter.name, value, 0.0 if value >= 0 else -4 * size, 4 * size, size / 20))
    return tuple(numeric)


@dataclass(frozen=True)
class ProgramSettings:
    """The settings: the program, its arguments, its widths, which output, and draws (as many as are quick, if None)."""

    target: Target
    arguments: Mapping[str, Any]
    widths: Mapping[str, float]
    output: int = 0
    draws: int | None = None

    def view(self) -> View:
        """The law at these widths, its limit if it has one, and a Gaussian."""
        net, key = self._part(self.target.build(self.arguments))
        return law_view(net, self.widths, self.draws, self._lines(key))

    def audit(self, sharp: bool) -> AuditViewRequest:
        """What its probes watch, block by block, with findings."""
        for name, width in self.widths.items():
            if width == inf:
                raise ValueError(f"width {name} is ∞: an audit needs finite widths; move its slider to the left")
        net = self.target.build(self.arguments)
        at = (f"{name}={width_code(width)}" for name, width in self.widths.items())
        return AuditViewRequest((ProgramModel(net, self.widths),), (*self._lines(""),), ("net", *at), sharp=sharp)

    def _lines(self, key: str) -> list[str]:
        """Python that makes the program, or a part of it."""
        given = ", ".join(f"{k}={v!r}" for k, v in {**self.target.arguments, **self.arguments}.items())
        call = "" if isinstance(self.target.found, Program) else f"({given})"
        return [*self.target.lines, *IMPORTS, f"net = {self.target.name}{call}{key}"]

    def _part(self, net: Program) -> tuple[Program, str]:
        """One output: the part that FILE:PROGRAM[i] names, or the one of this number among all of them."""
        keys: list[Any] = [] if self.target.part is None else [self.target.part]
        for key in keys:
            net = net[key]
        places: list[tuple[Any, ...]] = []
        for i, value in enumerate(net.outputs):
            first = (i,) if isinstance(net.output, tuple) else ()
            places += [(*first, *([at] if at else [])) for at in itertools.product(*map(range, value.shape))]
        if not 0 <= self.output < len(places):
            raise ValueError(f"output {self.output} is not there: the program has {len(places)}, from 0 on")
        for key in places[self.output]:
            net = net[key]
        return net, "".join(f"[{str(key).strip('(,)')}]" for key in (*keys, *places[self.output]))
