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


class Parameter(NamedTuple):
    """A parameter: a batch of matrices, with the same entries wherever it is used.

    Copies of a parameter start with the same entries, and so have the same source, but
    have their own gradients: `owner` tells them apart.
    """

    source: Source
    owner: str | None


class Batch(NamedTuple):
    """Some of the matrices of a parameter, by their positions."""

    parameter: Parameter
    members: tuple[int, ...]


class SquaredGradient(NamedTuple):
    """|∂L/∂W|² summed over some matrices W, and the mean of Σ |W|²."""

    square: Scalar
    mean_square_of_weights: float | Scalar


class Gradients:
    """Squared gradients of a loss.

    `rows` has a scalar (names,) for each block, whose entries are called `names`: the
    mean square of the gradient by the stream, and for each kind of matrix that of its
    weights, also relative to the weights themselves. `final` has those of embeddings
    and logits, called `final_names`.

    `widths` belong to the real model. `vocabulary` is the number of rows of the tables
    of embeddings, or None if there are no tables. `copies` says that blocks with the
    same matrices are copies, each with its own parameters.
    """

    def __init__(
        self,
        net: ProbedProgram,
        loss: Loss,
        widths: Mapping[str, float],
        vocabulary: int | None = None,
        copies: bool = False,
    ) -> None:
        """Build the backward pass of the loss, and the rows from it."""
        self.net = net
        self.widths = widths
        # if blocks are copies: product with a matrix → its block, as an owner
        self._owner_of_copy: dict[Value, str] = {}
        if copies:
            for k, block in enumerate(net.matrices):
                for product in _flat(block.values()):
                    self._owner_of_copy[product] = f"block {k}"
        # the values that the loss depends on
        self.reached = set(topological_order([value for value, _ in loss.seeds]))
        tables = _embedding_tables(net) if vocabulary else []
        leaves = [self._reshaped(x) for x in (*net.starts, *net.streams, *tables)]
        self.back = Reverse(
            loss.seeds,
            leaves=[leaf for leaf in leaves if leaf in self.reached],
            chosen=lambda op: True,
            constants=loss.constants,
        )
        self.uses: dict[Parameter, list[Use]] = {}
        for use in self.back.uses:
            self.uses.setdefault(self._parameter(use.value), []).append(use)
        # Gram matrices whose products are |∂L/∂W|²
        self._gram_pairs: dict[Batch, tuple[Scalar, Scalar]] = {}
        self._make_rows(net)
        self._make_final(net, loss, tables, words=vocabulary or 0)

    def _make_rows(self, net: ProbedProgram) -> None:
        """Set the names and the rows of the blocks.

        Ratios to the mean of |W|² are left out for kinds with a zero matrix.
        """
        trained_kinds = [kind for kind in KINDS if _is_kind_trained(net, kind)]
        kinds_with_ratio = []
        for kind in trained_kinds:
            sizes = [self._size(block.get(kind, ())) for block in net.matrices]
            if all(size != 0 for size in sizes):
                kinds_with_ratio.append(kind)

        names = ["grad_mean_square"]
        for kind in trained_kinds:
            names.append(f"grad_{kind}")
            if kind in kinds_with_ratio:
                names.append(f"grad_{kind}_ratio")
        self.names = tuple(names)

        self.rows = []
        for stream, block in zip(net.streams, net.matrices, strict=True):
            row = stack([self._mean_square(stream)])
            if trained_kinds:
                products_by_kind = {kind: block.get(kind, []) for kind in trained_kinds}
                row = join([row, self._norms(products_by_kind, kinds_with_ratio)])
            self.rows.append(row)

    def _make_final(
        self, net: ProbedProgram, loss: Loss, tables: Sequence[Vector], words: int
    ) -> None:
        """Set the names and the row of the ends of the network."""
        gradients = {
            "embedding": self._embedding(net, loss, tables, words),
            "head": self._head(net, loss),
        }
        final = {"grad_input": self._mean_square(net.starts[0])}
        for kind, gradient in gradients.items():
            if gradient is None:
                continue
            square, size = gradient
            final[f"grad_{kind}"] = square
            if size != 0:
                final[f"grad_{kind}_ratio"] = square / size
        self.final_names = tuple(final)
        self.final = stack(list(final.values()))

    def _embedding(
        self, net: ProbedProgram, loss: Loss, tables: Sequence[Vector], words: int
    ) -> SquaredGradient | None:
        """The gradient of the matrices, or else of the tables, of the embeddings.

        `words` is the number of rows of a table. None if there are neither, or none is
        trained.
        """
        matrices = [value for value in net.values[0] if isinstance(value.op, MatMul)]
        if matrices:
            if not any(_is_trained(product) for product in matrices):
                return None
            square = self._norms({"embedding": matrices})[0]
            return SquaredGradient(square, self._size(matrices))
        trained_tables = [
            table for table in tables if self.back.contributions(self._reshaped(table))
        ]
        if not trained_tables:
            return None
        square = self._square(trained_tables[0]).sum()
        for table in trained_tables[1:]:
            square = square + self._square(table).sum()
        if loss.tied and loss.head is not None:
            # words that are not in the program have a gradient from the logits
            square = square + loss.head
        size: float | Scalar = 0.0
        for table in trained_tables:
            size = size + words * _variance(table) * table.width.bind(self.widths)
        return SquaredGradient(square, size)

    def _head(self, net: ProbedProgram, loss: Loss) -> SquaredGradient | None:
        """The gradient of the matrix of the logits; None if it is part of another."""
        if loss.head is not None and not loss.tied:
            return SquaredGradient(loss.head, loss.head_size)
        before_head = {value for value in net.values[0] if isinstance(value.op, MatMul)}
        for products_by_kind in net.matrices:
            before_head.update(_flat(products_by_kind.values()))
        heads = []
        for uses in self.uses.values():
            for use in uses:
                name = use.op.weight.source.name
                if use.value not in before_head and name in HEAD_NAMES:
                    heads.append(use.value)
        if not heads:
            return None
        return SquaredGradient(self._norms({"head": heads})[0], self._size(heads))

    def _reshaped(self, x: Vector) -> Vector:
        """The vectors with the same entries that x was reshaped from, if the loss
        depends on them; otherwise x.
        """
        indexed = indexed_value(x, self.reached)
        if indexed is None:
            return x
        base, positions = indexed
        has_same_entries = np.array_equal(positions.ravel(), np.arange(base.size))
        return base if isinstance(base, Vector) and has_same_entries else x

    def _square(self, x: Vector) -> Scalar:
        """|√n ∂L/∂x|²/n = |∂L/∂x|² of each vector, in the shape of `_reshaped(x)`.

        It is 0 if the loss does not depend on x. If x is drawn with a standard
        deviation that is a separate factor, x is standard here, and the parameter is
        std · x: its gradient is that of x over std.
        """
        base = self._reshaped(x)
        if base not in self.reached:
            return constant(np.zeros(())).broadcast_to(base.shape)
        # one vector in each matrix (1, 1) of products
        cotangent = self.back.cotangent(base)[..., None]
        square = mean_dot(cotangent, cotangent)[..., 0, 0]
        std = base.op.source.std_factor if isinstance(base.op, Gaussian) else None
        if std is not None:
            square = square / (std * std)
        return square

    def _mean_square(self, x: Vector) -> Scalar:
        """The mean over vectors and coordinates of (∂L/∂x)²."""
        return self._square(x).mean() / x.width.bind(self.widths)

    def _norms(
        self,
        products_by_kind: Mapping[str, Sequence[Value]],
        kinds_with_ratio: Collection[str] = (),
    ) -> Scalar:
        """Σ |∂L/∂W|² over the matrices W of each kind, from the products with them.

        The result (numbers,) has a number for each kind. For a kind with ratio, its
        ratio to the mean of Σ |W|² follows.
        """
        grams: list[Scalar] = []  # pairs, of `_grams`, one after the other
        # for each number: a factor, and the positions of its pairs of Gram matrices
        sums: list[tuple[float, tuple[int, ...]]] = []
        unit_scalar = constant(np.ones(()))
        denominators: list[Scalar] = []  # of each number: `one`, unless it is random
        for kind, products in products_by_kind.items():
            positions = []
            for batch in self._batches(products):
                if batch.parameter in self.uses:
                    positions.append(len(grams))
                    grams += self._grams(batch)
            sums.append((1.0, tuple(positions)))
            denominators.append(unit_scalar)
            if kind not in kinds_with_ratio:
                continue
            size = self._size(products)
            if isinstance(size, Scalar):
                sums.append((1.0, tuple(positions)))
                denominators.append(size)
            else:
                sums.append((1 / size, tuple(positions)))
                denominators.append(unit_scalar)
        if not grams:
            return constant(np.zeros(len(sums)))
        norms = apply(
            partial(of_pairs, sums=tuple(sums)), *grams, axes=3, name="of_pairs"
        )
        if all(denominator is unit_scalar for denominator in denominators):
            return norms
        return norms / stack(denominators)

    def _grams(self, batch: Batch) -> tuple[Scalar, Scalar]:
        """Gram matrices (matrices, uses, uses) of l and of r.

        ∂L/∂W = Σ l r^T over the uses of each matrix W, so that |∂L/∂W|² is the sum of
        the products of their entries.
        """
        if batch not in self._gram_pairs:
            parameter, members = batch
            lefts = []
            rights = []
            for use in self.uses[parameter]:
                factors = self._factors(use, members)
                if factors is not None:
                    left, right = factors
                    lefts.append(left)
                    rights.append(right)
            all_left = pooled(lefts)
            all_right = pooled(rights)
            size = self.uses[parameter][0].op.weight.drawn.in_width.bind(self.widths)
            square = size * mean_dot(all_left, all_left)
            std = parameter.source.std_factor
            if std is not None:  # ∂L/∂(std·W) is ∂L/∂W over std
                square = square / (std * std)
            self._gram_pairs[batch] = square, mean_dot(all_right, all_right)
        return self._gram_pairs[batch]

    def _factors(
        self, use: Use, members: tuple[int, ...]
    ) -> tuple[Vector, Vector] | None:
        """√out l and r of one use for these matrices, (matrices or 1, vectors).

        A use is a product y = W x with a batch of matrices, and adds (∂L/∂y) x^T to
        ∂L/∂W. None if the use has none of the matrices.
        """
        weight = use.op.weight
        weight_members = _members(weight)
        cotangent = use.cotangent.reshape(len(weight_members), -1)
        # each matrix acts on its own vectors, or all on the same
        x = use.op.x.reshape(len(weight_members) if use.op.each else 1, -1)
        if weight_members != members:
            common = [k for k, member in enumerate(weight_members) if member in members]
            if not common:
                return None
            # `members` is one matrix, which may act several times: see `_batches`.
            cotangent = cotangent[common].reshape(1, -1)
            x = x[common] if use.op.each else x[[0] * len(common)]
            x = x.reshape(1, -1)
        if weight.transposed:  # y = W^T x: l is x, and r is ∂L/∂y
            in_width = weight.in_width.bind(self.widths)
            out_width = weight.out_width.bind(self.widths)
            left = math.sqrt(in_width / out_width) * x
            right = cotangent
        else:
            left = cotangent
            right = x
        # the factor of W in the product
        fan = weight.fan.bind(self.widths)
        factor = math.sqrt(weight.drawn.in_width.bind(self.widths) / fan)
        if factor != 1:
            left = factor * left
        return left, right

    def _batches(self, values: Iterable[Value]) -> list[Batch]:
        """The matrices of some products, each once, in batches.

        If all products with a parameter are with the same batch of different matrices,
        it is that batch. Otherwise each matrix is a batch: products with the batches
        (0, 1) and (1, 2) of a parameter give (0,), (1,) and (2,).
        """
        acting: dict[Parameter, set[tuple[int, ...]]] = {}
        for value in values:
            if isinstance(value.op, MatMul):
                of_parameter = acting.setdefault(self._parameter(value), set())
                of_parameter.add(_members(value.op.weight))
        batches: list[Batch] = []
        for parameter, members_of_values in acting.items():
            uses = self.uses.get(parameter, ())
            members_of_uses = {_members(use.op.weight) for use in uses}
            one_batch = next(iter(members_of_values))
            is_only_batch = len(members_of_values | members_of_uses) == 1
            if is_only_batch and len(set(one_batch)) == len(one_batch):
                batches.append(Batch(parameter, one_batch))
                continue
            matrices = sorted(set().union(*members_of_values))
            batches += [Batch(parameter, (matrix,)) for matrix in matrices]
        return batches

    def _parameter(self, value: Value) -> Parameter:
        """The parameter of a product."""
        assert isinstance(value.op, Acting)
        weight = value.op.weight
        owner = self._owner_of_copy.get(value, weight.owner)
        return Parameter(weight.source, owner)

    def _size(self, values: Iterable[Value]) -> float | Scalar:
        """The mean of Σ |W|² over the matrices of these products.

        It is a number, or a scalar if the std of a matrix is one.
        """
        values = list(values)
        weights: dict[Parameter, Weight] = {}
        for value in values:
            if isinstance(value.op, MatMul):
                weights[self._parameter(value)] = value.op.weight
        total: float | Scalar = 0.0
        for batch in self._batches(values):
            weight = weights[batch.parameter]
            out_width = weight.drawn.out_width.bind(self.widths)
            size: float | Scalar = weight.std**2 * len(batch.members) * out_width
            std = weight.source.std_factor
            if std is not None:
                size = size * (std * std)
            total = total + size
        return total


def _is_trained(value: Value) -> bool:
    """Whether a value is a product that contributes to the gradient of its matrix."""
    return isinstance(value.op, MatMul) and not value.op.weight.frozen


def _is_kind_trained(net: ProbedProgram, kind: str) -> bool:
    """Whether a matrix of this kind in some block is trained."""
    products = _flat(block.get(kind, ()) for block in net.matrices)
    return any(_is_trained(product) for product in products)


def _embedding_tables(net: ProbedProgram) -> list[Vector]:
    """The tables of embeddings in the program, each once."""
    tables: dict[Vector, None] = {}
    for value in net.values[0]:
        if isinstance(value, Vector) and _parameter_name(value) == "embedding":
            tables[value] = None
    return list(tables)


def _parameter_name(x: Vector) -> str | None:
    """The name of the parameter that vectors are; None if they are none.

    A parameter that is not Gaussian is a quantile function of Gaussian vectors.
    """
    if isinstance(x.op, Nonlin) and isinstance(x.op.f, Quantile):
        return x.op.f.parameter
    if isinstance(x.op, Gaussian):
        return x.op.source.name
    return None


def _members(weight: Weight) -> tuple[int, ...]:
    """The positions in their parameter of the matrices that a weight consists of."""
    return tuple(weight.members.ravel().tolist())


def _flat(groups: Iterable[Iterable[Value]]) -> list[Value]:
    """The values of all groups, one group after the other."""
    return [value for group in groups for value in group]


def _variance(table: Vector) -> float | Scalar:
    """The mean of |x|²/n of a row of the table.

    It is a number, or a scalar if the std of the table is one.
    """
    if isinstance(table.op, Nonlin):
        assert isinstance(table.op.f, Quantile)
        return table.op.f.mean_square
    assert isinstance(table.op, Gaussian)
    variances = np.sum(table.op.factor**2, axis=-1)
    variance: float | Scalar = float(np.mean(variances))
    std = table.op.source.std_factor
    if std is not None:
        variance = variance * (std * std)
    return variance
