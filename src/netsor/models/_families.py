"""Model families of Hugging Face: each reader turns a configuration into the fields of
a `Transformer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ._config_reader import ACTIVATION, Config

Fields = dict[str, Any]
Reader = Callable[[Config], Fields]
READERS: dict[str, Callable[[Fields], Fields]] = {}  # by model_type
STDS = (
    "std_q",
    "std_k",
    "std_v",
    "std_o",
    "std_in",
    "std_out",
    "std_embedding",
    "std_logits",
)
MAX_TRUNCATED_STD = 0.2  # truncation at ten standard deviations: P(|z| > 10) = 2e-23


def family(
    model_type: str, ignored: str = "", **defaults: Any
) -> Callable[[Reader], Reader]:
    """Register a function that reads the configurations of this model_type.

    It must read every field except the ignored ones, which are names with spaces
    between them. `defaults` are values for fields that the configuration leaves out.
    """

    def register(read: Reader) -> Reader:
        """Add the reader to READERS, with a check that it read everything."""

        def reader(config_fields: Fields) -> Fields:
            """A reader of configurations of this family that rejects unread fields."""
            all_fields = {**defaults, **config_fields}
            config = Config(model_type, all_fields, ignored.split())
            fields = read(config)
            config.reject_unread()
            return fields

        READERS[model_type] = reader
        return read

    return register


@family("bert")
def bert(config: Config) -> Fields:
    """BERT: a norm after each sum, learned positions and types (all tokens have type
    0), logits with a dense layer.
    """
    config.require(
        is_decoder=False, add_cross_attention=False, position_embedding_type="absolute"
    )
    sizes = config.fields(
        num_hidden_layers=12,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
    )
    sizes |= config.fields(vocab_size=30522, max_position_embeddings=512)
    return sizes | {
        **config.fields(
            layer_norm_eps=1e-12, hidden_act="gelu", tie_word_embeddings=True
        ),
        "padding": config.padding(sizes["vocabulary"], 0),
        "order": "post",
        "input_norm": True,
        "final_norm": False,
        "causal": False,
        "readout": "transform",
        **dict.fromkeys((*STDS, "std_position", "std_type"), config.std()),
    }


@family("vit")
def vit(config: Config) -> Fields:
    """ViT: patches of an image after a class token, whose last vector gives the
    logits.
    """
    std = config.take("initializer_range", 0.02, float)
    if not 0 < std <= MAX_TRUNCATED_STD:
        why = (
            "positions are drawn from a normal that is cut off at ±2, and beyond that"
            " it shows"
        )
        config.refuse(
            "initializer_range", std, f"above 0 and at most {MAX_TRUNCATED_STD}: {why}"
        )
    labels = config.take("id2label", None, dict) or (0, 1)  # two by default
    image = _pair(config, "image_size", 224)
    patch = _pair(config, "patch_size", 16)
    return {
        **config.fields(
            num_hidden_layers=12,
            hidden_size=768,
            num_attention_heads=12,
            intermediate_size=3072,
        ),
        **config.fields(layer_norm_eps=1e-12, hidden_act="gelu"),
        "vocabulary": config.take("num_labels", None, int) or len(labels),
        "inputs": "patches",
        "patch": config.take("num_channels", 3, int) * patch[0] * patch[1],
        "length": 1 + (image[0] // patch[0]) * (image[1] // patch[1]),
        "causal": False,
        "readout": "class",
        **dict.fromkeys((*STDS, "std_position"), std),
    }


def _pair(config: Config, field: str, default: int) -> tuple[int, int]:
    """Height and width in a field that holds one number for both, or a pair."""
    size = config.take(field, default)
    sides = size if isinstance(size, list | tuple) else (size, size)
    are_positive = all(isinstance(side, int) and side >= 1 for side in sides)
    if len(sides) != 2 or not are_positive:
        config.refuse(field, size, "a whole number, or two")
    height, width = sides
    return height, width


@family("gpt2")
def gpt2(config: Config) -> Fields:
    """GPT-2, initialised as in GPT2LMHeadModel: output projections of both branches are
    smaller by 1/√(2L).
    """
    config.require(
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    sizes = config.fields(
        n_layer=12, n_embd=768, n_head=12, vocab_size=50257, n_positions=1024
    )
    std = config.take("initializer_range", 0.02, float)
    return {
        **sizes,
        **config.fields(
            activation_function="gelu_new",
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=True,
        ),
        "hidden": config.take("n_inner", None, int) or 4 * sizes["width"],
        **dict.fromkeys(("std_q", "std_k", "std_v", "std_in"), std),
        # 0 means 0.02 in these
        **dict.fromkeys(("std_embedding", "std_position", "std_logits"), std or 0.02),
        **dict.fromkeys(("std_o", "std_out"), std / math.sqrt(2 * sizes["layers"])),
    }


@family("gpt_neox", "is_decoder")
def gpt_neox(config: Config) -> Fields:
    """GPT-NeoX, initialised as in Hugging Face: parallel branches, and rotary positions
    on part of each head.
    """
    # the model reads rotary_emb_base and rotary_pct; older files repeat them under
    # other names
    for name in ("rope_theta", "partial_rotary_factor"):
        config.unread.pop(name, None)
    if "rotary_emb_base" in config.unread:
        config.unread["rope_theta"] = config.unread.pop("rotary_emb_base")
    sizes = config.fields(
        num_hidden_layers=44,
        hidden_size=6144,
        num_attention_heads=64,
        intermediate_size=24576,
    )
    return {
        **sizes,
        **config.fields(
            vocab_size=50432,
            layer_norm_eps=1e-5,
            hidden_act="gelu",
            tie_word_embeddings=False,
        ),
        "order": (
            "parallel" if config.take("use_parallel_residual", True, bool) else "pre"
        ),
        "std_position": 0.0,
        **config.rotary(
            sizes["width"] // sizes["heads"], config.take("rotary_pct", 0.25, float)
        ),
        **dict.fromkeys(STDS, config.std()),
    }


@family("llama")
def llama(config: Config) -> Fields:
    """Llama: RMSNorm before each branch, rotary positions, grouped queries, a gated
    perceptron; one std for all.
    """
    # Related families share this reader. Sizes have no defaults here, since those
    # differ between families.
    sizes = config.fields(
        hidden_size=int,
        num_attention_heads=int,
        num_hidden_layers=int,
        intermediate_size=int,
    )
    sizes |= config.fields(vocab_size=int)
    groups = config.take("num_key_value_heads", None, int)
    return {
        **sizes,
        **config.fields(
            rms_norm_eps=1e-6, hidden_act="silu", tie_word_embeddings=False
        ),
        # None: one per head, even if heads change
        "groups": None if groups == sizes["heads"] else groups,
        "head_dim": config.take("head_dim", None, int),
        "padding": config.padding(sizes["vocabulary"]),
        "norm": "rms",
        "gated": True,
        "std_position": 0.0,
        **config.rotary(),
        **dict.fromkeys((*STDS, "std_gate"), config.std()),
    }


@family("mistral", num_key_value_heads=8, sliding_window=4096)
def mistral(config: Config) -> Fields:
    """Mistral: Llama with a window."""
    return {**llama(config), "window": config.take("sliding_window", None, int)}


@family("mixtral", num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6)
def mixtral(config: Config) -> Fields:
    """Mixtral: Mistral with experts. The router has noise only in training."""
    fields = mistral(config) | config.fields(num_local_experts=8, num_experts_per_tok=2)
    return {**fields, "std_router": fields["std_q"]}


@family("olmo2", rms_norm_eps=1e-5, pad_token_id=1)
def olmo2(config: Config) -> Fields:
    """OLMo 2: Llama with norms after each branch, and over all queries and keys of a
    token.
    """
    return {**llama(config), "order": "after", "qk_norm": True, "qk_norm_whole": True}


def _check_layer_types(config: Config, layers: int, *cycle: str) -> None:
    """Reject a list of types of layers that does not repeat this cycle."""
    types = config.take("layer_types", None, list)
    expected = [cycle[i % len(cycle)] for i in range(layers)]
    if types is None or types == expected:
        return
    turns = " and ".join(cycle)
    if len(cycle) > 1:
        turns += " by turns"
    config.refuse("layer_types", types, f"{turns}, one for each of {layers} layers")


@family("qwen2", "sliding_window max_window_layers", num_key_value_heads=32)
def qwen2(config: Config) -> Fields:
    """Qwen2. A window in only some blocks raises an error; without a window, its size
    and layers do not matter.
    """
    config.require(use_sliding_window=False)
    fields = llama(config)
    _check_layer_types(config, fields["layers"], "full_attention")
    return fields


@family(
    "qwen3", "sliding_window max_window_layers", num_key_value_heads=32, head_dim=128
)
def qwen3(config: Config) -> Fields:
    """Qwen3: Qwen2 with a norm of queries and keys."""
    return {**qwen2(config), "qk_norm": True}


@family(
    "gemma2",
    head_dim=256,
    num_key_value_heads=4,
    tie_word_embeddings=True,
    pad_token_id=0,
)
def gemma2(config: Config) -> Fields:
    """Gemma 2: a window in every second block, softcaps, norms on both sides of a
    branch (with initial gain 1 + 0).
    """
    # the model reads hidden_activation; older files also have hidden_act
    config.unread["hidden_act"] = (
        config.unread.pop("hidden_activation", None) or "gelu_pytorch_tanh"
    )
    if bidirectional := config.take("use_bidirectional_attention", None):
        config.refuse("use_bidirectional_attention", bidirectional, "false")
    fields = llama(config)
    _check_layer_types(config, fields["layers"], "sliding_attention", "full_attention")
    return fields | {
        "order": "sandwich",
        "window": config.take("sliding_window", 4096, int),
        "window_every": 2,
        "score_scale": config.take("query_pre_attn_scalar", 256, int) ** -0.5,
        "score_cap": config.take("attn_logit_softcapping", 50.0, float),
        "logit_cap": config.take("final_logit_softcapping", 30.0, float),
        "embedding_scale": math.sqrt(fields["width"]),
    }


@family("t5", "dense_act_fn is_gated_act n_positions")
def t5(config: Config) -> Fields:
    """T5: an encoder and a decoder, relative positions shared by all blocks, unscaled
    scores.
    """
    # Old T5 (tied logits) multiplies the last vectors by n^(−1/2). Version 1.1 has
    # tie_word_embeddings=False, which the model interprets as "do not multiply"; its
    # logits are still tied.
    tied = config.take("tie_word_embeddings", True) is not False
    scaled = config.take("scale_decoder_outputs", tied)
    # initializer_factor is also the gain of every norm
    config.require(is_decoder=False, is_encoder_decoder=True, initializer_factor=1.0)
    sizes = config.fields(
        num_layers=6, d_model=512, num_heads=8, d_kv=64, d_ff=2048, vocab_size=32128
    )
    width = sizes["width"]
    heads = sizes["heads"]
    d = sizes["head_dim"]
    hidden = sizes["hidden"]
    feed_forward = config.take("feed_forward_proj", "relu", str)
    gate, _, activation = feed_forward.rpartition("-")
    if gate not in ("", "gated") or activation not in ACTIVATION:
        config.refuse(
            "feed_forward_proj",
            feed_forward,
            f"one of {', '.join(sorted(ACTIVATION))}, or gated- and one",
        )
    if gate and activation == "gelu":
        activation = "gelu_new"  # as the model reads it
    return {
        **sizes,
        **config.fields(layer_norm_epsilon=1e-6),
        "decoder_layers": (
            config.take("num_decoder_layers", None, int) or sizes["layers"]
        ),
        "positions": "relative",
        "buckets": config.take("relative_attention_num_buckets", 32, int),
        "distance": config.take("relative_attention_max_distance", 128, int),
        "norm": "rms",
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
        **dict.fromkeys(
            ("std_k", "std_v", "std_in", "std_gate", "std_relative"), width**-0.5
        ),
    }
