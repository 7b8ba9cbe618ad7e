"""Gradients of real initialisations, by PyTorch's autograd, against the law of the
backward half of an audit.

Two samples, Kolmogorov–Smirnov, level 1e-4 for all quantities of a model together;
seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from netsor import models

from ..models.small import CONFIGS, DECODER_IDS, IDS
from .real import CLASSES, configuration

LEVEL = 1e-4
REAL, OURS = 1000, 4000
ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}


def squared(*parameters: torch.Tensor) -> float:
    return float(sum((p.grad**2).sum() for p in parameters))


def gpt2(block: torch.nn.Module) -> dict[str, float]:
    """Queries, keys and values are columns of one matrix."""
    q, k, v = torch.split(block.attn.c_attn.weight.grad, block.attn.split_size, dim=1)
    made = {
        f"grad_{name}": float((g**2).sum())
        for name, g in (("query", q), ("key", k), ("value", v))
    }
    others = (
        ("output", block.attn.c_proj),
        ("in", block.mlp.c_fc),
        ("out", block.mlp.c_proj),
    )
    return made | {f"grad_{name}": squared(module.weight) for name, module in others}


def llama(block: torch.nn.Module) -> dict[str, float]:
    made = {
        name: getattr(block.self_attn, f"{short}_proj")
        for name, short in ATTENTION.items()
    }
    made |= {
        "in": block.mlp.up_proj,
        "gate": block.mlp.gate_proj,
        "out": block.mlp.down_proj,
    }
    return {f"grad_{name}": squared(module.weight) for name, module in made.items()}


def t5(block: torch.nn.Module) -> dict[str, float]:
    """Attention to the encoder counts with the block's own."""
    looking = [
        getattr(x, "SelfAttention", None) or x.EncDecAttention for x in block.layer[:-1]
    ]
    made = {
        f"grad_{name}": squared(*(getattr(a, s).weight for a in looking))
        for name, s in ATTENTION.items()
    }
    dense = block.layer[-1].DenseReluDense
    return made | {
        "grad_in": squared(dense.wi.weight),
        "grad_out": squared(dense.wo.weight),
    }


KINDS = {"gpt2": gpt2, "llama": llama, "t5": t5}
BLOCKS = {
    "gpt2": lambda network: network.transformer.h,
    "llama": lambda network: network.model.layers,
    "t5": lambda network: [*network.encoder.block, *network.decoder.block],
}


def real(family: str, count: int) -> dict[tuple[str, int], np.ndarray]:
    config = configuration(CONFIGS[family])
    config._attn_implementation = "eager"
    torch.manual_seed(2)
    found: list[dict[tuple[str, int], float]] = []
    for _ in range(count):
        network = CLASSES[family](config).eval().double()
        streams: list[torch.Tensor] = []

        def keep(module, given, made, streams=streams):
            stream = made if isinstance(made, torch.Tensor) else made[0]
            stream.retain_grad()
            streams.append(stream)

        blocks = BLOCKS[family](network)
        for block in blocks:
            block.register_forward_hook(keep)
        decoder = (
            {"decoder_input_ids": torch.tensor([DECODER_IDS])} if family == "t5" else {}
        )
        logits = network(input_ids=torch.tensor([IDS]), **decoder).logits[0]
        targets = torch.tensor((DECODER_IDS if family == "t5" else IDS)[1:])
        torch.nn.functional.cross_entropy(logits[:-1], targets).backward()
        numbers: dict[tuple[str, int], float] = {}
        for i, (block, stream) in enumerate(zip(blocks, streams, strict=True)):
            numbers |= {
                (name, i): value for name, value in KINDS[family](block).items()
            }
            numbers["grad_mean_square", i] = float((stream.grad**2).mean())
        numbers["grad_embedding", -1] = squared(network.get_input_embeddings().weight)
        if not config.tie_word_embeddings:
            numbers["grad_head", -1] = squared(network.get_output_embeddings().weight)
        found.append(numbers)
    return {key: np.array([numbers[key] for numbers in found]) for key in found[0]}


@pytest.mark.parametrize("family", KINDS)
def test_audit_gradients_match_real_initialisations(family):
    model = models.read(CONFIGS[family])
    given = (
        {"ids": IDS, "decoder_ids": DECODER_IDS}
        if model.decoder_layers
        else {"ids": IDS}
    )
    probes = model.probes(**given, gradients=True)
    ours = probes.measure(OURS, progress=False)
    theirs = real(family, REAL)
    asked = {
        name
        for name in (*probes.names, *probes.final)
        if name.startswith("grad") and not name.endswith("ratio")
    }
    assert {name for name, _ in theirs} == asked - {"grad_input"}
    found = {}
    for (name, i), right in theirs.items():
        here = ours[name] if i < 0 else ours[name][:, i]
        found[name, i] = stats.ks_2samp(here, right, method="asymp").pvalue
    print(f"{family}: smallest p {min(found.values()):.2g} of {len(found)}")
    assert min(found.values()) > LEVEL / len(found), found
