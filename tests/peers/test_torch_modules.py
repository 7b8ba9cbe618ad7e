"""Modules of transformers and PyTorch, read by `ns.torch.program`, against their own
initialisations.

Two samples, Kolmogorov–Smirnov; level 1e-4 for all quantities of all modules together.
Seeds are fixed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import netsor as ns
from tests.internals import ParameterDraws as Draws
from tests.internals import _reader

from ..engine.differences import drawn
from .forks import GPT, DiffTransformer, GPTConfig, SandwichTransformer
from .line_by_line import EncoderDecoder
from .literal import given_numbers
from .own_modules import (
    Both,
    Differential,
    Parallel,
    Sandwich,
    Scaled,
    Views,
    complex_numbers,
    neighbours,
    pairs,
)

IDS = torch.tensor([[3, 7, 7, 1, 9, 3]])
REAL, OURS = 1000, 4000
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "intermediate_size": 96,
    "max_position_embeddings": 32,
    "initializer_range": 0.1,  # so that blocks change the stream
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": None}
UNGROUPED = {**SIZES, "use_cache": False}
NEOX = ["gpt_neox.layers.0", "gpt_neox.layers.1", "gpt_neox.final_layer_norm"]
BLOCKS = ["model.layers.0", "model.layers.1", "model.norm"]


def _hf(kind, *, attention="sdpa", **fields):
    config = getattr(transformers, f"{kind}Config")(**fields)
    config._attn_implementation = attention
    names = {
        "Bert": "BertForMaskedLM",
        "GPT2": "GPT2LMHeadModel",
        "ViT": "ViTForImageClassification",
    }
    name = names.get(
        kind,
        "T5ForConditionalGeneration"
        if kind == "T5"
        else f"{kind}ForCausalLM".replace("Text", ""),
    )
    return lambda: getattr(transformers, name)(config)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
GPT2 = {
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 40,
    "n_positions": 16,
    "use_cache": False,
}
GPT2 |= {"initializer_range": 0.1, "bos_token_id": 0, "eos_token_id": 0}
STREAM = ["transformer.h.0", "transformer.h.1", "transformer.ln_f"]
T5 = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 40,
    "use_cache": False,
}
VIT = {k: SIZES[k] for k in list(SIZES)[:3]} | {
    "intermediate_size": 96,
    "image_size": 8,
    "patch_size": 4,
}
PIXELS = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0))
LAYER = {"d_model": 64, "nhead": 4, "dim_feedforward": 96, "batch_first": True}


class Own(torch.nn.Module):
    """PyTorch's own attention, with queries from elsewhere and a mask."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 64)
        self.attend = torch.nn.MultiheadAttention(64, 4, batch_first=True)
        self.look = torch.nn.MultiheadAttention(64, 4, bias=False)
        self.norm = torch.nn.RMSNorm(64)

    def forward(self, ids):
        x = self.table(ids)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = x + self.attend(x, x, x, attn_mask=mask, need_weights=True)[0]
        y = self.norm(x).transpose(0, 1)
        return self.look(y[:2], y, y, need_weights=False)[0].transpose(0, 1)


BERT = ["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"]
MODULES = {  # a factory, its inputs, and the modules inside that are compared
    "gpt2": (_hf("GPT2", **GPT2), (IDS,), {}, STREAM),
    "gpt2, eager": (_hf("GPT2", attention="eager", **GPT2), (IDS,), {}, STREAM),
    "llama": (_hf("Llama", **GROUPED), (IDS,), {}, BLOCKS),
    "llama3": (
        _hf(
            "Llama",
            **GROUPED,
            rope_parameters={**LLAMA3, "original_max_position_embeddings": 16},
        ),
        (IDS,),
        {},
        BLOCKS,
    ),
    "llama, yarn": (_hf("Llama", **GROUPED, rope_parameters=YARN), (IDS,), {}, BLOCKS),
    "llama, linear": (
        _hf("Llama", **GROUPED, rope_parameters=LINEAR),
        (IDS,),
        {},
        BLOCKS,
    ),
    "mistral": (_hf("Mistral", **GROUPED, sliding_window=3), (IDS,), {}, BLOCKS),
    "qwen2": (_hf("Qwen2", **GROUPED), (IDS,), {}, BLOCKS),
    "qwen3": (_hf("Qwen3", **GROUPED, head_dim=24), (IDS,), {}, BLOCKS),
    "bert": (_hf("Bert", **SIZES, pad_token_id=0), (IDS,), {}, BERT),
    "gemma": (
        _hf("Gemma", **{**GROUPED, "pad_token_id": 7}, head_dim=16),
        (IDS,),
        {},
        BLOCKS,
    ),
    "gemma2": (
        _hf("Gemma2", attention="eager", **GROUPED, head_dim=16, sliding_window=3),
        (IDS,),
        {},
        BLOCKS,
    ),
    "phi3": (_hf("Phi3", **GROUPED), (IDS,), {}, BLOCKS),
    "olmo2": (_hf("Olmo2", **GROUPED), (IDS,), {}, BLOCKS),
    "gpt_neox": (_hf("GPTNeoX", **UNGROUPED), (IDS,), {}, NEOX),
    "gemma3": (
        _hf("Gemma3Text", **{**GROUPED, "pad_token_id": 7}, head_dim=16),
        (IDS,),
        {},
        BLOCKS,
    ),
    "smollm3": (_hf("SmolLM3", **GROUPED, no_rope_layers=[1, 0]), (IDS,), {}, BLOCKS),
    "vit": (
        _hf("ViT", **VIT, initializer_range=0.1),
        (PIXELS,),
        {},
        ["vit.embeddings", "vit.layers.0", "vit.layers.1"],
    ),
    "layer": (
        lambda: torch.nn.TransformerEncoderLayer(**LAYER),
        (TOKENS,),
        {},
        ["self_attn", "norm1", "linear1"],
    ),
    "encoder": (
        lambda: torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(
                **LAYER, norm_first=True, activation="gelu"
            ),
            2,
            enable_nested_tensor=False,
        ),
        (TOKENS,),
        {},
        ["layers.0", "layers.1", "layers.1.self_attn"],
    ),
    "attention": (Own, (IDS,), {}, ["attend", "norm", "look"]),
    "t5": (
        _hf("T5", **T5, decoder_start_token_id=0),
        (),
        {"input_ids": IDS, "decoder_input_ids": torch.tensor([[0, 3, 4, 7]])},
        [
            "encoder.block.1",
            "encoder.final_layer_norm",
            "decoder.block.0",
            "decoder.final_layer_norm",
        ],
    ),
}


def _laws(build):
    """With errors of standard deviations that the tests do not notice."""
    return ns.torch.parameters(build, samples=64)


def _net(build, args, kwargs, paths):
    """The same quantities of each module inside, and of what comes out."""
    net = ns.torch.program(build, args, kwargs, laws=_laws(build))
    probes = {probe.name: probe.value for probe in net.probes}
    found = []
    for path in paths:
        x = probes[path].reshape(-1)
        found += [x[-1], *(ns.mean_dot(x, x)[i, -1] for i in (0, -1))]
    last = net.outputs[0]
    if isinstance(last, ns.Vector):
        x = last.reshape(-1)[-1]
        found += [x, ns.mean_dot(x, x)]
    else:
        p = last.reshape(-1, last.shape[-1])[-1]
        found += [p[0], (p * p).mean()]
    return ns.Program(tuple(found), net.name)


def _keep(seen, path, module, given, out):
    # what follows may write into it
    seen[path] = out.clone() if isinstance(out, torch.Tensor) else out


@torch.no_grad()
def _real(build, args, kwargs, paths, count):
    rows = []
    for seed in range(count):
        torch.manual_seed(1000 + seed)
        module, seen = build().eval(), {}
        for path in paths:
            module.get_submodule(path).register_forward_hook(partial(_keep, seen, path))
        out = module(*args, **kwargs)
        row = []
        for path in paths:
            x = seen[path][0] if isinstance(seen[path], tuple) else seen[path]
            x = x.reshape(-1, x.shape[-1]).double().numpy()
            row += [x[-1, 0], *((x @ x.T)[i, -1] / x.shape[1] for i in (0, -1))]
        out = (
            next(iter(out.values()))
            if isinstance(out, dict)
            else out[0]
            if isinstance(out, tuple)
            else out
        )
        p = out.reshape(-1, out.shape[-1])[-1].double().numpy()
        rows.append([*row, p[0], (p * p).mean()])
    return np.array(rows)


MODULES |= {
    "parallel": (Parallel, (IDS,), {}, ["attention", "mlp"]),
    "neighbours": (lambda: Parallel(neighbours), (IDS,), {}, ["attention", "mlp"]),
    "pairs": (lambda: Parallel(pairs), (IDS,), {}, ["attention", "mlp"]),
    "complex": (lambda: Parallel(complex_numbers), (IDS,), {}, ["attention", "mlp"]),
    "sandwich": (Sandwich, (IDS,), {}, ["attention", "down"]),
    "differential": (Differential, (IDS,), {}, ["norm", "o"]),
    "both": (Both, (IDS,), {}, ["inner.encoder", "inner.decoder.layers.0.self_attn"]),
    "scaled": (Scaled, (IDS,), {}, ["attention.q", "attention"]),
    "views": (Views, (IDS,), {}, ["part", "middle"]),
}
FORKS = {
    "parallel GPT": (
        lambda: GPT(GPTConfig(parallel=True)),
        (IDS, IDS),
        {},
        ["transformer.h.0", "transformer.ln_f"],
    ),
    "sandwich of functions": (
        SandwichTransformer,
        (IDS,),
        {},
        ["layers.0.0.fn", "layers.1.1"],
    ),
    "differential decoder": (DiffTransformer, (IDS,), {}, ["blocks.0.attn", "norm"]),
    "annotated": (
        EncoderDecoder,
        (IDS, torch.tensor([[1, 4, 5, 2]])),
        {},
        ["encoder.1", "decoder.1", "dec_norm"],
    ),
}
MODULES |= FORKS
LEVEL = 0.5e-4 / (len(MODULES) * 14)  # and as much for test_networks


@pytest.mark.parametrize("name", MODULES)
def test_module_has_the_law_of_its_own_initialisations(name):
    build, args, kwargs, paths = MODULES[name]
    real = _real(build, args, kwargs, paths, REAL)
    ours = np.stack(
        _net(build, args, kwargs, paths).draw(draws=OURS, progress=False), axis=1
    )
    fixed = ours.std(axis=0) < 1e-4 * np.abs(ours).max(
        axis=0
    )  # a mean square after a norm is 1 up to eps; single precision rounds it
    np.testing.assert_allclose(real[:, fixed], ours[:REAL, fixed], rtol=1e-4, atol=1e-6)
    found = [
        float(stats.ks_2samp(real[:, i], ours[:, i]).pvalue)
        for i in np.flatnonzero(~fixed)
    ]
    print(name, np.round(found, 3))
    assert len(found) >= 5
    assert min(found) > LEVEL, found


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_program_with_the_weights_of_a_module_matches_it(name, monkeypatch):
    build, args, kwargs, _ = MODULES[name]
    made = []
    monkeypatch.setattr(
        _reader,
        "Draws",
        lambda *given, **options: made.append(Draws(*given, **options)) or made[-1],
    )
    net = ns.torch.program(build, args, kwargs)
    torch.manual_seed(5)
    module, seen = build().eval(), {}
    for path, part in module.named_modules():
        part.register_forward_hook(partial(_keep, seen, path))
    module(*args, **kwargs)
    values = {probe.name: probe.value for probe in net.probes if probe.name in seen}
    literal = drawn(
        [*net.outputs, *values.values()], {}, given_numbers(made[0], module)
    )
    compared = 0
    for path, value in values.items():
        out = seen[path][0] if isinstance(seen[path], tuple) else seen[path]
        out = next(iter(out.values())) if isinstance(out, dict) else out
        found = literal.drawn[value][0]
        if isinstance(value, ns.Vector) and out.shape == found.shape:
            size = float(out.abs().max())
            np.testing.assert_allclose(
                found, out.double().numpy(), rtol=0, atol=2e-5 * size, err_msg=path
            )
            compared += 1
    assert compared >= 2


class Cross(torch.nn.Module):
    """Attention to other tokens, which cuts its bias into one part and two."""

    def __init__(self):
        super().__init__()
        self.attend = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        for p in self.parameters():
            torch.nn.init.normal_(p, std=0.5)

    def forward(self, x, y):
        return self.attend(x, y, y, need_weights=False)[0]


def test_random_bias_of_attention_to_other_tokens():
    inputs = (
        torch.linspace(-1, 1, 16).reshape(1, 2, 8),
        torch.linspace(2, -1, 24).reshape(1, 3, 8),
    )
    ours = ns.torch.program(Cross, inputs).draw(draws=2000, seed=1)[:, 0]
    torch.manual_seed(1)
    with torch.no_grad():
        real = np.array([Cross()(*inputs)[0, :, 0].numpy() for _ in range(2000)])
    for k in range(2):
        assert stats.ks_2samp(ours[:, k], real[:, k]).pvalue > 1e-4 / 2


def test_module_is_read_in_inference_mode():
    """Parts of fused projections are found by gradients, which this mode turns off."""
    build, args, kwargs, _ = MODULES["gpt_neox"]
    with torch.inference_mode():
        inside = ns.torch.program(build, args, kwargs)
    assert str(inside) == str(ns.torch.program(build, args, kwargs))


def test_inputs_on_the_meta_device_are_refused():
    with pytest.raises(ValueError, match="pass ids on the CPU"):
        ns.torch.program(
            MODULES["llama"][0], (torch.zeros((1, 4), dtype=torch.long, device="meta"),)
        )


def test_comparison_notices_a_wrong_law():
    """The statistics can fail: one matrix a third too large."""
    build, args, kwargs, _ = MODULES["llama"]
    laws = ns.torch.parameters(build)
    name = "model.layers.1.self_attn.v_proj.weight"
    wrong = ns.torch.parameters(build, declared={name: 1.33 * laws[name].std})
    net = ns.torch.program(build, args, kwargs, laws=wrong)
    value = {probe.name: probe.value for probe in net.probes}[
        "model.layers.1.self_attn"
    ].reshape(-1)
    ours = ns.Program(ns.mean_dot(value, value)[-1, -1]).draw(
        draws=OURS, progress=False
    )
    real = _real(build, args, kwargs, ["model.layers.1.self_attn"], REAL)[:, 2]
    assert stats.ks_2samp(real, ours).pvalue < LEVEL


def test_module_of_405_billion_parameters_is_read_without_its_memory():
    """Two of its 126 blocks: each is read by itself."""
    rope = {**LLAMA3, "rope_theta": 500000.0, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(
        hidden_size=16384,
        num_hidden_layers=2,
        num_attention_heads=128,
        num_key_value_heads=8,
        use_cache=False,
        intermediate_size=53248,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_parameters=rope,
    )
    net = ns.torch.program(lambda: transformers.LlamaForCausalLM(config), IDS)
    assert net.output.width.factor == 128256
    turned = next(
        value for value in _inputs(net.output) if type(value.op).__name__ == "Rotate"
    )
    theta = 500000.0 ** (-np.arange(64) / 64)
    # what its configuration says
    right = ns.models.Stretch(8.0, 1.0, 4.0, 8192.0).of(theta)
    np.testing.assert_allclose(turned.op.stretch.of(theta), right, rtol=1e-3)
    assert net.plan().random_numbers > 0


def _inputs(value):
    seen, pending = {value}, [value]
    while pending:
        new = {x for x in pending.pop().op.inputs if x not in seen}
        seen |= new
        pending += new
    return seen


def test_rotary_positions_with_an_offset_are_read():
    """Scores depend on distances alone, and the programs are alike: so are their
    draws.
    """
    build = MODULES["llama"][0]
    first = torch.arange(IDS.shape[1])[None]
    draws = [
        ns.torch.program(build, IDS, {"position_ids": first + start}).draw(
            draws=3, progress=False
        )
        for start in (5, 9)
    ]
    np.testing.assert_allclose(draws[1], draws[0], rtol=1e-4, atol=1e-5)
    assert ns.torch.program(
        build, IDS[:, :1], {"position_ids": torch.tensor([[4]])}
    ).shape == (1, 1)
