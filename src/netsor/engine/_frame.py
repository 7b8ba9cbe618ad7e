"""Frames: sources drawn by their coordinates in an orthonormal frame that grows (Bartlett), at any width.

A standard isotropic vector of R^m has coordinates (N(0,1), …, N(0,1), χ_{m−d}) in a frame of d earlier directions, the
last along a new direction of its own; once d = m the frame is full and there are m normal coordinates and no χ.
Divided by √m and with m → ∞ this is: 1 along its own direction, and N(0,1)/√m along every other. So at m = ∞ a
source has two parts, `lead` (order 1) and `fluct` (order 1/√m, times √m), and products of order 1/√m, which are the
scores, are lead · fluct + fluct · lead.

Coordinates are arrays (replicas or 1, frames, vectors, directions).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._montecarlo import generator
from ._plan import Group

Array = Any

# The streams of a source. χ are apart from the normals, or two widths with one seed would fall out of step.
CROSS, OWN, CHI, COORDINATES, ORIENTATION, ORIENTATION_CHI, SAMPLE = range(7)


class Streams:
    """The random numbers of one chunk of replicas: a stream for each (source, purpose), whatever the widths."""

    def __init__(self, seed: int, chunk: int, replicas: int) -> None:
        self.seed, self.chunk, self.replicas = seed, chunk, replicas
        self.drawn = 0  # random numbers a replica
        self._generators: dict[tuple[int, int], np.random.Generator] = {}

    def _generator(self, number: int, purpose: int) -> np.random.Generator:
        key = number, purpose
        if key not in self._generators:
            self._generators[key] = generator(self.seed, number, purpose, self.chunk)
        return self._generators[key]

    def normals(self, number: int, purpose: int, *shape: int) -> Array:
        """Standard normals (replicas, *shape)."""
        self.drawn += math.prod(shape)
        return self._generator(number, purpose).standard_normal((self.replicas, *shape))

    def chi(self, number: int, purpose: int, freedom: Array, *shape: int) -> Array:
        """χ variables (replicas, *shape, len(freedom)), with these degrees of freedom."""
        self.drawn += math.prod(shape) * len(freedom)
        half = freedom / 2 if len(freedom) > 1 else freedom[0] / 2  # numpy is faster with a number than with an array
        halves = self._generator(number, purpose).standard_gamma(half, (self.replicas, *shape, len(freedom)))
        halves *= 2
        return np.sqrt(halves, out=halves)


class Frame:
    """The frames of one group of clusters, as they grow while a program is evaluated."""

    def __init__(self, group: Group, streams: Streams) -> None:
        self.group, self.streams = group, streams
        self.width = group.width
        self.infinite = group.width == math.inf
        # A finite cluster that meets a nonlinearity, or data, has the standard basis for a frame, full from the start.
        self.standard = not self.infinite and bool(group.nonlinear or group.given)
        self.directions = int(self.width) if self.standard else int(group.constant)
        self.compact = 0  # directions that were made from vectors, not from sources
        self.constant: Array = None  # the coordinates of (1, …, 1)
        if group.constant:
            row = np.ones(self.directions) if self.standard else np.array([1.0 if self.infinite else self.width**0.5])
            self.constant = np.broadcast_to(row, (1, group.frames, self.directions))
        self.oriented: Array = None  # the first coordinate of each direction, as far as it is known

    def grow(self, number: int, sources: int, leaf: bool, scored: bool, within: bool) -> tuple[Array, Array]:
        """The lead and fluct coordinates of new sources, so many in each frame; fluct is None where it is 0.

        At infinite width fluct is drawn for sources in scores: along the directions so far, and along each other's
        where they have scores among themselves.
        """
        frames, d = self.group.frames, self.directions
        if self.infinite:
            fluct = self.streams.normals(number, CROSS, frames, sources, d) if scored and d else None
            if leaf:
                return np.zeros((1, frames, sources, d)), fluct
            if within and sources > 1:
                own = np.zeros((self.streams.replicas, frames, sources, d + sources))
                own[..., :d] = 0.0 if fluct is None else fluct
                self.below(own, number, sources)
                fluct = own
            return self.unit(sources), fluct
        if self.standard:
            return self.streams.normals(number, COORDINATES, frames, sources, d), None
        cross = self.streams.normals(number, CROSS, frames, sources, d) if d else np.zeros((1, frames, sources, 0))
        new = 0 if leaf else min(sources, int(self.width) - d)
        if new == 0:
            return cross, None
        self.directions += new
        chi = self.streams.chi(number, CHI, self.width - d - np.arange(new), frames)
        if d == 0 and sources == 1:
            return chi[..., None], None
        lead = np.zeros((self.streams.replicas, frames, sources, d + new))
        lead[..., :d] = cross
        self.below(lead, number, new)
        for j in range(new):
            lead[..., j, d + j] = chi[..., j]
        return lead, None

    def below(self, rows: Array, number: int, new: int) -> None:
        """Put normals below the diagonal of the last `new` directions: the sources along those before them."""
        counts = [min(i, new) for i in range(rows.shape[-2])]
        if sum(counts):
            normals = self.streams.normals(number, OWN, self.group.frames, sum(counts))
            first, start = rows.shape[-1] - new, 0
            for i, count in enumerate(counts):
                rows[..., i, first : first + count] = normals[..., start : start + count]
                start += count

    def unit(self, sources: int) -> Array:
        """New sources along new directions, one each: what is drawn at infinite width, and of sources to be fused."""
        d = self.directions
        lead = np.zeros((1, self.group.frames, sources, d + sources))
        lead[..., np.arange(sources), d + np.arange(sources)] = 1.0
        self.directions += sources
        return lead

    def replace(self, directions: int, constant: Array, oriented: Array) -> None:
        """Begin again with a frame that spans the vectors still in use, whose coordinates were just changed to it."""
        self.directions = self.compact = directions
        self.constant, self.oriented, self.standard = constant, oriented, False

    def orientation(self, number: int) -> Array:
        """The first coordinate of each direction, (replicas, frames, directions): the frame is uniformly oriented.

        The coordinates of the unknown directions and of the complement of the frame lie on a sphere; its radius is what
        the known ones leave of 1, the first unit vector's length.
        """
        frames, d = self.group.frames, self.directions
        if self.standard:
            return np.broadcast_to(np.eye(1, d), (1, frames, d))
        known = self.oriented
        if known is None:
            known = np.full((1, frames, 1), self.width**-0.5) if self.group.constant else np.zeros((1, frames, 0))
        unknown = d - known.shape[-1]
        if unknown:
            radius = np.sqrt(np.maximum(1 - np.sum(known**2, axis=-1, keepdims=True), 0.0))
            point = self.streams.normals(number, ORIENTATION, frames, unknown)
            square = np.sum(point**2, axis=-1, keepdims=True)
            if self.width > d:
                square = square + self.streams.chi(number, ORIENTATION_CHI, np.array([self.width - d]), frames) ** 2
            point *= radius / np.sqrt(square)
            known = np.concatenate([np.broadcast_to(known, (*point.shape[:-1], known.shape[-1])), point], axis=-1)
        self.oriented = known
        return known
