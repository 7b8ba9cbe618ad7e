"""BERT: a norm after each sum (post), learned positions and token types, logits by a dense layer first."""

from __future__ import annotations

from typing import Any

from ...language._given import shown
from .._config import Config

BERT_STDS = ("q", "k", "v", "o", "in", "out", "embedding", "position", "type", "logits")
BERT_IGNORED = ["attention_probs_dropout_prob", "hidden_dropout_prob", "type_vocab_size", "directionality"]


def bert(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a BertConfig; all tokens have type 0."""
    config = Config("bert", given, [*BERT_IGNORED, *(f for f in given if f.startswith("pooler_"))])
    config.insist("is_decoder", False)
    config.insist("add_cross_attention", False)
    config.insist("position_embedding_type", "absolute")
    width, heads = config.take("hidden_size", 768, int), config.take("num_attention_heads", 12, int)
    vocabulary, std = config.take("vocab_size", 30522, int), config.std()
    config.head_dim(width, heads)  # it follows from them, and is refused here if it cannot
    fields = {
        "layers": config.take("num_hidden_layers", 12, int),
        "width": width,
        "heads": heads,
        "hidden": config.take("intermediate_size", 3072, int),
        "vocabulary": vocabulary,
        "length": config.take("max_position_embeddings", 512, int),
        "padding": config.padding(vocabulary, 0),
        "order": "post",
        "eps": config.take("layer_norm_eps", 1e-12, float),
        "input_norm": True,
        "final_norm": False,
        "activation": config.activation("hidden_act", "gelu"),
        "causal": False,
        "readout": "transform",
        "tied": config.take("tie_word_embeddings", True, bool),
        **{f"std_{matrix}": std for matrix in BERT_STDS},
    }
    config.done()
    return fields


VIT_STDS = ("q", "k", "v", "o", "in", "out", "embedding", "position", "logits")
MAX_TRUNCATED_STD = 0.2  # a cut at ten standard deviations: P(|z| > 10) = 2e-23
VIT_IGNORED = [
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "encoder_stride",
    "pooler_act",
    "pooler_output_size",
    "qkv_bias",
]


def vit(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a ViTConfig."""
    config = Config("vit", given, VIT_IGNORED)
    width, heads = config.take("hidden_size", 768, int), config.take("num_attention_heads", 12, int)
    std = config.take("initializer_range", 0.02, float)
    if not 0 < std <= MAX_TRUNCATED_STD:
        raise ValueError(
            f"initializer_range={shown(std)} of this vit configuration must be above 0 and at most "
            f"{MAX_TRUNCATED_STD}: positions are drawn from a normal that is cut off at ±2, and beyond that it shows"
        )
    labels = config.take("id2label", None, dict) or (0, 1)  # two, unless they are given
    image, patch = (_pair(config, field, size) for field, size in (("image_size", 224), ("patch_size", 16)))
    config.head_dim(width, heads)  # it follows from them, and is refused here if it cannot
    fields = {
        "layers": config.take("num_hidden_layers", 12, int),
        "width": width,
        "heads": heads,
        "hidden": config.take("intermediate_size", 3072, int),
        "vocabulary": config.take("num_labels", None, int) or len(labels),
        "inputs": "patches",
        "patch": config.take("num_channels", 3, int) * patch[0] * patch[1],
        "length": 1 + (image[0] // patch[0]) * (image[1] // patch[1]),
        "eps": config.take("layer_norm_eps", 1e-12, float),
        "activation": config.activation("hidden_act", "gelu"),
        "causal": False,
        "readout": "class",
        **{f"std_{matrix}": std for matrix in VIT_STDS},
    }
    config.done()
    return fields


def _pair(config: Config, field: str, default: int) -> tuple[int, int]:
    size = config.take(field, default)
    sides = size if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
        raise ValueError(f"{field}={shown(size)} of this vit configuration must be a whole number, or two")
    return sides[0], sides[1]
