"""T5: an encoder and a decoder, relative positions shared by all blocks, scores that nothing divides."""

from __future__ import annotations

from typing import Any

from ...language._given import shown
from .._config import ACTIVATION, Config

IMMATERIAL = ["dense_act_fn", "is_gated_act", "scale_decoder_outputs", "dropout_rate", "n_positions", "pad_token_id"]


def t5(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a T5Config.

    Old T5 (tied logits) multiplies the last vectors by n^(−1/2); version 1.1 says tie_word_embeddings=False, which
    the model takes for "do not multiply", and its logits are tied all the same.
    """
    scaled = given.get("scale_decoder_outputs", given.get("tie_word_embeddings", True) is not False)
    config = Config("t5", given, IMMATERIAL)
    config.take("tie_word_embeddings", None)
    config.insist("is_decoder", False)
    config.insist("is_encoder_decoder", True)
    config.insist("initializer_factor", 1.0)  # another factor is also the gain of every norm
    width, heads, d = (config.take(f, v, int) for f, v in (("d_model", 512), ("num_heads", 8), ("d_kv", 64)))
    hidden, layers = config.take("d_ff", 2048, int), config.take("num_layers", 6, int)
    gate, _, activation = config.take("feed_forward_proj", "relu", str).rpartition("-")
    if gate not in ("", "gated") or activation not in ACTIVATION:
        raise ValueError(
            f"feed_forward_proj={shown(f'{gate}-{activation}'.strip('-'))} of this t5 configuration must be an "
            f"activation ({', '.join(sorted(ACTIVATION))}) or 'gated-' and one"
        )
    if gate and activation == "gelu":
        activation = "gelu_new"  # as the model reads it
    fields = {
        "layers": layers,
        "decoder_layers": config.take("num_decoder_layers", None, int) or layers,
        "width": width,
        "heads": heads,
        "head_dim": d,
        "hidden": hidden,
        "vocabulary": config.take("vocab_size", 32128, int),
        "positions": "relative",
        "buckets": config.take("relative_attention_num_buckets", 32, int),
        "distance": config.take("relative_attention_max_distance", 128, int),
        "norm": "rms",
        "eps": config.take("layer_norm_epsilon", 1e-6, float),
        "activation": ACTIVATION[activation],
        "gated": bool(gate),
        "causal": False,
        "score_scale": 1.0,
        "tied": True,
        "logit_scale": width**-0.5 if scaled else 1.0,
        "std_q": (width * d) ** -0.5,
        "std_o": (heads * d) ** -0.5,
        "std_out": hidden**-0.5,
        "std_embedding": 1.0,
        "std_position": 0.0,
        "std_logits": 1.0,
        **dict.fromkeys(("std_k", "std_v", "std_in", "std_gate", "std_relative"), width**-0.5),
    }
    config.done()
    return fields
