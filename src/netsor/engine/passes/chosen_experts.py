"""Computes only the experts that tokens choose.

In a mixture of experts y_t = Σ_e γ_te W_e h_e(x_t), most gates γ_te are 0. Identity:
the hidden vectors of an expert are functions of products V_e x_t. Given the tokens and
the gates, the products of the tokens that chose expert e are C_e E with fresh E and
C_e C_e^T = σ² G_e, for the Gram matrix G_e of these tokens alone (equation 5 of
docs/theory.md). The products of other tokens are multiplied by 0. So with k experts per
token, k vectors of each token are sampled in place of one for every expert. Given the
hidden vectors, y is Gaussian with the Gram matrix

    K_tt' = σ² Σ_e γ_te γ_t'e ⟨h_e(x_t), h_e(x_t')⟩ / n.

It applies if matrices of experts have no other use. In a backward pass they act again,
on directions for which the products of all tokens are needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from ..._array_api import Array, Floats, symmetric_root
from ...functions.activations import Function
from ...language.operations._operation import Acting, Concat, MatMul, Split
from ...language.operations._score import mean_dot
from ...language.values._array import Samples, Source, Take, Value
from ...language.values._parameters import gaussian, normal
from ...language.values._scalar import Apply, Constant, Scalar, applied
from ...language.values._vector import Add, Nonlin, Scale, Vector, mix
from ..graph._rewrite import Context, rewritten, users_of

# experts for each chosen one, at least, where choosing costs less than computing all
LEAST_RATIO = 2
TRIALS = 4  # of the gates, to count how many are not 0


def compute_chosen_experts(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Sample the hidden vectors of the experts that each token chooses, and no others.

    Only on a CPU: tokens that share an expert are a set of another size in each
    replica, for which accelerators have no product.
    """
    if not context.prices.ragged:
        return list(outputs)
    values = context.ordered(outputs)
    if not any(isinstance(value.op, Concat) for value in values):
        return list(outputs)
    uses = Uses.of(values, outputs)

    def change(old: Value, new: Value) -> Value:
        """The output of a mixture of experts from the chosen ones."""
        mixture = _mixture_of(old)
        if mixture is None or not uses.are_inside(mixture, old):
            return new
        chosen = _worthwhile_choice(mixture, old, context)
        if chosen is None:
            return new
        renewed = _mixture_of(new)
        assert renewed is not None
        return _from_chosen(new, renewed, chosen, context.bound)

    return rewritten(outputs, context, change)


def _worthwhile_choice(mixture: Mixture, output: Value, context: Context) -> int | None:
    """The number of experts of a token, if sampling only these costs less."""
    if not all(math.isfinite(context.width(x)) for x in mixture.vectors(output)):
        return None
    chosen = _chosen_experts(mixture.gates)
    experts = mixture.gates.shape[0]
    if chosen is None or LEAST_RATIO * chosen > experts:
        return None
    return chosen


@dataclass(frozen=True)
class Uses:
    """Where a program uses values and matrices.

    Attributes
    ----------
    outputs : frozenset of Value
        What the program returns.
    readers : mapping
        The values that are computed from each value.
    actions : Counter
        How many products each matrix, by its source, is in.
    """

    outputs: frozenset[Value]
    readers: Mapping[Value, Sequence[Value]]
    actions: Counter[Any]

    @classmethod
    def of(cls, values: Sequence[Value], outputs: Sequence[Value]) -> Uses:
        """The uses in a program with these values and outputs."""
        return cls(frozenset(outputs), users_of(values), Counter(_matrices(values)))

    def are_inside(self, mixture: Mixture, output: Value) -> bool:
        """Whether nothing else needs values of a mixture, or its matrices."""
        inside = {*mixture.inner, output}
        readers = [user for value in mixture.inner for user in self.readers[value]]
        return (
            inside.issuperset(readers)
            and inside.isdisjoint(self.outputs - {output})
            and all(self.actions[matrix] == 1 for matrix in _matrices(inside))
        )


def _matrices(values: Iterable[Value]) -> list[Any]:
    """The sources of the matrices that act in these values, once for each product."""
    operations = [value.op for value in values]
    return [op.weight.source for op in operations if isinstance(op, Acting)]


# The mixture in the graph


class Step(NamedTuple):
    """One step from the products of an expert to its hidden vector."""

    inputs: tuple[int, ...] = ()  # earlier steps
    product: int | None = None  # the number of a product
    f: Function | None = None  # of coordinates; without it, the sum of the inputs
    part: tuple[int, int] | None = None  # which of so many equal parts of coordinates


@dataclass
class Mixture:
    """Σ_e γ_te W_e h_e(x_t), as `_mixture_of` finds it in a graph."""

    gates: Scalar  # (experts, tokens)
    tokens: Vector | None = None  # x
    products: tuple[Value, ...] = ()  # V_e x_t, (experts, tokens)
    steps: tuple[Step, ...] = ()  # from the products to the hidden vectors
    inner: tuple[Value, ...] = ()  # values that only the mixture needs

    def vectors(self, output: Value) -> list[Value]:
        """The vectors whose widths have to be finite."""
        assert self.tokens is not None
        return [output, self.tokens, *self.products]


def _mixture_of(value: Value) -> Mixture | None:
    """The mixture of experts that a product with their last matrices is, if any."""
    # one product with the last matrices W_e side by side, of the γ_te h_e(x_t) of all
    # experts end to end
    if not isinstance(value.op, MatMul):
        return None
    weight = value.op.weight
    joined = value.op.x
    if weight.batch or weight.transposed or not isinstance(joined.op, Concat):
        return None
    inner: list[Value] = [joined]

    # the concatenated vectors may be a rearrangement of others; `positions` says of
    # which ones
    x = joined.op.x
    positions = np.arange(x.size).reshape(x.shape)
    while isinstance(x.op, Take):
        inner.append(x)
        positions = x.op.flat.reshape(-1)[positions]
        x = cast(Vector, x.op.x)

    # these others are γ_te h_e(x_t), (experts, tokens)
    if not isinstance(x.op, Scale) or x.ndim < 2 or x.op.c.shape != x.shape:
        return None
    gates = x.op.c
    hidden = x.op.x
    experts = x.shape[0]
    experts_first = np.moveaxis(positions, joined.op.axis, 0)
    if not np.array_equal(experts_first.ravel(), np.arange(x.size)):
        return None
    inner.append(x)

    mixture = Mixture(gates.reshape(experts, -1))
    numbers: dict[Value, int] = {}
    if not _read_hidden(hidden, mixture, numbers, x.shape):
        return None
    mixture.inner = (*inner, *mixture.inner, *numbers)
    return mixture


def _read_hidden(
    value: Value, mixture: Mixture, numbers: dict[Value, int], shape: tuple[int, ...]
) -> bool:
    """Add the steps to a hidden vector, and the numbers of their values; False if they
    are not functions of coordinates of products of all tokens with each expert.
    """
    if value in numbers:
        return True
    if value.shape != shape:
        return False
    read = _step_to(value, mixture, shape)
    if read is None:
        return False
    step, inputs = read
    if not all(_read_hidden(x, mixture, numbers, shape) for x in inputs):
        return False
    numbers[value] = len(mixture.steps)
    step = step._replace(inputs=tuple(numbers[x] for x in inputs))
    mixture.steps = (*mixture.steps, step)
    return True


def _step_to(
    value: Value, mixture: Mixture, shape: tuple[int, ...]
) -> tuple[Step, tuple[Value, ...]] | None:
    """The step that computes a value, and the values that it reads; None if it is no
    function of coordinates. Products and values in between are added to the mixture.
    """
    match value.op:
        case MatMul():
            return _step_of_product(value, mixture, shape)
        case Nonlin(f=f, scalars=()):
            return Step(f=f), value.op.inputs
        case Add():
            return Step(), value.op.inputs
        case Take(x=x, flat=flat) if isinstance(x.op, Split):
            part = _part_of(x, flat)
            if part is None:
                return None
            mixture.inner = (*mixture.inner, x)
            return Step(part=part), (x.op.x,)
    return None


def _step_of_product(
    value: Value, mixture: Mixture, shape: tuple[int, ...]
) -> tuple[Step, tuple[Value, ...]] | None:
    """The step of V_e x_t, added to the mixture; None if it is no product of the same
    tokens with a matrix for each expert.
    """
    assert isinstance(value.op, MatMul)
    weight = value.op.weight
    x = value.op.x
    if value.op.each or weight.batch != shape[:1] or weight.transposed:
        return None
    if mixture.tokens not in (None, x) or x.shape != shape[1:]:
        return None
    mixture.tokens = x
    step = Step(product=len(mixture.products))
    mixture.products = (*mixture.products, value)
    return step, ()


def _part_of(split: Value, flat: Any) -> tuple[int, int] | None:
    """Which part of coordinates an index takes from a `Split` along a last axis."""
    assert isinstance(split.op, Split)
    count = split.op.count
    if split.op.axis != split.ndim - 1:
        return None
    positions = flat.reshape(-1)
    first = int(positions[0])
    if not np.array_equal(positions, first + count * np.arange(positions.size)):
        return None
    return first, count


def _chosen_experts(gates: Scalar) -> int | None:
    """The number of experts whose gates are not 0, if it is the same for all tokens.

    Random numbers stand for the scalars that the gates are functions of. The functions
    check the number again whenever they are computed.
    """
    counts = set()
    for trial in range(TRIALS):
        samples = _Trial(np.random.default_rng(trial))
        try:
            with np.errstate(all="ignore"):
                numbers = samples[gates]
        except Exception:
            # a user's function may raise anything for numbers that it never gets
            return None
        if np.isnan(numbers).any():  # or return NaN, which says nothing about gates
            return None
        counts |= set(np.count_nonzero(numbers[0], axis=0).tolist())
    return counts.pop() if len(counts) == 1 else None


class _Trial(Samples):
    """One replica of some scalars, to try functions on.

    Functions of scalars are computed. All other scalars, such as scores, are random
    numbers of no particular law.
    """

    widths: Mapping[str, float] = {}

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.known: dict[Value, Floats] = {}

    def __getitem__(self, x: Value) -> Floats:
        """The numbers of a scalar, (1, *shape)."""
        if x not in self.known:
            if isinstance(x.op, Apply | Take | Constant):
                self.known[x] = np.asarray(x.op.sample(x, self))
            else:
                self.known[x] = self.rng.standard_normal((1, *x.shape))
        return self.known[x]

    def align_axes(self, x: Value, ndim: int) -> Floats:
        """The same with axes of size 1 in front."""
        array = self[x]
        return array.reshape(len(array), *(1,) * (ndim - x.ndim), *x.shape)

    def normals(self, source: Source, member: int, *shape: int) -> Floats:
        """Standard normals, which no function of scalars asks for."""
        return self.rng.standard_normal((1, *shape))


# The mixture from chosen experts


def _from_chosen(
    output: Value, mixture: Mixture, chosen: int, bound: Mapping[str, float]
) -> Value:
    """The output of a mixture, from a root of its Gram matrix."""
    assert isinstance(output, Vector)
    assert isinstance(output.op, MatMul)
    assert mixture.tokens is not None
    x = mixture.tokens.reshape(-1)
    widths: list[int] = []
    gains: list[float] = []
    for product in mixture.products:
        assert isinstance(product, Vector)
        assert isinstance(product.op, MatMul)
        widths.append(int(product.width.bind(bound)))
        gains.append(product.op.weight.gain(bound))
    experts, tokens = mixture.gates.shape
    root = ChosenExperts(
        steps=mixture.steps,
        widths=tuple(widths),
        gains=tuple(gains),
        output_gain=output.op.weight.gain(bound) / math.sqrt(experts),
    )
    f = Function("chosen experts", root, bounded=False, lipschitz=False)
    normals = normal((chosen * tokens, sum(widths)), name="chosen experts")
    arguments = (mean_dot(x, x), mixture.gates, normals)
    roots = applied(f, arguments, (tokens, tokens), axes=2)
    sources = gaussian(output.width, tokens, name="sum of chosen experts")
    return mix(roots, sources).reshape(*output.shape)


@dataclass(frozen=True)
class ChosenExperts:
    """A root of the Gram matrix of y_t = Σ_e γ_te W_e h_e(x_t), in numpy.

    Attributes
    ----------
    steps : tuple of Step
        From the products of an expert to its hidden vector.
    widths, gains : tuple
        The width of each product, and the ratio of the root mean squares of V x and x.
    output_gain : float
        The ratio of those of y and γ h.
    """

    steps: tuple[Step, ...]
    widths: tuple[int, ...]
    gains: tuple[float, ...]
    output_gain: float

    def __call__(self, gram: Array, gates: Array, normals: Array) -> Array:
        """The root (…, tokens, tokens).

        The Gram matrices of tokens are (…, tokens, tokens), the gates (…, experts,
        tokens), and there is a row of normals (…, rows, widths) for each pair of a
        token and a chosen expert.
        """
        arrays = [np.asarray(x, dtype=np.float64) for x in (gram, gates, normals)]
        shape = np.broadcast_shapes(*[array.shape[:-2] for array in arrays])
        replicas = math.prod(shape)

        def by_replica(array: Floats) -> Floats:
            """From (…, ·, ·) to (replicas, ·, ·)."""
            matrix = array.shape[-2:]
            return np.broadcast_to(array, (*shape, *matrix)).reshape(replicas, *matrix)

        all_grams = by_replica(arrays[0])
        all_gates = by_replica(arrays[1])
        all_normals = by_replica(arrays[2])

        # the Gram matrix of the γ_te h_e(x_t), summed over the experts e
        tokens = gram.shape[-1]
        total = np.zeros((replicas, tokens, tokens))
        is_zero = np.diagonal(all_grams, axis1=1, axis2=2) == 0
        for group in _groups(all_gates, is_zero, limit=all_normals.shape[1]):
            h = self._hidden(group, all_grams, all_normals)
            gates_of_sets = all_gates[
                group.replica[:, None], group.expert[:, None], group.token
            ]
            h *= gates_of_sets[..., None]
            products = h @ np.swapaxes(h, -1, -2) / h.shape[-1]
            # the same pair of tokens may have several experts in common
            np.add.at(total, group.pairs_of_tokens(), products)
        roots = self.output_gain * symmetric_root(total)
        return roots.reshape(*shape, tokens, tokens).astype(gram.dtype, copy=False)

    def _hidden(self, group: Group, grams: Floats, normals: Floats) -> Floats:
        """The hidden vectors of sets of tokens, (sets, tokens of each, width).

        `grams` (replicas, tokens, tokens) and `normals` (replicas, rows, widths) are
        those of `__call__`.
        """
        # products V_e x_t of the tokens of a set have their Gram matrix as covariance
        root = symmetric_root(grams[group.pairs_of_tokens()])
        all_products = root @ normals[group.replica[:, None], group.row]
        ends = np.cumsum(self.widths)
        products = np.split(all_products, ends[:-1], axis=-1)
        results: list[Floats] = []
        for step in self.steps:
            inputs = [results[k] for k in step.inputs]
            if step.product is not None:
                result = self.gains[step.product] * products[step.product]
            elif step.f is not None:
                result = np.asarray(step.f(*inputs))
            elif step.part is not None:
                number, count = step.part
                result = np.split(inputs[0], count, axis=-1)[number]
            else:
                result = sum(inputs[1:], start=inputs[0])
            results.append(result)
        return np.array(results[-1])


class Group(NamedTuple):
    """Sets of equally many tokens that chose the same expert, in some replica."""

    replica: Any  # (sets,)
    expert: Any  # (sets,)
    token: Any  # (sets, tokens of each)
    row: Any  # the numbers of these pairs of an expert and a token, of the same shape

    def pairs_of_tokens(self) -> tuple[Any, Any, Any]:
        """An index for arrays (replicas, tokens, tokens): all pairs of tokens of a set.

        What it selects has the shape (sets, tokens of each, tokens of each).
        """
        replica = self.replica[:, None, None]
        return replica, self.token[:, :, None], self.token[:, None, :]


def _groups(gates: Floats, is_zero: Any, limit: int) -> list[Group]:
    """The sets of tokens with gates other than 0, (replicas, experts, tokens), by size.

    There may be `limit` pairs of an expert and a token in a replica. Tokens that are 0,
    (replicas, tokens), are not counted: all experts are equal for them, and their
    products need no random numbers.
    """
    replica, expert, token = np.nonzero(gates)
    needs_row = ~is_zero[replica, token]
    needed = np.bincount(replica[needs_row], minlength=len(gates))
    if (needed > limit).any():
        raise ValueError(
            "some tokens choose more experts than others: their gates are equal"
        )
    # the pairs of each replica are numbered from 0, in this order
    in_earlier_replicas = np.cumsum(needed) - needed
    number = np.cumsum(needs_row) - 1 - in_earlier_replicas[replica]
    row = np.where(needs_row, number, 0)

    # the tokens of an expert in a replica are one set, of consecutive pairs
    sizes = np.count_nonzero(gates, axis=-1).ravel()
    starts = np.cumsum(sizes) - sizes
    groups = []
    for size in np.unique(sizes[sizes > 0]):
        sets = np.flatnonzero(sizes == size)
        pairs = starts[sets][:, None] + np.arange(size)
        first_pairs = pairs[:, 0]
        groups.append(
            Group(
                replica=replica[first_pairs],
                expert=expert[first_pairs],
                token=token[pairs],
                row=row[pairs],
            )
        )
    return groups
