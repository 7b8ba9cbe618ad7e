"""Frames: sources by their coordinates along orthonormal directions that grow in number (Bartlett), at any width.

A standard isotropic vector of R^m has coordinates (N(0,1), …, N(0,1), χ_{m−d}) in a frame of d earlier directions, the
last along a new direction of its own; once d = m the frame is full and there are m normal coordinates and no χ. Divided
by √m and with m → ∞ this is 1 along its own direction and N(0,1)/√m along every other: so at m = ∞ coordinates are of
order 1, and a score, a product of order 1/√m, is Σ_ab x_a N_ab y_b with N_ab the normals of the pairs of directions.

A `Frame` holds the frames of one group of clusters while a program is lowered; coordinates are registers
(frames, vectors, directions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._expectation import NODES, gaussian_nodes
from .._plan import CHI, COORDINATES, CROSS, ORIENTATION, ORIENTATION_CHI, OWN, Builder, Register
from ._clusters import Group

Floats = npt.NDArray[np.float64]

# What a cluster's coordinates are
STANDARD = "standard"  # finite width, every coordinate: it meets a nonlinearity, or data
GROWING = "growing"  # finite width, Gram matrices alone: a frame that grows
LIMIT = "limit"  # infinite width: one direction a source, and Gaussian expectations
AT_NODES = "nodes"  # infinite width, values at quasi-random nodes
NO_VALUE = (-1, 0)
UNITS = "units"  # sources that a Fuse replaces: one direction each, whatever the width


@dataclass(frozen=True, eq=False)
class Directions:
    """A range of directions that came together: of one source, or of one nonlinearity's outputs."""

    start: int
    stop: int
    number: tuple[int, int]  # of the value, for seeds; (−1, 0) for (1, …, 1)
    feature: Any = None  # what these are functions of, if they are outputs of a nonlinearity: see `_features`


class Stationary(Protocol):
    """The covariance of a process over differences of positions, by their differences."""

    def covariance(self, r: Floats) -> Floats:
        """At these differences."""


@dataclass(eq=False)
class Field:
    """The normals of two blocks of directions as a process: the differences asked for, and what was drawn for each."""

    law: Stationary
    gaps: Floats = field(default_factory=lambda: np.zeros(0))
    normals: list[Register] = field(default_factory=list)  # (frames, later's, earlier's, differences)

    def add(self, gaps: Floats, normals: Register) -> None:
        """More differences."""
        self.gaps = np.concatenate([self.gaps, gaps])
        self.normals.append(normals)


class Frame:
    """The frames of one group: how many directions they have, and what is known of those."""

    def __init__(self, group: Group, kind: str, build: Builder, picked: Sequence[int]) -> None:
        self.group, self.kind, self.build = group, kind, build
        # the coordinates that outputs ask for, each once, within a block
        self.picked = sorted({c % int(group.width) for c in picked}) if group.width < math.inf else []
        self.turned = False
        self.directions = 0
        self.constant: Register | None = None  # the coordinates of (1, …, 1), (frames, directions)
        self.oriented: Register | None = None  # the coordinates of each direction that are asked for, as far as known
        self.blocks: list[Directions] = []
        self.pairs: dict[tuple[int, int], Register] = {}
        self.diagonals: dict[int, Register] = {}
        self.crossings: dict[int, int] = {}
        self.fields: dict[tuple[int, int], Field] = {}  # the same for vectors turned by positions
        self.sources = 0  # at nodes, the rows in use
        self.asked = 0  # how often the frame was oriented
        if kind == STANDARD:
            self.directions = int(group.width)
        elif kind == AT_NODES:
            self.directions = NODES
        elif group.constant or kind == UNITS:  # a Fuse wants its means apart, in every frame
            self.directions = 1
            self.blocks.append(Directions(0, 1, NO_VALUE))
        if group.constant or kind == UNITS:
            row = np.ones(self.directions)
            if kind == GROWING:
                row *= math.sqrt(group.width)
            elif kind == AT_NODES:
                row /= math.sqrt(NODES)
            self.constant = build.constant(np.broadcast_to(row, (group.frames, self.directions)))

    def grow(self, number: tuple[int, int], sources: int, leaf: bool, words: str) -> Register:
        """The coordinates of new sources, so many in each frame; a leaf gets no direction of its own."""
        frames, d, build, key = self.group.frames, self.directions, self.build, (*number, self.group.number)
        if self.kind in (LIMIT, UNITS):
            return self.unit(number, sources)
        if self.kind == AT_NODES:
            self.sources += sources
            first = self.sources - sources + bool(self.group.constant)
            rows = gaussian_nodes(self.sources, self.group.constant, build.shift)[first:]
            return build.constant(np.broadcast_to(rows, (frames, *rows.shape)))
        if self.kind == STANDARD and not self.turned:
            return build.draw("normals", (*key, COORDINATES, 0), (frames, sources, d), f"{words}: all coordinates")
        new = 0 if leaf else min(sources, int(self.group.width) - d)
        cross = build.draw("normals", (*key, CROSS, 0), (frames, sources, d), f"{words}: along the frame")
        if new == 0:
            return cross
        self.directions += new
        freedom = self.group.width - d - np.arange(new)
        chi = build.draw("chi", (*key, CHI, 0), (frames, new), f"{words}: norms outside the frame", freedom=freedom)
        if d == 0 and sources == 1:
            return build.reshape(chi, frames, 1, 1)
        counts = [min(i, new) for i in range(sources)]
        own = build.draw("normals", (*key, OWN, 0), (frames, sum(counts)), f"{words}: along each other")
        places = np.full((sources, d + new), sources * d + own.shape[-1] + new)  # the last is a 0
        places[:, :d] = np.arange(sources * d).reshape(sources, d)
        start = sources * d
        for i, count in enumerate(counts):
            places[i, d : d + count] = np.arange(start, start + count)
            start += count
        for j in range(new):
            places[j, d + j] = start + j
        flat = build.reshape(cross, frames, sources * d)
        return build.step("triangle", flat, own, chi, places=places.ravel(), shape=(sources, d + new))

    def unit(self, number: tuple[int, int], sources: int, feature: Any = None) -> Register:
        """New directions, one for each of so many rows."""
        d = self.directions
        self.directions += sources
        self.build.room((self.group.frames, sources, self.directions))
        self.blocks.append(Directions(d, self.directions, number, feature))
        rows = np.eye(sources, d + sources, d)
        return self.build.constant(np.broadcast_to(rows, (self.group.frames, sources, d + sources)))

    def normals(self, a: int, b: int, same: bool = False) -> Register:
        """At infinite width, the normals N_ab between the directions of two blocks, (frames, a's, b's).

        Those of directions with themselves are N(0, 2); they are drawn if `same` asks for them, else 0.
        """
        if same and self.blocks[a].number != NO_VALUE:
            return self.build.step("add", self.normals(a, b), self._own(a))
        if a < b:
            return self.build.step("transposed", self.normals(b, a))
        if (a, b) in self.fields and (made := self.process(a, b, np.zeros(1), self.fields[a, b].law)) is not None:
            return made
        if (a, b) not in self.pairs:
            later, earlier, frames = self.blocks[a], self.blocks[b], self.group.frames
            size = later.stop - later.start
            if a == b:
                key = (*later.number, self.group.number, OWN, 0)
                drawn = self.build.draw(
                    "normals", key, (frames, size * (size - 1) // 2), "scores of sources drawn together"
                )
                places = np.full((size, size), drawn.shape[-1])  # the last is a 0
                places[np.tril_indices(size, -1)] = np.arange(drawn.shape[-1])
                places = np.minimum(places, places.T)
                made = self.build.step("triangle", drawn, places=places.ravel(), shape=(size, size))
            else:
                again = self.crossings[a] = self.crossings.get(a, -1) + 1
                key = (*later.number, self.group.number, CROSS, again)
                shape = frames, size, earlier.stop - earlier.start
                made = self.build.draw("normals", key, shape, "scores: a normal for each pair of directions")
            self.pairs[a, b] = made
        return self.pairs[a, b]

    def _own(self, a: int) -> Register:
        """The normals of the directions of a block with themselves, on a diagonal; those of features are not asked."""
        if a not in self.diagonals:
            block, frames = self.blocks[a], self.group.frames
            size = block.stop - block.start
            key = (*block.number, self.group.number, OWN, 1)
            drawn = self.build.draw("normals", key, (frames, size), "squares of sources")
            places = np.full((size, size), size)  # the last is a 0
            np.fill_diagonal(places, np.arange(size))
            drawn = self.build.step("scale", drawn, by=math.sqrt(2.0))
            self.diagonals[a] = self.build.step("triangle", drawn, places=places.ravel(), shape=(size, size))
        return self.diagonals[a]

    def process(self, a: int, b: int, gaps: Floats, law: Stationary) -> Register | None:
        """The normals N_ab(r) of two blocks for differences r of positions, a process with this law over r.

        (frames, a's, r · b's); None for one block with itself, or if the two were asked for with another law. Vectors
        that were not turned are those of difference 0.
        """
        frames, build = self.group.frames, self.build
        first, second = self.blocks[a], self.blocks[b]
        later, earlier = max(a, b), min(a, b)
        sizes = tuple(self.blocks[k].stop - self.blocks[k].start for k in (later, earlier))
        if a == b:
            return None
        if (later, earlier) not in self.fields:
            known = self.fields[later, earlier] = Field(law)
            if (later, earlier) in self.pairs:
                known.add(np.zeros(1), build.reshape(self.pairs[later, earlier], frames, *sizes, 1))
        known = self.fields[later, earlier]
        wanted = gaps if a > b else -gaps
        new = wanted[~np.isin(wanted, known.gaps)]
        if known.law != law:
            return None
        if new.size:
            again = self.crossings[later] = self.crossings.get(later, -1) + 1
            number = (*self.blocks[later].number, self.group.number, CROSS, again)
            words = "scores: a normal for each pair of directions and difference of positions"
            known.add(new, build.draw("normals", number, (frames, *sizes, len(new)), words))
        # the factor for the first of the differences is that of fewer: what was drawn for them stays
        root = build.step("factor", build.constant(law.covariance(known.gaps[:, None] - known.gaps)))
        rows = build.taken(root, np.array([int(np.flatnonzero(known.gaps == r)[0]) for r in wanted]), axis=0)
        normals = build.step("join", *known.normals, axis=3) if len(known.normals) > 1 else known.normals[0]
        made = build.step("gram", normals, rows)  # (frames, later's, earlier's, r)
        made = build.step("permute", made, axes=(0, 1, 3, 2) if a > b else (0, 2, 3, 1))
        return build.reshape(made, frames, first.stop - first.start, len(gaps) * (second.stop - second.start))

    def turn(self, rows: Sequence[Register], outputs: bool) -> list[Register]:
        """Begin again with a frame that spans these vectors (frames, k, directions), and their coordinates in it.

        So what follows needs as many directions as there are vectors. `outputs`: whether an output needs a coordinate.
        """
        build = self.build
        given = list(rows)
        if self.constant is not None:
            wide = build.fitted(self.constant, self.directions)
            given.append(build.reshape(wide, self.group.frames, 1, self.directions))
        vectors = build.step("join", *given, axis=1) if len(given) > 1 else given[0]
        first = self.orientation() if outputs else None
        if self.kind == STANDARD and not self.turned:  # many coordinates, so by the products where these tell enough
            gram = build.step("gram", vectors, vectors, words="products of the vectors still in use")
            made = build.step("reduced", gram, vectors, words="turn the frame to span them")
            along = first and build.step("oriented", made, vectors, first)
        else:
            spanned = build.step("basis", vectors, words="turn the frame to span the vectors still in use")
            made = build.step("gram", vectors, spanned)
            along = first and build.step("gram", first, spanned)
        if along is not None:  # the coordinates of each new direction
            self.oriented = along
        self.directions, self.turned = vectors.shape[1], True
        parts, start = [], 0
        for row in given:
            stop = start + row.shape[1]
            parts.append(build.step("take", made, places=np.arange(start, stop), axis=1))
            start = stop
        if self.constant is not None:
            self.constant = build.reshape(parts.pop(), self.group.frames, self.directions)
        return parts

    def turn_limit(self, rows: Sequence[Register]) -> list[Register]:
        """The same at infinite width, where no score is asked for; the direction of (1, …, 1) stays the first."""
        build, means = self.build, int(self.group.constant)
        vectors = build.step("join", *rows, axis=1) if len(rows) > 1 else rows[0]
        others = build.step("part", vectors, start=means, stop=self.directions)
        spanned = build.step("basis", others, words="turn the frame to span the vectors still in use")
        made = build.step("gram", others, spanned)
        if means:
            made = build.step("join", build.step("part", vectors, start=0, stop=1), made, axis=2)
        self.directions, self.turned = made.shape[-1], True
        self.blocks = [*self.blocks[:means], Directions(means, self.directions, NO_VALUE)]
        ends = np.cumsum([0, *(row.shape[1] for row in rows)])
        return [build.step("take", made, places=np.arange(*ends[k : k + 2]), axis=1) for k in range(len(rows))]

    def orientation(self) -> Register:
        """The coordinates of each direction that are asked for, (frames, picked, directions).

        They are those of unit vectors along the directions, and the frame is uniformly oriented. For one unit vector
        the coordinates along the unknown directions and the complement of the frame lie on a sphere; its radius is what
        the known ones leave of 1. For several, they are uniform among those that keep the vectors orthonormal.
        """
        frames, d, build, count = self.group.frames, self.directions, self.build, len(self.picked)
        if self.kind == STANDARD and not self.turned:
            return build.constant(np.broadcast_to(np.eye(d)[self.picked], (frames, count, d)))
        known = self.oriented
        if known is None:
            means = bool(self.group.constant)
            known = build.constant(np.full((frames, count, int(means)), self.group.width**-0.5))
        unknown = d - known.shape[-1]
        if unknown:
            self.asked += 1
            key, several = (2**20, self.asked, self.group.number), "s" if count > 1 else ""
            words = f"the first coordinate{several} of each direction"
            point = build.draw("normals", (*key, ORIENTATION, 0), (frames, count * unknown), words)
            pieces = [known, build.reshape(point, frames, count, unknown)]
            rest = min(count, int(self.group.width) - d)
            if rest:  # outside of the frame: Bartlett's triangle
                freedom = self.group.width - d - np.arange(rest)
                chi = build.draw("chi", (*key, ORIENTATION_CHI, 0), (frames, rest), words, freedom=freedom)
                pieces.append(self._triangle(chi, (*key, ORIENTATION, 1), count, words))
            known = build.step("sphere" if count == 1 else "spheres", *pieces)
        self.oriented = known
        return known

    def _triangle(self, chi: Register, key: tuple[int, ...], count: int, words: str) -> Register:
        """Rows (frames, count, ·) with the products of so many standard isotropic vectors, given the norms χ."""
        frames, rest, build = self.group.frames, chi.shape[-1], self.build
        if count == 1:
            return build.reshape(chi, frames, 1, 1)
        lower = [(i, j) for i in range(count) for j in range(min(i, rest))]
        own = build.draw("normals", key, (frames, len(lower)), words)
        places = np.full((count, rest), len(lower) + rest)  # the last is a 0
        for k, (i, j) in enumerate(lower):
            places[i, j] = k
        places[range(rest), range(rest)] = len(lower) + np.arange(rest)
        return build.step("triangle", own, chi, places=places.ravel(), shape=(count, rest))

    def mask(self, chosen: Sequence[Directions]) -> npt.NDArray[np.bool_]:
        """Which directions belong to these blocks."""
        found = np.zeros(self.directions, dtype=bool)
        for block in chosen:
            found[block.start : block.stop] = True
        return found
