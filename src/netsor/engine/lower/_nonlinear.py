"""Nonlinearities: all coordinates at finite width, expectations at infinite width
(docs/theory.md, equation 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._array_api import Floats
from ...functions.activations import Function
from ...language.operations._operation import Apply, Dot, Nonlin
from ...language.operations._score import Pool
from ...language.values._array import Value
from ...language.values._scalar import MULTIPLY, Scalar
from ...language.values._vector import Vector
from .._exceptions import ExactError
from ..graph._operations import OuterProductSum
from ..graph._orders import CONSTANT, Bools, Sets, union
from ..passes.adam_first_step import SIGN, checked_left, vanishing_signs
from ..passes.step_arithmetic import orthogonalised
from ..passes.trained_weights import COORDINATES
from ..plan._expectation_ops import COORDINATE_NODES
from ..plan._ir import Register
from ..plan._ir_builder import named
from ._components import FrameBatch, Ints, SeedKey
from ._dual_rules import ScoreError
from ._infinite_frames import LimitFrame, NodeFrame, NodesNeeded, tie_equal_arguments
from ._residual_features import ResidualBasis, unnamed
from ._state import LoweredVector, State

# Functions that jump where the limit of their argument is one number
#
# ⟨x, y⟩/n of independent vectors vanishes like n^(−1/2), with either sign at every
# width, so sign(⟨x, y⟩/n) is ±1 at every width, and sign(0) = 0 is not its limit. So
# where the limit of an argument is a fixed number but the argument is not, the function
# is tried on both sides of that number, and rejected if it jumps.

# Number of times that all arguments are moved, in random directions
TRIALS = 8

# Size of a move away from 0: its square is not 0 in double precision
TINY = 1e-150

# Size of a move, relative to the limit: rounding may have put the limit this far from
# where the function jumps
ROUNDED = 1e-14

# Smallest change of a function that is a jump and not rounding, relative to its size at
# ordinary arguments
JUMP = 1e-6


def check_jumps(state: State, value: Vector | Scalar) -> None:
    """Raise an error if a function jumps at the limit of its arguments as n → ∞.

    Only arguments count that tend to fixed numbers and differ from them at finite
    widths: see the comment above.
    """
    op = value.op
    assert isinstance(op, Apply | Nonlin)
    # functions of Gram matrices are this package's own
    if isinstance(op, Apply) and op.axes > 1:
        _check_orthogonalised(state, value, op)
        return
    if op.f.lipschitz:
        return
    limits = [_limits(state, x) for x in op.inputs]
    moves: list[Bools] = []
    for x, limit in zip(op.inputs, limits, strict=True):
        move = np.isfinite(limit)
        if move.any():  # `_varies` takes time
            move = move & _varies(state, x)
        moves.append(move)
    if any(move.any() for move in moves) and _jumps(op.f, limits, moves):
        raise ExactError(
            value,
            f"{named(op.f)} jumps at the limit of its argument as n → ∞, and at every"
            " width the argument falls on either side of it",
        )


def _check_orthogonalised(state: State, value: Vector | Scalar, op: Apply) -> None:
    """Raise an error if a step is orthogonalised along a gradient that tends to 0.

    The singular vectors of such a gradient are those of fluctuations.
    """
    function = op.f.f
    if not isinstance(function, partial) or function.func is not orthogonalised:
        return
    # the gradient is Σ_k l_k r_k^T, and the arguments are the Gram matrices of l and r;
    # for each k: whether both l_k and r_k are of order 1, and whether one is random
    has_limit = np.ones(1, dtype=bool)
    varies = np.zeros(1, dtype=bool)
    for gram in op.scalars:
        of_order_one = state.order_one(gram)
        has_limit = has_limit & np.diagonal(of_order_one, axis1=-2, axis2=-1)
        if isinstance(gram.op, Dot):
            varies = varies | _varies(state, gram.op.x)
        else:
            varies = varies | (gram in state.random)
    tends_to_zero = ~has_limit.any(axis=-1)
    is_random = varies.any(axis=-1)
    if (is_random & tends_to_zero).any():
        optimiser = function.keywords["optimiser"]
        raise ScoreError(
            value,
            f"{optimiser} orthogonalises a gradient whose limit is 0: as n → ∞ its"
            " directions are random fluctuations",
        )


def _limits(state: State, x: Value) -> Floats:
    """The limits of arguments x as n → ∞, (*shape,); NaN for no fixed number.

    For vectors, the limit that all their coordinates have in common.
    """
    if isinstance(x, Vector):
        return _limits_of_coordinates(state, x)
    assert isinstance(x, Scalar)
    known = state.scalars[x].value
    if known is None:
        return np.where(state.order_one(x), np.nan, 0.0)
    numbers = np.asarray(known, dtype=np.float64)[0]
    return np.broadcast_to(numbers, x.shape).copy()


def _limits_of_coordinates(state: State, x: Vector) -> Floats:
    """The limit of the coordinates of vectors, (*shape,).

    0 for vectors that vanish, c for multiples c · (1, …, 1), and NaN for all others.
    """
    coordinates = state.vectors[x].coordinates
    sets = state.sets(x)  # (*shape, blocks)
    is_of_order_one = sets.astype(bool).any(axis=-1)
    limits = np.where(is_of_order_one, np.nan, 0.0)
    has_ones = all(group.constant for group in state.groups_of(x))
    if coordinates.value is None or not has_ones:
        return limits

    # coordinates along (1, …, 1), the first direction, in units of its length
    one_replica = np.asarray(coordinates.value)[0]
    ones = np.asarray(state.ones(x).value)[0]
    multiples = one_replica[..., 0] / ones[..., 0]  # (*shape, blocks)
    multiple_of_first_block = multiples[..., :1]
    same_in_blocks = (multiples == multiple_of_first_block).all(axis=-1)
    has_no_other_direction = (sets <= CONSTANT).all(axis=-1)
    is_constant = has_no_other_direction & same_in_blocks & is_of_order_one
    return np.where(is_constant, multiples[..., 0], limits)


def _varies(state: State, x: Value) -> Bools:
    """Which arguments x differ from their limits at some widths, (*shape,)."""
    if x not in state.random:
        return np.zeros(x.shape, dtype=bool)
    if isinstance(x, Vector):
        return state.nonzero(x, means=False)
    return np.ones(x.shape, dtype=bool)


def _jumps(f: Function, limits: Sequence[Floats], moves: Sequence[Bools]) -> bool:
    """Whether f changes if arguments with `moves` are moved a little from `limits`.

    In both there is an array for each argument. Arguments without a limit (NaN) are
    random numbers.
    """
    rng = np.random.default_rng(0)
    ndim = max(limit.ndim for limit in limits)
    moves = [_with_leading_axes(move, ndim) for move in moves]
    base = []
    for limit in limits:
        aligned = _with_leading_axes(limit, ndim)
        random = rng.standard_normal(aligned.shape)
        base.append(np.where(np.isnan(aligned), random, aligned))
    ordinary_arguments = [rng.standard_normal(b.shape) for b in base]
    with np.errstate(all="ignore"):
        at_base = np.asarray(f(*base))
        at_ordinary = np.asarray(f(*ordinary_arguments))
        size = max(_largest_finite(at_base), _largest_finite(at_ordinary))
        for trial in range(TRIALS):
            relative_step = 0.0 if trial % 2 else ROUNDED
            arguments = [
                _moved(b, move, relative=relative_step, rng=rng)
                for b, move in zip(base, moves, strict=True)
            ]
            change = np.abs(np.asarray(f(*arguments)) - at_base)
            is_small = change <= JUMP * size  # False for NaN
            if (np.isfinite(at_base) & ~is_small).any():
                return True
    return False


def _moved(
    base: Floats, move: Bools, relative: float, rng: np.random.Generator
) -> Floats:
    """The array with the entries in `move` moved a little, in random directions.

    The size of the steps is `relative` times that of the entries, but at least TINY.
    """
    step = np.maximum(TINY, relative * np.abs(base))
    away = base + step * rng.standard_normal(base.shape)
    return np.where(move, away, base)


def _largest_finite(numbers: Floats) -> float:
    """The largest absolute value among the finite numbers; 0 if there is none."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _with_leading_axes(array: npt.NDArray[Any], ndim: int) -> npt.NDArray[Any]:
    """The array with axes of size 1 set in front."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


# Nonlinearities


def nonlin(state: State, value: Vector, op: Nonlin) -> LoweredVector:
    """h_α = φ(x^1_α, …; p_1, …), coordinate by coordinate."""
    scalars = _scalar_arguments(state, value, op)
    if value in state.analysis.infinite:
        return _nonlin_at_infinite_width(state, value, op, scalars)
    return _nonlin_at_finite_width(state, value, op, scalars)


def _nonlin_at_finite_width(
    state: State, value: Vector, op: Nonlin, scalars: Sequence[Register]
) -> LoweredVector:
    """φ of all coordinates of the arguments."""
    width = int(state.analysis.widths[value])
    arguments = [
        state.builder.pad_or_cut(state.vectors[x].coordinates, width)
        for x in op.vectors
    ]
    outputs = _apply(
        state, value, op, rows=arguments, arrays=arguments, scalars=scalars
    )
    return LoweredVector(coordinates=outputs)


def _nonlin_at_infinite_width(
    state: State, value: Vector, op: Nonlin, scalars: Sequence[Register]
) -> LoweredVector:
    """What Gaussian expectations say of h: its coefficients along the directions that a
    frame keeps, and the coordinates h_α that are outputs.

    Vectors that have met are in one frame; a group has frames of one size.
    """
    check_jumps(state, value)
    sample = None
    if value in state.analysis.coordinates:
        sample = _output_coordinates(state, value, op, scalars)

    shape = (*value.shape, state.analysis.blocks[value])
    # for each vector and block the set of its directions: an integer, bit by bit
    direction_sets = np.zeros(shape, dtype=object)
    coefficients: list[tuple[Ints, Register]] = []
    for group in state.groups_of(value):
        positions = group.positions[value]
        of_group, direction_set = _features_in_group(state, value, op, group)
        coefficients.append((positions, of_group))
        direction_sets.reshape(-1)[positions] = direction_set
    return LoweredVector(
        coordinates=state.scatter(coefficients, *shape),
        sample=sample,
        sets=direction_sets,
    )


def _output_coordinates(
    state: State, value: Vector, op: Nonlin, scalars: Sequence[Register]
) -> Register:
    """The coordinates of a nonlinearity of infinite width that are outputs."""
    builder = state.builder
    arguments = [state.vectors[x].coordinates for x in op.vectors]
    directions = max(argument.shape[-1] for argument in arguments)
    count = len(state.analysis.picked)
    samples = [builder.pad_or_cut(state.sample(x), count) for x in op.vectors]
    rows = [builder.pad_or_cut(argument, directions) for argument in arguments]
    return _apply(state, value, op, rows, arrays=samples, scalars=scalars)


def _scalar_arguments(state: State, value: Vector, op: Nonlin) -> list[Register]:
    """The scalar arguments of a nonlinearity, in shapes that broadcast to its outputs.

    Outputs are (*shape, blocks, coordinates): the last two axes have size 1.
    """
    scalars = []
    for p in op.scalars:
        aligned = state.align_axes(state.scalars[p], p.ndim, value.ndim)
        scalars.append(state.builder.reshape(aligned, *aligned.shape, 1, 1))
    return scalars


def _apply(
    state: State,
    value: Vector,
    op: Nonlin,
    rows: Sequence[Register],
    arrays: Sequence[Register],
    scalars: Sequence[Register],
) -> Register:
    """φ of some coordinates of the arguments, (*shape, blocks, ·).

    `arrays` are these coordinates, one array for each argument. `rows` are the vectors
    that they belong to: two arguments that are one vector get the same coordinates.
    """
    builder = state.builder

    def aligned(registers: Sequence[Register]) -> list[Register]:
        """Arrays of the arguments that broadcast to the shape of the outputs."""
        result = []
        for register, x in zip(registers, op.vectors, strict=True):
            result.append(state.align_axes(register, x.ndim, value.ndim))
        return result

    arguments = tie_equal_arguments(
        builder, op.f, rows=aligned(rows), arrays=aligned(arrays)
    )
    if op.f is MULTIPLY and len(arguments) == 2:
        return builder.step("multiply", *arguments, label="product of coordinates")
    coordinates = arrays[0].shape[-1]
    shape = (*value.shape, state.analysis.blocks[value], coordinates)
    return builder.step(
        "apply",
        *arguments,
        *scalars,
        result_shape=shape,
        label=f"{named(op.f)} of coordinates",
        f=op.f,
        shape=shape,
        axes=0,
    )


def _features_in_group(
    state: State, value: Vector, op: Nonlin, group: FrameBatch
) -> tuple[Register, int]:
    """The outputs of a nonlinearity in the frames of a group, at infinite width.

    Returns their coordinates (frames, vectors, directions), and the set of directions
    along which there can be some.
    """
    builder = state.builder
    frame = state.frames[group]
    assert isinstance(frame, LimitFrame)
    positions = group.positions[value]
    rows: list[Register] = []
    reached: list[int] = []
    params: list[Register] = []
    for x in op.vectors:
        positions_of_x = state.argument_positions(x, value, positions)
        coordinates = state.vectors[x].coordinates
        rows.append(state.gather(coordinates, positions_of_x, frame.directions))
        reached.append(union(state.sets(x).ravel()[positions_of_x]))
    for p in op.scalars:
        positions_of_p = state.argument_positions(p, value, positions)
        flat = builder.reshape(state.scalars[p], p.size)
        entries = builder.take(flat, positions_of_p.ravel(), axis=0)
        params.append(builder.reshape(entries, *positions.shape))
    f = op.f
    if "named" in state.analysis.without:
        f = unnamed(f)
    component = state.feature_components[group, value]
    features = frame.features(
        f=f,
        rows=rows,
        reached=reached,
        params=params,
        basis=component.basis,
    )
    seed_key = _seed_key(state, value, group)
    coordinates, directions = frame.apply(features, seed_key, component.meets_linear)
    if isinstance(frame, NodeFrame):  # ε parts may lie along these functions too
        state.epsilon_parts.clear()
    return coordinates, directions


def _seed_key(state: State, value: Vector, group: FrameBatch) -> SeedKey:
    """What the random numbers of a value in a group are seeded with."""
    return *state.analysis.seed_key[value], state.groups_of(value).index(group)


# Functions of all coordinates


def pooled(state: State, value: Scalar, op: Pool) -> Register:
    """A function of all coordinates of some vectors, which are drawn whole.

    At infinite width only the coordinates themselves, at nodes: (count,) for a pool of
    `count` coordinates in all.
    """
    builder = state.builder
    coordinates = state.vectors[op.x].coordinates
    if op.x not in state.analysis.infinite:
        width = int(state.analysis.widths[op.x])
        all_coordinates = builder.pad_or_cut(coordinates, width)
        return builder.step(
            "apply",
            builder.reshape(all_coordinates, all_coordinates.size),
            result_shape=value.shape,
            label=f"{named(op.f)} of all coordinates",
            f=op.f,
            shape=value.shape,
        )
    if op.f is not COORDINATES:
        problem = f"a function of all coordinates, {op.f.name}, at width inf"
        raise ExactError(value, problem, instead="finite widths have a law")
    # The values at the first nodes of each block: not at their mirror images, where odd
    # functions repeat. A plan with a quarter of the nodes (see `_expectation_ops`)
    # takes a quarter of these, and repeats them.
    nodes = _nodes(state, op.x)
    count = op.count // math.prod(coordinates.shape[:-1])
    distinct = min(count, max(1, count * nodes // COORDINATE_NODES))
    at_nodes = builder.pad_or_cut(coordinates, nodes)
    values = builder.take(at_nodes, np.arange(count) % distinct, axis=2)
    scaled = builder.step("scale", values, by=nodes**0.5)
    return builder.reshape(scaled, op.count)


def _nodes(state: State, x: Vector) -> int:
    """The number of nodes in the frames of vectors of infinite width.

    These must be frames of nodes; if not, lowering begins again.
    """
    groups = state.groups_of(x)
    without_nodes = frozenset(
        group.number
        for group in groups
        if not isinstance(state.frames[group], NodeFrame)
    )
    if without_nodes:
        raise NodesNeeded(without_nodes)
    return state.frames[groups[0]].directions


def outer_product_sum(
    state: State, value: Vector, op: OuterProductSum
) -> LoweredVector:
    """y_α = (1/in) Σ_β f(Σ_k sizes_k l_kα r_kβ) x_β, with f(g) = g/(|g| + eps).

    It reads all coordinates of all of these vectors, or their values at all nodes.
    """
    if value in state.analysis.infinite:
        return _outer_product_sum_at_nodes(state, value, op)
    width = int(state.analysis.widths[value])
    l_coordinates = state.vectors[op.left].coordinates
    return LoweredVector(_sum_at(state, value, op, left=l_coordinates, width=width))


def _sum_at(
    state: State, value: Vector, op: OuterProductSum, left: Register, width: int
) -> Register:
    """The y_α of an `OuterProductSum` for some α, (*shape, blocks, width).

    `left`: the coordinates of l for these α, (…, blocks, width); zeros at the end of
    the last axis may be missing.
    """
    builder = state.builder
    blocks = state.analysis.blocks[value]
    r, x = _split_coordinates(state, op)
    padded = builder.pad_or_cut(left, width)
    product = builder.step(
        "outer",
        builder.reshape(padded, *op.left.shape, blocks * width),
        r,
        x,
        result_shape=(*value.shape, blocks * width),
        label="entries of the gradient",
        sizes=op.sizes,
        eps=op.eps,
    )
    return builder.reshape(product, *value.shape, blocks, width)


def _outer_product_sum_at_nodes(
    state: State, value: Vector, op: OuterProductSum
) -> LoweredVector:
    """An `OuterProductSum` at infinite width, where it is a sum of signs.

    α runs over the nodes. Raises an error if the signs are those of a vanishing
    gradient.
    """
    builder = state.builder
    nodes = _nodes(state, op.left)
    varies = _varies(state, op.left)
    vanishes = (_limits(state, op.left) == 0).all(axis=-1)
    if (vanishes & varies.any(axis=-1)).any():
        raise ExactError(value, vanishing_signs(op.optimiser))
    sample = None
    if value in state.analysis.coordinates:
        l_sample = state.sample(op.left)
        sample = _sum_at(
            state, value, op, left=l_sample, width=len(state.analysis.picked)
        )
    sets = _sets_of_signs(state, value, op)
    state.epsilon_parts.clear()  # ε parts may lie along these functions too
    padded = builder.pad_or_cut(state.vectors[op.left].coordinates, nodes)
    at_nodes = builder.step("scale", padded, by=nodes**0.5)
    r, _ = _split_coordinates(state, op)
    checked = builder.step(
        "apply",
        at_nodes,
        r,
        result_shape=at_nodes.shape,
        f=partial(checked_left, sizes=op.sizes, varies=varies, optimiser=op.optimiser),
        shape=at_nodes.shape,
    )
    sum_at_nodes = _sum_at(state, value, op, left=checked, width=nodes)
    scaled = builder.step("scale", sum_at_nodes, by=nodes**-0.5)
    return LoweredVector(scaled, sample, sets)


def _split_coordinates(state: State, op: OuterProductSum) -> list[Register]:
    """The coordinates of the right factors r, and of the vectors x, each in its shape.

    The operation has all of them in one flat array.
    """
    builder = state.builder
    arrays = []
    start = 0
    for shape in op.shapes:
        stop = start + math.prod(shape)
        flat = builder.step(
            "part", state.scalars[op.coordinates], start=start, stop=stop
        )
        arrays.append(builder.reshape(flat, *shape))
        start = stop
    return arrays


def _sets_of_signs(state: State, value: Vector, op: OuterProductSum) -> Sets:
    """The sets of a sum of signs of outer products, in frames of nodes.

    Its basis functions are new: functions of those of the left factors. Only the
    structure of these functions is recorded here, as that of one odd function of all
    left factors; `_outer_product_sum_at_nodes` computes their values.
    """
    shape = *value.shape, state.analysis.blocks[value]
    sets = np.zeros(math.prod(shape), dtype=object)
    for group in state.groups_of(value):
        frame = state.frames[group]
        assert isinstance(frame, NodeFrame)
        positions = group.positions[value]
        # Each output depends on all left factors in its group. They do not broadcast to
        # the outputs, so `argument_positions` does not apply.
        left_sets = state.sets(op.left).ravel()[group.positions[op.left]]
        # no coordinates, since nothing is evaluated: only the number of outputs counts
        rows = state.builder.constant(np.zeros((*positions.shape, 0)))
        features = frame.features(
            f=SIGN,  # a sum of signs is odd, too
            rows=[rows],
            reached=[union(left_sets)],
            params=[],
            basis=ResidualBasis(),  # frames of nodes compute no residuals
        )
        seed_key = _seed_key(state, value, group)
        sets[positions] = frame.add_outputs(features, seed_key)
    return sets.reshape(shape)
