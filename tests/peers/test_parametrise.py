"""Derived parametrisations: those of the literature where it has them; one planted
error is named rightly, and correct modules of other styles raise no flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import netsor as ns

from . import mup_modules
from .mup_modules import causal

WIDTHS = [32, 64, 128]
INPUT, HIDDEN, OUTPUT = (0.0, 0.0), (-0.5, -1.0), (-1.0, -1.0)
BATCH = {"ViT": mup_modules.images()}
# Exponents of standard deviations and learning rates with AdamW, by the last parts of
# names (table 3 of Tensor Programs V: biases and gains are inputs). All that start from
# a fixed std of 0.02 need the whole power; PyTorch's default has it already.
OF_0_02 = {"lm_head.weight": OUTPUT, "embed_tokens.weight": INPUT, "norm.weight": INPUT}
OF_PYTORCH = {"head.weight": (-0.5, -1.0), "embed_tokens.weight": INPUT}
LITERATURE = {
    "NanoGPT": {
        "wte.weight": INPUT,  # tied, with a factor of the logits
        "wpe.weight": INPUT,
        "c_attn.weight": HIDDEN,
        "c_fc.weight": HIDDEN,
        "c_proj.weight": HIDDEN,
        "ln_1.weight": INPUT,
        "c_attn.bias": INPUT,
    },
    "llama": {
        **OF_0_02,
        "q_proj.weight": HIDDEN,
        "o_proj.weight": HIDDEN,
        "up_proj.weight": HIDDEN,
        "down_proj.weight": HIDDEN,
        "input_norm.weight": INPUT,
    },
    "experts": {
        **OF_0_02,
        "gate.weight": OUTPUT,  # the router
        "gate_proj.weight": HIDDEN,
        "down_proj.weight": HIDDEN,
        "q_norm.weight": INPUT,
    },
    "mamba2": {
        **OF_PYTORCH,
        "in_proj.weight": (0.0, -1.0),
        "out_proj.weight": (0.0, -1.0),
        "conv1d.weight": INPUT,
        "dt_bias": INPUT,
        "mixer.D": INPUT,
    },
    "latent_attention": {
        **OF_0_02,
        "kv_a_proj.weight": HIDDEN,
        "kv_b_proj.weight": HIDDEN,
        "kv_a_norm.weight": INPUT,
    },
    "ViT": {
        "head.weight": (-0.5, -1.0),
        "patches.weight": INPUT,
        "token": INPUT,
        "in_proj_weight": (0.0, -1.0),
        "linear1.weight": (0.0, -1.0),
        "linear2.bias": INPUT,
    },
}
SCALES = {  # what needs a factor, and its power
    "NanoGPT": {("logits", -1.0), ("scores", -0.5)},
    "ViT": {("scores", -0.5)},
}


def derive(build: Callable, **options):
    return ns.torch.parametrise(build, **{"widths": WIDTHS, "draws": 3, **options})


def shallow(name: str) -> Callable:
    """The network with one block."""
    return lambda n: getattr(mup_modules, name)(n, depth=1)


@pytest.mark.parametrize("name", LITERATURE)
def test_exponents_are_those_of_the_literature(name):
    rule = ns.torch.parametrise(shallow(name), batch=BATCH.get(name))
    for part, (std, lr) in LITERATURE[name].items():
        found = [x for p, x in rule.rule.parameters.items() if p.endswith(part)]
        assert found, part
        for each in found:
            assert (each.std.width, each.lr.width) == (std, lr), part
            assert each.weight_decay.width == -lr
    assert {(x.what, x.power.width) for x in rule.scales} == SCALES.get(name, set())
    assert rule.growing == ()
    for parameter, evidence in rule.evidence.items():
        assert evidence.update.low <= 0.1, parameter
        assert evidence.update.high >= -0.25, parameter


OPTIMISERS = {  # exponents of the learning rates of an input, a matrix and the head
    "adam": (0.0, -1.0, -1.0),
    "sign": (0.0, -1.0, -1.0),
    "lion": (0.0, -1.0, -1.0),
    "sgd": (1.0, 0.0, -1.0),
    "muon": (0.0, 0.0, -1.0),
    "muonh": (0.0, 0.0, -1.0),
    "adamh": (0.0, -0.5, -1.0),
}


# Of weight decay: the inverse powers, so that its product with the learning rate stays.
# That of a matrix on a sphere does nothing. Adam divides a decay that is added to its
# gradient by the size of that: entries of gradients are like 1/n, 1/n and 1, those of
# parameters like 1, n^-1/2 and 1/n.
DECAYS = {
    "muonh": (0.0, 0.0, 1.0),
    "adamh": (0.0, 0.0, 1.0),
    "adam": (-1.0, -0.5, 1.0),
}


def _decays(rule) -> tuple[float, ...]:
    names = [f"{part}.weight" for part in ("embed", "up", "head")]
    return tuple(rule.rule.of(name).weight_decay.width for name in names)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_rates_of_optimisers(name):
    """SGD: table 3 of Tensor Programs V. Muon: its update has spectral norm 1. On a
    sphere of radius ‖W‖ ∝ √n an update by lr·‖W‖ of Adam's direction has spectral norm
    lr·√n, and that of Muon's lr.
    """
    rule = derive(perceptron, optimiser=name, draws=4)
    lr = {p: x.lr.width for p, x in rule.rule.parameters.items()}
    found = tuple(lr[f"{part}.weight"] for part in ("embed", "up", "head"))
    assert found == OPTIMISERS[name]
    assert lr["up.bias"] == lr["norm.weight"] == found[0]
    assert _decays(rule) == DECAYS.get(name, tuple(-x for x in found))


def test_batches_of_many_tokens_have_the_same_rule():
    """With more tokens than the width, most of what an update changes are sums of
    random signs, which grow like the square root only.
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 32, (16, 33), generator=generator)
    rule = derive(perceptron, batch=(ids[:, :-1], ids[:, 1:]), draws=4)
    for name in ("up.weight", "down.weight", "head.weight"):
        assert rule.rule.of(name).lr.width == -1.0
        assert abs(rule.evidence[name].update.value) < 0.15


def test_parameters_without_a_gradient_do_not_move():
    """A softmax does not see a bias of keys: its gradient is 0 but for rounding, which
    Adam's first step would make as large as any other.
    """

    def build(n):
        net = Net(n, ATTENDS)
        net.k.bias = nn.Parameter(torch.zeros(n))
        return net

    rule = derive(build)
    assert rule.evidence["k.bias"].update is None
    assert rule.rule.of("k.bias").lr.width == 0.0


def test_fused_matrices_in_parts():
    rule = derive(
        lambda n: mup_modules.NanoGPT(n, depth=1),
        optimiser="muon",
        split_sizes={"*.c_attn.weight": 3},
        draws=3,
    )
    sizes = rule.subject.matrices(32, None)
    assert sizes["transformer.h.0.attn.c_attn.weight"] == [32, 32, 32]
    assert sizes["transformer.h.0.mlp.c_fc.weight"] is None
    assert "lm_head.weight" not in sizes
    assert rule.rule.of("transformer.h.0.attn.c_attn.weight").lr.width == 0.0


class Gated(nn.Module):
    """Residual branches, each with one number that multiplies it."""

    def __init__(self, n: int, depth: int):
        super().__init__()
        self.embed, self.norm = nn.Embedding(32, n), nn.RMSNorm(n)
        self.blocks = nn.ModuleList(nn.Module() for _ in range(depth))
        for block in self.blocks:
            block.scale = nn.Parameter(torch.ones(()))
            block.norm = nn.RMSNorm(n)
            block.up = nn.Linear(n, n, bias=False)
        self.head = nn.Linear(n, 32, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block.scale * F.gelu(block.up(block.norm(x)))
        return self.head(self.norm(x))


def test_rule_of_scalars_in_blocks_holds_for_more_blocks():
    """Gradients of single numbers vary most: all blocks have one rule in any case, and
    the file takes a model with more of them.
    """
    rule = derive(lambda n: Gated(n, 3))
    in_blocks = {name for name in rule.parameters if name.startswith("blocks")}
    assert in_blocks == {f"blocks.*.{x}" for x in ("scale", "norm.weight", "up.weight")}
    space: dict = {}
    exec(rule.source(), space)
    groups = space["param_groups"](Gated(64, 8), lr=0.01, base_width=32)
    assert sum(len(group["params"]) for group in groups) == 3 * 8 + 3


def test_eps_of_a_scalar_is_undetermined():
    """One gradient in each draw: its exponent has an interval of more than 1/2."""
    rule = derive(lambda n: Gated(n, 1), draws=6)
    assert rule.with_unknown_eps == ["blocks.*.scale"]
    assert rule.parameters["blocks.*.scale"].eps.width == 0.0
    assert "eps is undetermined for 1 parameter." in rule.verdict
    (row,) = [x for x in str(rule).splitlines() if x.startswith("blocks.*.scale")]
    assert row.split()[1:4] == ["1", "1", "?"]
    docstring = " ".join(rule.source().split('"""')[1].split())
    assert "UNDETERMINED, and constant in this file: eps of blocks.*.scale" in docstring
    assert rule.to_dict()["parameters"]["blocks.0.scale"]["has_unknown_eps"]


def test_width_with_other_operations_is_named():
    """One head of keys needs no copy; two do."""
    with pytest.raises(ns.torch.UnsupportedError, match="at width 64 than at width 32"):
        derive(shallow("experts"), widths=[32, 64])


def test_expert_without_tokens_is_refused():
    """Two tokens choose two of four experts each: in some draws nobody chooses one."""
    ids = torch.tensor([[1, 2]])
    with pytest.raises(ns.torch.UnsupportedError, match="all parts of the module act"):
        derive(shallow("experts"), widths=[64, 128], batch=(ids, ids), draws=4)


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="draws=2 must be an integer, 3 or more: two"):
        derive(perceptron, draws=2)


@dataclass(frozen=True)
class Style:
    """A correct module with Adam, by default: powers of n, and how it is written."""

    std: dict[str, float] = field(default_factory=dict)
    lr: dict[str, float] = field(default_factory=dict)
    embedding_factor: float = 0.0  # of what the embedding returns
    head_factor: float = 0.0
    score: float = -1.0  # of scores, in the dimension of a head
    has_attention: bool = False
    more_heads: bool = False
    is_tied: bool = False
    is_scaled_by_forward: bool = False  # W/√n in forward, W of order 1
    zero: tuple[str, ...] = ()
    is_sgd: bool = False


STD = {"embed.weight": 0.0, "head.weight": -1.0}
STD |= dict.fromkeys(["up.weight", "down.weight"], -0.5)
LR = {"embed.weight": 0.0, "head.weight": -1.0, "up.bias": 0.0, "norm.weight": 0.0}
LR |= {"last.weight": 0.0, "up.weight": -1.0, "down.weight": -1.0}
OF_ATTENTION = [f"{x}.weight" for x in "qkvo"]
HEAD_DIM = 8


class Net(nn.Module):
    """A residual perceptron, after one layer of attention if its style has it."""

    def __init__(self, n: int, style: Style):
        super().__init__()
        self.n, self.style = n, style
        self.embed = nn.Embedding(32, n)
        self.norm, self.last = nn.RMSNorm(n), nn.RMSNorm(n)
        if style.has_attention:
            for name in "qkvo":
                setattr(self, name, nn.Linear(n, n, bias=False))
        self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n, bias=False)
        nn.init.zeros_(self.up.bias)
        self.head = nn.Linear(n, 32, bias=False)
        if style.is_tied:
            self.head.weight = self.embed.weight
        powers = {**STD, **dict.fromkeys(OF_ATTENTION, -0.5), **style.std}
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=(n / 32) ** powers[name] * 0.2)
            if name in style.zero:
                nn.init.zeros_(p)
        with torch.no_grad():
            self.embed.weight.mul_(5)

    def linear(self, module: nn.Module, x):
        factor = self.n**-0.5 if self.style.is_scaled_by_forward else 1.0
        return module(x * factor)

    def attend(self, x):
        batch, tokens, n = x.shape
        heads = n // HEAD_DIM if self.style.more_heads else 2
        q, k, v = (
            f(x).view(batch, tokens, heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        power = -0.5 if self.style.more_heads else self.style.score
        weights = causal(q @ k.transpose(-1, -2) * (n // heads) ** power).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(batch, tokens, n))

    def forward(self, ids):
        x = self.embed(ids) * self.n**self.style.embedding_factor
        if self.style.has_attention:
            x = x + self.attend(x)
        x = x + self.linear(self.down, F.gelu(self.linear(self.up, self.norm(x))))
        return self.head(self.last(x)) * self.n**self.style.head_factor


def perceptron(n: int) -> nn.Module:
    return Net(n, Style())


def judged(style: Style):
    """What is not maximal in a style, as (path, what, power)."""
    powers = {**LR, **dict.fromkeys(OF_ATTENTION, -1.0), **style.lr}

    def optimiser(module):
        n = module.n / 32
        groups = [
            {"params": [p], "lr": 0.01 * n ** powers[name]}
            for name, p in module.named_parameters()
        ]
        of_torch = torch.optim.SGD if style.is_sgd else torch.optim.AdamW
        return of_torch(groups)

    rule = derive(lambda n: Net(n, style), optimiser=optimiser)
    assert rule.growing == ()
    return {(x.path, x.what, x.power) for x in rule.departures}


ATTENDS = Style(has_attention=True)
RATE, STANDARD = "learning rate", "standard deviation"
PLANTED = {
    "standard deviation of an embedding": (
        Style(std={"embed.weight": -0.5}),
        ("embed.weight", STANDARD, 0.5),
    ),
    "standard deviation of a matrix, too large": (
        Style(std={"up.weight": 0.0}),
        ("up.weight", STANDARD, -0.5),
    ),
    "standard deviation of a matrix, too small": (
        replace(ATTENDS, std={"o.weight": -1.0}),
        ("o.weight", STANDARD, 0.5),
    ),
    "standard deviation of the head": (
        Style(std={"head.weight": -0.5}),
        ("head.weight", STANDARD, -0.5),
    ),
    "learning rate of an embedding": (
        Style(lr={"embed.weight": 1.0}),
        ("embed.weight", RATE, -1.0),
    ),
    "learning rate of a gain": (
        Style(lr={"norm.weight": -1.0}),
        ("norm.weight", RATE, 1.0),
    ),
    "learning rate of a bias": (Style(lr={"up.bias": 1.0}), ("up.bias", RATE, -1.0)),
    "learning rate of a matrix, too large": (
        Style(lr={"up.weight": 0.0}),
        ("up.weight", RATE, -1.0),
    ),
    "learning rate of a matrix, too small": (
        Style(lr={"down.weight": -2.0}),
        ("down.weight", RATE, 1.0),
    ),
    "learning rate of the head": (
        Style(lr={"head.weight": 0.0}),
        ("head.weight", RATE, -1.0),
    ),
    "scores over √d": (replace(ATTENDS, score=-0.5), ("q", "scores", -0.5)),
    "tied logits without a factor": (Style(is_tied=True), ("head", "logits", -1.0)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_error_is_named(name):
    style, expected = PLANTED[name]
    assert judged(style) == {expected}


HALF = dict.fromkeys(["up.weight", "down.weight"], 0.0)
CORRECT = {
    "one norm": Style(),
    "attention with wider heads": ATTENDS,
    "attention with more heads": replace(ATTENDS, more_heads=True),
    "factor of the head instead of its numbers": Style(
        std={"head.weight": 0.0}, lr={"head.weight": 0.0}, head_factor=-1.0
    ),
    "half of the factor": Style(
        std={"head.weight": -0.5}, lr={"head.weight": -0.5}, head_factor=-0.5
    ),
    "head from 0": Style(zero=("head.weight",)),
    "queries and head from 0": replace(ATTENDS, zero=("q.weight", "head.weight")),
    "tied, with a factor": Style(is_tied=True, head_factor=-1.0),
    "factors of matrices in forward": Style(
        std=HALF,
        lr=dict.fromkeys(HALF, -0.5),
        is_scaled_by_forward=True,
    ),
    "embedding with a factor": Style(
        std={"embed.weight": -0.5}, lr={"embed.weight": -0.5}, embedding_factor=0.5
    ),
    "SGD": Style(
        lr={
            **dict.fromkeys(["embed.weight", "norm.weight", "last.weight"], 1.0),
            "up.bias": 1.0,
            "up.weight": 0.0,
            "down.weight": 0.0,
        },
        is_sgd=True,
    ),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_module_raises_no_flag(name):
    assert judged(CORRECT[name]) == set()
