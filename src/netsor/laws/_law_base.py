"""The base class of all laws, with provenance, saving and loading; argument checks."""

from __future__ import annotations

import io
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import _validate
from .._array_api import one_blas_thread
from .._validate import AXES, NUMBERS, PlacedError, Rng, as_floats, as_whole, shown
from ..runtime._files import named, opened, parsed, write
from ._estimate import Array, Sources


@dataclass(frozen=True)
class Provenance:
    """How a law was computed, and its status.

    `quadrature_error`, of Gaussian expectations or of single precision, is relative:
    every component's covariance is known up to this share of itself, and its mean up to
    this share of its standard deviation (of the law's, for outputs known by draws; of
    itself, if it is not random).
    """

    status: str
    method: str
    random_numbers: int = 0
    seed: int | None = None
    quadrature_error: float = 0.0
    notes: tuple[str, ...] = ()


class LawError(PlacedError):
    """A law cannot answer a question, or numbers do not define a law; a ValueError.

    The parameters are those of `TraceError`.

    Examples
    --------
    >>> ns.paper.layer().law(n=ns.inf).ppf(1.5)
    Traceback (most recent call last):
        ...
    netsor.laws._law_base.LawError: ppf: q=1.5 must be between 0 and 1 (at ...)
    """


FORMAT = 1  # version of the files that `save` writes
# longest excerpt of another error in a message, in characters: some errors repeat the
# whole file
REASON = 200
KINDS: dict[str, Any] = {}  # every class of laws by its name, for `load`


def load(path: str | os.PathLike[str]) -> Any:
    """Read a law from a file that `law.save(path)` wrote.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.

    Returns
    -------
    law : Law or Joint
        The law of the class that was saved, with the same numbers, status and notes.

    Examples
    --------
    >>> import tempfile
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     law.save(f"{folder}/limit.npz")
    ...     loaded = ns.load(f"{folder}/limit.npz")
    ...
    >>> loaded.var() == law.var(), loaded.status
    (True, 'proved')
    """
    if not isinstance(path, str | os.PathLike):
        raise LawError("load", "path", path, "a str or a pathlib.Path")
    try:
        file = opened(path)
    except ValueError as error:
        raise LawError("load", str(error)) from None
    with file:
        try:
            return _read(file)
        except Exception as error:  # the errors of a damaged archive are not documented
            damage = f"is not a law, or is damaged ({_reason(error)})"
            raise LawError(
                "load",
                f"{named(path)} {damage}: it must be a file that law.save(path) wrote",
            ) from None


def _read(file: IO[bytes]) -> Any:
    """The law in an open file; any exception if the file is none of ours."""
    archive = np.load(file, allow_pickle=False)
    # `save` does not compress, so the arrays are never larger than the file. A small
    # file that unpacks to a huge array is rejected before it takes memory.
    unpacked = sum(info.file_size for info in archive.zip.infolist())
    if unpacked > os.fstat(file.fileno()).st_size:
        raise ValueError("its arrays are compressed or overlap")
    arrays = dict(archive)
    about = parsed(str(arrays.pop("about")).encode(), "its description")
    if about["format"] != FORMAT:
        raise ValueError(
            f"its format is {shown(about['format'])}; this version reads {FORMAT}"
        )
    kind = str(about["kind"])
    if kind not in KINDS:
        raise ValueError(f"its kind is {shown(kind)}")
    return KINDS[kind]._from_arrays(_origin(**about["origin"]), **arrays)


def _reason(error: Exception) -> str:
    """A short reason why a file cannot be read."""
    text = error.plain if isinstance(error, LawError) else str(error)
    if isinstance(error, KeyError):
        return f"it has no {text}"
    return " ".join(text.split())[:REASON] or type(error).__name__


def _origin(
    notes: Any, quadrature_error: Any, seed: Any, random_numbers: Any, **texts: Any
) -> Provenance:
    """The provenance in a file, from its fields, which are those of `Provenance`.

    `texts` are the fields that are texts.
    """
    error = quadrature_error if isinstance(quadrature_error, int | float) else -1.0
    seed_is_valid = seed is None or as_whole(seed) is not None
    numbers_are_valid = as_whole(random_numbers) is not None and error >= 0
    texts_are_valid = isinstance(notes, list) and all(
        isinstance(text, str) for text in (*texts.values(), *notes)
    )
    if not (texts_are_valid and numbers_are_valid and seed_is_valid):
        raise ValueError("its origin has a field of a wrong type")
    return Provenance(
        **texts,
        random_numbers=random_numbers,
        seed=seed,
        quadrature_error=float(error),
        notes=tuple(notes),
    )


class LawBase(ABC):
    """A law of any number of variables, with its provenance.

    `save` writes what `_arrays` returns, and `load` gives it back to `_from_arrays`.
    """

    origin: Provenance
    # LaTeX of the law and of all it depends on; a program sets it at infinite width
    _formula: Callable[[], str] | None = None

    @abstractmethod
    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        """Independent draws of the law, along the first axis."""

    @abstractmethod
    def _arrays(self) -> dict[str, Any]:
        """Everything that a file stores, by name; None for what it leaves out."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    @classmethod
    def _from_arrays(cls, origin: Provenance, **arrays: Any) -> Any:
        """A law from the arrays of `_arrays`."""
        return cls(origin=origin, **arrays)  # type: ignore[call-arg]

    @property
    def status(self) -> str:
        """`proved`, `exact`, `same limit`, `conjectured`; of draws, `estimated`."""
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
    def _labels(self) -> list[str]:
        """Method, status and cost, for the representations of the law."""
        labels = [self.method, self.status]
        if self.random_numbers:
            labels.append(f"{self.random_numbers:,} random numbers per replica")
        return labels

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the law, such as activations treated as the identity."""
        error = self.origin.quadrature_error
        if error < 1e-6:
            return self.origin.notes
        accuracy = (
            "Gaussian expectations, or numbers in single precision, have a relative"
            f" error of about {error:.1g}, or more for a function with jumps or poles"
        )
        return (*self.origin.notes, accuracy)

    @property
    def sources(self) -> Sources:
        """The source of the errors of this law: its seed, or the law itself.

        Errors with a common source are correlated.
        """
        if self.origin.seed is not None:
            return frozenset([self.origin.seed])
        return frozenset([self._own_source])

    @cached_property
    def _own_source(self) -> object:
        """A source that no other law has, even after this one is gone."""
        return object()

    def latex(self) -> str:
        """The formula of the law and of all it depends on, at infinite width.

        It is written for LaTeX's math mode.
        """
        if self._formula is None:
            raise LawError(
                "latex",
                f"no formula is known for a law by the {self.method}; laws at width inf"
                " have one",
            )
        return self._formula()

    def correction(self) -> Any:
        """The terms of order 1/n of the law at width n.

        They are those of the density, of variance and kurtosis, and of distances.
        """
        raise LawError(
            "correction",
            "needs the limit of one plain attention layer, made by a program of one"
            " width that uses each matrix once, and up to eight Gaussian tokens that"
            " are both keys and values; ns.width_needed compares any law with its"
            " limit",
        )

    @one_blas_thread()
    def rvs(
        self,
        size: int | tuple[int, ...] | None = None,
        seed: int | None = None,
        rng: Rng = None,
    ) -> Any:
        """Independent draws of the law; of a joint law, all entries along a last axis.

        A law made from replicas draws from these, so the draws are not more accurate
        than the law. `Program.draw` makes new replicas.

        Parameters
        ----------
        size : int or tuple of int, optional
            The shape of the result; a single draw if None.
        seed, rng : int, or numpy.random.Generator, optional
            The seed, or as in scipy a generator; the draws differ each time if both are
            None.

        Returns
        -------
        draws : float or numpy.ndarray
            Of shape `size`; of a joint law (*size, entries).
        """
        if size is None:
            lengths: tuple[Any, ...] = ()
        elif isinstance(size, tuple | list):
            lengths = tuple(size)
        else:
            lengths = (size,)
        shape: list[int] = []  # the valid lengths
        for length in map(as_whole, lengths):
            if length is not None and 0 <= length <= NUMBERS:
                shape.append(length)
        all_valid = len(shape) == len(lengths)
        if not all_valid or len(shape) > AXES or math.prod(shape) > NUMBERS:
            raise LawError(
                "rvs",
                "size",
                size,
                f"an integer from 0 to {NUMBERS:,}, or a tuple of at most {AXES}",
            )
        draws = self._rvs(math.prod(shape), checked_generator(seed, "rvs", rng))
        return draws.reshape((*shape, *draws.shape[1:]))[()]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a file would store, without the functions that made the law."""
        return partial(type(self)._from_arrays, self.origin, **self._arrays()), ()

    def save(self, path: str | Path) -> None:
        """Write the law to one npz file, without pickle; `ns.load(path)` reads it."""
        arrays = {
            name: np.asarray(value)
            for name, value in self._arrays().items()
            if value is not None
        }
        about = {
            "format": FORMAT,
            "kind": type(self).__name__,
            "origin": asdict(self.origin),
        }
        file = io.BytesIO()
        # not `savez_compressed`: `_read` rejects files that unpack to more bytes
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
        write(Path(path), file.getvalue())


# Validation

numbers = partial(_validate.numbers, error=LawError)
real = partial(_validate.real, error=LawError)
whole = partial(_validate.whole, error=LawError)
# smallest ratio of standard deviation to mean of a law that counts as random
CONSTANT = 1e-9
# largest allowed mean, draw, standard deviation or point: its square is still finite
MAX_MAGNITUDE = 1e150
# highest order of a moment: beyond it, even E[Z^k] of a standard normal overflows
HIGHEST = 300
NO_QUADRATURE_ERROR = 1e-14  # a relative error that is only rounding
HEADS = 2**63  # with this many heads or more, the law is that of infinitely many


def points(argument: Any, name: str, operation: str) -> Array:
    """Real numbers of any shape, including infinities and NaN."""
    numbers = as_floats(argument)
    if numbers is None:
        raise LawError(operation, name, argument, "a real number or an array of them")
    return numbers


def checked_draws(argument: Any) -> Array:
    """At least two draws that are not all equal, as an array (draws,)."""
    draws = as_floats(argument)
    if draws is None:
        allowed = "be real numbers"
        if np.ma.is_masked(argument):
            allowed = "not be masked: take draws.compressed()"
        raise LawError("draws", f"{shown(argument)} must {allowed}")
    are_finite = bool((np.abs(draws) <= MAX_MAGNITUDE).all())
    if draws.size < 2 or not are_finite or draws.min() == draws.max():
        raise LawError(
            "draws",
            f"{shown(argument)} must be at least two finite numbers, not all equal and"
            f" at most {MAX_MAGNITUDE:g} in size",
        )
    return draws.ravel()


def checked_weights(
    argument: Any, count: int, operation: str, name: str = "weight"
) -> Array | None:
    """Weights (count,) of sum 1, or None for equal weights."""
    if argument is None:
        return None
    weights = numbers(argument, operation, name)
    if weights.shape != (count,) or (weights < 0).any() or not weights.any():
        raise LawError(
            operation,
            name,
            argument,
            f"{count} finite numbers, 0 or more and not all 0",
        )
    if weights.max() >= MAX_MAGNITUDE:  # their sum may overflow
        weights = weights / weights.max()
    total = float(weights.sum())
    if abs(total - 1) < 1e-12:  # normalised already: a copy keeps every digit
        return weights
    return np.asarray(weights / total)


def checked_origin(argument: Any, operation: str) -> Provenance:
    """The provenance of a law."""
    if not isinstance(argument, Provenance):
        raise LawError(operation, "origin", argument, "a Provenance(status, method)")
    return argument


def checked_heads(argument: Any, operation: str) -> int:
    """A number of heads below 2^63."""
    return whole(
        argument,
        "heads",
        operation,
        most=HEADS - 1,
        why="; for more than 2^63, infinite_heads()",
    )


def checked_generator(
    seed: Any, operation: str, rng: Rng = None
) -> np.random.Generator:
    """The generator with this seed, or `rng`; a fresh one if both are None."""
    if seed is None and (rng is None or isinstance(rng, np.random.Generator)):
        return rng or np.random.default_rng()
    try:
        return np.random.default_rng(_validate.chosen_seed(seed, rng))
    except _validate.ArgumentError as error:
        raise LawError(operation, error.name, error.value, error.allowed) from None


def checked_order(argument: Any) -> int:
    """The order of a moment."""
    return whole(
        argument,
        "order",
        "moment",
        0,
        most=HIGHEST,
        why=": beyond it even a normal's moment overflows",
    )


def levels(argument: Any, operation: str) -> Array:
    """Probabilities; NaN stays NaN."""
    q = points(argument, "q", operation)
    bad = (q < 0) | (q > 1)
    if bad.any():
        raise LawError(operation, f"q={q[bad].ravel()[0]:g} must be between 0 and 1")
    return q
