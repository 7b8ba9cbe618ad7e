"""Errors and warnings of the exact engine."""

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
    a coordinate of vectors turned by rotary positions, at width inf
    """

    def __init__(self, value: Value, problem: str, instead: str = "net.simulate draws it, at finite widths") -> None:
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
    """A Gaussian expectation that is infinite, or that no rule resolves; it says of which function."""


class QuadratureWarning(UserWarning):
    """Draws at infinite width whose Gaussian expectations have an error that is not negligible.

    Parameters
    ----------
    error : float
        The error of the output that has the largest, relative to its spread (to its size, if it is not random). It is
        the same in every draw, so more draws do not reduce it.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> f = ns.mean_dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
    >>> net = ns.Program(ns.step(f, (f - 1) ** 2, 0.5))
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     found = net.draw(n=ns.inf, draws=1)
    ...
    >>> caught[0].message.error == net.law(n=ns.inf).origin.quadrature_error
    True
    """

    def __init__(self, error: float) -> None:
        super().__init__(
            f"draws at width inf have a quadrature error of {error:.1g}, relative to the spread of an output, the same "
            "in every draw; take a large finite width, which has none, or net.law, which reports it for each number"
        )
        self.error = error
