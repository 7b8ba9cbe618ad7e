"""Errors of the exact engine."""

from __future__ import annotations

from typing import Any

from ..language.values._array import Value


class ExactError(ValueError):
    """The exact engine does not support a program. The message names the operation and
    an alternative.

    Parameters
    ----------
    value : Value
        The unsupported value.
    problem : str
        The reason.
    instead : str
        The alternative.

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

    def __init__(
        self,
        value: Value,
        problem: str,
        instead: str = "finite widths have an exact law",
    ) -> None:
        """Write the message; at infinite width, it also proposes extrapolation."""
        if "at width inf" in problem or "n → ∞" in problem:
            instead += (
                "; net.law(…, method='extrapolate') estimates the limit from exact laws"
                " at finite widths"
            )
        # without the source line
        self.where = value.where
        self.plain = f"{problem}; {instead}"
        super().__init__(f"{problem} (at {value.where}); {instead}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: a worker sends the error to its parent process."""
        return ValueError.__new__, (type(self), *self.args), self.__dict__


class GrowingStepError(ExactError):
    """An optimiser step whose effect on a parameter's outputs grows with the width."""


class UnplacedError(ExactError):
    """An error without a line of the user's code."""

    def __init__(self, problem: str) -> None:
        self.plain = problem
        ValueError.__init__(self, problem)


class NoLimitError(UnplacedError):
    """A program provably has no limit at infinite width. The message names the score
    that diverges.

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
    """A Gaussian expectation is infinite, or no quadrature rule resolves it. The
    message names the function.
    """
