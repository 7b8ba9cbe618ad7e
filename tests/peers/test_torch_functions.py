"""Functions of torch that its graphs have in one piece, on the weights of a module."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from . import literal
from .unlisted_modules import IDS, TOKENS, WIDTH, Network, linear

UNIT = torch.ones(3, WIDTH, WIDTH) / WIDTH


class Function(Network):
    """A function in the residual branch."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w, self.twice = linear(WIDTH, WIDTH), linear(WIDTH, 2 * WIDTH)
        self.scales = nn.Parameter(torch.randn(3))
        self.slope = nn.Parameter(torch.randn(()))

    def mix(self, x):
        return self.function(self, x)


def replaced(x, y):
    """Other numbers for the first token, in place."""
    x = x.clone()
    x[:, 0] = y[:, 1]
    return x


def standardised(x, pair):
    deviation, mean = pair
    return (x - mean) / deviation


FUNCTIONS = {
    "T": lambda m, x: x[0] @ m.w.weight.T @ m.w.weight,
    "mH": lambda m, x: x @ m.w.weight.mH,
    "adjoint": lambda m, x: x @ m.w.weight.adjoint(),
    "swapdims": lambda m, x: m.w(x.swapdims(0, 1)).swapdims(0, 1),
    "one number of a parameter": lambda m, x: m.scales[1] * m.w(x),
    "a parameter without axes": lambda m, x: torch.tanh(m.slope) * m.w(x) + m.slope,
    "glu": lambda m, x: functional.glu(m.twice(x)),
    "prelu": lambda m, x: functional.prelu(m.w(x), m.slope.reshape(1)),
    "bilinear": lambda m, x: functional.bilinear(m.w(x), torch.tanh(x), UNIT)[..., :1],
    "hstack": lambda m, x: m.w(torch.hstack([x, x]))[:, :TOKENS],
    "vstack": lambda m, x: m.w(torch.vstack([x, -x]))[1:],
    "tile": lambda m, x: m.w(x.tile(2, 1, 1))[1:],
    "broadcast_to": lambda m, x: m.w(x).broadcast_to(2, *x.shape[1:])[1:],
    "tensor_split": lambda m, x: m.twice(x).tensor_split(2, -1)[1],
    "tensordot": lambda m, x: torch.tensordot(x, m.w.weight, 1),
    "inner": lambda m, x: torch.inner(x, m.w.weight),
    "multi_dot": lambda m, x: torch.linalg.multi_dot([x[0], m.w.weight, m.w.weight])[
        None
    ],
    "cdist": lambda m, x: (-torch.cdist(m.w(x), x)).softmax(-1) @ x,
    "cosine_similarity": lambda m, x: (
        functional.cosine_similarity(m.w(x), x, dim=-1)[..., None] * x
    ),
    "pairwise_distance": lambda m, x: (
        functional.pairwise_distance(m.w(x), x)[..., None] * x
    ),
    "norm": lambda m, x: torch.linalg.norm(m.w(x), dim=-1, keepdim=True) * x,
    "norm of all tokens": lambda m, x: m.w(x) / torch.linalg.norm(m.w(x)),
    "var_mean": lambda m, x: standardised(
        m.w(x), torch.var_mean(m.w(x), -1, keepdim=True)
    ),
    "std_mean": lambda m, x: standardised(
        m.w(x), torch.std_mean(m.w(x), -1, False, True)
    ),
    "expit": lambda m, x: torch.special.expit(m.w(x)),
    "diff": lambda m, x: torch.diff(m.w(x), dim=1, prepend=x[:, :1]),
    "gradient": lambda m, x: torch.gradient(m.w(x), dim=1)[0],
    "trapezoid": lambda m, x: torch.trapezoid(m.w(x), dim=1)[:, None] + x,
    "take_along_dim": lambda m, x: torch.take_along_dim(
        m.w(x), torch.zeros(1, TOKENS, 1, dtype=torch.long), 1
    ),
    "the first token in place": lambda m, x: replaced(m.w(x), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_program_of_function_matches_module(name):
    build = partial(Function, FUNCTIONS[name])
    ((real, ours),) = literal.outputs(build, (IDS,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max()
