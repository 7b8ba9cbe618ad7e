"""The graph of a JAX function: nodes, and what computes them.

A node is an equation of a jaxpr, or several that a pattern joined. It has the
attributes by which `reader/` knows nodes: `operation` is its name there, `args` are its
arguments. `compute` is a function of arrays, which JAX runs: for numbers that are
given, and for scalars of any function.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import primitives

from ..reader._graph import shape_of

# the package itself, whose lines are not the user's
PACKAGE = str(Path(__file__).parent.parent)
# parameters of primitives that are types of numbers
TYPES = ("new_dtype", "preferred_element_type", "dtype")
# primitives whose parameters have a function of numbers of one type
SCATTERS = {
    "scatter-add": jax.lax.scatter_add,
    "scatter-max": jax.lax.scatter_max,
    "scatter-min": jax.lax.scatter_min,
    "scatter-mul": jax.lax.scatter_mul,
    "scatter-sub": jax.lax.scatter_sub,
}
OPTIONS_OF_SCATTER = (
    "dimension_numbers",
    "indices_are_sorted",
    "unique_indices",
    "mode",
)


@dataclass(frozen=True, eq=False)
class PrimitiveCall:
    """A primitive with its parameters, as a function of arrays.

    It is known by its name, and so it can be sent to other processes.
    """

    name: str
    params: Mapping[str, Any]

    def __call__(self, *arrays: Any) -> Any:
        """What JAX computes; floating point has the precision of the arrays."""
        arrays = _of_one_precision(arrays)
        if self.name in SCATTERS:
            options = {name: self.params[name] for name in OPTIONS_OF_SCATTER}
            return SCATTERS[self.name](*arrays, **options)
        params = dict(self.params)
        floating_types = [x.dtype for x in arrays if _is_floating(x.dtype)]
        for name in TYPES:
            recorded_type = params.get(name)
            if recorded_type is None or not floating_types:
                continue
            if _is_floating(recorded_type):
                params[name] = floating_types[0]
        return bind(primitive_of(self.name), arrays, params)

    @classmethod
    def of(cls, equation: Any) -> PrimitiveCall:
        """The primitive of an equation."""
        name = equation.primitive.name
        SEEN.setdefault(name, equation.primitive)
        return cls(name, equation.params)


# primitives of equations, by their names
SEEN: dict[str, Any] = {}


def primitive_of(name: str) -> Any:
    """The primitive of a name."""
    return SEEN[name] if name in SEEN else getattr(primitives, f"{name}_p")


def bind(primitive: Any, arrays: Sequence[Any], params: Mapping[str, Any]) -> Any:
    """What a primitive returns, with the parameters that it has in a jaxpr."""
    bound = primitive.get_bind_params(dict(params))
    if isinstance(bound, tuple):  # of versions before 0.10: functions are arguments
        functions, bound = bound
        arrays = [*functions, *arrays]
    return primitive.bind(*arrays, **bound)


def _is_floating(dtype: Any) -> bool:
    """Whether a type of numbers is floating point."""
    return bool(jax.numpy.issubdtype(dtype, np.floating))


def _of_one_precision(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays, those of inexact numbers in the highest precision among them."""
    arrays = tuple(jax.numpy.asarray(x) for x in arrays)
    inexact = [x for x in arrays if jax.numpy.issubdtype(x.dtype, np.inexact)]
    real_types = {x.real.dtype for x in inexact}
    if len(real_types) < 2:
        return arrays
    highest = max(real_types, key=lambda dtype: dtype.itemsize)
    complex_type = np.result_type(highest, np.complex64)

    def in_highest(x: Any) -> Any:
        if _is_floating(x.dtype):
            return x.astype(highest)
        return x.astype(complex_type) if np.iscomplexobj(x) else x

    return tuple(in_highest(x) for x in arrays)


@dataclass(frozen=True)
class Swapped:
    """A function of two arrays, which are given in the other order."""

    compute: Callable[..., Any]

    def __call__(self, first: Any, second: Any) -> Any:
        """The value."""
        return self.compute(second, first)


@dataclass(frozen=True)
class Item:
    """One of the results of an operation that returns several."""

    number: int

    def __call__(self, results: Any) -> Any:
        """The result of this number."""
        return results[self.number]


@dataclass(frozen=True)
class Reshape:
    """An array in another shape."""

    shape: tuple[int, ...]

    def __call__(self, x: Any) -> Any:
        """The array in this shape."""
        return jax.numpy.reshape(x, self.shape)


def rows_of(table: Any, ids: Any) -> Any:
    """Rows of a table."""
    return jax.numpy.asarray(table)[ids]


@dataclass(eq=False)
class Node:
    """An operation, or a placeholder of a parameter or of an input."""

    op: str  # "placeholder" or "call_function", as in graphs of PyTorch
    operation: str  # its name in `reader/_operations.py`, or that of its primitive
    target: str  # the name of the primitive
    args: tuple[Any, ...]  # nodes and arrays
    kwargs: Mapping[str, Any]  # the parameters of its primitive
    compute: Callable[..., Any] | None
    meta: dict[str, Any]  # "val" has the shape and the type of its result
    name: str = ""
    is_random: bool = True
    users: dict[Node, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for x in self.all_input_nodes:
            x.users[self] = None

    @property
    def all_input_nodes(self) -> list[Node]:
        """The arguments that are nodes, each once."""
        return list(dict.fromkeys(x for x in self.args if isinstance(x, Node)))

    def __repr__(self) -> str:
        return f"<{self.operation} {shape_of(self)}>"

    def replace_argument(self, old: Node, new: Any) -> None:
        """Put another argument in the place of one, and keep both lists of users."""
        self.args = tuple(new if x is old else x for x in self.args)
        old.users.pop(self, None)
        if isinstance(new, Node):
            new.users[self] = None


def replace_uses(old: Node, new: Node) -> None:
    """Have all users of a node use another one."""
    for user in list(old.users):
        if user is not new:
            user.replace_argument(old, new)


def trace_of(equation: Any) -> str:
    """The innermost line of the user's code that an equation comes from.

    It is written as in a traceback; "" if it is not known.
    """
    traceback = equation.source_info.traceback
    if traceback is None:
        return ""
    for frame in traceback.frames:
        file = frame.file_name
        if not _in_library(file):
            code = linecache.getline(file, frame.line_num).strip()
            return f'  File "{file}", line {frame.line_num}\n    {code or "?"}\n'
    return ""


def _in_library(file: str) -> bool:
    """Whether a file belongs to a library, or to Python itself."""
    if file.startswith(("<", sys.base_prefix, PACKAGE)):
        return True
    return "site-packages" in Path(file).parts
