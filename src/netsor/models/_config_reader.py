"""The configuration reader.

Every field is used, known to be irrelevant, or raises an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from .._validate import SHOWN, shown
from ..language.operations._rotary import Stretch

# Fields that do not change a network at initialisation, unless its family reads them:
# names, token ids, dropout, caches, precision, pooling, summaries, generation, biases
# (initialised to 0), training of routers.
IMMATERIAL = """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path
    architectures attention_bias attention_dropout attention_probs_dropout_prob
    attn_implementation attn_pdrop auto_map bad_words_ids begin_suppress_tokens
    bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    decoder_start_token_id directionality diversity_penalty do_sample dropout_rate dtype
    early_stopping embd_pdrop encoder_no_repeat_ngram_size encoder_stride eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob
    id2label label2id length_penalty max_length min_length mlp_bias model_type n_ctx
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_past output_router_logits
    output_scores pad_token_id pooler_act pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_output_size pooler_size_per_head pooler_type prefix
    pretraining_tp problem_type qkv_bias remove_invalid_values reorder_and_upcast_attn
    repetition_penalty resid_pdrop return_dict return_dict_in_generate
    router_aux_loss_coef router_jitter_noise sep_token_id summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class
    top_k top_p torch_dtype torchscript transformers_version type_vocab_size typical_p
    use_bfloat16 use_cache
"""
# Fields that any configuration may have at a neutral value, as objects of older
# versions do.
INERT: dict[str, Any] = {"cross_attention_hidden_size": None, "pruned_heads": {}}
INERT |= dict.fromkeys(
    ("add_cross_attention", "is_decoder", "is_encoder_decoder", "tie_encoder_decoder"),
    False,
)
# Field names of Hugging Face's configurations. `initializer_range` is missing: it also
# scales the matrices that a family initialises smaller, while `std` sets all of them to
# the same value.
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
ALIASES = {
    alias: name
    for name, aliases in HUGGING_FACE_NAMES.items()
    for alias in aliases.split()
}
ACTIVATION = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
ACTIVATION |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh")
MISSING = object()
MAX_EXACT_INT = 2**53
MOST_NAMED = 8  # most fields named in one message


class Kind(NamedTuple):
    """The values that a field may have: their types, and how a message names them."""

    types: tuple[type, ...]
    allowed: str


KINDS: dict[type, Kind] = {
    int: Kind((int,), "a whole number from 1 to 2^53"),
    float: Kind((int, float), "a finite number, at most 2^53"),
    bool: Kind((bool,), "true or false"),
    str: Kind((str,), "a text"),
    dict: Kind((Mapping,), "an object"),
    list: Kind((list, tuple), "a list"),
}


def _is_of_kind(value: Any, kind: type) -> bool:
    """Whether a field may have this value; true and false are no numbers."""
    allowed: tuple[Any, ...] = KINDS[kind].types
    if not isinstance(value, allowed):
        return False
    if isinstance(value, bool):
        return kind is bool
    if kind is int:
        return bool(1 <= value < MAX_EXACT_INT)
    if kind is float:
        return bool(abs(value) < MAX_EXACT_INT)
    return True


class Config:
    """The fields of a configuration, read one by one; `reject_unread` raises an error
    for fields that were not read.
    """

    def __init__(
        self, family: str, given: Mapping[str, Any], immaterial: Iterable[str] = ()
    ) -> None:
        self.family = family
        self._immaterial = {*IMMATERIAL.split(), *immaterial}
        self.unread = dict(given)  # fields not yet read by `take`

    def take(self, field: str, default: Any = MISSING, kind: type | None = None) -> Any:
        """Read a field, and mark it as read; `kind` is one of `KINDS`, and None is a
        valid default.
        """
        value = self.unread.pop(field, default)
        if value is MISSING:
            raise ValueError(
                f"{field} is missing from this {self.family} configuration, and has no"
                " default"
            )
        if kind is None or (value is None and default is None):
            return value
        if not _is_of_kind(value, kind):
            self.refuse(field, value, KINDS[kind].allowed)
        return value

    def refuse(self, field: str, value: Any, allowed: str) -> NoReturn:
        """Raise an error for the value of a field."""
        raise ValueError(
            f"{field}={shown(value)} of this {self.family} configuration must be"
            f" {allowed}"
        )

    def require(self, **needed: Any) -> None:
        """Reject values that would change the network in a way that a description
        cannot express.
        """
        for field, allowed in needed.items():
            value = self.take(field, allowed)
            if value != allowed:
                raise ValueError(
                    f"{field}={shown(value)} of this {self.family} configuration is not"
                    f" supported: it must be {allowed!r}. Change the field, or write"
                    " the network with netsor.nn"
                )

    def fields(self, **defaults: Any) -> dict[str, Any]:
        """Fields of a description, by their names there; a type instead of a default
        marks a required field.
        """
        fields: dict[str, Any] = {}
        for name, default in defaults.items():
            if isinstance(default, type):
                value = self.take(name, kind=default)
            else:
                value = self.take(name, default, type(default))
            if ALIASES[name] == "activation":
                if value not in ACTIVATION:
                    self.refuse(name, value, f"one of {', '.join(sorted(ACTIVATION))}")
                value = ACTIVATION[value]
            fields[ALIASES[name]] = value
        return fields

    def std(self) -> float:
        """initializer_range; Hugging Face's code treats 0 as 0.02."""
        return float(self.take("initializer_range", 0.02, float)) or 0.02

    def padding(self, vocabulary: int, default: int | None = None) -> int | None:
        """The id whose embedding is zero (padding_idx); negative values index from the
        end, as in PyTorch.
        """
        value = self.take("pad_token_id", default)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not -vocabulary <= value < vocabulary:
            self.refuse(
                "pad_token_id",
                value,
                f"null or an id of the vocabulary, which has {vocabulary}",
            )
        return int(value) % vocabulary

    def rotary(
        self, head_dim: int | None = None, fraction: float = 1.0
    ) -> dict[str, Any]:
        """Rotary positions, in the older form (rope_scaling, which takes precedence) or
        the newer (rope_parameters).

        Families that rotate part of each head pass its dimension and the default of
        partial_rotary_factor.
        """
        # rotary positions have no table
        self.unread.pop("max_position_embeddings", None)
        newer_form = self.take("rope_parameters", None, dict)
        older_form = self.take("rope_scaling", None, dict)
        settings = {"rope_theta": self.take("rope_theta", 10000.0)}
        settings |= older_form or newer_form or {}
        rope = Config(f"rotary positions of a {self.family}", settings)
        older_name = rope.take("type", "default")
        rope_type = rope.take("rope_type", older_name)
        fields: dict[str, Any] = {
            "positions": "rotary",
            "rotary_base": float(rope.take("rope_theta", kind=float)),
        }
        if head_dim is None:
            rope.require(partial_rotary_factor=1.0)
        else:
            factor = rope.take("partial_rotary_factor", fraction, float)
            rotated = int(head_dim * factor)  # Hugging Face's code rounds down
            fields["rotary_fraction"] = rotated / head_dim
        if rope_type == "llama3":
            fields["rotary_stretch"] = Stretch(
                factor=float(rope.take("factor", kind=float)),
                low=float(rope.take("low_freq_factor", kind=float)),
                high=float(rope.take("high_freq_factor", kind=float)),
                original=float(
                    rope.take("original_max_position_embeddings", kind=float)
                ),
            )
        elif rope_type != "default":
            self.refuse("rope_type", rope_type, "'default' or 'llama3'")
        rope.reject_unread()
        return fields

    def reject_unread(self) -> None:
        """Raise an error for fields that were not read, since they may matter."""
        named = []
        for field in sorted(self.unread.keys() - self._immaterial, key=str):
            value = self.unread[field]
            if field not in INERT or value != INERT[field]:
                named.append(f"{_brief(field)}={shown(value)}")
        if not named:
            return
        fields = ", ".join(named[:MOST_NAMED])
        if len(named) > MOST_NAMED:
            fields += f" and {len(named) - MOST_NAMED} more"
        raise ValueError(
            f"netsor does not know these fields of a {self.family} configuration,"
            f" which may matter at initialisation: {fields}. Remove those that do not"
        )


def _brief(field: Any) -> str:
    """The name of a field in messages; a key of a dictionary may be any text."""
    is_name = isinstance(field, str) and field.isidentifier() and len(field) <= SHOWN
    return field if is_name else shown(field)
