"""Small configurations of every model type of transformers, from its default one.

`small_config` keeps the architecture of the default configuration, and replaces its
sizes: widths, numbers of heads, layers, experts and words. The rules are by the names of
fields, and not by model type, but for `EXCEPTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import transformers

WIDTH, HEADS, HEAD_SIZE, HIDDEN, WORDS, EXPERTS = 32, 4, 8, 48, 40, 4
# entries of initial weights: large enough that attention is far from uniform
STD = 0.2

# the first pattern that matches the name of a field decides; a number is at most this
SIZES: tuple[tuple[str, int], ...] = (
    (r".*vocab_size(_.*)?|unpadded_vocab_size|.*vocab_size", WORDS),
    (r"type_vocab_size|prompt_types|segment_types|n_langs", 4),
    (r"num_hidden_layers|n_layers?|num_layers|(.*_)?(en|de)coder_layers", 2),
    (r"num_(en|de)coder_layers|num_hidden_groups|num_blocks", 2),
    (
        r"num_self_attends_per_block|inner_group_num|num_mem_blocks|num_adapter_layers",
        1,
    ),
    (r"num_mtp_layers|num_nextn_predict_layers|num_kv_shared_layers", 0),
    (r"num_dense_layers|first_k_dense_replace|num_sparse_.*|max_window_layers", 1),
    (r".*(layer_interval|_interval|layer_period|layer_group_size|_every_n_layers)", 2),
    (r"decoder_sparse_step|encoder_sparse_step|interleave_moe_layer_step", 1),
    (r".*layer_offset", 1),
    (r"(sliding_window_)?pattern|sliding_window_pattern", 2),
    (r"linear_num_(key|value)_heads|(n_)?mamba_n_heads|mamba_num_heads", HEADS),
    (r"(.*_)?(num_)?(.*_)?attention_heads|n_heads?|num_heads|index_n_heads", HEADS),
    (r"num_.*attention_heads|linear_num_heads|n_mamba_heads", HEADS),
    (r"(.*_)?(expert_)?head_dim|d_kv|attention_head_size|d_head|dim_head", HEAD_SIZE),
    (r"kv_channels|linear_(key|value)_head_dim|mamba_d_head|mamba_head_dim", HEAD_SIZE),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim|linear_head_dim", HEAD_SIZE),
    (r"(kv|q|o)_lora_rank|.*_rank|laurel_rank", 16),
    (r"rotary_dim|d_rel", 4),
    (r"n_groups?|num_groups|topk_group|mamba_n_groups|mamba_ngroups|o_groups", 1),
    (r".*d_state|state_size|ssm_state_size", 8),
    (r".*experts_per_tok|moe_topk|moe_k|topk_experts", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"num_.*experts|n_routed_experts|moe_num_experts|num_experts", EXPERTS),
    (r"zero_expert_num", 2),
    (r"(.*_)?intermediate(_multiple)?_size(_.*)?|.*ffn_dim|d_ff|dff|dim_ff", HIDDEN),
    (r"n_inner|ffn_hidden_size|expert_ffn_hidden_size|feed_forward_size", HIDDEN),
    (r"d_inner|mamba_d_ssm", 2 * WIDTH),
    (r"hidden_size_per_layer_input|router_hidden_size|hc_lowrank", 8),
    (r"(.*_)?(hidden|embedding)_(size|dim)|d_model|n_embd|dim|d_latents", WIDTH),
    (r"embed_dim|projection_dim|emb_dim|dim_model_base", WIDTH),
    (r"(max_)?position_embeddings|.*max_position_embeddings|n_positions|n_ctx", 64),
    (r"max_(source|target)_positions|max_seq_len|context_length|train_size", 64),
    (r"max_.*position.*|max_relative_positions", 64),
    (r"sliding_window(_size)?|window_size|local_attention|attention_window(_size)?", 4),
    (r"attention_chunk_size|index_topk", 4),
    (r".*chunk_size|chunk_length|block_size", 4),
    (r"num_latents|num_landmarks|segment_means_seq_len", 8),
    (r".*conv_kernel(_size|_dim)?|mamba_d_conv|conv_L_cache|conv1d_width", 4),
    (r"relative_attention_num_buckets|position_bias_num_buckets|num_buckets", 6),
    (r"relative_attention_max_distance|relative_max_distance", 5),
    (r"image_size", 32),
    (r"num_mel_bins", 16),
    (r"(neck|stem|aspp)?_?(out|num)_channels|aspp_out_channels|stem_channels", 16),
    (r"encoder_hash_byte_group_vocab", WORDS),
    (r"ngram_vocab_size_base", 16),
)
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads")
# fields with one entry for each layer
LAYER_LISTS = ("layer_types", "mlp_layer_types", "block_types", "layers_block_type")
# fields with one width for each stage of an image network
WIDTH_LISTS = (
    "hidden_sizes",
    "embed_dims",
    "embed_dim",
    "neck_hidden_sizes",
    "base_attn_unit_dims",
)
DEPTH_LISTS = ("depths", "depth", "n_attn_blocks", "num_block_repeats")

# fields of single model types that the rules by name do not reach
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_expert_group": 1, "num_experts_per_token": 2},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {
            "ffn_hidden_size": HIDDEN,
            "moe_num_experts": EXPERTS,
            "moe_top_k": 2,
        },
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "kimi_linear": {"num_experts_per_token": 2},
    "longcat_flash": {"qk_head_dim": 16, "head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_dt_rank": 4,
        "layers_block_type": ["linear_attention", "hybrid"],
        "num_hidden_layers": 2,
    },
    "zamba2": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "layers_block_type": ["linear_attention", "hybrid"],
        "num_hidden_layers": 2,
    },
    "bigbird_pegasus": {"attention_type": "original_full"},
    "big_bird": {"attention_type": "original_full"},
    "convbert": {"conv_kernel_size": 3},
    "cvt": {"embed_dim": [32, 32, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    "donut-swin": {
        "embed_dim": 16,
        "num_heads": [1, 2, 2, 4],
        "window_size": 2,
        "image_size": 64,
    },
    "dots1": {
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": HIDDEN,
    },
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25},
    "esm": {"vocab_size": WORDS, "mask_token_id": 32, "pad_token_id": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mobilebert": {
        "intra_bottleneck_size": 32,
        "true_hidden_size": 32,
        "embedding_size": 32,
        "num_attention_heads": 4,
    },
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevitv2": {"image_size": 64},
    "mpnet": {"relative_attention_num_buckets": 32},
    "neomme": {"head_dim": 16},
    "nystromformer": {"conv_kernel_size": 3},
    "pvt": {"num_attention_heads": [1, 2, 2, 4]},
    "pvt_v2": {"num_attention_heads": [1, 2, 2, 4]},
    "reformer": {
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
    },
    "swin": {
        "embed_dim": 16,
        "num_heads": [1, 2, 2, 4],
        "window_size": 2,
        "image_size": 64,
    },
    "swinv2": {
        "embed_dim": 16,
        "num_heads": [1, 2, 2, 4],
        "window_size": 2,
        "image_size": 64,
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}


def small_config(kind: str, model_type: str, model_class: Any) -> Any:
    """A configuration of transformers with the sizes of a test.

    It is the part for text, if the class of the model takes only this. Models that are
    encoders by default are decoders if they are to predict the next token.
    """
    default = transformers.AutoConfig.for_model(model_type)
    fields = {**_small_fields(default), **EXCEPTIONS.get(model_type, {})}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    expected = model_class.config_class
    if expected is not None and not isinstance(config, expected):
        config = config.get_text_config(decoder=True)
    if kind == "causal" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
    _plain_attention(config)
    return config


def _plain_attention(config: Any) -> None:
    """Attention and experts in plain operations, in the configuration and in those inside of it."""
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.use_cache = False
    for part in vars(config).values():
        if isinstance(part, transformers.PreTrainedConfig):
            _plain_attention(part)


def _small_fields(config: Any) -> dict[str, Any]:
    """The fields of a configuration that are sizes, with small numbers."""
    small: dict[str, Any] = {}
    layers = _small_layer_lists(config)
    for name, value in vars(config).items():
        if _is_computed(config, name):
            continue
        if isinstance(value, transformers.PreTrainedConfig):
            small[name] = {"model_type": value.model_type, **_small_fields(value)}
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            small[name] = value if value < WORDS else WORDS - 1 - len(small) % 8
        elif name in KEY_HEADS:
            small[name] = _key_heads(config, value)
        elif name == "head_dim" and value is None:
            small[name] = HEAD_SIZE
        elif isinstance(value, int) and not isinstance(value, bool):
            number = _small_number(name, value)
            if number is not None:
                small[name] = number
        elif name in WIDTH_LISTS and isinstance(value, list | tuple):
            small[name] = _small_widths(value)
        elif name in DEPTH_LISTS and isinstance(value, list | tuple):
            small[name] = [1] * len(value)
        elif name in ("initializer_range", "init_std", "emb_init_range"):
            small[name] = STD
    if layers:
        small.update(layers)
        count = max(len(kinds) for kinds in layers.values())
        for name in ("num_hidden_layers", "n_layer", "num_layers"):
            if name in small:
                small[name] = count
    return small


def _is_computed(config: Any, name: str) -> bool:
    """Whether a configuration computes a field from others."""
    field = type(config).attribute_map.get(name, name)
    return isinstance(getattr(type(config), field, None), property)


def _key_heads(config: Any, number: int | None) -> int:
    """Half as many heads of keys, if they are fewer by default, and single."""
    is_latent = "kv_lora_rank" in vars(config)
    heads = getattr(config, "num_attention_heads", None)
    if is_latent or number is None or not isinstance(heads, int) or number >= heads:
        return HEADS
    return HEADS // 2


def _small_number(name: str, value: int) -> int | None:
    """A size of at most the one of its rule; None if no rule is for it."""
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size)
    return None


def _small_layer_lists(config: Any) -> dict[str, list[Any]]:
    """One layer of each kind, in the order of the default, and at least two."""
    lists = {}
    for name in LAYER_LISTS:
        if _is_computed(config, name):
            continue
        kinds = getattr(config, name, None)
        if isinstance(kinds, list | tuple) and kinds:
            lists[name] = [*dict.fromkeys(kinds)]
    count = max([2, *(len(kinds) for kinds in lists.values())])
    return {
        name: kinds + [kinds[-1]] * (count - len(kinds))
        for name, kinds in lists.items()
    }


def _small_widths(widths: Any) -> list[int]:
    """Widths of stages in about the same ratios, multiples of 16 from 16 on."""
    least = min(widths)
    return [16 * min(4, max(1, round(width / least))) for width in widths]


def inputs_for(kind: str, config: Any) -> Mapping[str, Any]:
    """The inputs of a model, by name: one sequence, a pair of them, or one image."""
    import torch

    ids = torch.tensor([[3, 7, 7, 9, 5, 11]])
    if kind == "image" and config.model_type == "imagegpt":
        return {"input_ids": ids}
    if kind == "image":
        size = getattr(config, "image_size", None) or 32
        rows, columns = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(1, channels, rows, columns, generator=generator)
        return {"pixel_values": pixels}
    if kind == "seq2seq" and getattr(config, "is_encoder_decoder", False):
        return {"input_ids": ids, "decoder_input_ids": torch.tensor([[2, 8, 6, 12]])}
    return {"input_ids": ids}
