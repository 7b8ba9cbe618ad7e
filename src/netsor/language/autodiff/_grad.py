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

from ..._validate import TraceError, shown
from ..operations import _operation as ops
from ..operations._score import dot, join
from ..operations._stop_gradient import ScaledGradient
from ..values._array import Ints, Keep, Source, Value, around, box, every, is_all, kept
from ..values._graph import demand, indexed_value, topological_order, weights_of
from ..values._parameters import Weight
from ..values._scalar import Scalar, ScalarLike, as_scalar, broadcast
from ..values._vector import Vector, ones
from ..values._width import Width
from ._derivative import (
    RULES,
    Unit,
    dot_unit,
    scale,
    unbroadcast,
    width_ratio,
    zeros_like,
)

# A contribution to a cotangent: flat positions in an array, and the value at each.
Part = tuple[Ints, Any]


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a matrix in a program."""

    value: Vector  # its result
    op: ops.Acting  # restricted to the entries that matter
    d: Vector  # their cotangent


class Reverse:
    """Reverse-mode differentiation, from cotangents of `seeds` to those of `leaves`.

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
        self.leaves = set(leaves)
        self.chosen = chosen
        self.constants = set(constants)
        self.uses: list[Use] = []
        # values that depend on a leaf or on a chosen matrix
        self._passing: set[Value] = set()
        # units of each cotangent; none if it is not needed
        self._units: dict[Value, tuple[Unit, ...]] = {}
        for value in self.values:
            if self._passes(value):
                self._passing.add(value)
            needed = value in self.leaves or value in self._passing
            self._units[value] = tuple(self._possible_units(value)) if needed else ()
        self._parts: defaultdict[tuple[Value, Unit], list[Part]] = defaultdict(list)
        self.units: dict[Unit, None] = {}  # the units of the seeds
        for p, weights in seeds:
            self.units |= dict.fromkeys(self._units[p])
            for seed_unit in self._units[p]:
                if unit not in (seed_unit, ...):
                    continue
                seed: Any = weights
                if seed_unit is not None and seed_unit != unit:
                    seed = scale(width_ratio((), (Width(seed_unit),)), weights)
                part = p._positions(), seed.broadcast_to(p.shape)
                self._parts[p, seed_unit].append(part)
        for value in reversed(self.values):
            self._pass(value)

    def _passes(self, value: Value) -> bool:
        """Whether a cotangent of a value reaches a leaf or a chosen matrix below it."""
        op = value.op
        if value in self.constants or (isinstance(op, ScaledGradient) and op.stops):
            return False
        if isinstance(op, ops.Acting) and self._counts(op):
            return True
        return any(self._units[x] for x in op.inputs)

    def _possible_units(self, value: Value) -> dict[Unit, None]:
        """The units of a cotangent, in order."""
        units: dict[Unit, None] = {}
        if isinstance(value, Vector) or value in self.leaves:
            units[None] = None
        if isinstance(value.op, ops.Dot):
            units[dot_unit(value.op)] = None
        elif isinstance(value, Scalar):
            # a function passes on the units of its inputs
            for x in value.op.inputs:
                units |= dict.fromkeys(self._units[x])
        return units

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
        if value not in self._passing:
            return
        parts_by_unit: dict[Unit, list[Part]] = {}
        for unit in self._units[value]:
            parts = self._parts.get((value, unit))
            if parts:
                parts_by_unit[unit] = parts
        if not parts_by_unit:
            return
        touched = [
            positions.ravel()
            for parts in parts_by_unit.values()
            for positions, _ in parts
        ]
        keep, needs = demand(value, around(np.concatenate(touched), value.shape))
        d = {unit: _summed(value, keep, parts) for unit, parts in parts_by_unit.items()}
        if isinstance(value.op, ops.Take):
            self._pass_index(value.op, keep, d)
            return
        input_positions = [kept(x._positions(), need) for x, need in needs]
        cotangents: Iterable[tuple[int, Any]]
        if isinstance(value.op, ops.Join):
            cotangents = _split_join([len(rows) for rows in input_positions], d)
        else:
            cotangents = self._cotangents(value, keep, needs, d)
        for k, cotangent in cotangents:
            x, positions = needs[k][0], input_positions[k]
            by_unit = cotangent if isinstance(cotangent, dict) else {None: cotangent}
            for unit, part in by_unit.items():
                if unit in self._units[x]:
                    self._parts[x, unit].append(
                        (positions, unbroadcast(part, positions.shape))
                    )

    def _cotangents(
        self,
        value: Value,
        keep: Keep,
        needs: Sequence[tuple[Value, Keep]],
        d: dict[Unit, Any],
    ) -> Iterable[tuple[int, Any]]:
        """The cotangent of each input, by the rule of the operation.

        A matrix that counts is noted as a use.
        """
        op = value.op.at(keep).with_inputs(*(_part(x, need) for x, need in needs))
        if isinstance(value.op, ops.Acting) and self._counts(value.op):
            self.uses.append(Use(cast(Vector, value), cast(ops.Acting, op), d[None]))
        rule = RULES.get(type(op))
        if rule is None:
            raise TraceError("grad", f"{type(op).__name__} has no derivative")
        wants = [self._units[x] for x, _ in needs]
        if not any(wants):
            return ()
        cotangent = d[None] if isinstance(value, Vector) else d
        return rule(op, _part(value, keep), cotangent, wants.__getitem__)

    def _pass_index(self, op: ops.Take, keep: Keep, d: dict[Unit, Any]) -> None:
        """Pass each entry back to where it came from.

        An index of an index passes through, unless a gradient is asked for between.
        """
        x, positions = op.x, kept(op.flat, keep)
        while (
            isinstance(x.op, ops.Take)
            and x not in self.leaves
            and x not in self.constants
        ):
            positions = x.op.flat.ravel()[positions]
            x = x.op.x
        for unit, part in d.items():
            if unit in self._units[x]:
                self._parts[x, unit].append((positions, part))


def _split_join(
    lengths: Sequence[int], d: dict[Unit, Any]
) -> list[tuple[int, dict[Unit, Any]]]:
    """The cotangent of a Join, split along its parts."""
    cotangents = []
    start = 0
    for k, length in enumerate(lengths):
        span = slice(start, start + length)
        cotangents.append((k, {unit: part[span] for unit, part in d.items()}))
        start += length
    return cotangents


def _part(x: Value, keep: Keep) -> Value:
    return x if is_all(keep) else x[box(keep)]


def _summed(value: Value, keep: Keep, parts: Sequence[Part]) -> Any:
    """Sum contributions over a box of entries; entries without any are 0."""
    box_positions = kept(value._positions(), keep)
    groups = _merged(parts)
    if len(groups) == 1 and np.array_equal(groups[0][0], box_positions):
        return groups[0][1]
    # Sort each group by position, and count the contributions to each entry.
    entries = box_positions.ravel()
    orders = [np.argsort(rows, axis=None, kind="stable") for rows, _ in groups]
    in_order = [
        positions.ravel()[order]
        for (positions, _), order in zip(groups, orders, strict=True)
    ]
    first = [np.searchsorted(rows, entries, "left") for rows in in_order]
    last = [np.searchsorted(rows, entries, "right") for rows in in_order]
    # Entries that get the same number of contributions from each group are summed
    # together.
    counts, pattern_of_entry = np.unique(
        np.subtract(last, first), axis=1, return_inverse=True
    )
    pattern_of_entry = pattern_of_entry.ravel()
    pieces: list[Any] = []
    for pattern, count_of_group in enumerate(counts.T):
        selected = np.flatnonzero(pattern_of_entry == pattern)
        terms = []
        for k in np.flatnonzero(count_of_group).tolist():
            count = count_of_group[k]
            rows = orders[k][first[k][selected, None] + np.arange(count)]
            contributions = groups[k][1].take(rows)
            terms.append(contributions.sum(-1) if count > 1 else contributions[..., 0])
        if not terms:
            terms = [zeros_like(groups[0][1].take(np.zeros_like(selected)))]
        pieces.append(reduce(operator.add, terms))
    joined: Any = pieces[0] if len(pieces) == 1 else join(pieces)
    # The pieces have the entries by pattern: bring them back into the order of the box.
    back = np.argsort(np.argsort(pattern_of_entry, kind="stable"))
    return joined.take(back.reshape(box_positions.shape))


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Add up contributions to the same entries in the same order."""
    groups: list[Part] = []
    for positions, d in parts:
        for k, (known, total) in enumerate(groups):
            if np.array_equal(known, positions):
                groups[k] = positions, total + d
                break
        else:
            groups.append((positions, d))
    return groups


def grad(p: Scalar, wrt: Any, weights: ScalarLike | None = None) -> Any:
    """The gradient of a scalar by values that it depends on, as values of the program.

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

    Returns
    -------
    gradient : Scalar or Vector, or tuple of them
        Of the same shape as the value, and the same kind; a tuple in the same order for
        several values.

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
    factors = as_scalar(1.0 if weights is None else weights, "grad", "weights")
    if broadcast("grad", factors, p) != p.shape:
        raise TraceError(
            "grad",
            f"weights of shape {factors.shape} must broadcast to the shape {p.shape}"
            " of p",
        )
    several = isinstance(wrt, list | tuple)
    values = set(topological_order([p]))
    leaves = [_leaf(x, values) for x in (wrt if several else [wrt])]
    seed = factors.broadcast_to(p.shape)
    reverse = Reverse([(p, seed)], [leaf for leaf, _ in leaves])
    gradients = tuple(reverse.of(leaf).take(positions) for leaf, positions in leaves)
    return gradients if several else gradients[0]


def as_loss(p: object, operation: str, name: str = "p") -> Scalar:
    """Check that an argument is a scalar of the program, and so has a gradient.

    A vector in R^1 stands for its coordinate.
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
    """The value among those of p to differentiate by, and the entries that x has."""
    if not isinstance(x, Value) or isinstance(x.op, ops.Constant):
        raise TraceError(
            "grad", "wrt", x, "a vector or a scalar of the program, or a list of them"
        )
    indexed = indexed_value(x, values)
    if indexed is None:
        raise TraceError(
            "grad",
            f"p does not depend on wrt={x!r}: name a value that p uses, or an index"
            " of it",
        )
    return indexed


Parameter = Weight | Vector | Scalar


class Parameters:
    """The parameters that a user chose, by default all matrices.

    These are matrices (`members` has the chosen ones of each batch), and `leaves`:
    initial vectors and random scalars, after the last step that they have taken.
    """

    def __init__(self, argument: Any, values: Sequence[Value], operation: str) -> None:
        self.members: dict[Source, set[int]] = {}
        self.leaves: list[Value] = []
        used = {w.source for w in weights_of(values)}
        latest = _latest_versions(values)
        listed = weights_of(values) if argument is None else argument
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
        chosen = self.members.get(op.weight.source, set())
        return not chosen.isdisjoint(op.weight.members.ravel().tolist())


def _latest_versions(values: Sequence[Value]) -> dict[Value, Value]:
    """For each initial value, the same parameter after most steps."""
    latest: dict[Value, Value] = {}
    most_steps: dict[Value, int] = {}
    for value in values:
        initial, steps = ops.initial_value(value)
        if steps > most_steps.get(initial, -1):
            latest[initial] = value
            most_steps[initial] = steps
    return latest


@dataclass(frozen=True, eq=False)
class Term:
    """A term of a gradient, ∂p_output/∂W_b = Σ_k scale · l[b, k] r[b, k]^T + …

    It has one matrix b for each entry of `members`. If all share l or r, its first axis
    has size 1.
    """

    output: int
    members: tuple[int, ...]
    left: Vector  # l
    right: Vector  # r
    used: Weight
    # of the scalars it passed through; if set, the term is multiplied by √unit
    unit: Unit


def terms_of(
    output: int, use: Use, chosen: Parameters, unit: Unit = None
) -> list[Term]:
    """The terms of a gradient from one use of a matrix or of a batch of matrices.

    All matrices are in one term, unless some are not chosen or act twice.
    """
    weight, x, d = use.op.weight, use.op.x, use.d
    members = weight.members.ravel()
    d = d.reshape(len(members), -1)
    x = x.reshape(len(members) if use.op.each else 1, -1)
    left, right = (x, d) if weight.transposed else (d, x)
    whole = Term(
        output=output,
        members=tuple(members.tolist()),
        left=left,
        right=right,
        used=weight,
        unit=unit,
    )
    is_chosen = np.isin(members, list(chosen.members[weight.source]))
    if is_chosen.all() and len(np.unique(members)) == len(members):
        return [whole]
    return [alone(whole, int(k)) for k in np.flatnonzero(is_chosen)]


def alone(term: Term, k: int) -> Term:
    """The term restricted to one of its matrices."""
    return replace(
        term,
        members=(term.members[k],),
        left=_row(term.left, k),
        right=_row(term.right, k),
    )


def _row(vectors: Vector, k: int) -> Vector:
    """Row k of an array; its only row if all matrices share it."""
    return vectors if vectors.shape[0] == 1 else vectors[k : k + 1]
