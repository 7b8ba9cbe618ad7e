"""Small rewrites of the graph. The docstring of each states the identity in law that
allows it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ... import activations as known
from ..._array_api import array_namespace
from ...activations import Function
from ...derivatives import base
from ...language import _operation as ops
from ...language._array import Value
from ...language._graph import widths_of
from ...language._operation import Constant, Dot, MatMul, Mix, Nonlin, Root, Take
from ...language._parameters import Weight
from ...language._readout import readouts
from ...language._scalar import MULTIPLY, Scalar, applied, constant
from ...language._score import join, mean_dot
from ...language._softmax import MASKED_SOFTMAX, SOFTMAX
from ...language._vector import Vector, mix
from ...language._width import Width
from .._exceptions import ExactError
from .._gram_schmidt import LinalgBackend
from ._operations import Fuse
from ._rewrite import Context, asked, key_of, linear_sources, rewritten, users_of

Bools = npt.NDArray[np.bool_]


def deduplicate_products(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Compute each product W x once, however often it occurs: W x − W x is exactly 0.
    Also W 0 is 0.

    W[[0, 0, 1]] x computes only W[[0, 1]] x. Lowering relies on this: the members of
    every weight are distinct.
    """
    products: dict[Any, Value] = {}
    zeros: dict[Value, Bools] = {}  # of vectors some of which are 0

    def change(old: Value, new: Value) -> Value:
        made = new
        match new.op:
            case MatMul(weight, x, each):
                if (key := key_of(new)) not in products:
                    repeated = (
                        len(set(weight.members.ravel().tolist())) < weight.members.size
                    )
                    made = _distinct(new, weight, x, each) if repeated else new
                    products[key] = (
                        cast(Vector, made) * np.where(zeros[x], 0.0, 1.0)
                        if x in zeros
                        else made
                    )
                made = products[key]
        if isinstance(new, Vector) and (found := _zeros(new, zeros)).any():
            zeros[new] = zeros[made] = found
        return made

    return rewritten(outputs, context, change)


def _zeros(value: Vector, some: Mapping[Value, Bools]) -> Bools:
    """Which vectors are 0 at every width, given the zeros of the inputs: zero data and
    all that depends on them.
    """
    found: Any = False
    if some.keys().isdisjoint(value.op.inputs) and not isinstance(value.op, ops.Data):
        return np.zeros((), dtype=bool)
    zeros = {x: some.get(x, np.zeros(x.shape, dtype=bool)) for x in value.op.inputs}
    match value.op:
        case ops.Data(given):
            found = ~given.any(axis=-1)
        case Take(x, flat):
            found = zeros[x].ravel()[flat]
        case ops.Join(parts):
            found = np.concatenate([zeros[part] for part in parts])
        case MatMul(_, x) | ops.Scale(_, x):
            found = zeros[x]
        case Nonlin(f, factors, ()) if f is MULTIPLY:
            found = functools.reduce(np.logical_or, (zeros[x] for x in factors))
        case Nonlin(f, (x,), ()):
            found = zeros[x] & (np.asarray(f(np.zeros(1)))[0] == 0)
    return np.broadcast_to(found, value.shape)


def _distinct(value: Value, weight: Weight, x: Vector, each: bool) -> Value:
    """W x of repeated members, from products of distinct ones."""
    members = weight.members.ravel()
    if not each:
        found, back = np.unique(members, return_inverse=True)
        return (replace(weight, members=found) @ x)[back.ravel()].reshape(*value.shape)
    rows = x.reshape(len(members), -1)
    earlier = np.array(
        [np.sum(members[:place] == member) for place, member in enumerate(members)]
    )
    # first occurrences, second ones, …
    rounds = [np.flatnonzero(earlier == k) for k in range(earlier.max() + 1)]
    parts = [
        replace(weight, members=members[chosen]).each(rows[chosen]) for chosen in rounds
    ]
    return join(parts)[np.argsort(np.concatenate(rounds))].reshape(*value.shape)


def commute_mix(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Σ_j a_j W x_j = W Σ_j a_j x_j, if the products W x_j are used only for this
    combination.

    The s values of a head, mixed into one vector, then need one source instead of s.
    """
    users = users_of(context.ordered(outputs))

    def change(old: Value, new: Value) -> Value:
        match old.op, new.op:
            case Mix(_, Vector(op=MatMul(weight)) as g), Mix(
                a, Vector(op=MatMul(_, x, each))
            ):
                alone = users[g] == [old] and g not in outputs
                # the sum must run over vectors of one matrix, not over matrices, and
                # add no leading axes
                inside = g.ndim > len(weight.batch) and old.ndim == g.ndim
                if (
                    alone
                    and inside
                    and old.size < g.size
                    and old.shape[: len(weight.batch)] == weight.batch
                ):
                    apart = x if each else x[(None,) * len(weight.batch)]
                    product = weight.each(mix(a, apart).broadcast_to(old.shape))
                    context.origin[product] = context.origin[g]
                    return product
        return new

    return rewritten(outputs, context, change)


def fuse_sources(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Given its coefficients, a linear combination of independent Gaussian vectors is
    Gaussian.

    A value whose sources (such as a product and a bias) have no other use is sampled
    directly, if that needs fewer.
    """
    values = context.ordered(outputs)
    made = linear_sources(values)
    every = dict.fromkeys(x for value in values for x in asked(value))
    # uses of a source
    points = Counter(
        chain.from_iterable(made.get(x, ()) for x in every | dict.fromkeys(outputs))
    )

    def change(old: Value, new: Value) -> Value:
        if old not in every or old in outputs or old in made[old]:
            return new
        if not all(
            points[s] == 1 and isinstance(s.op, ops.Gaussian | MatMul)
            for s in made[old]
        ):
            return new
        # a concatenation needs more than each of its parts
        own, *parts = (x.size * x.width.factor for x in (old, *made[old]))  # type: ignore[attr-defined]
        return replace(new, op=Fuse(cast(Vector, new))) if own < sum(parts) else new

    return rewritten(outputs, context, change)


def vanishing_ratio(op: Root, bound: Mapping[str, float]) -> tuple[Width, float] | None:
    """The infinite width m and the factor, if √(n/m) is a multiple of m^(−1/2); else
    None.
    """
    over, under = (
        [w for w in side if math.isinf(w.bind(bound))] for side in (op.over, op.under)
    )
    if over or len(under) != 1:
        return None
    return under[0], Root(op.over, tuple(w for w in op.under if w is not under[0])).of(
        bound
    )


def bind_hyperparameters(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace known hyperparameters by numbers; without any, all are given when the
    plan runs.
    """
    if not context.numbers:
        return list(outputs)

    def change(old: Value, new: Value) -> Value:
        return (
            constant(np.asarray(context.numbers[new.op.name]))
            if isinstance(new.op, ops.Hyperparameter)
            else new
        )

    return rewritten(outputs, context, change)


def bind_width_ratios(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace √(n/m) by a number. A ratio that vanishes like n^(−1/2) stays, since a
    score may depend on it.
    """

    def change(old: Value, new: Value) -> Value:
        if not isinstance(new.op, Root):
            return new
        number = new.op.of(context.bound)
        if vanishing_ratio(new.op, context.bound) is not None:
            return new
        if not 0 < number < math.inf:
            found = (
                "is not given"
                if math.isnan(number)
                else "vanishes"
                if number == 0
                else "is infinite"
            )
            raise ExactError(
                new,
                f"a gradient in units of {new.op}, which {found} at these widths",
                instead=(
                    "bind these widths to numbers, write them as multiples of one"
                    " symbol, or take the gradient of a score (ns.dot) instead of that"
                    ' of a mean, and the tangent kernel with parametrisation="ntk"'
                ),
            )
        return constant(np.asarray(number))

    return rewritten(outputs, context, change)


def _root(gram: Any) -> Any:
    """The triangular L with L L^T = gram (…, k, k)."""
    return LinalgBackend(array_namespace(gram)).factor(gram)


ROOT = Function("root", _root, bounded=False, lipschitz=False)


def condition_scores(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Turn a score that is an output into a coordinate of a vector, whose sources are
    never sampled.

    Given q and z, the products n^(−1/2) ⟨q_i, W z_j⟩ with a fresh W have the law of Σ_c
    L_ic (W^c z_j)_1 with L L^T = ⟨q_i, q_i'⟩/n and W^c independent copies of W
    (docs/theory.md, "The last product is integrated out"). Conditions: only outputs use
    the dot, and only the dot uses the product W z; a mean needs a finite width.
    """
    users = users_of(context.ordered(outputs))

    def free(x: Vector, other: Vector, dot: Value) -> bool:
        """Whether x is W z for a fresh W, used only here, with as many vectors `other`
        for each matrix.
        """
        if (
            not isinstance(x.op, MatMul)
            or x is other
            or x in outputs
            or users[x] != [dot]
        ):
            return False
        batch = x.op.weight.batch
        return x.shape[:-1] == other.shape[:-1] == batch

    def change(old: Value, new: Value) -> Value:
        match old.op, new.op:
            case Dot(a, b, power), Dot(x, y) if _is_output(old, users) and (
                power == 0.5 or context.width(a) < np.inf
            ):
                size = 1.0 if power == 0.5 else context.width(a) ** -0.5
                left, right = free(a, b, old), free(b, a, old)
                if right and (not left or a.size <= b.size):
                    return _coordinate(y, x, size, turned=True).reshape(old.shape)
                if left:
                    return _coordinate(x, y, size, turned=False).reshape(old.shape)
            case Take(), Take(Vector() as x, flat) if isinstance(old, Scalar):
                return Vector(Take(x, flat), old.shape, x.width)
        return new

    return rewritten(outputs, context, change)


# Entries of the readouts of a program. Each is Gaussian with coefficients of its own,
# of which there are as many.
MAX_READOUT_ENTRIES = 1024


def products_for_readouts(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Turn readouts by initial vectors that are outputs into coordinates of products,
    which are never sampled.

    n^(−1/2) ⟨r_i, y_j⟩ has the law of Σ_k F_ik (W^k y_j)_1 if r_i = Σ_k F_ik E_k is
    used for nothing else: see `_readout` in the language. One more matrix of the
    program then acts on y, as in a readout W y. `condition_scores` needs fewer numbers
    if y itself is a product that has no other use.
    """
    values = context.ordered(outputs)
    users = users_of(values)
    acting = Counter(
        value.op.weight.source for value in values if isinstance(value.op, ops.Acting)
    )

    def product_without_other_use(x: Value) -> bool:
        return (
            isinstance(x.op, MatMul)
            and acting[x.op.weight.source] == 1
            and len(users[x]) == 1
        )

    def is_returned(score: Value) -> bool:
        return _is_output(score, users) and not any(
            map(product_without_other_use, score.op.inputs)
        )

    known = readouts(values, outputs, is_returned)
    refused = {
        readout.source
        for readout in known.values()
        if _columns_of(readout.factor) is None
    }
    found = {
        score: readout
        for score, readout in known.items()
        if readout.source not in refused
    }
    if not found or sum(score.size for score in found) > MAX_READOUT_ENTRIES:
        return list(outputs)
    matrices = {
        readout.source: ops.Source(readout.source.name or "readout")
        for readout in found.values()
    }

    def change(old: Value, new: Value) -> Value:
        if old in found:
            source, factor, _, turned = found[old]
            assert isinstance(new.op, Dot)
            read = _read_out(new.op.x if turned else new.op.y, factor, matrices[source])
            return read if turned else read.transpose(*range(read.ndim - 2), -1, -2)
        match new.op:
            case Take(Vector() as x, flat) if isinstance(old, Scalar):
                return Vector(Take(x, flat), old.shape, x.width)
        return new

    return rewritten(outputs, context, change)


def _columns_of(factor: npt.NDArray[np.float64]) -> npt.NDArray[np.intp] | None:
    """The columns k with a nonzero factor[b, i, k] for some i, (…, columns), as many
    for each index b.

    None if two indices b share a column, or if their numbers differ.
    """
    used = factor.any(axis=-2)
    counts = used.sum(axis=-1)
    shared = used.reshape(-1, used.shape[-1]).sum(axis=0).max() > 1
    if shared or counts.min() == 0 or counts.min() < counts.max():
        return None
    return np.asarray(np.nonzero(used)[-1].reshape(*used.shape[:-1], -1), dtype=np.intp)


def _read_out(y: Vector, factor: npt.NDArray[np.float64], source: ops.Source) -> Vector:
    """Vectors Σ_k factor[b, i, k] W^k y[b, j], (b, j, i), with a matrix W^k for each
    column.
    """
    columns = _columns_of(factor)
    assert columns is not None
    matrices = Weight(source, y.width, y.width, 1.0, columns, factor.shape[-1], y.width)
    own = np.take_along_axis(factor, columns[..., None, :], axis=-1)  # (b, i, columns)
    batch = np.broadcast_shapes(columns.shape[:-1], y.shape[:-1])
    if columns[..., 0].size == 1:
        matrices = replace(matrices, members=columns.ravel())
        products = matrices @ y  # (columns, b, j)
        by_vector = products.transpose(*range(1, products.ndim), 0)
    else:
        matrices = replace(
            matrices, members=np.broadcast_to(columns, (*batch, columns.shape[-1]))
        )
        repeated = y[..., None, :].broadcast_to(
            (*batch, columns.shape[-1], y.shape[-1])
        )
        products = matrices.each(repeated)  # (b, columns, j)
        by_vector = products.transpose(*range(len(batch)), -1, -2)
    return mix(constant(own[..., None, :, :]), by_vector)


def _is_output(value: Value, users: Mapping[Value, Sequence[Value]]) -> bool:
    """Whether only outputs use a value, or entries of it."""
    return all(
        isinstance(user.op, Take) and _is_output(user, users)
        for user in users.get(value, ())
    )


def _coordinate(x: Vector, given: Vector, size: float, turned: bool) -> Vector:
    """Vectors whose coordinates have the law of ⟨x, given⟩ with x = W z: (…, x, given),
    or transposed if `turned`.
    """
    assert isinstance(x.op, MatMul)
    w, z, count = x.op.weight, x.op.x, given.shape[-1]
    root = (
        applied(ROOT, (mean_dot(given, given),), (*given.shape, count), axes=2) * size
    )
    if count == 1:
        return root[..., 0] * x
    members = np.arange(w.members.size * count).reshape(*w.batch, count)
    copies = replace(
        w, source=ops.Source(w.source.name), members=members, count=members.size
    )
    each = (
        z[..., None, :].broadcast_to((*w.batch, count, z.shape[-1])) if x.op.each else z
    )
    y = copies.each(each) if x.op.each else copies @ z  # (…, count, x)
    swapped = (*range(y.ndim - 2), -1, -2)
    found = mix(root[..., None, :, :], y.transpose(swapped))  # (…, x, given)
    return found.transpose(swapped) if turned else found


NEVER = 70.0  # an event of probability e^-70 (4e-31) does not occur

# Matched by identity: a user's function of the same name is a different function.
# |φ(x)| ≤ |x|
CONTRACTIONS = (
    known.IDENTITY,
    known.RELU,
    known.ABS,
    known.TANH,
    known.SIN,
    known.SILU,
    known.GELU,
)
# for any bound or slope
CLIP, LEAKY_RELU = base(known.clip(1.0)), base(known.leaky_relu(0.5))
WITHIN_ONE = (known.ERF, known.SIGMOID, known.COS)  # |φ| ≤ 1


class Size(NamedTuple):
    """A bound on coordinates: |u| ≤ fixed + |v|, where v is a Gaussian of this variance
    times `factors` of χ/√m.
    """

    fixed: float
    variance: float
    factors: int

    def times(self, c: float) -> Size:
        """The bound of c u; infinite where a power would raise."""
        return Size(c * self.fixed, c * c * self.variance, self.factors)


def drop_identities(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Remove activations with φ(x) = x on every draw that can occur in practice.

    These are the identity, and a clip at C if P(|u| > C) < e^(−70), by the bound
    √variance · N · Π χ_m/√m. Coordinates of data are bounded by the largest one.
    """
    values = context.ordered(outputs)
    if not any(
        isinstance(v.op, Nonlin) and (v.op.f is known.IDENTITY or base(v.op.f) is CLIP)
        for v in values
    ):
        return list(outputs)
    smallest = min(
        (width.bind(context.bound) for width in widths_of(values)), default=math.inf
    )
    size: dict[Value, Size | None] = {}

    def change(old: Value, new: Value) -> Value:
        size[old] = _size(old, size)
        match old.op:
            case Nonlin(f, (_,), ()) if f is known.IDENTITY:
                return cast(Nonlin, new.op).vectors[0]
            case Nonlin(f, (x,), ()) if base(f) is CLIP:
                bound = size[x]
                exponent = _tail(f.parameters[0], bound, smallest) if bound else 0.0
                if exponent > NEVER:
                    probability = "0" if exponent == math.inf else f"e^-{exponent:.0f}"
                    note = (
                        f"clip at {f.parameters[0]:g} acts as the identity: it clips"
                        f" with probability {probability}"
                    )
                    if note not in context.notes:
                        context.notes.append(note)
                    return cast(Nonlin, new.op).vectors[0]
        return new

    return rewritten(outputs, context, change)


def _tail(bound: float, size: Size, width: float) -> float:
    """About −log P(|u| > bound) for u = fixed + √variance N Π χ_width/√width, with
    factors − 1 of the χ.
    """
    left = bound - size.fixed
    if left <= 0:
        return 0.0
    if size.variance == 0:
        return math.inf
    ratio = left / math.sqrt(size.variance)
    if ratio <= 1 or size.factors <= 1 or width == math.inf:
        return ratio * ratio / 2
    # large deviations: every χ/√m is r, at the cost m (r² − 1 − 2 log r)/2 each
    r = np.geomspace(1, ratio, 500)
    cost = (ratio / r ** (size.factors - 1)) ** 2 / 2 + (size.factors - 1) * width * (
        r**2 - 1 - 2 * np.log(r)
    ) / 2
    return float(cost.min())


def _size(value: Value, size: dict[Value, Size | None]) -> Size | None:
    vectors = [size[x] for x in value.op.inputs if isinstance(x, Vector)]
    found = [v for v in vectors if v is not None]
    if isinstance(value, Scalar) or len(found) < len(vectors):
        return None
    most = Size(*map(max, zip(*found, strict=True))) if found else Size(0.0, 0.0, 0)
    match value.op:
        case ops.Gaussian(_, mean, factor):
            return Size(
                float(np.abs(mean).max()),
                float((factor**2).sum(-1).max(initial=0.0)),
                1,
            )
        case ops.Data(given):
            return Size(float(np.abs(given).max()), 0.0, 0)
        case MatMul(weight):  # given x, W x is Gaussian with variance std² |x|²/in
            return Size(
                0.0,
                (std := most.fixed + math.sqrt(most.variance)) * std,
                most.factors + 1,
            ).times(weight.std)
        case Nonlin(f, _, ()):
            if f in WITHIN_ONE:
                return Size(1.0, 0.0, 0)
            contraction = (
                f in CONTRACTIONS
                or base(f) is CLIP
                or (base(f) is LEAKY_RELU and abs(f.parameters[0]) <= 1)
            )
            return most if contraction else None
        case ops.Add():
            total = sum(math.sqrt(v.variance) for v in found)
            return Size(sum(v.fixed for v in found), total * total, most.factors)
        case ops.Scale(Value(op=Constant(numbers))):
            return most.times(float(np.abs(numbers).max()))
        case Mix(Value(op=Constant(numbers))):
            return most.times(float(np.abs(numbers).sum(-1).max()))
        case Mix(Value(op=ops.Apply(f))) if f is SOFTMAX or f is MASKED_SOFTMAX:
            return most
        case Take() | ops.Join() | ops.Concat() | ops.Split():
            return most
    return None
