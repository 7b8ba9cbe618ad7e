"""Random parameters as values of the language.

A parameter becomes a matrix that acts, rows of a table, vectors, or scalars: how it is
used decides. One parameter is one random object, however often and in whichever
orientation the module uses it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

import netsor.nn as nn

from .._array_api import Floats, Ints
from .._validate import Shape
from ..language import (
    Scalar,
    Value,
    Vector,
    Weight,
    apply,
    concat,
    data,
    gaussian,
    join,
    mean_dot,
    nonlin,
    normal,
    ones,
    stop_gradient,
    weight,
)
from ..language.operations._operation import MatMul, split
from ..language.operations._stop_gradient import ScaledGradient, scaled_gradient
from ..language.values._array import Take
from ..models._training import unit_vectors
from ..nn._embedding import drawn_logits, root
from ..programs._program import Program
from ._axes import Scalars, Vectors, View, refuse_if
from ._interleaved import ZERO, Interleaved
from ._laws import Parameter
from ._layout import Index, Layout, Permute

# columns of a matrix that are drawn one by one, at most, where it acts on given numbers
MAX_COLUMNS = 64
SHOWN_NAMES = 4  # of parameters, in a note


@dataclass(frozen=True, eq=False)
class Random(View):
    """A random parameter, or a view of it, whose use is still open.

    It has a shape, but no value: `Draws` makes the value for each use, and refuses two
    uses that would be different random objects.
    """

    name: str
    # detached, or without requires_grad: it has no gradient
    frozen: bool = False
    # its own name, if it starts as a copy of the parameter `name`
    owner: str | None = None

    @classmethod
    def of(cls, name: str, shape: Shape, *, frozen: bool) -> Self:
        """A whole parameter."""
        return cls(Layout.contiguous(shape), name, frozen=frozen)


class Span(NamedTuple):
    """A run of entries in the storage of a parameter."""

    start: int
    size: int

    def overlaps(self, other: Span) -> bool:
        """Whether two runs have entries in common."""
        first_stop = min(self.start + self.size, other.start + other.size)
        return max(self.start, other.start) < first_stop


@dataclass(frozen=True)
class Part:
    """The entries of a parameter that a matrix is made of.

    A part and its transpose are equal: its first stride is the larger one. A part with
    more than two axes is a matrix with the entries of all axes but the first as its
    columns: that of a convolution, (outputs, *kernel, inputs).
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, w: Random) -> Self:
        """The part that a view shows."""
        layout = w.layout.permuted((1, 0)) if _is_turned(w) else w.layout
        return cls(layout.shape, layout.strides, layout.offset)

    @property
    def span(self) -> range:
        """The positions from the first entry to the last one."""
        last = self.offset
        for size, stride in zip(self.shape, self.strides, strict=True):
            last += (size - 1) * stride
        return range(self.offset, last + 1)

    def overlaps(self, other: Part) -> bool:
        """Whether two parts may have entries in common."""
        first_stop = min(self.span.stop, other.span.stop)
        if max(self.span.start, other.span.start) >= first_stop:
            return False
        if self.strides != other.strides:
            return True
        if len(self.shape) > 2 or len(other.shape) > 2:
            return True
        # the same entry: r·s + c·t + offset for rows r and columns c of both
        rows = max(self.shape[0], other.shape[0])
        columns = max(self.shape[1], other.shape[1])
        row_stride, column_stride = self.strides
        difference = self.offset - other.offset
        for row in range(-rows + 1, rows):
            column, rest = divmod(difference - row * row_stride, column_stride)
            if rest == 0 and abs(column) < columns:
                return True
        return False

    def entries(self, numbers: Any) -> Any:
        """The matrix, of the numbers of the whole parameter."""
        layout = Layout(self.shape, self.strides, self.offset)
        positions = layout.all_positions.reshape(self.shape[0], -1)
        return np.ravel(numbers)[positions]


def _is_turned(w: Random) -> bool:
    """Whether a view shows the transpose of its `Part`."""
    if len(w.shape) > 2:
        return False
    rows, columns = zip(w.layout.strides, w.shape, strict=True)
    return rows < columns


class DrawnMatrix(NamedTuple):
    """The matrix that a part of a parameter became when it first acted."""

    weight: Weight
    as_part: bool  # its rows are those of the `Part`; otherwise its columns


@dataclass(eq=False)
class DrawnRows:
    """The vectors that rows of a parameter became."""

    law: Parameter
    length: int  # of a row
    index_of_row: dict[int, int] = field(default_factory=dict)
    drawn: list[Vector] = field(default_factory=list)  # in the order of the indices
    # for columns of a matrix: it is stored row by row
    row_major: bool = True
    # from one entry of a row to the next one in storage
    step: int = 1

    def numbers_of(self, starts: Ints) -> tuple[Ints, Ints]:
        """The numbers of the rows that have some positions of the storage, and the
        places of these positions in their rows, which are 0 where a row begins.

        With a step of s, s rows are interleaved in a block of the storage.
        """
        block, position_in_block = np.divmod(starts, self.length * self.step)
        place_in_row, row_of_block = np.divmod(position_in_block, self.step)
        row = block * self.step + row_of_block
        return row, place_in_row

    def of_storage(self, numbers: Any) -> Any:
        """The rows, in the order in which they were drawn, of the whole parameter."""
        blocks = np.ravel(numbers).reshape(-1, self.length, self.step)
        rows = blocks.swapaxes(-1, -2).reshape(-1, self.length)
        return rows[list(self.index_of_row)]

    @property
    def joined(self) -> Vector:
        """All vectors that were drawn."""
        return self.drawn[0] if len(self.drawn) == 1 else join(self.drawn)

    def add(self, rows: Iterable[int]) -> None:
        """Draw the rows that are not drawn yet."""
        new = [row for row in rows if row not in self.index_of_row]
        if not new:
            return
        self.drawn.append(
            iid_vectors(self.law, width=self.length, count=len(new), name=self.law.name)
        )
        for row in new:
            self.index_of_row[row] = len(self.index_of_row)

    def indices(self, rows: Ints) -> Ints:
        """The indices of rows among the vectors that were drawn."""
        index_of = np.vectorize(self.index_of_row.__getitem__, otypes=[np.intp])
        return np.asarray(index_of(rows))


def iid_vectors(law: Parameter, width: int, count: int, name: str) -> Vector:
    """Vectors with i.i.d. coordinates of a law.

    They are F⁻¹(Φ(z)) of Gaussian vectors z, with F the distribution function of the
    law; Gaussian ones of the same variance, if it is not known.
    """
    distribution = law.distribution
    if distribution is None or distribution.is_normal:
        return gaussian(width, count, mean=law.mean, cov=law.std**2, name=name)
    return nonlin(distribution.function(name), gaussian(width, count))


def iid_scalars(law: Parameter, shape: Shape, name: str) -> Scalar:
    """`iid_vectors` for scalars."""
    distribution = law.distribution
    if distribution is None or distribution.is_normal:
        return normal(shape, law.std, name=name) + law.mean
    return apply(distribution.function(name), normal(shape))


class StandIn(NamedTuple):
    """A use of a parameter for which Gaussian numbers of the same variance stand."""

    law: str
    # the numbers of its entries that an output sums over; None: it is not a sum
    terms: int | None


class Rows(NamedTuple):
    """Rows of a parameter."""

    name: str
    rows: Ints


@dataclass(eq=False)
class Draws:
    """The random objects of a program, by the names of their parameters.

    The invariant: each entry of a parameter is drawn once. A second use returns the
    same random object, in the orientation that it needs, or raises `Refusal`.
    """

    laws: Mapping[str, Parameter]
    ids: Mapping[str, Ints]  # those that are looked up in each table
    names: Mapping[str, str] = field(default_factory=dict)  # other names than the paths
    head: str | None = None  # the matrix whose products are logits
    # an optimiser moves tables: they are matrices that act on unit vectors
    trained: bool = False
    # matrices that multiply only given numbers, few of which are not 0
    of_given_numbers: Collection[str] = ()

    def __post_init__(self) -> None:
        # By the name of a parameter: what it is used as ("a matrix", "a table" or
        # "vectors"), and where Gaussian numbers stand for it
        self._uses: dict[str, str] = {}
        self._stand_ins: dict[str, StandIn] = {}

        # By the name of a parameter: what was drawn for it. A matrix, by the part of
        # the parameter; columns of a matrix that multiply given numbers, by their run
        # of entries; a table of embeddings; vectors, such as biases
        self._matrices: dict[str, dict[Part, DrawnMatrix]] = {}
        self._columns: dict[str, dict[Span, DrawnRows]] = {}
        self._embeddings: dict[str, nn.Embedding] = {}
        self._rows: dict[str, DrawnRows] = {}

        # By drawn vectors: the rows of a parameter that they are; the same rows as
        # scalars. They are different draws, so the translation of a program reads
        # `twins` to refuse a program that uses both
        self._rows_of_vectors: dict[Vector, Rows] = {}
        self.twins: dict[Vector, Scalar] = {}
        # coordinates of vectors as scalars, by the vectors, the width of a piece, and
        # the numbers of the pieces
        self._entries: dict[tuple[Vector, int, tuple[int, ...]], Scalar] = {}

        # whether a low number stands for coordinates of −∞
        self.has_infinite_coordinates = False

        # By the value x · x: the vectors x. The rules of multiplication and of means
        # share it, to recognise norms
        self.squares: dict[Value, Vectors] = {}
        # by vectors: the same minus the means of their coordinates
        self._centred: dict[tuple[Value, int], Vectors] = {}
        # by vectors: the same without a gradient
        self._detached: dict[Vectors, Vectors] = {}

    def _law_for(self, name: str, use: str) -> Parameter:
        """The law of a parameter, which has only one use."""
        earlier_use = self._uses.setdefault(name, use)
        refuse_if(
            earlier_use != use,
            f"the parameter {name} is used both as {earlier_use} and as {use}: give"
            " each use a parameter of its own",
        )
        return self.laws[name]

    def label(self, program: Program) -> Program:
        """The program, with notes on what is not exact in its law."""
        notes = []
        measured = [name for name in self._uses if self.laws[name].std_error]
        if measured:
            notes.append(
                f"the standard deviation of {_listed(measured)} is measured from"
                " samples of the initialisation"
            )
        for law in dict.fromkeys(use.law for use in self._stand_ins.values()):
            notes += self._notes_of_stand_ins(law)
        program._gaussian = not notes
        program._notes = tuple(notes)
        # the same network has the same draws, however it is written
        program._counts_draws = True
        return program

    def _notes_of_stand_ins(self, law: str) -> list[str]:
        """Notes on the parameters of one law that are read as Gaussian."""
        uses = {name: use for name, use in self._stand_ins.items() if use.law == law}
        terms = [use.terms for use in uses.values() if use.terms is not None]
        sums = [name for name, use in uses.items() if use.terms is not None]
        others = [name for name, use in uses.items() if use.terms is None]
        notes = []
        if sums:
            least = f"{min(terms):,}"
            if max(terms) > min(terms):
                least += f" to {max(terms):,}"
            notes.append(
                f"Gaussian numbers of the same variance stand for the {law} entries of"
                f" {_listed(sums)}: an output is a sum over {least} of them, and the"
                " law is that of the module as this number grows"
            )
        if others:
            notes.append(
                f"Gaussian numbers of the same variance stand for the {law} entries of"
                f" {_listed(others)}, whose exact law is not known: functions of them"
                " have another law at every width"
            )
        return notes

    def _stand_in(self, law: Parameter, terms: int | None) -> None:
        """Record that Gaussian numbers stand for a parameter, if it is not Gaussian."""
        if law.law == "normal":
            return
        known = self._stand_ins.get(law.name)
        if known is not None and known.terms is not None and terms is not None:
            terms = min(terms, known.terms)
        self._stand_ins[law.name] = StandIn(law.law, terms)

    def product(
        self, w: Random, x: Vector, given: Floats | None = None
    ) -> Vectors | Scalars:
        """W x for a parameter W of shape (out, in); `given` are the numbers of x.

        A parameter with more axes, (out, …), is a matrix with all others as columns.
        For a table whose rows were looked up these are tied logits.
        """
        if w.name in self.ids:
            return self._product_of_table(w, x)
        if given is not None and w.name in self.of_given_numbers:
            self._law_for(w.name, "a matrix")
            return self._sum_of_columns(w, given)
        out = w.shape[0]
        into = math.prod(w.shape[1:])
        law = self._law_of_matrix(w, into)
        std = law.std * math.sqrt(into)
        if w.name == self.head:
            transposed = w.viewed(Permute((1, 0)))
            if self._is_whole(w) or self._is_whole(transposed):
                return Scalars(
                    drawn_logits(x, vocabulary=out, sigma=std, frozen=w.frozen)
                )
        return Vectors.of(self._matrix(w, out, into, std) @ x)

    def products(self, w: Random, x: Vector, *, each: bool) -> Vectors:
        """W_b x for a parameter W of shape (batch, out, in), or W_b x[b] with `each`.

        The matrices are one batch, unless some of them acted alone before.
        """
        batch, out, into = w.shape
        law = self._law_of_matrix(w, into)
        std = law.std * math.sqrt(into)
        slices = [w.viewed(Index(0, number)) for number in range(batch)]
        drawn = self._matrices.setdefault(w.name, {})
        if drawn.keys().isdisjoint(map(Part.of, slices)):
            self._draw_batch(slices, out, into, std)
        matrices = [self._matrix(part, out, into, std) for part in slices]
        first = matrices[0]
        is_one_batch = all(matrix.source is first.source for matrix in matrices)
        if is_one_batch:
            members = np.array([matrix.members for matrix in matrices])
            whole = replace(first, members=members)
            return Vectors.of(whole.each(x) if each else whole @ x)
        products = []
        for number, matrix in enumerate(matrices):
            product = matrix @ (x[number] if each else x)
            products.append(product[None])
        return Vectors.of(join(products))

    def _draw_batch(
        self, slices: Sequence[Random], out: int, into: int, std: float
    ) -> None:
        """Draw parts of a parameter, of which none acted before, as one batch."""
        parameter = slices[0].name
        name = self.names.get(parameter, parameter)
        whole = weight(out, into, batch=len(slices), std=std, name=name)
        drawn = self._matrices[parameter]
        new: dict[Part, DrawnMatrix] = {}
        for number, part in enumerate(slices):
            self._refuse_overlap(part)
            as_part = not _is_turned(part)
            new[Part.of(part)] = DrawnMatrix(whole[number], as_part)
        drawn.update(new)

    def _law_of_matrix(self, w: Random, into: int) -> Parameter:
        """The law of a parameter that is used as a matrix with so many columns."""
        law = self._law_for(w.name, "a matrix")
        refuse_if(law.mean, f"the matrix {w.name} has entries of mean {law.mean:g}")
        self._stand_in(law, into)
        refuse_if(
            law.zero_rows,
            f"the matrix {w.name} has rows of zeros:"
            f" {', '.join(map(str, law.zero_rows[:8]))}",
        )
        refuse_if(
            not all(w.layout.strides),
            f"the matrix {w.name} repeats its rows or columns",
        )
        return law

    def _matrix(self, w: Random, out: int, into: int, std: float) -> Any:
        """The matrix of a parameter, or of a part of it, drawn when first used."""
        part = Part.of(w)
        as_part = not _is_turned(w)
        drawn = self._matrices.setdefault(w.name, {})
        if part not in drawn:
            self._refuse_overlap(w)
            name = self.names.get(w.name, w.name)
            drawn[part] = DrawnMatrix(weight(out, into, std=std, name=name), as_part)
        matrix = _used_as(w, drawn[part].weight)
        if drawn[part].as_part != as_part:
            return matrix.T
        return matrix

    def _refuse_overlap(self, w: Random) -> None:
        """Reject a part that has entries in common with one that acted before."""
        part = Part.of(w)
        refuse_if(
            any(
                part != other and part.overlaps(other)
                for other in self._matrices[w.name]
            ),
            f"parts of {w.name} that overlap act as different matrices",
        )

    def acts_row_by_row(self, w: Random) -> bool:
        """Whether a matrix, or several, are read as the vectors that their rows are.

        They have entries of mean other than 0, and few outputs.
        """
        if self.trained or w.name in self.ids or w.name in self.of_given_numbers:
            return False
        has_mean = bool(self.laws[w.name].mean)
        has_few_outputs = math.prod(w.shape[:-1]) <= MOST_ENTRIES
        return has_mean and has_few_outputs

    def _sum_of_columns(self, w: Random, x: Floats) -> Vectors:
        """W x = Σ_j x_j w_j for given numbers x, with w_j the columns of W.

        It is exact for any law of the entries of W. Only columns with x_j ≠ 0 are
        drawn.
        """
        law = self.laws[w.name]
        refuse_if(
            law.zero_rows,
            f"the matrix {w.name} has rows of zeros:"
            f" {', '.join(map(str, law.zero_rows[:8]))}",
        )
        span = Span(w.layout.offset, w.layout.size)
        columns_by_span = self._columns.setdefault(w.name, {})
        if span not in columns_by_span:
            row_major = _is_row_major(w)
            columns_by_span[span] = DrawnRows(law, w.shape[0], row_major=row_major)
        columns = columns_by_span[span]
        refuse_if(
            any(span != other and span.overlaps(other) for other in columns_by_span)
            or columns.length != w.shape[0]
            or columns.row_major != _is_row_major(w),
            f"parts of {w.name} that overlap, or its transpose, act as different"
            f" matrices on given numbers: {law.remedy}",
        )
        nonzero_columns = np.flatnonzero(x.reshape(-1, x.shape[-1]).any(axis=0))
        if not nonzero_columns.size:
            nonzero_columns = np.array([0])
        columns.add(nonzero_columns.tolist())
        vectors = columns.joined[columns.indices(nonzero_columns)]
        if w.frozen:
            vectors = stop_gradient(vectors)
        return Vectors.of(x[..., nonzero_columns] @ vectors)

    def _is_whole(self, w: Random) -> bool:
        """Whether a view is the whole parameter, and not transposed.

        Its columns may be in another order, as those for images that were flattened.
        """
        rows, *other_sizes = self.laws[w.name].shape
        row_size = math.prod(other_sizes)
        layout = w.layout
        has_all_rows = w.shape[0] == rows and layout.strides[0] == row_size
        return has_all_rows and layout.size == rows * row_size

    def _product_of_table(self, w: Random, x: Vector) -> Vectors | Scalars:
        """The product of vectors with a table whose rows were looked up."""
        refuse_if(
            len(w.shape) != 2 or not self._is_whole(w),
            f"a part of the table {w.name}, or its transpose, as a matrix",
        )
        if self.trained:
            return Vectors.of(_used_as(w, self._table(w.name)).T @ x)
        table = self._embedding(w.name)
        law = self.laws[w.name]
        refuse_if(law.mean, f"the table {w.name} has entries of mean {law.mean:g}")
        if w.frozen:
            table = table.as_constants()
        words = w.shape[0]
        logits = table.logits(x, words)
        if words > len(table.known):
            self._stand_in(law, w.shape[1])
        if not law.zero_rows:
            return Scalars(logits)
        return Scalars(_with_zero_logits(logits, x, list(law.zero_rows)))

    def _embedding(self, name: str) -> nn.Embedding:
        """The embedding that a table is; only its rows at known ids are drawn."""
        law = self._law_for(name, "a table")
        refuse_if(
            name not in self.ids,
            f"rows of {name} after an operation on the whole parameter",
        )
        if name not in self._embeddings:
            width = law.shape[1]
            shown_name = self.names.get(name, "embedding")
            table = nn.Embedding(self.ids[name], width, law.std, name=shown_name)
            if law.distribution is None:
                self._stand_in(law, None)
            elif law.mean or not law.distribution.is_normal:
                count = len(table.known)
                table.vectors = iid_vectors(law, width, count, name=shown_name)
            self._embeddings[name] = table
            self._rows_of_vectors[table.vectors] = Rows(name, table.known)
        return self._embeddings[name]

    def _table(self, name: str) -> Weight:
        """A table as a matrix that acts on unit vectors."""
        law = self._law_for(name, "a table")
        refuse_if(
            law.zero_rows or law.mean,
            f"a step of an optimiser on {name}, with rows of zeros or entries of mean"
            f" {law.mean:g}",
        )
        count, size = law.shape
        drawn = self._matrices.setdefault(name, {})
        whole = Part((count, size), (size, 1), offset=0)
        if whole not in drawn:
            matrix = weight(size, count, std=law.std * math.sqrt(count), name=name)
            # it looks up rows: an output is one entry
            self._stand_in(law, 1)
            drawn[whole] = DrawnMatrix(matrix, as_part=False)
        return drawn[whole].weight

    def rows(self, table: Random, ids: Ints, gradients: Floats) -> Vector:
        """The rows of a table at ids, in their shape.

        `gradients` are the factors of the gradient that each row receives.
        """
        law = self.laws[table.name]
        factors = 0.0 * gradients if table.frozen else gradients
        if self.trained:
            units = unit_vectors(ids.ravel().tolist(), law.shape[0])
            matrix = _used_as(table, self._table(table.name))
            return scaled_gradient((matrix @ units).reshape(*ids.shape), factors)
        embedding = self._embedding(table.name)
        rows = scaled_gradient(embedding(ids), factors)
        is_zero = np.isin(ids, law.zero_rows)
        if not is_zero.any():
            return rows
        result = np.where(is_zero, 0.0, 1.0) * rows
        # a row of zeros that is no padding has a gradient: add 0 with that of `rows`
        moves = is_zero & (factors != 0)
        if moves.any():
            zero = rows - stop_gradient(rows)
            result = result + moves.astype(float) * zero
        return result  # type: ignore[no-any-return]

    def vectors(self, x: Random, axis: int = -1) -> Vectors:
        """A parameter as vectors, with their coordinates along one of its axes.

        Such are biases, learned positions, a class token, and the taps of a depthwise
        convolution. Each vector is a row of the storage, or several rows end to end.
        """
        law = self._law_for(x.name, "vectors")
        axis %= len(x.shape)
        size = x.shape[axis]
        step = x.layout.strides[axis] if size > 1 else 1
        drawn = self._rows.setdefault(x.name, DrawnRows(law, length=size, step=step))
        if law.distribution is None:
            self._stand_in(law, None)
        refuse_if(
            law.zero_rows,
            f"the parameter {x.name}, which is added to vectors, has rows of zeros",
        )
        starts = x.layout.positions(without=axis)
        first_rows, places_in_rows = drawn.numbers_of(starts)
        length = drawn.length
        has_other_step = step != drawn.step and size > 1
        has_parts_of_rows = bool(size % length) or places_in_rows.any()
        joins_strided_rows = size != length and step > 1
        refuse_if(
            has_other_step or has_parts_of_rows or joins_strided_rows,
            f"the parameter {x.name} is used in pieces that are not rows of {length}"
            " entries: give each use a parameter of its own",
        )
        rows = first_rows[..., None] + np.arange(size // length)
        drawn.add([int(row) for row in np.unique(rows)])
        if len(drawn.drawn) == 1 and drawn.step == 1:
            of_drawn = np.array(list(drawn.index_of_row))
            self._rows_of_vectors[drawn.drawn[0]] = Rows(x.name, of_drawn)
        vectors = drawn.joined[drawn.indices(rows)]
        if size == length:
            vectors = vectors[..., 0]
        else:
            vectors = concat(vectors, axis=-1)
        if x.frozen:
            vectors = stop_gradient(vectors)
        return Vectors.of(vectors, axis)

    def centred(self, x: Vectors) -> Vectors:
        """Vectors minus the means of their coordinates, as in `ns.layer_norm`."""
        key = x.plain, x.from_end
        if key not in self._centred:
            constant_vector = ones(x.plain.width)
            averages = mean_dot(x.plain, constant_vector)
            centred = x.plain - averages * constant_vector
            self._centred[key] = Vectors.of(centred, x.from_end)
        return self._centred[key]

    def without_gradient(self, x: Vectors) -> Vectors:
        """The same vectors without a gradient: the same object for each use."""
        if x not in self._detached:
            self._detached[x] = replace(x, value=stop_gradient(x.value))
        return self._detached[x]

    def can_be_scores(self, x: Vectors) -> bool:
        """Whether a mask may meet vectors: they are rows of a parameter, or few."""
        base = _base_of(x.value, self._rows_of_vectors)
        return base in self._rows_of_vectors or has_few_coordinates(x)

    def scalars(self, x: Vectors) -> Scalars:
        """The coordinates of vectors as scalars, where others meet them one by one.

        Rows of a parameter, such as relative positions with one number for each head,
        are drawn as scalars.
        """
        base = _base_of(x.value, self._rows_of_vectors)
        if base not in self._rows_of_vectors:
            return self.entries(x)
        name, rows = self._rows_of_vectors[base]
        law = self.laws[name]
        if base not in self.twins:
            shape = (len(rows), base.width.factor)
            self.twins[base] = iid_scalars(law, shape, name=name)
        plain = x.plain
        rows_of_scalars = self.twins[base].reshape(-1, base.width.factor)
        coordinates_last = rows_of_scalars[_positions(plain, base)]
        order = list(range(plain.ndim))
        order.insert(x.axis, plain.ndim)
        return Scalars(coordinates_last.transpose(*order))

    def entries(self, x: Vectors) -> Scalars:
        """The coordinates of vectors as scalars: products with the unit vectors.

        The vectors themselves can still be used. Only the pieces of coordinates that
        the view shows are multiplied.
        """
        width = x.value.width.factor
        # the storage has room for two coordinates of each vector or more
        room = max(width, 2)
        vectors, coordinates = np.divmod(x.layout.all_positions, room)
        if x.is_interleaved:
            size = len(np.unique(coordinates))
            piece = 1
        else:
            size = x.shape[x.axis]
            piece = x.piece
        refuse_if(
            size > MOST_ENTRIES,
            f"{size} coordinates as single numbers: at most {MOST_ENTRIES} are read",
        )
        piece_numbers = vectors * (width // piece) + coordinates // piece
        distinct, index_of = np.unique(piece_numbers, return_inverse=True)
        key = x.value, piece, tuple(distinct.tolist())
        if key not in self._entries:
            self._entries[key] = _entries_of_pieces(x.value, piece, distinct)
        first_entries = index_of.reshape(piece_numbers.shape) * piece
        positions = first_entries + coordinates % piece
        return Scalars(self._entries[key].take(positions))

    def single_entries(self, x: Interleaved) -> Scalars:
        """Coordinates that are interleaved with positions, as scalars.

        An entry that is 0 stays 0.
        """
        vectors = Vectors.of(x.value.reshape(-1))
        entries = self.entries(vectors).value.reshape(-1)
        is_zero = x.origins == ZERO
        positions = np.where(is_zero, 0, x.origins)
        ones_and_zeros = np.where(is_zero, 0.0, 1.0)
        return Scalars(entries.take(positions) * ones_and_zeros)

    def entries_of_parameter(self, x: Random) -> Scalars:
        """The entries of a parameter, or of a view of it, as scalars."""
        shape = self.laws[x.name].shape
        whole = replace(x, layout=Layout.contiguous(shape or (1,)))
        refuse_if(
            whole.shape[-1] > MOST_ENTRIES,
            f"{whole.shape[-1]} entries of {x.name} as single numbers: at most"
            f" {MOST_ENTRIES} are read",
        )
        axis = -1
        drawn = self._rows.get(x.name)
        if drawn is not None and drawn.step > 1:  # columns that were vectors before
            axis = whole.layout.strides.index(drawn.step)
        entries = self.entries(self.vectors(whole, axis))
        return Scalars(entries.value.reshape(-1).take(x.layout.all_positions))


# vectors whose coordinates a module uses one by one have at most so many
MOST_ENTRIES = 1024
ALWAYS_FEW = 4


def has_few_coordinates(x: Vectors) -> bool:
    """Whether the coordinates of vectors may be used one by one, as those of a router.

    They are outputs of matrices with more inputs, and functions of these and of biases.
    A part of the outputs of a larger matrix may also be few, and so are up to
    `ALWAYS_FEW` outputs of any matrix.
    """
    if x.shape[x.axis] > MOST_ENTRIES:
        return False
    # those of all heads together
    positions = x.layout.all_positions % max(x.value.width.factor, 2)
    count = np.unique(positions).size
    pending: list[Vector] = [x.value]
    seen: set[Value] = set()
    is_made_by_matrix = False
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.op, MatMul):
            inputs = value.op.weight.in_width.factor
            if count >= inputs and count > ALWAYS_FEW:
                return False
            is_made_by_matrix = True
        else:
            pending += [y for y in value.op.inputs if isinstance(y, Vector)]
    return is_made_by_matrix


def _is_row_major(w: Random) -> bool:
    """Whether a matrix is stored row by row; otherwise it is column by column."""
    out, into = w.shape
    row_major = w.layout.strides == (into, 1)
    refuse_if(
        not row_major and w.layout.strides != (1, out),
        f"the matrix is made of some columns of {w.name}",
    )
    return row_major


def _entries_of_pieces(vectors: Vector, piece: int, indices: Ints) -> Scalar:
    """The coordinates of some pieces of vectors, one after the other, as scalars."""
    pieces_per_vector = vectors.width.factor // piece
    pieces = vectors
    if pieces_per_vector > 1:
        pieces = split(vectors, pieces_per_vector, vectors.ndim)
    unit_vectors = data(np.eye(piece))
    products: Scalar = piece * mean_dot(pieces.take(indices), unit_vectors)
    return products.reshape(-1)


def _listed(names: list[str]) -> str:
    """Some names, and how many others there are."""
    shown = ", ".join(names[:SHOWN_NAMES])
    others = len(names) - SHOWN_NAMES
    if others > 0:
        return f"{shown} and {others} more"
    return shown


def _with_zero_logits(logits: Any, x: Vector, zero_rows: list[int]) -> Any:
    """The logits (…, words), of which those of rows of zeros are replaced by 0.

    They are those of words of standard deviation 0, because they have a gradient.
    """
    flat = x.reshape(-1)
    count = len(zero_rows)
    zero_words = normal((count, flat.size), 0.0, name="words")
    zeros: Scalar = zero_words @ root(mean_dot(flat, flat))
    zeros = zeros.transpose().reshape(*x.shape, count)
    logits_then_zeros = join([logits, zeros], -1)
    words = logits.shape[-1]
    origin_of_word = np.arange(words)
    origin_of_word[zero_rows] = words + np.arange(count)
    return logits_then_zeros[..., origin_of_word]


def _used_as(parameter: Random, matrix: Weight) -> Weight:
    """A matrix for one product, which knows whether and whose gradients reach it."""
    owned = replace(matrix, owner=parameter.owner)
    return stop_gradient(owned) if parameter.frozen else owned


def _base_of(value: Value, bases: Collection[Vector]) -> Any:
    """The one of `bases` that a value selects from.

    If it selects from none of them, the value that is below all its indices.
    """
    while value not in bases and isinstance(value.op, Take | ScaledGradient):
        value = value.op.x
    return value


def _positions(value: Value, base: Value) -> Ints:
    """The positions of the entries of a value in the array that it selects from."""
    if value is base:
        return np.arange(base.size).reshape(base.shape)
    if isinstance(value.op, ScaledGradient):
        return _positions(value.op.x, base)
    assert isinstance(value.op, Take)
    positions_before = _positions(value.op.x, base)
    return np.asarray(positions_before.ravel()[value.op.flat])
