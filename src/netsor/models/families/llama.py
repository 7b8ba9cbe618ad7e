"""Llama: RMSNorm before each branch, rotary positions, grouped queries, a gated perceptron; one std for all."""

from __future__ import annotations

from typing import Any

from .._config import Config

PLAIN = ("std_q", "std_k", "std_v", "std_o", "std_in", "std_gate", "std_out", "std_embedding", "std_logits")


def llama(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a LlamaConfig."""
    config = Config("llama", given, ("attention_dropout", "max_position_embeddings", "attention_bias", "mlp_bias"))
    fields = common(config)
    config.done()
    return fields


def common(config: Config) -> dict[str, Any]:
    """What Llama and its relatives share; biases are drawn as 0, so that it does not matter whether they are there.

    Sizes have no defaults here, since each relative has others.
    """
    width, heads = config.take("hidden_size", kind=int), config.take("num_attention_heads", kind=int)
    head_dim = config.take("head_dim", None, int)
    groups = config.take("num_key_value_heads", None, int)
    vocabulary = config.take("vocab_size", kind=int)
    return {
        "layers": config.take("num_hidden_layers", kind=int),
        "width": width,
        "heads": heads,
        "groups": None if groups == heads else groups,  # as many as heads go on being so
        "head_dim": head_dim,
        "hidden": config.take("intermediate_size", kind=int),
        "vocabulary": vocabulary,
        "padding": config.padding(vocabulary),
        "norm": "rms",
        "eps": config.take("rms_norm_eps", 1e-6, float),
        "activation": config.activation("hidden_act", "silu"),
        "gated": True,
        "tied": config.take("tie_word_embeddings", False, bool),
        "std_position": 0.0,
        **config.rotary(head_dim or config.head_dim(width, heads)),
        **dict.fromkeys(PLAIN, config.std()),
    }
