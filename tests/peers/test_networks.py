"""Modules as networks of an audit: the law of every quantity is that of real
initialisations.
"""

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import netsor as ns  # noqa: E402
from tests.internals import (  # noqa: E402
    Parameters,
    ProgramModel,
    _rates,
    captured,
    forward_backward,
    read_network,
    structure,
)
from tests.internals import network_training as training  # noqa: E402

from ..command import netsor  # noqa: E402
from .broken_modules import IDS as BATCH  # noqa: E402
from .broken_modules import Decoder  # noqa: E402
from .forks import GPT  # noqa: E402
from .networks import columns  # noqa: E402
from .test_torch_modules import FORKS, MODULES  # noqa: E402

FAMILIES = [
    *(
        "gpt2",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3",
        "phi3",
        "olmo2",
        "smollm3",
        "gpt_neox",
    ),
    *("bert", "vit", "t5", "layer", "encoder", *FORKS),
]
REAL, OURS = 1000, 2000
LEVEL = 0.5e-4 / (len(FAMILIES) * 80)  # and as much for test_torch_modules


@pytest.mark.parametrize("name", FAMILIES)
def test_network_quantities_have_the_law_of_real_initialisations(name):
    build, args, kwargs, _ = MODULES[name]
    net = read_network(build, args, kwargs, ns.torch.parameters(build, samples=64))
    law = (
        ProgramModel(net.program, {})
        .probes(gradients=True)
        .measure(OURS, progress=False)
    )
    rows, graph = [], None
    for seed in range(REAL):
        torch.manual_seed(3000 + seed)
        module = build().eval()
        graph = graph or structure(captured(module, args, kwargs, Parameters({}, 0)))
        rows.append(
            forward_backward(
                graph, dict(module.named_parameters()), net.targets, net.masks
            )[0]
        )
    real = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    ours, fixed = columns(law)
    shared = [key for key in real if key in ours]
    assert {"mean_square", "cosine", "entropy", "attention_share"} <= {
        key for key, _ in shared
    }
    if net.structure.logits is not None:
        assert {"loss", "grad_mean_square", "grad_input"} <= {key for key, _ in shared}
    for key in fixed & set(shared):
        np.testing.assert_allclose(real[key], ours[key][0], rtol=1e-3, atol=1e-6)
    found = {
        key: float(stats.ks_2samp(real[key], ours[key]).pvalue)
        for key in shared
        if key not in fixed
    }
    print(name, len(found), min(found.values()))
    assert min(found.values()) > LEVEL, {
        key: p for key, p in found.items() if p < LEVEL
    }


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "phi3", "smollm3", "bert"])
def test_quantities_of_a_pass_match_transformers(name):
    """The loss and its gradients by `labels`, the streams and the entropy by what the
    model returns.
    """
    build, args, _, _ = MODULES[name]
    torch.manual_seed(4)
    module, ids = build().eval(), args[0]
    net = read_network(build, args)
    graph = structure(captured(module, args, {}, Parameters({}, 0)))
    found = forward_backward(
        graph, dict(module.named_parameters()), net.targets, net.masks
    )[0]
    module.set_attn_implementation("eager")
    out = module(ids, labels=ids, output_hidden_states=True, output_attentions=True)
    out.loss.backward()
    last = out.hidden_states[1][0].double().detach().numpy()
    weights = out.attentions[1].double().detach().numpy()
    rows = -np.where(
        weights > 0, weights * np.log(np.where(weights > 0, weights, 1.0)), 0.0
    ).sum(-1)
    counts = net.masks[1].sum(-1)
    entropy = rows[..., counts > 1] / np.log(counts[counts > 1])
    np.testing.assert_allclose(found["loss", 0], out.loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found["mean_square", 0], np.mean(last**2), rtol=1e-4)
    words = module.get_input_embeddings().weight
    np.testing.assert_allclose(
        found["grad_embedding", 0], float(words.grad.double().square().sum()), rtol=1e-3
    )
    np.testing.assert_allclose(found["entropy", 1], entropy.mean(), rtol=1e-4)


def test_audit_accepts_a_module_and_its_factory():
    torch.manual_seed(0)
    found = ns.audit(Decoder, ids=BATCH, gradients=True, draws=16, progress=False)
    assert found.finding("entropy").verdict == "ok"
    assert found["grad_query"].median.shape == (3,)
    with pytest.raises(ValueError, match="the widths of Decoder are numbers"):
        ns.audit(Decoder, ids=BATCH, widths="inf")


def test_audit_of_a_module_at_several_lengths():
    found = ns.audit(Decoder, tokens=[8, 4], draws=16, workers=1, progress=False)
    assert [length.tokens for length in found.lengths] == [4, 8]
    alone = ns.audit(Decoder, tokens=8, draws=16, workers=1, progress=False)
    np.testing.assert_array_equal(
        found.lengths[1]["entropy"].median, alone["entropy"].median
    )


def test_fused_matrix_of_queries_keys_and_values_is_named():
    found = ns.audit(
        GPT, ids=BATCH, gradients=True, draws=16, workers=1, progress=False
    )
    assert (
        "one matrix makes queries, keys and values" in found.finding("scores").measured
    )


FILE = """
import torch

from tests.peers.forks import GPT, GPTConfig


def build(n_embd=64):
    return GPT(GPTConfig(n_embd=n_embd, n_head=n_embd // 16))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


def test_commands_accept_modules(tmp_path):
    (tmp_path / "gpt.py").write_text(FILE)
    swept = netsor(
        "audit",
        f"{tmp_path}/gpt.py:build",
        "--sweep",
        "n_embd=32,64",
        "--tokens",
        "4,8",
        "--draws",
        "16",
        "--ranges",
        "--workers",
        "1",
    )
    assert swept.returncode == 0, swept.stderr
    assert (
        "GPT, n_embd=32 and GPT, n_embd=64. 2 blocks; 16 draws of 4 tokens"
        in swept.stdout
    )
    options = ("--widths", "32,64", "--draws", "4", "--workers", "1")
    checked = netsor(
        "coord-check", f"{tmp_path}/gpt.py:build", "--optimiser", "adamw", *options
    )
    assert checked.returncode == 0, checked.stderr
    assert "One step of adam" in checked.stdout
    unknown = netsor(
        "coord-check", f"{tmp_path}/gpt.py:build", "--optimiser", "lamb", *options
    )
    assert "--optimiser 'lamb' must be" in unknown.stderr
    assert "in FILE" in unknown.stderr


def test_comparison_notices_a_wrong_network():
    """The statistics can fail: the norms of queries and keys of one block left out."""
    law = (
        ProgramModel(ns.torch.network(Decoder, torch.tensor([BATCH])), {})
        .probes()
        .measure(300, progress=False)
    )
    wrong = ProgramModel(
        ns.torch.network(lambda: Decoder("QK-norm off"), torch.tensor([BATCH])), {}
    )
    other = wrong.probes().measure(300, seed=1, progress=False)
    assert (
        stats.ks_2samp(law["score_std"][:, 1], other["score_std"][:, 1]).pvalue < LEVEL
    )
    assert (
        stats.ks_2samp(law["score_std"][:, 0], other["score_std"][:, 0]).pvalue > LEVEL
    )


def _llama(width):
    sizes = {
        "num_attention_heads": width // 16,
        "num_key_value_heads": width // 16,
        "intermediate_size": 2 * width,
    }
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=1,
        vocab_size=40,
        max_position_embeddings=16,
        initializer_range=0.1,
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **sizes,
    )
    return transformers.LlamaForCausalLM(config)


def _groups(kind):
    def optimiser(module):
        slow = [p for name, p in module.named_parameters() if "embed" in name]
        fast = [
            p
            for name, p in module.named_parameters()
            if "embed" not in name and p.ndim == 2
        ]
        if kind == "Muon":
            return torch.optim.Muon(fast, lr=0.01)
        return getattr(torch.optim, kind)(
            [{"params": slow, "lr": 0.001}, {"params": fast}], lr=0.01
        )

    return optimiser


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_step_of_a_module_changes_the_logits_of_all_words_like_torch(kind):
    from tests.internals import CHANGE, joined, measured, of_program

    ids = [3, 7, 1, 9, 3]
    build, name = training(_llama, 32, _groups(kind), None, ids)
    net, rates = build(32)
    assert rates["model.embed_tokens.weight"] == 0.001
    assert rates["lm_head.weight"] == 0.01
    entries = measured(of_program(net, rates), name)
    at = [
        entry.what == CHANGE and entry.name == "vocabulary" for entry in entries
    ].index(True)
    ours = joined(entries).draw(draws=400, progress=False)[:, at]
    real = []
    for seed in range(300):
        torch.manual_seed(seed)
        module = _llama(32)
        tokens = torch.tensor([ids])
        optimiser = _groups(kind)(module)
        before = module(tokens).logits[0, :-1]
        torch.nn.functional.cross_entropy(before, tokens[0, 1:]).backward()
        optimiser.step()
        after = module(tokens).logits[0, :-1]
        real.append(float((after - before).detach().double().square().mean()))
    assert stats.ks_2samp(real, ours).pvalue > 1e-4 / 2


def test_coordinate_check_of_a_module_reads_its_optimiser():
    found = ns.coord_check(
        _llama, widths=[32, 64], optimiser=_groups("Muon"), draws=4, progress=False
    )
    assert "lm_head.weight" in str(found.table(True))
    with pytest.raises(ValueError, match=r"an optimiser of torch\.optim"):
        ns.coord_check(
            _llama,
            widths=[32, 64],
            optimiser=lambda module: torch.optim.Adagrad(module.parameters()),
        )
    with pytest.raises(
        ValueError, match="steps=2 must be 1 with an optimiser of PyTorch"
    ):
        ns.coord_check(
            _llama,
            widths=[32, 64],
            steps=2,
            optimiser=lambda module: torch.optim.SGD(module.parameters()),
        )


def test_optimiser_options_that_change_the_first_step():
    def rates(build=lambda: _llama(32), **options):
        return _rates(
            build(),
            lambda module: torch.optim.SGD(module.parameters(), lr=0.1, **options),
        )

    def frozen():
        module = _llama(32)
        module.lm_head.weight.requires_grad_(False)
        return module

    assert set(rates(momentum=0.9).values()) == {0.1}
    assert set(rates(momentum=0.9, nesterov=True).values()) == {0.1 * 1.9}
    assert "lm_head.weight" not in rates(frozen)
    for name in ("weight_decay", "maximize"):
        with pytest.raises(ValueError, match=f"{name}=.* must be"):
            rates(**{name: True})
    with pytest.raises(
        ValueError,
        match=(
            r"eps=0\.001 must be 1e-08 or less in the optimiser: set"
            r" coord_check\(eps=\)"
        ),
    ):
        _rates(
            _llama(32), lambda module: torch.optim.Adam(module.parameters(), eps=1e-3)
        )


def test_step_leaves_frozen_parameters_and_refuses_copies():
    def frozen(width):
        module = _llama(width)
        module.lm_head.weight.requires_grad_(False)
        return module

    rates = training(frozen, 32, "sgd", 0.1, [3, 7, 1])[0](32)[1]
    assert rates.pop("lm_head.weight") == 0
    assert set(rates.values()) == {0.1}

    def copied(width):
        module = _llama(width)
        attention = module.model.layers[0].self_attn
        attention.k_proj.load_state_dict(attention.q_proj.state_dict())
        return module

    with pytest.raises(
        ns.torch.UnsupportedError,
        match=r"k_proj\.weight starts as a copy of .*q_proj\.weight.*own steps",
    ):
        training(copied, 32, "sgd", 0.1, [3, 7, 1])[0](32)
