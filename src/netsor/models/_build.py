"""Builds a described transformer in the language, block by block.

Matrices have entries N(0, std²) = N(0, σ²/N), where N is the fan-in of the real model.
The program keeps σ = std·√N, so it has the scale of the real model at every width, also
at infinite width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import netsor.nn as nn

from .. import language as ns
from .._array_api import Bools, Floats
from .._validate import ArgumentError, listed, shown, whole
from ..language._operation import MatMul
from ..language._probe import Probe
from ..language._score import rsqrt
from ._description import BRANCHES, Description
from ._metrics import of_router
from ._probed_program import matrix_kind, values_by_block

n, d, m = ns.Width("n"), ns.Width("d"), ns.Width("m")
Ids = Sequence[int] | None
Patches = npt.ArrayLike | None
Mask = Bools | None
Bias = ns.Scalar | Floats | None
ACTIVATIONS: dict[str, Callable[[ns.Vector], ns.Vector]]
ACTIVATIONS = {
    "relu": ns.relu,
    "gelu": ns.gelu,
    "gelu_tanh": ns.gelu_tanh,
    "silu": ns.silu,
    "tanh": ns.tanh,
}


@dataclass(frozen=True)
class Inputs:
    """Checked inputs of one model."""

    tokens: int
    ids: tuple[int, ...] = ()  # empty if the inputs are patches
    decoder_ids: tuple[int, ...] = ()
    # (tokens − 1, numbers per patch); None: standard normal pixels
    patches: Floats | None = None


def inputs_of(
    model: Description, ids: Ids, tokens: int | None, decoder_ids: Ids, patches: Patches
) -> Inputs:
    """Check the user's inputs; by default `tokens` different ids."""
    if decoder_ids is not None and not model.decoder_layers:
        raise ArgumentError(
            "decoder_ids", decoder_ids, f"left out: {model.name} has no decoder"
        )
    if model.inputs == "patches":
        most = model.length or 2
        if ids is not None or (patches is None) == (tokens is None):
            raise ValueError(
                f"{model.name} reads images: give patches, or tokens (a class token and"
                " random patches)"
            )
        if patches is None:
            return Inputs(whole(tokens, "tokens", least=2, most=most))
        given = np.array(patches, dtype=np.float64)
        if (
            given.ndim != 2
            or given.shape[1] != model.patch
            or not 1 <= len(given) < most
        ):
            raise ValueError(
                f"patches of shape {given.shape} must be (patches, {model.patch}), at"
                f" most {most - 1}"
            )
        return Inputs(len(given) + 1, patches=given)
    if patches is not None:
        raise ValueError(
            f"patches are for models of images, and {model.name} reads ids"
        )
    if (ids is None) == (tokens is None):
        raise ValueError(
            f"give either ids or tokens (a number of different ids), got {shown(ids)}"
            f" and {shown(tokens)}"
        )
    if ids is None:
        count = whole(tokens, "tokens", most=model.length or 2**20)
        words = (model.vocabulary or math.inf) - (model.padding is not None)
        if count > words:
            raise ArgumentError(
                "tokens",
                count,
                f"at most {words}, the number of ids of {model.name}; or give ids",
            )
        ids = [i for i in range(count + 1) if i != model.padding][:count]
    checked = _ids(model, ids, "ids")
    decoded = (
        checked if decoder_ids is None else _ids(model, decoder_ids, "decoder_ids")
    )
    return Inputs(len(checked), checked, decoded if model.decoder_layers else ())


def _ids(model: Description, ids: Sequence[int], name: str) -> tuple[int, ...]:
    most = (model.vocabulary or 2**53) - 1
    checked = tuple(
        whole(i, name, least=0, most=most)
        for i in listed(ids, name, "a sequence of token ids")
    )
    if not checked:
        raise ArgumentError(name, ids, "one id or more")
    if model.positions == "learned" and len(checked) > (model.length or 0):
        raise ArgumentError(
            name,
            ids,
            f"at most {model.length} tokens: {model.name} has that many positions",
        )
    return checked


class Layer(NamedTuple):
    """One block: its output, the outputs of its branches, and its attention.

    Parameters
    ----------
    stream, attended, fed : Vector
        The outputs of the block, of attention and of the perceptron, each (tokens,).
    given : Vector
        The input of the perceptron; with `order="post"` the perceptron adds to it.
    scores, weights : Scalar
        The scores, (heads, tokens, tokens), and their softmax.
    crossed : Vector, optional
        The output of attention to the encoder.
    experts : Scalar, optional
        The router's weight of each expert for each token, (tokens, experts).

    Examples
    --------
    >>> layer = ns.models.read("gpt2").trace(tokens=4).layers[0]
    >>> layer.stream.shape, layer.scores.shape
    ((4,), (12, 4, 4))
    """

    stream: ns.Vector
    attended: ns.Vector
    fed: ns.Vector
    given: ns.Vector
    scores: ns.Scalar
    weights: ns.Scalar
    crossed: ns.Vector | None = None
    experts: ns.Scalar | None = None


class EmbeddingTable(NamedTuple):
    """The embedding of the ids that occur, in increasing order."""

    ids: tuple[int, ...]
    vectors: nn.Embedding  # indexed by their positions in `ids`


class Trace(NamedTuple):
    """A network from its embeddings to its last vectors.

    Parameters
    ----------
    embedded, output : Vector
        The embeddings, (tokens,), and the last vectors, after the last norm.
    layers : tuple of Layer
        The blocks, those of an encoder first.
    masks : tuple of numpy.ndarray or None
        The allowed scores of each block, booleans (tokens, tokens), or None for all.
    table : EmbeddingTable or None
        The embedding, for tied logits; None if the inputs are patches.
    decoded : Vector, optional
        The embeddings of the decoder.
    post : bool
        Whether a norm follows each sum.

    Examples
    --------
    >>> traced = ns.models.read("gpt2").trace(tokens=4)
    >>> len(traced.layers), traced.output
    (12, <Vector of shape (4,) in R^n, by Scale>)
    """

    embedded: ns.Vector
    layers: tuple[Layer, ...]
    output: ns.Vector
    masks: tuple[Mask, ...]
    table: EmbeddingTable | None
    decoded: ns.Vector | None = None
    post: bool = False

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The same values as probes, with the names of `ns.probe`, as in a custom
        program.
        """
        starts = (
            [self.embedded] if self.decoded is None else [self.embedded, self.decoded]
        )
        encoder = sum(layer.crossed is None for layer in self.layers)
        blocks = values_by_block(
            starts, [layer.stream for layer in self.layers], encoder
        )[1]
        probes: list[Probe] = []
        for i, (layer, mask, values) in enumerate(
            zip(self.layers, self.masks, blocks, strict=True)
        ):
            if i in (0, encoder):
                probes.append(Probe("embedding", starts[i > 0]))
            for value in values:
                kind = matrix_kind(value.op, n) if isinstance(value.op, MatMul) else ""
                if kind in ("query", "key", "value"):
                    probes.append(Probe(kind, value))
                elif kind == "out":
                    probes.append(Probe("hidden", value.op.x))  # type: ignore[attr-defined]
            probes += [
                Probe("scores", layer.scores, mask),
                Probe("weights", layer.weights, mask),
            ]
            named: dict[str, ns.Value | None] = {
                "attention": layer.attended,
                "cross": layer.crossed,
                "mlp": layer.fed,
            }
            named |= {
                "middle": layer.given if self.post else None,
                "experts": layer.experts,
                "stream": layer.stream,
            }
            probes += [
                Probe(name, value) for name, value in named.items() if value is not None
            ]
        return tuple(probes)


def trace(
    model: Description, given: Inputs, embedded: ns.Vector | None = None
) -> Trace:
    """Build the network on these inputs. `embedded` are precomputed embeddings; by
    default they are computed here.
    """
    table, x = _embedded(model, given) if embedded is None else (None, embedded)
    depth = model.layers + model.decoder_layers
    windows = [
        model.window if i % model.window_every == 0 else None for i in range(depth)
    ]
    masks = [
        _mask(given.tokens, window, model.causal) for window in windows[: model.layers]
    ]
    bias = _bias(model, given.tokens, bidirectional=not model.causal)
    last = partial(normed, model) if model.final_norm else lambda u: u
    layers: list[Layer] = []
    stream, decoded = x, None
    again = nn.shared(lambda u: _layer(model, u, masks[0], bias)[:6])
    for mask in masks:
        layers.append(
            Layer(*again(stream)) if model.shared else _layer(model, stream, mask, bias)
        )
        stream = layers[-1].stream
    if table is not None and model.decoder_layers:
        context, tokens = last(stream), len(given.decoder_ids)
        stream = decoded = _words(model, table, given.decoder_ids)
        bias = _bias(model, tokens, bidirectional=False)
        decoder = dataclasses.replace(
            model,
            **{name: model.decoder_gain * getattr(model, name) for name in BRANCHES},
        )
        for window in windows[model.layers :]:
            masks.append(_mask(tokens, window, True))
            layers.append(_decoder_layer(decoder, stream, context, masks[-1], bias))
            stream = layers[-1].stream
    return Trace(
        x,
        tuple(layers),
        last(stream),
        tuple(masks),
        table,
        decoded,
        model.order == "post",
    )


def _embedded(
    model: Description, given: Inputs
) -> tuple[EmbeddingTable | None, ns.Vector]:
    if model.inputs == "patches":
        pixels = (
            ns.gaussian(model.patch or 1, given.tokens - 1)
            if given.patches is None
            else ns.data(given.patches)
        )
        std = sigma_of(model.std_embedding, pixels.width.factor)
        patches = ns.weight(n, pixels.width, std=std, name="W^P") @ pixels
        x = ns.join(
            [ns.gaussian(n, 1, cov=model.std_embedding**2, name="class"), patches]
        )
        table = None
    else:
        known = tuple(sorted({*given.ids, *given.decoder_ids}))
        table = EmbeddingTable(
            known, nn.Embedding(np.arange(len(known)), n, model.std_embedding)
        )
        x = _words(model, table, given.ids)
    if model.positions == "learned" and model.std_position != 0:
        x = (
            x
            + nn.Embedding(
                np.arange(given.tokens), n, model.std_position, name="position"
            )()
        )
    if model.std_type:
        x = x + ns.gaussian(n, cov=model.std_type**2, name="type")
    return table, normed(model, x) if model.input_norm else x


def _words(
    model: Description, table: EmbeddingTable, ids: tuple[int, ...]
) -> ns.Vector:
    x = table.vectors(np.searchsorted(table.ids, ids))
    if model.padding in ids:
        x = np.where(np.array(ids) == model.padding, 0.0, 1.0) * x
    return x if model.embedding_scale == 1 else model.embedding_scale * x


def _layer(model: Description, x: ns.Vector, mask: Mask, bias: Bias) -> Layer:
    inside: dict[str, Any] = {}

    def attend(u: ns.Vector) -> ns.Vector:
        attended = _attend(model, u, mask, bias)
        inside.update(scores=attended.scores, weights=attended.weights)
        return attended.output

    def feed(u: ns.Vector) -> ns.Vector:
        inside["given"] = u
        if model.experts is None:
            return _feed(model, u)
        logits = nn.logits(
            u, model.experts, sigma=sigma_of(model.std_router, model.width)
        )
        chosen = partial(of_router, chosen=model.experts_per_token)
        inside["experts"] = ns.apply(chosen, logits, axes=1, name="of_router")
        return _experts(model, u, inside["experts"])

    block = nn.block(x, attend, feed, partial(normed, model), model.order)
    return Layer(block.output, block.attended, block.fed, **inside)


def _decoder_layer(
    model: Description, x: ns.Vector, context: ns.Vector, mask: Mask, bias: Bias
) -> Layer:
    own = _attend(model, normed(model, x), mask, bias)
    x = x + own.output
    cross = _attend(model, normed(model, x), None, None, context).output
    given = normed(model, x := x + cross)
    fed = _feed(model, given)
    return Layer(x + fed, own.output, fed, given, own.scores, own.weights, cross)


def _attend(
    model: Description,
    x: ns.Vector,
    mask: Mask,
    bias: Bias,
    context: ns.Vector | None = None,
) -> nn.Attended:
    rotary = nn.Rotary(
        model.rotary_base, model.rotary_fraction, None, model.rotary_stretch
    )
    norm = partial(
        _norm_all_heads if model.qk_norm_whole else ns.rms_norm, eps=model.eps
    )
    return nn.attend(
        x,
        model.heads,
        d,
        mask,
        context=context,
        groups=model.key_heads,
        rotary=rotary if model.positions == "rotary" else None,
        qk_norm=norm if model.qk_norm else None,
        softcap=model.score_cap,
        bias=bias,
        scaling=(
            "sqrt"
            if model.score_scale is None
            else model.score_scale * math.sqrt(model.d)
        ),
        sigma_q=sigma_of(model.std_q, model.width),
        sigma_k=sigma_of(model.std_k, model.width),
        sigma_v=sigma_of(model.std_v, model.width),
        sigma_o=sigma_of(model.std_o, model.heads * model.d),
    )


def _norm_all_heads(u: ns.Vector, eps: float) -> ns.Vector:
    """RMSNorm over the concatenated heads of a token: all heads (heads, tokens) share
    one scale.
    """
    one = u[..., None]
    square = ns.mean_dot(one, one)[..., 0, 0].mean(axis=0)
    return (
        ns.apply(
            partial(rsqrt, eps=eps),
            square,
            name="rsqrt",
            bounded=eps > 0,
            lipschitz=eps > 0,
        )
        * u
    )


def _feed(model: Description, x: ns.Vector) -> ns.Vector:
    def activation(h: ns.Vector) -> ns.Vector:
        h = h + ns.gaussian(m, cov=model.bias_in**2, name="b") if model.bias_in else h
        return ACTIVATIONS[model.activation](h)

    sigma_w, sigma_gate = (
        sigma_of(model.std_in, model.width),
        sigma_of(model.std_gate, model.width),
    )
    sigmas = {
        "sigma_w": sigma_w,
        "sigma_gate": sigma_gate,
        "sigma_out": sigma_of(model.std_out, model.hidden),
    }
    fed = nn.mlp(x, m, n, activation, gate=model.gated, **sigmas)
    return (
        fed + ns.gaussian(n, cov=model.bias_out**2, name="b") if model.bias_out else fed
    )


def _experts(model: Description, x: ns.Vector, given: ns.Scalar) -> ns.Vector:
    """Σ_e given_e W_e h_e, as one matrix applied to the concatenated given_e h_e."""
    count = given.shape[-1]

    def hidden(std: float, name: str | None = None) -> ns.Vector:
        # (experts, tokens)
        return ns.weight(m, n, count, sigma_of(std, model.width), name=name) @ x

    gate = (model.std_gate, "W^G") if model.gated else (model.std_in,)
    h = ACTIVATIONS[model.activation](hidden(*gate))
    h = h * hidden(model.std_in) if model.gated else h
    last = ns.weight(n, count * m, std=sigma_of(model.std_out, count * model.hidden))
    return last @ ns.concat(given.transpose() * h, axis=0)


def normed(model: Description, x: ns.Vector) -> ns.Vector:
    """Apply the norm of this model."""
    return (
        ns.layer_norm(x, model.eps)
        if model.norm == "layer"
        else ns.rms_norm(x, model.eps)
    )


@lru_cache(maxsize=2)
def _mask(tokens: int, window: int | None, causal: bool) -> Mask:
    """The mask, one array for all layers that share it; None if every token sees every
    token.
    """
    if window is None and not causal:
        return None
    visible = nn.causal(tokens, window)
    visible = visible if causal else visible | visible.T
    visible.setflags(write=False)
    return visible


def _bias(model: Description, tokens: int, *, bidirectional: bool) -> Bias:
    if model.positions == "alibi":
        return nn.alibi(model.heads, tokens)
    if model.positions != "relative":
        return None
    sizes = {"buckets": model.buckets, "max_distance": model.distance}
    return nn.relative_bias(
        model.heads,
        tokens,
        **sizes,
        std=model.std_relative,
        bidirectional=bidirectional,
    )


def sigma_of(std: float, fan_in: int) -> float:
    """σ in entries N(0, σ²/fan-in) with this standard deviation."""
    return std * math.sqrt(fan_in)
