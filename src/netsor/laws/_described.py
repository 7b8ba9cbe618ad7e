"""What laws of one variable and of several have in common: they say where they come from, and go to disk."""

from __future__ import annotations

from pathlib import Path

from ._estimate import Sources
from ._origin import Origin
from ._store import save


class Described:
    """A law, with its origin."""

    origin: Origin

    @property
    def status(self) -> str:
        """`proved`, `exact`, `conjectured` or `estimated`."""
        return self.origin.status

    @property
    def method(self) -> str:
        """How the law was obtained, in words."""
        return self.origin.method

    @property
    def random_numbers(self) -> int:
        """How many random numbers were drawn for each replica."""
        return self.origin.random_numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of this law, such as activations that were treated as the identity."""
        error = self.origin.quadrature_error
        if error < 1e-6:
            return self.origin.notes
        doubt = (
            f"Gaussian expectations are known to a relative error of about {error:.1g}, "
            "or more for a function with jumps or poles"
        )
        return (*self.origin.notes, doubt)

    @property
    def sources(self) -> Sources:
        """What the errors of this law's numbers come from: its seed, or the law itself."""
        return frozenset([self.origin.seed if self.origin.seed is not None else (type(self).__name__, id(self))])

    def save(self, path: str | Path) -> None:
        """Write the law to one npz file, without pickle; `ns.load(path)` reads it."""
        save(self, path)
