"""What the exact engine says when it cannot do a program."""

from __future__ import annotations

from ..language._value import Value


class ExactError(ValueError):
    """A program that the exact engine cannot do; it says which operation, and what can be done instead."""

    def __init__(self, value: Value, problem: str, instead: str = "net.simulate draws it, at finite widths") -> None:
        super().__init__(f"{problem} (at {value.where}); {instead}")


class NoLimitError(ExactError):
    """A program that provably has no limit at infinite width; it says which score diverges."""

    def __init__(self, problem: str) -> None:
        ValueError.__init__(self, problem)


class InfiniteError(ExactError):
    """A Gaussian expectation that is infinite, or that no rule resolves; it says of which function."""

    def __init__(self, problem: str) -> None:
        ValueError.__init__(self, problem)
