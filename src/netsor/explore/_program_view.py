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


class Slider(NamedTuple):
    """A numeric argument: where its slider begins and ends, and its steps."""

    name: str
    start: float
    low: float
    high: float
    step: float


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
    def net(self) -> Program:
        """The program with its own arguments."""
        return self.build({})

    @property
    def sliders(self) -> list[Slider]:
        """A slider for each argument that is a number, about the value that it has."""
        try:
            parameters = {} if isinstance(self.found, Program) else inspect.signature(self.found).parameters
        except ValueError:  # some functions written in C have no signature
            return []
        numeric = []
        for name, parameter in parameters.items():
            value = self.arguments.get(name, parameter.default)
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if not named or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            if isinstance(value, int):
                low, high = (1, max(4 * value, 8)) if value > 0 else (4 * value, 8)
                numeric.append(Slider(name, value, low, high, 1))
            else:
                size = abs(value) or 1.0
                numeric.append(Slider(name, value, 0.0 if value >= 0 else -4 * size, 4 * size, size / 20))
        return numeric

    def view(
        self, arguments: Mapping[str, Any], widths: Mapping[str, float], output: int = 0, draws: int | None = None
    ) -> View:
        """The law of one output at these widths, its limit if it has one, and a Gaussian.

        Outputs are those of the part that FILE:PROGRAM[i] names, or of the whole; draws are as many as are quick, if
        None.
        """
        net = self.build(arguments)
        part = net if self.part is None else net[self.part]
        several = isinstance(part.output, tuple)
        places: list[tuple[Any, ...]] = [
            (*([i] if several else []), *([at] if at else []))
            for i, value in enumerate(part.outputs)
            for at in itertools.product(*map(range, value.shape))
        ]
        if not 0 <= output < len(places):
            raise ValueError(f"output {output} is not there: the program has {len(places)}, from 0 on")
        keys = [*([] if self.part is None else [self.part]), *places[output]]
        lines = self._lines(arguments, "".join(f"[{str(key).strip('(,)')}]" for key in keys))
        return law_view(functools.reduce(Program.__getitem__, keys, net), widths, draws, lines)

    def audit(self, arguments: Mapping[str, Any], widths: Mapping[str, float], sharp: bool = False) -> AuditViewRequest:
        """What its probes watch, block by block, with findings."""
        for name, width in widths.items():
            if width == inf:
                raise ValueError(f"width {name} is ∞: an audit needs finite widths; move its slider to the left")
        model = ProgramModel(self.build(arguments), widths)
        at = (f"{name}={width_code(width)}" for name, width in widths.items())
        return AuditViewRequest((model,), (*self._lines(arguments),), ("net", *at), sharp=sharp)

    def _lines(self, arguments: Mapping[str, Any], key: str = "") -> list[str]:
        """Python that finds the program and makes it, or a part of it."""
        lines = [f"from {self.module} import {self.name}"]
        if self.module.endswith(".py"):
            path = Path(self.module).resolve()
            lines = ["import runpy", "import sys", "", f"sys.path.insert(0, {str(path.parent)!r})"]
            lines.append(f"{self.name} = runpy.run_path({str(path)!r})[{self.name!r}]")
        given = ", ".join(f"{k}={v!r}" for k, v in {**self.arguments, **arguments}.items())
        call = "" if isinstance(self.found, Program) else f"({given})"
        return [*lines, *IMPORTS, f"net = {self.name}{call}{key}"]
