"""Qwen2: Llama with biases of queries, keys and values, which are drawn as 0."""

from __future__ import annotations

from typing import Any

from .._config import Config
from .llama import common
from .qwen3 import IGNORED, full


def qwen2(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a Qwen2Config."""
    config = Config("qwen2", {"num_key_value_heads": 32, **given}, IGNORED)
    full(config)
    fields = common(config)
    config.done()
    return fields
