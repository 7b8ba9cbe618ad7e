"""Coordinate checks of PyTorch modules: a correct µP module passes, and one broken rule
is flagged with its cause.

The advice is followed, and the flag is off. A module is a GPT of one block, without
biases, with logits of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import netsor as ns

BASE, WORDS, HEAD_DIM = 64, 64, 16
IDS = [3, 7, 1, 5]
WIDTHS = [64, 128, 256]
WIDE = [64, 256, 512]  # where the part of a change that grows outweighs the rest
POWERS = {"√n": 0.5, "1/√n": -0.5, "n": 1.0, "1/n": -1.0}


@dataclass(frozen=True)
class Scales:
    """The powers of n/BASE of a module and its optimiser: by default those of maximal
    updates with Adam.
    """

    score: float = -1.0  # the factor of a score; of d where the heads grow
    head_std: float = -1.0
    embedding: float = 0.0  # learning rates
    hidden: float = -1.0
    head: float = -1.0
    wider_heads: bool = True


class Block(nn.Module):
    def __init__(self, n: int, scales: Scales):
        super().__init__()
        self.heads = BASE // HEAD_DIM if scales.wider_heads else n // HEAD_DIM
        d = n // self.heads
        self.scale = HEAD_DIM**-0.5 * (d / HEAD_DIM) ** scales.score
        self.first, self.second = (
            nn.RMSNorm(n, elementwise_affine=False) for _ in range(2)
        )
        self.q, self.k, self.v, self.o = (nn.Linear(n, n, bias=False) for _ in range(4))
        self.up, self.down = (
            nn.Linear(n, 2 * n, bias=False),
            nn.Linear(2 * n, n, bias=False),
        )
        for matrix in (self.q, self.k, self.v, self.o, self.up, self.down):
            nn.init.normal_(matrix.weight, std=matrix.in_features**-0.5)

    def forward(self, x):
        batch, tokens, n = x.shape
        y = self.first(x)
        q, k, v = (
            f(y).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        later = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1)
        weights = (
            (q @ k.transpose(-1, -2) * self.scale)
            .masked_fill(later, float("-inf"))
            .softmax(-1)
        )
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, tokens, n))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, n: int, scales: Scales):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, n), nn.Linear(n, WORDS, bias=False)
        self.blocks = nn.ModuleList([Block(n, scales)])
        self.last = nn.RMSNorm(n, elementwise_affine=False)
        nn.init.normal_(self.embed.weight, std=1.0)
        nn.init.normal_(
            self.head.weight, std=0.5 * BASE**-0.5 * (n / BASE) ** scales.head_std
        )

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def groups(module: nn.Module, lr: float, scales: Scales) -> list[dict]:
    ratio = module.embed.weight.shape[1] / BASE
    parts = {
        module.embed: scales.embedding,
        module.blocks: scales.hidden,
        module.head: scales.head,
    }
    return [
        {"params": part.parameters(), "lr": lr * ratio**power}
        for part, power in parts.items()
    ]


def adamw(scales: Scales) -> Callable:
    return lambda module: torch.optim.AdamW(groups(module, 0.01, scales))


def sgd(scales: Scales) -> Callable:
    return lambda module: torch.optim.SGD(groups(module, 0.5, scales))


def checked(optimiser: Callable, scales: Scales, widths: list[int], draws: int = 6):
    def build(n: int) -> nn.Module:
        return GPT(n, scales)

    how = {
        "widths": widths,
        "ids": IDS,
        "draws": draws,
        "workers": 1,
        "progress": False,
    }
    return ns.coord_check(build, optimiser=optimiser(scales), **how)[0]


OF_SGD = Scales(score=0.0, embedding=1.0, hidden=0.0, wider_heads=False)
CORRECT = {
    "AdamW": (adamw, Scales()),
    "AdamW, more heads": (adamw, Scales(score=0.0, wider_heads=False)),
    "SGD": (sgd, OF_SGD),
}


@pytest.mark.parametrize("name", CORRECT)
def test_coordinate_check_of_a_correct_module_passes(name):
    """Logits are those of words in the batch: the mean over all words falls, as most
    have no part in the step.
    """
    optimiser, scales = CORRECT[name]
    check = checked(optimiser, scales, WIDTHS)
    assert check.advice == []
    assert check["vocabulary"].verdict == "not judged"
    assert check["vocabulary"].exponent.value < check["logits"].exponent.value


# the rule that is broken, what is flagged, and the name of the cause in the advice
BROKEN = {
    "scores over √d": (adamw, Scales(score=-0.5), "scores", "the scores"),
    "standard deviation of the head": (
        adamw,
        Scales(head_std=-0.5),
        "logits",
        "the standard deviation of head.weight",
    ),
    "learning rate of the embedding": (
        adamw,
        Scales(embedding=1.0),
        "embedding",
        "embed.weight",
    ),
    "learning rate of the blocks": (
        adamw,
        Scales(hidden=0.0),
        "stream",
        "blocks.0.q.weight",
    ),
    "learning rate of the head": (
        adamw,
        Scales(head=0.0),
        "update of head.weight",
        "head.weight",
    ),
    "SGD, standard deviation of the head": (
        sgd,
        replace(OF_SGD, head_std=-0.5),
        "update of blocks.0.o.weight",
        "the standard deviation of head.weight",
    ),
    "SGD, learning rate of the embedding": (
        sgd,
        replace(OF_SGD, embedding=0.0),
        "update of embed.weight",
        "embed.weight",
    ),
    "SGD, learning rate of the blocks": (
        sgd,
        replace(OF_SGD, hidden=1.0),
        "update of blocks.0.o.weight",
        "blocks.0.q.weight",
    ),
}
FIELDS = {  # of Scales, by the words of the advice
    "the scores": "score",
    "the standard deviation of head.weight": "head_std",
    "embed.weight": "embedding",
    "blocks.0.q.weight": "hidden",
    "head.weight": "head",
}


@pytest.mark.parametrize("name", BROKEN)
def test_coordinate_check_of_a_broken_rule_names_its_cause(name):
    optimiser, scales, flagged, cause = BROKEN[name]
    widths = WIDE if "std" in name or "stand" in name or "scores" in name else WIDTHS
    check = checked(optimiser, scales, widths)
    assert flagged in check.broken
    (line,) = check.advice
    assert "look at the standard deviations" not in line
    field = FIELDS[cause]
    assert cause in line
    power = re.search(r" by (\S+): ", line)[1]
    followed = replace(scales, **{field: getattr(scales, field) + POWERS[power]})
    assert followed == CORRECT["AdamW" if optimiser is adamw else "SGD"][1]
    again = checked(optimiser, followed, WIDTHS)
    assert again.advice == []
    assert again.broken == []


class HeadAlone(GPT):
    """No gradient reaches what comes before the head."""

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x).detach())


def test_coordinate_check_moves_nothing_before_a_detached_value():
    check = ns.coord_check(
        lambda n: HeadAlone(n, OF_SGD),
        optimiser=sgd(OF_SGD),
        widths=[64, 128],
        ids=IDS,
        draws=6,
        workers=1,
        progress=False,
    )[0]
    verdicts = {name: check[name].verdict for name in check}
    before = ("embedding", "scores", "attention", "mlp", "stream")
    assert {verdicts.pop(name) for name in before} == {"does not move"}
    assert "does not move" not in verdicts.values()
    assert {verdict.entry.name for verdict in check.updates} == {"head.weight"}
