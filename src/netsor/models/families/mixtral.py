"""Mixtral: Mistral in which a router sends each token to some of several perceptrons, and mixes what they make."""

from __future__ import annotations

from typing import Any

from .._config import Config
from .llama import common

IGNORED = ("attention_dropout", "max_position_embeddings", "output_router_logits", "router_aux_loss_coef")


def mixtral(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a MixtralConfig; noise of the router is of training alone."""
    given = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, **given}
    config = Config("mixtral", given, (*IGNORED, "router_jitter_noise"))
    fields = {
        **common(config),
        "window": config.take("sliding_window", None, int),
        "experts": config.take("num_local_experts", 8, int),
        "experts_per_token": config.take("num_experts_per_tok", 2, int),
    }
    config.done()
    return {**fields, "std_router": fields["std_q"]}
