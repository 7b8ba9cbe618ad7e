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
from .._validate import LARGEST, ArgumentError, listed, shown, whole
from ..language.operations._operation import MatMul
from ..language.operations._score import rsqrt
from ..language.values._probe import Probe
from ._description import BRANCHES, Description
from .measure._metrics import of_router
from .measure._probed_program import matrix_kind, values_by_block

n, d, m = ns.Width("n"), ns.Width("d"), ns.Width("m")
Ids = Sequence[int] | None
Patches = npt.ArrayLike | None
Mask = Bools | None
Bias = ns.Scalar | Floats | None
MOST_TOKENS = 2**20  # of a model without a largest length
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
        return _patch_inputs(model, ids, tokens, patches)
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
        ids = _different_ids(model, tokens)
    checked = _checked_ids(model, ids, "ids")
    decoded: tuple[int, ...] = ()
    if decoder_ids is not None:
        decoded = _checked_ids(model, decoder_ids, "decoder_ids")
    elif model.decoder_layers:
        decoded = checked
    return Inputs(len(checked), ids=checked, decoder_ids=decoded)


def _patch_inputs(
    model: Description, ids: Ids, tokens: int | None, patches: Patches
) -> Inputs:
    """The inputs of a model of images: the user's patches, or random ones.

    The class token counts as a token.
    """
    most_tokens = model.length or 2
    gives_one = (patches is None) != (tokens is None)
    if ids is not None or not gives_one:
        raise ValueError(
            f"{model.name} reads images: give patches, or tokens (a class token and"
            " random patches)"
        )
    if patches is None:
        return Inputs(whole(tokens, "tokens", least=2, most=most_tokens))
    pixels = np.array(patches, dtype=np.float64)
    is_table = pixels.ndim == 2 and pixels.shape[1] == model.patch
    if not is_table or not 1 <= len(pixels) < most_tokens:
        raise ValueError(
            f"patches of shape {pixels.shape} must be (patches, {model.patch}), at"
            f" most {most_tokens - 1}"
        )
    return Inputs(len(pixels) + 1, patches=pixels)


def _different_ids(model: Description, tokens: int | None) -> list[int]:
    """The first `tokens` ids without that of padding: 0, 1, 3, … if that is 2."""
    count = whole(tokens, "tokens", most=model.length or MOST_TOKENS)
    available = (model.vocabulary or math.inf) - (model.padding is not None)
    if count > available:
        raise ArgumentError(
            "tokens",
            count,
            f"at most {available}, the number of ids of {model.name}; or give ids",
        )
    return [i for i in range(count + 1) if i != model.padding][:count]


def _checked_ids(model: Description, ids: Sequence[int], name: str) -> tuple[int, ...]:
    """Token ids in the vocabulary, not more than the model has positions."""
    most = (model.vocabulary or LARGEST) - 1
    entries = listed(ids, name, "a sequence of token ids")
    checked = tuple(whole(entry, name, least=0, most=most) for entry in entries)
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
        """The same values as probes, named as in a custom program."""
        starts = [self.embedded]
        if self.decoded is not None:
            starts.append(self.decoded)
        streams = [layer.stream for layer in self.layers]
        encoder_layers = sum(layer.crossed is None for layer in self.layers)
        _, blocks = values_by_block(starts, streams, encoder_layers)
        probes: list[Probe] = []
        for i, values in enumerate(blocks):
            if i == 0:
                probes.append(Probe("embedding", self.embedded))
            elif i == encoder_layers:
                probes.append(Probe("embedding", starts[1]))
            probes += self._block_probes(self.layers[i], self.masks[i], values)
        return tuple(probes)

    def _block_probes(
        self, layer: Layer, mask: Mask, values: Sequence[ns.Value]
    ) -> list[Probe]:
        """The probes of a block that computes these values."""
        probes: list[Probe] = []
        for value in values:
            if not isinstance(value.op, MatMul):
                continue
            kind = matrix_kind(value.op, n)
            if kind in ("query", "key", "value"):
                probes.append(Probe(kind, value))
            elif kind == "out":
                probes.append(Probe("hidden", value.op.x))
        probes.append(Probe("scores", layer.scores, mask))
        probes.append(Probe("weights", layer.weights, mask))
        probes.append(Probe("attention", layer.attended))
        if layer.crossed is not None:
            probes.append(Probe("cross", layer.crossed))
        probes.append(Probe("mlp", layer.fed))
        if self.post:
            probes.append(Probe("middle", layer.given))
        if layer.experts is not None:
            probes.append(Probe("experts", layer.experts))
        probes.append(Probe("stream", layer.stream))
        return probes


def _windows(model: Description) -> list[int | None]:
    """How many tokens each block attends to, the encoder's blocks first; None: all."""
    windows: list[int | None] = []
    for block in range(model.layers + model.decoder_layers):
        has_window = block % model.window_every == 0
        windows.append(model.window if has_window else None)
    return windows


def trace(
    model: Description, inputs: Inputs, embedded: ns.Vector | None = None
) -> Trace:
    """Build the network on these inputs.

    `embedded` are precomputed embeddings; by default they are computed here.
    """
    table = None
    if embedded is None:
        table, embedded = _embedded(model, inputs)
    windows = _windows(model)
    masks = []
    for window in windows[: model.layers]:
        masks.append(_mask(inputs.tokens, window, model.causal))
    bias = _bias(model, inputs.tokens, bidirectional=not model.causal)

    def final_norm(x: ns.Vector) -> ns.Vector:
        """The norm before the logits, if the model has one."""
        return normed(model, x) if model.final_norm else x

    # a shared layer returns values alone, and no None: the six fields from `stream` to
    # `weights`
    shared_layer = nn.shared(lambda u: _layer(model, x=u, mask=masks[0], bias=bias)[:6])
    layers: list[Layer] = []
    stream = embedded
    decoded = None
    for mask in masks:
        if model.shared:
            layers.append(Layer(*shared_layer(stream)))
        else:
            layers.append(_layer(model, x=stream, mask=mask, bias=bias))
        stream = layers[-1].stream
    if table is not None and model.decoder_layers:
        context = final_norm(stream)
        tokens = len(inputs.decoder_ids)
        decoded = _words(model, table, inputs.decoder_ids)
        stream = decoded
        bias = _bias(model, tokens, bidirectional=False)
        decoder = _decoder(model)
        for window in windows[model.layers :]:
            masks.append(_mask(tokens, window, causal=True))
            layers.append(
                _decoder_layer(
                    decoder, x=stream, context=context, mask=masks[-1], bias=bias
                )
            )
            stream = layers[-1].stream
    return Trace(
        embedded=embedded,
        layers=tuple(layers),
        output=final_norm(stream),
        masks=tuple(masks),
        table=table,
        decoded=decoded,
        post=model.order == "post",
    )


def _decoder(model: Description) -> Description:
    """The model with the standard deviations of its decoder."""
    stds = {name: model.decoder_gain * getattr(model, name) for name in BRANCHES}
    return dataclasses.replace(model, **stds)


def _embedded(
    model: Description, inputs: Inputs
) -> tuple[EmbeddingTable | None, ns.Vector]:
    """The table of the ids that occur, None for patches, and the embeddings
    (tokens,).
    """
    table = None
    if model.inputs == "patches":
        x = _embedded_patches(model, inputs)
    else:
        ids = tuple(sorted({*inputs.ids, *inputs.decoder_ids}))
        vectors = nn.Embedding(np.arange(len(ids)), n, model.std_embedding)
        table = EmbeddingTable(ids, vectors)
        x = _words(model, table, inputs.ids)
    if model.positions == "learned" and model.std_position != 0:
        positions = nn.Embedding(
            np.arange(inputs.tokens), n, model.std_position, name="position"
        )
        x = x + positions()
    if model.std_type:
        x = x + ns.gaussian(n, cov=model.std_type**2, name="type")
    if model.input_norm:
        x = normed(model, x)
    return table, x


def _embedded_patches(model: Description, inputs: Inputs) -> ns.Vector:
    """The vector of the class token, and one of each patch, (1 + patches,).

    A patch is W^P applied to its numbers: the given ones, or Gaussian ones.
    """
    if inputs.patches is None:
        # a model without a size of patches has one number in each
        numbers_of_patch = 1 if model.patch is None else model.patch
        pixels = ns.gaussian(numbers_of_patch, inputs.tokens - 1)
    else:
        pixels = ns.data(inputs.patches)
    # the numbers of a patch, over which an entry of W^P x sums
    fan_in = pixels.width.factor
    # `weight` takes σ, for entries N(0, σ²/fan-in)
    sigma = sigma_of(model.std_embedding, fan_in)
    patches = ns.weight(n, pixels.width, std=sigma, name="W^P") @ pixels
    class_token = ns.gaussian(n, 1, cov=model.std_embedding**2, name="class")
    return ns.join([class_token, patches])


def _words(
    model: Description, table: EmbeddingTable, ids: tuple[int, ...]
) -> ns.Vector:
    """The scaled vectors of ids, (ids,), from a table that has them; that of padding
    is 0.
    """
    x = table.vectors(np.searchsorted(table.ids, ids))
    if model.padding in ids:
        is_word = np.where(np.array(ids) == model.padding, 0.0, 1.0)
        x = is_word * x
    if model.embedding_scale != 1:
        x = model.embedding_scale * x
    return x


def _layer(model: Description, x: ns.Vector, mask: Mask, bias: Bias) -> Layer:
    """A block of the encoder, or of a model without one."""
    # the fields of `Layer` that only the branches know, by name
    fields_of_branches: dict[str, Any] = {}

    def attend(u: ns.Vector) -> ns.Vector:
        """The branch of attention, from the input u."""
        attended = _attend(model, x=u, mask=mask, bias=bias)
        fields_of_branches["scores"] = attended.scores
        fields_of_branches["weights"] = attended.weights
        return attended.output

    def feed(u: ns.Vector) -> ns.Vector:
        """The branch of the perceptron or of experts, from the input u."""
        fields_of_branches["given"] = u
        if model.experts is None:
            return _feed(model, u)
        sigma = sigma_of(model.std_router, model.width)
        logits = nn.logits(u, model.experts, sigma=sigma)
        choose = partial(of_router, chosen=model.experts_per_token)
        experts = ns.apply(choose, logits, axes=1, name="of_router")
        fields_of_branches["experts"] = experts
        return _experts(model, u, experts)

    block = nn.block(x, attend, feed, partial(normed, model), model.order)
    return Layer(
        stream=block.output,
        attended=block.attended,
        fed=block.fed,
        **fields_of_branches,
    )


def _decoder_layer(
    model: Description, x: ns.Vector, context: ns.Vector, mask: Mask, bias: Bias
) -> Layer:
    """A block of a decoder, which also attends to the encoder's output `context`."""
    attended = _attend(model, x=normed(model, x), mask=mask, bias=bias)
    x = x + attended.output
    crossed = _attend(
        model, x=normed(model, x), mask=None, bias=None, context=context
    ).output
    x = x + crossed
    queries = normed(model, x)
    fed = _feed(model, queries)
    return Layer(
        stream=x + fed,
        attended=attended.output,
        fed=fed,
        given=queries,
        scores=attended.scores,
        weights=attended.weights,
        crossed=crossed,
    )


def _attend(
    model: Description,
    x: ns.Vector,
    mask: Mask,
    bias: Bias,
    context: ns.Vector | None = None,
) -> nn.Attended:
    """The attention of a block from the tokens of x to these, or to the tokens of the
    encoder's output `context`.
    """
    rotary = None
    if model.positions == "rotary":
        rotary = nn.Rotary(
            base=model.rotary_base,
            fraction=model.rotary_fraction,
            stretch=model.rotary_stretch,
        )
    qk_norm = None
    if model.qk_norm:
        norm = _norm_all_heads if model.qk_norm_whole else ns.rms_norm
        qk_norm = partial(norm, eps=model.eps)
    scaling: str | float = "sqrt"
    if model.score_scale is not None:
        scaling = model.score_scale * math.sqrt(model.d)
    return nn.attend(
        x,
        model.heads,
        d,
        mask,
        context=context,
        groups=model.key_heads,
        rotary=rotary,
        qk_norm=qk_norm,
        softcap=model.score_cap,
        bias=bias,
        scaling=scaling,
        sigma_q=sigma_of(model.std_q, model.width),
        sigma_k=sigma_of(model.std_k, model.width),
        sigma_v=sigma_of(model.std_v, model.width),
        sigma_o=sigma_of(model.std_o, model.heads * model.d),
    )


def _norm_all_heads(u: ns.Vector, eps: float) -> ns.Vector:
    """RMSNorm over the concatenated heads of a token, (heads, tokens).

    All heads share one scale.
    """
    each_vector = u[..., None]
    square = ns.mean_dot(each_vector, each_vector)[..., 0, 0].mean(axis=0)
    scale = ns.apply(
        partial(rsqrt, eps=eps),
        square,
        name="rsqrt",
        bounded=eps > 0,
        lipschitz=eps > 0,
    )
    return scale * u


def _feed(model: Description, x: ns.Vector) -> ns.Vector:
    """The perceptron of a block."""

    def activation(h: ns.Vector) -> ns.Vector:
        """The activation of the hidden layer, after its bias."""
        if model.bias_in:
            h = h + ns.gaussian(m, cov=model.bias_in**2, name="b")
        return ACTIVATIONS[model.activation](h)

    fed = nn.mlp(
        x,
        m,
        n,
        activation,
        gate=model.gated,
        sigma_w=sigma_of(model.std_in, model.width),
        sigma_gate=sigma_of(model.std_gate, model.width),
        sigma_out=sigma_of(model.std_out, model.hidden),
    )
    if model.bias_out:
        fed = fed + ns.gaussian(n, cov=model.bias_out**2, name="b")
    return fed


def _experts(model: Description, x: ns.Vector, shares: ns.Scalar) -> ns.Vector:
    """Σ_e share_e W_e h_e, as one matrix applied to the concatenated share_e h_e.

    shares: (tokens, experts), the router's weights.
    """
    count = shares.shape[-1]

    def hidden(std: float, name: str | None = None) -> ns.Vector:
        """W x with a new matrix for each expert, (experts, tokens)."""
        return ns.weight(m, n, count, sigma_of(std, model.width), name=name) @ x

    activation = ACTIVATIONS[model.activation]
    if model.gated:
        h = activation(hidden(model.std_gate, "W^G"))
        h = h * hidden(model.std_in)
    else:
        h = activation(hidden(model.std_in))
    sigma = sigma_of(model.std_out, count * model.hidden)
    last = ns.weight(n, count * m, std=sigma)
    return last @ ns.concat(shares.transpose() * h, axis=0)


def normed(model: Description, x: ns.Vector) -> ns.Vector:
    """Apply the norm of this model."""
    norm = ns.layer_norm if model.norm == "layer" else ns.rms_norm
    return norm(x, model.eps)


@lru_cache(maxsize=2)
def _mask(tokens: int, window: int | None, causal: bool) -> Mask:
    """The allowed scores (tokens, tokens), one array for all layers that share it.

    With a window, a token sees so many tokens back, and as many ahead unless the model
    is causal. None if every token sees every token.
    """
    if window is None and not causal:
        return None
    visible = nn.causal(tokens, window)
    if not causal:
        visible = visible | visible.T
    visible.setflags(write=False)
    return visible


def _bias(model: Description, tokens: int, *, bidirectional: bool) -> Bias:
    """The biases of the scores by distance, if the model has them."""
    if model.positions == "alibi":
        return nn.alibi(model.heads, tokens)
    if model.positions != "relative":
        return None
    return nn.relative_bias(
        model.heads,
        tokens,
        buckets=model.buckets,
        max_distance=model.distance,
        std=model.std_relative,
        bidirectional=bidirectional,
    )


def sigma_of(std: float, fan_in: int) -> float:
    """σ in entries N(0, σ²/fan-in) with this standard deviation."""
    return std * math.sqrt(fan_in)
