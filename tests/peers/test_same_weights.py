"""Small networks of transformers and the literal interpreter with the same weights:
gradients agree to 1e-10.

The loss is their cross-entropy. Its gradient at the last vectors is the readout of our
program, and goes back through all blocks: to the stream after each block, to every
entry of every matrix, to the embeddings.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import netsor as ns
from netsor import models
from tests.internals import Gaussian, Reverse, constant, topological_order

from ..engine.differences import drawn
from ..models.small import CONFIGS, IDS
from .real import CLASSES, configuration

# A family is three functions: the blocks of a network; the matrices (out, in) of a
# block as `read` of parameters gives them, in the order in which ours act; the tables
# of a network


def _gpt2(block, read):
    others = (block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
    packed = torch.split(read(block.attn.c_attn.weight).T, block.attn.split_size)
    return [*packed, *(read(module.weight).T for module in others)]


def _llama(block, read):
    looks = [getattr(block.self_attn, f"{name}_proj") for name in "qkvo"]
    feeds = [getattr(block.mlp, f"{name}_proj") for name in ("gate", "up", "down")]
    return [read(module.weight) for module in (*looks, *feeds)]


def _bert(block, read):
    looks = [getattr(block.attention.self, name) for name in ("query", "key", "value")]
    others = (
        block.attention.output.dense,
        block.intermediate.dense,
        block.output.dense,
    )
    return [read(module.weight) for module in (*looks, *others)]


def _tables_of_bert(network):
    tables = network.bert.embeddings
    return [
        tables.word_embeddings,
        tables.position_embeddings,
        tables.token_type_embeddings,
    ]


LLAMA = (
    lambda network: network.model.layers,
    _llama,
    lambda network: [network.model.embed_tokens],
)
FAMILIES = {
    "gpt2": (
        lambda network: network.transformer.h,
        _gpt2,
        lambda net: [net.transformer.wte, net.transformer.wpe],
    ),
    "llama": LLAMA,
    "llama3": LLAMA,
    "bert": (lambda network: network.bert.encoder.layer, _bert, _tables_of_bert),
}


class Theirs:
    """One initialisation: its arrays, and the gradients of its loss."""

    def __init__(self, family):
        config = configuration({**CONFIGS[family], "tie_word_embeddings": False})
        config._attn_implementation = "eager"
        torch.manual_seed(5)
        network = CLASSES[CONFIGS[family]["model_type"]](config).eval().double()
        blocks, matrices, tables = FAMILIES[family]
        streams = []
        for block in blocks(network):
            block.register_forward_hook(
                lambda _, given, made: streams.append(_kept(made))
            )
        made = network(input_ids=torch.tensor([IDS]), output_hidden_states=True)
        last = _kept(made.hidden_states[-1])
        torch.nn.functional.cross_entropy(
            made.logits[0, :-1], torch.tensor(IDS[1:])
        ).backward()
        self.matrices, self.slopes = (
            [
                matrix.detach().numpy()
                for block in blocks(network)
                for matrix in matrices(block, read)
            ]
            for read in (lambda parameter: parameter, lambda parameter: parameter.grad)
        )
        found = [table.weight for table in tables(network)]
        self.tables, self.table_slopes = (
            [t.detach().numpy() for t in found],
            [t.grad.numpy() for t in found],
        )
        self.stream_slopes = [stream.grad[0].numpy() for stream in streams]
        self.last, self.last_slope = last.detach()[0].numpy(), last.grad[0].numpy()


def _kept(made):
    stream = made if isinstance(made, torch.Tensor) else made[0]
    stream.retain_grad()
    return stream


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    """Norms, softmax and rotary angles of transformers ask for float32 by name,
    whatever the network has.
    """
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def assert_near(ours, theirs):
    np.testing.assert_allclose(
        ours, theirs.reshape(ours.shape), rtol=1e-10, atol=1e-10 * np.abs(theirs).max()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_with_the_same_weights_match_pytorch(family):
    model, theirs = (
        models.read({**CONFIGS[family], "tie_word_embeddings": False}),
        Theirs(family),
    )
    widths, traced = model.widths(), model.trace(ids=IDS)
    y, r = traced.output, ns.gaussian(ns.Width("n"), len(IDS))
    p = ns.dot(r[:, None], y[:, None]).sum()
    streams, values = [layer.stream for layer in traced.layers], topological_order([y])
    tables = [
        value
        for value in values
        if isinstance(value.op, Gaussian) and value.op.factor.size
    ]
    back = Reverse([(p, constant(np.ones(())))], [*streams, *tables], lambda op: True)
    uses = sorted(back.uses, key=lambda use: values.index(use.value))

    given = {r: model.width**0.5 * theirs.last_slope}
    for use, matrix in zip(uses, theirs.matrices, strict=True):
        weight = use.op.weight
        rows, unit = (
            int(weight.out_width.bind(widths)),
            weight.std / weight.fan.bind(widths) ** 0.5,
        )
        # one head below the other
        for member, part in enumerate(matrix.reshape(weight.count, rows, -1)):
            given[weight.source, member] = part / unit
    # ids, positions, one type
    rows = [list(traced.table.ids), range(len(IDS)), [0]][: len(tables)]
    for value, table, at in zip(tables, theirs.tables, rows, strict=True):
        given[value] = table[at].reshape(*value.shape, -1)

    slopes, table_slopes = map(back.cotangent, streams), map(back.cotangent, tables)
    norms = [ns.grad_norm(p, use.op.weight) for use in uses]
    outputs = [
        y,
        *slopes,
        *table_slopes,
        *norms,
        *(use.cotangent for use in uses),
        *(use.op.x for use in uses),
    ]
    literal = drawn(outputs, widths, given)
    found = iter(literal.drawn[value][0] for value in outputs)

    assert_near(next(found), theirs.last)
    for right in theirs.stream_slopes:
        assert_near(model.width**-0.5 * next(found), right)
    for right, at in zip(theirs.table_slopes, rows, strict=True):
        assert_near(model.width**-0.5 * next(found), right[at])
    for right in theirs.slopes:
        assert_near(next(found), (right**2).sum())
    cotangents, inputs = ([next(found) for _ in uses] for _ in range(2))
    for use, d, x, right in zip(uses, cotangents, inputs, theirs.slopes, strict=True):
        d = d.reshape(use.op.weight.count, -1, d.shape[-1])
        x = x.reshape(-1, d.shape[1], x.shape[-1])
        # Σ ∂p/∂y x^T over tokens
        assert_near(d.shape[-1] ** -0.5 * np.swapaxes(d, 1, 2) @ x, right)
