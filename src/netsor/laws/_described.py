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
        """What is known of the law: `proved`, `exact`, `conjectured` or `estimated`.

        Examples
        --------
        >>> net = ns.paper.layer()
        >>> net.law(n=ns.inf).status, net.law(n=64, draws=100).status
        ('proved', 'exact')
        """
        return self.origin.status

    @property
    def method(self) -> str:
        """How the law was obtained, in words.

        Examples
        --------
        >>> ns.paper.layer().law(n=ns.inf).method
        'convolution over heads at infinite width'
        """
        return self.origin.method

    @property
    def random_numbers(self) -> int:
        """How many random numbers were drawn for each replica, on average.

        Examples
        --------
        >>> net = ns.paper.layer()
        >>> net.law(n=ns.inf).random_numbers, net.law(n=64, draws=100).random_numbers
        (0, 23)
        """
        return self.origin.random_numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of this law, such as activations that were treated as the identity.

        Examples
        --------
        >>> ns.paper.layer().law(n=ns.inf).notes
        ()
        """
        error = self.origin.quadrature_error
        if error < 1e-6:
            return self.origin.notes
        doubt = (
            f"Gaussian expectations, or numbers in single precision, have a relative error of about {error:.1g}, "
            "or more for a function with jumps or poles"
        )
        return (*self.origin.notes, doubt)

    @property
    def sources(self) -> Sources:
        """What the errors of this law's numbers come from: its seed, or the law itself.

        Examples
        --------
        >>> ns.paper.layer().law(n=64, draws=100, seed=7).sources
        frozenset({7})
        """
        return frozenset([self.origin.seed if self.origin.seed is not None else (type(self).__name__, id(self))])

    def save(self, path: str | Path) -> None:
        """Write the law to one npz file, without pickle; `ns.load(path)` reads it.

        Parameters
        ----------
        path : str or pathlib.Path
            The file, whole or not there however the process ends; one that is there is replaced.

        Examples
        --------
        >>> import tempfile
        >>> law = ns.paper.layer().law(n=64, draws=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     law.save(f"{folder}/law.npz")
        ...     ns.load(f"{folder}/law.npz").var() == law.var()
        ...
        True
        """
        save(self, path)
