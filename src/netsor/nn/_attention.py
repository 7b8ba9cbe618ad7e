"""Attention, as in Example 3.1 of the paper, and its variants: masks, biases, groups,
rotary positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .._validate import NUMBERS, SCALE, as_number, numbers, one_of, real, scale, whole
from ..language import (
    Scalar,
    TraceError,
    Vector,
    Width,
    concat,
    dot,
    mean_dot,
    normal,
    softmax,
    tanh,
)
from ..language import rotary as rotate
from ..language._rotary import Stretch
from ..language._scalar import ScalarLike, broadcast_shapes, constant
from ..language._softmax import MAX_TOKENS, causal
from ..language._width import as_width
from ._block import affine, call_layer, scales


def alibi(heads: int, tokens: int) -> npt.NDArray[np.float64]:
    """The linear biases −m_a |i − j| of ALiBi (Press et al. 2022), (heads, tokens,
    tokens), for `bias` of `attend`.

    The slopes m_a are 2^(−8a/H) if H is a power of two, else those of the next lower
    power P and every other one of 2P.

    Parameters
    ----------
    heads, tokens : int
        The number of heads, H, and of tokens.

    Examples
    --------
    >>> print(ns.nn.alibi(heads=8, tokens=3)[0])
    [[-0.  -0.5 -1. ]
     [-0.5 -0.  -0.5]
     [-1.  -0.5 -0. ]]
    """
    apart, heads = np.abs(_distances(tokens, "alibi")), whole(heads, "heads", "alibi")
    if heads * apart.size > NUMBERS:
        raise TraceError(
            "alibi",
            f"heads={heads} of {apart.size:,} numbers each exceed {NUMBERS:,} in total",
        )
    below = 2 ** (heads.bit_length() - 1)
    powers = (
        np.concatenate([-8 * np.arange(1, below + 1), -4 * np.arange(1, 2 * below, 2)])
        / below
    )
    return np.asarray(-(2.0 ** powers[:heads, None, None]) * apart)


def relative_bias(
    heads: int,
    tokens: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    std: float = 1.0,
    bidirectional: bool = True,
) -> Scalar:
    """The relative biases of T5, (heads, tokens, tokens), for `bias` of `attend`: one
    N(0, std²) per head and bucket.

    The bucket of j − i depends on its sign and size: exact for small distances, then
    logarithmic up to `max_distance`. T5 shares the biases across layers: pass the same
    value to each. The other parameters are those of `alibi`.

    Parameters
    ----------
    buckets : int
        The number of buckets.
    max_distance : int
        Larger distances share a bucket.
    std : float
        The standard deviation of each bias.
    bidirectional : bool
        Whether each sign has its own buckets; otherwise j > i is treated as j = i.

    Examples
    --------
    >>> ns.nn.relative_bias(heads=2, tokens=5, std=0.1).shape
    (2, 5, 5)
    """
    ahead, heads = (
        -_distances(tokens, "relative_bias"),
        whole(heads, "heads", "relative_bias"),
    )
    buckets = whole(buckets, "buckets", "relative_bias")
    bidirectional = one_of(
        bidirectional, "bidirectional", "relative_bias", (True, False)
    )
    if buckets < 2 + 2 * bidirectional or buckets % (1 + bidirectional):
        raise TraceError(
            "relative_bias",
            "buckets",
            buckets,
            "2 or more, or, if bidirectional, even and 4 or more",
        )
    half = buckets // 2 if bidirectional else buckets
    max_distance = whole(
        max_distance, "max_distance", "relative_bias", least=half // 2 + 1
    )
    # half of the buckets are for the distances 0, 1, …, the others for log(distance) up
    # to log(max_distance)
    distance, exact = (
        np.abs(ahead) if bidirectional else np.maximum(-ahead, 0),
        half // 2,
    )
    logarithm = np.log(np.maximum(distance, exact) / exact) / math.log(
        max_distance / exact
    )
    # rounding of the logarithm must not move a distance at the start of a bucket into
    # the previous one
    coarse = exact + np.floor(logarithm * (half - exact) + 1e-9).astype(np.intp)
    place = np.where(distance < exact, distance, np.minimum(coarse, half - 1))
    table = normal(
        (heads, buckets), scale(std, "std", "relative_bias"), name="relative bias"
    )
    return table[:, np.where(bidirectional & (ahead > 0), half + place, place)]


def _distances(tokens: int, operation: str) -> npt.NDArray[np.intp]:
    """i − j for tokens i and j."""
    places = np.arange(whole(tokens, "tokens", operation, most=MAX_TOKENS))
    return np.asarray(np.subtract.outer(places, places))


class Rotary(NamedTuple):
    """Rotary positions of queries and keys. The parameters are those of `rotary`.

    Examples
    --------
    >>> n, d = ns.Width("n"), ns.Width("d")
    >>> ns.nn.attention(ns.gaussian(n, 4), heads=2, head_dim=d, rotary=ns.nn.Rotary(base=500_000.0)).shape
    (4,)
    """

    base: float = 10000.0
    fraction: float = 1.0
    positions: npt.ArrayLike | None = None
    stretch: Stretch | None = None


class Attended(NamedTuple):
    """The result of `attend`.

    Parameters
    ----------
    output : Vector
        The output of attention, in the shape of x.
    scores, weights : Scalar
        Scores (heads, …, tokens, tokens), after caps and biases and before the mask,
        and their softmax.
    """

    output: Vector
    scores: Scalar
    weights: Scalar


def attention(
    x: Vector,
    heads: int,
    head_dim: Width | int | None = None,
    mask: npt.ArrayLike | str | None = None,
    *,
    context: Vector | None = None,
    groups: int | None = None,
    window: int | None = None,
    rotary: Rotary | None = None,
    qk_norm: Callable[[Vector], Vector] | None = None,
    softcap: float | None = None,
    bias: ScalarLike | None = None,
    scaling: str | float = "sqrt",
    sigma_q: float | Scalar = 1.0,
    sigma_k: float | Scalar = 1.0,
    sigma_v: float | Scalar = 1.0,
    sigma_o: float | Scalar = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """Multi-head attention over the tokens along the last axis of x: the output of
    `attend`.

    y^i = H^(−1/2) Σ_a Σ_j softmax_j(p^a_i·) W^{O,a} W^{V,a} x^j, with p^a_ij = d^(−1/2)
    ⟨W^{Q,a} x^i, W^{K,a} x^j⟩.

    Parameters
    ----------
    x : Vector
        Tokens, (…, tokens).
    heads : int
        The number of heads, H.
    head_dim : Width or int, optional
        d; by default the width of x.
    mask : array_like or str, optional
        As in `ns.softmax`: "causal", or a boolean array of the allowed scores.
    context : Vector, optional
        Other tokens, for keys and values (cross-attention).
    groups : int, optional
        The number of key and value heads, each shared by heads/groups consecutive query
        heads.
    window : int, optional
        Mask tokens that are this far apart or further.
    rotary : Rotary, optional
        Positions of queries and keys, after `qk_norm`.
    qk_norm : callable, optional
        A function of queries and keys, such as `ns.rms_norm`.
    softcap : float, optional
        c in c tanh(p/c), applied to every score p.
    bias : Scalar or array_like, optional
        Added to the scores last; broadcasts to (heads, …, tokens, tokens).
    scaling : str or float
        "sqrt" divides ⟨q, k⟩ by √d, "linear" by d; a number c multiplies d^(−1/2) ⟨q,
        k⟩.
    sigma_q, sigma_k, sigma_v, sigma_o : float or Scalar
        Standard deviations of the matrices of queries, keys, values and the output, as
        `std` of `ns.weight`.
    sigma_b : float
        The standard deviation of the entries of all biases.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> y = ns.nn.attention(ns.gaussian(n, 4), heads=2, mask="causal")
    >>> y
    <Vector of shape (4,) in R^n, by MatMul>
    >>> print(f"{ns.Program(y)[0].law(n=ns.inf).var():.4f}")  # the first token sees itself alone
    1.0000
    """
    return attend(**locals()).output


def attend(
    x: Vector,
    heads: int,
    head_dim: Width | int | None = None,
    mask: npt.ArrayLike | str | None = None,
    *,
    context: Vector | None = None,
    groups: int | None = None,
    window: int | None = None,
    rotary: Rotary | None = None,
    qk_norm: Callable[[Vector], Vector] | None = None,
    softcap: float | None = None,
    bias: ScalarLike | None = None,
    scaling: str | float = "sqrt",
    sigma_q: float | Scalar = 1.0,
    sigma_k: float | Scalar = 1.0,
    sigma_v: float | Scalar = 1.0,
    sigma_o: float | Scalar = 1.0,
    sigma_b: float = 0.0,
) -> Attended:
    """Multi-head attention: its output, scores and weights. The parameters are those of
    `attention`.

    Examples
    --------
    >>> made = ns.nn.attend(ns.gaussian(ns.Width("n"), 4), heads=8, groups=2, head_dim=ns.Width("d"), mask="causal")
    >>> made.output, made.weights.shape
    (<Vector of shape (4,) in R^n, by MatMul>, (8, 4, 4))
    """
    c = x if context is None else context
    for name, tokens in (("x", x), ("context", c)):
        if not isinstance(tokens, Vector) or tokens.ndim == 0:
            raise TraceError(
                "attention", name, tokens, "vectors with an axis of tokens"
            )
    heads = whole(heads, "heads", "attention")
    groups = heads if groups is None else whole(groups, "groups", "attention")
    if heads % groups:
        raise TraceError(
            "attention",
            f"groups={groups} must divide heads={heads}: groups have equal sizes",
        )
    d = x.width if head_dim is None else as_width(head_dim, "attention", "head_dim")
    sigma_q, sigma_k, sigma_v, sigma_o, b = scales(
        "attention",
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_o=sigma_o,
        sigma_b=sigma_b,
    )
    q = affine(x, d, sigma_q, b, heads, "W^Q")  # (heads, …, tokens) vectors in R^d
    k = affine(c, d, sigma_k, b, groups, "W^K")
    v = affine(c, d, sigma_v, b, groups, "W^V")
    if qk_norm is not None:
        q, k = (call_layer(qk_norm, u, "qk_norm", "attention") for u in (q, k))
    if rotary is not None:
        if not isinstance(rotary, Rotary):
            raise TraceError(
                "attention",
                "rotary",
                rotary,
                "an ns.nn.Rotary(base, fraction, positions)",
            )
        q, k = (rotate(u, **rotary._asdict()) for u in (q, k))
    if groups < heads:
        k, v = (u[np.repeat(np.arange(groups), heads // groups)] for u in (k, v))
    if isinstance(scaling, str) and scaling in ("sqrt", "linear"):
        p = dot(q, k) if scaling == "sqrt" else mean_dot(q, k)
    elif as_number(scaling) is None:
        raise TraceError(
            "attention", "scaling", scaling, "'sqrt', 'linear' or a number"
        )
    else:
        p = real(scaling, "scaling", "attention") * dot(q, k)
    if softcap is not None:
        cap = real(softcap, "softcap", "attention", least=1 / SCALE, most=SCALE)
        p = cap * tanh(p / cap)
    if bias is not None:
        added = (
            bias
            if isinstance(bias, Scalar)
            else constant(numbers(bias, "attention", "bias"))
        )
        problem = (
            f"bias of shape {added.shape} must broadcast to the scores, (heads, …,"
            f" queries, keys) = {p.shape}"
        )
        if broadcast_shapes("attention", problem, p.shape, added.shape) != p.shape:
            raise TraceError("attention", problem)
        p = p + added
    if window is not None:
        window = whole(window, "window", "attention")
        if p.shape[-1] != p.shape[-2]:
            raise TraceError(
                "attention", f"window={window} needs square scores, got shape {p.shape}"
            )
        if mask is not None and not (isinstance(mask, str) and mask == "causal"):
            remedy = "else mask & ns.nn.causal(tokens, window)"
            raise TraceError(
                "attention", f"window needs mask=None or 'causal'; {remedy}"
            )
        back = causal(p.shape[-1], window)
        mask = back | back.T if mask is None else back
    a = softmax(p, mask)
    return Attended(
        affine(concat(a @ v, axis=0), x.width, sigma_o, b, name="W^O"), p, a
    )
