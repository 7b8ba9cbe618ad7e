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

import numpy as np

from ...language._array import Value
from ...language._operation import Gaussian, MatMul
from ...language._scalar import Scalar
from ...language._vector import Vector
from .. import _cost_model
from .._exceptions import ExactError
from .._ir import Register
from .._memory import check_memory
from .._rng_keys import SAMPLE
from ..passes._operations import AdjointCorrection, MaterialisedMatMul, Span
from ..passes._orders import CONSTANT, Sets, mixed
from ._dual_rules import score
from ._infinite_frames import LimitFrame
from ._linear import mean, paired_products, products
from ._state import Ints, LoweredVector, State


def draws_matrix(
    state: State, value: Vector, copies: int, vectors: int, directions: int
) -> bool:
    """Whether a product of a matrix, with so many inputs in each of some copies, draws
    a source for each direction.
    """
    if (
        value in state.analysis.infinite
        or value not in state.analysis.drawn
        or directions <= vectors
        or vectors < _cost_model.FEWEST
    ):
        return False
    assert isinstance(value.op, MatMul)
    prices, acts = (
        state.analysis.prices,
        [(group, *group.slots[value].shape) for group in state.groups_from(value)],
    )

    def seconds(sources: int) -> float:
        """What so many sources of each slot take: their normals in all frames, and
        their part in all combinations.
        """
        reached = (
            frames * n * min(group.width, state.frames[group].directions + n * sources)
            for group, frames, n in acts
        )
        return float(
            sources * sum(reached) * (prices.normal + vectors * prices.product)
        )

    # the factor is made once for all matrices that act on these inputs
    factor = (
        prices.factor(copies, vectors, directions)
        / state.analysis.matrices_on[value.op.x]
    )
    return seconds(directions) < _cost_model.PREFERENCE * (factor + seconds(vectors))


# Sources that are never drawn, in all and for each vector: with more, a factor of the
# vectors' Gram matrix costs less
MIN_FACTORED_SOURCES, MIN_FACTORED_RATIO = 256, 3


# lead, sample, and the set of each at infinite width
Sources = tuple[Register, Register | None, Sets]


def _sources(state: State, value: Value, slots: int, sources: int) -> Sources:
    """Fresh standard isotropic vectors, so many for each slot (member and block): lead
    and sample (slots, k, ·).

    And their sets (slots, k, 1) at infinite width.
    """
    builder, number = state.builder, state.analysis.seed_key[value]
    infinite = value in state.analysis.infinite
    own = np.zeros((slots, sources), dtype=object)
    if slots and (
        value in state.analysis.drawn or value in state.analysis.merged_sources
    ):
        parts = []
        for which, group in enumerate(state.groups_from(value)):
            places = group.slots[value]
            frame, count = state.frames[group], places.shape[1] * sources
            made = frame.add_sources(
                (*number, which),
                count,
                value in state.analysis.leaves,
                state.label(value),
            )
            parts.append(
                (places, builder.reshape(made, *places.shape, sources, made.shape[-1]))
            )
            if isinstance(frame, LimitFrame):
                new = [
                    1 << k for k in range(frame.blocks[-1].start, frame.blocks[-1].stop)
                ]
                own[places] = np.array(new, dtype=object).reshape(
                    places.shape[1], sources
                )
        lead = state.scatter(parts)
    else:
        lead = builder.constant(np.zeros((slots, sources, 0)))
    sample = None
    if (
        slots
        and value in state.analysis.coordinates
        and (infinite or value not in state.analysis.drawn)
    ):
        if value in state.analysis.feeds_nonlinearity and (
            infinite or "undrawn" in state.analysis.without
        ):
            shape = (slots, sources, len(state.analysis.picked))
            sample = builder.draw(
                "normals",
                (*number, 0, SAMPLE, 0),
                shape,
                f"{state.label(value)}: one coordinate",
            )
        else:  # a Gaussian variable each, never drawn
            size = 8.0 * slots * sources * (state.columns + slots * sources)
            check_memory(
                size,
                f"{state.label(value)}, {slots * sources} sources,",
                "take fewer vectors or a smaller width",
            )
            unit = np.eye(
                slots * sources, state.columns + slots * sources, state.columns
            )
            state.columns = unit.shape[-1]
            sample = builder.constant(unit.reshape(slots, sources, -1))
    return lead, sample, own[..., None]


def gaussian(state: State, value: Vector, op: Gaussian) -> LoweredVector:
    """h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k."""
    builder, blocks, rank = (
        state.builder,
        state.analysis.blocks[value],
        op.factor.shape[-1],
    )
    c, std = op.factor.reshape(1, value.size, rank), 1.0
    # the builder leaves out products with the identity
    if rank and np.array_equal(c[0], c[0, 0, 0] * np.eye(rank)):
        c, std = np.eye(rank)[None], float(c[0, 0, 0])
    lead, sample, own = _sources(state, value, rank * blocks, 1)

    def scaled(e: Register) -> Register:
        return builder.step(
            "scale", builder.reshape(e, 1, rank, blocks * e.shape[-1]), by=std
        )

    sources = scaled(lead), sample and scaled(sample), own.reshape(1, rank, blocks)
    found = _combined(state, value, builder.constant(c), sources, (1, 1))
    return (
        _shifted(state, value, found, builder.constant(op.mean[..., None, None]))
        if op.mean.any()
        else found
    )


def _shifted(
    state: State, value: Vector, x: LoweredVector, mean: Register
) -> LoweredVector:
    """x + mean · (1, …, 1); the mean is (*shape, blocks or 1, 1)."""
    builder, one = state.builder, state.ones(value)
    width = max(one.shape[-1], x.lead.shape[-1])
    shift = builder.step("multiply", builder.pad_or_cut(one, width), mean)
    lead = builder.step("add", builder.pad_or_cut(x.lead, width), shift)
    sample, sets = x.sample, x.sets
    if value in state.analysis.infinite:
        if value in state.analysis.coordinates:
            wide = builder.step(
                "spread", mean, shape=(*mean.shape[:-1], len(state.analysis.picked))
            )
            old = sample or builder.constant(np.zeros((*x.lead.shape[:-1], 1)))
            sample = builder.step(
                "add",
                builder.pad_or_cut(old, state.columns),
                builder.pad_or_cut(wide, state.columns),
            )
        assert sets is not None
        sets = sets | CONSTANT
    return LoweredVector(lead, sample, sets)


def _reduced(state: State, rows: Register, words: str) -> Register:
    """C with the products of the rows: the rows, or a factor of their Gram matrix if
    that takes fewer sources.
    """
    builder = state.builder
    if rows.shape[-1] <= rows.shape[-2]:
        return rows
    if rows.shape[-2] == 1:
        norm = builder.step(
            "root", builder.step("squares", rows, words=f"|x|² for {words}")
        )
        return builder.reshape(norm, *norm.shape, 1)
    gram = builder.step("gram", rows, rows, words=f"⟨x, x'⟩ for {words}")
    return builder.step("reduced", gram, rows, words=f"K = C C^T for {words}")


def matmul(state: State, value: Vector, op: MatMul) -> LoweredVector:
    """W x = C E."""
    builder, weight, x = state.builder, op.weight, op.x
    members, blocks = weight.members.size, state.analysis.blocks[value]
    drawn = value in state.analysis.drawn or value in state.analysis.merged_sources
    if isinstance(x.op, Span):  # orthonormal, so that C is the identity
        one = builder.constant(np.eye(x.shape[-1])[None])
        made = _sources(state, value, members * blocks, x.shape[-1])
        return _combined(
            state, value, one, made, (members, blocks), f"{state.label(value)} = C E"
        )
    lead = builder.step(
        "part",
        state.vectors[x].lead,
        start=state.direction_range(x)[0],
        stop=state.vectors[x].lead.shape[-1],
    )
    rows = state.rows(lead, lead.shape[-1], members if op.each else 1)
    # sources that are never drawn cost nothing, but a norm costs less than many of them
    copies, vectors, directions = rows.shape
    draws = drawn and not (
        value in state.analysis.infinite
        and all(state.frames[g].can_rebase for g in state.groups_from(value))
    )
    fewer = draws or x in state.analysis.factored or vectors == 1
    fewer |= directions > max(MIN_FACTORED_SOURCES, MIN_FACTORED_RATIO * vectors)
    cheaper = draws_matrix(state, value, copies, vectors, directions)
    c = _reduced(state, rows, state.label(value)) if fewer and not cheaper else rows
    words = f"{state.label(value)} = C E"
    whole = 1 < directions == state.analysis.blocks[x] * state.analysis.widths[x]
    if c is rows and drawn and (cheaper or whole):
        why = f": a factor for {vectors} inputs costs more" if cheaper else ""
        words = (
            f"{state.label(value)} = x E,"
            f" {'the matrix' if whole else f'{directions} sources'} drawn{why}"
        )
    c = builder.step("scale", c, by=weight.std / state.norm(x))
    made = _sources(state, value, members * blocks, c.shape[-1])
    standard = all(
        group in state.analysis.coordinates_cheaper
        and state.frames[group].is_standard_basis
        for group in state.groups_from(value)
    )
    if copies == 1 < members and standard and value in state.analysis.drawn:
        # one product for matrices that act on the same vectors: E has i.i.d. normal
        # entries, its rows may be permuted
        last = made[0].shape[-1]
        e = builder.reshape(made[0], 1, members * blocks * last, c.shape[-1])
        found = builder.reshape(
            builder.step("gram", c, e, words=words), c.shape[-2], members, blocks * last
        )
        return LoweredVector(
            builder.reshape(
                builder.step("permute", found, axes=(1, 0, 2)),
                *value.shape,
                blocks,
                last,
            )
        )
    return _combined(state, value, c, made, (members, blocks), words)


def materialised_matmul(
    state: State, value: Vector, op: MaterialisedMatMul
) -> LoweredVector:
    """W x, or W^T x, by the entries of W and all coordinates of x."""
    builder, x, blocks = state.builder, op.x, state.analysis.blocks[value]
    lead = builder.pad_or_cut(state.vectors[x].lead, int(state.analysis.widths[x]))
    rows = builder.reshape(
        lead, x.size // x.shape[-1], x.shape[-1], lead.shape[-2] * lead.shape[-1]
    )
    entries = builder.take(state.scalars[op.entries], np.array(op.members), axis=0)
    kind, name = ("gram", "x E^T") if op.weight.transposed else ("product", "x E")
    words = (
        f"{state.label(value)} = {name}, the matrix drawn: it acts on {op.vectors} vectors"
        " in all"
    )
    made = builder.step(
        kind, builder.step("scale", rows, by=op.gain), entries, words=words
    )
    return LoweredVector(
        builder.reshape(made, *value.shape, blocks, made.shape[-1] // blocks)
    )


def _combined(
    state: State,
    value: Vector,
    c: Register,
    sources: Sources,
    slots: tuple[int, int],
    words: str = "",
    order: Ints | None = None,
) -> LoweredVector:
    """C E, from (members or 1, vectors, k) and sources (members · blocks, k, ·); its
    rows in an order, if given.
    """
    builder, (lead, sample, own), k = state.builder, sources, c.shape[-1]
    shape = *value.shape, state.analysis.blocks[value]

    def multiplied(e: Register, words: str = "") -> Register:
        e = builder.reshape(e, *slots, k, e.shape[-1])
        e = builder.step("permute", e, axes=(0, 2, 1, 3)) if slots[1] > 1 else e
        e = builder.reshape(e, slots[0], k, slots[1] * e.shape[-1])
        made = (
            builder.step("product", c, e, words=words)
            if k
            else builder.constant(np.zeros((*shape, 0)))
        )
        flat = builder.reshape(made, math.prod(shape), made.size // math.prod(shape))
        return builder.reshape(
            flat if order is None else builder.take(flat, order, axis=0),
            *shape,
            flat.shape[-1],
        )

    x = multiplied(lead, words if lead.size else "")
    sets = None
    if value in state.analysis.infinite:
        each = np.swapaxes(own.reshape(*slots, k, own.shape[-1]), 1, 2).reshape(
            slots[0], k, slots[1] * own.shape[-1]
        )
        # what is drawn is not 0
        known = np.ones(c.shape) if c.value is None else np.asarray(c.value[0])
        sets = mixed(known != 0, each).ravel()
        sets = (sets if order is None else sets[order]).reshape(shape)
    return LoweredVector(x, None if sample is None else multiplied(sample), sets)


def fuse(state: State, value: Vector, x: Vector) -> LoweredVector:
    """Fresh sources for vectors that are linear in sources of their own: x = C E with C
    C^T their covariance.
    """
    builder, places = (
        state.builder,
        state.analysis.fuse_parts[value],
    )  # (members, vectors of each)
    given = state.vectors[x]
    rows = state.gather(given.lead, places, given.lead.shape[-1])
    # the first direction is (1, …, 1)
    rows = builder.step("part", rows, start=1, stop=rows.shape[-1])
    c = _reduced(state, rows, "combined sources")
    made = _sources(state, value, len(places), c.shape[-1])
    found = _combined(
        state, value, c, made, (len(places), 1), order=np.argsort(places.ravel())
    )
    if not any(group.constant for group in state.groups_of(x)):
        return found
    return _shifted(
        state, value, found, builder.step("part", given.lead, start=0, stop=1)
    )


def span(
    state: State, value: Vector, x: Vector, known: tuple[Vector, ...]
) -> LoweredVector:
    """Orthonormal directions for what vectors add to the known ones, of mean square
    1.
    """
    builder, given, words = (
        state.builder,
        (x, *known),
        "what is new of the inputs of a matrix that acts again",
    )
    directions = max(state.vectors[v].lead.shape[-1] for v in given)
    rows, *others = (
        state.rows(state.vectors[v].lead, directions, math.prod(v.shape[:-1]))
        for v in given
    )
    if known:
        old = [
            builder.step("scale", other, by=1 / state.norm(v))
            for v, other in zip(known, others, strict=True)
        ]
        made = builder.step(
            "scale", builder.step("span", rows, *old, words=words), by=state.norm(x)
        )
    else:
        factor = builder.step("factor", builder.step("gram", rows, rows))
        made = builder.step("spanned", factor, rows, words=words, by=state.norm(x))
    lead = builder.reshape(made, *value.shape, state.analysis.blocks[value], directions)
    if value not in state.analysis.infinite:
        return LoweredVector(lead)
    return LoweredVector(
        lead, _sample(state, value, x, known, lead), state.orders.directions(x, known)
    )


def _sample(
    state: State, value: Vector, x: Vector, known: tuple[Vector, ...], lead: Register
) -> Register | None:
    """What an output needs to know of coordinates: the combinations of vectors that the
    directions are.
    """
    builder, every = state.builder, (x, *known)
    if all(state.vectors[v].sample is None for v in every):
        return None
    width = max(state.sample(v).shape[-1] for v in every)
    rows = [state.rows(state.sample(v), width) for v in every]
    left = rows[0]
    for v, old in zip(known, rows[1:], strict=True):
        by = builder.step(
            "scale",
            products(state, x, v, value.ndim + 1, ""),
            by=-1 / state.norm(x) ** 2,
        )
        left = builder.step("add", left, builder.step("product", by, old))
    own = builder.step(
        "scale",
        paired_products(state, state.vectors[x].lead, lead, x, x, value.ndim + 1),
        by=1 / state.norm(x) ** 2,
    )
    made = builder.step(
        "transposed", builder.step("solve", own, builder.step("transposed", left))
    )
    return builder.reshape(made, *lead.shape[:-1], width)


def along(state: State, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n for directions y that span x."""
    directions = max(state.vectors[v].lead.shape[-1] for v in (x, y))
    rows, to = (
        state.rows(state.vectors[v].lead, directions, math.prod(v.shape[:-1]))
        for v in (x, y)
    )
    words = "⟨x, direction⟩ for a matrix that acts again"
    alone = x.shape[-1] == y.shape[-1]  # y are the directions of x alone
    factor = (
        [state.builder.step("factor", state.builder.step("gram", rows, rows))]
        if alone
        else []
    )
    made = state.builder.step(
        "along", rows, to, *factor, words=words, by=1 / state.norm(y)
    )
    return state.builder.reshape(
        state.builder.step("scale", made, by=1 / state.norm(x)), *x.shape, y.shape[-1]
    )


def adjoint(state: State, value: Scalar, op: AdjointCorrection) -> Register:
    """m^(−1/2) (γ n^(−1/2) ⟨d_i, u_k⟩ − m^(−1/2) ⟨g_i, b_k⟩), of order 1."""
    builder, (d, u, g, b) = state.builder, (op.d, op.u, op.g, op.b)
    wide_in, wide_out = d in state.analysis.infinite, g in state.analysis.infinite
    if wide_out:  # g is fresh: its mean product with b is 0
        none = builder.constant(np.zeros(value.shape))
        if not wide_in or not state.meets(d, u, value.ndim).any():
            return none
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
        return builder.step(
            "scale",
            mean(state, value, d, u),
            by=op.gain * math.sqrt(d.width.factor / g.width.factor),
        )
    size = state.analysis.blocks[g] * state.analysis.widths[g]
    if wide_in:
        wanted = score(state, value, d, u)
    else:
        wanted = builder.step(
            "scale",
            products(state, d, u, value.ndim, "⟨W^T b, d⟩"),
            by=1 / state.norm(d),
        )
    wanted = builder.step("scale", wanted, by=op.gain * size**-0.5)
    given = builder.step(
        "scale", products(state, g, b, value.ndim, "⟨b, g⟩"), by=-1 / size
    )
    return builder.step("add", wanted, given)
