"""Llama: RMSNorm before each branch, rotary positions, grouped queries, a gated perceptron; one std for all."""

from __future__ import annotations

import math
from typing import Any

from ...language._given import shown
from .._config import Config

LLAMA_STDS = ("std_q", "std_k", "std_v", "std_o", "std_in", "std_gate", "std_out", "std_embedding", "std_logits")


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
        **dict.fromkeys(LLAMA_STDS, config.std()),
    }


def mistral(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a MistralConfig."""
    config = Config(
        "mistral",
        {"num_key_value_heads": 8, "sliding_window": 4096, **given},
        ("attention_dropout", "max_position_embeddings"),
    )
    fields = {**common(config), "window": config.take("sliding_window", None, int)}
    config.done()
    return fields


MIXTRAL_IGNORED = ("attention_dropout", "max_position_embeddings", "output_router_logits", "router_aux_loss_coef")


def mixtral(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a MixtralConfig; noise of the router is of training alone."""
    given = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, **given}
    config = Config("mixtral", given, (*MIXTRAL_IGNORED, "router_jitter_noise"))
    fields = {
        **common(config),
        "window": config.take("sliding_window", None, int),
        "experts": config.take("num_local_experts", 8, int),
        "experts_per_token": config.take("num_experts_per_tok", 2, int),
    }
    config.done()
    return {**fields, "std_router": fields["std_q"]}


def olmo2(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of an Olmo2Config."""
    given = {"rms_norm_eps": 1e-5, "pad_token_id": 1, **given}
    config = Config("olmo2", given, ("attention_dropout", "max_position_embeddings", "attention_bias"))
    fields = {**common(config), "order": "after", "qk_norm": True, "qk_norm_whole": True}
    config.done()
    return fields


QWEN_IGNORED = ("attention_dropout", "max_position_embeddings", "attention_bias", "sliding_window", "max_window_layers")


def qwen3(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a Qwen3Config."""
    config = Config("qwen3", {"head_dim": 128, "num_key_value_heads": 32, **given}, QWEN_IGNORED)
    reject_sliding_window(config)
    fields = {**common(config), "qk_norm": True}
    config.done()
    return fields


def reject_sliding_window(config: Config) -> None:
    """Refuse a window in some of the blocks; without it its size and its layers do not matter."""
    config.insist("use_sliding_window", False)
    types = config.take("layer_types", None, list)
    if types is not None and not all(kind == "full_attention" for kind in types):
        raise ValueError(
            f"layer_types={shown(types)} of this {config.family} configuration must be 'full_attention' throughout"
        )


def qwen2(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a Qwen2Config."""
    config = Config("qwen2", {"num_key_value_heads": 32, **given}, QWEN_IGNORED)
    reject_sliding_window(config)
    fields = common(config)
    config.done()
    return fields


DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def gemma2(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a Gemma2Config; its norms multiply by 1 + w with w = 0."""
    given = {**DEFAULTS, **given}
    # hidden_activation is what the model reads; older files hold hidden_act beside it
    given["hidden_act"] = given.pop("hidden_activation", None) or "gelu_pytorch_tanh"
    config = Config("gemma2", given, ("attention_dropout", "max_position_embeddings", "attention_bias"))
    config.insist("use_bidirectional_attention", None, False)
    types = config.take("layer_types", None, list)
    fields = {
        **common(config),
        "order": "sandwich",
        "window": config.take("sliding_window", None, int),
        "window_every": 2,
        "score_scale": config.take("query_pre_attn_scalar", 256, int) ** -0.5,
        "score_cap": config.take("attn_logit_softcapping", None, float),
        "logit_cap": config.take("final_logit_softcapping", None, float),
    }
    every_second = [("full_attention", "sliding_attention")[i % 2 == 0] for i in range(fields["layers"])]
    if types is not None and list(types) != every_second:
        raise ValueError(
            f"layer_types={shown(types)} of this gemma2 configuration must alternate, sliding_attention first"
        )
    config.done()
    return {**fields, "embedding_scale": math.sqrt(fields["width"])}
