"""The gradients of the initial loss that an audit measures, per block and kind of weight.

One backward pass gives the cotangents √n ∂L/∂x of the stream and of all matrix products. If y_i = W x_i, then
∂L/∂W = Σ_i (∂L/∂y_i) x_i^T, so |∂L/∂W|² is a sum over pairs of tokens of products of two Gram matrices. At n = ∞ the
widths of the model turn means into sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from ..language import Scalar, Value, Vector, apply, join, mean_dot, stack
from ..language._grad import Reverse, Use
from ..language._graph import indexed_value, topological_order
from ..language._operation import Gaussian, MatMul
from ..language._scalar import constant
from ._loss_gradient import Loss
from ._metrics import of_pairs
from ._probed_program import KINDS, ProbedProgram

HEAD_NAMES = ("W^L", "head")  # names of the matrix of the logits, after the last block


class Gradients:
    """Squared gradients of a loss. `widths` belong to the real model; `vocabulary` is the number of table rows."""

    def __init__(
        self, net: ProbedProgram, loss: Loss, widths: Mapping[str, float], vocabulary: int | None = None
    ) -> None:
        self.net, self.widths = net, widths
        self.reached = set(topological_order([value for value, _ in loss.seeds]))
        gaussians = [x for x in dict.fromkeys(net.values[0]) if isinstance(x, Vector) and isinstance(x.op, Gaussian)]
        tables = [x for x in gaussians if vocabulary and x.op.source.name == "embedding"]  # type: ignore[attr-defined]
        leaves = map(self._reshaped, (*net.starts, *net.streams, *tables))
        reached = [leaf for leaf in leaves if leaf in self.reached]
        self.back = Reverse(loss.seeds, reached, lambda op: True, constants=loss.constants)
        self.uses: dict[Value, Use] = {use.value: use for use in self.back.uses}
        self._rows(net)
        self._ends(net, loss, tables, vocabulary or 0)

    def _rows(self, net: ProbedProgram) -> None:
        """A row per block, with ratios to the mean of |W|², except for zero matrices."""
        kinds = [kind for kind in KINDS if any(kind in by_block for by_block in net.matrices)]
        by_block = [{kind: block.get(kind, []) for kind in kinds} for block in net.matrices]
        sized = {kind for kind in kinds if all(self._size(block[kind]) != 0 for block in by_block)}
        names = [f"grad_{kind}{ratio}" for kind in kinds for ratio in ("", "_ratio")[: 1 + (kind in sized)]]
        self.names = ("grad_mean_square", *names)
        self.rows = [stack([self._mean_square(stream)]) for stream in net.streams]
        if names:
            pairs = zip(self.rows, by_block, strict=True)
            self.rows = [join([row, self._norms(block, sized)]) for row, block in pairs]

    def _ends(self, net: ProbedProgram, loss: Loss, tables: Sequence[Vector], words: int) -> None:
        """One row for the network: at the embeddings, of the embedding table, and of the matrix of the logits."""
        norms: dict[str, tuple[Scalar, float | Scalar]] = {}  # with the mean of Σ |W|²
        inside = [value for value in net.values[0] if isinstance(value.op, MatMul)]
        known = {value for kinds in net.matrices for values in kinds.values() for value in values} | set(inside)
        last = [v for v, use in self.uses.items() if v not in known and use.op.weight.source.name in HEAD_NAMES]
        sources = {value.op.weight.source for value in inside if isinstance(value.op, MatMul)}
        for value, use in self.uses.items():
            if use.op.weight.source in sources and value not in inside:
                self._refuse(use.op.weight.source.name, "in the embedding and again after it")
        if inside:
            norms["embedding"] = self._norms({"embedding": inside})[0], self._size(inside)
        elif tables:
            square = sum((self._square(table).sum() for table in tables[1:]), self._square(tables[0]).sum())
            square = square + loss.head if loss.tied and loss.head is not None else square
            norms["embedding"] = square, sum((words * _variance(x) * x.width.bind(self.widths) for x in tables), 0.0)
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
        """|√n ∂L/∂x|²/n = |∂L/∂x|² of each vector; a table with a scalar std uses the scaled vectors."""
        x = self._reshaped(x)
        if x not in self.reached:
            return constant(np.zeros(())).broadcast_to(x.shape)
        one = self.back.of(x)[..., None]
        square, by = mean_dot(one, one)[..., 0, 0], x.op.source.by if isinstance(x.op, Gaussian) else None
        return square if by is None else square / (by * by)

    def _mean_square(self, x: Vector) -> Scalar:
        return self._square(x).mean() / x.width.bind(self.widths)

    def _norms(self, found: Mapping[str, Sequence[Value]], sized: Collection[str] = ()) -> Scalar:
        """Σ |∂L/∂W|² over the matrices of each kind, and for `sized` kinds also its ratio to the mean of Σ |W|²."""
        acted = [value.op.weight for values in found.values() for value in values if isinstance(value.op, MatMul)]
        each = Counter((weight.source, member) for weight in acted for member in weight.members.flat)
        if each and each.most_common(1)[0][1] > 1:
            self._refuse(each.most_common(1)[0][0][0].name, "twice in one block")
        grams: list[Scalar] = []
        sums: list[tuple[float, tuple[int, ...]]] = []  # factors, and positions of the Gram matrices of cotangents
        sizes: list[float | Scalar] = []
        for kind, values in found.items():
            places = []
            for use in (self.uses[value] for value in values if value in self.uses):
                weight, count = use.op.weight, use.op.weight.members.size
                d, x = use.d.reshape(count, -1), use.op.x.reshape(count if use.op.each else 1, -1)
                places.append(len(grams))
                grams += [weight.in_width.bind(self.widths) * mean_dot(d, d), mean_dot(x, x)]
                if (by := weight.source.by) is not None:  # ∂L/∂(by·W) is ∂L/∂W over by
                    grams[-2] = grams[-2] / (by * by)
            for size in (1.0, self._size(values))[: 1 + (kind in sized)]:
                sizes.append(size)
                sums.append((1.0 if isinstance(size, Scalar) else 1 / size, tuple(places)))
        if not grams:
            return constant(np.zeros(len(sums)))
        made = apply(partial(of_pairs, sums=tuple(sums)), *grams, axes=3, name="of_pairs")
        scalars = [size if isinstance(size, Scalar) else constant(np.ones(())) for size in sizes]
        return made / stack(scalars) if any(isinstance(size, Scalar) for size in sizes) else made

    def _refuse(self, matrix: str | None, where: str) -> None:
        said = f"{matrix or 'a matrix'} acts {where}"
        raise ValueError(f"gradients=True of {self.net.name}: {said}, and a gradient is known only for one product")

    def _size(self, values: Iterable[Value]) -> float | Scalar:
        """The mean of Σ |W|²: a number, or a scalar if the std of W is one."""
        found: float | Scalar = 0.0
        for w in (value.op.weight for value in values if isinstance(value.op, MatMul)):
            size = w.std**2 * w.members.size * w.drawn.out_width.bind(self.widths)
            found = found + (size if w.source.by is None else size * (w.source.by * w.source.by))
        return found


def _variance(table: Vector) -> float | Scalar:
    assert isinstance(table.op, Gaussian)
    drawn, by = float(np.mean(np.sum(table.op.factor**2, axis=-1))), table.op.source.by
    return drawn if by is None else drawn * (by * by)
