"""Tensors whose coordinates are interleaved with positions: the axis rule, for a while.

`flatten` of an image (batch, channels, rows, columns) makes an axis of all its numbers,
channel by channel. It is neither an axis of coordinates nor one of indices. Code that
cuts an image into windows by `reshape` makes such tensors on the way, too.

They are kept as vectors and, for each entry, where it comes from. As soon as an axis
holds coordinates alone again, they are vectors. A matrix may act on them: its columns
are sorted by positions, and it acts on all vectors concatenated.

Examples
--------
>>> import netsor as ns
>>> from netsor.reader._axes import Vectors
>>> from netsor.reader._interleaved import Interleaved
>>> image = Interleaved.of(Vectors.of(ns.gaussian(3, 4)).moved(-1, 0))
>>> image.shape, image.vectors().axis
((3, 4), 0)
>>> flat = image.by(lambda entries: entries.reshape(12))
>>> flat.shape, flat.origins[:6]
((12,), array([0, 3, 6, 9, 1, 4]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import language as ns
from .._array_api import Ints
from .._validate import Shape
from ..language.operations._operation import split
from ._axes import Vectors

ZERO = -1  # the origin of an entry that is 0


@dataclass(frozen=True, eq=False)
class Interleaved:
    """Entries of vectors, in any order.

    `origins` has the shape of the tensor, and says where each entry comes from: number
    k·width + j is coordinate j of vector k. `ZERO` is an entry that is 0.
    """

    value: ns.Vector
    origins: Ints

    @classmethod
    def of(cls, x: Vectors) -> Interleaved:
        """The entries of vectors, in the order of their tensor."""
        plain = x.plain
        coordinates = x.shape[x.axis]
        # in the storage, the coordinates of a vector follow each other
        origins = np.arange(plain.size * coordinates)
        coordinates_last = origins.reshape(*plain.shape, coordinates)
        in_order_of_tensor = np.moveaxis(coordinates_last, -1, x.axis)
        return cls(plain, in_order_of_tensor)

    @classmethod
    def of_view(cls, x: Vectors) -> Interleaved:
        """The entries that a view of vectors shows, where no axis holds coordinates."""
        width = x.value.width.factor
        # the storage has room for two coordinates of each vector or more
        room = max(width, 2)
        vectors, coordinates = np.divmod(x.layout.all_positions, room)
        origins = vectors * width + coordinates
        return cls(x.value, origins)

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.origins.shape

    @property
    def width(self) -> int:
        """The number of coordinates of each vector."""
        return int(self.value.width.factor)

    def by(self, rearrangement: Callable[[Ints], Ints]) -> Interleaved:
        """The tensor rearranged, by a function of arrays."""
        return replace(self, origins=np.asarray(rearrangement(self.origins)))

    def mapped(self, f: Callable[[ns.Vector], ns.Vector]) -> Interleaved:
        """A function of each entry, which keeps 0."""
        return replace(self, value=f(self.value))

    def vectors(self) -> Vectors | None:
        """The same tensor as vectors; None if no axis holds coordinates alone."""
        for axis in range(self.origins.ndim):
            origins = np.moveaxis(self.origins, axis, -1)
            piece = self._piece(origins)
            if piece:
                value = self._taken(origins, piece)
                return Vectors.of(value).moved(-1, axis)
        return None

    def _piece(self, origins: Ints) -> int:
        """The longest pieces of coordinates that the last axis consists of; 0: none.

        A piece is zeros, or coordinates that follow each other in one vector, from a
        multiple of the length on.
        """
        size = origins.shape[-1]
        common = math.gcd(size, self.width)
        shortest = 1 if self.width == 1 else 2
        for piece in range(common, shortest - 1, -1):
            if common % piece:
                continue
            pieces = origins.reshape(*origins.shape[:-1], size // piece, piece)
            first = pieces[..., :1]
            starts_at_multiple = first % piece == 0
            follows_first = pieces == first + np.arange(piece)
            is_zero = pieces == ZERO
            if ((starts_at_multiple & follows_first) | is_zero).all():
                return piece
        return 0

    def _taken(self, origins: Ints, piece: int) -> ns.Vector:
        """The vectors whose coordinates are along the last axis of some origins.

        They consist of pieces of the stored vectors; a piece of zeros is added to these
        if there is one.
        """
        pieces = self.value
        if piece != self.width:
            pieces = split(self.value, self.width // piece, self.value.ndim)
        pieces = pieces.reshape(-1)
        first_origins = origins[..., ::piece]
        indices = first_origins // piece
        is_zero = first_origins == ZERO
        if is_zero.any():
            indices = np.where(is_zero, len(pieces), indices)
            zeros = 0.0 * pieces[:1]
            pieces = ns.join([pieces, zeros])
        chosen = pieces[indices]
        if indices.shape[-1] == 1:
            return chosen[..., 0]
        return ns.concat(chosen, axis=-1)

    def channels_first(self) -> ns.Vector | None:
        """The vectors at all positions that the last axis flattens, (…, positions).

        The axis has all positions of the first coordinate, then of the second one, and
        so on. None if it has not.
        """
        size = self.shape[-1]
        if size % self.width:
            return None
        origins = self.origins.reshape(*self.shape[:-1], self.width, -1)
        origins = origins.swapaxes(-1, -2)
        if self._piece(origins) != self.width:
            return None
        return self._taken(origins, self.width)


def settled_rearrangement(x: Interleaved) -> Any:
    """The vectors that a tensor is, if one of its axes holds coordinates alone."""
    vectors = x.vectors()
    return x if vectors is None else vectors
