"""The description of a transformer: sizes, order of operations, laws of weights."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import (
    Annotated,
    Any,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
)

from .._validate import (
    ArgumentError,
    Positive,
    check_fields,
    choice,
    counted,
    listed,
    real,
    shown,
    whole,
)
from ..language.operations._rotary import Stretch, checked_stretch
from ._config_reader import ACTIVATION, ALIASES

# Bounds on the numbers of a description: their squares, and products with the root of
# any width, stay doubles.
MIN_MAGNITUDE, MAX_MAGNITUDE = 1e-40, 1e40

Index = Annotated[int, partial(whole, least=0)]
Size = Annotated[float, partial(real, least=MIN_MAGNITUDE, most=MAX_MAGNITUDE)]
Std = Annotated[
    float, partial(real, least=MIN_MAGNITUDE, most=MAX_MAGNITUDE, zero=True)
]
PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    Stretch: lambda text: Stretch(*map(float, text.split(","))),
}

# The fields that `std` sets: matrices, embeddings and positions with one std in a plain
# initialisation.
STDS = tuple(
    f"std_{name}"
    for name in (
        "q",
        "k",
        "v",
        "o",
        "in",
        "gate",
        "out",
        "embedding",
        "position",
        "logits",
    )
)
SCALAR_STDS = ("std", *STDS)  # fields that may be scalars of a program
# The fields of the branches of a block, all except those of scores.
BRANCHES = ("std_v", "std_o", "std_in", "std_gate", "std_out")

# Fields that a model with a decoder, or with experts, must have.
NEEDED_BY_DECODER: dict[str, Any] = {
    "order": "pre",
    "positions": "relative",
    "shared": False,
    "input_norm": False,
    "std_type": 0.0,
    "inputs": "tokens",
}
NEEDED_BY_EXPERTS: dict[str, Any] = {
    "shared": False,
    "decoder_layers": 0,
    "bias_in": 0.0,
    "bias_out": 0.0,
}
# The rounding error, relative to d, of the number of rotated coordinates of a head.
ROTATED_RTOL = 1e-9


@dataclass(frozen=True, kw_only=True)
class Description:
    """The fields of a `Transformer`, checked.

    Every std is the standard deviation of the entries of a matrix. `replace` keeps
    values that a family derives from other fields, such as GPT-2's smaller output
    projections. The properties `d` and `key_heads` resolve `head_dim` and `groups` if
    these are None.
    """

    name: str
    family: str
    layers: Positive  # blocks, of the encoder if there is a decoder
    width: Positive  # n, of the residual stream
    heads: Positive
    # key-value heads, each shared by heads/groups query heads; None: heads
    groups: Positive | None = None
    head_dim: Positive | None = None  # d; None: width/heads
    hidden: Positive  # m, of the perceptron
    # None: no logits; the number of classes if the readout is "class"
    vocabulary: Positive | None = None
    decoder_layers: Index = 0  # above 0: an encoder-decoder model

    # a matrix embeds patches, after one class token
    inputs: Annotated[str, choice("tokens", "patches")] = "tokens"
    patch: Positive | None = None  # numbers in a patch: channels · height · width
    positions: Annotated[
        str, choice("learned", "rotary", "alibi", "relative", "none")
    ] = "learned"
    length: Positive | None = None  # the number of learned positions
    rotary_base: Size = 10000.0
    # of the coordinates of a head
    rotary_fraction: Annotated[float, partial(real, least=MIN_MAGNITUDE, most=1)] = 1.0
    rotary_stretch: Annotated[Stretch, checked_stretch] | None = None
    buckets: Positive = 32  # of relative positions
    distance: Positive = 128  # beyond which relative positions share a bucket
    padding: Index | None = None  # the id whose embedding is zero

    order: Annotated[str, choice("pre", "post", "parallel", "sandwich", "after")] = (
        "pre"
    )
    norm: Annotated[str, choice("layer", "rms")] = "layer"
    eps: Std = 1e-5
    input_norm: bool = False  # normalises the embeddings
    final_norm: bool = True
    activation: Annotated[str, choice("relu", "gelu", "gelu_tanh", "silu", "tanh")] = (
        "gelu"
    )
    gated: bool = False  # activation(gate) * in
    # perceptrons, some chosen per token by a router; None: a single one
    experts: Positive | None = None
    experts_per_token: Positive = 2
    qk_norm: bool = False
    qk_norm_whole: bool = False  # over all heads of a token at once
    score_scale: Size | None = None  # the factor of ⟨q, k⟩; None: d^(−1/2)
    score_cap: Size | None = None
    window: Positive | None = None  # a token sees this many tokens, itself included
    # blocks 0, window_every, … have the window; a decoder continues the count
    window_every: Positive = 1
    causal: bool = True
    shared: bool = False  # all blocks start as copies of one block

    # logits from one matrix; with a dense layer before it; or only of the class token
    readout: Annotated[str, choice("linear", "transform", "class")] = "linear"
    tied: bool = False  # logits from the embedding vectors
    embedding_scale: Size = 1.0
    logit_scale: Size = 1.0
    logit_cap: Size | None = None

    std_q: Std = 0.02
    std_k: Std = 0.02
    std_v: Std = 0.02
    std_o: Std = 0.02
    std_in: Std = 0.02
    std_gate: Std = 0.02
    std_out: Std = 0.02
    std_router: Std = 0.02
    std_embedding: Std = 0.02
    std_position: Std = 0.02
    std_type: Std = 0.0  # a further vector, added to every token
    std_relative: Std = 0.0  # relative biases of scores
    std_logits: Std = 0.02  # for untied logits
    # the decoder's std_v, std_o, std_in, std_gate and std_out, relative to the encoder
    decoder_gain: Size = 1.0
    bias_in: Std = 0.0  # standard deviations of biases
    bias_out: Std = 0.0
    distribution: Annotated[str, choice("gaussian", "uniform", "truncated")] = (
        "gaussian"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for conflict in self._conflicts():
            if conflict.holds:
                value = getattr(self, conflict.field)
                raise ArgumentError(conflict.field, value, conflict.allowed)

    def _conflicts(self) -> Iterator[Conflict]:
        """Checks between fields, in the order in which they are reported."""
        yield Conflict(
            "heads",
            self.head_dim is None and self.width % self.heads != 0,
            f"a divisor of width={self.width} where head_dim is None: set that too",
        )
        yield Conflict(
            "groups",
            self.heads % self.key_heads != 0,
            f"a divisor of heads={self.heads}: set both",
        )
        yield Conflict(
            "length",
            self.positions == "learned" and self.length is None,
            "the number of learned positions",
        )
        yield from self._conflicts_of_inputs()
        yield Conflict(
            "window_every",
            self.shared and self.window is not None and self.window_every > 1,
            "1 with shared=True: copies of one block are equal",
        )
        yield Conflict(
            "padding",
            self.padding is not None and self.padding >= (self.vocabulary or math.inf),
            f"an id of the vocabulary, which has {self.vocabulary}",
        )
        yield Conflict("bias_in", self.gated and self.bias_in != 0, "0 with gated=True")
        yield Conflict(
            "experts_per_token",
            self.experts_per_token > (self.experts or math.inf),
            f"at most experts={self.experts}",
        )
        yield from self._conflicts_of_positions()
        if self.decoder_layers:
            yield from self._conflicts_with("decoder_layers", NEEDED_BY_DECODER)
        if self.experts:
            yield from self._conflicts_with("experts", NEEDED_BY_EXPERTS)

    def _conflicts_of_inputs(self) -> Iterator[Conflict]:
        """Checks of models of images, and of models of text."""
        patches = self.inputs == "patches"
        reads_images = self.patch is not None and self.readout == "class"
        yield Conflict(
            "inputs",
            patches and not (reads_images and self.length),
            "given with patch, length and readout='class'",
        )
        yield Conflict(
            "tied",
            patches and self.tied,
            "False with inputs='patches', which have no embedding",
        )
        yield Conflict(
            "readout",
            self.readout == "class" and not patches,
            "another with inputs='tokens', which have no class token",
        )

    def _conflicts_of_positions(self) -> Iterator[Conflict]:
        """Checks of rotary and of relative positions."""
        rotated = self.rotary_fraction * self.d  # coordinates of a head
        is_whole = abs(rotated - round(rotated)) <= ROTATED_RTOL * self.d
        if self.rotary_fraction == 1:
            field = "width" if self.head_dim is None else "head_dim"
            allowed = f"such that d={self.d} is even"
        else:
            field = "rotary_fraction"
            allowed = f"an even number over d={self.d}"
        yield Conflict(
            field,
            self.positions == "rotary" and (round(rotated) % 2 == 1 or not is_whole),
            f"{allowed}: rotary positions rotate pairs of coordinates",
        )
        yield Conflict(
            "rotary_stretch",
            bool(self.rotary_stretch) and self.positions != "rotary",
            "None unless positions='rotary'",
        )
        too_few = self.buckets < 4 or self.distance <= self.buckets // 2
        yield Conflict(
            "buckets",
            self.positions == "relative" and too_few,
            f"at least 4, and below 2·distance={2 * self.distance}",
        )

    def _conflicts_with(
        self, feature: str, needed: Mapping[str, Any]
    ) -> Iterator[Conflict]:
        """Fields that must have certain values in a model with a feature."""
        for field, value in needed.items():
            yield Conflict(
                field,
                getattr(self, field) != value,
                f"{value!r} with {feature}={getattr(self, feature)}",
            )

    def replace(self, *, std: float | None = None, **changes: Any) -> Self:
        """The same model with other fields.

        Changing a field that nothing in the model reads is an error.

        Parameters
        ----------
        std : float, optional
            The standard deviation of all matrices, embeddings and positions at once.
        **changes : Any
            New values of fields, by name. You can use the names of Hugging Face, such
            as `num_hidden_layers`.
        """
        renamed: dict[str, Any] = {}
        for spelled, value in changes.items():
            name = self._field_name(spelled)
            if name in renamed:
                raise ArgumentError(
                    spelled, value, f"given once: {name} is the same field"
                )
            if spelled in ALIASES and name == "activation":
                value = ACTIVATION.get(value, value)
            renamed[name] = value
        stds: dict[str, Any] = {}
        if std is not None:
            real(std, "std", least=MIN_MAGNITUDE, most=MAX_MAGNITUDE, zero=True)
            stds = dict.fromkeys(STDS, std)
        changed = dataclasses.replace(self, **{**stds, **renamed})
        for name, needs in idle(changed).items():
            if name in renamed and getattr(changed, name) != getattr(self, name):
                allowed = (
                    f"left unchanged in {self.name}: it has an effect only with {needs}"
                )
                raise ArgumentError(name, getattr(changed, name), allowed)
        return changed

    def _field_name(self, name_or_alias: str) -> str:
        """The name of a field, from that name or from Hugging Face's.

        Other names are an error that names the fields with similar ones.
        """
        names = [field.name for field in fields(self)]
        name = field_name(name_or_alias)
        if name in names:
            return name
        near = difflib.get_close_matches(
            name, [*names, *ALIASES, "std"], n=3, cutoff=0.4
        )
        if name == "initializer_range":
            remedy = ": write std, which sets that of all matrices and embeddings"
        elif near:
            remedy = f"; did you mean {' or '.join(near)}?"
        else:
            remedy = f": choose one of std, {', '.join(names)}"
        # a name that could be no field, such as "n layers", is quoted
        quoted = name if name.isidentifier() else shown(name)
        raise ValueError(f"{quoted} is not a field of a Transformer{remedy}")

    def widths(self) -> dict[str, int]:
        """The widths of this model, for `Program.law(**model.widths())`.

        n is that of the stream, d of a head, and m of the perceptron.
        """
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
        """The number of weights in matrices, embeddings and learned positions.

        Biases and norm gains are not counted.
        """
        queries = self.heads * self.d * self.width
        keys_and_values = 2 * queries * self.key_heads // self.heads
        attention = 2 * queries + keys_and_values
        matrices = 3 if self.gated else 2
        perceptron = matrices * self.width * self.hidden * (self.experts or 1)
        perceptron += self.width * (self.experts or 0)  # the router
        encoder = self.layers * (attention + perceptron)
        decoder = self.decoder_layers * (2 * attention + perceptron)

        vocabulary = self.vocabulary or 0
        one_table = self.tied or self.inputs == "patches"
        rows = vocabulary if one_table else 2 * vocabulary
        rows += self.patch or 0
        if self.positions == "learned":
            rows += self.length or 0
        if self.readout == "transform":
            rows += self.width
        return encoder + decoder + self.width * rows

    @property
    def sizes(self) -> str:
        """The size as text."""
        return (
            f"{counted(self.layers + self.decoder_layers, 'block')}, width"
            f" {self.width:,}, {counted(self.heads, 'head')} of {self.d},"
            f" {self.weights:,} weights in matrices and embeddings"
        )

    def fields(self) -> dict[str, Any]:
        """Every field by its name."""
        return dataclasses.asdict(self)

    def status(self, **widths: float) -> str:
        """How the law at these widths relates to that of the real model.

        It is "exact", "same limit" or "conjectured". Non-Gaussian weights have the same
        limit. At finite width their law differs by terms of the order of their fourth
        cumulant over the width.
        """
        if any(math.isinf(width) for width in widths.values()):
            return "conjectured"
        return "exact" if self.distribution == "gaussian" else "same limit"


D = TypeVar("D", bound=Description)


def with_scalar_std(model: D, field: str, std: Any) -> D:
    """The model with a scalar of a program as one of `SCALAR_STDS`.

    You can build it, but not validate it again.
    """
    changed = copy(model)
    for name in STDS if field == "std" else [field]:
        object.__setattr__(changed, name, std)
    return changed


def field_name(spelled: str) -> str:
    """The name of a field: "layers" for "n_layer" of Hugging Face's configurations."""
    return ALIASES.get(spelled, spelled)


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts "field=value", as on a command line, into changes for `replace`.

    The values get the types of the fields.

    Parameters
    ----------
    texts : iterable of str
        The texts.

    Returns
    -------
    changes : dict
        A value of the right type for each field, for `model.replace(**changes)`.

    Examples
    --------
    >>> ns.models.settings(["layers=24", "gated=true", "std=0.01"])
    {'layers': 24, 'gated': True, 'std': 0.01}
    """
    types = {**get_type_hints(Description, include_extras=True), "std": float}
    changes: dict[str, Any] = {}
    for text in listed(texts, "texts", "a sequence of texts field=value"):
        if not isinstance(text, str):
            raise ArgumentError("texts", texts, "a sequence of texts field=value")
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ValueError(f"{shown(text)} must be written field=value")
        if name in changes:
            raise ValueError(f"{name} is given twice")
        hint = types.get(field_name(name), str)
        changes[name] = _parsed(value.strip(), hint)
    return changes


def _parsed(text: str, hint: Any) -> Any:
    """The value of a text for a field of this type.

    If the text does not fit, it is kept: the check of the field says what is allowed.
    """
    if text.lower() == "none" and type(None) in get_args(hint):
        return None
    while get_args(hint):  # X is the first argument of X | None and Annotated[X, …]
        hint = get_args(hint)[0]
    try:
        return PARSERS.get(hint, str)(text)
    except (ValueError, TypeError, KeyError):
        return text


class Conflict(NamedTuple):
    """A check between fields of a description."""

    field: str
    holds: bool  # whether there is a conflict
    allowed: str  # the allowed values of the field


def idle(model: Description) -> dict[str, str]:
    """The fields that have no effect in this model, each with the setting that would
    change that: {"std_gate": "gated=True"} for a model without a gate.
    """
    without_effect: dict[str, str] = {}

    def require(condition: bool, setting: str, *names: str) -> None:
        """These fields have an effect only if the condition holds."""
        if not condition:
            without_effect.update(dict.fromkeys(names, setting))

    is_learned = model.positions == "learned"
    reads_patches = model.inputs == "patches"
    require(
        model.positions == "rotary",
        "positions='rotary'",
        "rotary_base",
        "rotary_fraction",
        "rotary_stretch",
    )
    require(
        model.positions == "relative",
        "positions='relative'",
        "buckets",
        "distance",
        "std_relative",
    )
    require(is_learned, "positions='learned'", "std_position")
    require(is_learned or reads_patches, "positions='learned'", "length")
    require(model.gated, "gated=True", "std_gate")
    require(model.qk_norm, "qk_norm=True", "qk_norm_whole")
    require(model.experts is not None, "experts", "experts_per_token", "std_router")
    require(model.window is not None, "window", "window_every")
    require(model.decoder_layers > 0, "decoder_layers", "decoder_gain")
    require(reads_patches, "inputs='patches'", "patch")
    require(model.inputs == "tokens", "inputs='tokens'", "padding", "embedding_scale")
    has_own_head = not model.tied or model.readout == "transform"
    require(has_own_head, "tied=False", "std_logits")
    require(
        model.vocabulary is not None,
        "vocabulary",
        "tied",
        "readout",
        "logit_scale",
        "logit_cap",
        "std_logits",
    )
    return without_effect
