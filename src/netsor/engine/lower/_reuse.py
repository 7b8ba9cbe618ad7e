"""A matrix that acts more than once, perhaps on vectors that depend on what it made before (a recurrent net).

Along orthonormal directions of the inputs of all its uses, in order, it makes sources: W x_i = Σ_j C_ij E_j with
C_ij = ⟨x_i, direction j⟩. So a later use has coefficients of the sources of earlier ones, and of fresh sources for what
of its inputs is orthogonal to all earlier inputs. The directions are found from the inputs themselves, not from their
products (see `_orthogonal`): an input that earlier ones span gets nothing fresh, however they lean on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._plan import Builder, Register


class Matrix:
    """The uses of the members of one matrix so far. Members that a use leaves out have rows of zeros in it."""

    def __init__(self, build: Builder, members: int) -> None:
        self.build, self.members = build, members
        self.spanned: Register | None = None  # (members, K, blocks, directions): of the inputs so far
        self.leads: list[Register] = []  # of each use: its sources (members, blocks, k, ·)
        self.samples: list[Register] = []
        self.sampled = False

    @property
    def directions(self) -> int:
        """How many directions a block of the inputs has had so far."""
        return 0 if self.spanned is None else self.spanned.shape[-1]

    def coefficients(self, rows: Register, present: Sequence[int], blocks: int, words: str) -> Register:
        """C for the newest use, (members present, k, K + k), from its inputs (members present or 1, k, ·)."""
        build = self.build
        new = self._all_members(rows, present)
        directions = rows.shape[-1] // blocks
        known = []
        if self.spanned is not None:
            wide = build.fitted(self.spanned, directions)
            known = [build.reshape(wide, self.members, wide.shape[1], blocks * directions)]
        fresh = build.step("span", new, *known, words=f"what is new for {words}")
        every = build.step("join", *known, fresh, axis=1) if known else fresh
        self.spanned = build.reshape(every, self.members, every.shape[1], blocks, directions)
        made = build.step("along", new, every, words=f"⟨x, direction⟩ for {words}", own=True)
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
