"""Batches of several sequences, with padding, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import netsor as ns
from tests.internals import (
    Parameters,
    ProgramModel,
    captured,
    forward_backward,
    read_network,
    structure,
)

from . import literal
from .networks import columns

LEVEL = 1e-4
REAL, OURS = 200, 1000
IDS = torch.tensor([[3, 7, 7, 9, 5], [4, 8, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
TOKENS = MASK.bool()
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 12,
    "max_position_embeddings": 16,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "pad_token_id": 0,
}


def llama(implementation="eager"):
    sizes = {**SIZES, "attn_implementation": implementation}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config)


def bert(implementation="eager"):
    sizes = {**SIZES, "attn_implementation": implementation}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes))


MODELS = {"llama": llama, "bert": bert}
# the same sequences, padded on the left
LEFT_IDS = torch.tensor([[3, 7, 7, 9, 5], [0, 0, 4, 8, 3]])
LEFT_MASK = MASK.flip(1)


class Logits(torch.nn.Module):
    """The logits of a model, which counts positions from the first token or not."""

    def __init__(self, model, from_first_token):
        super().__init__()
        self.model, self.from_first_token = model, from_first_token

    def forward(self, ids, attention_mask):
        positions = None
        if self.from_first_token:
            positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        return self.model(
            ids, attention_mask=attention_mask, position_ids=positions
        ).logits


def _structure(module, args):
    return structure(captured(module, args, {}, Parameters({}, 0)))


@pytest.mark.parametrize("name", MODELS)
def test_quantities_of_padded_batch_match_transformers(name):
    build = MODELS[name]
    net = read_network(build, (IDS, MASK))
    torch.manual_seed(4)
    module = build().eval()
    found = forward_backward(
        _structure(module, (IDS, MASK)),
        dict(module.named_parameters()),
        net.targets,
        net.masks,
    )[0]
    labels = IDS.masked_fill(~TOKENS, -100)
    out = module(
        IDS, MASK, labels=labels, output_hidden_states=True, output_attentions=True
    )
    out.loss.backward()
    last = out.hidden_states[1][TOKENS].double().detach().numpy()
    gram = last @ last.T / last.shape[1]
    norms = np.sqrt(np.diag(gram))
    cosines = (gram / np.outer(norms, norms))[np.triu_indices(len(gram), 1)]
    entropies = []
    for weights, is_token in zip(out.attentions[1].double(), TOKENS, strict=True):
        rows = weights[:, is_token][..., is_token]
        counts = (rows > 0).sum(-1)
        entropy = (
            torch.special.entr(rows).sum(-1)[counts > 1] / counts[counts > 1].log()
        )
        entropies.append(entropy.mean().item())
    np.testing.assert_allclose(found["loss", 0], out.loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found["mean_square", 0], np.mean(last**2), rtol=1e-5)
    np.testing.assert_allclose(found["cosine", 0], cosines.mean(), rtol=1e-4)
    np.testing.assert_allclose(found["entropy", 1], np.mean(entropies), rtol=1e-4)
    gradient = module.get_input_embeddings().weight.grad.double().square().sum()
    np.testing.assert_allclose(found["grad_embedding", 0], float(gradient), rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_law_of_padded_batch_matches_real_initialisations(name):
    build = MODELS[name]
    net = read_network(build, (IDS, MASK))
    probes = ProgramModel(net.program, {}).probes(gradients=True)
    ours, fixed = columns(probes.measure(OURS, workers=1, progress=False))
    parts = _structure(build(), (IDS, MASK))
    rows = []
    for seed in range(REAL):
        torch.manual_seed(seed)
        numbers = dict(build().eval().named_parameters())
        rows.append(forward_backward(parts, numbers, net.targets, net.masks)[0])
    p_values = {
        key: stats.ks_2samp([row[key] for row in rows], ours[key]).pvalue
        for key in rows[0]
        if key in ours and key not in fixed
    }
    assert {"loss", "cosine", "entropy", "grad_query", "grad_mean_square"} <= {
        quantity for quantity, _ in p_values
    }
    print(name, len(p_values), min(p_values.values()))
    assert min(p_values.values()) > LEVEL / len(p_values)


@pytest.mark.parametrize("from_first_token", [True, False])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_padding_on_the_left_matches_module(name, implementation, from_first_token):
    def build():
        model = MODELS[name](implementation)
        module = Logits(model, from_first_token)
        # in double precision, the eager mask of Llama makes NaN
        module.double = lambda: module
        return module

    outputs = literal.outputs(build, (LEFT_IDS, LEFT_MASK))
    # tied logits of words that do not occur are drawn
    real, ours = [x[..., np.unique(LEFT_IDS)] for x in outputs[0]]
    np.testing.assert_allclose(ours, real, atol=1e-5 * np.abs(real).max())


def test_padding_on_either_side_gives_the_same_quantities():
    def build():
        return Logits(llama(), from_first_token=True)

    torch.manual_seed(4)
    numbers = dict(build().eval().named_parameters())
    found = []
    for inputs in ((IDS, MASK), (LEFT_IDS, LEFT_MASK)):
        net = read_network(build, inputs)
        parts = _structure(build(), inputs)
        found.append(forward_backward(parts, numbers, net.targets, net.masks)[0])
    on_right, on_left = found
    assert on_right.keys() == on_left.keys()
    for key, number in on_right.items():
        np.testing.assert_allclose(on_left[key], number, rtol=1e-4, err_msg=str(key))


def test_program_of_batch_is_that_of_each_sequence():
    net = ns.torch.program(lambda: llama().model, IDS)
    assert net.shape == (2, 5)


def test_check_of_padded_batch():
    check = ns.torch.check_init(llama, (IDS, MASK), draws=200)
    assert check.ok
    assert check.checked_pass == "forward and backward pass"


def test_padding_says_which_tokens_are_audited():
    audit = ns.audit(
        ns.torch.network(llama, (IDS, MASK)), draws=16, workers=1, progress=False
    )
    assert [length.tokens for length in audit.lengths] == [8]
