"""GPT-2, as Hugging Face's GPT2LMHeadModel draws it: output projections of both branches by 1/√(2L) smaller."""

from __future__ import annotations

import math
from typing import Any

from .._config import Config

GPT2_IGNORED = [
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "pad_token_id",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
]


def gpt2(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a GPT2Config."""
    config = Config("gpt2", given, GPT2_IGNORED)
    config.insist("scale_attn_weights", True)
    config.insist("scale_attn_by_inverse_layer_idx", False)
    config.insist("add_cross_attention", False)
    width, layers, heads = (config.take(f, v, int) for f, v in (("n_embd", 768), ("n_layer", 12), ("n_head", 12)))
    std = config.take("initializer_range", 0.02, float)
    config.head_dim(width, heads)  # it follows from them, and is refused here if it cannot
    fields = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "hidden": config.take("n_inner", None, int) or 4 * width,
        "vocabulary": config.take("vocab_size", 50257, int),
        "length": config.take("n_positions", 1024, int),
        "activation": config.activation("activation_function", "gelu_new"),
        "eps": config.take("layer_norm_epsilon", 1e-5, float),
        "tied": config.take("tie_word_embeddings", True, bool),
        **dict.fromkeys(("std_q", "std_k", "std_v", "std_in"), std),
        **dict.fromkeys(("std_embedding", "std_position", "std_logits"), std or 0.02),  # 0 is read as 0.02 in these
        **dict.fromkeys(("std_o", "std_out"), std / math.sqrt(2 * layers)),
    }
    config.done()
    return fields


NEOX_STDS = ("std_q", "std_k", "std_v", "std_o", "std_in", "std_out", "std_embedding", "std_logits")
NEOX_IGNORED = [
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
    config = Config("gpt_neox", given, NEOX_IGNORED)
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
        **dict.fromkeys(NEOX_STDS, config.std()),
    }
    config.done()
    return fields
