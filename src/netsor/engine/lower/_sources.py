"""Sources: initial vectors, and products with matrices, once or again (docs/theory.md,
equations 5, 6 and 6').

(W x^i)_i = C E needs as many sources E as inputs, and a factor C. W x = X E, with X the
coordinates of the inputs along all d directions of their frame, needs d sources but no
factor: along all coordinates of the space, E is the matrix itself, up to scale. The
prices of the place where the plan runs decide.

A matrix that acts again needs orthonormal directions of its inputs. These come from the
coordinates of the vectors, not from their products (see `_gram_schmidt`): an input in
the span of earlier ones draws nothing new.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...language.operations._operation import Gaussian, MatMul
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from ...runtime._memory import check_memory
from .._exceptions import ExactError
from ..graph._operations import AdjointCorrection, MaterialisedMatMul, Span
from ..graph._orders import CONSTANT, Sets, mixed
from ..plan import _cost_model
from ..plan._ir import Register
from ..run._rng_keys import SAMPLE
from ._dual_rules import score
from ._infinite_frames import LimitFrame
from ._linear import mean, paired_products, products
from ._state import Ints, LoweredVector, State

# Sources that are never drawn, in all and for each vector: with more, a factor of the
# Gram matrix of the vectors costs less
MIN_FACTORED_SOURCES, MIN_FACTORED_RATIO = 256, 3


class Sources(NamedTuple):
    """Fresh standard isotropic vectors E, k for each slot.

    A slot is one block of one member of a matrix; they are flat, (members · blocks,).
    """

    coordinates: Register  # along the directions of the frames, (slots, k, directions)
    sample: Register | None  # see `LoweredVector`, (slots, k, ·)
    sets: Sets  # at infinite width, their directions, (slots, k, 1)


# Fresh sources


def _sources(state: State, value: Vector, slots: int, sources: int) -> Sources:
    """Fresh standard isotropic vectors for a value, `sources` for each slot.

    They have coordinates only if they are drawn, and samples only if an output needs
    them.
    """
    analysis = state.analysis
    sets = np.zeros((slots, sources), dtype=object)
    has_coordinates = value in analysis.drawn or value in analysis.merged_sources
    if slots and has_coordinates:
        coordinates = _drawn_sources(state, value, sources, sets)
    else:
        coordinates = state.builder.constant(np.zeros((slots, sources, 0)))
    sample = None
    # at finite width, the coordinate of a drawn source follows from its frame
    needs_sample = value in analysis.infinite or value not in analysis.drawn
    if slots and needs_sample and value in analysis.coordinates:
        sample = _sample_of_sources(state, value, slots, sources)
    return Sources(coordinates, sample, sets[..., None])


def _drawn_sources(state: State, value: Vector, sources: int, sets: Sets) -> Register:
    """The coordinates of fresh sources of a value, (slots, sources, directions).

    `sets`, (slots, sources): at infinite width, each source has a new direction, and
    its set is filled in.
    """
    by_slot = []
    for number, group in enumerate(state.groups_from(value)):
        slots = group.slots[value]
        frame = state.frames[group]
        slots_per_frame = slots.shape[1]
        coordinates = frame.add_sources(
            seed_key=(*state.analysis.seed_key[value], number),
            sources=slots_per_frame * sources,
            leaf=value in state.analysis.leaves,
            label=state.label(value),
        )
        shape = (*slots.shape, sources, coordinates.shape[-1])
        by_slot.append((slots, state.builder.reshape(coordinates, *shape)))
        if isinstance(frame, LimitFrame):
            # the new directions are the last block; sets are bits
            block = frame.blocks[-1]
            directions = [1 << k for k in range(block.start, block.stop)]
            sets_of_sources = np.array(directions, dtype=object)
            sets[slots] = sets_of_sources.reshape(slots_per_frame, sources)
    return state.scatter(by_slot)


def _sample_of_sources(
    state: State, value: Vector, slots: int, sources: int
) -> Register:
    """The sample of fresh sources (see `LoweredVector`), (slots, sources, ·).

    If a nonlinearity needs it, this is a normal for each coordinate asked for. If not,
    it is never drawn: each source has its own column, in which it is 1.
    """
    builder = state.builder
    analysis = state.analysis
    count = slots * sources
    may_be_drawn = value in analysis.infinite or "undrawn" in analysis.without
    if may_be_drawn and value in analysis.feeds_nonlinearity:
        return builder.draw(
            "normals",
            (*analysis.seed_key[value], 0, SAMPLE, 0),
            (slots, sources, len(analysis.picked)),
            f"{state.label(value)}: one coordinate",
        )
    check_memory(
        8.0 * count * (state.columns + count),
        f"{state.label(value)}, {count} sources,",
        "take fewer vectors or a smaller width",
    )
    # the columns in use so far are 0, then comes the identity
    unit = np.eye(count, state.columns + count, k=state.columns)
    state.columns = unit.shape[-1]
    return builder.constant(unit.reshape(slots, sources, -1))


# Initial vectors


def gaussian(state: State, value: Vector, op: Gaussian) -> LoweredVector:
    """Initial vectors h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k."""
    builder = state.builder
    blocks = state.analysis.blocks[value]
    rank = op.factor.shape[-1]
    c = op.factor.reshape(1, value.size, rank)
    std = 1.0
    # i.i.d. vectors, with a multiple of the identity as factor: scale the sources
    # instead, since the builder leaves out products with the identity
    identity = np.eye(rank)
    if rank and np.array_equal(c[0], c[0, 0, 0] * identity):
        std = float(c[0, 0, 0])
        c = identity[None]
    fresh = _sources(state, value, slots=rank * blocks, sources=1)

    def scaled(sources: Register) -> Register:
        """std E_k, from (rank · blocks, 1, ·) to (1, rank, blocks · ·)."""
        rows = builder.reshape(sources, 1, rank, blocks * sources.shape[-1])
        return builder.step("scale", rows, by=std)

    coordinates = scaled(fresh.coordinates)
    sample = None
    if fresh.sample is not None:
        sample = scaled(fresh.sample)
    sources = Sources(coordinates, sample, sets=fresh.sets.reshape(1, rank, blocks))
    centred = _combined(
        state, value, c=builder.constant(c), sources=sources, slots=(1, 1)
    )
    if not op.mean.any():
        return centred
    return _shifted(
        state, value, x=centred, mean=builder.constant(op.mean[..., None, None])
    )


def _shifted(
    state: State, value: Vector, x: LoweredVector, mean: Register
) -> LoweredVector:
    """x + mean · (1, …, 1) for vectors x; the mean is (*shape, blocks or 1, 1)."""
    builder = state.builder
    ones = state.ones(value)
    width = max(ones.shape[-1], x.coordinates.shape[-1])
    shift = builder.step("multiply", builder.pad_or_cut(ones, width), mean)
    coordinates = builder.step("add", builder.pad_or_cut(x.coordinates, width), shift)
    if value not in state.analysis.infinite:
        return LoweredVector(coordinates, x.sample, x.sets)
    sample = x.sample
    if value in state.analysis.coordinates:
        sample = _shifted_sample(state, x, mean)
    assert x.sets is not None
    return LoweredVector(coordinates, sample, x.sets | CONSTANT)


def _shifted_sample(state: State, x: LoweredVector, mean: Register) -> Register:
    """The sample of x with the mean added to each coordinate asked for."""
    builder = state.builder
    shape = (*mean.shape[:-1], len(state.analysis.picked))
    shift = builder.step("spread", mean, shape=shape)
    sample = x.sample
    if sample is None:
        sample = builder.constant(np.zeros((*x.coordinates.shape[:-1], 1)))
    return builder.step(
        "add",
        builder.pad_or_cut(sample, state.columns),
        builder.pad_or_cut(shift, state.columns),
    )


# Products with a matrix: the row law


def matmul(state: State, value: Vector, op: MatMul) -> LoweredVector:
    """(W x^1, …, W x^k) = C E, with C C^T = σ² G/n for the inner products G of inputs.

    E are fresh isotropic sources: one for each column of C.
    """
    builder = state.builder
    weight = op.weight
    x = op.x
    members = weight.members.size
    blocks = state.analysis.blocks[value]
    slots = members, blocks
    if isinstance(x.op, Span):  # orthonormal inputs, so that C is the identity
        identity = builder.constant(np.eye(x.shape[-1])[None])
        sources = _sources(state, value, slots=members * blocks, sources=x.shape[-1])
        label = f"{state.label(value)} = C E"
        return _combined(
            state, value, c=identity, sources=sources, slots=slots, label=label
        )
    copies = members if op.each else 1
    rows = _input_rows(state, x, copies)
    factor = _factor(state, value, x, rows)
    c = builder.step("scale", factor.c, by=weight.std / state.norm(x))
    sources = _sources(state, value, slots=members * blocks, sources=c.shape[-1])
    shares_inputs = copies == 1 and members > 1
    if shares_inputs and _draws_standard_basis(state, value):
        return _stacked_product(
            state, value, c, sources.coordinates, slots, factor.label
        )
    return _combined(state, value, c, sources, slots, factor.label)


def _input_rows(state: State, x: Vector, copies: int) -> Register:
    """The inputs of a matrix as rows, (copies, vectors, directions).

    `copies` is 1 if all members of the weight act on the same vectors. Directions
    before the first one that x has coordinates along are left out.
    """
    coordinates = state.vectors[x].coordinates
    start, _ = state.direction_range(x)
    rows_in_frames = state.builder.step(
        "part", coordinates, start=start, stop=coordinates.shape[-1]
    )
    return state.rows(rows_in_frames, rows_in_frames.shape[-1], copies)


def _draws_standard_basis(state: State, value: Vector) -> bool:
    """Whether sources of a value are drawn as i.i.d. coordinates in the standard basis,
    because that is cheaper.
    """
    if value not in state.analysis.drawn:
        return False
    for group in state.groups_from(value):
        if group not in state.analysis.coordinates_cheaper:
            return False
        if not state.frames[group].is_standard_basis:
            return False
    return True


class _Factor(NamedTuple):
    """The matrix C of a product C E, without its scale, and how the plan names C E."""

    c: Register  # (copies, vectors, sources)
    label: str


def _factor(state: State, value: Vector, x: Vector, rows: Register) -> _Factor:
    """C with C C^T = X X^T for the inputs X of a matrix, and the label of C E.

    `rows` are the inputs X, (copies, vectors, directions), with one copy if all members
    of the weight act on the same inputs. C has a column for each input where that is
    expected to cost less; otherwise C is X, with a column for each direction.
    """
    label = state.label(value)
    copies, vectors, directions = rows.shape
    every_direction = _draws_every_direction(state, value, copies, vectors, directions)
    has_smaller_factor = vectors < directions
    if (
        has_smaller_factor
        and not every_direction
        and _prefers_smaller_factor(state, value, x, rows)
    ):
        return _Factor(_smaller_factor(state, rows, label), f"{label} = C E")
    return _Factor(rows, _label_of_inputs(state, value, x, rows, every_direction))


def _label_of_inputs(
    state: State, value: Vector, x: Vector, rows: Register, every_direction: bool
) -> str:
    """How the plan names the product of the inputs X themselves with their sources.

    It says which sources are drawn, and why if a smaller factor would cost more. The
    sources are the matrix itself where the inputs have all directions of their space.
    """
    analysis = state.analysis
    label = state.label(value)
    _, vectors, directions = rows.shape
    is_drawn = value in analysis.drawn or value in analysis.merged_sources
    all_directions = analysis.blocks[x] * analysis.widths[x]
    draws_the_matrix = directions == all_directions and directions > 1
    if not is_drawn or not (every_direction or draws_the_matrix):
        return f"{label} = C E"
    sources = "the matrix" if draws_the_matrix else f"{directions} sources"
    label = f"{label} = x E, {sources} drawn"
    if every_direction:
        label += f": a factor for {vectors} inputs costs more"
    return label


def _prefers_smaller_factor(
    state: State, value: Vector, x: Vector, rows: Register
) -> bool:
    """Whether to replace the inputs of a matrix by a factor with fewer columns.

    `rows`: (copies, vectors, directions); the factor needs a source for each vector
    instead of each direction. `_draws_every_direction` has compared the cost of the
    factor with that of drawn sources; this function also decides for sources that are
    never drawn.
    """
    analysis = state.analysis
    _, vectors, directions = rows.shape
    if vectors == 1 or x in analysis.factored:
        return True
    # sources that are never drawn cost nothing, but a norm costs less than many of them
    if directions > max(MIN_FACTORED_SOURCES, MIN_FACTORED_RATIO * vectors):
        return True
    if value not in analysis.drawn and value not in analysis.merged_sources:
        return False
    if value not in analysis.infinite:
        return True
    # sources cost nothing where a direction at infinite width is all that they get
    sources_are_free = all(
        state.frames[group].can_rebase for group in state.groups_from(value)
    )
    return not sources_are_free


def _draws_every_direction(
    state: State, value: Vector, copies: int, vectors: int, directions: int
) -> bool:
    """Whether W x draws a source for each direction of x, without a factor.

    The alternative is a source for each input, and the factor of their Gram matrix. The
    inputs are an array (copies, vectors, directions); what is expected to take less
    time is chosen.
    """
    analysis = state.analysis
    if value in analysis.infinite or value not in analysis.drawn:
        return False
    if directions <= vectors or vectors < _cost_model.FEWEST:
        return False
    assert isinstance(value.op, MatMul)
    prices = analysis.prices

    def seconds(sources: int) -> float:
        """The time for `sources` sources of each slot of the value.

        They need normals along all directions of their frame, and are combined to
        `vectors` products.
        """
        normals_per_source = 0.0  # summed over the slots of all frames
        for group in state.groups_from(value):
            frames, slots = group.slots[value].shape
            directions_after = state.frames[group].directions + slots * sources
            normals_per_source += frames * slots * min(group.width, directions_after)
        seconds_per_normal = prices.normal + vectors * prices.product
        return float(sources * normals_per_source * seconds_per_normal)

    # the factor is computed once for all matrices that act on these inputs
    sharing = analysis.matrices_on[value.op.x]
    factor_seconds = prices.factor(copies, vectors, directions) / sharing
    with_factor = factor_seconds + seconds(vectors)
    return seconds(directions) < _cost_model.PREFERENCE * with_factor


def _smaller_factor(state: State, rows: Register, label: str) -> Register:
    """A factor C of rows X, (…, vectors, directions), with C C^T = X X^T.

    X has fewer vectors than directions. C is a factor of the Gram matrix, (…, vectors,
    vectors); for one vector, its norm.
    """
    builder = state.builder
    if rows.shape[-2] == 1:
        squares = builder.step("squares", rows, label=f"|x|² for {label}")
        norm = builder.step("root", squares)
        return builder.reshape(norm, *norm.shape, 1)
    gram = builder.step("gram", rows, rows, label=f"⟨x, x'⟩ for {label}")
    return builder.step("reduced", gram, rows, label=f"K = C C^T for {label}")


def _stacked_product(
    state: State,
    value: Vector,
    c: Register,
    coordinates: Register,
    slots: tuple[int, int],
    label: str,
) -> LoweredVector:
    """C E as one product for all matrices that act on the same vectors.

    `c`: (1, vectors, k), the same for all members. `coordinates`: those of E, (members
    · blocks, k, directions). They are i.i.d. normals, so that they may be used in any
    order.
    """
    builder = state.builder
    members, blocks = slots
    directions = coordinates.shape[-1]
    e = builder.reshape(coordinates, 1, members * blocks * directions, c.shape[-1])
    product = builder.step("gram", c, e, label=label)
    by_vector = builder.reshape(product, c.shape[-2], members, blocks * directions)
    by_member = builder.step("permute", by_vector, axes=(1, 0, 2))
    return LoweredVector(builder.reshape(by_member, *value.shape, blocks, directions))


def _combined(
    state: State,
    value: Vector,
    c: Register,
    sources: Sources,
    slots: tuple[int, int],
    label: str = "",
    order: Ints | None = None,
) -> LoweredVector:
    """The vectors C E of a value, with their coordinates, samples and sets.

    C is (members or 1, vectors, k) and E, the `sources`, (members · blocks, k, ·);
    `slots` is (members, blocks). The rows of the product are (member, vector, block) in
    this order. If those of the value have another order, `order` gives for each row of
    the value the row of the product. `label` describes the product of coordinates.
    """
    builder = state.builder
    members, blocks = slots
    k = c.shape[-1]
    shape = *value.shape, state.analysis.blocks[value]
    count = math.prod(shape)

    def multiplied(e: Register, label: str = "") -> Register:
        """C E for coordinates or samples of E, (*shape, ·)."""
        # C is the same for all blocks, so put those of a source end to end: from
        # (members · blocks, k, ·) to (members, k, blocks · ·)
        e = builder.reshape(e, members, blocks, k, e.shape[-1])
        if blocks > 1:
            e = builder.step("permute", e, axes=(0, 2, 1, 3))
        e = builder.reshape(e, members, k, blocks * e.shape[-1])
        if k:
            product = builder.step("product", c, e, label=label)
        else:
            product = builder.constant(np.zeros((*shape, 0)))
        rows = builder.reshape(product, count, product.size // count)
        if order is not None:
            rows = builder.take(rows, order, axis=0)
        return builder.reshape(rows, *shape, rows.shape[-1])

    label = label if sources.coordinates.size else ""
    coordinates = multiplied(sources.coordinates, label)
    sets = None
    if value in state.analysis.infinite:
        sets = _combined_sets(c, sources, slots).ravel()
        if order is not None:
            sets = sets[order]
        sets = sets.reshape(shape)
    sample = None
    if sources.sample is not None:
        sample = multiplied(sources.sample)
    return LoweredVector(coordinates, sample, sets)


def _combined_sets(c: Register, sources: Sources, slots: tuple[int, int]) -> Sets:
    """The sets of directions of C E at infinite width, (members, vectors, blocks).

    See `_combined` for the arguments.
    """
    members, blocks = slots
    k = c.shape[-1]
    last = sources.sets.shape[-1]
    by_slot = sources.sets.reshape(members, blocks, k, last)
    # the blocks of a source end to end, as in `_combined`
    by_source = np.swapaxes(by_slot, 1, 2).reshape(members, k, blocks * last)
    nonzero = np.ones(c.shape, dtype=bool)  # numbers that are drawn are not 0
    if c.value is not None:
        nonzero = np.asarray(c.value[0]) != 0
    return mixed(nonzero, by_source)


def materialised_matmul(
    state: State, value: Vector, op: MaterialisedMatMul
) -> LoweredVector:
    """W x, or W^T x, as products of the entries of W with all coordinates of x."""
    builder = state.builder
    x = op.x
    blocks = state.analysis.blocks[value]
    width = int(state.analysis.widths[x])
    copies = x.size // x.shape[-1]
    rows = state.rows(state.vectors[x].coordinates, width, copies=copies)
    entries = builder.take(state.scalars[op.entries], np.array(op.members), axis=0)
    instruction, formula = "product", "x E"
    if op.weight.transposed:
        instruction, formula = "gram", "x E^T"
    label = (
        f"{state.label(value)} = {formula}, the matrix drawn: it acts on"
        f" {op.vectors} vectors in all"
    )
    scaled = builder.step("scale", rows, by=op.gain)
    product = builder.step(instruction, scaled, entries, label=label)
    return LoweredVector(
        builder.reshape(product, *value.shape, blocks, product.shape[-1] // blocks)
    )


def fuse(state: State, value: Vector, x: Vector) -> LoweredVector:
    """Vectors with the law of x, which are linear in sources without other use.

    They are C E with fresh sources E and C C^T the covariance of x, plus the mean of x.
    So x is sampled from its covariance, with at most one source for each vector.
    """
    builder = state.builder
    positions = state.analysis.fuse_parts[value]  # (members, vectors of each)
    coordinates = state.vectors[x].coordinates
    rows = state.gather(coordinates, positions, coordinates.shape[-1])
    # the first direction is (1, …, 1)
    rows = builder.step("part", rows, start=1, stop=rows.shape[-1])
    c = rows
    vectors, directions = rows.shape[-2:]
    if vectors < directions:
        c = _smaller_factor(state, rows, "combined sources")
    sources = _sources(state, value, slots=len(positions), sources=c.shape[-1])
    order = np.argsort(positions.ravel())  # rows are by member: back to those of x
    slots = len(positions), 1
    centred = _combined(state, value, c, sources, slots, order=order)
    if not any(group.constant for group in state.groups_of(x)):
        return centred
    mean = builder.step("part", coordinates, start=0, stop=1)
    return _shifted(state, value, x=centred, mean=mean)


# A matrix that acts again: orthonormal directions of what is new


def span(
    state: State, value: Vector, x: Vector, known: tuple[Vector, ...]
) -> LoweredVector:
    """Gram–Schmidt: the directions that vectors x add to the known ones.

    They are orthogonal to `known` (no array, or one array of such directions) and to
    each other, with mean square 1; or 0 where a vector adds nothing.
    """
    builder = state.builder
    label = "what is new of the inputs of a matrix that acts again"
    directions = max(state.vectors[v].coordinates.shape[-1] for v in (x, *known))
    rows = _rows_of_matrices(state, x, directions)
    if known:
        orthonormal = []
        for v in known:
            known_rows = _rows_of_matrices(state, v, directions)
            unit_rows = builder.step("scale", known_rows, by=1 / state.norm(v))
            orthonormal.append(unit_rows)
        unit = builder.step("span", rows, *orthonormal, label=label)
        new = builder.step("scale", unit, by=state.norm(x))
    else:
        factor = builder.step("factor", builder.step("gram", rows, rows))
        new = builder.step("spanned", factor, rows, label=label, by=state.norm(x))
    coordinates = builder.reshape(
        new, *value.shape, state.analysis.blocks[value], directions
    )
    if value not in state.analysis.infinite:
        return LoweredVector(coordinates)
    sample = _sample_of_directions(state, value, x, known, coordinates)
    return LoweredVector(coordinates, sample, state.orders.directions(x, known))


def _rows_of_matrices(state: State, x: Vector, directions: int) -> Register:
    """Vectors as rows (matrices, vectors, ·), for the matrices that act on them.

    The last axis of the shape of x counts vectors, all others count matrices.
    """
    return state.rows(state.vectors[x].coordinates, directions, math.prod(x.shape[:-1]))


def _sample_of_directions(
    state: State,
    value: Vector,
    x: Vector,
    known: tuple[Vector, ...],
    coordinates: Register,
) -> Register | None:
    """The sample of the directions D that x adds to the known directions D'.

    With x = A D' + B D, the sample of D is B^(−1) times that of x − A D'. None if no
    output needs samples. `coordinates` are those of D.
    """
    builder = state.builder
    vectors = (x, *known)
    if all(state.vectors[v].sample is None for v in vectors):
        return None
    mean_square = state.norm(x) ** 2
    width = max(state.sample(v).shape[-1] for v in vectors)
    remainder = state.rows(state.sample(x), width)
    for v in known:  # subtract A D'
        with_known = products(state, x, v, ndim=value.ndim + 1, label="")
        minus_a = builder.step("scale", with_known, by=-1 / mean_square)
        known_sample = state.rows(state.sample(v), width)
        along_known = builder.step("product", minus_a, known_sample)
        remainder = builder.step("add", remainder, along_known)
    x_coordinates = state.vectors[x].coordinates
    with_directions = paired_products(
        state, x_array=x_coordinates, y_array=coordinates, x=x, y=x, ndim=value.ndim + 1
    )
    b = builder.step("scale", with_directions, by=1 / mean_square)
    columns = builder.step("transposed", remainder)
    solved = builder.step("transposed", builder.step("solve", b, columns))
    return builder.reshape(solved, *coordinates.shape[:-1], width)


def along(state: State, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n, (*shape of x, directions), for directions y that span x."""
    builder = state.builder
    directions = max(state.vectors[v].coordinates.shape[-1] for v in (x, y))
    x_rows = _rows_of_matrices(state, x, directions)
    y_rows = _rows_of_matrices(state, y, directions)
    arguments = [x_rows, y_rows]
    if x.shape[-1] == y.shape[-1]:
        # y are the directions of x only: the coefficients are the Cholesky factor of
        # the Gram matrix, up to rounding
        gram = builder.step("gram", x_rows, x_rows)
        arguments.append(builder.step("factor", gram))
    label = "⟨x, direction⟩ for a matrix that acts again"
    inner = builder.step("along", *arguments, label=label, by=1 / state.norm(y))
    mean = builder.step("scale", inner, by=1 / state.norm(x))
    return builder.reshape(mean, *x.shape, y.shape[-1])


def adjoint(state: State, value: Scalar, op: AdjointCorrection) -> Register:
    """m^(−1/2) (γ n^(−1/2) ⟨d_i, u_k⟩ − m^(−1/2) ⟨g_i, b_k⟩), of order 1, (…, i, k).

    n is the width of d and u, and m that of g and b: see `AdjointCorrection`.
    """
    if op.g in state.analysis.infinite:
        return _adjoint_at_infinite_width(state, value, op)
    builder = state.builder
    analysis = state.analysis
    m = analysis.blocks[op.g] * analysis.widths[op.g]

    # m^(−1/2) γ n^(−1/2) ⟨d, u⟩
    if op.d in analysis.infinite:
        d_and_u = score(state, value, x=op.d, y=op.u)
    else:
        inner = products(state, x=op.d, y=op.u, ndim=value.ndim, label="⟨W^T b, d⟩")
        d_and_u = builder.step("scale", inner, by=1 / state.norm(op.d))
    d_and_u = builder.step("scale", d_and_u, by=op.gain * m**-0.5)

    # −m^(−1) ⟨g, b⟩
    inner = products(state, x=op.g, y=op.b, ndim=value.ndim, label="⟨b, g⟩")
    minus_g_and_b = builder.step("scale", inner, by=-1 / m)
    return builder.step("add", d_and_u, minus_g_and_b)


def _adjoint_at_infinite_width(
    state: State, value: Scalar, op: AdjointCorrection
) -> Register:
    """The limit γ √(n/m) ⟨d_i, u_k⟩/n of `adjoint` for m → ∞.

    g is fresh, so that its mean product with b is 0. Raises an error if n and m are
    different symbols.
    """
    builder = state.builder
    d = op.d
    u = op.u
    g = op.g
    if d not in state.analysis.infinite or not state.meets(d, u, value.ndim).any():
        return builder.constant(np.zeros(value.shape))
    if d.width.name != g.width.name:
        raise ExactError(
            value,
            f"W together with W.T, with widths {d.width} and {g.width} of W that go"
            " to infinity at different rates",
            instead=(
                "write both widths as multiples of one symbol, or bind one of them"
                " to a number"
            ),
        )
    ratio = op.gain * math.sqrt(d.width.factor / g.width.factor)
    return builder.step("scale", mean(state, value, x=d, y=u), by=ratio)
