"""The base class of all laws: provenance, notes, saving and loading."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._files import named, opened, parsed, write
from .._validate import PlacedError, as_whole, shown
from ._estimate import Sources


@dataclass(frozen=True)
class Provenance:
    """How a law was computed, and its standing.

    `quadrature_error`, of Gaussian expectations or of single precision, is relative: every component's covariance is
    known up to this share of itself, and its mean up to this share of its standard deviation (of the law's, for outputs
    known by draws; of itself, if it is not random).
    """

    status: str
    method: str
    random_numbers: int = 0
    seed: int | None = None
    quadrature_error: float = 0.0
    notes: tuple[str, ...] = ()


class LawError(PlacedError):
    """A law cannot answer the question, or the numbers do not make a law. It is a ValueError.

    Parameters
    ----------
    operation : str
        The method or function that raises it.
    problem : str
        The argument, its value and what is allowed; or the name of the argument.
    value : Any
        The value of that argument.
    allowed : str
        What it must be.

    Examples
    --------
    >>> ns.paper.layer().law(n=ns.inf).ppf(1.5)
    Traceback (most recent call last):
        ...
    netsor.laws._law_base.LawError: ppf: q=1.5 must be between 0 and 1 (at ...)
    """


FORMAT = 1
REASON = 200  # characters of an error's own text in a message: some repeat the whole file
KINDS: dict[str, Any] = {}  # the classes of laws by name, for `load`


def load(path: str | os.PathLike[str]) -> Any:
    """Read a law from a file that `law.save(path)` wrote.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.

    Returns
    -------
    Law or Joint
        The law that was saved, with its origin.

    Examples
    --------
    >>> import tempfile
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     law.save(f"{folder}/limit.npz")
    ...     ns.load(f"{folder}/limit.npz")
    ...
    <HeadSum: variance 0.391971, excess kurtosis 0.1217; convolution over heads at infinite width; proved>
    """
    if not isinstance(path, str | os.PathLike):
        raise LawError("load", "path", path, "a str or a pathlib.Path")
    name = named(path)
    try:
        file = opened(path)
    except ValueError as error:
        raise LawError("load", str(error)) from None
    with file:
        try:
            archive = np.load(file, allow_pickle=False)
            if sum(info.file_size for info in archive.zip.infolist()) > os.fstat(file.fileno()).st_size:
                raise ValueError("its arrays are compressed or overlap")
            arrays = dict(archive)
            about = parsed(str(arrays.pop("about")).encode(), "its description")
            if (made := about["format"]) == FORMAT:
                if (kind := str(about["kind"])) not in KINDS:
                    raise ValueError(f"its kind is {shown(kind)}")
                return KINDS[kind]._from_arrays(arrays, _origin(**about["origin"]))
        except Exception as error:  # what a damaged archive may raise is not documented
            text = error.plain if isinstance(error, LawError) else str(error)
            why = f"it has no {text}" if isinstance(error, KeyError) else " ".join(text.split())[:REASON]
            raise LawError(
                "load",
                f"{name} is not a law, or is damaged ({why or type(error).__name__}): it must be a file that "
                "law.save(path) wrote",
            ) from None
    raise LawError(
        "load", f"{name} has format {shown(made)}; this version reads {FORMAT}: write it again with law.save"
    )


def _origin(
    status: Any, method: Any, random_numbers: Any, seed: Any, quadrature_error: Any, notes: Any
) -> Provenance:  # each field must be there, and no other
    words = [status, method, *(notes if isinstance(notes, list) else [None])]
    if (
        not all(isinstance(text, str) for text in words)
        or as_whole(random_numbers) is None
        or (seed is not None and as_whole(seed) is None)
        or not isinstance(quadrature_error, int | float)
        or not quadrature_error >= 0
    ):
        raise ValueError("its origin has a field of a wrong type")
    return Provenance(status, method, random_numbers, seed, float(quadrature_error), tuple(notes))


class LawBase:
    """A law with its provenance. A law that can be saved has `_arrays()` and `_from_arrays(arrays, origin)`."""

    origin: Provenance
    _formula: Callable[[], str] | None = None  # set by the program that has this law at infinite width

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    def _arrays(self) -> dict[str, Any]:
        raise LawError("save", f"a {type(self).__name__} cannot be saved")

    @property
    def status(self) -> str:
        """The standing of the law: `proved`, `exact`, `conjectured` or `estimated`."""
        return self.origin.status

    @property
    def method(self) -> str:
        """How the law was computed, in words."""
        return self.origin.method

    @property
    def random_numbers(self) -> int:
        """The average number of random numbers drawn for each replica."""
        return self.origin.random_numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the law, such as activations that were treated as the identity."""
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
        """The source of the errors of this law, its seed or itself: errors with a common source are correlated."""
        return frozenset([self.origin.seed if self.origin.seed is not None else (type(self).__name__, id(self))])

    def latex(self) -> str:
        """The formula of the law, for LaTeX's math mode, with what it depends on above it: at infinite width, the law
        that `Program.latex` puts in a box. A LawError if no formula is known.
        """
        if self._formula is None:
            raise LawError("latex", f"no formula is known for a law by the {self.method}; laws at width inf have one")
        return self._formula()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process needs: data alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_formula"}

    def save(self, path: str | Path) -> None:
        """Write the law to one npz file, without pickle; `ns.load(path)` reads it."""
        arrays = {name: np.asarray(value) for name, value in self._arrays().items() if value is not None}
        about = {"format": FORMAT, "kind": type(self).__name__, "origin": asdict(self.origin)}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
        write(Path(path), file.getvalue())
