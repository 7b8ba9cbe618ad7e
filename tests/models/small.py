"""A small network of every family, with weights large enough that attention is far from
uniform.
"""

from __future__ import annotations

import numpy as np

import netsor as ns
from netsor.models import Transformer
from tests.internals import words

IDS = (3, 7, 7, 1, 9, 3)
DECODER_IDS = (2, 7, 5, 5)
VOCABULARY = 31
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}

GROUPED = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
    "max_position_embeddings": 64,
}
PLAIN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.25,
    "max_position_embeddings": 16,
}
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 2,
        "n_positions": 16,
        "vocab_size": VOCABULARY,
        "initializer_range": 0.25,
    },
    "llama": {"model_type": "llama", **GROUPED},
    "llama3": {
        "model_type": "llama",
        **GROUPED,
        "rope_parameters": {**ROPE, "original_max_position_embeddings": 32},
    },
    "mistral": {
        "model_type": "mistral",
        **GROUPED,
        "num_attention_heads": 12,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "sliding_window": 3,
    },
    "mixtral": {
        "model_type": "mixtral",
        **GROUPED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "olmo2": {
        "model_type": "olmo2",
        **{k: v for k, v in GROUPED.items() if k != "head_dim"},
        "pad_token_id": 1,
    },
    "qwen2": {
        "model_type": "qwen2",
        **{k: v for k, v in GROUPED.items() if k != "head_dim"},
    },
    "qwen3": {"model_type": "qwen3", **GROUPED, "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2",
        **GROUPED,
        "sliding_window": 2,
        "query_pre_attn_scalar": 9,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
        "pad_token_id": 1,  # an id that occurs: its embedding is zero
    },
    "gpt_neox": {"model_type": "gpt_neox", **PLAIN, "rotary_pct": 0.5},
    "gpt_neox_sequential": {
        "model_type": "gpt_neox",
        **PLAIN,
        "rotary_pct": 0.25,
        "use_parallel_residual": False,
    },
    "bert": {"model_type": "bert", **PLAIN, "pad_token_id": 1},
    "vit": {
        "model_type": "vit",
        **{
            k: v
            for k, v in PLAIN.items()
            if k not in ("vocab_size", "max_position_embeddings")
        },
        "initializer_range": 0.15,
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 2,
        "num_labels": 5,
    },
    "t5": {
        "model_type": "t5",
        "d_model": 32,
        "d_kv": 12,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 3,
        "vocab_size": VOCABULARY,
        "relative_attention_num_buckets": 6,
        "relative_attention_max_distance": 5,
    },
    "t5_gated": {
        "model_type": "t5",
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 1,
        "num_decoder_layers": 2,
        "num_heads": 2,
        "vocab_size": VOCABULARY,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
}
PIXELS = np.sin(np.arange(2 * 8 * 8)).reshape(2, 8, 8)  # channels, height, width


def patches() -> np.ndarray:
    """PIXELS as a row of numbers for each patch of 4 × 4, in the order of a
    convolution: channel, row, column.
    """
    return PIXELS.reshape(2, 2, 4, 2, 4).transpose(1, 3, 0, 2, 4).reshape(4, 32)


def inputs(model: Transformer) -> dict[str, object]:
    if model.inputs == "patches":
        return {"patches": patches()}
    return (
        {"ids": IDS, "decoder_ids": DECODER_IDS}
        if model.decoder_layers
        else {"ids": IDS}
    )


NAMES = (
    "coordinate",
    "mean square",
    "cosine",
    "first mean square",
    "entropy",
    "log ratio of weights",
    "logit of its id",
    "logit of another id",
)
OTHER = 20  # an id that does not occur


def seen(model: Transformer) -> tuple[int, int, int, int]:
    """Which vectors, block and logit are looked at: a token, the one before, a block
    but the last, the token's id.
    """
    at = 3 if model.decoder_layers else 4
    return (
        at,
        at - 1,
        model.layers + model.decoder_layers - 2,
        DECODER_IDS[at] if model.decoder_layers else IDS[at],
    )


def pair(model: Transformer) -> tuple[int, int]:
    """Two tokens that the last one sees in the first block, of one id if there is no
    window; positions part them.
    """
    last = len(DECODER_IDS if model.decoder_layers else IDS) - 1
    if model.inputs == "patches":
        last = 4
    return last - 1 if model.window or model.decoder_layers else 0, last


def program(model: Transformer) -> ns.Program:
    """One output coordinate, and scalars of the network, in the order of NAMES."""
    traced = model.trace(**inputs(model))  # type: ignore[arg-type]
    at, other, block, word = seen(model)
    first = traced.layers[block].stream
    gram = ns.mean_dot(first, first)
    start = traced.embedded if traced.decoded is None else traced.decoded
    weights = traced.layers[block].weights[-1, -1]
    early = traced.layers[model.layers if model.decoder_layers else 0]
    outputs = [
        traced.output[at],
        gram[at, at],
        gram[at, other] / (gram[at, at] * gram[other, other]) ** 0.5,
        ns.mean_dot(start[at], start[at]),
        ns.apply(_entropy, weights, axes=1),
        ns.apply(_log_ratio, early.weights[0, -1, list(pair(model))], axes=1),
    ]
    if model.vocabulary:
        y = traced.output[:1] if model.readout == "class" else traced.output
        at, word = (0, 1) if model.readout == "class" else (at, word)
        logits = words(model, traced, y, limit=False)
        outputs += [logits.of([word] * y.size)[at], logits.parts()[-1][at, -1]]
    return ns.Program(tuple(outputs), model.name)


def _entropy(w: np.ndarray) -> np.ndarray:
    safe = np.where(w > 0, w, 1.0)
    return -(safe * np.log(safe)).sum(axis=-1)


def _log_ratio(w: np.ndarray) -> np.ndarray:
    w = np.maximum(w, 1e-300)
    return np.log(w[..., 0] / w[..., 1])
