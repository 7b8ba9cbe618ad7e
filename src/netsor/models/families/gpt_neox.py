"""GPT-NeoX and Pythia: both branches read the stream at once (parallel), rotary positions on part of a head."""

from __future__ import annotations

from typing import Any

from .._config import Config

PLAIN = ("std_q", "std_k", "std_v", "std_o", "std_in", "std_out", "std_embedding", "std_logits")
IMMATERIAL = [
    "attention_bias",
    "attention_dropout",
    "hidden_dropout",
    "is_decoder",
    "max_position_embeddings",
    "pad_token_id",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
]


def gpt_neox(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a GPTNeoXConfig, drawn as Hugging Face draws it."""
    # rotary_emb_base and rotary_pct are what the model reads; files of older versions repeat them under other names
    given = {k: v for k, v in given.items() if k not in ("rope_theta", "partial_rotary_factor")}
    if "rotary_emb_base" in given:
        given["rope_theta"] = given.pop("rotary_emb_base")
    config = Config("gpt_neox", given, IMMATERIAL)
    width, heads = config.take("hidden_size", 6144, int), config.take("num_attention_heads", 64, int)
    head_dim = config.head_dim(width, heads)
    fields = {
        "layers": config.take("num_hidden_layers", 44, int),
        "width": width,
        "heads": heads,
        "hidden": config.take("intermediate_size", 24576, int),
        "vocabulary": config.take("vocab_size", 50432, int),
        "order": "parallel" if config.take("use_parallel_residual", True, bool) else "pre",
        "eps": config.take("layer_norm_eps", 1e-5, float),
        "activation": config.activation("hidden_act", "gelu"),
        "tied": config.take("tie_word_embeddings", False, bool),
        "std_position": 0.0,
        **config.rotary(head_dim, config.take("rotary_pct", 0.25, float)),
        **dict.fromkeys(PLAIN, config.std()),
    }
    config.done()
    return fields
