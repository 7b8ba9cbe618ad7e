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
    given = dict(given)
    if "rotary_emb_base" in given:
        given["rope_theta"] = given.pop("rotary_emb_base")
    fraction = given.pop("rotary_pct", 0.25)
    config = Config("gpt_neox", given, IMMATERIAL)
    config.insist("is_encoder_decoder", False)
    width, heads = config.take("hidden_size", 6144), config.take("num_attention_heads", 64)
    fields = {
        "layers": config.take("num_hidden_layers", 44),
        "width": width,
        "heads": heads,
        "groups": heads,
        "head_dim": width // heads,
        "hidden": config.take("intermediate_size", 24576),
        "vocabulary": config.take("vocab_size", 50432),
        "order": "parallel" if config.take("use_parallel_residual", True) else "pre",
        "eps": config.take("layer_norm_eps", 1e-5),
        "activation": config.activation("hidden_act", "gelu"),
        "tied": config.take("tie_word_embeddings", False),
        "std_position": 0.0,
        **config.rotary(fraction),
        **dict.fromkeys(PLAIN, config.take("initializer_range", 0.02)),
    }
    config.done()
    return fields
