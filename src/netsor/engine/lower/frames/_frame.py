"""What a frame is: orthonormal directions in the space of a cluster, along which its vectors have coordinates.

A frame holds the frames of one group of clusters while a program is lowered; coordinates are registers
(frames, vectors, directions). There is a file for each kind, which opens with when it is chosen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....activations import Function
from ....language._vector import Vector
from ..._ir import Register
from ..._ir_builder import Builder
from .._components import FrameBatch, Number
from .._residual_features import ResidualBasis

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Application:
    """A nonlinearity in the frames of a group at infinite width: φ(u_1, …; p) for k vectors of each frame."""

    f: Function
    rows: Sequence[Register]  # of each argument, (frames, k, directions)
    marks: Sequence[Bools]  # and along which directions it can have coordinates
    params: Sequence[Register]  # (frames, k) each
    vectors: Sequence[tuple[Vector, Ints]]  # each argument, and its places (frames, k) there
    rests: ResidualBasis  # the outputs that are asked for products with these
    linear: bool  # whether products with linear vectors are asked for too
    number: Number  # of the value, for seeds


class Frame(ABC):
    """The frames of one group: how many directions they have, and what is known of those."""

    standard = False  # its directions are the coordinates α themselves, until it is turned
    scores = False  # the normals of its directions are known, so that products of order n^(−1/2) are
    loosens = False  # it gets more and more directions as a program goes on: it is turned when they are many

    def __init__(self, group: FrameBatch, build: Builder, directions: int, one: float | None) -> None:
        self.group, self.build, self.directions = group, build, directions
        self.constant: Register | None = None  # the coordinates of (1, …, 1), (frames, directions)
        if one is not None:
            self.constant = build.constant(np.full((group.frames, directions), one))

    @abstractmethod
    def grow(self, number: Number, sources: int, leaf: bool, words: str) -> Register:
        """The coordinates of new sources, so many in each frame; a leaf gets no direction of its own."""

    def apply(self, at: Application) -> tuple[Register, Bools, int]:
        """The coordinates (frames, k, directions) of what a nonlinearity makes at infinite width.

        And where they can be other than 0, and the first direction along which they can.
        """
        raise TypeError(f"{type(self).__name__} frames are those of a finite width")

    def turn(self, rows: Sequence[Register], outputs: bool, first: int = 0) -> tuple[Frame, list[Register]]:
        """A frame that spans these vectors in place of this one, and their coordinates in it.

        `outputs`: whether coordinates α of vectors are asked for; if not, the directions before `first` may stay.
        """
        raise TypeError(f"{type(self).__name__} frames are not turned")

    def coordinates(self) -> Register:
        """The coordinates α of each direction that are asked for, (frames, asked, directions)."""
        raise TypeError(f"coordinates of {type(self).__name__} frames are not asked for")


def spanned(frame: Frame, vectors: Register, first: int) -> tuple[Register, Register]:
    """Directions that span vectors from direction `first` on, and the vectors' coordinates: those before, and along."""
    build = frame.build
    rest = build.step("part", vectors, start=first, stop=frame.directions)
    basis = build.step("basis", rest, words="turn the frame to span the vectors still in use")
    made = build.step("gram", rest, basis)
    if first:
        made = build.step("join", build.step("part", vectors, start=0, stop=first), made, axis=2)
    return basis, made


def of_each(build: Builder, made: Register, given: Sequence[Register]) -> list[Register]:
    """The rows of arrays that were joined."""
    ends = np.cumsum([0, *(row.shape[1] for row in given)])
    return [build.step("take", made, places=np.arange(*ends[k : k + 2]), axis=1) for k in range(len(given))]
