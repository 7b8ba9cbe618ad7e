"""Values at nodes: chosen at infinite width where a nonlinearity acts on a mixture of another's outputs.

There an expectation over Gaussian sources is a mean over quasi-random nodes: each vector is its values at the nodes,
over √NODES, as coordinates along an orthonormal frame are.
"""

from __future__ import annotations

import math

import numpy as np

from ..._builder import Builder, named
from ..._expectation import NODES, gaussian_nodes
from ..._steps import Register
from .._clusters import Group, Number
from .._same import compares, identified
from ._frame import Application, Bools, Frame


class Nodes(Frame):
    """Frames whose directions are nodes."""

    def __init__(self, group: Group, build: Builder) -> None:
        super().__init__(group, build, NODES, 1 / math.sqrt(NODES) if group.constant else None)
        self.sources = 0  # the rows in use

    def grow(self, number: Number, sources: int, leaf: bool, words: str) -> Register:
        """The values of Gaussian sources at the nodes."""
        self.sources += sources
        first = self.sources - sources + bool(self.group.constant)
        rows = gaussian_nodes(self.sources, self.group.constant, self.build.shift)[first:]
        return self.build.constant(np.broadcast_to(rows, (self.group.frames, *rows.shape)))

    def apply(self, at: Application) -> tuple[Register, Bools, int]:
        """The function at the nodes."""
        build = self.build
        shape = *at.rows[0].shape[:2], NODES
        arrays = [build.step("scale", rows, by=NODES**0.5) for rows in at.rows]
        if compares(at.f, len(arrays)):
            arrays = identified(build, arrays, arrays)
        arrays += [build.reshape(p, *shape[:2], 1) for p in at.params]
        build.expects = build.nodes = True
        words = f"{named(at.f)} at {NODES} nodes"
        made = build.step("apply", *arrays, made=shape, words=words, f=at.f, shape=shape)
        return build.step("scale", made, by=NODES**-0.5), np.ones(shape, dtype=bool), 0
