"""Errors of the exact engine."""

from __future__ import annotations

from typing import Any

from ..language._array import Value


class ExactError(ValueError):
    """A program that the exact engine cannot do; it says which operation, and what can be done instead.

    Parameters
    ----------
    value : Value
        What cannot be done.
    problem : str
        Why.
    instead : str
        What can be done instead.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> net = ns.Program(ns.rotary(ns.gaussian(n, 2)))
    >>> try:
    ...     net.law(n=ns.inf)
    ... except ns.ExactError as error:
    ...     print(str(error).split(" (at")[0])
    ...
    rotary positions of vectors at width inf
    """

    def __init__(self, value: Value, problem: str, instead: str = "finite widths have an exact law") -> None:
        if "at width inf" in problem or "n → ∞" in problem:
            instead += "; net.law(…, method='extrapolate') estimates the limit from exact laws at finite widths"
        self.where, self.plain = value.where, f"{problem}; {instead}"  # without the line
        super().__init__(f"{problem} (at {value.where}); {instead}")

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made, so that a worker can send it to the process that waits for it."""
        return ValueError.__new__, (type(self), *self.args), self.__dict__


class UnplacedError(ExactError):
    """An error that names no line of the user's code."""

    def __init__(self, problem: str) -> None:
        self.plain = problem
        ValueError.__init__(self, problem)


class NoLimitError(UnplacedError):
    """A program that provably has no limit at infinite width; it says which score diverges.

    Parameters
    ----------
    problem : str
        Which score diverges, and why.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> q = ns.weight(n, n) @ ns.gaussian(n)
    >>> ns.Program(ns.dot(q, q)).check().verdict
    'no limit'
    >>> try:
    ...     ns.Program(ns.dot(q, q)).law(n=ns.inf)  # |q|²/√n grows like √n
    ... except ns.NoLimitError as error:
    ...     print(str(error)[:20])
    ...
    program has no limit
    """


class InfiniteError(UnplacedError):
    """A Gaussian expectation that is infinite, or that no rule resolves; the message names the function."""
