"""The gradients of the initial loss that an audit measures, per block and kind of
weight.

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

from ..language import Scalar, Value, Vector, apply, join, mean_dot, stack
from ..language._array import Source
from ..language._grad import Reverse, Use
from ..language._graph import indexed_value, topological_order
from ..language._operation import Acting, Gaussian, MatMul
from ..language._parameters import Weight
from ..language._scalar import constant
from ..language._tangent_kernel import pooled
from ._loss_gradient import Loss
from ._metrics import of_pairs
from ._probed_program import KINDS, ProbedProgram

HEAD_NAMES = ("W^L", "head")  # names of the matrix of the logits, after the last block


class Owned(NamedTuple):
    """A parameter: matrices with the same entries, and who owns them if several
    parameters start with these.
    """

    source: Source
    owner: str | None


class Part(NamedTuple):
    """Some of the matrices of a parameter."""

    of: Owned
    members: tuple[int, ...]


class Gradients:
    """Squared gradients of a loss.

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
                self._copies |= dict.fromkeys(_every(block.values()), f"block {k}")
        self.reached = set(topological_order([value for value, _ in loss.seeds]))
        gaussians = [
            x
            for x in dict.fromkeys(net.values[0])
            if isinstance(x, Vector) and isinstance(x.op, Gaussian)
        ]
        tables = []
        if vocabulary:
            tables = [x for x in gaussians if x.op.source.name == "embedding"]  # type: ignore[attr-defined]
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
        self._rows(net)
        self._ends(net, loss, tables, vocabulary or 0)

    def _rows(self, net: ProbedProgram) -> None:
        """A row per block, with ratios to the mean of |W|², except for zero
        matrices.
        """
        kinds = [
            kind
            for kind in KINDS
            if any(
                map(self._moves, _every(block.get(kind, ()) for block in net.matrices))
            )
        ]
        by_block = [
            {kind: block.get(kind, []) for kind in kinds} for block in net.matrices
        ]
        sized = {
            kind
            for kind in kinds
            if all(self._size(block[kind]) != 0 for block in by_block)
        }
        names = [
            f"grad_{kind}{ratio}"
            for kind in kinds
            for ratio in ("", "_ratio")[: 1 + (kind in sized)]
        ]
        self.names = ("grad_mean_square", *names)
        self.rows = [stack([self._mean_square(stream)]) for stream in net.streams]
        if names:
            pairs = zip(self.rows, by_block, strict=True)
            self.rows = [join([row, self._norms(block, sized)]) for row, block in pairs]

    def _ends(
        self, net: ProbedProgram, loss: Loss, tables: Sequence[Vector], words: int
    ) -> None:
        """One row for the network: at the embeddings, of the embedding table, and of
        the matrix of the logits.
        """
        norms: dict[str, tuple[Scalar, float | Scalar]] = {}  # with the mean of Σ |W|²
        inside = [value for value in net.values[0] if isinstance(value.op, MatMul)]
        known = {
            value
            for kinds in net.matrices
            for values in kinds.values()
            for value in values
        } | set(inside)
        uses = [use for each in self.uses.values() for use in each]
        outside = (use for use in uses if use.value not in known)
        last = [use.value for use in outside if use.op.weight.source.name in HEAD_NAMES]
        moved = [table for table in tables if self.back.parts(self._reshaped(table))]
        if inside:
            if any(map(self._moves, inside)):
                norms["embedding"] = (
                    self._norms({"embedding": inside})[0],
                    self._size(inside),
                )
        elif moved:
            square = sum(
                (self._square(table).sum() for table in moved[1:]),
                self._square(moved[0]).sum(),
            )
            square = (
                square + loss.head if loss.tied and loss.head is not None else square
            )
            norms["embedding"] = (
                square,
                sum(
                    (words * _variance(x) * x.width.bind(self.widths) for x in moved),
                    0.0,
                ),
            )
        if loss.head is not None and not loss.tied:
            norms["head"] = loss.head, loss.head_size
        elif last:
            norms["head"] = self._norms({"head": last})[0], self._size(last)
        final = {"grad_input": self._mean_square(net.starts[0])}
        for kind, (norm, size) in norms.items():
            final[f"grad_{kind}"] = norm
            if size != 0:
                final[f"grad_{kind}_ratio"] = norm / size
        self.final_names, self.final = tuple(final), stack(list(final.values()))

    def _reshaped(self, x: Vector) -> Vector:
        """The vectors that x only reshapes, if the loss depends on them."""
        found = indexed_value(x, self.reached)
        if found is None:
            return x
        base, places = found
        same_entries = np.array_equal(places.ravel(), np.arange(base.size))
        return base if isinstance(base, Vector) and same_entries else x

    def _square(self, x: Vector) -> Scalar:
        """|√n ∂L/∂x|²/n = |∂L/∂x|² of each vector; a table with a scalar std uses the
        scaled vectors.
        """
        x = self._reshaped(x)
        if x not in self.reached:
            return constant(np.zeros(())).broadcast_to(x.shape)
        one = self.back.of(x)[..., None]
        square, by = (
            mean_dot(one, one)[..., 0, 0],
            x.op.source.by if isinstance(x.op, Gaussian) else None,
        )
        return square if by is None else square / (by * by)

    def _mean_square(self, x: Vector) -> Scalar:
        return self._square(x).mean() / x.width.bind(self.widths)

    def _norms(
        self, found: Mapping[str, Sequence[Value]], sized: Collection[str] = ()
    ) -> Scalar:
        """Σ |∂L/∂W|² over the matrices of each kind, and for `sized` kinds also its
        ratio to the mean of Σ |W|².
        """
        grams: list[Scalar] = []
        # factors, and positions of the Gram matrices of cotangents
        sums: list[tuple[float, tuple[int, ...]]] = []
        sizes: list[float | Scalar] = []
        for kind, values in found.items():
            places = []
            for part in self._parts(values):
                if part.of in self.uses:
                    places.append(len(grams))
                    grams += self._grams(part)
            for size in (1.0, self._size(values))[: 1 + (kind in sized)]:
                sizes.append(size)
                sums.append(
                    (1.0 if isinstance(size, Scalar) else 1 / size, tuple(places))
                )
        if not grams:
            return constant(np.zeros(len(sums)))
        made = apply(
            partial(of_pairs, sums=tuple(sums)), *grams, axes=3, name="of_pairs"
        )
        scalars = [
            size if isinstance(size, Scalar) else constant(np.ones(()))
            for size in sizes
        ]
        return (
            made / stack(scalars)
            if any(isinstance(size, Scalar) for size in sizes)
            else made
        )

    def _grams(self, part: Part) -> tuple[Scalar, Scalar]:
        """Gram matrices (matrices, uses, uses) of l and r, with ∂L/∂W = Σ l r^T over
        the uses of each matrix.
        """
        if part not in self._known:
            factors = [self._factors(use, part.members) for use in self.uses[part.of]]
            lefts, rights = zip(
                *(each for each in factors if each is not None), strict=True
            )
            left, right = pooled(lefts), pooled(rights)
            size = self.uses[part.of][0].op.weight.drawn.in_width.bind(self.widths)
            square = size * mean_dot(left, left)
            if (by := part.of.source.by) is not None:  # ∂L/∂(by·W) is ∂L/∂W over by
                square = square / (by * by)
            self._known[part] = square, mean_dot(right, right)
        return self._known[part]

    def _factors(
        self, use: Use, members: tuple[int, ...]
    ) -> tuple[Vector, Vector] | None:
        """√out l and r of one use for these matrices, (matrices or 1, vectors); None if
        it has none of them.
        """
        weight, own = use.op.weight, _members(use.op.weight)
        d = use.d.reshape(len(own), -1)
        x = use.op.x.reshape(len(own) if use.op.each else 1, -1)
        if own != members:
            common = [k for k, member in enumerate(own) if member in members]
            if not common:
                return None
            # The part is one matrix, which may act several times: see `_parts`.
            d = d[common].reshape(1, -1)
            x = (
                x[common].reshape(1, -1)
                if use.op.each
                else x[[0] * len(common)].reshape(1, -1)
            )
        if weight.transposed:  # y = W^T x: l is x, and r is ∂L/∂y
            ratio = math.sqrt(
                weight.in_width.bind(self.widths) / weight.out_width.bind(self.widths)
            )
            d, x = ratio * x, d
        factor = math.sqrt(
            weight.drawn.in_width.bind(self.widths) / weight.fan.bind(self.widths)
        )  # of W in the product
        return (d if factor == 1 else factor * d), x

    def _parts(self, values: Iterable[Value]) -> list[Part]:
        """The parameters of some products, each matrix once; whole batches if all
        products with them are of these.
        """
        acting: dict[Owned, set[tuple[int, ...]]] = {}
        for value in values:
            if isinstance(value.op, MatMul):
                acting.setdefault(self._owned(value), set()).add(
                    _members(value.op.weight)
                )
        parts: list[Part] = []
        for owned, batches in acting.items():
            every = batches | {
                _members(use.op.weight) for use in self.uses.get(owned, ())
            }
            one = next(iter(batches))
            if len(every) == 1 and len(set(one)) == len(one):
                parts.append(Part(owned, one))
            else:
                parts += [
                    Part(owned, (member,))
                    for member in sorted({k for batch in batches for k in batch})
                ]
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
        found: float | Scalar = 0.0
        values = list(values)
        weights = {
            self._owned(value): value.op.weight
            for value in values
            if isinstance(value.op, MatMul)
        }
        for part in self._parts(values):
            w = weights[part.of]
            size = w.std**2 * len(part.members) * w.drawn.out_width.bind(self.widths)
            found = found + (
                size if w.source.by is None else size * (w.source.by * w.source.by)
            )
        return found


def _members(weight: Weight) -> tuple[int, ...]:
    return tuple(weight.members.ravel().tolist())


def _every(groups: Iterable[Iterable[Value]]) -> list[Value]:
    return [value for group in groups for value in group]


def _variance(table: Vector) -> float | Scalar:
    assert isinstance(table.op, Gaussian)
    drawn, by = float(np.mean(np.sum(table.op.factor**2, axis=-1))), table.op.source.by
    return drawn if by is None else drawn * (by * by)
