"""Gemma 2: norms before and after each branch, softcaps, embeddings times √n, a window in every second block."""

from __future__ import annotations

import math
from typing import Any

from ...language._given import shown
from .._config import Config
from .llama import common

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
