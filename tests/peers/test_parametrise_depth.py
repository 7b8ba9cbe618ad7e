"""Exponents of the depth: depth-µP and CompleteP where they apply, and what real
training with the written files does at depths from 2 to 16.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import netsor as ns
from tests.internals import without_zeros

from . import mup_modules

WORDS = 32
WIDTHS, DEPTHS = [32, 128], [2, 4, 8]


class Shallow(nn.Module):
    """A branch that is a linear function of its parameters: a matrix on φ(x)."""

    def __init__(self, n):
        super().__init__()
        self.matrix = nn.Linear(n, n, bias=False)

    def forward(self, x):
        return self.matrix(x.tanh())


class Deep(nn.Module):
    """Two matrices behind a norm, with the last one as `zero` and `factor` say."""

    def __init__(self, n, zero=False, factor=1.0):
        super().__init__()
        self.norm = nn.RMSNorm(n)
        self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n, bias=False)
        with torch.no_grad():
            self.down.weight.mul_(0.0 if zero else factor)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding, a stream with branches, a norm and a head."""

    def __init__(self, n, branches, factor=1.0):
        super().__init__()
        self.embed = nn.Embedding(WORDS, n)
        self.layers = nn.ModuleList(branches)
        self.norm, self.head = nn.RMSNorm(n), nn.Linear(n, WORDS, bias=False)
        self.factor = factor

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + self.factor * layer(x)
        return self.head(self.norm(x))


class PostNorm(Net):
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = F.rms_norm(x + layer(x), x.shape[-1:])
        return self.head(x)


def shallow(n, depth):
    return Net(n, [Shallow(n) for _ in range(depth)])


def deep(n, depth):
    return Net(n, [Deep(n) for _ in range(depth)])


def from_zero(n, depth):
    return Net(n, [Deep(n, zero=True) for _ in range(depth)])


def with_smaller_numbers(n, depth):
    """The last matrix over √(2L), as in GPT-2."""
    return Net(n, [Deep(n, factor=(2 * depth) ** -0.5) for _ in range(depth)])


def with_factor(n, depth):
    """CompleteP's branches, in `forward`."""
    return Net(n, [Deep(n) for _ in range(depth)], factor=2 / depth)


def derive(build, **options):
    defaults = {"widths": WIDTHS, "depths": DEPTHS, "draws": 3}
    return ns.torch.parametrise(build, **{**defaults, **options})


def in_depth(rule, last):
    """The powers of the depth of a parameter of the layers."""
    (found,) = {x for p, x in rule.parameters.items() if p.endswith(last)}
    return found.lr.depth, found.eps.depth, found.weight_decay.depth


def factors(rule):
    """The powers of the depth of branches, by path."""
    return {x.path: x.power.depth for x in rule.scales if x.what == "branch"}


# By network and optimiser: the powers of branches, of learning rates and of eps in
# layers. Adam: table 1 of CompleteP, L^(a−1) and L^−a for branches L^−a. SGD's gradient
# falls like the branch, so its rates have L^(2a−1).
CASES = {
    "deep branches": (deep, "adamw", None, -1.0, {"up.weight": (0.0, -1.0)}),
    "deep branches of depth-µP": (
        deep,
        "adamw",
        -0.5,
        -0.5,
        {"up.weight": (-0.5, -0.5), "up.bias": (-0.5, -0.5)},
    ),
    "branches of one matrix": (
        shallow,
        "adamw",
        None,
        -0.5,
        {"matrix.weight": (-0.5, -0.5)},
    ),
    "SGD": (deep, "sgd", None, -1.0, {"up.weight": (1.0, 0.0)}),
    "Lion": (deep, "lion", None, -1.0, {"up.weight": (0.0, 0.0)}),
    "Muon": (deep, "muon", None, -1.0, {"up.weight": (0.0, 0.0)}),
    "branches from 0": (from_zero, "adamw", None, -1.0, {"down.weight": (0.0, -1.0)}),
    # the numbers have half of the power already, and the learning rate the other half
    "smaller numbers": (
        with_smaller_numbers,
        "adamw",
        None,
        -0.5,
        {"up.weight": (0.0, -1.0), "down.weight": (-0.5, -0.5)},
    ),
    "factors in forward": (
        with_factor,
        "adamw",
        None,
        None,
        {"up.weight": (0.0, -1.0)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exponents_of_the_depth(name):
    build, optimiser, branch_power, power, rates = CASES[name]
    rule = derive(build, optimiser=optimiser, branch_power=branch_power)
    expected = {} if power is None else {f"layers.{k}": power for k in range(2)}
    assert factors(rule) == expected
    for parameter, (lr, eps) in rates.items():
        assert in_depth(rule, parameter) == (lr, eps, -lr)
    for outside in ("embed.weight", "head.weight", "norm.weight"):
        assert rule.parameters[outside].lr.depth == 0.0
    for evidence in rule.depth.parameters.values():
        assert evidence.after is None or abs(evidence.after.value) < 0.25


def test_more_streams_and_parallel_branches():
    """Attention and perceptron of GPT-J read the same norm and are added at once."""

    class Parallel(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.norm = nn.RMSNorm(n)
            self.a, self.b = Shallow(n), Shallow(n)

        def forward(self, x):
            y = self.norm(x)
            return self.a(y) + self.b(y) + x

    class Stream(Net):
        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    rule = derive(lambda n, depth: Stream(n, [Parallel(n) for _ in range(depth)]))
    assert factors(rule) == {
        f"layers.{k}.{name}": -1.0 for k in range(2) for name in "ab"
    }


def test_transformer():
    """Two branches a layer; what depth-µP and CompleteP say of each parameter."""
    rule = derive(mup_modules.llama)
    assert {x.path for x in rule.scales} == {
        f"layers.{k}.{name}" for k in range(2) for name in ("mixer", "mlp")
    }
    for name in ("q_proj.weight", "o_proj.weight", "gate_proj.weight"):
        assert in_depth(rule, name) == (0.0, -1.0, 0.0)
    assert "CompleteP" in rule.verdict


@pytest.mark.parametrize("build", [deep, with_smaller_numbers])
def test_real_training_follows_the_depth(build):
    """Three AdamW steps with the written file: the stream, and what follows it, change
    by as much at depths from 2 to 16; with one learning rate, or without the factors of
    branches, they do not.
    """
    rule = derive(build)
    assert rule.depths_of_check == (4, 8, 16, 32)
    changes = {x.path: x for x in rule.check(depths=[2, 4, 8, 16], draws=8)}
    assert not [change for change in changes.values() if change.is_wrong]
    for path in ("norm", "logits"):
        assert abs(changes[path].exponent.value) < 0.1
    broken = rule.source().replace("SCALES = (", "SCALES = () and (")
    plain = derive(build)
    object.__setattr__(plain, "source", lambda: broken)
    found = {x.path: x for x in plain.check(depths=[2, 4, 8, 16], draws=8)}
    assert found["logits"].verdict == "grows"


def test_file_follows_the_depth():
    space: dict = {}
    exec(derive(deep).source(), space)
    model = deep(64, 8)
    space["scale_outputs"](model, base_width=32)
    assert space["depth_of"](model) == 8
    ids = torch.tensor([[1, 2]])
    scaled = model.layers[0](model.embed(ids))
    plain = Deep.forward(model.layers[0], model.embed(ids))
    torch.testing.assert_close(scaled, plain / 4)
    groups = space["param_groups"](model, lr=1.0, base_width=32, base_depth=4)
    eps = {id(p): g["eps"] for g in groups for p in g["params"]}
    assert eps[id(model.layers[7].up.weight)] == pytest.approx(1e-8 / 2 / 2)


def test_class_token_behind_branches():
    """The patches of a ViT reach the class token through random branches only, as
    L^-1/2 at first: their learning rate is that of an input at every depth. Hooks on
    rows of the queries do not change the number of layers.
    """
    rule = derive(
        mup_modules.ViT, widths=[32, 64, 128], draws=4, batch=mup_modules.images()
    )
    assert "CompleteP" in rule.verdict
    assert rule.depth.parameters["patches.weight"].after.value < -0.2
    assert {x.lr.depth for x in rule.parameters.values()} == {0.0}
    space: dict = {}
    exec(rule.source(), space)
    model = mup_modules.ViT(64, depth=8)
    space["scale_outputs"](model, base_width=32)
    assert space["depth_of"](model) == 8
    groups = space["param_groups"](model, lr=1.0, base_width=32)
    assert sum(len(group["params"]) for group in groups) == len([*model.parameters()])


class PooledViT(mup_modules.ViT):
    """Its head reads the mean of all tokens."""

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def change_of_stream(network, depth, std, draw):
    """The size of the change of the stream in the middle layer, after three steps."""
    torch.manual_seed(draw)
    net = network(32, depth=depth)
    with torch.no_grad():
        net.token.mul_(std / 0.02)
        net.positions.mul_(std / 0.02)
    for block in net.blocks:
        block.self_attn.register_forward_hook(lambda _, __, y: (y[0] * 2 / depth, y[1]))
        block.linear2.register_forward_hook(lambda _, __, y: y * 2 / depth)
    streams = []
    middle = net.blocks[depth // 2 - 1]
    middle.register_forward_hook(lambda _, __, y: streams.append(y.detach()))
    pixels, classes = mup_modules.images()
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(net(pixels), classes).backward()
        optimiser.step()
    net(pixels)
    return float((streams[-1] - streams[0]).square().mean().sqrt())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "std", "low", "high"),
    [(mup_modules.ViT, 0.02, -0.35, -0.12), (PooledViT, 0.5, -0.1, 0.1)],
)
def test_drift_of_a_class_token(network, std, low, high):
    """A class token of 0.02 consists of random branches, which add up to L^-1/2, and
    patches reach it through these. Larger tokens and a mean of all do not drift.
    """
    sizes = [
        torch.tensor([change_of_stream(network, depth, std, k) for k in range(8)])
        for depth in (8, 32)
    ]
    drift = float((sizes[1].log2().mean() - sizes[0].log2().mean()) / 2)
    assert low < drift < high


def test_departures_of_an_own_rule():
    """One learning rate for all layers and branches of order 1, at every depth."""
    rule = derive(deep, optimiser=lambda module: torch.optim.AdamW(module.parameters()))
    found = {tuple(x) for x in rule.departures if x.axis == "depth"}
    assert found == {(f"layers.{k}", "branch", -1.0, "depth") for k in range(2)}
    assert "multiply by 1/L" in rule.verdict


def test_no_stream():
    def build(n, depth):
        return PostNorm(n, [Deep(n) for _ in range(depth)])

    with pytest.raises(ns.torch.UnsupportedError, match="no residual stream"):
        derive(build)


REFUSED = {
    "one depth": (deep, {"depths": [2, 2]}, "two or more, such as 2,4"),
    "a power alone": (
        deep,
        {"depths": None, "branch_power": -0.5},
        "left out without depths",
    ),
    "a power that explodes": (deep, {"branch_power": -0.25}, "branch_power=-0.25"),
    "no depth in the function": (lambda n: deep(n, 2), {}, "width, depth"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    build, options, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        derive(build, **options)


def test_zeros_have_other_numbers_in_each_draw():
    """And they are zeros again afterwards, also after an error; empty ones stay."""
    module = torch.nn.Module()
    module.zeros = torch.nn.Parameter(torch.zeros(4, 16))
    module.empty = torch.nn.Parameter(torch.zeros(0, 16))
    draws = []
    for seed in (0, 1):
        with torch.no_grad(), without_zeros(module, seed):
            draws.append(module.zeros.clone())
    torch.manual_seed(0)  # a module's own initial numbers
    assert not torch.equal(draws[0], torch.randn(4, 16) / 4)
    assert not torch.equal(*draws)
    with pytest.raises(RuntimeError), without_zeros(module, 0):
        raise RuntimeError
    assert not module.zeros.any()
