"""Attention, as the paper's Example 3.1 writes it."""

from __future__ import annotations

import numpy.typing as npt

from ..language import TraceError, Vector, Width, concat, dot, mean_dot, softmax, weight
from ..language._given import one_of, scale, shown, whole
from ..language._width import as_width


def attention(
    x: Vector,
    heads: int,
    head_dim: Width | int | None = None,
    mask: npt.ArrayLike | str | None = None,
    *,
    context: Vector | None = None,
    scaling: str = "sqrt",
    sigma_q: float = 1.0,
    sigma_k: float = 1.0,
    sigma_v: float = 1.0,
    sigma_o: float = 1.0,
) -> Vector:
    """Multi-head attention over the tokens along the last axis of x.

    y^i = H^(−1/2) Σ_a Σ_j softmax_j(p^a_i·) W^{O,a} W^{V,a} x^j, with p^a_ij = d^(−1/2) ⟨W^{Q,a} x^i, W^{K,a} x^j⟩.

    `head_dim` is d, the width of x unless given (low rank). `context` holds other tokens for keys and values
    (cross-attention). `scaling="linear"` divides scores by d in place of √d. `mask` is as in `ns.softmax`. Each
    sigma is the standard deviation of a matrix, σ in entries N(0, σ²/fan-in).
    """
    c = x if context is None else context
    for name, tokens in (("x", x), ("context", c)):
        if not isinstance(tokens, Vector) or tokens.ndim == 0:
            raise TraceError("attention", f"{name}={shown(tokens)} must be vectors with an axis of tokens")
    heads = whole(heads, "heads", "attention")
    score = dot if one_of(scaling, "scaling", "attention", ("sqrt", "linear")) == "sqrt" else mean_dot
    d = x.width if head_dim is None else as_width(head_dim, "attention", "head_dim")
    sigma_q, sigma_k, sigma_v, sigma_o = (
        scale(sigma, name, "attention")
        for name, sigma in (("sigma_q", sigma_q), ("sigma_k", sigma_k), ("sigma_v", sigma_v), ("sigma_o", sigma_o))
    )
    q = weight(d, x.width, heads, sigma_q, name="W^Q") @ x  # (heads, …, tokens) vectors in R^d
    k = weight(d, c.width, heads, sigma_k, name="W^K") @ c
    v = weight(d, c.width, heads, sigma_v, name="W^V") @ c
    a = softmax(score(q, k), mask)  # (heads, …, tokens, tokens) scalars
    return weight(x.width, heads * d, std=sigma_o, name="W^O") @ concat(a @ v, axis=0)
