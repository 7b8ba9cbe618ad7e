"""The gradients of the initial loss, per block and kind of weight, for an audit.

One backward pass gives the cotangents √n ∂L/∂x of the stream and of all matrix
products. If y_i = W x_i, then ∂L/∂W = Σ_i (∂L/∂y_i) x_i^T, so |∂L/∂W|² is a sum over
pairs of tokens of products of two Gram matrices. At n = ∞ the widths of the model turn
means into sums.

The gradient is that of the parameter, as in `W.grad` of PyTorch: i runs over all
products with W in the whole network. Blocks that share a parameter have the same
number. A parameter without gradient (`ns.stop_gradient`) has 0, or no number if that
holds in every block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ...functions.quantiles import Quantile
from ...language import Scalar, Value, Vector, apply, join, mean_dot, stack
from ...language.autodiff._grad import Reverse, Use
from ...language.autodiff._tangent_kernel import pooled
from ...language.operations._operation import Acting, Gaussian, MatMul, Nonlin
from ...language.values._array import Source
from ...language.values._graph import indexed_value, topological_order
from ...language.values._parameters import Weight
from ...language.values._scalar import constant
from ._loss_gradient import Loss
from ._metrics import of_pairs
from ._probed_program import KINDS, ProbedProgram

HEAD_NAMES = ("W^L", "head")  # names of the matrix of the logits, after the last block


class Owned(NamedTuple):
    """A parameter: matrices with the same entries.

    If several parameters start with the same entries, `owner` says whose these are.
    """

    source: Source
    owner: str | None


class Part(NamedTuple):
    """Some of the matrices of a parameter."""

    of: Owned
    members: tuple[int, ...]


class Size(NamedTuple):
    """The squared gradient of some matrices, and the mean of Σ |W|² over them."""

    square: Scalar
    mean_square_of_weights: float | Scalar


class Gradients:
    """Squared gradients of a loss.

    `rows` has a scalar for each block, whose entries are called `names`: the mean
    square of the gradient by the stream, and for each kind of matrix that of its
    weights, also relative to the weights themselves. `final` has those of embeddings
    and logits, called `final_names`.

    `widths` belong to the real model; `vocabulary` is the number of table rows.
    `copies`: blocks with the same matrices are copies, each with parameters of its own.
    """

    def __init__(
        self,
        net: ProbedProgram,
        loss: Loss,
        widths: Mapping[str, float],
        vocabulary: int | None = None,
        copies: bool = False,
    ) -> None:
        self.net, self.widths = net, widths
        # the block of each product, if blocks are copies
        self._copies: dict[Value, str] = {}
        if copies:
            for k, block in enumerate(net.matrices):
                self._copies |= dict.fromkeys(_flat(block.values()), f"block {k}")
        self.reached = set(topological_order([value for value, _ in loss.seeds]))
        tables = _embedding_tables(net) if vocabulary else []
        leaves = map(self._reshaped, (*net.starts, *net.streams, *tables))
        reached = [leaf for leaf in leaves if leaf in self.reached]
        self.back = Reverse(
            loss.seeds, reached, lambda op: True, constants=loss.constants
        )
        self.uses: dict[Owned, list[Use]] = {}
        for use in self.back.uses:
            self.uses.setdefault(self._owned(use.value), []).append(use)
        # Gram matrices whose products are |∂L/∂W|²
        self._known: dict[Part, tuple[Scalar, Scalar]] = {}
        self._make_rows(net)
        self._make_final(net, loss, tables, vocabulary or 0)

    def _make_rows(self, net: ProbedProgram) -> None:
        """Set the names and the rows of the blocks.

        Ratios to the mean of |W|² are left out for kinds with a zero matrix.
        """
        kinds = []
        for kind in KINDS:
            products = _flat(block.get(kind, ()) for block in net.matrices)
            if any(self._moves(product) for product in products):
                kinds.append(kind)
        sized = []
        for kind in kinds:
            sizes = [self._size(block.get(kind, ())) for block in net.matrices]
            if all(size != 0 for size in sizes):
                sized.append(kind)
        names = ["grad_mean_square"]
        for kind in kinds:
            names.append(f"grad_{kind}")
            if kind in sized:
                names.append(f"grad_{kind}_ratio")
        self.names = tuple(names)
        self.rows = []
        for stream, block in zip(net.streams, net.matrices, strict=True):
            row = stack([self._mean_square(stream)])
            if kinds:
                by_kind = {kind: block.get(kind, []) for kind in kinds}
                row = join([row, self._norms(by_kind, sized)])
            self.rows.append(row)

    def _make_final(
        self, net: ProbedProgram, loss: Loss, tables: Sequence[Vector], words: int
    ) -> None:
        """Set the names and the row of the ends of the network."""
        embedding = self._embedding(net, loss, tables, words)
        head = self._head(net, loss)
        final = {"grad_input": self._mean_square(net.starts[0])}
        for kind, size in (("embedding", embedding), ("head", head)):
            if size is None:
                continue
            final[f"grad_{kind}"] = size.square
            if size.mean_square_of_weights != 0:
                final[f"grad_{kind}_ratio"] = size.square / size.mean_square_of_weights
        self.final_names = tuple(final)
        self.final = stack(list(final.values()))

    def _embedding(
        self, net: ProbedProgram, loss: Loss, tables: Sequence[Vector], words: int
    ) -> Size | None:
        """The gradient of the matrices, or else of the tables, of the embeddings."""
        matrices = [value for value in net.values[0] if isinstance(value.op, MatMul)]
        if matrices:
            if not any(self._moves(product) for product in matrices):
                return None
            square = self._norms({"embedding": matrices})[0]
            return Size(square, self._size(matrices))
        moved = [
            table for table in tables if self.back.contributions(self._reshaped(table))
        ]
        if not moved:
            return None
        square = self._square(moved[0]).sum()
        for table in moved[1:]:
            square = square + self._square(table).sum()
        if loss.tied and loss.head is not None:
            square = square + loss.head
        size: float | Scalar = 0.0
        for table in moved:
            size = size + words * _variance(table) * table.width.bind(self.widths)
        return Size(square, size)

    def _head(self, net: ProbedProgram, loss: Loss) -> Size | None:
        """The gradient of the matrix of the logits."""
        if loss.head is not None and not loss.tied:
            return Size(loss.head, loss.head_size)
        inside = {value for value in net.values[0] if isinstance(value.op, MatMul)}
        for kinds in net.matrices:
            inside.update(_flat(kinds.values()))
        heads = []
        for uses in self.uses.values():
            for use in uses:
                name = use.op.weight.source.name
                if use.value not in inside and name in HEAD_NAMES:
                    heads.append(use.value)
        if not heads:
            return None
        return Size(self._norms({"head": heads})[0], self._size(heads))

    def _reshaped(self, x: Vector) -> Vector:
        """The vectors that x only reshapes, if the loss depends on them."""
        indexed = indexed_value(x, self.reached)
        if indexed is None:
            return x
        base, positions = indexed
        same_entries = np.array_equal(positions.ravel(), np.arange(base.size))
        return base if isinstance(base, Vector) and same_entries else x

    def _square(self, x: Vector) -> Scalar:
        """|√n ∂L/∂x|²/n = |∂L/∂x|² of each vector.

        A table with a scalar std uses the scaled vectors.
        """
        x = self._reshaped(x)
        if x not in self.reached:
            return constant(np.zeros(())).broadcast_to(x.shape)
        cotangent = self.back.cotangent(x)[..., None]
        square = mean_dot(cotangent, cotangent)[..., 0, 0]
        std = x.op.source.std_factor if isinstance(x.op, Gaussian) else None
        return square if std is None else square / (std * std)

    def _mean_square(self, x: Vector) -> Scalar:
        return self._square(x).mean() / x.width.bind(self.widths)

    def _norms(
        self, products: Mapping[str, Sequence[Value]], sized: Collection[str] = ()
    ) -> Scalar:
        """Σ |∂L/∂W|² over the matrices of each kind, from the products with them.

        For `sized` kinds its ratio to the mean of Σ |W|² follows.
        """
        grams: list[Scalar] = []
        # factors, and positions of the Gram matrices of cotangents
        sums: list[tuple[float, tuple[int, ...]]] = []
        scalar_sizes: list[Scalar | None] = []
        for kind, values in products.items():
            positions = []
            for part in self._parts(values):
                if part.of in self.uses:
                    positions.append(len(grams))
                    grams += self._grams(part)
            sums.append((1.0, tuple(positions)))
            scalar_sizes.append(None)
            if kind in sized:
                size = self._size(values)
                if isinstance(size, Scalar):
                    sums.append((1.0, tuple(positions)))
                    scalar_sizes.append(size)
                else:
                    sums.append((1 / size, tuple(positions)))
                    scalar_sizes.append(None)
        if not grams:
            return constant(np.zeros(len(sums)))
        norms = apply(
            partial(of_pairs, sums=tuple(sums)), *grams, axes=3, name="of_pairs"
        )
        if all(size is None for size in scalar_sizes):
            return norms
        denominators = [
            constant(np.ones(())) if size is None else size for size in scalar_sizes
        ]
        return norms / stack(denominators)

    def _grams(self, part: Part) -> tuple[Scalar, Scalar]:
        """Gram matrices (matrices, uses, uses) of l and r.

        ∂L/∂W = Σ l r^T over the uses of each matrix.
        """
        if part not in self._known:
            lefts, rights = [], []
            for use in self.uses[part.of]:
                factors = self._factors(use, part.members)
                if factors is not None:
                    lefts.append(factors[0])
                    rights.append(factors[1])
            left, right = pooled(lefts), pooled(rights)
            size = self.uses[part.of][0].op.weight.drawn.in_width.bind(self.widths)
            square = size * mean_dot(left, left)
            std = part.of.source.std_factor
            if std is not None:  # ∂L/∂(std·W) is ∂L/∂W over std
                square = square / (std * std)
            self._known[part] = square, mean_dot(right, right)
        return self._known[part]

    def _factors(
        self, use: Use, members: tuple[int, ...]
    ) -> tuple[Vector, Vector] | None:
        """√out l and r of one use for these matrices, (matrices or 1, vectors).

        None if the use has none of the matrices.
        """
        weight = use.op.weight
        weight_members = _members(weight)
        d = use.cotangent.reshape(len(weight_members), -1)
        x = use.op.x.reshape(len(weight_members) if use.op.each else 1, -1)
        if weight_members != members:
            common = [k for k, member in enumerate(weight_members) if member in members]
            if not common:
                return None
            # The part is one matrix, which may act several times: see `_parts`.
            d = d[common].reshape(1, -1)
            x = x[common] if use.op.each else x[[0] * len(common)]
            x = x.reshape(1, -1)
        if weight.transposed:  # y = W^T x: l is x, and r is ∂L/∂y
            in_width = weight.in_width.bind(self.widths)
            out_width = weight.out_width.bind(self.widths)
            left, right = math.sqrt(in_width / out_width) * x, d
        else:
            left, right = d, x
        # the factor of W in the product
        fan = weight.fan.bind(self.widths)
        factor = math.sqrt(weight.drawn.in_width.bind(self.widths) / fan)
        if factor != 1:
            left = factor * left
        return left, right

    def _parts(self, values: Iterable[Value]) -> list[Part]:
        """The parameters of some products, with each matrix once.

        They are whole batches if all products with them are of these, and single
        matrices otherwise.
        """
        acting: dict[Owned, set[tuple[int, ...]]] = {}
        for value in values:
            if isinstance(value.op, MatMul):
                batches = acting.setdefault(self._owned(value), set())
                batches.add(_members(value.op.weight))
        parts: list[Part] = []
        for owned, batches in acting.items():
            uses = self.uses.get(owned, ())
            all_batches = batches | {_members(use.op.weight) for use in uses}
            batch = next(iter(batches))
            if len(all_batches) == 1 and len(set(batch)) == len(batch):
                parts.append(Part(owned, batch))
            else:
                members = {member for batch in batches for member in batch}
                parts += [Part(owned, (member,)) for member in sorted(members)]
        return parts

    def _owned(self, value: Value) -> Owned:
        """The parameter of a product."""
        assert isinstance(value.op, Acting)
        weight = value.op.weight
        return Owned(weight.source, self._copies.get(value, weight.owner))

    def _moves(self, value: Value) -> bool:
        """Whether a product contributes to the gradient of its matrix."""
        return isinstance(value.op, MatMul) and not value.op.weight.frozen

    def _size(self, values: Iterable[Value]) -> float | Scalar:
        """The mean of Σ |W|²: a number, or a scalar if the std of W is one."""
        total: float | Scalar = 0.0
        values = list(values)
        weights = {
            self._owned(value): value.op.weight
            for value in values
            if isinstance(value.op, MatMul)
        }
        for part in self._parts(values):
            w = weights[part.of]
            size = w.std**2 * len(part.members) * w.drawn.out_width.bind(self.widths)
            std = w.source.std_factor
            total = total + (size if std is None else size * (std * std))
        return total


def _embedding_tables(net: ProbedProgram) -> list[Vector]:
    """The tables of embeddings in the program."""
    return [
        x
        for x in dict.fromkeys(net.values[0])
        if isinstance(x, Vector) and _parameter_name(x) == "embedding"
    ]


def _parameter_name(x: Vector) -> str | None:
    """The name of the parameter that vectors are; None if they are none.

    A parameter that is not Gaussian is a quantile function of Gaussian vectors.
    """
    if isinstance(x.op, Nonlin) and isinstance(x.op.f, Quantile):
        return x.op.f.parameter
    return x.op.source.name if isinstance(x.op, Gaussian) else None


def _members(weight: Weight) -> tuple[int, ...]:
    return tuple(weight.members.ravel().tolist())


def _flat(groups: Iterable[Iterable[Value]]) -> list[Value]:
    return [value for group in groups for value in group]


def _variance(table: Vector) -> float | Scalar:
    """The mean of |x|²/n of a row of the table."""
    if isinstance(table.op, Nonlin):
        assert isinstance(table.op.f, Quantile)
        return table.op.f.mean_square
    assert isinstance(table.op, Gaussian)
    variance = float(np.mean(np.sum(table.op.factor**2, axis=-1)))
    std = table.op.source.std_factor
    return variance if std is None else variance * (std * std)
