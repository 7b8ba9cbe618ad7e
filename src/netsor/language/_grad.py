"""Gradients of scalars, as values of the same program, and the matrix uses that
contribute to them.

A use W x with cotangent δ adds l r^T to ∂p/∂W: l = δ and r = x, or the reverse if W
acts transposed.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import EllipsisType
from typing import Any, cast

import numpy as np

from .._validate import TraceError, shown
from . import _operation as ops
from ._array import Ints, Keep, Source, Value, around, box, every, is_all, kept
from ._derivative import (
    RULES,
    Unit,
    dot_unit,
    scale,
    unbroadcast,
    width_ratio,
    zeros_like,
)
from ._graph import demand, indexed_value, topological_order, weights_of
from ._parameters import Weight
from ._scalar import Scalar, ScalarLike, as_scalar, broadcast
from ._score import dot, join
from ._stop_gradient import ScaledGradient
from ._vector import Vector, ones
from ._width import Width

Part = tuple[Ints, Any]  # flat positions in an array, and the value at each


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a matrix: its result, the operation restricted to the entries that
    matter, and their cotangent.
    """

    value: Vector
    op: ops.Acting
    d: Vector


class Reverse:
    """Reverse-mode differentiation, from the cotangents of `seeds` to those of
    `leaves`.

    It also collects the uses of the matrices that `chosen` selects. Gradients stop at
    `constants`, which may be leaves. A seed is a value and its cotangent: for scalars p
    the weights w of Σ w·p, for vectors √width times the cotangent. `unit` selects the
    part that passes through scalars in that unit, times √unit; the gradient is the sum
    over `units`.
    """

    def __init__(
        self,
        seeds: Sequence[tuple[Value, Value]],
        leaves: Iterable[Value],
        chosen: Callable[[ops.Acting], bool] = lambda op: False,
        unit: Unit | EllipsisType = ...,
        constants: Iterable[Value] = (),
    ) -> None:
        self.values = topological_order([value for value, _ in seeds])
        self.leaves, self.chosen, self.constants = set(leaves), chosen, set(constants)
        self.uses: list[Use] = []
        # values that depend on a leaf or on a chosen matrix
        self._passing: set[Value] = set()
        # units of each cotangent; none if it is not needed
        self._units: dict[Value, tuple[Unit, ...]] = {}
        for value in self.values:
            op, leaf = value.op, value in self.leaves
            counts = isinstance(op, ops.Acting) and self._counts(op)
            stopped = value in self.constants or (
                isinstance(op, ScaledGradient) and op.stops
            )
            if not stopped and (counts or any(self._units[x] for x in op.inputs)):
                self._passing.add(value)
            units: dict[Unit, None] = (
                {None: None} if isinstance(value, Vector) or leaf else {}
            )
            if isinstance(op, ops.Dot):
                units[dot_unit(op)] = None
            elif isinstance(value, Scalar):
                # a function passes on the units of its inputs
                units |= {unit: None for x in op.inputs for unit in self._units[x]}
            self._units[value] = tuple(units) if leaf or value in self._passing else ()
        self._parts: defaultdict[tuple[Value, Unit], list[Part]] = defaultdict(list)
        self.units: dict[Unit, None] = {}  # the units of the seeds
        for p, weights in seeds:
            self.units |= dict.fromkeys(self._units[p])
            for own in self._units[p]:
                if unit in (own, ...):
                    seed = (
                        weights
                        if own is None or unit == own
                        else scale(width_ratio((), (Width(own),)), weights)
                    )
                    self._parts[p, own].append(
                        (p._positions(), seed.broadcast_to(p.shape))
                    )
        for value in reversed(self.values):
            self._pass(value)

    def of(self, leaf: Value) -> Any:
        """The cotangent of a leaf, in its shape."""
        parts = self.parts(leaf)
        return _summed(leaf, every(leaf.shape), parts) if parts else zeros_like(leaf)

    def parts(self, leaf: Value) -> list[Part]:
        """The same, as a list of contributions, each with its entries."""
        return self._parts.get((leaf, None), [])

    def _counts(self, op: ops.Acting) -> bool:
        """Whether a product contributes to the gradient of a chosen matrix."""
        return not op.weight.frozen and self.chosen(op)

    def _pass(self, value: Value) -> None:
        """Propagate a cotangent from a value to its inputs."""
        by_unit = {
            unit: parts
            for unit in self._units[value]
            if (parts := self._parts.get((value, unit)))
        }
        if not by_unit or value not in self._passing:
            return
        touched = [places.ravel() for parts in by_unit.values() for places, _ in parts]
        keep, needs = demand(value, around(np.concatenate(touched), value.shape))
        d: Any = {unit: _summed(value, keep, parts) for unit, parts in by_unit.items()}
        if isinstance(value.op, ops.Take):
            self._pass_index(value.op, keep, d)
            return
        places = [kept(x._positions(), need) for x, need in needs]
        wants = [self._units[x] for x, _ in needs]
        found: Iterable[tuple[int, Any]]
        if isinstance(value.op, ops.Join):
            ends = np.cumsum([len(own) for own in places])
            spans = [
                slice(end - len(own), end)
                for own, end in zip(places, ends, strict=True)
            ]
            found = [
                (k, {unit: part[span] for unit, part in d.items()})
                for k, span in enumerate(spans)
            ]
        else:
            op = value.op.at(keep).with_inputs(*(_part(x, need) for x, need in needs))
            if isinstance(value.op, ops.Acting) and self._counts(value.op):
                self.uses.append(
                    Use(cast(Vector, value), cast(ops.Acting, op), d[None])
                )
            rule = RULES.get(type(op))
            if rule is None:
                raise TraceError("grad", f"{type(op).__name__} has no derivative")
            d = d[None] if isinstance(value, Vector) else d
            found = (
                rule(op, _part(value, keep), d, wants.__getitem__) if any(wants) else ()
            )
        for k, cotangent in found:
            for unit, part in (
                cotangent if isinstance(cotangent, dict) else {None: cotangent}
            ).items():
                if unit in wants[k]:
                    self._parts[needs[k][0], unit].append(
                        (places[k], unbroadcast(part, places[k].shape))
                    )

    def _pass_index(self, op: ops.Take, keep: Keep, d: dict[Unit, Any]) -> None:
        """Each entry goes back to where it came from: through further indices, unless a
        gradient is asked for there.
        """
        x, places = op.x, kept(op.flat, keep)
        while (
            isinstance(x.op, ops.Take)
            and x not in self.leaves
            and x not in self.constants
        ):
            places = x.op.flat.ravel()[places]
            x = x.op.x
        for unit, part in d.items():
            if unit in self._units[x]:
                self._parts[x, unit].append((places, part))


def _part(x: Value, keep: Keep) -> Value:
    return x if is_all(keep) else x[box(keep)]


def _summed(value: Value, keep: Keep, parts: Sequence[Part]) -> Any:
    """Sum contributions over a box of entries; entries without a contribution are 0."""
    whole = kept(value._positions(), keep)
    groups: list[Part] = []
    for places, d in parts:  # sum contributions to the same entries directly
        same = next(
            (k for k, (known, _) in enumerate(groups) if np.array_equal(known, places)),
            None,
        )
        if same is None:
            groups.append((places, d))
        else:
            groups[same] = places, groups[same][1] + d
    if len(groups) == 1 and np.array_equal(groups[0][0], whole):
        return groups[0][1]
    # Handle entries that get the same number of contributions from each group together.
    orders = [np.argsort(places, axis=None, kind="stable") for places, _ in groups]
    listed = [
        places.ravel()[order] for (places, _), order in zip(groups, orders, strict=True)
    ]
    first, last = (
        [np.searchsorted(own, whole.ravel(), side) for own in listed]
        for side in ("left", "right")
    )
    patterns, which = np.unique(np.subtract(last, first), axis=1, return_inverse=True)
    pieces: list[Any] = []
    for number, pattern in enumerate(patterns.T):
        entries = np.flatnonzero(which.ravel() == number)
        terms = []
        for k in np.flatnonzero(pattern).tolist():
            some = groups[k][1].take(
                orders[k][first[k][entries, None] + np.arange(pattern[k])]
            )
            terms.append(some.sum(-1) if pattern[k] > 1 else some[..., 0])
        terms = terms or [zeros_like(groups[0][1].take(np.zeros_like(entries)))]
        pieces.append(reduce(operator.add, terms))
    joined: Any = pieces[0] if len(pieces) == 1 else join(pieces)
    return joined.take(
        np.argsort(np.argsort(which.ravel(), kind="stable")).reshape(whole.shape)
    )


def grad(p: Scalar, wrt: Any, weights: ScalarLike | None = None) -> Any:
    """The gradient of a scalar with respect to vectors or scalars that it depends on,
    as values of the same program.

    For scalars it is ∂p/∂q. **For vectors it is √width · ∂p/∂x**, so its coordinates
    are of order 1 at every width if p is a score: for p = ns.dot(r, x), which is
    n^(−1/2) ⟨r, x⟩, it is r. |∂p/∂x|² is then `ns.mean_dot(g, g)`. For a coordinate of
    an output y, use a random readout `ns.dot(ns.gaussian(n), y)`, which is distributed
    like a row of one more matrix times y. Declare derivatives of your functions in
    `ns.nonlin` and `ns.apply`. You can nest `grad`.

    Parameters
    ----------
    p : Scalar
        The scalar to differentiate; several scalars are summed.
    wrt : Vector, Scalar, or list of them
        Any values of the program. The gradient with respect to a value that p uses is
        through that value alone: for x = E[ids], what p reads from E without x does not
        count. An index that p does not use stands for the entries that it selects. (An
        array in its own shape is itself: `x.reshape(x.shape) is x`.)
    weights : Scalar or array_like, optional
        Differentiate Σ weights·p; broadcast to the shape of p.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x, r = ns.gaussian(n, 3), ns.gaussian(n)
    >>> y = x + ns.nn.attention(x, heads=2)
    >>> p = ns.dot(r, y[0])  # a coordinate of the first output
    >>> g = ns.grad(p, x)  # √n ∂p/∂x, three vectors
    >>> net = ns.Program((p, ns.mean_dot(g[0], g[0]), ns.dot(g[0], x[0])))
    >>> net.law(n=16, draws=100).dim
    3
    """
    p = as_loss(p, "grad")
    by = as_scalar(1.0 if weights is None else weights, "grad", "weights")
    if broadcast("grad", by, p) != p.shape:
        raise TraceError(
            "grad",
            f"weights of shape {by.shape} must broadcast to the shape {p.shape} of p",
        )
    several = isinstance(wrt, list | tuple)
    values = set(topological_order([p]))
    leaves = [_leaf(x, values) for x in (wrt if several else [wrt])]
    reverse = Reverse([(p, by.broadcast_to(p.shape))], [leaf for leaf, _ in leaves])
    gradients = tuple(reverse.of(leaf).take(places) for leaf, places in leaves)
    return gradients if several else gradients[0]


def as_loss(p: object, operation: str, name: str = "p") -> Scalar:
    """Check that an argument is a scalar of the program, and so has a gradient; a
    vector in R^1 is its coordinate.
    """
    # W y with a matrix of one row, a readout
    if isinstance(p, Vector) and p.width == Width(1):
        return dot(p[..., None], ones(p.width))[..., 0]
    if isinstance(p, Vector):
        raise TraceError(
            operation,
            f"{name} must be a scalar, got {p!r}: use ns.dot(ns.gaussian(n), y), for"
            " example",
        )
    if not isinstance(p, Scalar) or isinstance(p.op, ops.Constant):
        raise TraceError(operation, name, p, "a scalar of the program")
    return p


def _leaf(x: object, values: Container[Value]) -> tuple[Value, Ints]:
    """The value among those of p to differentiate with respect to, and the entries of
    it that x stands for.
    """
    if not isinstance(x, Value) or isinstance(x.op, ops.Constant):
        raise TraceError(
            "grad", "wrt", x, "a vector or a scalar of the program, or a list of them"
        )
    found = indexed_value(x, values)
    if found is None:
        raise TraceError(
            "grad",
            f"p does not depend on wrt={x!r}: name a value that p uses, or an index"
            " of it",
        )
    return found


Parameter = Weight | Vector | Scalar


class Parameters:
    """The chosen parameters: matrices (by batch member), initial vectors and random
    scalars.
    """

    def __init__(self, given: Any, values: Sequence[Value], operation: str) -> None:
        self.members: dict[Source, set[int]] = {}
        self.leaves: list[Value] = []
        used = {w.source for w in weights_of(values)}
        latest: dict[Value, Value] = {}  # initial vectors after their last step
        for value in values:
            first, _ = ops.initial_value(value)
            latest[first] = max(
                latest.get(first, value), value, key=lambda v: ops.initial_value(v)[1]
            )
        listed = weights_of(values) if given is None else given
        for parameter in listed if isinstance(listed, list | tuple) else [listed]:
            match parameter:
                case Weight(source=Source(by=Scalar())):
                    raise TraceError(
                        operation,
                        f"weights={shown(parameter)} has a scalar as std: give it a"
                        " number",
                    )
                case Weight(source=source, members=members) if source in used:
                    self.members.setdefault(source, set()).update(
                        members.ravel().tolist()
                    )
                case Vector(op=ops.Gaussian()) | Scalar(op=ops.Normal()) if (
                    parameter in latest
                ):
                    # a parameter listed twice counts once
                    if latest[parameter] not in self.leaves:
                        self.leaves.append(latest[parameter])
                case _:
                    allowed = (
                        "weights, initial vectors (ns.gaussian) or random scalars"
                        " (ns.normal) of the program"
                    )
                    raise TraceError(operation, "weights", parameter, allowed)

    def counts(self, op: ops.Acting) -> bool:
        """Whether any acting matrix is among them."""
        return not self.members.get(op.weight.source, set()).isdisjoint(
            op.weight.members.ravel().tolist()
        )


@dataclass(frozen=True, eq=False)
class Term:
    """Σ_k scale · l[b, k] r[b, k]^T, a term of ∂p_output/∂W for each matrix b; r is (1,
    K) if all b share it.
    """

    output: int
    members: tuple[int, ...]
    left: Vector
    right: Vector
    used: Weight
    # of the scalars it passed through; if set, the term is multiplied by √unit
    unit: Unit


def terms_of(
    output: int, use: Use, chosen: Parameters, unit: Unit = None
) -> list[Term]:
    """The terms of a gradient from one use: one per matrix if some are not chosen or
    act twice, else one in all.
    """
    weight, x, d = use.op.weight, use.op.x, use.d
    members = weight.members.ravel()
    d = d.reshape(len(members), -1)
    x = x.reshape(len(members) if use.op.each else 1, -1)
    left, right = (x, d) if weight.transposed else (d, x)
    whole = Term(output, tuple(members.tolist()), left, right, weight, unit)
    counting = np.isin(members, list(chosen.members[weight.source]))
    together = counting.all() and len(np.unique(members)) == len(members)
    return (
        [whole]
        if together
        else [alone(whole, int(k)) for k in np.flatnonzero(counting)]
    )


def alone(term: Term, k: int) -> Term:
    """The term restricted to one of its matrices."""
    left, right = (
        v if v.shape[0] == 1 else v[k : k + 1] for v in (term.left, term.right)
    )
    return replace(term, members=(term.members[k],), left=left, right=right)
