"""The decorator `ns.program`, which turns functions into programs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec

from .._validate import TraceError, shown
from ..language.values._probe import Probe, watching
from ._program import Program

P = ParamSpec("P")


class Traced(Generic[P]):
    """A decorated function; a call traces it and returns the `Program`."""

    def __init__(self, function: Callable[P, Any]) -> None:
        if not callable(function):
            raise TraceError(
                "program",
                "function",
                function,
                "a function that returns vectors or scalars",
            )
        functools.update_wrapper(self, function)
        self._function = function
        # a callable object has no name
        self._name = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Program:
        name = f"{self._name}({self._arguments(*args, **kwargs)})"
        probes: list[Probe] = []
        with watching(probes):
            return Program(self._function(*args, **kwargs), name, probes)

    def _arguments(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The arguments of a call and the defaults, as text."""
        signature = inspect.signature(self._function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{error}; it is called as {self._name}{signature}"
            ) from None
        bound.apply_defaults()
        texts = []
        for name, value in bound.arguments.items():
            brief = value.__name__ if inspect.isfunction(value) else shown(value)
            texts.append(f"{name}={brief}")
        return ", ".join(texts)

    def __getattr__(self, name: str) -> Any:
        """The error for methods of programs, as in `layer.law()`.

        Python asks for special attributes when it copies or documents an object. Its
        own two attributes are missing only before `__init__`, in a copy: the message
        below would then look up `_name` forever.
        """
        if name.startswith("__") or name in ("_function", "_name"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self._name} makes a program when it is called: write"
            f" {self._name}().{name}"
        )

    def __getitem__(self, key: Any) -> Any:
        raise TypeError(
            f"{self._name} makes a program when it is called: index {self._name}()"
        )

    def __repr__(self) -> str:
        signature = inspect.signature(self._function)
        return (
            f"<{self._name}{signature}: makes a program when it is called,"
            f" {self._name}()>"
        )

    def __reduce__(self) -> str | tuple[Any, ...]:
        """A decorated function is pickled by its name, under which its module has this
        object and not the function. A callable object has no name, and is pickled
        itself.
        """
        name = getattr(self._function, "__qualname__", None)
        return (type(self), (self._function,)) if name is None else str(name)


def program(function: Callable[P, Any]) -> Traced[P]:
    """Turn a function written in the language into one that returns a `Program`.

    Decorate the whole network; its building blocks stay plain functions of vectors and
    scalars.

    Parameters
    ----------
    function
        Returns a vector, a scalar or a tuple of them; its arguments are sizes and
        options.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> @ns.program
    ... def layer(tokens=4, heads=2):
    ...     return ns.nn.attention(ns.gaussian(n, tokens), heads)
    >>> layer(heads=1)
    <Program layer(tokens=4, heads=1): <Vector of shape (4,) in R^n, by MatMul>>
    """
    return Traced(function)
