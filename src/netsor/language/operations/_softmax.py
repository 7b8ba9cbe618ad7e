"""The softmax of scores and its mask: which entries take part."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..._validate import NUMBERS, Shape, TraceError, whole
from ...functions.activations import Function, row_softmax
from ..values._scalar import Floats, Scalar, applied, as_scalar, constant

SOFTMAX = Function("softmax", row_softmax, bounded=True, lipschitz=True)
MASKED_SOFTMAX = Function("masked_softmax", row_softmax, bounded=True, lipschitz=True)
MAX_TOKENS = int(NUMBERS**0.5)  # a mask or a bias has a number for each pair of tokens


def softmax(p: Scalar, mask: npt.ArrayLike | str | None = None) -> Scalar:
    """The softmax over the last axis, e^(p_j) / Σ_k e^(p_k).

    Parameters
    ----------
    p
        Scalars with at least one axis.
    mask
        The entries that take part: "causal" (j ≤ i, for square scores) or a boolean
        array that broadcasts to the shape of p (for padding, an array of shape
        (tokens,) that is False on the padding); all by default.

    Examples
    --------
    >>> ns.softmax(ns.normal((3, 3)), mask="causal").shape
    (3, 3)
    """
    p = as_scalar(p, "softmax")
    if p.ndim == 0:
        raise TraceError("softmax", "needs an axis to run over, got a single scalar")
    if mask is None:
        return applied(SOFTMAX, (p,), p.shape, axes=1)
    allowed = checked_mask(mask, p.shape, "softmax")
    # the whole last axis, over which the softmax runs; other axes may be broadcast
    shape = np.broadcast_shapes(allowed.shape, p.shape[-1:])
    allowed = np.broadcast_to(allowed, shape)
    numbers = constant(_mask_numbers(allowed.shape, allowed.tobytes()))
    return applied(MASKED_SOFTMAX, (p, numbers), p.shape, axes=1)


def checked_mask(
    mask: npt.ArrayLike | str, shape: tuple[int, ...], operation: str
) -> npt.NDArray[np.bool]:
    """The mask of scores of this shape, as a boolean array that broadcasts to it."""
    if isinstance(mask, str) and mask == "causal":
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise TraceError(
                operation, f"mask='causal' needs square scores, got shape {shape}"
            )
        return causal(shape[-1])
    try:
        allowed = np.asarray(mask)
    except Exception:  # rows of different lengths, or an object that numpy cannot read
        allowed = np.asarray(None)
    if allowed.dtype != bool:
        expected = "'causal' or a boolean array"
        if allowed.dtype.kind in "iuf":
            expected += f", got an array of {allowed.dtype}: write mask > 0"
        raise TraceError(operation, "mask", mask, expected)
    try:
        np.broadcast_to(allowed, shape)
    except ValueError:
        raise TraceError(
            operation,
            f"mask of shape {allowed.shape} does not broadcast to scores {shape}",
        ) from None
    if not allowed.any(axis=-1).all():
        raise TraceError(operation, "mask leaves a row without any entry")
    return allowed


def causal(tokens: int, window: int | None = None) -> npt.NDArray[np.bool]:
    """A mask (tokens, tokens) for `attend`: token i sees itself and earlier tokens.

    Parameters
    ----------
    tokens : int
        The number of tokens.
    window : int, optional
        Each token sees only the last `window` tokens.

    Returns
    -------
    mask : numpy.ndarray
        Booleans (tokens, tokens): whether the token of a row sees that of a column.

    Examples
    --------
    >>> print(ns.nn.causal(3, window=2).astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]
    """
    tokens = whole(tokens, "tokens", "causal", most=MAX_TOKENS)
    if window is None:
        window = tokens
    else:
        window = whole(window, "window", "causal")
    not_later = np.tri(tokens, dtype=bool)
    too_far = np.tri(tokens, k=-window, dtype=bool)
    return np.asarray(not_later & ~too_far)


@lru_cache(maxsize=4)  # masks are large, and layers share them
def _mask_numbers(shape: Shape, mask: bytes) -> Floats:
    """A mask as numbers 1 and 0; equal masks share one read-only array."""
    numbers = np.frombuffer(mask, dtype=bool).reshape(shape).astype(np.float64)
    numbers.setflags(write=False)
    return numbers
