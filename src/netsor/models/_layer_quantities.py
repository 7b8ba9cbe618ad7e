"""What each block does to the stream, forwards: a row of numbers a block."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from ..language import Scalar, Vector, apply, join, mean_dot, stack
from ._description import Description
from ._reduce import effective_rank, of_attention, of_experts, of_gram, of_shares
from ._trace import Layer, Trace

STREAM = ("mean_square", "cosine", "effective_rank")  # of the embeddings too
ATTENTION = ("score_std", "score_max", "entropy", "largest_weight")
SHARES = ("attention_share", "cross_share", "mlp_share")
ROUTED = ("largest_load", "least_load")  # if there are experts


def forward_names(model: Description) -> tuple[str, ...]:
    """The names of the numbers of a row, in order."""
    shares = tuple(name for name in SHARES if model.decoder_layers or name != "cross_share")
    return (*STREAM, *ATTENTION, *shares, *(ROUTED if model.experts else ()))


def of_layers(model: Description, traced: Trace) -> list[Scalar]:
    """The row of each block."""
    rows: list[Scalar] = []
    before = traced.embedded
    for i, layer in enumerate(traced.layers):
        if i == model.layers and traced.decoded is not None:
            before = traced.decoded  # the decoder begins with embeddings of its own
        mask = traced.masks[i]
        allowed = np.ones(layer.scores.shape[-2:], bool) if mask is None else mask
        rows.append(_of_layer(model, before, layer, allowed))
        before = layer.stream
    return rows


def _of_layer(model: Description, before: Vector, layer: Layer, allowed: npt.NDArray[np.bool_]) -> Scalar:
    added = [layer.attended, *([layer.crossed] if layer.crossed is not None else []), layer.fed]
    squares = stack([_square(u) for u in (before, *added)])
    middle = [stack([_square(layer.given)])] if model.order == "post" else []
    shares = apply(of_shares, squares, *middle, axes=1)
    if model.decoder_layers and layer.crossed is None:
        shares = stack([shares[0], shares[0] * 0.0, shares[1]])
    of_scores = partial(of_attention, allowed=allowed)
    attention = apply(of_scores, layer.scores, layer.weights, axes=3, name="of_attention")
    loads = [] if layer.experts is None else [apply(of_experts, layer.experts, axes=2)]
    return join([of_stream(layer.stream), attention, shares, *loads])


def of_stream(x: Vector) -> Scalar:
    """The numbers of `STREAM`."""
    products = mean_dot(x, x)
    return join([apply(of_gram, products, axes=2), apply(effective_rank, products, axes=2)])


def _square(x: Vector) -> Scalar:
    one = x[..., None]
    return mean_dot(one, one)[..., 0, 0].mean()
