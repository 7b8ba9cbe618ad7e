"""What a transformer at initialisation is, as data: its sizes, its order of operations, the law of its weights."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

from .._validate import shown
from ..language._rotary import Stretch
from ._config import ACTIVATION

CHOICES = {
    "positions": ("learned", "rotary", "alibi", "relative", "none"),
    "norm": ("layer", "rms"),
    "order": ("pre", "post", "parallel", "sandwich", "after"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "tanh"),
    "distribution": ("gaussian", "uniform", "truncated"),
    "inputs": ("tokens", "patches"),
    "readout": ("linear", "transform", "class"),
}
# Names of fields in configurations of Hugging Face. `initializer_range` is not among them: there it also scales the
# matrices that a family draws smaller, while `std` sets all of them alike.
HUGGING_FACE_NAMES = {
    "layers": "n_layer num_hidden_layers num_layers",
    "width": "n_embd hidden_size d_model",
    "heads": "n_head num_attention_heads num_heads",
    "groups": "num_key_value_heads",
    "head_dim": "d_kv",
    "hidden": "n_inner intermediate_size d_ff",
    "vocabulary": "vocab_size",
    "decoder_layers": "num_decoder_layers",
    "length": "n_positions max_position_embeddings",
    "padding": "pad_token_id",
    "eps": "layer_norm_epsilon layer_norm_eps rms_norm_eps",
    "activation": "activation_function hidden_act",
    "tied": "tie_word_embeddings",
    "rotary_base": "rope_theta",
    "window": "sliding_window",
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
}
ALIASES = {alias: name for name, aliases in HUGGING_FACE_NAMES.items() for alias in aliases.split()}
# Numbers of a description are within these, so that their squares, and they times the root of any width, can be drawn.
MIN_MAGNITUDE, MAX_MAGNITUDE = 1e-40, 1e40


def parsed(kind: str, text: str) -> Any:
    """The value of a field that a text gives, if it is of the kind of the field; else the text."""
    if text.lower() == "none" and "None" in kind:
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
        if kind.startswith("Stretch"):
            return Stretch(*map(float, text.split(",")))
    except (ValueError, TypeError):
        pass  # the check of the field says what is allowed
    return text


def checked(name: str, kind: str, value: Any) -> Any:
    """The value of a field, or an error that says what is allowed."""
    if value is None and "None" in kind:
        return None
    if name in CHOICES:
        if value not in CHOICES[name]:
            refuse(name, value, f"must be one of {', '.join(CHOICES[name])}")
    elif kind == "str":
        if not isinstance(value, str) or not value:
            refuse(name, value, "must be a text")
    elif kind == "bool":
        if not isinstance(value, bool):
            refuse(name, value, "must be True or False")
    elif kind.startswith("int"):
        least = 0 if name in ("decoder_layers", "padding") else 1
        if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value < 2**53:
            huge = isinstance(value, int) and value >= 2**53
            refuse(name, value, f"must be an integer, at least {least}" + ", below 2^53" * huge)
        return int(value)
    elif kind.startswith("Stretch"):
        if not isinstance(value, tuple) or len(value) != 4 or not all(_positive(v) for v in value):
            refuse(name, value, "must be four positive numbers: factor, low, high, original")
        if not value[1] < value[2]:
            refuse(name, value, "must have low below high")
        return Stretch(*map(float, value))
    else:
        zero = name == "eps" or name.startswith(("std", "bias"))
        if not _number(value) or not ((zero and value == 0) or MIN_MAGNITUDE <= value <= MAX_MAGNITUDE):
            refuse(name, value, f"must be a finite number,{' 0 or' * zero} from {MIN_MAGNITUDE:g} to {MAX_MAGNITUDE:g}")
        if name == "rotary_fraction" and value > 1:
            refuse(name, value, "must be at most 1")
        return float(value)
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def refuse(name: str, value: Any, allowed: str) -> None:
    """An error about a field."""
    raise ValueError(f"{name}={shown(value)} of a Transformer {allowed}")


# What `std` stands for: the matrices, embeddings and positions that a plain initialisation draws alike.
MATRICES = ("q", "k", "v", "o", "in", "gate", "out", "embedding", "position", "logits")
BRANCHES = ("std_v", "std_o", "std_in", "std_gate", "std_out")  # of what the branches of a block add: all but scores


@dataclass(frozen=True, kw_only=True)
class Description:
    """The fields of a `Transformer`, checked.

    Every std is the standard deviation of the entries of a matrix. `replace` changes a field alone: what a family
    derives from it (GPT-2's smaller output projections from the number of layers) stays. Fields that are None follow:
    `d` and `key_heads` are the values of `head_dim` and `groups`.
    """

    name: str
    family: str
    layers: int  # blocks; of the encoder, if there is a decoder
    width: int  # n, of the residual stream
    heads: int
    groups: int | None = None  # key-value heads, each shared by heads/groups query heads; None: as many as heads
    head_dim: int | None = None  # d; None: width/heads
    hidden: int  # m, of the perceptron
    vocabulary: int | None = None  # None: no logits; classes, if the readout is "class"
    decoder_layers: int = 0  # above 0: an encoder, and a decoder that looks at it

    inputs: str = "tokens"  # or patches, which a matrix embeds, after one class token
    patch: int | None = None  # numbers in a patch: channels · height · width
    positions: str = "learned"
    length: int | None = None  # how many learned positions there are
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0  # of the coordinates of a head
    rotary_stretch: Stretch | None = None
    buckets: int = 32  # of relative positions
    distance: int = 128  # beyond which relative positions share a bucket
    padding: int | None = None  # the id whose embedding is zero

    order: str = "pre"
    norm: str = "layer"
    eps: float = 1e-5
    input_norm: bool = False  # of the embeddings
    final_norm: bool = True
    activation: str = "gelu"
    gated: bool = False  # activation(gate) * in
    experts: int | None = None  # perceptrons, of which a router chooses some for each token; None: one, for all
    experts_per_token: int = 2
    qk_norm: bool = False
    qk_norm_whole: bool = False  # of all heads of a token at once
    score_scale: float | None = None  # what ⟨q, k⟩ is multiplied by; None: d^(−1/2)
    score_cap: float | None = None
    window: int | None = None  # a token sees this many tokens, itself included
    window_every: int = 1  # which blocks have the window: 0, window_every, …; a decoder continues the count
    causal: bool = True
    shared: bool = False  # all blocks begin as copies of one draw

    readout: str = "linear"  # logits by one matrix; by a dense layer first; or of the class token alone
    tied: bool = False  # logits by the embedding vectors
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None

    std_q: float = 0.02
    std_k: float = 0.02
    std_v: float = 0.02
    std_o: float = 0.02
    std_in: float = 0.02
    std_gate: float = 0.02
    std_out: float = 0.02
    std_router: float = 0.02
    std_embedding: float = 0.02
    std_position: float = 0.02
    std_type: float = 0.0  # one more vector, added to every token
    std_relative: float = 0.0  # relative biases of scores
    std_logits: float = 0.02  # where the logits are not tied
    decoder_gain: float = 1.0  # the decoder's std_v, std_o, std_in, std_gate and std_out, over those of the encoder
    bias_in: float = 0.0  # standard deviations of biases
    bias_out: float = 0.0
    distribution: str = "gaussian"

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, checked(field.name, str(field.type), getattr(self, field.name)))
        if self.head_dim is None and self.width % self.heads:
            refuse("heads", self.heads, f"must divide width={self.width} where head_dim is None: set that too")
        if self.heads % self.key_heads:
            refuse("groups", self.groups, f"must divide heads={self.heads}: set both")
        if self.positions == "learned" and self.length is None:
            refuse("length", None, "must say how many learned positions there are")
        if self.inputs == "patches" and (self.patch is None or self.readout != "class" or not self.length):
            refuse("inputs", self.inputs, "needs patch, length and readout='class'")
        if self.inputs == "patches" and self.tied:
            refuse("tied", self.tied, "is for inputs='tokens', which have an embedding")
        if self.inputs == "tokens" and self.readout == "class":
            refuse("readout", self.readout, "is for inputs='patches', which have a class token")
        if self.decoder_layers:
            self._check_decoder()
        if self.shared and self.window is not None and self.window_every > 1:
            refuse("window_every", self.window_every, "must be 1 with shared=True: copies of one block are alike")
        if self.padding is not None and self.padding >= (self.vocabulary or math.inf):
            refuse("padding", self.padding, f"must be an id of the vocabulary, which has {self.vocabulary}")
        if self.gated and self.bias_in:
            refuse("bias_in", self.bias_in, "is for gated=False")
        if self.experts is not None:
            self._check_experts()
        if self.positions == "rotary":
            self._check_rotary()
        elif self.rotary_stretch is not None:
            refuse("rotary_stretch", self.rotary_stretch, "is for positions='rotary'")
        if self.positions == "relative" and (self.buckets < 4 or self.distance <= self.buckets // 2):
            refuse("buckets", self.buckets, f"must be at least 4, and below 2·distance={2 * self.distance}")

    def _check_rotary(self) -> None:
        turned = self.rotary_fraction * self.d
        if round(turned) % 2 or abs(turned - round(turned)) > 1e-9 * self.d:
            share = "" if self.rotary_fraction == 1 else f" times rotary_fraction={self.rotary_fraction:g}"
            size = f"head_dim={self.head_dim}" if self.head_dim is not None else f"width/heads={self.d}"
            raise ValueError(f"{size}{share} of a Transformer must be even: rotary positions turn pairs of coordinates")

    def _check_experts(self) -> None:
        if self.experts_per_token > (self.experts or 0):
            refuse("experts_per_token", self.experts_per_token, f"must be at most experts={self.experts}")
        for name, value in {"shared": False, "decoder_layers": 0, "bias_in": 0.0, "bias_out": 0.0}.items():
            if getattr(self, name) != value:
                refuse(name, getattr(self, name), f"must be {value!r} with experts={self.experts}")

    def _check_decoder(self) -> None:
        needed = {"order": "pre", "positions": "relative", "shared": False, "input_norm": False, "std_type": 0.0}
        for name, value in (needed | {"inputs": "tokens"}).items():
            if getattr(self, name) != value:
                refuse(name, getattr(self, name), f"must be {value!r} with decoder_layers={self.decoder_layers}")

    def replace(self, *, std: float | None = None, **changes: Any) -> Self:
        """The same model with other fields. Changing a field that nothing in the model reads is an error.

        Parameters
        ----------
        std : float, optional
            The standard deviation of all matrices, embeddings and positions at once.
        **changes : Any
            New values of fields, by name. You can use the names of Hugging Face, such as `num_hidden_layers`.
        """
        changes = _own_names(changes)
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, [*known, *ALIASES, "std"], 3, 0.4)
                meant = f"; did you mean {' or '.join(near)}?" if near else ""
                given = name if name.isidentifier() else shown(name)
                raise ValueError(f"{given} is no field of a Transformer{meant or ': ns.models.Transformer lists them'}")
        every: dict[str, Any] = {}
        if std is not None:
            checked("std", "float", std)
            every = {f"std_{matrix}": std for matrix in MATRICES}
        made = dataclasses.replace(self, **{**every, **changes})
        for name, needs in idle(made).items():
            if name in changes and getattr(made, name) != getattr(self, name):
                refuse(name, getattr(made, name), f"would change nothing in {self.name}: it needs {needs}")
        return made

    def widths(self) -> dict[str, int]:
        """The widths of this model, for `Program.law(**model.widths())`: n stream, d head, m perceptron."""
        return {"n": self.width, "d": self.d, "m": self.hidden}

    @property
    def d(self) -> int:
        """The dimension of a head."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def key_heads(self) -> int:
        """The number of key-value heads."""
        return self.heads if self.groups is None else self.groups

    @property
    def weights(self) -> int:
        """The number of weights in matrices, embeddings and learned positions, without biases and gains of norms."""
        wide = self.heads * self.d * self.width
        attention = 2 * wide + 2 * wide * self.key_heads // self.heads
        perceptron = (3 if self.gated else 2) * self.width * self.hidden * (self.experts or 1)
        perceptron += self.width * (self.experts or 0)
        blocks = self.layers * (attention + perceptron) + self.decoder_layers * (2 * attention + perceptron)
        rows = (self.vocabulary or 0) * (1 if self.tied or self.inputs == "patches" else 2) + (self.patch or 0)
        rows += self.length or 0 if self.positions == "learned" else 0
        return blocks + self.width * (rows + (self.width if self.readout == "transform" else 0))

    @property
    def sizes(self) -> str:
        """The size, in words."""
        return (
            f"{self.layers + self.decoder_layers} blocks, width {self.width:,}, {self.heads} heads of {self.d}, "
            f"{self.weights:,} weights in matrices and embeddings"
        )

    def fields(self) -> dict[str, Any]:
        """Every field by its name."""
        return dataclasses.asdict(self)

    def status(self, **widths: float) -> str:
        """How the law at these widths relates to that of the real model: "exact", "same limit" or "conjectured".

        Weights that are not Gaussian have the same limit, and at finite width a law that differs by terms of the order
        of their fourth cumulant over the width.
        """
        if any(math.isinf(width) for width in widths.values()):
            return "conjectured"
        return "exact" if self.distribution == "gaussian" else "same limit"


def _own_names(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes by our names of fields, where some have those of Hugging Face."""
    made: dict[str, Any] = {}
    for given, value in changes.items():
        name = ALIASES.get(given, given)
        if name in made:
            raise ValueError(f"{given}={shown(value)} of a Transformer is given twice: {name} is the same field")
        made[name] = ACTIVATION.get(value, value) if given in ALIASES and name == "activation" else value
    return made


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """Changes for `replace` from texts "field=value", as a command line gives them.

    Parameters
    ----------
    texts : iterable of str
        The texts.

    Returns
    -------
    dict
        The values, with the types of the fields.

    Examples
    --------
    >>> ns.models.settings(["layers=24", "gated=true", "std=0.01"])
    {'layers': 24, 'gated': True, 'std': 0.01}
    """
    types = {field.name: str(field.type) for field in fields(Description)} | {"std": "float"}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ValueError(f"{shown(text)} must be written field=value")
        found[name] = parsed(types.get(ALIASES.get(name, name), "str"), value.strip())
    return found


def idle(model: Description) -> dict[str, str]:
    """The fields that nothing in this model reads, each with what would make it count."""
    rules = (
        (model.positions == "rotary", "positions='rotary'", ("rotary_base", "rotary_fraction", "rotary_stretch")),
        (model.positions == "relative", "positions='relative'", ("buckets", "distance", "std_relative")),
        (model.positions == "learned", "positions='learned'", ("std_position",)),
        (model.positions == "learned" or model.inputs == "patches", "positions='learned'", ("length",)),
        (model.gated, "gated=True", ("std_gate",)),
        (model.qk_norm, "qk_norm=True", ("qk_norm_whole",)),
        (model.experts is not None, "experts", ("experts_per_token", "std_router")),
        (model.window is not None, "window", ("window_every",)),
        (model.decoder_layers > 0, "decoder_layers", ("decoder_gain",)),
        (model.inputs == "patches", "inputs='patches'", ("patch",)),
        (model.inputs == "tokens", "inputs='tokens'", ("padding", "embedding_scale")),
        (not model.tied or model.readout == "transform", "tied=False", ("std_logits",)),
        (model.vocabulary is not None, "vocabulary", ("tied", "readout", "logit_scale", "logit_cap", "std_logits")),
    )
    return {name: needs for counts, needs, names in rules if not counts for name in names}
