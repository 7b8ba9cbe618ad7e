"""Small rewrites of the graph. The docstring of each states the identity in law that
allows it.

A pass rewrites the program by a nested function `change(old, new)`, as `rewritten`
describes: `old` is a value of the program before the pass, `new` its copy on inputs
that are already rewritten, and the result replaces the value. Conditions on where a
value is used look at `old`, because users and outputs are known before the pass; what
replaces it is built from `new`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..._array_api import array_namespace
from ...functions import activations as known
from ...functions.activations import Function
from ...functions.derivatives import base
from ...language.operations import _operation as ops
from ...language.operations._operation import (
    Dot,
    MatMul,
    Mix,
    Nonlin,
    Root,
    Take,
)
from ...language.operations._readout import Readout, readouts
from ...language.operations._score import join, mean_dot
from ...language.values._array import Size, Value, largest_size
from ...language.values._graph import widths_of
from ...language.values._parameters import Weight
from ...language.values._scalar import MULTIPLY, Scalar, applied, constant
from ...language.values._vector import Vector, mix
from ...language.values._width import Width
from .._exceptions import ExactError
from ..graph._operations import Fuse
from ..graph._rewrite import Context, asked, key_of, linear_sources, rewritten, users_of
from ..linalg._gram_schmidt import LinalgBackend

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


def deduplicate_products(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Compute each product W x once, however often it occurs.

    Identity: equal products are equal on every draw, so that W x − W x is exactly 0,
    and W 0 is 0. W[[0, 0, 1]] x computes only W[[0, 1]] x. Lowering relies on this: the
    members of every weight are distinct.
    """
    products: dict[object, Value] = {}  # by key: see `key_of`
    # for vectors of which some are 0 at every width, which ones are
    zeros: dict[Value, Bools] = {}

    def change(old: Value, new: Value) -> Value:
        """The first product of several equal ones; other values stay."""
        result = new
        if isinstance(new.op, MatMul):
            key = key_of(new)
            if key not in products:
                products[key] = _product(new, new.op, zeros)
            result = products[key]
        if isinstance(new, Vector):
            is_zero = _zeros(new, zeros)
            if is_zero.any():
                zeros[new] = zeros[result] = is_zero
        return result

    return rewritten(outputs, context, change)


def _product(value: Value, op: MatMul, zeros: Mapping[Value, Bools]) -> Value:
    """W x by distinct members of W, and 0 where x is 0 at every width.

    `zeros` marks such vectors of some values.
    """
    members = op.weight.members
    product = value
    if len(set(members.ravel().tolist())) < members.size:
        product = _by_distinct_members(value, op.weight, op.x, op.each)
    if op.x in zeros:
        product = cast(Vector, product) * np.where(zeros[op.x], 0.0, 1.0)
    return product


def _zeros(value: Vector, known_zeros: Mapping[Value, Bools]) -> Bools:
    """Which vectors of a value are 0 at every width, (*shape,), given those of inputs.

    These are zero data and all that depends on them. () if there are none.
    """
    is_data = isinstance(value.op, ops.Data)
    if known_zeros.keys().isdisjoint(value.op.inputs) and not is_data:
        return np.zeros((), dtype=bool)
    zeros: dict[Value, Bools] = {}
    for x in value.op.inputs:
        zeros[x] = known_zeros.get(x, np.zeros(x.shape, dtype=bool))
    is_zero: Any = False
    match value.op:
        case ops.Data(vectors=vectors):
            is_zero = ~vectors.any(axis=-1)
        case Take(x=x, flat=flat):
            is_zero = zeros[x].ravel()[flat]
        case ops.Join(parts=parts):
            is_zero = np.concatenate([zeros[x] for x in parts])
        case MatMul(x=x) | ops.Scale(x=x):
            is_zero = zeros[x]
        case Nonlin(f=f, vectors=factors, scalars=()) if f is MULTIPLY:
            is_zero = functools.reduce(np.logical_or, [zeros[x] for x in factors])
        case Nonlin(f=f, vectors=(x,), scalars=()):
            maps_zero_to_zero = np.asarray(f(np.zeros(1)))[0] == 0
            is_zero = zeros[x] & maps_zero_to_zero
    return np.broadcast_to(is_zero, value.shape)


def _by_distinct_members(value: Value, weight: Weight, x: Vector, each: bool) -> Value:
    """W x of members that occur several times, from products of distinct members.

    If all members act on the same vectors, repeated members repeat their products. If
    each has its own vectors, there is a product with all first occurrences of members,
    one with all second occurrences, and so on: W[[0, 0, 1]] becomes W[[0, 1]], W[[0]].
    """
    members = weight.members.ravel()
    if not each:
        distinct, index = np.unique(members, return_inverse=True)
        products = replace(weight, members=distinct) @ x
        return products[index.ravel()].reshape(*value.shape)
    rows = x.reshape(len(members), -1)
    # how often the member at each position occurs before it
    occurrence = np.zeros(len(members), dtype=int)
    for k, member in enumerate(members):
        occurrence[k] = np.sum(members[:k] == member)
    results: list[Vector] = []
    positions_of_results: list[Ints] = []
    for round_number in range(occurrence.max() + 1):
        positions = np.flatnonzero(occurrence == round_number)
        distinct_members = replace(weight, members=members[positions])
        results.append(distinct_members.each(rows[positions]))
        positions_of_results.append(positions)
    in_order = np.argsort(np.concatenate(positions_of_results))
    return join(results)[in_order].reshape(*value.shape)


def commute_mix(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Combine vectors before a matrix acts on them: Σ_j a_ij W x_j = W Σ_j a_ij x_j.

    It applies if the products W x_j have no other use and are more than the results.
    For example, 8 heads have the values W^h x_j of s tokens, (8, s), and the attention
    of one query mixes those of each head into one vector, (8, 1). The 8 s products with
    matrices become 8.
    """
    users = users_of(context.ordered(outputs))

    def commutes(combined: Value, products: Vector) -> bool:
        """Whether combinations (*batch, …, i) of values (*batch, …, j) may commute.

        The values must be products with the matrices of a weight, one for each index of
        its `batch`, which commute with sums over vectors j, not with sums over
        matrices.
        """
        if not isinstance(products.op, MatMul):
            return False
        if users[products] != [combined] or products in outputs:
            return False
        if combined.size >= products.size:
            return False
        batch = products.op.weight.batch
        j_is_a_vector_axis = products.ndim > len(batch)
        no_new_axes = combined.ndim == products.ndim
        same_matrices = combined.shape[: len(batch)] == batch
        return j_is_a_vector_axis and no_new_axes and same_matrices

    def change(old: Value, new: Value) -> Value:
        """A combination of products as a product with combinations."""
        if not isinstance(old.op, Mix) or not commutes(old, old.op.x):
            return new
        product = _product_with_combinations(new)
        # its random numbers take the seeds of the products that it replaces
        context.origin[product] = context.origin[old.op.x]
        return product

    return rewritten(outputs, context, change)


def _product_with_combinations(combined: Value) -> Vector:
    """W Σ_j a_ij x_j for a value Σ_j a_ij W x_j, (*batch, …, i).

    x is (*batch, …, j) if each matrix has its own vectors, and (…, j) if all matrices
    act on the same ones.
    """
    assert isinstance(combined.op, Mix)
    products = combined.op.x
    assert isinstance(products.op, MatMul)
    weight = products.op.weight
    x = products.op.x
    if not products.op.each:
        x = x[(None,) * len(weight.batch)]  # add the batch axes, of size 1
    combinations = mix(combined.op.a, x).broadcast_to(combined.shape)
    return weight.each(combinations)


def fuse_sources(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Sample linear combinations of Gaussian vectors directly, if that needs fewer.

    Identity: given its coefficients, a linear combination of independent Gaussian
    vectors is Gaussian. So a value whose sources (such as a product and a bias) have no
    other use needs one source for each of its vectors.
    """
    values = context.ordered(outputs)
    sources_of = linear_sources(values)
    # vectors whose products or coordinates an operation needs, as an ordered set
    needed: dict[Value, None] = {}
    for value in values:
        needed |= dict.fromkeys(asked(value))
    # how many of these vectors, and of the outputs, contain each source
    uses: Counter[Value] = Counter()
    for x in needed | dict.fromkeys(outputs):
        uses.update(sources_of.get(x, ()))

    def is_gaussian_without_other_use(source: Value) -> bool:
        """Whether a source can be merged into the only vector that contains it."""
        return uses[source] == 1 and isinstance(source.op, ops.Gaussian | MatMul)

    def change(old: Value, new: Value) -> Value:
        """A `Fuse` of a combination that needs fewer numbers than its sources."""
        if old not in needed or old in outputs:
            return new
        sources = sources_of[old]
        if old in sources:
            return new
        if not all(is_gaussian_without_other_use(source) for source in sources):
            return new
        # a concatenation needs more than each of its parts
        numbers_of_sources = sum(_numbers(source) for source in sources)
        if _numbers(old) >= numbers_of_sources:
            return new
        return replace(new, op=Fuse(cast(Vector, new)))

    return rewritten(outputs, context, change)


def _numbers(x: Value) -> int:
    """How many numbers sources for these vectors need, per unit of the width."""
    assert isinstance(x, Vector)
    return x.size * x.width.factor


def vanishing_ratio(op: Root, bound: Mapping[str, float]) -> tuple[Width, float] | None:
    """For a ratio √(n/m) = c m^(−1/2) of finite n and infinite m, the pair (m, c).

    None for all other ratios. n (`op.over`) and m (`op.under`) may be products of
    widths; `bound` has the number of each symbol.
    """

    def is_infinite(width: Width) -> bool:
        return math.isinf(width.bind(bound))

    infinite_over = [width for width in op.over if is_infinite(width)]
    infinite_under = [width for width in op.under if is_infinite(width)]
    if infinite_over or len(infinite_under) != 1:
        return None
    m = infinite_under[0]
    finite_under = tuple([width for width in op.under if width is not m])
    c = Root(op.over, finite_under).of(bound)
    return m, c


def bind_hyperparameters(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace hyperparameters by their numbers.

    If no numbers are known, hyperparameters stay: they are given when the plan runs.
    """
    if not context.numbers:
        return list(outputs)

    def change(old: Value, new: Value) -> Value:
        """The number of a hyperparameter; other values stay."""
        if isinstance(new.op, ops.Hyperparameter):
            return constant(np.asarray(context.numbers[new.op.name]))
        return new

    return rewritten(outputs, context, change)


def bind_width_ratios(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace ratios of widths √(n/m) by numbers.

    A ratio that vanishes like n^(−1/2) stays, since a score may depend on it. One that
    is infinite, unknown or vanishes otherwise is an error.
    """

    def change(old: Value, new: Value) -> Value:
        """The number of a ratio of widths; other values stay."""
        if not isinstance(new.op, Root):
            return new
        ratio = new.op.of(context.bound)
        if vanishing_ratio(new.op, context.bound) is not None:
            return new
        if 0 < ratio < math.inf:
            return constant(np.asarray(ratio))
        if math.isnan(ratio):
            problem = "is not given"
        elif ratio == 0:
            problem = "vanishes"
        else:
            problem = "is infinite"
        raise ExactError(
            new,
            f"a gradient in units of {new.op}, which {problem} at these widths",
            instead=(
                "bind these widths to numbers, write them as multiples of one"
                " symbol, or take the gradient of a score (ns.dot) instead of that"
                ' of a mean, and the tangent kernel with parametrisation="ntk"'
            ),
        )

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
    the dot, and only the dot uses the product W z; a mean needs a finite width. W is
    fresh because no other product uses it: the pass "reuse" has run before.
    """
    users = users_of(context.ordered(outputs))

    def is_free(x: Vector, q: Vector) -> bool:
        """Whether x is W z for a fresh W, and only one value, a dot with q, uses it.

        Each matrix of a batch must also meet its own q.
        """
        is_used_once = x not in outputs and len(users[x]) == 1
        return is_used_once and _is_product_in_batch_of(x, q)

    def change(old: Value, new: Value) -> Value:
        """Replace a dot that is an output by a coordinate of vectors, if possible.

        Entries of a dot that was replaced are entries of these vectors; other values
        stay.
        """
        if not isinstance(old.op, Dot) or not _is_output(old, users):
            return _entries_of_coordinates(old, new)
        assert isinstance(new.op, Dot)
        size = _size_of_coordinate(old.op, context)
        if size is None:
            return new
        x_is_free = is_free(old.op.x, old.op.y)
        y_is_free = is_free(old.op.y, old.op.x)
        return _as_coordinate(new, new.op, size, x_is_free, y_is_free)

    return rewritten(outputs, context, change)


def _size_of_coordinate(op: Dot, context: Context) -> float | None:
    """The factor of the coordinate that replaces a dot; None if the dot stays."""
    if op.is_score:
        return 1.0
    width = context.width(op.x)
    if width == np.inf:  # the limit of a mean is a number
        return None
    return float(width**-0.5)


def _as_coordinate(
    dot: Value, op: Dot, size: float, x_is_free: bool, y_is_free: bool
) -> Value:
    """The dot as `size` times a coordinate of a factor that is free.

    The other factor is conditioned on; if both are free, the one with fewer vectors.
    If none is free, the dot stays.
    """
    x = op.x
    y = op.y
    if y_is_free and (not x_is_free or x.size <= y.size):
        return _coordinate(y, x, size, turned=True).reshape(dot.shape)
    if x_is_free:
        return _coordinate(x, y, size, turned=False).reshape(dot.shape)
    return dot


def _is_product_in_batch_of(x: Vector, q: Vector) -> bool:
    """Whether x is W z, other than q, where q has the batch axes of W.

    Then each matrix meets the vectors q with the same index.
    """
    if not isinstance(x.op, MatMul) or x is q:
        return False
    return x.shape[:-1] == q.shape[:-1] == x.op.weight.batch


# Most entries of the readouts of a program: each is Gaussian, with as many coefficients
# as there are entries
MAX_READOUT_ENTRIES = 1024


def products_for_readouts(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Turn readouts by initial vectors that are outputs into coordinates of products,
    which are never sampled.

    n^(−1/2) ⟨r_i, y_j⟩ has the law of Σ_k F_ik (W^k y_j)_1 if r_i = Σ_k F_ik E_k is
    used for nothing else: see `_readout` in the language. One more matrix of the
    program then acts on y, as in a readout W y. `condition_scores` needs fewer numbers
    if y itself is a product that has no other use.
    """
    readout_of = _readouts_to_replace(outputs, context)
    entries = sum(score.size for score in readout_of)
    if not readout_of or entries > MAX_READOUT_ENTRIES:
        return list(outputs)
    # a new matrix for each initial vector
    matrices: dict[ops.Source, ops.Source] = {}
    for readout in readout_of.values():
        name = readout.source.name or "readout"
        matrices[readout.source] = ops.Source(name)

    def change(old: Value, new: Value) -> Value:
        """Replace a readout by coordinates of products; other values stay."""
        if old in readout_of:
            readout = readout_of[old]
            assert isinstance(new.op, Dot)
            y = new.op.x if readout.turned else new.op.y
            # (…, vectors y, vectors r)
            coordinates = _read_out(y, readout.factor, matrices[readout.source])
            return coordinates if readout.turned else _last_axes_swapped(coordinates)
        return _entries_of_coordinates(old, new)

    return rewritten(outputs, context, change)


def _readouts_to_replace(
    outputs: Sequence[Value], context: Context
) -> dict[Value, Readout]:
    """The scores that `products_for_readouts` replaces, and how each is a readout.

    They are outputs, and need a matrix for each column of their factor.
    """
    values = context.ordered(outputs)
    users = users_of(values)
    products = [value for value in values if isinstance(value.op, ops.Acting)]
    times_used = Counter(_matrix_of(product) for product in products)

    def is_product_without_other_use(x: Value) -> bool:
        """Whether x is the only product of a matrix, and only this score uses it."""
        if not isinstance(x.op, MatMul):
            return False
        return times_used[_matrix_of(x)] == 1 and len(users[x]) == 1

    def is_returned(score: Value) -> bool:
        """Whether a score is an output that coordinates of products can replace."""
        if any(is_product_without_other_use(x) for x in score.op.inputs):
            return False  # `condition_scores` needs fewer numbers
        return _is_output(score, users)

    candidates = readouts(values, outputs, is_returned)
    without_columns = set[ops.Source]()
    for readout in candidates.values():
        if _columns_of(readout.factor) is None:
            without_columns.add(readout.source)
    return {
        score: readout
        for score, readout in candidates.items()
        if readout.source not in without_columns
    }


def _matrix_of(product: Value) -> ops.Source:
    """The weight that a product is made with."""
    assert isinstance(product.op, ops.Acting)
    return product.op.weight.source


def _entries_of_coordinates(old: Value, new: Value) -> Value:
    """The entries of a score that has become a coordinate of vectors, as vectors.

    `old` is a value, `new` its copy on rewritten inputs; all other values stay.
    """
    match new.op:
        case Take(x=Vector() as x, flat=flat) if isinstance(old, Scalar):
            return Vector(Take(x, flat), old.shape, x.width)
    return new


def _columns_of(factor: npt.NDArray[np.float64]) -> npt.NDArray[np.intp] | None:
    """For each b, the columns k with factor[b, i, k] ≠ 0 for some i, (…, columns).

    b stands for all leading axes. None if two b share a column, or if they have unequal
    numbers of columns. For example, a factor of two b with one i each, [[[2, 3, 0, 0]],
    [[0, 0, 1, 1]]], has the columns [[0, 1], [2, 3]].
    """
    is_used = factor.any(axis=-2)  # (…, k)
    *leading, count = is_used.shape
    uses_of_column = is_used.reshape(-1, count).sum(axis=0)
    is_shared = uses_of_column > 1
    columns_of_each = is_used.sum(axis=-1)
    fewest = columns_of_each.min()
    most = columns_of_each.max()
    if is_shared.any() or fewest == 0 or fewest < most:
        return None
    *_, columns = np.nonzero(is_used)
    return np.asarray(columns.reshape(*leading, -1), dtype=np.intp)


def _read_out(y: Vector, factor: npt.NDArray[np.float64], source: ops.Source) -> Vector:
    """Vectors Σ_k factor[b, i, k] W^k y[b, j], (b, j, i).

    `source` is a weight with a matrix W^k for each column of the factor.
    """
    columns = _columns_of(factor)
    assert columns is not None
    matrices = Weight(
        source=source,
        in_width=y.width,
        out_width=y.width,
        std=1.0,
        members=columns,
        count=factor.shape[-1],
        fan=y.width,
    )
    # the coefficients other than 0, (b, i, columns)
    coefficients = np.take_along_axis(factor, columns[..., None, :], axis=-1)
    batch = np.broadcast_shapes(columns.shape[:-1], y.shape[:-1])
    count = columns.shape[-1]
    # the products W^k y[b, j], (b, j, columns)
    if columns[..., 0].size == 1:  # all b have the same matrices
        products = replace(matrices, members=columns.ravel()) @ y  # (columns, b, j)
        by_vector = products.transpose(*range(1, products.ndim), 0)
    else:
        members = np.broadcast_to(columns, (*batch, count))
        repeated = y[..., None, :].broadcast_to((*batch, count, y.shape[-1]))
        products = replace(matrices, members=members).each(repeated)  # (b, columns, j)
        by_vector = _last_axes_swapped(products)
    return mix(constant(coefficients[..., None, :, :]), by_vector)


def _last_axes_swapped(x: Vector) -> Vector:
    """From (…, i, j) to (…, j, i)."""
    return x.transpose(*range(x.ndim - 2), -1, -2)


def _is_output(value: Value, users: Mapping[Value, Sequence[Value]]) -> bool:
    """Whether only outputs use a value, or entries of it."""
    return all(
        isinstance(user.op, Take) and _is_output(user, users)
        for user in users.get(value, ())
    )


def _coordinate(x: Vector, q: Vector, size: float, turned: bool) -> Vector:
    """Vectors whose coordinates have the law of size · ⟨x, q⟩/√n given q, for x = W z.

    See `condition_scores`. From x (…, i) and q (…, j) to (…, i, j), or to (…, j, i) if
    `turned`.
    """
    assert isinstance(x.op, MatMul)
    weight = x.op.weight
    z = x.op.x
    count = q.shape[-1]
    gram = mean_dot(q, q)
    root = applied(ROOT, (gram,), (*q.shape, count), axes=2) * size
    if count == 1:
        return root[..., 0] * x
    copies = replace(
        weight,
        source=ops.Source(weight.source.name),
        members=np.arange(weight.members.size * count).reshape(*weight.batch, count),
        count=weight.members.size * count,
    )
    if x.op.each:
        shape = (*weight.batch, count, z.shape[-1])
        repeated = z[..., None, :].broadcast_to(shape)
        products = copies.each(repeated)
    else:
        products = copies @ z
    by_vector = _last_axes_swapped(products)  # from (…, count, i) to (…, i, count)
    coordinates = mix(root[..., None, :, :], by_vector)  # (…, i, j)
    return _last_axes_swapped(coordinates) if turned else coordinates


# −log of a probability: an event of probability e^−70 (4e-31) does not occur
NEVER = 70.0

# Known functions are matched by identity: a user's function of the same name is a
# different function.

# Functions with |φ(x)| ≤ |x|
CONTRACTIONS = (
    known.IDENTITY,
    known.RELU,
    known.ABS,
    known.TANH,
    known.SIN,
    known.SILU,
    known.GELU,
)

# Families of functions, for any bound or slope
CLIP, LEAKY_RELU = base(known.clip(1.0)), base(known.leaky_relu(0.5))

# Functions with |φ| ≤ 1
WITHIN_ONE = (known.ERF, known.SIGMOID, known.COS)


def drop_identities(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Remove activations with φ(x) = x on every draw that can occur in practice.

    These are the identity, and a clip at C if P(|u| > C) < e^(−70), by the bound
    √variance · N · Π χ_m/√m. Coordinates of data are bounded by the largest one.
    """
    values = context.ordered(outputs)
    if not any(_may_be_identity(value) for value in values):
        return list(outputs)
    widths = [width.bind(context.bound) for width in widths_of(values)]
    smallest_width = min(widths, default=math.inf)
    # bounds on the coordinates of values so far
    sizes: dict[Value, Size | None] = {}

    def change(old: Value, new: Value) -> Value:
        """The argument of an activation that has no effect; other values stay."""
        sizes[old] = _size(old, sizes)
        match old.op:
            case Nonlin(f=f, vectors=(_,), scalars=()) if f is known.IDENTITY:
                return cast(Nonlin, new.op).vectors[0]
            case Nonlin(f=f, vectors=(x,), scalars=()) if base(f) is CLIP:
                size = sizes[x]
                if size is None:  # no bound on the coordinates is known
                    return new
                clip_bound = f.parameters[0]
                exponent = _tail(clip_bound, size, smallest_width)
                if exponent > NEVER:
                    _note_that_clip_is_identity(context, clip_bound, exponent)
                    return cast(Nonlin, new.op).vectors[0]
        return new

    return rewritten(outputs, context, change)


def _may_be_identity(value: Value) -> bool:
    """Whether a value is an activation that is the identity, or a clip."""
    if not isinstance(value.op, Nonlin):
        return False
    f = value.op.f
    return f is known.IDENTITY or base(f) is CLIP


def _note_that_clip_is_identity(
    context: Context, bound: float, exponent: float
) -> None:
    """Note, once, that a clip has no effect, and with which probability it has."""
    probability = "0" if exponent == math.inf else f"e^-{exponent:.0f}"
    note = (
        f"clip at {bound:g} acts as the identity: it clips with probability"
        f" {probability}"
    )
    if note not in context.notes:
        context.notes.append(note)


def _tail(bound: float, size: Size, width: float) -> float:
    """About −log P(|u| > bound), for a coordinate u with the bound `size`.

    That is |u| ≤ fixed + √variance |N| Π χ_width/√width, with a standard normal N and
    `factors` − 1 of the χ.
    """
    room = bound - size.fixed
    if room <= 0:
        return 0.0
    if size.variance == 0:
        return math.inf
    ratio = room / math.sqrt(size.variance)
    chis = size.factors - 1
    if ratio <= 1 or chis <= 0 or width == math.inf:
        return ratio * ratio / 2
    # large deviations: every χ/√m is r, at the cost m (r² − 1 − 2 log r)/2 each, and N
    # is what then remains; the r with the least total cost is the likely one
    r = np.geomspace(1, ratio, 500)
    cost_of_normal = (ratio / r**chis) ** 2 / 2
    cost_of_chis = chis * width * (r**2 - 1 - 2 * np.log(r)) / 2
    total_cost = cost_of_normal + cost_of_chis
    return float(total_cost.min())


def _size(value: Value, sizes: Mapping[Value, Size | None]) -> Size | None:
    """A bound on the coordinates of vectors, given those of the inputs.

    None if no bound is known, and for scalars.
    """
    if isinstance(value, Scalar):
        return None
    inputs: list[Size] = []
    for x in value.op.inputs:
        if isinstance(x, Vector):
            size = sizes[x]
            if size is None:
                return None
            inputs.append(size)
    if isinstance(value.op, Nonlin):
        return _size_of_function(value.op, inputs)
    return value.op.size(inputs)


def _size_of_function(op: Nonlin, inputs: Sequence[Size]) -> Size | None:
    """A bound on a function of coordinates with bounds `inputs`; None if unknown."""
    if op.scalars:
        return None
    if op.f in WITHIN_ONE:
        return Size(fixed=1.0, variance=0.0, factors=0)
    return largest_size(inputs) if _is_contraction(op.f) else None


def _is_contraction(f: Function) -> bool:
    """Whether |φ(x)| ≤ |x|."""
    if f in CONTRACTIONS or base(f) is CLIP:
        return True
    return base(f) is LEAKY_RELU and abs(f.parameters[0]) <= 1
