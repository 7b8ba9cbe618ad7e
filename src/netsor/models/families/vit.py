"""ViT: patches of an image embedded by a matrix, a class token before them, norms before each branch.

Positions and the class token are drawn from a normal that is cut off at ±2, whatever its standard deviation: at 0.02
that is a hundred standard deviations, and no cut at all.
"""

from __future__ import annotations

from typing import Any

from .._config import Config

STDS = ("q", "k", "v", "o", "in", "out", "embedding", "position", "logits")
CUT = 2.0
IMMATERIAL = [
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "encoder_stride",
    "pooler_act",
    "pooler_output_size",
    "qkv_bias",
]


def vit(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Transformer` from those of a ViTConfig."""
    classes = given.get("num_labels") or len(given.get("id2label") or (0, 1))
    config = Config("vit", given, IMMATERIAL)
    config.insist("is_encoder_decoder", False)
    width, heads = config.take("hidden_size", 768), config.take("num_attention_heads", 12)
    std = config.take("initializer_range", 0.02)
    image, patch = (_pair(config.take(f, v)) for f, v in (("image_size", 224), ("patch_size", 16)))
    fields = {
        "layers": config.take("num_hidden_layers", 12),
        "width": width,
        "heads": heads,
        "groups": heads,
        "head_dim": width // heads,
        "hidden": config.take("intermediate_size", 3072),
        "vocabulary": classes,
        "inputs": "patches",
        "patch": config.take("num_channels", 3) * patch[0] * patch[1],
        "length": 1 + (image[0] // patch[0]) * (image[1] // patch[1]),
        "eps": config.take("layer_norm_eps", 1e-12),
        "activation": config.activation("hidden_act", "gelu"),
        "causal": False,
        "readout": "class",
        "distribution": "gaussian" if 10 * std <= CUT else "truncated",  # P(|z| > 10) = 2e-23
        **{f"std_{matrix}": std for matrix in STDS},
    }
    config.done()
    return fields


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
