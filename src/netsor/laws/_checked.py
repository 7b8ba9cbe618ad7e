"""Validation of the points, draws, weights, sizes and seeds of laws."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from .. import _validate as given
from .._validate import AXES, NUMBERS, Rng, as_floats, as_whole, shown
from ._estimate import Array
from ._law_base import LawError, Provenance

numbers = partial(given.numbers, error=LawError)
real = partial(given.real, error=LawError)
whole = partial(given.whole, error=LawError)
Size = int | tuple[int, ...] | None
MAX_MAGNITUDE = 1e150  # largest mean, draw or standard deviation: its square is still a double
HIGHEST = 300  # highest order of a moment: E[Z^k] of a standard normal Z overflows above it
HEADS = 2**63  # the number of heads must be below it; beyond, the law is that of infinitely many


def points(argument: Any, name: str, operation: str) -> Array:
    """Real numbers of any shape, infinite ones and NaN too."""
    found = as_floats(argument)
    if found is None:
        raise LawError(operation, name, argument, "a real number or an array of them")
    return found


def checked_draws(argument: Any) -> Array:
    """Draws, two or more and not all alike."""
    if np.ma.is_masked(argument):
        raise LawError("draws", "must not be masked: take draws.compressed()")
    found = as_floats(argument)
    if found is None:
        raise LawError("draws", f"{shown(argument)} must be real numbers")
    found = found.ravel()
    if found.size < 2 or not np.isfinite(found).all() or found.min() == found.max():
        raise LawError("draws", f"{shown(argument)} must be at least two finite numbers, not all alike")
    if np.abs(found).max() > MAX_MAGNITUDE:
        raise LawError("draws", f"{shown(argument)} must be below {MAX_MAGNITUDE:g} in size")
    return found


def checked_weights(argument: Any, count: int, operation: str, name: str = "weight") -> Array | None:
    """Weights of sum 1, or None for equal ones."""
    if argument is None:
        return None
    w = numbers(argument, operation, name)
    if w.shape != (count,) or (w < 0).any() or not w.any():
        raise LawError(operation, name, argument, f"{count} finite numbers, 0 or more and not all 0")
    w = w if w.max() < MAX_MAGNITUDE else w / w.max()
    total = float(w.sum())
    return w if abs(total - 1) < 1e-12 else np.asarray(w / total)  # a copy keeps every digit


def checked_origin(argument: Any, operation: str) -> Provenance:
    """How a law was obtained."""
    if not isinstance(argument, Provenance):
        raise LawError(operation, "origin", argument, "an Origin(status, method)")
    return argument


def checked_heads(argument: Any, operation: str) -> int:
    """A number of heads, however large."""
    heads = as_whole(argument)
    if heads is None or not 0 < heads < HEADS:
        raise LawError(operation, "heads", argument, "a positive integer below 2^63; beyond, infinite_heads()")
    return heads


def checked_shape(argument: Any, operation: str) -> tuple[int, ...]:
    """How many draws are wanted: one, so many, or an array of this shape."""
    if argument is None:
        return ()
    sizes = [as_whole(size) for size in (argument if isinstance(argument, tuple | list) else (argument,))]
    shape = tuple(size for size in sizes if size is not None and 0 <= size <= NUMBERS)
    if len(shape) < len(sizes) or len(shape) > AXES or math.prod(shape) > NUMBERS:
        raise LawError(
            operation,
            "size",
            argument,
            f"an integer from 0 to {NUMBERS:,}, or a tuple of at most {AXES}",
        )
    return shape


def checked_generator(seed: Any, operation: str, rng: Rng = None) -> np.random.Generator:
    """The random numbers of a seed or of a generator; others each time if both are None."""
    if seed is None and (rng is None or isinstance(rng, np.random.Generator)):
        return rng or np.random.default_rng()
    try:
        return np.random.default_rng(given.chosen_seed(seed, rng))
    except given.ArgumentError as error:
        raise LawError(operation, error.name, error.value, error.allowed) from None


def checked_order(argument: Any) -> int:
    """The order of a moment."""
    order = whole(argument, "order", "moment", least=0)
    if order > HIGHEST:
        raise LawError(
            "moment", f"order={argument!r} must be at most {HIGHEST}: above, a normal's own moment is no double"
        )
    return order


def levels(argument: Any, operation: str) -> Array:
    """Probabilities; NaN stays NaN."""
    found = points(argument, "q", operation)
    bad = (found < 0) | (found > 1)
    if bad.any():
        raise LawError(operation, f"q={found[bad].ravel()[0]:g} must be between 0 and 1")
    return found
