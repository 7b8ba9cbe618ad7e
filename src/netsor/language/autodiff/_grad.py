"""Gradients of scalars, as values of the same program, and the matrix uses that
contribute to them.

A use W x with cotangent δ adds l r^T to ∂p/∂W: l = δ and r = x, or the reverse if W
acts transposed.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import EllipsisType
from typing import Any, NamedTuple, cast

import numpy as np

from ..._validate import TraceError, shown
from ..operations import _operation as ops
from ..operations._score import dot, join
from ..operations._stop_gradient import ScaledGradient
from ..values._array import (
    Box,
    Ints,
    Source,
    Value,
    box_index,
    entries_in,
    has_every_position,
    is_whole,
    smallest_box,
    whole_box,
)
from ..values._graph import demand, indexed_value, topological_order, weights_of
from ..values._parameters import Weight
from ..values._scalar import Scalar, ScalarLike, as_scalar, broadcast
from ..values._vector import Vector, ones
from ..values._width import Width
from ._derivative import (
    Unit,
    cotangents_of_inputs,
    dot_unit,
    scale,
    unbroadcast,
    width_ratio,
    zeros_like,
)


class Contribution(NamedTuple):
    """A term of the cotangent of a value, at some of its entries.

    For example, x[[0, 2]] with the cotangent d contributes `Contribution([0, 2], d)` to
    x. An entry may occur more than once; its terms are added.
    """

    positions: Ints  # the entries: flat positions in the value
    cotangent: Any  # in the shape of the positions


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a matrix in a program."""

    value: Vector  # its result
    op: ops.Acting  # restricted to the entries that matter
    cotangent: Vector  # of these entries


class Reverse:
    """Reverse-mode differentiation, from cotangents of `seeds` to those of `leaves`.

    It also collects the uses of the matrices that `chosen` selects. Gradients stop at
    `constants`, which may be leaves. A seed is a value and its cotangent: for scalars p
    the weights w of Σ w·p, for vectors √width times the cotangent. `unit` selects the
    part that passes through scalars in that unit, times √unit; the gradient is the sum
    over `units` (see `_derivative`).
    """

    def __init__(
        self,
        seeds: Sequence[tuple[Value, Value]],
        leaves: Iterable[Value],
        chosen: Callable[[ops.Acting], bool] = lambda op: False,
        unit: Unit | EllipsisType = ...,
        constants: Iterable[Value] = (),
    ) -> None:
        """Propagate the cotangents of all seeds back to the leaves."""
        self.values = topological_order([value for value, _ in seeds])
        self.leaves = set(leaves)
        self.chosen = chosen
        self.constants = set(constants)
        self.uses: list[Use] = []
        # values below which there is a leaf or a chosen matrix
        self._on_path: set[Value] = set()
        # units in which the cotangent of each value is needed; none if no leaf and no
        # chosen matrix depends on it
        self._units: dict[Value, tuple[Unit, ...]] = {}
        for value in self.values:  # forward, since a value has units of its inputs
            self._find_path_and_units(value)
        # the terms of the cotangent of each value in each unit
        self._contributions: defaultdict[tuple[Value, Unit], list[Contribution]] = (
            defaultdict(list)
        )
        self.units: dict[Unit, None] = {}  # the units of the seeds
        for p, weights in seeds:
            self.units |= dict.fromkeys(self._units[p])
            self._add_seed(p, weights, unit)
        for value in reversed(self.values):
            self._propagate(value)

    def _find_path_and_units(self, value: Value) -> None:
        """Find out whether a leaf or a chosen matrix depends on the cotangent of a
        value, and in which units it is needed.
        """
        self._units[value] = ()
        if self._reaches_parameter(value):
            self._on_path.add(value)
        if value in self._on_path or value in self.leaves:
            self._units[value] = tuple(self._possible_units(value))

    def _add_seed(self, p: Value, weights: Any, unit: Unit | EllipsisType) -> None:
        """Begin with the cotangent `weights` of a seed p, in its units that count.

        Those are all units for `...`, each with the cotangent weights/√unit; otherwise
        it is `unit`, with `weights` themselves, which gives √unit times the gradient.
        """
        for seed_unit in self._units[p]:
            if unit not in (seed_unit, ...):
                continue
            seed = weights
            if unit is ... and seed_unit is not None:
                seed = scale(width_ratio((), (Width(seed_unit),)), weights)
            self._contribute(
                p,
                unit=seed_unit,
                positions=p._positions(),
                cotangent=seed.broadcast_to(p.shape),
            )

    def _contribute(
        self, x: Value, unit: Unit, positions: Ints, cotangent: Any
    ) -> None:
        """Add a term to the cotangent of some entries of a value."""
        self._contributions[x, unit].append(Contribution(positions, cotangent))

    def _reaches_parameter(self, value: Value) -> bool:
        """Whether a cotangent of a value reaches a leaf or a chosen matrix below it."""
        op = value.op
        if value in self.constants or (isinstance(op, ScaledGradient) and op.stops):
            return False
        if isinstance(op, ops.Acting) and self._is_chosen(op):
            return True
        return any(self._units[x] for x in op.inputs)

    def _possible_units(self, value: Value) -> dict[Unit, None]:
        """The units of the cotangent of a value, in order, as the keys of a dict."""
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

    def cotangent(self, leaf: Value) -> Any:
        """The cotangent of a leaf, in its shape."""
        contributions = self.contributions(leaf)
        if not contributions:
            return zeros_like(leaf)
        return _summed(leaf, whole_box(leaf.shape), contributions)

    def contributions(self, leaf: Value) -> list[Contribution]:
        """The terms of the cotangent of a leaf, each with its entries."""
        return self._contributions.get((leaf, None), [])

    def _is_chosen(self, op: ops.Acting) -> bool:
        """Whether a matrix product contributes to the gradient of a chosen matrix."""
        return not op.weight.frozen and self.chosen(op)

    def _propagate(self, value: Value) -> None:
        """Propagate the cotangent of a value to its inputs, in all of its units.

        Only a box of entries that has all contributions is computed.
        """
        if value not in self._on_path:
            return
        terms_by_unit: dict[Unit, list[Contribution]] = {}
        for unit in self._units[value]:
            terms = self._contributions.get((value, unit))
            if terms:
                terms_by_unit[unit] = terms
        if not terms_by_unit:
            return
        box, input_boxes = demand(value, _box_of(value, terms_by_unit))
        d = {unit: _summed(value, box, terms) for unit, terms in terms_by_unit.items()}
        if isinstance(value.op, ops.Take):
            self._propagate_index(value.op, box, d)
            return
        positions_of_input = [
            entries_in(x._positions(), input_box) for x, input_box in input_boxes
        ]
        cotangents: Iterable[tuple[int, Any]]
        if isinstance(value.op, ops.Join):
            lengths = [len(positions) for positions in positions_of_input]
            cotangents = _split_join(lengths, d)
        else:
            cotangents = self._cotangents(value, box, input_boxes, d)
        for k, cotangent in cotangents:
            x, _ = input_boxes[k]
            self._contribute_by_unit(x, positions_of_input[k], cotangent)

    def _contribute_by_unit(self, x: Value, positions: Ints, cotangent: Any) -> None:
        """Add a cotangent of x in the units that x needs.

        It is a dict by unit, of scalars, or one cotangent in the unit None, of vectors.
        """
        by_unit = cotangent if isinstance(cotangent, dict) else {None: cotangent}
        for unit, cotangent_in_unit in by_unit.items():
            if unit in self._units[x]:
                in_shape = unbroadcast(cotangent_in_unit, positions.shape)
                self._contribute(x, unit, positions, cotangent=in_shape)

    def _cotangents(
        self,
        value: Value,
        box: Box,
        input_boxes: Sequence[tuple[Value, Box]],
        d: dict[Unit, Any],
    ) -> Iterable[tuple[int, Any]]:
        """Pairs of the index of an input and its cotangent, by the operation's rule.

        They are for the entries in `box`, with the cotangent d of these by unit. The
        use of a chosen matrix is added to `uses`.
        """
        inputs = [_entries(x, input_box) for x, input_box in input_boxes]
        op = value.op.restricted_to(box).with_inputs(*inputs)
        if isinstance(value.op, ops.Acting) and self._is_chosen(value.op):
            use = Use(
                value=cast(Vector, value), op=cast(ops.Acting, op), cotangent=d[None]
            )
            self.uses.append(use)
        units_of_inputs = [self._units[x] for x, _ in input_boxes]
        if not any(units_of_inputs):
            return ()
        cotangent = d[None] if isinstance(value, Vector) else d
        result = _entries(value, box)
        return cotangents_of_inputs(
            op, result, d=cotangent, wants=units_of_inputs.__getitem__
        )

    def _propagate_index(self, op: ops.Take, box: Box, d: dict[Unit, Any]) -> None:
        """Propagate the cotangents d of indexed entries to where they came from.

        An index of an index is skipped, unless a gradient is asked for, or stops,
        there: for y = x[[5, 6, 7]][[0, 2]], the entries 5 and 7 of x get a
        contribution.
        """
        x = op.x
        positions = entries_in(op.flat, box)
        while isinstance(x.op, ops.Take):
            if x in self.leaves or x in self.constants:
                break
            positions = x.op.flat.ravel()[positions]
            x = x.op.x
        for unit, cotangent in d.items():
            if unit in self._units[x]:
                self._contribute(x, unit, positions, cotangent)


def _split_join(
    lengths: Sequence[int], d: dict[Unit, Any]
) -> list[tuple[int, dict[Unit, Any]]]:
    """The cotangent d of a Join by unit, split along its inputs of these lengths.

    Returns pairs of the number of an input and its cotangent by unit.
    """
    cotangents = []
    start = 0
    for k, length in enumerate(lengths):
        stop = start + length
        of_input = {unit: cotangent[start:stop] for unit, cotangent in d.items()}
        cotangents.append((k, of_input))
        start = stop
    return cotangents


def _entries(x: Value, box: Box) -> Value:
    """The entries of a value in a box; the value itself if these are all."""
    if is_whole(box):
        return x
    return x[box_index(box)]


def _box_of(value: Value, terms_by_unit: Mapping[Unit, Sequence[Contribution]]) -> Box:
    """The smallest box with all entries of a value that have contributions."""
    positions = []
    for terms in terms_by_unit.values():
        for term in terms:
            if has_every_position(term.positions, value.shape):
                return whole_box(value.shape)
            positions.append(term.positions.ravel())
    return smallest_box(np.concatenate(positions), value.shape)


class _SortedContribution:
    """A contribution, sorted by the entries of the value that its terms belong to.

    `counts` are the numbers of terms for each of `entries`, which are flat positions in
    the value. For example, the positions [7, 2, 7] have one term for entry 2 and two
    for entry 7.
    """

    def __init__(self, contribution: Contribution, entries: Ints) -> None:
        """Sort the terms of a contribution, and count those of each of `entries`."""
        self._cotangent = contribution.cotangent
        self._order = np.argsort(contribution.positions, axis=None, kind="stable")
        in_order = contribution.positions.ravel()[self._order]
        self._starts = np.searchsorted(in_order, entries, "left")
        stops = np.searchsorted(in_order, entries, "right")
        self.counts = stops - self._starts

    def sums(self, selected: Ints, count: int) -> Any:
        """The sums for entries[selected], which have `count` terms each."""
        # (selected, count) flat positions in the cotangent
        rows = self._order[self._starts[selected, None] + np.arange(count)]
        terms = self._cotangent.take(rows)
        if count == 1:
            return terms[..., 0]
        return terms.sum(-1)


def _equal(positions: Ints, others: Ints) -> bool:
    """Whether two arrays of positions are equal; most are the same array."""
    return positions is others or np.array_equal(positions, others)


def _summed(value: Value, box: Box, contributions: Sequence[Contribution]) -> Any:
    """The cotangent of the entries of a value in a box, in the shape of the box.

    It is the sum of all contributions; entries without any have the cotangent 0.
    """
    box_positions = entries_in(value._positions(), box)
    merged = _merged(contributions)
    first_term = merged[0]
    if len(merged) == 1 and _equal(first_term.positions, box_positions):
        return first_term.cotangent
    entries = box_positions.ravel()
    contributions_by_entry = [_SortedContribution(term, entries) for term in merged]
    # Entries with the same number of terms from each contribution are summed together:
    # `patterns` has one column of such numbers for each set of entries.
    patterns, pattern_of_entry = np.unique(
        [contribution.counts for contribution in contributions_by_entry],
        axis=1,
        return_inverse=True,
    )
    pattern_of_entry = pattern_of_entry.ravel()
    sums: list[Any] = []
    for pattern, counts in enumerate(patterns.T.tolist()):
        selected = np.flatnonzero(pattern_of_entry == pattern)
        terms = []
        for contribution, count in zip(contributions_by_entry, counts, strict=True):
            if count:
                terms.append(contribution.sums(selected, count))
        if not terms:
            terms = [zeros_like(first_term.cotangent.take(np.zeros_like(selected)))]
        sums.append(reduce(operator.add, terms))
    joined: Any = sums[0] if len(sums) == 1 else join(sums)
    # The sums have the entries by pattern: bring them back into the order of the box.
    back = np.argsort(np.argsort(pattern_of_entry, kind="stable"))
    return joined.take(back.reshape(box_positions.shape))


def _merged(contributions: Sequence[Contribution]) -> list[Contribution]:
    """Add up contributions to the same entries in the same order."""
    merged: list[Contribution] = []
    for new in contributions:
        for k, earlier in enumerate(merged):
            if np.array_equal(earlier.positions, new.positions):
                total = earlier.cotangent + new.cotangent
                merged[k] = Contribution(new.positions, total)
                break
        else:
            merged.append(new)
    return merged


def grad(p: Scalar, wrt: Any, weights: ScalarLike | None = None) -> Any:
    """The gradient of a scalar with respect to values that it depends on.

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
        Any values of the program. The gradient with respect to a value counts only the
        paths through that value: for x = E[ids], it ignores other uses of E. If p does
        not use an indexed value, the index stands for the entries that it selects.
        (Reshaping to the same shape returns the same value: `x.reshape(x.shape) is x`.)
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
    listed = wrt if several else [wrt]
    values = set(topological_order([p]))
    indexed_leaves = [_leaf(x, values) for x in listed]
    seed = factors.broadcast_to(p.shape)
    reverse = Reverse([(p, seed)], [leaf for leaf, _ in indexed_leaves])
    gradients = []
    for leaf, positions in indexed_leaves:
        gradients.append(reverse.cotangent(leaf).take(positions))
    if several:
        return tuple(gradients)
    return gradients[0]


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
    program = None if isinstance(p, Value) else getattr(p, "outputs", None)
    if program is not None:
        raise TraceError(
            operation,
            f"{name}={shown(p)} is a program: call ns.{operation} inside"
            " the program, and return it",
        )
    if not isinstance(p, Scalar) or isinstance(p.op, ops.Constant):
        raise TraceError(operation, name, p, "a scalar of the program")
    return p


def _leaf(x: object, values: Container[Value]) -> tuple[Value, Ints]:
    """The value of p that x indexes, and flat positions of the entries that x has.

    `values` are the values of p. It is x itself with all of its positions if p uses x.
    """
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

    These are matrices (`members` are the indices of the chosen ones in the batch of
    each source), and `leaves`: initial vectors and random scalars, after the last step
    that they have taken.
    """

    def __init__(self, argument: Any, values: Sequence[Value], operation: str) -> None:
        """From the user's `argument`, a parameter, a list of them, or None.

        `values` are those of the program, and `operation` is its name in errors.
        """
        self.members: dict[Source, set[int]] = {}
        self.leaves: list[Value] = []
        weights = weights_of(values)
        sources = {weight.source for weight in weights}
        latest = _latest_versions(values)
        listed: list[Any]
        if argument is None:
            listed = list(weights)
        elif isinstance(argument, list | tuple):
            listed = list(argument)
        else:
            listed = [argument]
        for parameter in listed:
            match parameter:
                case Weight(source=Source(std_factor=Scalar())):
                    raise TraceError(
                        operation,
                        f"weights={shown(parameter)} has a scalar as std: give it a"
                        " number",
                    )
                case Weight(source=source) if source in sources:
                    chosen = self.members.setdefault(source, set())
                    chosen.update(parameter.members.ravel().tolist())
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
        """Whether any matrix of a product is among them."""
        chosen = self.members.get(op.weight.source, set())
        return not chosen.isdisjoint(op.weight.members.ravel().tolist())


def _latest_versions(values: Sequence[Value]) -> dict[Value, Value]:
    """The parameter that each initial value has become after the most steps."""
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
    """A term of a gradient: up to a factor, ∂p_output/∂W_b = Σ_k l[b, k] r[b, k]^T + …

    The factor follows from `used` and `unit`. The vectors are (matrices, uses), with
    the index b of a matrix and k of a use, or (1, uses) where all matrices share them.

    Attributes
    ----------
    output : int
        The number of the scalar p.
    members : tuple of int
        The index in its source of each matrix b.
    left, right : Vector
        The l and r.
    used : Weight
        The matrices as they act, perhaps transposed.
    unit : str or None
        That of the scalars that the term passed through; if it is the name of a width
        u, l r^T has the factor √u, which the gradient has not.
    """

    output: int
    members: tuple[int, ...]
    left: Vector
    right: Vector
    used: Weight
    unit: Unit


def terms_of(
    output: int, use: Use, chosen: Parameters, unit: Unit = None
) -> list[Term]:
    """The terms of ∂p_output from one use of a matrix or of a batch of matrices.

    All matrices are in one term, unless some are not chosen, or one occurs twice in the
    batch, as in W[[0, 0]]: then each chosen one has its own.
    """
    weight = use.op.weight
    members = weight.members.ravel()
    matrices = len(members)
    d = use.cotangent.reshape(matrices, -1)  # (matrices, uses)
    # with `each`, matrix b acts on x[b]; otherwise all matrices act on the same vectors
    rows_of_x = matrices if use.op.each else 1
    x = use.op.x.reshape(rows_of_x, -1)
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
    occur_once = len(np.unique(members)) == matrices
    if is_chosen.all() and occur_once:
        return [whole]
    return [alone(whole, int(b)) for b in np.flatnonzero(is_chosen)]


def alone(term: Term, b: int) -> Term:
    """The term restricted to one of its matrices."""
    return replace(
        term,
        members=(term.members[b],),
        left=_row(term.left, b),
        right=_row(term.right, b),
    )


def _row(vectors: Vector, b: int) -> Vector:
    """Row b of an array; its only row if all matrices share it."""
    if vectors.shape[0] == 1:
        return vectors
    return vectors[b : b + 1]
