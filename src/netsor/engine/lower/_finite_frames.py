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
from .._ir import Register
from .._ir_builder import Builder
from .._rng_keys import CHI, COORDINATES, CROSS, ORIENTATION, ORIENTATION_CHI, OWN
from ._components import FrameBatch, SeedKey


class Frame(ABC):
    """The frames of one group: how many directions they have, and what is known of
    those.
    """

    # its directions are the coordinates α themselves, until it is rebased
    is_standard_basis = False
    # it gains directions as a program goes on, and is rebased when they are many
    can_rebase = False

    def __init__(
        self, group: FrameBatch, builder: Builder, directions: int, one: float | None
    ) -> None:
        self.group, self.builder, self.directions = group, builder, directions
        # the coordinates of (1, …, 1), (frames, directions)
        self.constant: Register | None = None
        if one is not None:
            self.constant = builder.constant(np.full((group.frames, directions), one))

    @abstractmethod
    def add_sources(
        self, number: SeedKey, sources: int, leaf: bool, words: str
    ) -> Register:
        """The coordinates of new sources, so many in each frame; a leaf gets no
        direction of its own.
        """

    def spanning(
        self, vectors: Register, outputs: bool, first: int
    ) -> tuple[Frame, Register]:
        """A frame that keeps the directions before `first` and spans vectors, and their
        coordinates in it.

        `outputs`: whether coordinates α of vectors are asked for; if not, the
        directions before `first` may stay.
        """
        raise TypeError(f"{type(self).__name__} frames are not turned")

    def orientation(self) -> Register:
        """The coordinates α of each direction that are asked for, (frames, asked,
        directions).
        """
        raise TypeError(
            f"coordinates of {type(self).__name__} frames are not asked for"
        )


def spanned(frame: Frame, vectors: Register, first: int) -> tuple[Register, Register]:
    """Directions that span vectors from direction `first` on, and the vectors'
    coordinates: those before, and along.
    """
    builder = frame.builder
    rest = builder.step("part", vectors, start=first, stop=frame.directions)
    basis = builder.step(
        "basis", rest, words="turn the frame to span the vectors still in use"
    )
    before = [builder.step("part", vectors, start=0, stop=first)] if first else []
    return basis, builder.step(
        "join", *before, builder.step("gram", rest, basis), axis=2
    )


class BartlettFrame(Frame):
    """Frames whose directions come from their vectors; `picked` are the coordinates α
    that outputs ask for.
    """

    can_rebase = True

    def __init__(
        self,
        group: FrameBatch,
        builder: Builder,
        picked: Sequence[int],
        oriented: Register | None = None,
        asked: int = 0,
    ) -> None:
        super().__init__(
            group,
            builder,
            int(group.constant),
            math.sqrt(group.width) if group.constant else None,
        )
        self.picked = picked
        # the coordinates of each direction that are asked for, as far as known
        self.oriented = oriented
        self.asked = asked  # how often the frame was oriented

    def add_sources(
        self, number: SeedKey, sources: int, leaf: bool, words: str
    ) -> Register:
        """Bartlett's coordinates of new isotropic vectors."""
        frames, d, builder, key = (
            self.group.frames,
            self.directions,
            self.builder,
            number,
        )
        new = 0 if leaf else min(sources, int(self.group.width) - d)
        cross = builder.draw(
            "normals",
            (*key, CROSS, 0),
            (frames, sources, d),
            f"{words}: along the frame",
        )
        if new == 0:
            return cross
        self.directions += new
        freedom = self.group.width - d - np.arange(new)
        chi = builder.draw(
            "chi",
            (*key, CHI, 0),
            (frames, new),
            f"{words}: norms outside the frame",
            freedom=freedom,
        )
        return self._triangle(cross, chi, (*key, OWN, 0), f"{words}: along each other")

    def spanning(
        self, vectors: Register, outputs: bool, first: int
    ) -> tuple[Frame, Register]:
        """From the coordinates of the vectors: small ones keep their digits."""
        known = self.orientation() if outputs else None
        basis, made = spanned(self, vectors, first)
        along = None if known is None else self.builder.step("gram", known, basis)
        return BartlettFrame(
            self.group, self.builder, self.picked, along, self.asked
        ), made

    def orientation(self) -> Register:
        """The frame is uniformly oriented.

        The coordinates asked for are those of unit vectors along the directions. For
        one unit vector the coordinates along the unknown directions and the complement
        of the frame lie on a sphere; its radius is what the known ones leave of 1. For
        several, they are uniform among those that keep the vectors orthonormal.
        """
        frames, d, builder, count = (
            self.group.frames,
            self.directions,
            self.builder,
            len(self.picked),
        )
        known = self.oriented
        if known is None:
            means = bool(self.group.constant)
            known = builder.constant(
                np.full((frames, count, int(means)), self.group.width**-0.5)
            )
        unknown = d - known.shape[-1]
        if unknown:
            self.asked += 1
            key, several = (
                (2**20, self.asked, self.group.number),
                "s" if count > 1 else "",
            )
            words = f"the first coordinate{several} of each direction"
            point = builder.draw(
                "normals", (*key, ORIENTATION, 0), (frames, count * unknown), words
            )
            pieces = [known, builder.reshape(point, frames, count, unknown)]
            rest = min(count, int(self.group.width) - d)
            if rest:  # outside of the frame: Bartlett's triangle
                freedom = self.group.width - d - np.arange(rest)
                chi = builder.draw(
                    "chi",
                    (*key, ORIENTATION_CHI, 0),
                    (frames, rest),
                    words,
                    freedom=freedom,
                )
                outside = builder.constant(np.zeros((frames, count, 0)))
                pieces.append(
                    self._triangle(outside, chi, (*key, ORIENTATION, 1), words)
                )
            known = builder.step("spheres", *pieces)
        self.oriented = known
        return known

    def _triangle(
        self, cross: Register, chi: Register, key: tuple[int, ...], words: str
    ) -> Register:
        """Bartlett's rows: coordinates along known directions, normals along those of
        earlier rows, and norms χ.
        """
        builder, (frames, count, d), new = self.builder, cross.shape, chi.shape[-1]
        if d == 0 and count == 1:
            return builder.reshape(chi, frames, 1, 1)
        below = new * (new - 1) // 2 + (count - new) * new  # entries left of the norms
        own = builder.draw("normals", key, (frames, below), words)
        flat = builder.reshape(cross, frames, count * d)
        return builder.step(
            "triangle",
            flat,
            own,
            chi,
            places=_in_triangle(count, d, new),
            shape=(count, d + new),
        )


@lru_cache(maxsize=16)  # the layers of a deep network share it
def _in_triangle(count: int, d: int, new: int) -> Ints:
    """For Bartlett's rows, where each entry is among the given coordinates, the
    normals, the norms and a last 0.
    """
    below = np.tri(count, new, -1, dtype=bool)
    start, end = count * d, count * d + int(below.sum())
    made = np.full(count * (d + new), end + new)
    places = made.reshape(count, d + new)
    places[:, :d] = np.arange(start).reshape(count, d)
    places[:, d:][below] = np.arange(start, end)
    places[range(new), range(d, d + new)] = np.arange(end, end + new)
    made.flags.writeable = False
    return made


class StandardBasis(Frame):
    """Frames whose directions are the coordinates of the space; `picked` are those that
    outputs ask for.
    """

    is_standard_basis = True

    def __init__(
        self, group: FrameBatch, builder: Builder, picked: Sequence[int]
    ) -> None:
        super().__init__(
            group, builder, int(group.width), 1.0 if group.constant else None
        )
        self.picked = picked

    def add_sources(
        self, number: SeedKey, sources: int, leaf: bool, words: str
    ) -> Register:
        """All coordinates of new sources are normal."""
        shape = self.group.frames, sources, self.directions
        key = (*number, COORDINATES, 0)
        return self.builder.draw("normals", key, shape, f"{words}: all coordinates")

    def spanning(
        self, vectors: Register, outputs: bool, first: int
    ) -> tuple[Frame, Register]:
        """By the Gram matrix, which is smaller than the vectors, and by these where it
        is ill-conditioned.
        """
        builder = self.builder
        gram = builder.step(
            "gram", vectors, vectors, words="products of the vectors still in use"
        )
        made = builder.step(
            "reduced", gram, vectors, words="turn the frame to span them"
        )
        along = (
            builder.step("oriented", made, vectors, self.orientation())
            if outputs
            else None
        )
        return BartlettFrame(self.group, builder, self.picked, along), made

    def orientation(self) -> Register:
        """Each is the coordinate along one direction."""
        rows = (np.arange(self.directions) == np.reshape(self.picked, (-1, 1))) * 1.0
        return self.builder.constant(
            np.broadcast_to(rows, (self.group.frames, *rows.shape))
        )
