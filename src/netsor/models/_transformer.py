"""A transformer at initialisation: its description, and the programs that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt

from .._program import Program
from .._validate import ArgumentError
from ._build import Trace, inputs_of, trace
from ._description import Description
from ._loss_gradient import ModelEnd
from ._metric_program import Probes

Ids = Sequence[int] | None
Patches = npt.ArrayLike | None


@dataclass(frozen=True, kw_only=True)
class Transformer(Description):
    """A transformer at initialisation; `ns.models.read` makes it from a configuration.

    `program`, `trace` and `probes` take its inputs: token `ids` (repeated ids share their embedding), or `tokens`, a
    number of different ids. A model with a decoder reads `ids` and decodes `decoder_ids`, which default to `ids`. A
    model of images reads `patches`, an array (patches, numbers in a patch), or `tokens`: a class token, and patches of
    standard normal pixels. Every std is the standard deviation of the entries of a matrix: N(0, std²).

    Parameters
    ----------
    name, family : str
        The name of the model, and whose code it is of.
    layers : int
        Blocks; of the encoder, if there is a decoder.
    width, heads, hidden : int
        n, of the residual stream; heads of queries; m, of the perceptron.
    groups : int, optional
        Heads of keys and values, each shared by heads/groups query heads; None: as many as heads.
    head_dim : int, optional
        d; None: width/heads.
    vocabulary : int, optional
        None: no logits; classes, if the readout is "class".
    decoder_layers : int
        Above 0: an encoder, and a decoder that looks at it.
    inputs : str
        "tokens", or "patches", which a matrix embeds, after one class token.
    patch : int, optional
        Numbers in a patch: channels · height · width.
    positions : str
        "learned", "rotary", "alibi", "relative" or "none".
    length : int, optional
        How many learned positions there are.
    rotary_base : float
        Of rotary positions.
    rotary_fraction : float
        Of the coordinates of a head, those that are turned.
    rotary_stretch : Stretch, optional
        Lowers low frequencies.
    buckets : int
        Of relative positions.
    distance : int
        Beyond which relative positions share a bucket.
    padding : int, optional
        The id whose embedding is zero.
    order : str
        Of norms and branches, as in `ns.nn.block`: "pre", "post", "parallel", "sandwich" or "after".
    norm : str
        "layer" or "rms".
    eps : float
        Of all norms.
    input_norm : bool
        Whether there is a norm of the embeddings.
    final_norm : bool
        Whether there is a norm of the last vectors.
    activation : str
        "relu", "gelu", "gelu_tanh", "silu" or "tanh".
    gated : bool
        activation(gate) * in.
    experts : int, optional
        Perceptrons; None: one, for all tokens.
    experts_per_token : int
        How many of them a router chooses for each token.
    qk_norm, qk_norm_whole : bool
        A norm of queries and keys; of all heads of a token at once.
    score_scale : float, optional
        What ⟨q, k⟩ is multiplied by; None: d^(−1/2).
    score_cap, logit_cap : float, optional
        c makes c tanh(p/c) of a score or logit p.
    window : int, optional
        A token sees this many tokens, itself included.
    window_every : int
        Which blocks have the window: 0, window_every, …; a decoder continues the count.
    causal : bool
        Whether tokens see themselves and those before them alone.
    shared : bool
        Whether all blocks begin as copies of one draw.
    readout : str
        Logits by one matrix, "linear"; by a dense layer first, "transform"; of the class token alone, "class".
    tied : bool
        Logits by the embedding vectors.
    embedding_scale, logit_scale : float
        What embeddings and logits are multiplied by.
    std_q, std_k, std_v, std_o, std_in, std_gate, std_out, std_router : float
        Of queries, keys, values and the output of attention, of the perceptron, and of the router of experts.
    std_embedding, std_position, std_logits : float
        Of embeddings, learned positions, and logits where they are not tied.
    std_type, std_relative : float
        Of one more vector that is added to every token, of relative biases.
    decoder_gain : float
        What std_v, std_o, std_in, std_gate and std_out are multiplied by in the blocks of the decoder.
    bias_in, bias_out : float
        Standard deviations of the biases of the perceptron.
    distribution : str
        "gaussian", "uniform" or "truncated": of the weights.

    Examples
    --------
    >>> model = ns.models.read("gpt2")
    >>> model.layers, model.width, model.tied
    (12, 768, True)
    >>> model.weights, model.widths()
    (124318464, {'n': 768, 'd': 64, 'm': 3072})
    >>> model.program(tokens=4).shape
    (4,)
    >>> model.trace(tokens=4).layers[0].weights.shape  # heads, tokens, tokens
    (12, 4, 4)
    >>> small = model.replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> sorted(small.probes(tokens=4).measure(3, progress=False))[:4]
    ['attention_share', 'cosine', 'effective_rank', 'entropy']
    """

    def program(
        self, ids: Ids = None, *, tokens: int | None = None, decoder_ids: Ids = None, patches: Patches = None
    ) -> Program:
        """The program of the last vectors, one a token, with widths n (stream), d (head) and m (perceptron).

        Bind widths to `inf` for the limit, in which all variances are those of this model. The parameters are those of
        `trace`.
        """
        traced = self.trace(ids, tokens=tokens, decoder_ids=decoder_ids, patches=patches)
        return Program(traced.output, self.name, traced.probes)

    def trace(
        self, ids: Ids = None, *, tokens: int | None = None, decoder_ids: Ids = None, patches: Patches = None
    ) -> Trace:
        """Every vector and score of the network as values of the language, from which you write your own programs.

        Parameters
        ----------
        ids, tokens, decoder_ids, patches
            The inputs, described at the class.
        """
        return trace(self, inputs_of(self, ids, tokens, decoder_ids, patches))

    def probes(
        self,
        ids: Ids = None,
        *,
        tokens: int | None = None,
        decoder_ids: Ids = None,
        patches: Patches = None,
        gradients: bool = False,
        ranges: bool = False,
    ) -> Probes:
        """The quantities of an audit on these inputs, which `measure` draws.

        Other parameters are those of `trace`.

        Parameters
        ----------
        gradients : bool
            Whether to include gradients.
        ranges : bool
            Whether to include the ranges of activations.
        """
        inputs = inputs_of(self, ids, tokens, decoder_ids, patches)
        if min(inputs.tokens, len(inputs.decoder_ids) or 2) < 2:
            raise ArgumentError("tokens", inputs.tokens, "2 or more: an audit compares tokens")
        empty = self.std_embedding == 0 or {*inputs.ids, *inputs.decoder_ids} == {self.padding}
        if empty and not self.std_type and not (self.positions == "learned" and self.std_position != 0):
            raise ValueError(
                f"std_embedding={self.std_embedding:g} of {self.name} with these tokens makes all vectors 0, which "
                "have no cosine, rank or shares: an audit needs embeddings above 0, or other ids than padding"
            )
        return Probes(ModelEnd(self, inputs), gradients, ranges)
