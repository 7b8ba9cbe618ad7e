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

Places = Ints | None  # flat positions of entries, in the shape of the result; None: all


@dataclass(frozen=True)
class Call:
    """A function applied to expressions: calls, and indices of arguments, vectors
    first.

    It is an object, not a closure, because programs must be picklable.
    """

    f: Function | Callable[..., Array]  # a nonlinearity, or `add`
    inputs: tuple[Any, ...]

    def __call__(self, *arguments: Array) -> Array:
        """Its value."""
        return self.f(
            *(
                arguments[x] if isinstance(x, int) else x(*arguments)
                for x in self.inputs
            )
        )


Expression = Call | int


@dataclass(frozen=True, eq=False)
class Composed(Function):
    """A composed function. If it is a product, `factors` lists functions and the
    indices of their arguments.
    """

    factors: tuple[tuple[Function, tuple[int, ...]], ...] = ()


def compose_nonlinearities(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace each nonlinearity of nonlinear vectors, at infinite width, by one
    function.
    """

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case Nonlin(f, vectors) if context.width(new) == np.inf:
                lazy, full = _Expander(new, whole=False), _Expander(new, whole=True)
                chosen = full if len(full.vectors) < len(lazy.vectors) else lazy
                linear = f is not MULTIPLY and not any(_nonlinear(x) for x in vectors)
                if linear and len(chosen.vectors) == len(vectors):
                    return new
                return replace(
                    new,
                    op=Nonlin(chosen.function(f.name), chosen.vectors, chosen.scalars),
                )
        return new

    return rewritten(outputs, context, change)


def _nonlinear(x: Value) -> bool:
    """Whether a value is a coordinatewise function that contains a nonlinearity."""
    match x.op:
        case Nonlin():
            return True
        case Add(a, b):
            return _nonlinear(a) or _nonlinear(b)
        case Scale(_, a) | Take(a):
            return _nonlinear(a)
    return False


class _Expander:
    """The expression of a nonlinearity in its arguments; with `whole`, linear vectors
    are expanded too.
    """

    def __init__(self, value: Value, whole: bool) -> None:
        self.whole = whole
        self.leaves: dict[Value, None] = {}
        self.taken: dict[tuple[Value, bytes, tuple[int, ...]], Value] = {}
        self.root = self._expand(value)
        self.vectors = tuple(x for x in self.leaves if isinstance(x, Vector))
        self.scalars = tuple(x for x in self.leaves if isinstance(x, Scalar))

    def _leaf(self, x: Any, places: Places) -> Any:
        if places is not None:
            x = self.taken.setdefault(
                (x, places.tobytes(), places.shape), x.take(places)
            )
        self.leaves[x] = None
        return x

    def _expand(self, x: Any, places: Places = None) -> Any:
        """A tree of Calls whose leaves are values, numbered once all are known;
        `places` selects entries.
        """

        def inside(inner: Any) -> Places:
            """The positions of the entries of x in an argument, which may have fewer
            axes.
            """
            if places is None:
                return None
            every = np.arange(inner.size).reshape(inner.shape)
            return np.asarray(
                np.broadcast_to(every, x.shape).ravel()[places], order="C"
            )

        def expanded(*inner: Value) -> list[Any]:
            """Expand the arguments: vectors are expanded, scalars are leaves."""
            return [
                (self._expand if isinstance(v, Vector) else self._leaf)(v, inside(v))
                for v in inner
            ]

        match x.op:
            case Nonlin(Composed(f=Call() as inner), vectors, scalars):
                arguments = expanded(*vectors, *scalars)
                return _with_leaves(inner, arguments.__getitem__)
            case Nonlin(f, vectors, scalars):
                return Call(f, tuple(expanded(*vectors, *scalars)))
            case Add(a, b) if self.whole or _nonlinear(x):
                return Call(add, tuple(expanded(a, b)))
            case Scale(c, a) if self.whole or _nonlinear(x):
                return Call(MULTIPLY, tuple(expanded(a, c)))
            case Take(a, flat) if places is not None or _nonlinear(a):
                return self._expand(
                    a,
                    np.asarray(
                        flat if places is None else flat.ravel()[places], order="C"
                    ),
                )
            case Take(a, flat):
                self.taken.setdefault((a, flat.tobytes(), flat.shape), x)
        return self._leaf(x, places)

    def function(self, name: str) -> Function:
        """The function of the vectors, then the scalars."""
        order: list[Value] = [*self.vectors, *self.scalars]
        root = _with_leaves(self.root, order.index)
        if (plain := _plain(root, len(order))) is not None and plain is not MULTIPLY:
            return plain
        factors = tuple(_part(factor) for factor in _factors(root))
        return Composed(
            name,
            root,
            parity=_parity(root),
            factors=factors if len(factors) > 1 else (),
        )


def _with_leaves(e: Any, new: Callable[[Any], Any]) -> Any:
    """The same expression on other leaves."""
    return (
        Call(e.f, tuple(_with_leaves(x, new) for x in e.inputs))
        if isinstance(e, Call)
        else new(e)
    )


def _plain(e: Expression, arguments: int) -> Function | None:
    """The function of a single call on all arguments in order, if the expression is
    one.
    """
    if (
        isinstance(e, Call)
        and isinstance(e.f, Function)
        and e.inputs == tuple(range(arguments))
    ):
        return e.f
    return None


def _factors(e: Expression) -> list[Expression]:
    # the sign of a product is the product of signs
    if isinstance(e, Call) and e.f in (MULTIPLY, SIGN):
        inner = [factor for x in e.inputs for factor in _factors(x)]
        return inner if e.f is MULTIPLY else [Call(SIGN, (factor,)) for factor in inner]
    return [e]


def _arguments(e: Expression) -> set[int]:
    return (
        {e} if isinstance(e, int) else set().union(*(_arguments(x) for x in e.inputs))
    )


def _part(e: Expression) -> tuple[Function, tuple[int, ...]]:
    """A factor as a function of its own arguments."""
    numbers = tuple(sorted(_arguments(e)))
    if isinstance(e, int):
        return IDENTITY, numbers
    own = _with_leaves(e, numbers.index)
    return _plain(own, len(numbers)) or Function(
        "factor", own, parity=_parity(own)
    ), numbers


def _parity(e: Expression) -> int | None:
    """1 if an expression of one argument is even, −1 if it is odd; None if neither, or
    unknown.
    """
    if isinstance(e, int):
        return -1
    inputs = [_parity(x) for x in e.inputs]
    if len(_arguments(e)) > 1 or None in inputs:
        return None
    known = [p for p in inputs if p is not None]
    if e.f is MULTIPLY:
        return math.prod(known)
    if e.f is add:
        return known[0] if len(set(known)) == 1 else None
    assert isinstance(e.f, Function)
    return None if len(known) > 1 else 1 if known[0] == 1 else e.f.parity


def is_smooth(f: Function) -> bool:
    """Whether a function and all its parts are known to have a continuous derivative:
    no kink, no jump.
    """
    made_of = _functions(f.f)
    return (
        f is MULTIPLY
        or f.breaks == ()
        or (made_of is not None and all(map(is_smooth, made_of)))
    )


def jumps(f: Function) -> bool:
    """Whether a function, or one of its parts, is known to be discontinuous."""
    return f.lipschitz is False or any(map(jumps, _functions(f.f) or ()))


def _functions(e: Any) -> list[Function] | None:
    """The functions in an expression; None if it is another function."""
    if not isinstance(e, Call):
        return [] if isinstance(e, int) else None
    own = [e.f] if isinstance(e.f, Function) else []
    return own + [f for x in e.inputs for f in _functions(x) or ()]
