"""Fuses composed functions at infinite width: φ(x, ψ(x), y; p) is one function of the
Gaussian vectors x and y.

Identity: coordinatewise operations compose coordinatewise. So x · sigmoid(1.7 x) is a
function of one Gaussian variable, whose kernel is known to many digits, and silu(g) · u
is a product of functions of g and of u (see `Composed.factors`). A function of linear
combinations of fewer vectors is a function of these: f(x, 3 x) of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any

import numpy as np

from ..._array_api import Array, Ints
from ...functions.activations import IDENTITY, Function
from ...language.operations._operation import Add, Nonlin, Scale
from ...language.values._array import Take, Value
from ...language.values._scalar import MULTIPLY, Scalar
from ...language.values._vector import Vector
from ..graph._rewrite import Context, rewritten
from .adam_first_step import SIGN

# flat positions of entries, in the shape of the result; None: all
Positions = Ints | None


@dataclass(frozen=True)
class Call:
    """A function applied to expressions, which are calls or indices of arguments.

    For example, x · sigmoid(y) is Call(MULTIPLY, (0, Call(SIGMOID, (1,)))), called with
    the arrays x and y. It is an object, not a closure, because programs must be
    picklable.
    """

    f: Function | Callable[..., Array]  # a nonlinearity, or `add`
    inputs: tuple[Any, ...]

    def __call__(self, *arguments: Array) -> Array:
        """The value of the expression for these arguments."""
        values = []
        for x in self.inputs:
            values.append(arguments[x] if isinstance(x, int) else x(*arguments))
        return self.f(*values)


Expression = Call | int


@dataclass(frozen=True, eq=False)
class Composed(Function):
    """A composed function: its f is a `Call`.

    If it is a product, `factors` has each factor, and the indices of the arguments that
    it is a function of.
    """

    factors: tuple[tuple[Function, tuple[int, ...]], ...] = ()


def compose_nonlinearities(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace each nonlinearity of nonlinear vectors, at infinite width, by one
    function.

    It becomes a function of the vectors that the nonlinear ones are made from. Linear
    combinations are only expanded where that leaves fewer vectors.
    """

    def change(old: Value, new: Value) -> Value:
        """Replace a nonlinearity by one of fewer or other vectors; others stay.

        `new` is the copy of the value on vectors that are already rewritten.
        """
        op = new.op
        if not isinstance(op, Nonlin) or context.width(new) < np.inf:
            return new
        expanded = _Expander(new, whole=False)
        fully_expanded = _Expander(new, whole=True)
        if len(fully_expanded.vectors) < len(expanded.vectors):
            expanded = fully_expanded
        composes = any(_nonlinear(x) for x in op.vectors)
        has_other_count = len(expanded.vectors) != len(op.vectors)
        is_product = op.f is MULTIPLY  # a `Composed` product knows its factors
        if composes or has_other_count or is_product:
            composed = expanded.function(op.f.name)
            return replace(new, op=Nonlin(composed, expanded.vectors, expanded.scalars))
        return new

    return rewritten(outputs, context, change)


def _nonlinear(x: Value) -> bool:
    """Whether a value is a coordinatewise function that contains a nonlinearity."""
    match x.op:
        case Nonlin():
            return True
        case Add(x=a, y=b):
            return _nonlinear(a) or _nonlinear(b)
        case Scale(x=a) | Take(x=a):
            return _nonlinear(a)
    return False


class _Expander:
    """The expression of a nonlinearity in terms of its leaves.

    The leaves are the vectors that are not nonlinear, and scalars. With `whole`, linear
    vectors are expanded too, into what they combine.

    Attributes
    ----------
    vectors, scalars : tuple of Value
        The leaves, in the order in which the expression uses them.
    """

    def __init__(self, value: Value, whole: bool) -> None:
        """Expand a nonlinearity."""
        self.whole = whole
        self._leaves: dict[Value, None] = {}  # an ordered set
        # values that are entries of another one, by (that value, the positions of the
        # entries as bytes, their shape)
        self._taken: dict[tuple[Value, bytes, tuple[int, ...]], Value] = {}
        self._root = self._expand(value)
        self.vectors = tuple(x for x in self._leaves if isinstance(x, Vector))
        self.scalars = tuple(x for x in self._leaves if isinstance(x, Scalar))

    def _leaf(self, x: Any, positions: Positions) -> Any:
        """A value, or its entries at some positions, as a leaf of the expression."""
        if positions is not None:
            key = x, positions.tobytes(), positions.shape
            x = self._taken.setdefault(key, x.take(positions))
        self._leaves[x] = None
        return x

    def _expand(self, x: Any, positions: Positions = None) -> Any:
        """The expression of a value, or of its entries at some positions.

        It is a tree of calls whose leaves are values. `function` replaces these by
        their indices, once all leaves are known.
        """
        match x.op:
            # a function that an earlier rewrite composed: insert its expression
            case Nonlin(
                f=Composed(f=Call() as composed), vectors=vectors, scalars=scalars
            ):
                arguments = self._expand_each((*vectors, *scalars), x.shape, positions)
                return _with_leaves(composed, arguments.__getitem__)
            case Nonlin(f=f, vectors=vectors, scalars=scalars):
                arguments = self._expand_each((*vectors, *scalars), x.shape, positions)
                return Call(f, tuple(arguments))
            case Add(x=a, y=b) if self.whole or _nonlinear(x):
                return Call(add, tuple(self._expand_each((a, b), x.shape, positions)))
            case Scale(c=c, x=a) if self.whole or _nonlinear(x):
                factors = self._expand_each((a, c), x.shape, positions)
                return Call(MULTIPLY, tuple(factors))
            case Take(x=a, flat=flat) if positions is not None or _nonlinear(a):
                # entries of entries of a are entries of a
                if positions is not None:
                    flat = flat.ravel()[positions]
                return self._expand(a, np.asarray(flat, order="C"))
            case Take(x=a, flat=flat):
                # x is a leaf, which the same entries of a elsewhere use again
                self._taken.setdefault((a, flat.tobytes(), flat.shape), x)
        return self._leaf(x, positions)

    def _expand_each(
        self, arguments: Sequence[Value], shape: tuple[int, ...], positions: Positions
    ) -> list[Any]:
        """The expressions of arguments of an operation with results of this shape.

        They are those of the selected entries of the result: vectors are expanded, and
        scalars are leaves.
        """
        expressions = []
        for v in arguments:
            # an argument may have fewer axes than the result
            in_argument = _positions_in(v, shape, positions)
            if isinstance(v, Vector):
                expressions.append(self._expand(v, in_argument))
            else:
                expressions.append(self._leaf(v, in_argument))
        return expressions

    def function(self, name: str) -> Function:
        """The expression as a function of the vectors, then the scalars."""
        order: list[Value] = [*self.vectors, *self.scalars]
        root = _with_leaves(self._root, order.index)
        plain = _plain(root, len(order))
        if plain is not None and plain is not MULTIPLY:
            return plain
        factors = tuple(_factor_function(factor) for factor in _factors(root))
        if len(factors) == 1:  # not a product
            factors = ()
        return Composed(name, root, parity=_parity(root), factors=factors)


def _positions_in(
    argument: Value, shape: tuple[int, ...], positions: Positions
) -> Positions:
    """The positions in an argument that belong to positions in a result.

    The argument broadcasts to `shape`, that of the result. For example, with a result
    of shape (2, 3) and an argument of shape (3,), the positions [1, 4] become [1, 1].
    None, for all entries, stays None.
    """
    if positions is None:
        return None
    every_entry = np.arange(argument.size).reshape(argument.shape)
    flat = np.broadcast_to(every_entry, shape).ravel()
    return np.asarray(flat[positions], order="C")


def _with_leaves(e: Any, new: Callable[[Any], Any]) -> Any:
    """The same expression, with each leaf replaced by `new(leaf)`."""
    if not isinstance(e, Call):
        return new(e)
    return Call(e.f, tuple(_with_leaves(x, new) for x in e.inputs))


def _plain(e: Expression, arguments: int) -> Function | None:
    """The function f if the expression is f(0, 1, …) of all arguments in order.

    None for all other expressions; `arguments` is the number of arguments.
    """
    if not isinstance(e, Call) or not isinstance(e.f, Function):
        return None
    in_order = e.inputs == tuple(range(arguments))
    return e.f if in_order else None


def _factors(e: Expression) -> list[Expression]:
    """The factors of an expression; the expression itself, if it is no product."""
    if not isinstance(e, Call) or e.f not in (MULTIPLY, SIGN):
        return [e]
    factors: list[Expression] = []
    for x in e.inputs:
        factors += _factors(x)
    if e.f is SIGN:  # the sign of a product is the product of signs
        return [Call(SIGN, (factor,)) for factor in factors]
    return factors


def _arguments(e: Expression) -> set[int]:
    """The indices of the arguments that an expression depends on."""
    if isinstance(e, int):
        return {e}
    indices: set[int] = set()
    for x in e.inputs:
        indices |= _arguments(x)
    return indices


def _factor_function(e: Expression) -> tuple[Function, tuple[int, ...]]:
    """A factor as a function of the arguments that it depends on, and their indices."""
    indices = tuple(sorted(_arguments(e)))
    if isinstance(e, int):
        return IDENTITY, indices
    renumbered = _with_leaves(e, indices.index)
    plain = _plain(renumbered, len(indices))
    if plain is not None:
        return plain, indices
    return Function("factor", renumbered, parity=_parity(renumbered)), indices


def _parity(e: Expression) -> int | None:
    """1 if an expression of one argument is even, −1 if it is odd.

    None if it is neither, if that is unknown, or if it has several arguments.
    """
    if isinstance(e, int):  # x itself is odd
        return -1
    if len(_arguments(e)) > 1:
        return None
    parities: list[int] = []
    for x in e.inputs:
        parity = _parity(x)
        if parity is None:
            return None
        parities.append(parity)
    if e.f is MULTIPLY:
        return math.prod(parities)
    if e.f is add:
        return parities[0] if len(set(parities)) == 1 else None
    assert isinstance(e.f, Function)
    if len(parities) > 1:
        return None
    # f of an even expression is even; f of an odd one has the parity of f
    return 1 if parities[0] == 1 else e.f.parity


def is_smooth(f: Function) -> bool:
    """Whether a function is known to have a continuous derivative: no kink, no jump.

    Known for functions without breaks, and for expressions of such functions.
    """
    if f is MULTIPLY or f.breaks == ():
        return True
    functions = _functions(f.f)
    if functions is None:
        return False
    return all(is_smooth(inner) for inner in functions)


def jumps(f: Function) -> bool:
    """Whether a function, or one in its expression, is known to be discontinuous."""
    if f.lipschitz is False:
        return True
    functions = _functions(f.f)
    if functions is None:
        return False
    return any(jumps(inner) for inner in functions)


def _functions(e: Any) -> list[Function] | None:
    """The functions in an expression; None for a callable that is no expression."""
    if isinstance(e, int):
        return []
    if not isinstance(e, Call):
        return None
    functions = [e.f] if isinstance(e.f, Function) else []
    for x in e.inputs:
        functions += _functions(x) or []
    return functions
