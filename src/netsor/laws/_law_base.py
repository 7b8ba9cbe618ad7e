"""The base class of all laws: provenance, notes, saving and loading; and the validation
of arguments.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import _validate
from .._array_api import one_blas_thread
from .._files import named, opened, parsed, write
from .._validate import AXES, NUMBERS, PlacedError, Rng, as_floats, as_whole, shown
from ._estimate import Array, Sources


@dataclass(frozen=True)
class Provenance:
    """How a law was computed, and its standing.

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
    """A law cannot answer the question, or the numbers do not make a law. It is a
    ValueError.

    The parameters are those of `TraceError`.

    Examples
    --------
    >>> ns.paper.layer().law(n=ns.inf).ppf(1.5)
    Traceback (most recent call last):
        ...
    netsor.laws._law_base.LawError: ppf: q=1.5 must be between 0 and 1 (at ...)
    """


FORMAT = 1
# most characters of an error's text in a message: some errors repeat the whole file
REASON = 200
KINDS: dict[str, Any] = {}  # the classes of laws by name, for `load`


def load(path: str | os.PathLike[str]) -> Any:
    """Read a law from a file that `law.save(path)` wrote.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.

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
    try:
        file = opened(path)
    except ValueError as error:
        raise LawError("load", str(error)) from None
    with file:
        try:
            archive = np.load(file, allow_pickle=False)
            if (
                sum(info.file_size for info in archive.zip.infolist())
                > os.fstat(file.fileno()).st_size
            ):
                raise ValueError("its arrays are compressed or overlap")
            arrays = dict(archive)
            about = parsed(str(arrays.pop("about")).encode(), "its description")
            if about["format"] != FORMAT:
                raise ValueError(
                    f"its format is {shown(about['format'])}; this version reads"
                    f" {FORMAT}"
                )
            if (kind := str(about["kind"])) not in KINDS:
                raise ValueError(f"its kind is {shown(kind)}")
            return KINDS[kind]._from_arrays(_origin(**about["origin"]), **arrays)
        except Exception as error:  # the errors of a damaged archive are not documented
            text = error.plain if isinstance(error, LawError) else str(error)
            why = (
                f"it has no {text}"
                if isinstance(error, KeyError)
                else " ".join(text.split())[:REASON]
            )
            damage = f"is not a law, or is damaged ({why or type(error).__name__})"
            raise LawError(
                "load",
                f"{named(path)} {damage}: it must be a file that law.save(path) wrote",
            ) from None


def _origin(
    notes: Any, quadrature_error: Any, seed: Any, random_numbers: Any, **words: Any
) -> Provenance:
    """The provenance that a file describes; every field must be there, and no other
    field.
    """
    texts = [*words.values(), *(notes if isinstance(notes, list) else [None])]
    wholes = [random_numbers, 0 if seed is None else seed]
    error = quadrature_error if isinstance(quadrature_error, int | float) else -1.0
    if (
        not all(isinstance(text, str) for text in texts)
        or None in map(as_whole, wholes)
        or not error >= 0
    ):
        raise ValueError("its origin has a field of a wrong type")
    return Provenance(
        **words,
        random_numbers=random_numbers,
        seed=seed,
        quadrature_error=float(error),
        notes=(*notes,),
    )


class LawBase:
    """A law with its provenance."""

    origin: Provenance
    _rvs: Callable[[int, np.random.Generator], Array]  # independent draws
    _arrays: Callable[[], dict[str, Any]]  # written by `save`, read by `_from_arrays`
    # set by the program that has this law at infinite width
    _formula: Callable[[], str] | None = None

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    @classmethod
    def _from_arrays(cls, origin: Provenance, **arrays: Any) -> Any:
        return cls(origin=origin, **arrays)  # type: ignore[call-arg]

    @property
    def status(self) -> str:
        """The standing of the law: `proved`, `exact`, `same limit`, `conjectured` or
        `estimated`.
        """
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
    def _words(self) -> list[str]:
        """The words of its representations."""
        numbers = (
            [f"{self.random_numbers:,} random numbers per replica"]
            if self.random_numbers
            else []
        )
        return [self.method, self.status, *numbers]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the law, such as activations that were treated as the
        identity.
        """
        error = self.origin.quadrature_error
        about = (
            "Gaussian expectations, or numbers in single precision, have a relative"
            f" error of about {error:.1g}"
        )
        doubt = (f"{about}, or more for a function with jumps or poles",)
        return self.origin.notes + (doubt if error >= 1e-6 else ())

    @property
    def sources(self) -> Sources:
        """The source of the errors of this law, its seed or itself: errors with a
        common source are correlated.
        """
        return frozenset(
            [
                (
                    self.origin.seed
                    if self.origin.seed is not None
                    else (type(self).__name__, id(self))
                )
            ]
        )

    def latex(self) -> str:
        """The formula of the law and of everything it depends on, for LaTeX's math
        mode, if the width is infinite.
        """
        if self._formula is None:
            raise LawError(
                "latex",
                f"no formula is known for a law by the {self.method}; laws at width inf"
                " have one",
            )
        return self._formula()

    def correction(self) -> Any:
        """The terms of order 1/n of the law at width n: of density, variance and
        kurtosis, and of distances.
        """
        needs = (
            "the limit of one plain attention layer, made by a program of one width"
            " that uses each matrix once"
        )
        tokens = "up to eight Gaussian tokens that are both keys and values"
        raise LawError(
            "correction",
            f"needs {needs}, and {tokens}; ns.width_needed compares any law with its"
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
        """
        sizes = (
            () if size is None else size if isinstance(size, tuple | list) else (size,)
        )
        shape = tuple(
            length
            for length in map(as_whole, sizes)
            if length is not None and 0 <= length <= NUMBERS
        )
        if len(shape) < len(sizes) or len(shape) > AXES or math.prod(shape) > NUMBERS:
            raise LawError(
                "rvs",
                "size",
                size,
                f"an integer from 0 to {NUMBERS:,}, or a tuple of at most {AXES}",
            )
        draws = self._rvs(math.prod(shape), checked_generator(seed, "rvs", rng))
        return draws.reshape((*shape, *draws.shape[1:]))[()]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has the same data as a file, without the functions
        that made the law.
        """
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
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
        write(Path(path), file.getvalue())


# Validation

numbers = partial(_validate.numbers, error=LawError)
real = partial(_validate.real, error=LawError)
whole = partial(_validate.whole, error=LawError)
# standard deviation over mean: a law that varies by less counts as not random
CONSTANT = 1e-9
# largest mean, draw, standard deviation or point: its square is still a finite double
MAX_MAGNITUDE = 1e150
# highest order of a moment: beyond it E[Z^k] of a standard normal Z overflows
HIGHEST = 300
HEADS = 2**63  # largest number of heads; with more, the law is as for infinitely many


def points(argument: Any, name: str, operation: str) -> Array:
    """Real numbers of any shape, including infinities and NaN."""
    numbers = as_floats(argument)
    if numbers is None:
        raise LawError(operation, name, argument, "a real number or an array of them")
    return numbers


def checked_draws(argument: Any) -> Array:
    """At least two draws that are not all equal."""
    draws = as_floats(argument)
    if draws is None:
        allowed = (
            "not be masked: take draws.compressed()"
            if np.ma.is_masked(argument)
            else "be real numbers"
        )
    elif (
        draws.size < 2
        or not (np.abs(draws) <= MAX_MAGNITUDE).all()
        or draws.min() == draws.max()
    ):
        allowed = (
            "be at least two finite numbers, not all equal and at most"
            f" {MAX_MAGNITUDE:g} in size"
        )
    else:
        return draws.ravel()
    raise LawError("draws", f"{shown(argument)} must {allowed}")


def checked_weights(
    argument: Any, count: int, operation: str, name: str = "weight"
) -> Array | None:
    """Weights of sum 1, or None for equal weights."""
    if argument is None:
        return None
    w = numbers(argument, operation, name)
    if w.shape != (count,) or (w < 0).any() or not w.any():
        raise LawError(
            operation,
            name,
            argument,
            f"{count} finite numbers, 0 or more and not all 0",
        )
    w = w if w.max() < MAX_MAGNITUDE else w / w.max()
    total = float(w.sum())
    # a copy keeps every digit
    return w if abs(total - 1) < 1e-12 else np.asarray(w / total)


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
    """A generator with this seed, or the given one; one with a fresh seed if both are
    None.
    """
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
