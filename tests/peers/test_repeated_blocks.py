"""Equal blocks of modules and of JAX models, also inside of `scan`, are planned once."""

import jax.numpy as jnp
import pytest
import torch
from flax import nnx

import netsor as ns
from tests.internals import make_plan

BLOCKS = 34


class TorchBlocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList()
        for _ in range(BLOCKS):
            linear = torch.nn.Linear(16, 16)
            self.blocks.append(torch.nn.Sequential(torch.nn.LayerNorm(16), linear))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.nn.functional.gelu(block(x))
        return x


class JaxBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.linear = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, x):
        return x + nnx.gelu(self.linear(self.norm(x)))


class Scanned(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=BLOCKS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs):
            return JaxBlock(rngs)

        self.blocks = stacked(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def through(x, block):
            return block(x)

        return through(x, self.blocks)


def module():
    return ns.torch.program(TorchBlocks, torch.randn(3, 16))


def scanned():
    return ns.jax.program(lambda key: Scanned(nnx.Rngs(key)), jnp.ones((3, 16)))


@pytest.mark.parametrize("read", [module, scanned])
def test_plan_of_equal_blocks_is_that_of_all_blocks(read):
    net = read()
    repeated = make_plan(net.outputs, {})
    whole = make_plan(net.outputs, {}, without=("repeated",))
    keys = [
        [(step.kind, step.out.shape, step.params.get("key")) for step in plan.steps]
        for plan in (repeated, whole)
    ]
    assert keys[0] == keys[1]
    assert max(loop.times for loop in repeated.loops) > BLOCKS / 2
