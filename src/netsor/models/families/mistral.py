"""Mistral: Llama in which a token sees a window of tokens before it."""

from __future__ import annotations

from typing import Any

from .._config import Config
from .llama import common


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
