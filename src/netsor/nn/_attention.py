"""Attention, as in Example 3.1 of the paper, with masks, biases, groups and rotary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .._validate import NUMBERS, SCALE, numbers, one_of, real, scale, whole
from ..language import Scalar, TraceError, Vector, Width, normal, softmax, tanh
from ..language.operations._softmax import MAX_TOKENS, causal
from ..language.values._scalar import ScalarLike, broadcast_shapes, constant
from ._block import affine, call_optional, scales, width_or
from ._heads import Heads, Rotary


def alibi(heads: int, tokens: int) -> npt.NDArray[np.float64]:
    """The linear biases −m_a |i − j| of ALiBi (Press et al. 2022).

    Pass them, an array (heads, tokens, tokens), as `bias` of `attend`. The slopes m_a
    are 2^(−8a/H) if H is a power of two, else those of the next lower power P and every
    other one of 2P.

    Parameters
    ----------
    heads, tokens : int
        The number of heads, H, and of tokens.

    Returns
    -------
    biases : numpy.ndarray
        (heads, tokens, tokens), to add to the scores.

    Examples
    --------
    >>> print(ns.nn.alibi(heads=8, tokens=3)[0])
    [[-0.  -0.5 -1. ]
     [-0.5 -0.  -0.5]
     [-1.  -0.5 -0. ]]
    """
    distance = np.abs(_distances(tokens, "alibi"))
    heads = whole(heads, "heads", "alibi")
    if heads * distance.size > NUMBERS:
        raise TraceError(
            "alibi",
            f"heads={heads} of {distance.size:,} numbers each exceed {NUMBERS:,} in"
            " total",
        )
    power_of_two = 2 ** (heads.bit_length() - 1)  # P, at most the number of heads
    # the exponents of the slopes, times P
    slopes_of_p = -8 * np.arange(1, power_of_two + 1)
    every_other_of_2p = -4 * np.arange(1, 2 * power_of_two, 2)
    exponents = np.concatenate([slopes_of_p, every_other_of_2p]) / power_of_two
    slopes = 2.0 ** exponents[:heads, None, None]
    return np.asarray(-slopes * distance)


def relative_bias(
    heads: int,
    tokens: int,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    std: float = 1.0,
    bidirectional: bool = True,
) -> Scalar:
    """The relative biases of T5: one N(0, std²) per head and bucket of distances.

    Pass them, (heads, tokens, tokens), as `bias` of `attend`. The bucket of j − i
    depends on its sign and size: exact for small distances, then logarithmic up to
    `max_distance`. T5 shares the biases across layers: pass the same value to each. The
    other parameters are those of `alibi`.

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
    operation = "relative_bias"
    ahead = -_distances(tokens, operation)
    heads = whole(heads, "heads", operation)
    buckets = whole(buckets, "buckets", operation)
    bidirectional = one_of(bidirectional, "bidirectional", operation, (True, False))
    signs = 2 if bidirectional else 1  # of j − i that have their own buckets
    if buckets < 2 * signs or buckets % signs:
        raise TraceError(
            operation,
            "buckets",
            buckets,
            "2 or more, or, if bidirectional, even and 4 or more",
        )
    buckets_per_sign = buckets // signs
    max_distance = whole(
        max_distance, "max_distance", operation, least=buckets_per_sign // 2 + 1
    )
    if bidirectional:
        bucket = _bucket_of_distance(np.abs(ahead), buckets_per_sign, max_distance)
        bucket = np.where(ahead > 0, buckets_per_sign + bucket, bucket)
    else:
        behind = np.maximum(-ahead, 0)
        bucket = _bucket_of_distance(behind, buckets_per_sign, max_distance)
    std = scale(std, "std", operation)
    table = normal((heads, buckets), std, name="relative bias")
    return table[:, bucket]


def _bucket_of_distance(
    distance: npt.NDArray[np.intp], buckets: int, max_distance: int
) -> npt.NDArray[np.intp]:
    """The bucket of each distance ≥ 0, from 0 to buckets − 1.

    The first half of the buckets is for the distances 0, 1, …, and the others are for
    log(distance) up to log(max_distance).
    """
    exact = buckets // 2
    logarithm = np.log(np.maximum(distance, exact) / exact)
    share = logarithm / math.log(max_distance / exact)  # 1 at max_distance
    # Rounding of the logarithm must not move a distance at the start of a bucket into
    # the previous one.
    steps = np.floor(share * (buckets - exact) + 1e-9).astype(np.intp)
    last_bucket = buckets - 1
    logarithmic = np.minimum(exact + steps, last_bucket)
    return np.where(distance < exact, distance, logarithmic)


def _distances(tokens: int, operation: str) -> npt.NDArray[np.intp]:
    """i − j for tokens i and j."""
    positions = np.arange(whole(tokens, "tokens", operation, most=MAX_TOKENS))
    return np.asarray(np.subtract.outer(positions, positions))


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
    """Multi-head attention over the tokens along the last axis of x.

    It returns the output of `attend`, which also gives the scores and the weights.

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
    >>> first_token = ns.Program(y)[0]  # it sees only itself
    >>> print(f"{first_token.law(n=ns.inf).var():.4f}")
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
    """Multi-head attention: its output, scores and weights.

    The parameters are those of `attention`.

    Returns
    -------
    attended : Attended
        `output`, vectors of the shape of x; `scores`, after caps and biases and before
        the mask; and `weights`, their softmax. Scores and weights are scalars of shape
        (heads, …, tokens, tokens).

    Examples
    --------
    >>> n, d = ns.Width("n"), ns.Width("d")
    >>> x = ns.gaussian(n, 4)
    >>> attended = ns.nn.attend(x, heads=8, groups=2, head_dim=d, mask="causal")
    >>> attended.output, attended.weights.shape
    (<Vector of shape (4,) in R^n, by MatMul>, (8, 4, 4))
    """
    sources = x if context is None else context  # tokens of keys and values
    for name, tokens in (("x", x), ("context", sources)):
        if not isinstance(tokens, Vector) or tokens.ndim == 0:
            raise TraceError(
                "attention", name, tokens, "vectors with an axis of tokens"
            )
    layer = Heads("attention", heads, groups)
    d = width_or(x.width, head_dim, "attention", "head_dim")
    sigma = scales(
        "attention",
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_o=sigma_o,
        sigma_b=sigma_b,
    )
    q = affine(
        x, width=d, sigma_w=sigma.q, sigma_b=sigma.b, batch=layer.heads, name="W^Q"
    )  # (heads, …, tokens)
    k = affine(
        sources,
        width=d,
        sigma_w=sigma.k,
        sigma_b=sigma.b,
        batch=layer.groups,
        name="W^K",
    )
    v = affine(
        sources,
        width=d,
        sigma_w=sigma.v,
        sigma_b=sigma.b,
        batch=layer.groups,
        name="W^V",
    )
    q = call_optional(qk_norm, q, "qk_norm", "attention")
    k = call_optional(qk_norm, k, "qk_norm", "attention")
    q = layer.rotated(q, rotary)
    k = layer.rotated(k, rotary)
    k = layer.repeated(k)
    v = layer.repeated(v)
    scores = layer.scores(q, k, scaling)
    if softcap is not None:
        cap = real(softcap, "softcap", "attention", least=1 / SCALE, most=SCALE)
        scores = cap * tanh(scores / cap)
    if bias is not None:
        scores = _with_bias(scores, bias)
    if window is not None:
        mask = _windowed(mask, window, scores)
    weights = softmax(scores, mask)
    output = layer.output(weights @ v, x.width, sigma.o, sigma.b)
    return Attended(output, scores, weights)


def _with_bias(scores: Scalar, bias: ScalarLike) -> Scalar:
    """The scores, (heads, …, queries, keys), plus a bias that broadcasts to them."""
    if not isinstance(bias, Scalar):
        bias = constant(numbers(bias, "attention", "bias"))
    problem = (
        f"bias of shape {bias.shape} must broadcast to the scores, (heads, …,"
        f" queries, keys) = {scores.shape}"
    )
    shape = broadcast_shapes("attention", problem, scores.shape, bias.shape)
    if shape != scores.shape:
        raise TraceError("attention", problem)
    return scores + bias


def _windowed(
    mask: npt.ArrayLike | str | None, window: int, scores: Scalar
) -> npt.NDArray[np.bool_]:
    """The mask (tokens, tokens) of a window, on both sides or, if causal, on the left.

    A token sees those that are less than `window` away.
    """
    window = whole(window, "window", "attention")
    queries, keys = scores.shape[-2:]
    if queries != keys:
        raise TraceError(
            "attention",
            f"window={window} needs square scores, got shape {scores.shape}",
        )
    if mask is not None and not (isinstance(mask, str) and mask == "causal"):
        remedy = "else mask & ns.nn.causal(tokens, window)"
        raise TraceError("attention", f"window needs mask=None or 'causal'; {remedy}")
    backwards = causal(keys, window)
    if mask is None:
        return backwards | backwards.T
    return backwards
