"""Masks of scores, and biases added to scores that depend on the positions of tokens."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..language import Scalar, TraceError, normal
from ..language._given import NUMBERS, one_of, scale, whole


def causal(tokens: int, window: int | None = None) -> npt.NDArray[np.bool_]:
    """A mask for scores (…, i, j): token i sees itself and those before it.

    Parameters
    ----------
    tokens : int
        How many.
    window : int, optional
        The last `window` tokens alone.

    Returns
    -------
    numpy.ndarray of bool
        (tokens, tokens), for `mask` of `attend`.

    Examples
    --------
    >>> print(ns.nn.causal(3, window=2).astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]
    """
    back = _apart(tokens, "causal")
    far = len(back) if window is None else whole(window, "window", "causal")
    return (back >= 0) & (back < far)


def alibi(heads: int, tokens: int) -> npt.NDArray[np.float64]:
    """The linear biases −m_a |i − j| of ALiBi (Press et al. 2022).

    The slopes m_a are 2^(−8a/H), a = 1 … H, for H a power of two. Otherwise they are those of the power of two below H,
    and then every other one of twice that power.

    Parameters
    ----------
    heads : int
        H.
    tokens : int
        How many.

    Returns
    -------
    numpy.ndarray
        (heads, tokens, tokens), for `bias` of `attend`.

    Examples
    --------
    >>> print(ns.nn.alibi(heads=8, tokens=3)[0])
    [[-0.  -0.5 -1. ]
     [-0.5 -0.  -0.5]
     [-1.  -0.5 -0. ]]
    """
    apart, heads = np.abs(_apart(tokens, "alibi")), whole(heads, "heads", "alibi")
    if heads * apart.size > NUMBERS:
        raise TraceError(
            "alibi", f"heads={heads} of {apart.size:,} numbers each: at most {NUMBERS:,} are allowed in all"
        )
    below = 2 ** (heads.bit_length() - 1)
    slopes = np.concatenate(
        [2.0 ** (-8 * np.arange(1, below + 1) / below), 2.0 ** (-4 * np.arange(1, 2 * below, 2) / below)]
    )
    return np.asarray(-slopes[:heads, None, None] * apart)


def relative_bias(
    heads: int,
    tokens: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    std: float = 1.0,
    bidirectional: bool = True,
) -> Scalar:
    """The relative biases of T5: random scalars, one N(0, std²) a head and bucket.

    The bucket of j − i has its sign and its size: exact while small, then on a scale of logarithms up to
    `max_distance`, beyond which all are alike. T5 has one for all its layers: pass the same value to each.

    Parameters
    ----------
    heads : int
        How many.
    tokens : int
        How many.
    buckets : int
        How many.
    max_distance : int
        Beyond which all are alike.
    std : float
        Of each bias.
    bidirectional : bool
        Whether signs have buckets of their own; otherwise j > i is as j = i.

    Returns
    -------
    Scalar
        (heads, tokens, tokens), for `bias` of `attend`.

    Examples
    --------
    >>> ns.nn.relative_bias(heads=2, tokens=5, std=0.1).shape
    (2, 5, 5)
    """
    ahead, heads = -_apart(tokens, "relative_bias"), whole(heads, "heads", "relative_bias")
    buckets = whole(buckets, "buckets", "relative_bias")
    bidirectional = one_of(bidirectional, "bidirectional", "relative_bias", (True, False))
    if buckets < 2 + 2 * bidirectional or buckets % (1 + bidirectional):
        raise TraceError(
            "relative_bias", f"buckets={buckets} must be 2 or more, and with bidirectional an even number, 4 or more"
        )
    half = buckets // 2 if bidirectional else buckets
    max_distance = whole(max_distance, "max_distance", "relative_bias", least=half // 2 + 1)
    place = _bucket(np.abs(ahead) if bidirectional else np.maximum(-ahead, 0), half, max_distance)
    table = normal((heads, buckets), scale(std, "std", "relative_bias"), name="relative bias")
    return table[:, np.where(bidirectional & (ahead > 0), half + place, place)]


def _apart(tokens: int, operation: str) -> npt.NDArray[np.intp]:
    """i − j for tokens i and j."""
    tokens = whole(tokens, "tokens", operation)
    if tokens**2 > NUMBERS:
        raise TraceError(operation, f"tokens={tokens} must be at most {int(NUMBERS**0.5):,}: pairs of them are held")
    return np.asarray(np.subtract.outer(np.arange(tokens), np.arange(tokens)))


def _bucket(distance: npt.NDArray[np.intp], buckets: int, most: int) -> npt.NDArray[np.intp]:
    """Half of the buckets for the distances 0, 1, …, the others for log(distance) up to log(most)."""
    exact = buckets // 2
    # rounding of the logarithm must not move a distance that begins a bucket into the one below
    logarithm = np.log(np.maximum(distance, exact) / exact) / math.log(most / exact)
    coarse = exact + np.floor(logarithm * (buckets - exact) + 1e-9).astype(np.intp)
    return np.where(distance < exact, distance, np.minimum(coarse, buckets - 1))
