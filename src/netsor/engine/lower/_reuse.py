"""A matrix that acts more than once, perhaps on vectors that depend on what it made before (a recurrent net).

The inputs of all its uses, in order, have a Gram matrix with triangular factor C, and W x_i = Σ_j C_ij E_j: so a later
use has coefficients of the sources of earlier ones, and of fresh sources for what of its inputs is orthogonal to all
earlier inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._plan import Builder, Register


class Matrix:
    """The uses of the members of one matrix so far. Members that a use leaves out have rows of zeros in it."""

    def __init__(self, build: Builder, members: int) -> None:
        self.build, self.members = build, members
        self.factor: Register | None = None  # (members, K, K)
        self.leads: list[Register] = []  # of each use: its sources (members, blocks, k, ·)
        self.samples: list[Register] = []
        self.sampled = False

    def coefficients(self, uses: Sequence[tuple[Register, Sequence[int]]], words: str) -> Register:
        """C for the newest use, (members present, k, K + k), from the inputs of all uses and the members in each.

        Inputs are (members present or 1, k, ·).
        """
        build, present = self.build, uses[-1][1]
        *earlier, rows = (self._all_members(r, p) for r, p in uses)
        width = max(r.shape[-1] for r in (*earlier, rows))
        new = build.fitted(rows, width)
        block = build.step("gram", new, new, words=f"⟨x, x'⟩ for {words}")
        if self.factor is None:
            made = build.step("factor", block, words=f"K = C C^T for {words}")
            self.factor = made
        else:
            crosses = [build.step("gram", new, build.fitted(old, width)) for old in earlier]
            cross = build.step("join", *crosses, axis=2) if len(crosses) > 1 else crosses[0]
            below = build.step("solve", self.factor, cross, words="what the matrix did before")
            rest = build.step("add", block, build.step("scale", build.step("gram", below, below), by=-1.0))
            fresh = build.step("residual", rest, block, words=f"what is new for {words}")
            made = build.step("join", below, fresh, axis=2)
            above = build.step("pad", self.factor, before=0, after=fresh.shape[-1])
            self.factor = build.step("join", above, made, axis=1)
        return build.taken(made, np.array(present), axis=0)

    def remember(self, lead: Register, sample: Register | None, present: Sequence[int], blocks: int) -> None:
        """Keep the fresh sources (members present · blocks, k, ·) of the newest use."""
        self.sampled |= sample is not None
        for kept, e in ((self.leads, lead), (self.samples, sample)):
            if e is None:
                e = self.build.constant(np.zeros((*lead.shape[:-1], 1)))
            kept.append(self._all_members(self.build.reshape(e, len(present), blocks, *e.shape[1:]), present))

    def sources(self, present: Sequence[int]) -> tuple[Register, Register | None]:
        """The sources of all uses, for the members present: (members present · blocks, K, ·)."""
        return self._stacked(self.leads, present), self._stacked(self.samples, present) if self.sampled else None

    def _stacked(self, parts: Sequence[Register], present: Sequence[int]) -> Register:
        build, width = self.build, max(part.shape[-1] for part in parts)
        fitted = [build.fitted(part, width) for part in parts]
        joined = build.step("join", *fitted, axis=2) if len(fitted) > 1 else fitted[0]
        chosen = build.taken(joined, np.array(present), axis=0)
        return build.reshape(chosen, chosen.shape[0] * chosen.shape[1], *chosen.shape[2:])

    def _all_members(self, rows: Register, present: Sequence[int]) -> Register:
        """Rows for all members, from those for the members present (or for all alike, if one); 0 for the absent."""
        build = self.build
        if rows.shape[0] == 1 and len(present) > 1:
            rows = build.step("take", rows, places=np.zeros(len(present), dtype=np.intp), axis=0)
        if list(present) == list(range(self.members)):
            return rows
        zero = build.constant(np.zeros((1, *rows.shape[1:])))
        place = np.full(self.members, len(present))
        place[list(present)] = np.arange(len(present))
        return build.step("take", build.step("join", rows, zero, axis=0), places=place, axis=0)
