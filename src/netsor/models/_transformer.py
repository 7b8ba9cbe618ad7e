"""A transformer at initialisation, and readers of names, files, dicts and configs."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .._validate import ArgumentError, one_of, shown, whole
from ..programs._program import Program
from ..runtime._files import content, fields
from ._build import Ids, Patches, Trace, inputs_of, trace
from ._description import Description
from ._families import READERS
from .measure._loss_gradient import ModelEnd
from .measure._metric_program import Probes

ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+(?<!\.json)")  # an id on Hugging Face's hub
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class Transformer(Description):
    """A transformer at initialisation. `ns.models.read` creates one from a
    configuration.

    `program`, `trace` and `probes` take its inputs: token `ids` (repeated ids share an
    embedding), or `tokens`, a number of different ids. An encoder-decoder model encodes
    `ids` and decodes `decoder_ids`, by default `ids`. An image model takes `patches`,
    an array (patches, numbers per patch), or `tokens`: a class token and patches of
    standard normal pixels. Every std is the standard deviation of the entries of a
    matrix: N(0, std²).

    Parameters
    ----------
    name, family : str
        The name of the model, and its model family.
    layers, width, heads, hidden : int
        The number of blocks (of the encoder, if there is a decoder); the width n of the
        residual stream; the number of query heads; the hidden width m of the
        perceptron.
    groups, head_dim : int, optional
        Key-value heads, each shared by heads/groups query heads (None: heads); d (None:
        width/heads).
    vocabulary : int, optional
        The number of words, or of classes if the readout is "class"; None: no logits.
    decoder_layers : int
        Above 0 for an encoder-decoder model.
    inputs : str
        "tokens", or "patches", embedded by a matrix after one class token.
    patch, length, padding : int, optional
        Numbers per patch (channels · height · width); the number of learned positions;
        the id whose embedding is zero.
    positions : str
        "learned", "rotary", "alibi", "relative" or "none".
    rotary_base : float
        The base of the frequencies of rotary positions.
    rotary_fraction : float
        The fraction of the coordinates of a head to rotate.
    rotary_stretch : Stretch, optional
        The scaling of low frequencies.
    buckets : int
        The number of buckets of relative positions.
    distance : int
        The distance beyond which relative positions share a bucket.
    order : str
        The order of norms and branches, as in `ns.nn.block`: "pre", "post", "parallel",
        "sandwich" or "after".
    norm : str
        "layer" or "rms".
    eps : float
        The number that all norms add to the mean square.
    input_norm, gated, shared, tied : bool
        Whether embeddings are normalised; whether a perceptron is activation(gate) *
        in; whether all blocks start as copies of one block; whether the logits use the
        embedding vectors.
    final_norm, causal : bool
        Whether the last vectors are normalised; whether tokens see only themselves and
        earlier tokens.
    activation : str
        "relu", "gelu", "gelu_tanh", "silu" or "tanh".
    experts : int, optional
        The number of perceptrons; None for a single one.
    experts_per_token : int
        The number of experts that a router chooses per token.
    qk_norm, qk_norm_whole : bool
        Whether queries and keys are normalised; whether over all heads of a token at
        once.
    score_scale : float, optional
        The factor of ⟨q, k⟩; None: d^(−1/2).
    score_cap, logit_cap : float, optional
        c in c tanh(p/c), applied to scores or logits p.
    window : int, optional
        A token sees this many tokens, itself included.
    window_every : int
        Blocks 0, window_every, … have the window; a decoder continues the count.
    readout : str
        The logits: "linear", one matrix; "transform", a dense layer before it; "class",
        only for the class token.
    embedding_scale, logit_scale, decoder_gain : float
        Factors of embeddings, of logits, and of the decoder's std_v, std_o, std_in,
        std_gate and std_out.
    std_q, std_k, std_v, std_o, std_in, std_gate, std_out : float
        For queries, keys, values and the output of attention, and the perceptron.
    std_router, std_embedding, std_position, std_logits : float
        For the router of experts, embeddings, learned positions, and untied logits.
    std_type, std_relative, bias_in, bias_out : float
        For a further vector added to every token, relative biases, and the biases of
        the perceptron.
    distribution : str
        The distribution of the weights: "gaussian", "uniform" or "truncated".

    Examples
    --------
    >>> model = ns.models.read("gpt2")
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
        self,
        ids: Ids = None,
        *,
        tokens: int | None = None,
        decoder_ids: Ids = None,
        patches: Patches = None,
    ) -> Program:
        """The program of the last vectors, one per token, with widths n (stream), d
        (head) and m (perceptron).

        Bind widths to `inf` for the limit, with the variances of this model. The
        parameters are those of `trace`.
        """
        traced = self.trace(
            ids, tokens=tokens, decoder_ids=decoder_ids, patches=patches
        )
        program = Program(traced.output, self.name, traced.probes)
        program._gaussian = self.distribution == "gaussian"
        return program

    def trace(
        self,
        ids: Ids = None,
        *,
        tokens: int | None = None,
        decoder_ids: Ids = None,
        patches: Patches = None,
    ) -> Trace:
        """Every vector and score of the network as values of the language, for your own
        programs.

        Parameters
        ----------
        ids, tokens, decoder_ids, patches
            The inputs, described at the class.

        Returns
        -------
        trace : Trace
            `embedded` and `output`, the vectors before the first block and after the
            last norm, and `layers`, with the values of each block.
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
        """The quantities of an audit on these inputs; call `measure` to sample them.

        The other parameters are those of `trace`.

        Parameters
        ----------
        gradients : bool
            Whether to include gradients.
        ranges : bool
            Whether to include the ranges of activations.
        """
        inputs = inputs_of(self, ids, tokens, decoder_ids, patches)
        if min(inputs.tokens, len(inputs.decoder_ids) or 2) < 2:
            raise ArgumentError(
                "tokens", inputs.tokens, "2 or more: an audit compares tokens"
            )
        only_padding = {*inputs.ids, *inputs.decoder_ids} == {self.padding}
        words_are_zero = self.std_embedding == 0 or only_padding
        adds_positions = self.positions == "learned" and self.std_position != 0
        if words_are_zero and not adds_positions and not self.std_type:
            raise ValueError(
                f"std_embedding={self.std_embedding:g} of {self.name} with these tokens"
                " makes all vectors 0: an audit needs a std above 0, or ids other than"
                " padding"
            )
        return Probes(ModelEnd(self, inputs), gradients, ranges)


def hub_cached(model: str) -> Path | None:
    """The config.json of a model in the cache of huggingface_hub, if present."""
    # the environment variables of huggingface_hub, and its defaults
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(user_cache, "huggingface")
    hub_cache = (
        os.environ.get("HF_HUB_CACHE")
        or os.environ.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    hub_cache = os.path.expandvars(os.path.expanduser(hub_cache))
    folder = Path(hub_cache) / f"models--{model.replace('/', '--')}"
    with suppress(OSError, ValueError):
        commit = content(folder / "refs" / "main", 64).decode().strip()
        path = folder / "snapshots" / commit / "config.json"
        if COMMIT.fullmatch(commit) is not None and path.is_file():
            return path
    return None


@cache
def names() -> tuple[str, ...]:
    """The names of the built-in models, sorted.

    Returns
    -------
    names : tuple of str
        Each is accepted by `read`.

    Examples
    --------
    >>> ns.models.names()[:4]
    ('bert-base', 'gemma-2-9b', 'gpt2', 'gpt2-large')
    """
    model_names = []
    for entry in (resources.files(__package__) / "data").iterdir():
        file = Path(entry.name)
        if file.suffix == ".json":
            model_names.append(file.stem)
    return tuple(sorted(model_names))


def read(source: str | Path | Mapping[str, Any] | Any) -> Transformer:
    """Read a model from a name, a path, a dict or a config of transformers.

    A shipped model may override its configuration with its authors' actual
    initialisation, as Pythia does.

    Parameters
    ----------
    source : str, pathlib.Path, mapping or PretrainedConfig
        A name from `names()`, a config.json or its folder, its fields, a config object
        of transformers, or the id of a model on Hugging Face's hub
        (`meta-llama/Llama-3.1-8B`), which must be in the local cache: nothing is
        downloaded.

    Examples
    --------
    >>> model = ns.models.read("llama-3-8b")
    >>> model.layers, model.width, model.heads, model.key_heads
    (32, 4096, 32, 8)
    """
    if isinstance(source, str) and source in names():
        file = resources.files(__package__) / "data" / f"{source}.json"
        shipped = json.loads(file.read_text(encoding="utf-8"))
        return _build(shipped["config"], source).replace(**shipped.get("drawn", {}))
    if isinstance(source, str | Path):
        return _read_file(source)
    if isinstance(source, Mapping):
        return _build(dict(source))
    if hasattr(source, "to_dict"):
        return _build(source.to_dict())
    allowed = (
        "the name of a model (see ns.models.names()), a path to a config.json, a dict,"
        " or an object with to_dict"
    )
    raise ValueError(f"source of type {type(source).__name__} must be {allowed}")


def _read_file(source: str | Path) -> Transformer:
    """A model from a path, or from an id in the local cache of Hugging Face's hub."""
    path = Path(source)
    try:
        if path.is_dir():
            path = path / "config.json"
        config = fields(path)
    except OSError as error:
        # a text that is no file may be the id of a model on the hub
        may_be_id = isinstance(source, str) and isinstance(error, FileNotFoundError)
        is_id = may_be_id and ID.fullmatch(str(source)) is not None
        cached = hub_cached(str(source)) if is_id else None
        if cached is not None:
            return _build(fields(cached), str(source))
        raise _no_model(source, error, is_id) from None
    return _build(config, _name_of(source))


def _name_of(source: str | Path) -> str:
    """The name of a model that is read from a path: its folder, if the path names it
    and the file is a config.json.
    """
    path = Path(source)
    if path.is_dir():
        return path.absolute().name
    if path.name == "config.json":
        return path.parent.name or path.name
    return path.stem


def _no_model(source: str | Path, error: OSError, is_id: bool) -> ArgumentError:
    """The error for a model that is neither a file nor a known name."""
    wanted = "a file"
    path = Path(source)
    if not isinstance(error, FileNotFoundError):
        wanted = f"a readable file ({error.strerror})"
    elif path.suffix or len(path.parts) > 2 or path.is_absolute():
        wanted = f"a file that exists (there is no {path})"
    near = difflib.get_close_matches(str(source).lower(), names(), n=3, cutoff=0.4)
    meant = f": did you mean {' or '.join(near)}?" if near else "."
    allowed = (
        f"the path of {wanted}, or the name of a built-in model{meant}"
        " `netsor audit --models` lists all"
    )
    if is_id:
        allowed += (
            ". It is not in the cache of Hugging Face: run `hf download"
            f" {source} config.json` first"
        )
    return ArgumentError("model", str(source), allowed)


class UnknownFamilyError(ValueError):
    """A configuration of a model type that netsor does not describe.

    An audit reads it from the module that transformers makes of the configuration.
    """

    def __init__(self, config: Mapping[str, Any], name: str | None) -> None:
        super().__init__(
            f"model_type={shown(config.get('model_type'))} of the configuration must be"
            f" one of {', '.join(sorted(READERS))}; audits read others from the module"
            " that transformers makes"
        )
        self.config = config
        self.name = name


def _build(config: dict[str, Any], name: str | None = None) -> Transformer:
    """The model of a configuration of Hugging Face."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in READERS:
        raise UnknownFamilyError(config, name)
    return Transformer(
        name=name or config.get("_name_or_path") or family,
        family=family,
        **READERS[family](config),
    )


# The fields of nanoGPT's GPTConfig that name those of Hugging Face's GPT-2, and others.
NANOGPT_SIZES = ("n_layer", "n_head", "n_embd", "vocab_size")
# Two of the others have no effect here: models are described in evaluation, without
# dropout, and all biases of nanoGPT are 0 at initialisation.
NANOGPT_OTHERS = ("block_size", "dropout", "bias")


def nanogpt(config: Mapping[str, Any] | Any) -> Transformer:
    """The model of a nanoGPT GPTConfig, with nanoGPT's initialisation.

    Parameters
    ----------
    config : GPTConfig or mapping
        The object, or its fields; missing fields have nanoGPT's defaults.

    Examples
    --------
    >>> model = ns.models.nanogpt({"n_layer": 6, "n_head": 6, "n_embd": 384})
    >>> model.layers, round(model.std_o, 5)
    (6, 0.00577)
    """
    nanogpt_fields = dict(config) if isinstance(config, Mapping) else vars(config)
    unknown = nanogpt_fields.keys() - {*NANOGPT_SIZES, *NANOGPT_OTHERS}
    if unknown:
        raise ValueError(
            f"{', '.join(sorted(unknown))}: not a field of nanoGPT's GPTConfig; remove"
            " it if you can"
        )
    gpt2: dict[str, Any] = {"vocab_size": 50304}
    for name, value in nanogpt_fields.items():
        if name in NANOGPT_SIZES:
            gpt2[name] = value
    gpt2["n_positions"] = nanogpt_fields.get("block_size", 1024)
    gpt2["activation_function"] = "gelu"
    return Transformer(name="nanogpt", family="nanogpt", **READERS["gpt2"](gpt2))


def pytorch_encoder(
    d_model: int,
    nhead: int,
    dim_feedforward: int = 2048,
    *,
    num_layers: int = 1,
    activation: str = "relu",
    layer_norm_eps: float = 1e-5,
    norm_first: bool = False,
    bias: bool = True,
    norm: bool = False,
    causal: bool = False,
) -> Transformer:
    """The encoder that PyTorch builds from these arguments, initialised as there.

    Weights are uniform, and all layers start as copies of one. The inputs are tokens
    with unit Gaussian embeddings, as in `torch.nn.Embedding`; change that with
    `replace`.

    Parameters
    ----------
    d_model, nhead : int
        Width and heads, as in `torch.nn.TransformerEncoderLayer`.
    dim_feedforward : int
        The hidden width of the perceptron.
    num_layers : int
        As in `torch.nn.TransformerEncoder`.
    activation : str
        "relu" or "gelu".
    layer_norm_eps : float
        eps of all norms.
    norm_first, norm, causal : bool
        Whether norms come before the branches, whether a LayerNorm follows the last
        block, and whether attention is masked, which in PyTorch is an argument of the
        call.
    bias : bool
        Whether linear layers have biases.

    Examples
    --------
    >>> model = ns.models.pytorch_encoder(512, 8, num_layers=6)
    >>> model.shared, model.distribution
    (True, 'uniform')
    """
    one_of(activation, "activation", "", ("relu", "gelu"))
    whole(d_model, "d_model")
    whole(nhead, "nhead")
    whole(dim_feedforward, "dim_feedforward")
    if d_model % nhead:
        raise ArgumentError("d_model", d_model, f"a multiple of nhead={nhead}")
    # Xavier's for the packed matrix of queries, keys and values, whose fans add up to
    # 4 · d_model, and U(−1/√fan-in, 1/√fan-in) for the others
    packed = (2 * d_model) ** -0.5
    plain = (3 * d_model) ** -0.5
    last = (3 * dim_feedforward) ** -0.5
    return Transformer(
        name="pytorch-encoder",
        family="pytorch",
        layers=num_layers,
        width=d_model,
        heads=nhead,
        hidden=dim_feedforward,
        positions="none",
        order="pre" if norm_first else "post",
        eps=layer_norm_eps,
        final_norm=norm,
        activation=activation,
        causal=causal,
        shared=num_layers > 1,
        **dict.fromkeys(("std_q", "std_k", "std_v"), packed),
        **dict.fromkeys(("std_o", "std_in"), plain),
        std_out=last,
        std_embedding=1.0,
        std_position=0.0,
        bias_in=plain if bias else 0.0,
        bias_out=last if bias else 0.0,
        distribution="uniform",
    )
