"""BERT: a norm after each sum (post), learned positions and token types, logits by a dense layer first."""

from __future__ import annotations

from typing import Any

from .._config import Config

STDS = ("q", "k", "v", "o", "in", "out", "embedding", "position", "type", "logits")
IMMATERIAL = ["attention_probs_dropout_prob", "hidden_dropout_prob", "type_vocab_size", "directionality"]


def bert(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a BertConfig; all tokens have type 0."""
    config = Config("bert", given, [*IMMATERIAL, *(f for f in given if f.startswith("pooler_"))])
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
        **{f"std_{matrix}": std for matrix in STDS},
    }
    config.done()
    return fields
