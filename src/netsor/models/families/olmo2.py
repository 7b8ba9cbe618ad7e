"""OLMo 2: Llama with norms after each branch in place of before, and QK-norm of all heads at once."""

from __future__ import annotations

from typing import Any

from .._config import Config
from .llama import common


def olmo2(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of an Olmo2Config."""
    given = {"rms_norm_eps": 1e-5, "pad_token_id": 1, **given}
    config = Config("olmo2", given, ("attention_dropout", "max_position_embeddings", "attention_bias"))
    fields = {**common(config), "order": "after", "qk_norm": True, "qk_norm_whole": True}
    config.done()
    return fields
