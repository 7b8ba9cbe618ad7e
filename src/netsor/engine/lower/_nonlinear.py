"""Nonlinearities: all coordinates at finite width, expectations at infinite width
(docs/theory.md, equation 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ..._array_api import Floats
from ...activations import Function
from ...language._array import Value
from ...language._operation import Apply, Dot, Nonlin
from ...language._scalar import MULTIPLY, Scalar
from ...language._score import Pool
from ...language._vector import Vector
from .._exceptions import ExactError
from .._expectation_ops import NODES
from .._ir import Register
from .._ir_builder import named
from ..passes._operations import OuterProductSum
from ..passes._orders import CONSTANT, Bools, union
from ..passes.adam_first_step import SIGN, checked_left, vanishing_signs
from ..passes.step_arithmetic import orthogonalised
from ..passes.trained_weights import COORDINATES
from ._components import FrameBatch, SeedKey
from ._dual_rules import ScoreError
from ._infinite_frames import LimitFrame, NodeFrame, NodesNeeded, tie_equal_arguments
from ._residual_features import ResidualBasis, unnamed
from ._state import LoweredVector, State

# Functions that jump where the limit of their argument is one number: ⟨x, y⟩/n of
# independent vectors vanishes like n^(−1/2), with either sign at every width, so
# sign(⟨x, y⟩/n) is ±1 at every width, and sign(0) = 0 is not its limit. So where the
# limit of an argument is a fixed number but the argument is not, the function is tried
# on both sides of that number, and refused if it jumps.
TRIALS = 8  # moves of the arguments, in random directions
TINY = 1e-150  # a move away from 0 whose square is not 0
# relative to a limit: how far rounding may have put it from where the function jumps
ROUNDED = 1e-14
# relative to the size of a function at ordinary arguments: a change that is none of
# rounding
JUMP = 1e-6


def check_jumps(state: State, value: Vector | Scalar) -> None:
    """Refuse a function of arguments that vanish (or become a number) as n → ∞, if it
    jumps there.
    """
    op = value.op
    assert isinstance(op, Apply | Nonlin)
    # functions of Gram matrices are this package's own
    if isinstance(op, Apply) and op.axes > 1:
        _check_muon(state, value, op)
        return
    if op.f.lipschitz:
        return
    points = [_limits(state, x) for x in op.inputs]
    moves = [np.isfinite(p) for p in points]
    moves = [
        m & _varies(state, x) if m.any() else m
        for m, x in zip(moves, op.inputs, strict=True)
    ]
    if any(m.any() for m in moves) and _jumps(op.f, points, moves):
        raise ExactError(
            value,
            f"{named(op.f)} jumps at the limit of its argument as n → ∞, and at every"
            " width the argument is on either side of that",
        )


def _check_muon(state: State, value: Vector | Scalar, op: Apply) -> None:
    """Refuse Muon's step along a gradient that vanishes as n → ∞: its singular vectors
    are those of fluctuations.
    """
    if not (isinstance(op.f.f, partial) and op.f.f.func is orthogonalised):
        return
    counts, varies = np.ones(1, dtype=bool), np.zeros(1, dtype=bool)
    for gram in op.scalars:  # of the l_k, and of the r_k
        counts = counts & np.diagonal(state.order_one(gram), axis1=-2, axis2=-1)
        varies = varies | (
            _varies(state, gram.op.x)
            if isinstance(gram.op, Dot)
            else gram in state.random
        )
    if (varies.any(axis=-1) & ~counts.any(axis=-1)).any():
        raise ScoreError(
            value,
            "Muon orthogonalises a gradient whose limit is 0: as n → ∞ its directions"
            " are those of fluctuations",
        )


def _limits(state: State, x: Value) -> Floats:
    """The limits of arguments that are fixed numbers, of each coordinate of a vector;
    NaN for all others.
    """
    if isinstance(x, Scalar):
        known = state.scalars[x].value
        if known is not None:
            return np.broadcast_to(
                np.asarray(known, dtype=np.float64)[0], x.shape
            ).copy()
        return np.where(state.order_one(x), np.nan, 0.0)
    assert isinstance(x, Vector)
    lead, sets = state.vectors[x].lead, state.sets(x)
    some = sets.astype(bool).any(axis=-1)
    found = np.where(some, np.nan, 0.0)
    if lead.value is not None and all(group.constant for group in state.groups_of(x)):
        means = (
            np.asarray(lead.value)[0][..., 0]
            / np.asarray(state.ones(x).value)[0][..., 0]
        )
        equal = (sets <= CONSTANT).all(axis=-1) & (means == means[..., :1]).all(axis=-1)
        found = np.where(equal & some, means[..., 0], found)
    return found


def _varies(state: State, x: Value) -> Bools:
    """Whether arguments are other than their limits at some widths."""
    if x not in state.random:
        return np.zeros(x.shape, dtype=bool)
    return (
        state.nonzero(x, means=False)
        if isinstance(x, Vector)
        else np.ones(x.shape, dtype=bool)
    )


def _jumps(f: Function, points: Sequence[Floats], moves: Sequence[Bools]) -> bool:
    rng = np.random.default_rng(0)
    most = max(p.ndim for p in points)
    points = [p.reshape((1,) * (most - p.ndim) + p.shape) for p in points]
    moves = [m.reshape((1,) * (most - m.ndim) + m.shape) for m in moves]
    base = [np.where(np.isnan(p), rng.standard_normal(p.shape), p) for p in points]
    with np.errstate(all="ignore"):
        here = np.asarray(f(*base))
        ordinary = np.asarray(f(*(rng.standard_normal(p.shape) for p in points)))
        size = np.abs(ordinary[np.isfinite(ordinary)]).max(
            initial=np.abs(here[np.isfinite(here)]).max(initial=0.0)
        )
        for trial in range(TRIALS):
            share = 0.0 if trial % 2 else ROUNDED
            moved = [
                np.where(
                    m,
                    b
                    + np.maximum(TINY, share * np.abs(b))
                    * rng.standard_normal(b.shape),
                    b,
                )
                for b, m in zip(base, moves, strict=True)
            ]
            there = np.asarray(f(*moved))
            if (np.isfinite(here) & ~(np.abs(there - here) <= JUMP * size)).any():
                return True
    return False


def nonlin(state: State, value: Vector, op: Nonlin) -> LoweredVector:
    builder, f, vectors, blocks, infinite = (
        state.builder,
        op.f,
        op.vectors,
        state.analysis.blocks[value],
        value in state.analysis.infinite,
    )
    leads = [state.vectors[x].lead for x in vectors]
    numbers = [
        state.align_axes(state.scalars[p], p.ndim, value.ndim) for p in op.scalars
    ]
    numbers = [builder.reshape(p, *p.shape, 1, 1) for p in numbers]

    def applied(
        rows: Sequence[Register], arrays: Sequence[Register], last: int
    ) -> Register:
        """f of arrays; `rows` are the vectors that these are coordinates of."""
        all_rows, lined = (
            [
                state.align_axes(a, x.ndim, value.ndim)
                for a, x in zip(some, vectors, strict=True)
            ]
            for some in (rows, arrays)
        )
        lined = tie_equal_arguments(builder, f, all_rows, lined)
        if f is MULTIPLY and len(lined) == 2:
            return builder.step("multiply", *lined, words="product of coordinates")
        shape, words = (*value.shape, blocks, last), f"{named(f)} of coordinates"
        return builder.step(
            "apply", *lined, *numbers, made=shape, words=words, f=f, shape=shape, axes=0
        )

    if not infinite:
        width = int(state.analysis.widths[value])
        arrays = [builder.pad_or_cut(a, width) for a in leads]
        return LoweredVector(applied(arrays, arrays, width))
    check_jumps(state, value)
    sample = None
    if value in state.analysis.coordinates:
        most, count = max(a.shape[-1] for a in leads), len(state.analysis.picked)
        columns = [builder.pad_or_cut(state.sample(x), count) for x in vectors]
        sample = applied([builder.pad_or_cut(a, most) for a in leads], columns, count)
    parts, sets = [], np.zeros((*value.shape, blocks), dtype=object)
    for group in state.groups_of(value):
        places, frame = group.positions[value], state.frames[group]
        assert isinstance(frame, LimitFrame)
        rests, linear = state.feature_components[group, value]
        at = {x: state.argument_positions(x, value, places) for x in op.inputs}
        rows = [
            state.gather(state.vectors[x].lead, at[x], frame.directions)
            for x in vectors
        ]
        reached = [union(state.sets(x).ravel()[at[x]]) for x in vectors]
        flat = [
            builder.take(
                builder.reshape(state.scalars[p], p.size), at[p].ravel(), axis=0
            )
            for p in op.scalars
        ]
        params = [builder.reshape(p, *places.shape) for p in flat]
        new = frame.features(
            unnamed(f) if "named" in state.analysis.without else f,
            rows,
            reached,
            params,
            rests,
        )
        lead, sets.reshape(-1)[places] = frame.apply(
            new, _number(state, value, group), linear
        )
        if isinstance(frame, NodeFrame):  # ε parts may lie along these functions too
            state.epsilon_parts.clear()
        parts.append((places, lead))
    return LoweredVector(state.scatter(parts, *sets.shape), sample, sets)


def pooled(state: State, value: Scalar, op: Pool) -> Register:
    """A function of all coordinates of some vectors, which are drawn whole."""
    builder, lead = state.builder, state.vectors[op.x].lead
    if op.x not in state.analysis.infinite:
        found = builder.pad_or_cut(lead, int(state.analysis.widths[op.x]))
        flat, words = (
            builder.reshape(found, found.size),
            f"{named(op.f)} of all coordinates",
        )
        return builder.step(
            "apply", flat, made=value.shape, words=words, f=op.f, shape=value.shape
        )
    if op.f is not COORDINATES:
        problem = f"a function of all coordinates, {op.f.name}, at width inf"
        raise ExactError(value, problem, instead="finite widths have a law")
    # The values at some of the nodes of each block: not at their mirror images, where
    # odd functions repeat. A plan with a quarter of the nodes (see `_expectation_ops`)
    # repeats a quarter of these.
    nodes, each = _nodes(state, op.x), op.count // math.prod(lead.shape[:-1])
    kept = min(each, max(1, each * nodes // NODES))
    values = builder.take(
        builder.pad_or_cut(lead, nodes), np.arange(each) % kept, axis=2
    )
    return builder.reshape(builder.step("scale", values, by=nodes**0.5), op.count)


def _nodes(state: State, x: Vector) -> int:
    """The number of nodes in the frames of vectors of infinite width, which have to be
    frames of nodes.
    """
    frames = [(group.number, state.frames[group]) for group in state.groups_of(x)]
    if other := frozenset(
        number for number, frame in frames if not isinstance(frame, NodeFrame)
    ):
        raise NodesNeeded(other)
    return frames[0][1].directions


def outer_product_sum(
    state: State, value: Vector, op: OuterProductSum
) -> LoweredVector:
    """A function of the entries of outer products, times vectors: all coordinates of
    all of them, or all nodes.
    """
    builder, blocks, infinite = (
        state.builder,
        state.analysis.blocks[value],
        value in state.analysis.infinite,
    )
    given, start = [], 0
    for shape in op.shapes:
        stop = start + math.prod(shape)
        given.append(
            builder.reshape(
                builder.step("part", state.scalars[op.given], start=start, stop=stop),
                *shape,
            )
        )
        start = stop

    def made(left: Register, width: int) -> Register:
        left = builder.reshape(
            builder.pad_or_cut(left, width), *op.left.shape, blocks * width
        )
        shape, words = (*value.shape, blocks * width), "entries of the gradient"
        found = builder.step(
            "outer", left, *given, made=shape, words=words, sizes=op.sizes, eps=op.eps
        )
        return builder.reshape(found, *value.shape, blocks, width)

    lead = state.vectors[op.left].lead
    if not infinite:
        return LoweredVector(made(lead, int(state.analysis.widths[value])))
    nodes, varies = _nodes(state, op.left), _varies(state, op.left)
    if ((_limits(state, op.left) == 0).all(axis=-1) & varies.any(axis=-1)).any():
        raise ExactError(value, vanishing_signs(op.optimiser))
    sample = None
    if value in state.analysis.coordinates:
        sample = made(state.sample(op.left), len(state.analysis.picked))
    sets = np.zeros((*value.shape, blocks), dtype=object)
    for group in state.groups_of(value):
        frame, places = state.frames[group], group.positions[value]
        assert isinstance(frame, NodeFrame)
        rows = builder.constant(np.zeros((*places.shape, 0)))
        reached = union(state.sets(op.left).ravel()[group.positions[op.left]])
        new = frame.features(SIGN, [rows], [reached], [], ResidualBasis())
        sets.reshape(-1)[places] = frame.add_outputs(new, _number(state, value, group))
    state.epsilon_parts.clear()  # ε parts may lie along these functions too
    left = builder.step("scale", builder.pad_or_cut(lead, nodes), by=nodes**0.5)
    check = partial(checked_left, sizes=op.sizes, varies=varies, optimiser=op.optimiser)
    left = builder.step(
        "apply", left, given[0], made=left.shape, f=check, shape=left.shape
    )
    return LoweredVector(
        builder.step("scale", made(left, nodes), by=nodes**-0.5), sample, sets
    )


def _number(state: State, value: Vector, group: FrameBatch) -> SeedKey:
    """The number of a value in a group, for seeds."""
    return *state.analysis.seed_key[value], state.groups_of(value).index(group)
