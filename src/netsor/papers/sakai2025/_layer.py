"""The paper's attention layer: tokens x^i = φ(W^i h), and one attention over them."""

from __future__ import annotations

from typing import Any

from ... import language as ns
from ..._validate import SCALE, one_of, real, scale, whole
from ...nn import attention
from ...programs._decorator import program

ACTIVATIONS: dict[str, Any] = {
    f.__name__: f for f in (ns.clip, ns.relu, ns.erf, ns.tanh, ns.gelu, ns.identity)
}


@program
def layer(
    tokens: int = 4,
    heads: int = 2,
    activation: str = "clip",
    clip: float = 100.0,
    low_rank: bool = False,
    scaling: str = "sqrt",
    sigma_q: float = 1.0,
    sigma_k: float = 1.0,
    sigma_v: float = 1.0,
    sigma_o: float = 1.0,
    sigma_w: float = 1.0,
    token: int = 0,
    mask: str | None = None,
) -> ns.Vector:
    """One token of an attention layer over tokens x^i = φ(W^i h), h ~ N(0, I): width n,
    head dimension d or n.

    Other parameters are those of `attention`.

    Parameters
    ----------
    tokens : int
        The number of tokens.
    activation : str
        φ: clip (at `clip`), relu, erf, tanh, gelu or identity.
    clip : float
        The bound of clip.
    low_rank : bool
        Whether the head dimension is a separate width, `law(n=…, d=…)`.
    sigma_w : float
        The standard deviation of the matrices W^i.
    token : int
        The token whose output it is.

    Returns
    -------
    layer : Program
        Its output is one token, a vector of width n.

    Examples
    --------
    >>> net = ns.paper.layer(heads=2)
    >>> print(f"{net.law(n=ns.inf).pdf(0.0):.6f}")
    0.646080
    """
    one_of(activation, "activation", "layer", tuple(ACTIVATIONS))
    one_of(low_rank, "low_rank", "layer", (True, False))
    tokens = whole(tokens, "tokens", "layer")
    token = whole(token, "token", "layer", least=-tokens, most=tokens - 1)
    bound = real(clip, "clip", "layer", least=1 / SCALE, most=SCALE)
    sigma = scale(sigma_w, "sigma_w", "layer")
    n = ns.Width("n")
    # W^i h, with an independent matrix W^i for each token
    g = ns.weight(n, n, batch=tokens, std=sigma) @ ns.gaussian(n)
    x = ns.clip(g, bound) if activation == "clip" else ACTIVATIONS[activation](g)
    d = ns.Width("d") if low_rank else None
    outputs = attention(
        x,
        heads,
        d,
        mask,
        scaling=scaling,
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_o=sigma_o,
    )
    return outputs[token]
