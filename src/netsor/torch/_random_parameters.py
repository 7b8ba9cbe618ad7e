"""Random parameters as values of the language.

A parameter becomes a matrix that acts, rows of a table, vectors, or scalars: how it is
used decides. One parameter is one random object, however often and in whichever
orientation the module uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import netsor.nn as nn

from .._array_api import Floats, Ints
from ..language import (
    Scalar,
    Value,
    Vector,
    Weight,
    concat,
    gaussian,
    join,
    mean_dot,
    normal,
    stop_gradient,
    weight,
)
from ..language.operations._stop_gradient import ScaledGradient, scaled_gradient
from ..language.values._array import Take
from ..models._training import unit_vectors
from ..nn._embedding import drawn_logits, root
from ._axes import Scalars, Vectors, View, refuse_if
from ._parameters import Parameter


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


@dataclass(eq=False)
class Draws:
    """The random objects of a program, by the names of their parameters."""

    laws: Mapping[str, Parameter]
    ids: Mapping[str, Ints]  # those that are looked up in each table
    names: Mapping[str, str] = field(default_factory=dict)  # other names than the paths
    head: str | None = None  # the matrix whose products are logits
    # an optimiser moves tables: they are matrices that act on unit vectors
    trained: bool = False

    def __post_init__(self) -> None:
        self.squares: dict[Value, Vectors] = {}  # vectors of squares, and their roots
        self._uses: dict[str, str] = {}
        self._weights: dict[str, dict[tuple[int, int], tuple[Weight, bool]]] = {}
        self._embeddings: dict[str, nn.Embedding] = {}
        self._rows: dict[str, tuple[int, dict[int, int], list[Vector]]] = {}
        # vectors of rows: the table, and which rows
        self._tables: dict[Vector, tuple[str, Ints]] = {}
        self.twins: dict[Vector, Scalar] = {}  # rows as scalars instead of vectors

    def _used(self, name: str, how: str) -> Parameter:
        first = self._uses.setdefault(name, how)
        refuse_if(
            first != how, f"the parameter {name} is used both as {first} and as {how}"
        )
        return self.laws[name]

    def product(self, w: Random, x: Vector) -> Vectors | Scalars:
        """W x for a parameter W of shape (out, in); for a table whose rows were looked
        up, tied logits.
        """
        out, into = w.shape
        law = self.laws[w.name]
        plain, turned = w.entries.stride() == (into, 1), w.entries.stride() == (1, out)
        whole = plain and w.entries.numel() == math.prod(law.shape)
        if w.name in self.ids:
            refuse_if(
                not whole,
                f"a part of the table {w.name}, or its transpose, as a matrix",
            )
            if self.trained:
                return Vectors.of(_used_as(w, self._table(w.name)).T @ x)
            table = (
                self._embedding(w.name).as_constants()
                if w.frozen
                else self._embedding(w.name)
            )
            logits, rows = table.logits(x, out), list(law.zero_rows)
            # their logits are 0: words of standard deviation 0, because they have a
            # gradient
            if rows:
                flat, order = x.reshape(-1), np.arange(out)
                zero: Scalar = normal((len(rows), flat.size), 0.0, name="words") @ root(
                    mean_dot(flat, flat)
                )
                order[rows] = out + np.arange(len(rows))
                logits = join(
                    [logits, zero.transpose().reshape(*x.shape, len(rows))], -1
                )[..., order]
            return Scalars(logits)
        self._used(w.name, "a matrix")
        refuse_if(law.mean, f"the matrix {w.name} has entries of mean {law.mean:g}")
        refuse_if(
            law.zero_rows,
            f"the matrix {w.name} has rows of zeros:"
            f" {', '.join(map(str, law.zero_rows[:8]))}",
        )
        refuse_if(
            not (plain or turned), f"the matrix is made of some columns of {w.name}"
        )
        if w.name == self.head and whole:
            return Scalars(drawn_logits(x, out, law.std * math.sqrt(into), w.frozen))
        place = (w.entries.storage_offset(), w.entries.numel())
        known = self._weights.setdefault(w.name, {})
        overlap = any(
            place != other and max(place[0], other[0]) < min(sum(place), sum(other))
            for other in known
        )
        refuse_if(overlap, f"parts of {w.name} that overlap act as different matrices")
        if place not in known:
            name = self.names.get(w.name, w.name)
            known[place] = (
                weight(out, into, std=law.std * math.sqrt(into), name=name),
                plain,
            )
        matrix, as_it_was = known[place]
        matrix = _used_as(w, matrix)
        return Vectors.of((matrix if as_it_was == plain else matrix.T) @ x)

    def _embedding(self, name: str) -> nn.Embedding:
        law = self._used(name, "a table")
        refuse_if(
            name not in self.ids,
            f"rows of {name} after an operation on the whole parameter",
        )
        refuse_if(law.mean, f"the table {name} has entries of mean {law.mean:g}")
        if name not in self._embeddings:
            table = nn.Embedding(
                self.ids[name],
                law.shape[1],
                law.std,
                name=self.names.get(name, "embedding"),
            )
            self._embeddings[name], self._tables[table.vectors] = (
                table,
                (name, table.known),
            )
        return self._embeddings[name]

    def _table(self, name: str) -> Weight:
        """A table as a matrix that acts on unit vectors."""
        law = self._used(name, "a table")
        plain = not law.zero_rows and not law.mean
        refuse_if(
            not plain,
            f"a step of an optimiser on {name}, with rows of zeros or entries of mean"
            f" {law.mean:g}",
        )
        count, size = law.shape
        matrix = weight(size, count, std=law.std * math.sqrt(count), name=name)
        return self._weights.setdefault(name, {}).setdefault(
            (0, count * size), (matrix, False)
        )[0]

    def rows(self, table: Random, ids: Ints, gradients: Floats) -> Vector:
        """The rows of a table at ids, in their shape; `gradients` are the factors of
        what each row receives.
        """
        factors = 0.0 * gradients if table.frozen else gradients
        if self.trained:
            units = unit_vectors(ids.ravel().tolist(), self.laws[table.name].shape[0])
            rows = (_used_as(table, self._table(table.name)) @ units).reshape(
                *ids.shape
            )
            return scaled_gradient(rows, factors)
        rows = scaled_gradient(self._embedding(table.name)(ids), factors)
        zero = np.isin(ids, self.laws[table.name].zero_rows)
        if not zero.any():
            return rows
        kept = np.where(zero, 0.0, 1.0) * rows
        # a row of zeros that is no padding has a gradient
        moves = zero & (factors != 0)
        return (  # type: ignore[no-any-return]
            kept + moves.astype(float) * (rows - stop_gradient(rows))
            if moves.any()
            else kept
        )

    def vectors(self, x: Random) -> Vectors:
        """A parameter as vectors, its last axis the coordinates: biases, learned
        positions, a class token.
        """
        law, size, at = self._used(x.name, "vectors"), x.shape[-1], x.starts(-1)
        length, known, parts = self._rows.setdefault(x.name, (size, {}, []))
        refuse_if(
            law.zero_rows,
            f"the parameter {x.name}, which is added to vectors, has rows of zeros",
        )
        pieces = (
            (size > 1 and x.entries.stride(-1) != 1)
            or size % length
            or (at % length).any()
        )
        refuse_if(
            pieces,
            f"the parameter {x.name} is used in pieces that are not rows of {length}"
            " entries",
        )
        rows = at[..., None] // length + np.arange(size // length)
        new = [int(row) for row in np.unique(rows) if int(row) not in known]
        if new:
            parts.append(
                gaussian(length, len(new), mean=law.mean, cov=law.std**2, name=x.name)
            )
            known.update({row: len(known) + k for k, row in enumerate(new)})
        whole = parts[0] if len(parts) == 1 else join(parts)
        if len(parts) == 1:
            self._tables[whole] = x.name, np.array(list(known))
        vectors = whole[np.vectorize(known.__getitem__, otypes=[np.intp])(rows)]
        vectors = vectors[..., 0] if size == length else concat(vectors, axis=-1)
        return Vectors.of(stop_gradient(vectors) if x.frozen else vectors)

    def scalars(self, x: Vectors) -> Scalars:
        """The entries of rows as scalars, where they are added to scores: relative
        positions, a number a head.
        """
        base = _table_under(x.value, self._tables)
        refuse_if(
            base not in self._tables,
            "only rows of a parameter can be scalars, and not coordinates of vectors",
        )
        name, rows = self._tables[base]
        law = self.laws[name]
        if base not in self.twins:
            self.twins[base] = (
                normal((len(rows), base.width.factor), law.std, name=name) + law.mean
            )
        plain, at = x.plain, x.axis
        flat = _positions(plain, base)
        order = list(range(plain.ndim))
        order.insert(at, plain.ndim)
        return Scalars(
            self.twins[base].reshape(-1, base.width.factor)[flat].transpose(*order)
        )


def _used_as(parameter: Random, matrix: Weight) -> Weight:
    """A matrix for one product: whether gradients reach it, and whose gradient that
    is.
    """
    owned = replace(matrix, owner=parameter.owner)
    return stop_gradient(owned) if parameter.frozen else owned


def _table_under(value: Value, tables: Mapping[Vector, Any]) -> Any:
    """The rows of a parameter that a value selects from, or the last value under
    indices.
    """
    while value not in tables and isinstance(value.op, Take | ScaledGradient):
        value = value.op.x
    return value


def _positions(value: Value, base: Value) -> Ints:
    """Where the entries of a value are in the array that it selects from."""
    if value is base:
        return np.arange(base.size).reshape(base.shape)
    if isinstance(value.op, ScaledGradient):
        return _positions(value.op.x, base)
    assert isinstance(value.op, Take)
    return np.asarray(_positions(value.op.x, base).ravel()[value.op.flat])
