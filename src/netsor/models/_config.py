"""A configuration while it is read: every field is used, known not to matter, or an error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..language._stretch import Stretch

# What a configuration of any family may hold and a network at initialisation does not feel: names, token ids that
# only a text reader uses, dropout, caches, precision, how outputs are handed over.
IMMATERIAL = frozenset(
    [
        "_name_or_path",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "architectures",
        "attn_implementation",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "label2id",
        "max_length",
        "min_length",
        "model_type",
        "n_ctx",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "use_bfloat16",
        "use_cache",
    ]
)
ACTIVATION = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
MISSING = object()


class Config:
    """The fields of a configuration, taken one by one; `done` refuses those that nobody took."""

    def __init__(self, family: str, given: Mapping[str, Any], immaterial: Iterable[str] = ()) -> None:
        self.family = family
        self._left = {k: v for k, v in given.items() if k not in IMMATERIAL and k not in frozenset(immaterial)}

    def take(self, field: str, default: Any = MISSING) -> Any:
        """The value of a field, which counts as read; without a default it must be there."""
        value = self._left.pop(field, default)
        if value is MISSING:
            raise ValueError(f"{field} is missing from this {self.family} configuration, and has no default")
        return value

    def insist(self, field: str, *allowed: Any) -> None:
        """Refuse a value that would change the network in a way that no description here has."""
        value = self.take(field, allowed[0])
        if value not in allowed:
            which = " or ".join(map(repr, allowed))
            raise ValueError(
                f"{field}={value!r} of this {self.family} configuration is not known here: it must be {which}. Write "
                "such a network in the language (netsor.nn), or set the field to compare without it"
            )

    def activation(self, field: str, default: str) -> str:
        """The activation that a field names."""
        value = self.take(field, default)
        if value not in ACTIVATION:
            raise ValueError(
                f"{field}={value!r} of this {self.family} configuration is not known here: it must be one of "
                + ", ".join(sorted(ACTIVATION))
            )
        return ACTIVATION[value]

    def rotary(self, fraction: float = 1.0) -> dict[str, Any]:
        """Rotary positions, in the older way of writing (rope_theta, rope_scaling) and the newer (rope_parameters)."""
        given = {**(self.take("rope_scaling", None) or {}), **(self.take("rope_parameters", None) or {})}
        outside = {"rope_theta": self.take("rope_theta", 10000.0)}
        rope = Config(f"rotary positions of a {self.family}", {**outside, **given})
        kind = rope.take("rope_type", rope.take("type", "default"))
        rope.take("type", None)
        found: dict[str, Any] = {
            "positions": "rotary",
            "rotary_base": float(rope.take("rope_theta")),
            "rotary_fraction": float(rope.take("partial_rotary_factor", fraction)),
        }
        if kind == "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            found["rotary_stretch"] = Stretch(*(float(rope.take(name)) for name in names))
        elif kind != "default":
            raise ValueError(
                f"rope_type={kind!r} of this {self.family} configuration is not known here: it must be 'default' or "
                "'llama3'"
            )
        rope.done()
        return found

    def done(self) -> None:
        """Refuse fields that nobody took: they may matter."""
        if self._left:
            fields = ", ".join(f"{field}={value!r}" for field, value in sorted(self._left.items()))
            raise ValueError(
                f"the {self.family} configuration has fields that are not known here and may matter at "
                f"initialisation: {fields}. Remove them if they do not"
            )
