"""Qwen3: Llama with RMSNorm of queries and keys."""

from __future__ import annotations

from typing import Any

from ...language._given import shown
from .._config import Config
from .llama import common

IGNORED = ("attention_dropout", "max_position_embeddings", "attention_bias", "sliding_window", "max_window_layers")


def qwen3(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a Qwen3Config."""
    config = Config("qwen3", {"head_dim": 128, "num_key_value_heads": 32, **given}, IGNORED)
    full(config)
    fields = {**common(config), "qk_norm": True}
    config.done()
    return fields


def full(config: Config) -> None:
    """Refuse a window in some of the blocks; without it its size and its layers do not matter."""
    config.insist("use_sliding_window", False)
    types = config.take("layer_types", None, list)
    if types is not None and not all(kind == "full_attention" for kind in types):
        raise ValueError(
            f"layer_types={shown(types)} of this {config.family} configuration must be 'full_attention' throughout"
        )
