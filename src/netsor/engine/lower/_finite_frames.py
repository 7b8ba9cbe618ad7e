"""Frames: orthonormal directions in the space of a cluster. Vectors have coordinates
along them.

A `Frame` holds the frames of one group of clusters; coordinates are registers (frames,
vectors, directions). There are two kinds at finite width (docs/theory.md, equation 7,
and "Nonlinear sections"). A `BartlettFrame` suffices if only Gram matrices are needed.
A `StandardBasis` has the coordinates of the space as its directions: for
nonlinearities, for data, or where it costs less. Rebasing (see `_rebase`) turns it into
a Bartlett frame.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..._array_api import Ints
from ..plan._ir import Register
from ..plan._ir_builder import Builder
from ..run._rng_keys import (
    CHI,
    COORDINATES,
    CROSS,
    FRAME,
    ORIENTATION,
    ORIENTATION_CHI,
    OWN,
)
from ._components import FrameBatch, SeedKey


class Frame(ABC):
    """The frames of one group: orthonormal directions in the space of each cluster.

    Coordinates along them are registers (frames, vectors, directions).

    Attributes
    ----------
    group : FrameBatch
        The clusters.
    directions : int
        The directions of each frame so far.
    constant : Register or None
        The coordinates of (1, …, 1), (frames, directions), if it is a vector here.
    is_standard_basis : bool
        Whether the directions are the coordinates α themselves, until it is rebased.
    can_rebase : bool
        Whether other directions may replace these, because no random numbers belong to
        them. It is rebased when it has many more directions than vectors in use.
    """

    is_standard_basis = False
    can_rebase = False

    def __init__(
        self,
        group: FrameBatch,
        builder: Builder,
        directions: int,
        constant_entry: float | None,
    ) -> None:
        """`constant_entry`: each coordinate of (1, …, 1), if that is a vector here."""
        self.group = group
        self.builder = builder
        self.directions = directions
        self.constant: Register | None = None
        if constant_entry is not None:
            entries = np.full((group.frames, directions), constant_entry)
            self.constant = builder.constant(entries)

    @abstractmethod
    def add_sources(
        self, seed_key: SeedKey, sources: int, leaf: bool, label: str
    ) -> Register:
        """Add isotropic vectors; returns their coordinates, (frames, sources, ·).

        `seed_key` is that of their value, `label` its name in the plan. Each has its
        own direction, unless it is a `leaf`: a value whose sources are never
        multiplied with each other.
        """

    def spanning(
        self, vectors: Register, outputs: bool, kept: int
    ) -> tuple[Frame, Register]:
        """A new frame that spans vectors (frames, vectors, directions).

        Returns the frame, and the coordinates of the vectors in it. The first `kept`
        directions stay the same. `outputs`: whether coordinates α of vectors are asked
        for, so that the orientation of the new frame is needed; `kept` is then 0.
        """
        raise TypeError(f"{type(self).__name__} frames are not turned")

    def orientation(self) -> Register:
        """The coordinates α asked for, of a unit vector along each direction.

        (frames, coordinates, directions).
        """
        raise TypeError(
            f"coordinates of {type(self).__name__} frames are not asked for"
        )


def spanned(frame: Frame, vectors: Register, kept: int) -> tuple[Register, Register]:
    """Directions that span the parts of vectors beyond the first `kept` directions.

    Returns the new directions, and the coordinates of the vectors: those along the
    first `kept` directions, then those along the new ones. Both are arrays (frames,
    vectors, ·).
    """
    builder = frame.builder
    beyond = builder.step("part", vectors, start=kept, stop=frame.directions)
    label = "turn the frame to span the vectors still in use"
    basis = builder.step("basis", beyond, label=label)
    coordinates = []
    if kept:
        coordinates.append(builder.step("part", vectors, start=0, stop=kept))
    coordinates.append(builder.step("gram", beyond, basis))
    return basis, builder.step("join", *coordinates, axis=2)


MIN_JOINED_ENTRIES = 2**16  # of the rows of new vectors: larger ones are joined


class BartlettFrame(Frame):
    """Frames whose directions come from their vectors.

    Attributes
    ----------
    picked : sequence of int
        The coordinates α that outputs ask for.
    oriented : Register or None
        These coordinates of the directions, as far as they are known.
    orientations : int
        How often the frame was oriented, for seeds.
    """

    can_rebase = True

    def __init__(
        self,
        group: FrameBatch,
        builder: Builder,
        picked: Sequence[int],
        oriented: Register | None = None,
        orientations: int = 0,
    ) -> None:
        """A frame without directions, except for that of (1, …, 1) if it is needed."""
        # (1, …, 1) is along the first direction, with its norm as coordinate
        norm_of_ones = math.sqrt(group.width) if group.constant else None
        super().__init__(group, builder, int(group.constant), norm_of_ones)
        self.picked = picked
        self.oriented = oriented
        self.orientations = orientations

    def add_sources(
        self, seed_key: SeedKey, sources: int, leaf: bool, label: str
    ) -> Register:
        """Bartlett's coordinates of new isotropic vectors.

        Normals along the d directions so far, and χ_{m−d} along a new one. A frame with
        d = m is full.
        """
        frames = self.group.frames
        d = self.directions
        m = int(self.group.width)
        new = 0
        if not leaf:
            new = min(sources, m - d)
        cross = self.builder.draw(
            "normals",
            (*seed_key, CROSS, 0),
            (frames, sources, d),
            f"{label}: along the frame",
        )
        if new == 0:
            return cross
        self.directions += new
        chi = self.builder.draw(
            "chi",
            (*seed_key, CHI, 0),
            (frames, new),
            f"{label}: norms outside the frame",
            freedom=self.group.width - d - np.arange(new),
        )
        key = (*seed_key, OWN, 0)
        return self._triangle(cross, chi, key, label=f"{label}: along each other")

    def spanning(
        self, vectors: Register, outputs: bool, kept: int
    ) -> tuple[Frame, Register]:
        """See `Frame`. Directions come from the coordinates of the vectors, not from
        their Gram matrix: so small vectors keep their digits.
        """
        orientation = self.orientation() if outputs else None
        basis, coordinates = spanned(self, vectors, kept)
        oriented = None
        if orientation is not None:
            oriented = self.builder.step("gram", orientation, basis)
        frame = BartlettFrame(
            self.group, self.builder, self.picked, oriented, self.orientations
        )
        return frame, coordinates

    def orientation(self) -> Register:
        """See `Frame`: the directions have a uniformly random orientation.

        It is drawn for the directions that are new since the last call. The unit vector
        of a coordinate α has components along all directions and in the complement of
        the frame: those that are unknown lie uniformly on a sphere, whose squared
        radius is what the known ones leave of 1. For several coordinates, they are
        uniform among those that keep the unit vectors orthonormal.
        """
        known = self.oriented
        if known is None:
            ones = int(self.group.constant)  # (1, …, 1)/√m is known
            shape = (self.group.frames, len(self.picked), ones)
            known = self.builder.constant(np.full(shape, self.group.width**-0.5))
        unknown = self.directions - known.shape[-1]
        if unknown:
            known = self._with_unknown_directions(known, unknown)
        self.oriented = known
        return known

    def _with_unknown_directions(self, known: Register, unknown: int) -> Register:
        """The orientation, extended by that of the last `unknown` directions.

        `known` is that of all directions before, (frames, coordinates, directions).
        """
        builder = self.builder
        frames = self.group.frames
        count = len(self.picked)
        self.orientations += 1
        seed_key = (FRAME, self.orientations, self.group.number)
        coordinates = "coordinates" if count > 1 else "coordinate"
        label = f"the first {coordinates} of each direction"
        point = builder.draw(
            "normals", (*seed_key, ORIENTATION, 0), (frames, count * unknown), label
        )
        arguments = [known, builder.reshape(point, frames, count, unknown)]
        outside = min(count, int(self.group.width) - self.directions)
        if outside:  # outside of the frame: Bartlett's triangle
            chi = builder.draw(
                "chi",
                (*seed_key, ORIENTATION_CHI, 0),
                (frames, outside),
                label,
                freedom=self.group.width - self.directions - np.arange(outside),
            )
            no_directions = builder.constant(np.zeros((frames, count, 0)))
            key = (*seed_key, ORIENTATION, 1)
            arguments.append(self._triangle(no_directions, chi, key, label))
        return builder.step("spheres", *arguments)

    def _triangle(
        self, cross: Register, chi: Register, key: tuple[int, ...], label: str
    ) -> Register:
        """Bartlett's rows [cross, T], (frames, vectors, directions).

        `cross` are the coordinates along known directions. T is lower triangular, with
        `chi` on its diagonal, (frames, new), and normals below it, which are drawn. If
        there are fewer norms than rows, later rows have normals only.
        """
        builder = self.builder
        frames, count, d = cross.shape
        new = chi.shape[-1]
        if d == 0 and count == 1:
            return builder.reshape(chi, frames, 1, 1)
        below = new * (new - 1) // 2 + (count - new) * new  # entries left of the norms
        normals = builder.draw("normals", key, (frames, below), label)
        if d and count * (d + new) >= MIN_JOINED_ENTRIES:
            # without an index of every entry of the known directions
            none = builder.constant(np.zeros((frames, 0)))
            triangle = builder.step(
                "triangle",
                none,
                normals,
                chi,
                places=_in_triangle(count, 0, new),
                shape=(count, new),
            )
            return builder.step("join", cross, triangle, axis=2)
        return builder.step(
            "triangle",
            builder.reshape(cross, frames, count * d),
            normals,
            chi,
            places=_in_triangle(count, d, new),
            shape=(count, d + new),
        )


@lru_cache(maxsize=16)  # the layers of a deep network share it
def _in_triangle(count: int, d: int, new: int) -> Ints:
    """For each entry of Bartlett's rows, its position among the numbers in them.

    The numbers are, in this order: count · d coordinates, the normals below the
    diagonal, `new` norms, and a 0. For example, with 2 rows, d = 1 and 2 norms, the
    rows [[c0, χ0, 0], [c1, N0, χ1]] have the positions [0, 3, 5, 1, 2, 4].
    """
    below = np.tri(count, new, -1, dtype=bool)
    normals_start = count * d
    norms_start = normals_start + int(below.sum())
    zero = norms_start + new
    flat = np.full(count * (d + new), zero)
    positions = flat.reshape(count, d + new)  # a view: writes to `flat`
    along_known = positions[:, :d]  # views, too
    along_new = positions[:, d:]
    along_known[:] = np.arange(normals_start).reshape(count, d)
    along_new[below] = np.arange(normals_start, norms_start)
    diagonal = np.arange(new)
    along_new[diagonal, diagonal] = np.arange(norms_start, zero)
    flat.flags.writeable = False
    return flat


class StandardBasis(Frame):
    """Frames whose directions are the coordinates of the space.

    `picked` are the coordinates that outputs ask for.
    """

    is_standard_basis = True

    def __init__(
        self, group: FrameBatch, builder: Builder, picked: Sequence[int]
    ) -> None:
        entry_of_ones = 1.0 if group.constant else None
        super().__init__(group, builder, int(group.width), entry_of_ones)
        self.picked = picked

    def add_sources(
        self, seed_key: SeedKey, sources: int, leaf: bool, label: str
    ) -> Register:
        """All coordinates of new sources, which are normal: see `Frame`."""
        shape = self.group.frames, sources, self.directions
        key = (*seed_key, COORDINATES, 0)
        return self.builder.draw("normals", key, shape, f"{label}: all coordinates")

    def spanning(
        self, vectors: Register, outputs: bool, kept: int
    ) -> tuple[Frame, Register]:
        """See `Frame`: a Bartlett frame, in which `kept` is 0.

        The coordinates come from the Gram matrix, which is smaller than the vectors,
        and from these where it is ill-conditioned.
        """
        builder = self.builder
        label = "products of the vectors still in use"
        gram = builder.step("gram", vectors, vectors, label=label)
        label = "turn the frame to span them"
        coordinates = builder.step("reduced", gram, vectors, label=label)
        oriented = None
        if outputs:
            oriented = builder.step(
                "oriented", coordinates, vectors, self.orientation()
            )
        return BartlettFrame(self.group, builder, self.picked, oriented), coordinates

    def orientation(self) -> Register:
        """See `Frame`: coordinate α is that along direction α."""
        is_picked = np.arange(self.directions) == np.reshape(self.picked, (-1, 1))
        rows = is_picked * 1.0
        return self.builder.constant(
            np.broadcast_to(rows, (self.group.frames, *rows.shape))
        )
