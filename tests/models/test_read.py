"""Readers of configurations: what they find, and what they refuse by name."""

import json
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

import netsor as ns
from netsor import models

from .small import CONFIGS

# Weights and embeddings of the real models without biases and gains, counted from their
# published shapes.
COUNTED = {
    "bert-base": 30522 * 768 + 512 * 768 + 12 * 12 * 768**2 + 768**2,
    "gemma-2-9b": (
        256000 * 3584 + 42 * (2 * 3584 * 4096 + 2 * 3584 * 2048 + 3 * 3584 * 14336)
    ),
    "gpt2": 50257 * 768 + 1024 * 768 + 12 * 12 * 768**2,
    "gpt2-large": 50257 * 1280 + 1024 * 1280 + 36 * 12 * 1280**2,
    "gpt2-medium": 50257 * 1024 + 1024 * 1024 + 24 * 12 * 1024**2,
    "gpt2-xl": 50257 * 1600 + 1024 * 1600 + 48 * 12 * 1600**2,
    "gpt3-175b": 50257 * 12288 + 2048 * 12288 + 96 * 12 * 12288**2,
    "llama-3-405b": (
        2 * 128256 * 16384 + 126 * (2 * 16384**2 + 2 * 16384 * 1024 + 3 * 16384 * 53248)
    ),
    "llama-3-70b": (
        2 * 128256 * 8192 + 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    ),
    "llama-3-8b": (
        2 * 128256 * 4096 + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    ),
    "pythia-410m": 2 * 50304 * 1024 + 24 * 12 * 1024**2,
    "qwen3-8b": (
        2 * 151936 * 4096 + 36 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12288)
    ),
    "t5-base": (
        32128 * 768
        + 12 * (4 * 768**2 + 2 * 768 * 3072)
        + 12 * (8 * 768**2 + 2 * 768 * 3072)
    ),
    "vit-base": 197 * 768 + 768 * 768 + 12 * 12 * 768**2 + 1000 * 768,
}


def test_built_in_models_are_read():
    assert models.names() == tuple(sorted(COUNTED))
    for name, count in COUNTED.items():
        model = models.read(name)
        assert (model.name, model.weights) == (name, count)
        assert model.distribution == "gaussian"
        assert model.widths() == {"n": model.width, "d": model.d, "m": model.hidden}


def test_built_in_models_initialisation():
    gpt2 = models.read("gpt2")
    assert (gpt2.std_q, gpt2.std_in, gpt2.tied, gpt2.activation) == (
        0.02,
        0.02,
        True,
        "gelu_tanh",
    )
    assert gpt2.std_o == gpt2.std_out == pytest.approx(0.02 / math.sqrt(24))
    llama = models.read("llama-3-405b")
    assert llama.rotary_stretch == models.Stretch(8.0, 1.0, 4.0, 8192.0)
    assert (llama.groups, llama.rotary_base, llama.std_o, llama.eps) == (
        8,
        500000.0,
        0.02,
        1e-5,
    )
    assert models.read("llama-3-70b").rotary_stretch is None
    pythia = models.read("pythia-410m")  # as trained, not as Hugging Face would draw it
    assert pythia.std_q == pytest.approx(math.sqrt(2 / (5 * 1024)))
    assert pythia.std_o == pythia.std_out == pytest.approx(2 / (24 * math.sqrt(1024)))
    assert (pythia.order, pythia.rotary_fraction) == ("parallel", 0.25)
    gemma = models.read("gemma-2-9b")
    assert (gemma.score_cap, gemma.logit_cap, gemma.window, gemma.window_every) == (
        50.0,
        30.0,
        4096,
        2,
    )
    assert (gemma.score_scale, gemma.embedding_scale) == (
        1 / 16,
        pytest.approx(math.sqrt(3584)),
    )
    assert models.read("qwen3-8b").qk_norm
    t5 = models.read("t5-base")
    assert (t5.std_q, t5.std_k) == (
        pytest.approx((768 * 64) ** -0.5),
        pytest.approx(768**-0.5),
    )
    assert (t5.score_scale, t5.decoder_layers, t5.logit_scale) == (
        1.0,
        12,
        pytest.approx(768**-0.5),
    )
    vit = models.read("vit-base")
    assert (vit.inputs, vit.patch, vit.length, vit.vocabulary) == (
        "patches",
        768,
        197,
        1000,
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_read_accepts_every_kind_of_source(family, tmp_path):
    given = CONFIGS[family]
    model = models.read(given)
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert models.read(tmp_path).name == tmp_path.name
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path / "config.json")):
        assert models.read(source).replace(name=model.name) == model
    assert models.read(SimpleNamespace(to_dict=lambda: dict(given))) == model


@pytest.mark.parametrize("family", CONFIGS)
def test_unknown_field_is_named(family):
    with pytest.raises(
        ValueError,
        match="configuration, which may matter at initialisation: flash_scale=3",
    ):
        models.read({**CONFIGS[family], "flash_scale": 3})
    immaterial = {
        "use_cache": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.0",
        "bos_token_id": 5,
    }
    assert models.read({**CONFIGS[family], **immaterial}) == models.read(
        CONFIGS[family]
    )


ROPE = "rope_parameters"
REFUSED = [
    (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx=True of this gpt2",
    ),
    (
        "gpt2",
        {"scale_attn_weights": False},
        "scale_attn_weights=False of this gpt2 configuration is not supported",
    ),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True"),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_type='linear' of this llama",
    ),
    (
        "llama",
        {ROPE: {"rope_type": "yarn", "factor": 2.0}},
        "rope_type='yarn' of this llama configuration",
    ),
    (
        "llama",
        {ROPE: {"rope_type": "default", "beta_fast": 2.0}},
        "may matter at initialisation: beta_fast=2.0",
    ),
    (
        "llama",
        {"hidden_act": "mish"},
        "hidden_act='mish' of this llama configuration must be one of gelu",
    ),
    (
        "llama3",
        {ROPE: {"rope_type": "llama3", "factor": 2.0}},
        "low_freq_factor is missing from this rotary positions",
    ),
    (
        "qwen3",
        {"use_sliding_window": True},
        "use_sliding_window=True of this qwen3 configuration",
    ),
    (
        "qwen3",
        {"layer_types": ["sliding_attention"] * 3},
        "layer_types=.* of this qwen3 configuration",
    ),
    (
        "gemma2",
        {"layer_types": ["full_attention"] * 3},
        (
            "layer_types=.* of this gemma2 configuration must be sliding_attention and"
            " full_attention by turns"
        ),
    ),
    (
        "gemma2",
        {"layer_types": ["sliding_attention", "full_attention"] * 3},
        r"by turns, one for each of \d layers",
    ),
    (
        "gemma2",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention=True of this gemma2",
    ),
    ("bert", {"is_decoder": True}, "is_decoder=True of this bert configuration"),
    (
        "bert",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type='relative_key' of this bert",
    ),
    (
        "t5",
        {"initializer_factor": 0.5},
        "initializer_factor=0.5 of this t5 configuration",
    ),
    (
        "t5",
        {"feed_forward_proj": "gated-mish"},
        "feed_forward_proj='gated-mish' of this t5",
    ),
    ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder=False of this t5"),
    (
        "t5",
        {"tie_encoder_decoder": True},
        "may matter at initialisation: tie_encoder_decoder=True",
    ),
    (
        "gpt2",
        {"pruned_heads": {"0": [1]}},
        "may matter at initialisation: pruned_heads=",
    ),
    ("gpt2", {"n_head": 5}, "heads=5 must be a divisor of width=32"),
    (
        "llama",
        {ROPE: {"partial_rotary_factor": 0.5}},
        r"partial_rotary_factor=0\.5 .* it must be 1\.0",
    ),
    (
        "llama",
        {"pad_token_id": 31},
        "pad_token_id=31 of this llama configuration must be null or an id",
    ),
    (
        "gpt_neox",
        {"rotary_pct": 0.2},
        r"rotary_fraction=0\.1875 must be an even number over d=16",
    ),
    (
        "vit",
        {"initializer_range": 0.5},
        r"initializer_range=0\.5 of this vit configuration must be .* at most 0\.2",
    ),
]


@pytest.mark.parametrize(("family", "change", "message"), REFUSED)
def test_unsupported_value_is_named(family, change, message):
    with pytest.raises(ValueError, match=message):
        models.read({**CONFIGS[family], **change})


def test_older_rotary_fields_are_read():
    old = {**CONFIGS["llama"], "rope_theta": 500.0, "rope_scaling": None}
    assert models.read(old).rotary_base == 500.0
    scaling = {
        "type": "llama3",
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
    }
    scaling["original_max_position_embeddings"] = 8192
    assert models.read({**old, "rope_scaling": scaling}).rotary_stretch == (
        8.0,
        1.0,
        4.0,
        8192.0,
    )
    both = {
        **old,
        "rope_scaling": {"rope_type": "default", "rope_theta": 3.0},
        ROPE: {"rope_theta": 7.0},
    }
    # the real code takes one of the two whole
    assert models.read(both).rotary_base == 3.0
    assert models.read({**both, "rope_scaling": {}}).rotary_base == 7.0
    # of 4.8 coordinates
    assert (
        models.read({**CONFIGS["gpt_neox"], "rotary_pct": 0.3}).rotary_fraction
        == 4 / 16
    )
    repeated = {**CONFIGS["gpt_neox"], "rope_theta": 3.0, "partial_rotary_factor": 1.0}
    assert models.read(repeated) == models.read(CONFIGS["gpt_neox"])


def test_values_are_read_as_transformers_reads_them():
    tied = {**CONFIGS["llama"], "tie_word_embeddings": True}
    assert models.read({**tied, "pad_token_id": -1}) == models.read(
        {**tied, "pad_token_id": 30}
    )
    assert models.read({**tied, "initializer_range": 0}) == models.read(
        {**tied, "initializer_range": 0.02}
    )
    gpt2 = models.read({**CONFIGS["gpt2"], "initializer_range": 0})
    assert (gpt2.std_q, gpt2.std_out, gpt2.std_embedding, gpt2.std_position) == (
        0,
        0,
        0.02,
        0.02,
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_inert_fields_of_older_versions_are_ignored(family):
    """What every configuration object of transformers 4 holds, at its defaults."""
    more = {
        "is_decoder": False,
        "add_cross_attention": False,
        "cross_attention_hidden_size": None,
        "pruned_heads": {},
    }
    more |= {
        "tie_encoder_decoder": False,
        "top_k": 50,
        "temperature": 1.0,
        "num_beams": 1,
        "tf_legacy_loss": False,
    }
    more |= {"is_encoder_decoder": family.startswith("t5")}
    assert models.read({**CONFIGS[family], **more}) == models.read(CONFIGS[family])


@pytest.mark.parametrize("family", CONFIGS)
def test_random_fields_are_read_or_rejected(family):
    odd = [None, "x", -1, 0, 2.5, True, [1], {"a": 1}, math.nan, 1e300, 10**400]
    for field in (
        *CONFIGS[family],
        "rope_scaling",
        "layer_types",
        "pad_token_id",
        "n_inner",
        "tie_word_embeddings",
    ):
        for value in odd:
            try:
                models.read({**CONFIGS[family], field: value})
            except ValueError as error:
                assert str(error)  # noqa: PT017 (any other error fails)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "gpt5",
            (
                "model='gpt5' must be the path of a file, or the name of a built-in"
                " model: did you mean gpt2 or"
            ),
        ),
        (
            {"model_type": "mamba"},
            "model_type='mamba' of the configuration must be one of bert, gemma2",
        ),
        ({}, "model_type=None"),
        (3, "source of type int must be the name of a model"),
        (
            {"model_type": "llama"},
            "hidden_size is missing from this llama configuration",
        ),
        (
            {**CONFIGS["llama"], "num_hidden_layers": "3"},
            "num_hidden_layers='3' of this llama configuration must be a whole",
        ),
        (
            {**CONFIGS["gpt2"], "initializer_range": -1},
            "std_q=-1 must be a finite number, 0 or from 1e-40",
        ),
        (
            {**CONFIGS["gpt2"], "initializer_range": 1e-300},
            "std_q=1e-300 must be a finite number, 0 or",
        ),
    ],
)
def test_read_rejects_bad_sources(source, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        models.read(source)


def test_read_rejects_file_without_configuration(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        models.read(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="must hold an object"):
        models.read(path)


def refused(source):
    with pytest.raises(ValueError, match=r".") as caught:
        models.read(source)
    return str(caught.value)


def test_read_rejects_odd_files_early(tmp_path):
    path = tmp_path / "config.json"
    for text in (
        "[" * 100_000,
        '{"model_type": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ):
        path.write_text(text)
        assert "nested too deeply" in refused(path)
    path.write_text('{"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_embd": 8}')
    assert "has the field 'n_embd' twice" in refused(path)
    path.write_text(
        '{"model_type": "llama", "rope_scaling": {"factor": 8, "factor": 9}}'
    )
    assert "has the field 'factor' twice" in refused(path)
    with path.open("r+b") as file:
        file.truncate(2**40)  # a hole of a terabyte
    assert "more than 16 MiB" in refused(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
def test_read_rejects_devices_and_pipes(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for path in (tmp_path / "config.json", "/dev/zero"):
        assert "must be a regular file" in refused(path)


def test_messages_shorten_and_escape_values():
    long, escape = "x" * 10**6, "\x1b[31m\x07"
    for field in (
        "odd",
        "activation_function",
        "model_type",
        "n_embd",
        "scale_attn_weights",
    ):
        for value in (long, escape, [long] * 9, {escape: long}):
            message = refused({**CONFIGS["gpt2"], field: value})
            assert field in message
            assert len(message) < 600
            assert message.isprintable()
    for name in (long, escape):
        message = refused({**CONFIGS["gpt2"], name: 1})
        assert len(message) < 600
        assert message.isprintable()
    assert (
        len(refused({**CONFIGS["gpt2"], **{f"odd{i}": 1 for i in range(10_000)}})) < 600
    )


def test_tokens_are_at_most_the_vocabulary():
    for changes, most in (
        ({"vocab_size": 1}, 1),
        ({"vocab_size": 9, "pad_token_id": 3}, 8),
    ):
        model = models.read(
            {**CONFIGS["llama"], "tie_word_embeddings": True, **changes}
        )
        with pytest.raises(
            ValueError,
            match=f"tokens={most + 1} must be at most {most}, the number of ids",
        ):
            model.probes(tokens=most + 1)


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_undrawable_numbers_are_named(value):
    gpt2 = models.read("gpt2")
    for name in (
        "std",
        "std_o",
        "bias_in",
        "embedding_scale",
        "logit_scale",
        "score_scale",
        "eps",
    ):
        with pytest.raises(ValueError, match=f"{name}=.* must be a finite number"):
            gpt2.replace(**{name: value})


def test_replace_checks_names_and_values():
    gpt2 = models.read("gpt2")
    changed = gpt2.replace(std=0.01, std_o=0.005, layers=3)
    assert (changed.std_q, changed.std_embedding, changed.std_o, changed.layers) == (
        0.01,
        0.01,
        0.005,
        3,
    )
    with pytest.raises(
        ValueError, match="layer is not a field of a Transformer; did you mean layers"
    ):
        gpt2.replace(layer=3)
    for change, message in (
        ({"layers": 2.5}, r"layers=2\.5 must be a positive integer"),
        ({"layers": True}, "layers=True"),
        ({"std_q": math.inf}, "std_q=inf must be a finite number"),
        ({"norm": "batch"}, "norm='batch' must be 'layer' or 'rms'"),
        ({"tied": 1}, "tied=1 must be True or False"),
        ({"groups": 5}, "groups=5 must be a divisor of heads=12"),
        (
            {"heads": 10},
            (
                "heads=10 must be a divisor of width=768 where head_dim is None: set"
                " that too"
            ),
        ),
        (
            {"positions": "rotary", "head_dim": 9},
            r"head_dim=9 must be such that d=9 is even: rotary positions",
        ),
        (
            {"positions": "rotary", "rotary_fraction": 0.3},
            r"rotary_fraction=0\.3 must be an even number over d=64",
        ),
        (
            {"rotary_stretch": (1.0, 4.0, 1.0, 5.0), "positions": "rotary"},
            "with low below high",
        ),
        (
            {"rotary_stretch": (1.0, 1.0, 4.0, 5.0)},
            "must be None unless positions='rotary'",
        ),
        ({"length": None}, "length=None must be the number of learned positions"),
        ({"gated": True, "bias_in": 0.1}, "bias_in=0.1 must be 0 with gated=True"),
        (
            {"rotary_base": 500.0},
            (
                r"rotary_base=500\.0 must be left unchanged in gpt2: it has an effect"
                r" only with positions='rotary'"
            ),
        ),
        (
            {"std_gate": 1.0},
            (
                "std_gate=1.0 must be left unchanged in gpt2: it has an effect only"
                " with gated=True"
            ),
        ),
        (
            {"std_logits": 1.0},
            (
                "std_logits=1.0 must be left unchanged in gpt2: it has an effect only"
                " with tied=False"
            ),
        ),
        (
            {"padding": 50257},
            "padding=50257 must be an id of the vocabulary, which has 50257",
        ),
        (
            {"shared": True, "window": 3, "window_every": 2},
            "window_every=2 must be 1 with shared",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            gpt2.replace(**change)


def test_replace_updates_derived_heads_and_dimensions():
    for name, key_heads, d in (
        ("gpt2", 24, 32),
        ("llama-3-8b", 8, 16),
        ("qwen3-8b", 8, 128),
        ("t5-base", 24, 64),
    ):
        model = models.read(name)
        heads = 256 if name == "llama-3-8b" else 24
        for changed in (model.replace(heads=heads), replace(model, heads=heads)):
            assert (changed.key_heads, changed.d, changed.widths()["d"]) == (
                key_heads,
                d,
                d,
            )
    for family, field in (
        ("gpt2", "n_head"),
        ("bert", "num_attention_heads"),
        ("gpt_neox", "num_attention_heads"),
    ):
        config = {**CONFIGS[family], field: 1}
        assert models.read(CONFIGS[family]).replace(heads=1) == models.read(config)
    several = {
        **CONFIGS["llama"],
        "num_key_value_heads": CONFIGS["llama"]["num_attention_heads"],
    }
    assert models.read(several).replace(heads=1).key_heads == 1
    assert (
        models.read("gpt2").replace(heads=24, groups=12, head_dim=64).weights
        > models.read("gpt2").weights
    )


def test_decoder_fields_need_a_decoder():
    t5 = models.read("t5-base")
    for change in (
        {"order": "post"},
        {"shared": True},
        {"std_type": 0.1},
        {"input_norm": True},
    ):
        with pytest.raises(
            ValueError,
            match=f"{next(iter(change))}=.* must be .* with decoder_layers=12",
        ):
            t5.replace(**change)


def test_settings_parse_texts_of_fields():
    texts = [
        "layers=4",
        "std=0.05",
        "tied=false",
        "score_cap=none",
        "positions=rotary",
        "rotary_stretch=8,1,4,64",
    ]
    found = models.settings(texts)
    assert found == {
        "layers": 4,
        "std": 0.05,
        "tied": False,
        "score_cap": None,
        "positions": "rotary",
        "rotary_stretch": (8.0, 1.0, 4.0, 64.0),
    }
    assert models.read("gpt2").replace(**found).std_in == 0.05
    for text, message in (
        ("layers", "'layers' must be written field=value"),
        ("layers=x", "layers='x' must be a positive integer"),
        ("tied=maybe", "tied='maybe' must be True or False"),
        ("nothing=1", "nothing is not a field"),
        ("initializer_range=0.02", "is not a field of a Transformer: write std, which"),
        (
            "foo=1",
            (
                "foo is not a field of a Transformer: choose one of std, name, family,"
                " layers"
            ),
        ),
        ("std=x", "std='x' must be a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            models.read("gpt2").replace(**models.settings([text]))


def test_nanogpt_is_gpt2_with_the_exact_gelu():
    own = {
        "n_layer": 3,
        "n_head": 2,
        "n_embd": 32,
        "block_size": 16,
        "vocab_size": 31,
        "bias": False,
        "dropout": 0.1,
    }
    same = models.read(
        {**CONFIGS["gpt2"], "activation_function": "gelu", "initializer_range": 0.02}
    )
    for config in (own, SimpleNamespace(**own)):
        assert (
            models.nanogpt(config).replace(name=same.name, family=same.family) == same
        )
    assert models.nanogpt({}).vocabulary == 50304
    with pytest.raises(ValueError, match="n_kv: not a field of nanoGPT"):
        models.nanogpt({**own, "n_kv": 2})


def test_pytorch_encoder_is_read():
    model = models.pytorch_encoder(64, 4, 128, num_layers=3)
    assert (model.shared, model.order, model.distribution) == (True, "post", "uniform")
    # Xavier, of one matrix with 192 rows
    assert model.std_q == pytest.approx(math.sqrt(2 / (64 + 192)))
    assert model.std_out == model.bias_out == pytest.approx(1 / math.sqrt(3 * 128))
    assert model.status(**model.widths()) == "same limit"
    assert model.status(n=ns.inf) == "conjectured"
    assert models.read("gpt2").status(n=768) == "exact"
    for change in ({"nhead": 5}, {"activation": "silu"}, {"d_model": 0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            models.pytorch_encoder(**{"d_model": 64, "nhead": 4, **change})
