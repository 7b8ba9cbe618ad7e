"""A program that FILE:PROGRAM names, for the command line and the explorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._program import Program


@dataclass(frozen=True)
class NamedProgram:
    """An object in a file or module, and which program it stands for."""

    module: str  # a file or a module
    name: str
    value: Any  # a program, or a function that returns a program or a PyTorch module
    part: Any = None  # the index in PROGRAM[i]; None: the whole program
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the function

    def __str__(self) -> str:
        whole = f"{self.module}:{self.name}"
        if self.part is None:
            return whole
        index = str(self.part).strip("(,)")
        return f"{whole}[{index}]"

    @property
    def is_function(self) -> bool:
        """Whether it must be called to get the program."""
        return callable(self.value) and not isinstance(self.value, Program)

    def build(self, **arguments: Any) -> Any:
        """The result of the function for its own and these arguments."""
        if not self.is_function:
            return self.value
        return self.value(**{**self.arguments, **arguments})

    def program(self, **arguments: Any) -> Program:
        """The whole program with these arguments and its own."""
        net = self.build(**arguments)
        if not isinstance(net, Program):
            raise TypeError(
                f"{self.name} must return a program (see ns.program), returned"
                f" {type(net).__name__}"
            )
        return net
