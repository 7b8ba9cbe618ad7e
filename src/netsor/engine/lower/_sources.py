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
    s: State, value: Vector, copies: int, vectors: int, directions: int
) -> bool:
    """Whether a product of a matrix, with so many inputs in each of some copies, draws
    a source for each direction.
    """
    if (
        value in s.facts.limits
        or value not in s.facts.drawn
        or directions <= vectors
        or vectors < _cost_model.FEWEST
    ):
        return False
    assert isinstance(value.op, MatMul)
    prices, acts = (
        s.facts.prices,
        [(group, *group.slots[value].shape) for group in s.groups_from(value)],
    )

    def seconds(sources: int) -> float:
        """What so many sources of each slot take: their normals in all frames, and
        their part in all combinations.
        """
        reached = (
            frames * n * min(group.width, s.frames[group].directions + n * sources)
            for group, frames, n in acts
        )
        return float(
            sources * sum(reached) * (prices.normal + vectors * prices.product)
        )

    # the factor is made once for all matrices that act on these inputs
    factor = prices.factor(copies, vectors, directions) / s.facts.acting[value.op.x]
    return seconds(directions) < _cost_model.PREFERENCE * (factor + seconds(vectors))


# Sources that are never drawn, in all and for each vector: with more, a factor of the
# vectors' Gram matrix costs less
MIN_FACTORED_SOURCES, MIN_FACTORED_RATIO = 256, 3


# lead, sample, and the set of each at infinite width
Sources = tuple[Register, Register | None, Sets]


def _sources(s: State, value: Value, slots: int, sources: int) -> Sources:
    """Fresh standard isotropic vectors, so many for each slot (member and block): lead
    and sample (slots, k, ·).

    And their sets (slots, k, 1) at infinite width.
    """
    build, number = s.build, s.facts.number[value]
    infinite = value in s.facts.limits
    own = np.zeros((slots, sources), dtype=object)
    if slots and (value in s.facts.drawn or value in s.facts.merged_sources):
        parts = []
        for which, group in enumerate(s.groups_from(value)):
            places = group.slots[value]
            frame, count = s.frames[group], places.shape[1] * sources
            made = frame.add_sources(
                (*number, which), count, value in s.facts.leaves, s.words(value)
            )
            parts.append(
                (places, build.reshape(made, *places.shape, sources, made.shape[-1]))
            )
            if isinstance(frame, LimitFrame):
                new = [
                    1 << k for k in range(frame.blocks[-1].start, frame.blocks[-1].stop)
                ]
                own[places] = np.array(new, dtype=object).reshape(
                    places.shape[1], sources
                )
        lead = s.scatter(parts)
    else:
        lead = build.constant(np.zeros((slots, sources, 0)))
    sample = None
    if (
        slots
        and value in s.facts.coordinates
        and (infinite or value not in s.facts.drawn)
    ):
        if value in s.facts.feeds_nonlinearity and (
            infinite or "undrawn" in s.facts.without
        ):
            shape = (slots, sources, len(s.facts.picked))
            sample = build.draw(
                "normals",
                (*number, 0, SAMPLE, 0),
                shape,
                f"{s.words(value)}: one coordinate",
            )
        else:  # a Gaussian variable each, never drawn
            size = 8.0 * slots * sources * (s.columns + slots * sources)
            check_memory(
                size,
                f"{s.words(value)}, {slots * sources} sources,",
                "take fewer vectors or a smaller width",
            )
            unit = np.eye(slots * sources, s.columns + slots * sources, s.columns)
            s.columns = unit.shape[-1]
            sample = build.constant(unit.reshape(slots, sources, -1))
    return lead, sample, own[..., None]


def gaussian(s: State, value: Vector, op: Gaussian) -> LoweredVector:
    """h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k."""
    build, blocks, rank = s.build, s.facts.blocks[value], op.factor.shape[-1]
    c, std = op.factor.reshape(1, value.size, rank), 1.0
    # the builder leaves out products with the identity
    if rank and np.array_equal(c[0], c[0, 0, 0] * np.eye(rank)):
        c, std = np.eye(rank)[None], float(c[0, 0, 0])
    lead, sample, own = _sources(s, value, rank * blocks, 1)

    def scaled(e: Register) -> Register:
        return build.step(
            "scale", build.reshape(e, 1, rank, blocks * e.shape[-1]), by=std
        )

    sources = scaled(lead), sample and scaled(sample), own.reshape(1, rank, blocks)
    found = _combined(s, value, build.constant(c), sources, (1, 1))
    return (
        _shifted(s, value, found, build.constant(op.mean[..., None, None]))
        if op.mean.any()
        else found
    )


def _shifted(
    s: State, value: Vector, x: LoweredVector, mean: Register
) -> LoweredVector:
    """x + mean · (1, …, 1); the mean is (*shape, blocks or 1, 1)."""
    build, one = s.build, s.ones(value)
    width = max(one.shape[-1], x.lead.shape[-1])
    shift = build.step("multiply", build.pad_or_cut(one, width), mean)
    lead = build.step("add", build.pad_or_cut(x.lead, width), shift)
    sample, sets = x.sample, x.sets
    if value in s.facts.limits:
        if value in s.facts.coordinates:
            wide = build.step(
                "spread", mean, shape=(*mean.shape[:-1], len(s.facts.picked))
            )
            old = sample or build.constant(np.zeros((*x.lead.shape[:-1], 1)))
            sample = build.step(
                "add",
                build.pad_or_cut(old, s.columns),
                build.pad_or_cut(wide, s.columns),
            )
        assert sets is not None
        sets = sets | CONSTANT
    return LoweredVector(lead, sample, sets)


def _reduced(s: State, rows: Register, words: str) -> Register:
    """C with the products of the rows: the rows, or a factor of their Gram matrix if
    that takes fewer sources.
    """
    build = s.build
    if rows.shape[-1] <= rows.shape[-2]:
        return rows
    if rows.shape[-2] == 1:
        norm = build.step(
            "root", build.step("squares", rows, words=f"|x|² for {words}")
        )
        return build.reshape(norm, *norm.shape, 1)
    gram = build.step("gram", rows, rows, words=f"⟨x, x'⟩ for {words}")
    return build.step("reduced", gram, rows, words=f"K = C C^T for {words}")


def matmul(s: State, value: Vector, op: MatMul) -> LoweredVector:
    """W x = C E."""
    build, weight, x = s.build, op.weight, op.x
    members, blocks = weight.members.size, s.facts.blocks[value]
    drawn = value in s.facts.drawn or value in s.facts.merged_sources
    if isinstance(x.op, Span):  # orthonormal, so that C is the identity
        one = build.constant(np.eye(x.shape[-1])[None])
        made = _sources(s, value, members * blocks, x.shape[-1])
        return _combined(
            s, value, one, made, (members, blocks), f"{s.words(value)} = C E"
        )
    lead = build.step(
        "part", s.vectors[x].lead, start=s.reach(x)[0], stop=s.vectors[x].lead.shape[-1]
    )
    rows = s.rows(lead, lead.shape[-1], members if op.each else 1)
    # sources that are never drawn cost nothing, but a norm costs less than many of them
    copies, vectors, directions = rows.shape
    draws = drawn and not (
        value in s.facts.limits
        and all(s.frames[g].can_rebase for g in s.groups_from(value))
    )
    fewer = draws or x in s.facts.factored or vectors == 1
    fewer |= directions > max(MIN_FACTORED_SOURCES, MIN_FACTORED_RATIO * vectors)
    cheaper = draws_matrix(s, value, copies, vectors, directions)
    c = _reduced(s, rows, s.words(value)) if fewer and not cheaper else rows
    words = f"{s.words(value)} = C E"
    whole = 1 < directions == s.facts.blocks[x] * s.facts.widths[x]
    if c is rows and drawn and (cheaper or whole):
        why = f": a factor for {vectors} inputs costs more" if cheaper else ""
        words = (
            f"{s.words(value)} = x E,"
            f" {'the matrix' if whole else f'{directions} sources'} drawn{why}"
        )
    c = build.step("scale", c, by=weight.std / s.norm(x))
    made = _sources(s, value, members * blocks, c.shape[-1])
    standard = all(
        group in s.facts.whole and s.frames[group].is_standard_basis
        for group in s.groups_from(value)
    )
    if copies == 1 < members and standard and value in s.facts.drawn:
        # one product for matrices that act on the same vectors: E has i.i.d. normal
        # entries, its rows may be permuted
        last = made[0].shape[-1]
        e = build.reshape(made[0], 1, members * blocks * last, c.shape[-1])
        found = build.reshape(
            build.step("gram", c, e, words=words), c.shape[-2], members, blocks * last
        )
        return LoweredVector(
            build.reshape(
                build.step("permute", found, axes=(1, 0, 2)), *value.shape, blocks, last
            )
        )
    return _combined(s, value, c, made, (members, blocks), words)


def materialised_matmul(
    s: State, value: Vector, op: MaterialisedMatMul
) -> LoweredVector:
    """W x, or W^T x, by the entries of W and all coordinates of x."""
    build, x, blocks = s.build, op.x, s.facts.blocks[value]
    lead = build.pad_or_cut(s.vectors[x].lead, int(s.facts.widths[x]))
    rows = build.reshape(
        lead, x.size // x.shape[-1], x.shape[-1], lead.shape[-2] * lead.shape[-1]
    )
    entries = build.take(s.scalars[op.entries], np.array(op.members), axis=0)
    kind, name = ("gram", "x E^T") if op.weight.transposed else ("product", "x E")
    words = (
        f"{s.words(value)} = {name}, the matrix drawn: it acts on {op.vectors} vectors"
        " in all"
    )
    made = build.step(kind, build.step("scale", rows, by=op.gain), entries, words=words)
    return LoweredVector(
        build.reshape(made, *value.shape, blocks, made.shape[-1] // blocks)
    )


def _combined(
    s: State,
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
    build, (lead, sample, own), k = s.build, sources, c.shape[-1]
    shape = *value.shape, s.facts.blocks[value]

    def multiplied(e: Register, words: str = "") -> Register:
        e = build.reshape(e, *slots, k, e.shape[-1])
        e = build.step("permute", e, axes=(0, 2, 1, 3)) if slots[1] > 1 else e
        e = build.reshape(e, slots[0], k, slots[1] * e.shape[-1])
        made = (
            build.step("product", c, e, words=words)
            if k
            else build.constant(np.zeros((*shape, 0)))
        )
        flat = build.reshape(made, math.prod(shape), made.size // math.prod(shape))
        return build.reshape(
            flat if order is None else build.take(flat, order, axis=0),
            *shape,
            flat.shape[-1],
        )

    x = multiplied(lead, words if lead.size else "")
    sets = None
    if value in s.facts.limits:
        each = np.swapaxes(own.reshape(*slots, k, own.shape[-1]), 1, 2).reshape(
            slots[0], k, slots[1] * own.shape[-1]
        )
        # what is drawn is not 0
        known = np.ones(c.shape) if c.value is None else np.asarray(c.value[0])
        sets = mixed(known != 0, each).ravel()
        sets = (sets if order is None else sets[order]).reshape(shape)
    return LoweredVector(x, None if sample is None else multiplied(sample), sets)


def fuse(s: State, value: Vector, x: Vector) -> LoweredVector:
    """Fresh sources for vectors that are linear in sources of their own: x = C E with C
    C^T their covariance.
    """
    build, places = s.build, s.facts.parts[value]  # (members, vectors of each)
    given = s.vectors[x]
    rows = s.gather(given.lead, places, given.lead.shape[-1])
    # the first direction is (1, …, 1)
    rows = build.step("part", rows, start=1, stop=rows.shape[-1])
    c = _reduced(s, rows, "combined sources")
    made = _sources(s, value, len(places), c.shape[-1])
    found = _combined(
        s, value, c, made, (len(places), 1), order=np.argsort(places.ravel())
    )
    if not any(group.constant for group in s.groups_of(x)):
        return found
    return _shifted(s, value, found, build.step("part", given.lead, start=0, stop=1))


def span(
    s: State, value: Vector, x: Vector, known: tuple[Vector, ...]
) -> LoweredVector:
    """Orthonormal directions for what vectors add to the known ones, of mean square
    1.
    """
    build, given, words = (
        s.build,
        (x, *known),
        "what is new of the inputs of a matrix that acts again",
    )
    directions = max(s.vectors[v].lead.shape[-1] for v in given)
    rows, *others = (
        s.rows(s.vectors[v].lead, directions, math.prod(v.shape[:-1])) for v in given
    )
    if known:
        old = [
            build.step("scale", other, by=1 / s.norm(v))
            for v, other in zip(known, others, strict=True)
        ]
        made = build.step(
            "scale", build.step("span", rows, *old, words=words), by=s.norm(x)
        )
    else:
        factor = build.step("factor", build.step("gram", rows, rows))
        made = build.step("spanned", factor, rows, words=words, by=s.norm(x))
    lead = build.reshape(made, *value.shape, s.facts.blocks[value], directions)
    if value not in s.facts.limits:
        return LoweredVector(lead)
    return LoweredVector(
        lead, _sample(s, value, x, known, lead), s.orders.directions(x, known)
    )


def _sample(
    s: State, value: Vector, x: Vector, known: tuple[Vector, ...], lead: Register
) -> Register | None:
    """What an output needs to know of coordinates: the combinations of vectors that the
    directions are.
    """
    build, every = s.build, (x, *known)
    if all(s.vectors[v].sample is None for v in every):
        return None
    width = max(s.sample(v).shape[-1] for v in every)
    rows = [s.rows(s.sample(v), width) for v in every]
    left = rows[0]
    for v, old in zip(known, rows[1:], strict=True):
        by = build.step(
            "scale", products(s, x, v, value.ndim + 1, ""), by=-1 / s.norm(x) ** 2
        )
        left = build.step("add", left, build.step("product", by, old))
    own = build.step(
        "scale",
        paired_products(s, s.vectors[x].lead, lead, x, x, value.ndim + 1),
        by=1 / s.norm(x) ** 2,
    )
    made = build.step(
        "transposed", build.step("solve", own, build.step("transposed", left))
    )
    return build.reshape(made, *lead.shape[:-1], width)


def along(s: State, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n for directions y that span x."""
    directions = max(s.vectors[v].lead.shape[-1] for v in (x, y))
    rows, to = (
        s.rows(s.vectors[v].lead, directions, math.prod(v.shape[:-1])) for v in (x, y)
    )
    words = "⟨x, direction⟩ for a matrix that acts again"
    alone = x.shape[-1] == y.shape[-1]  # y are the directions of x alone
    factor = [s.build.step("factor", s.build.step("gram", rows, rows))] if alone else []
    made = s.build.step("along", rows, to, *factor, words=words, by=1 / s.norm(y))
    return s.build.reshape(
        s.build.step("scale", made, by=1 / s.norm(x)), *x.shape, y.shape[-1]
    )


def adjoint(s: State, value: Scalar, op: AdjointCorrection) -> Register:
    """m^(−1/2) (γ n^(−1/2) ⟨d_i, u_k⟩ − m^(−1/2) ⟨g_i, b_k⟩), of order 1."""
    build, (d, u, g, b) = s.build, (op.d, op.u, op.g, op.b)
    wide_in, wide_out = d in s.facts.limits, g in s.facts.limits
    if wide_out:  # g is fresh: its mean product with b is 0
        none = build.constant(np.zeros(value.shape))
        if not wide_in or not s.meets(d, u, value.ndim).any():
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
        return build.step(
            "scale",
            mean(s, value, d, u),
            by=op.gain * math.sqrt(d.width.factor / g.width.factor),
        )
    size = s.facts.blocks[g] * s.facts.widths[g]
    if wide_in:
        wanted = score(s, value, d, u)
    else:
        wanted = build.step(
            "scale", products(s, d, u, value.ndim, "⟨W^T b, d⟩"), by=1 / s.norm(d)
        )
    wanted = build.step("scale", wanted, by=op.gain * size**-0.5)
    given = build.step("scale", products(s, g, b, value.ndim, "⟨b, g⟩"), by=-1 / size)
    return build.step("add", wanted, given)
