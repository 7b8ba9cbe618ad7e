"""Llama: RMSNorm before each branch, rotary positions, grouped queries, a gated perceptron; one std for all."""

from __future__ import annotations

from typing import Any

from .._config import Config

PLAIN = ("std_q", "std_k", "std_v", "std_o", "std_in", "std_gate", "std_out", "std_embedding", "std_logits")


def llama(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a LlamaConfig."""
    config = Config("llama", given, ("attention_dropout", "max_position_embeddings", "attention_bias", "mlp_bias"))
    fields = common(config, eps=1e-6, window=None)
    config.done()
    return fields


def common(config: Config, eps: float, window: int | None) -> dict[str, Any]:
    """What Llama and its relatives share; biases are drawn as 0, so that it does not matter whether they are there."""
    config.insist("is_encoder_decoder", False)
    width, heads = config.take("hidden_size", 4096), config.take("num_attention_heads", 32)
    return {
        "layers": config.take("num_hidden_layers", 32),
        "width": width,
        "heads": heads,
        "groups": config.take("num_key_value_heads", None) or heads,
        "head_dim": config.take("head_dim", None) or width // heads,
        "hidden": config.take("intermediate_size"),
        "vocabulary": config.take("vocab_size"),
        "padding": config.take("pad_token_id", None),
        "norm": "rms",
        "eps": config.take("rms_norm_eps", eps),
        "activation": config.activation("hidden_act", "silu"),
        "gated": True,
        "window": window,
        "tied": config.take("tie_word_embeddings", False),
        "std_position": 0.0,
        **config.rotary(),
        **dict.fromkeys(PLAIN, config.take("initializer_range", 0.02)),
    }
