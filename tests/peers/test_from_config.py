"""Configurations of types that netsor does not describe, read from the modules of
transformers.
"""

import json

import pytest
import transformers

import netsor as ns
from tests.internals import ArgumentError

from ..command import netsor

EXPERTS = {
    "model_type": "olmoe",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.2,
    "eos_token_id": 1,
}


def _text(audit):
    """The text of an audit, in one line."""
    return " ".join(str(audit).split())


def test_audit_of_unknown_family_equals_audit_of_its_module():
    audit = ns.audit(EXPERTS, tokens=5, draws=16, workers=1, progress=False)
    fields = {key: x for key, x in EXPERTS.items() if key != "model_type"}
    config = transformers.OlmoeConfig(**fields, attn_implementation="eager")
    module = ns.audit(
        lambda: transformers.OlmoeForCausalLM(config),
        tokens=5,
        draws=16,
        workers=1,
        progress=False,
    )
    assert audit["loss"].median == pytest.approx(module["loss"].median, rel=1e-9)
    assert "Read from OlmoeForCausalLM of transformers: olmoe has no" in _text(audit)


def test_command_reads_config_of_unknown_family(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EXPERTS))
    options = ("--tokens", "4", "--draws", "16", "--workers", "1")
    done = netsor("audit", str(path), *options)
    text = " ".join(done.stdout.split())
    assert "1 block; 16 draws of 4 tokens; exact. Read from OlmoeForCausalLM" in text
    refused = netsor("audit", str(path), "--set", "std=3")
    assert "--set is for models that netsor describes itself" in refused.stderr


def test_config_of_images_has_given_image():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    others = {"intermediate_size": 24, "image_size": 8, "patch_size": 4}
    config = {"model_type": "deit", **sizes, **others}
    audit = ns.audit(config, draws=16, workers=1, progress=False)
    assert audit["entropy"].median.shape == (1,)
    with pytest.raises(ArgumentError, match=r"left out: the input of .* is an image"):
        ns.audit(config, tokens=4)


def test_config_names_its_class():
    config = {**EXPERTS, "architectures": ["OlmoeModel"]}
    audit = ns.audit(config, tokens=4, draws=16, workers=1, progress=False)
    assert "Read from OlmoeModel" in _text(audit)
    assert "loss" not in audit


def test_encoder_and_decoder_get_the_same_ids():
    config = {
        "model_type": "mbart",
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "vocab_size": 30,
    }
    audit = ns.audit(config, ids=[3, 7, 5], draws=16, workers=1, progress=False)
    assert audit["entropy"].median.shape == (2,)


def test_unknown_model_type_is_refused():
    with pytest.raises(ArgumentError, match="model_type='gpt9' must be a type that"):
        ns.audit({"model_type": "gpt9"})
