"""Whole coordinates: chosen at finite width where a nonlinearity acts, data is given, or they cost less (see `_cost`).

The directions are the coordinates α themselves, all m of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._builder import Builder
from ..._steps import Register
from ..._streams import COORDINATES
from .._clusters import Group, Number
from ._frame import Frame
from ._growing import turned, with_ones


class Whole(Frame):
    """Frames whose directions are the coordinates of the space; `picked` are those that outputs ask for."""

    standard = True

    def __init__(self, group: Group, build: Builder, picked: Sequence[int]) -> None:
        super().__init__(group, build, int(group.width), 1.0 if group.constant else None)
        self.picked = picked

    def grow(self, number: Number, sources: int, leaf: bool, words: str) -> Register:
        """All coordinates of new sources are normal."""
        shape = self.group.frames, sources, self.directions
        key = (*number, COORDINATES, 0)
        return self.build.draw("normals", key, shape, f"{words}: all coordinates")

    def turn(self, rows: Sequence[Register], outputs: bool, first: int = 0) -> tuple[Frame, list[Register]]:
        """A frame that spans the vectors: there are many coordinates, so by the products where these tell enough."""
        build, given = self.build, with_ones(self, rows)
        vectors = build.step("join", *given, axis=1)
        gram = build.step("gram", vectors, vectors, words="products of the vectors still in use")
        made = build.step("reduced", gram, vectors, words="turn the frame to span them")
        along = build.step("oriented", made, vectors, self.coordinates()) if outputs else None
        return turned(self, self.picked, made, given, along, 0)

    def coordinates(self) -> Register:
        """Each is the coordinate along one direction."""
        rows = (np.arange(self.directions) == np.reshape(self.picked, (-1, 1))) * 1.0
        return self.build.constant(np.broadcast_to(rows, (self.group.frames, *rows.shape)))
