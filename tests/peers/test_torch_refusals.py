"""PyTorch modules that `ns.torch.program` refuses, with a message that names the reason
and the line of code.
"""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import torch

import netsor as ns

from .forks import MoeGPT
from .literal import outputs
from .own_modules import Parallel

IDS = torch.tensor([[3, 7, 7, 1, 9, 3]])


class Orthogonal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.map = torch.nn.Embedding(10, 64), torch.nn.Linear(64, 64)
        torch.nn.init.orthogonal_(self.map.weight)

    def forward(self, ids):
        return self.map(self.embed(ids))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            MoeGPT,
            (
                r"in transformer\.h\.0\.mlp: the shape of the result depends on random"
                r" numbers: compute all experts .*\(at .*forks\.py:\d+:"
            ),
        ),
        (Orthogonal, r"the parameter map\.weight is orthogonal.*declare its law"),
    ],
)
def test_unreadable_operation_is_refused_by_name(build, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(build, IDS)
    laws = ns.torch.parameters(Orthogonal, declared={"map.weight": 0.1})
    assert ns.torch.program(Orthogonal, IDS, laws=laws).shape == (1, 6)


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 64)


class Fourier(Embedded):
    """Absolute values of frequencies."""

    def forward(self, ids):
        return torch.fft.fft(self.embed(ids), dim=1).abs()


class Standardised(Embedded):
    """BiT."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Conv1d(64, 64, 3)

    def forward(self, ids):
        weight = torch.nn.functional.batch_norm(
            self.map.weight.reshape(1, 64, -1), None, None, training=True
        )
        return torch.conv1d(self.embed(ids).mT, weight.reshape_as(self.map.weight))


class Infinite(Embedded):
    """Vectors beside −∞, as in DeepSeek V4, and a function of them."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, ids):
        x = self.embed(ids)
        gates = torch.cat([torch.full_like(x[:, :2], -torch.inf), x], 1)
        return self.function(gates)


class Chosen(Embedded):
    """A loop over the experts that were chosen."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(64, 4)

    def forward(self, ids):
        x = self.embed(ids)
        best = self.map(x).argmax(-1)
        total = 0.0 * x
        for expert in torch.nonzero(torch.bincount(best.flatten())):
            total = total + (best == expert)[..., None] * x
        return total


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Fourier, "fft_fft.*complex numbers are read in products.*use their real"),
        (Standardised, "standardised.*use the weights as they are drawn"),
        (
            lambda: Infinite(lambda x: x.nan_to_num(neginf=0.0)),
            "of vectors beside infinite numbers: fill in a low number",
        ),
        (
            lambda: Infinite(lambda x: x * (x == -torch.inf)),
            "of vectors beside infinite numbers: fill in a low number",
        ),
        (Chosen, "random numbers.*compute all experts for all tokens"),
    ],
)
def test_refusal_names_a_remedy(build, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(build, IDS)


def test_softmax_beside_infinite_numbers_is_that_of_the_others():
    ((real, ours),) = outputs(lambda: Infinite(lambda x: x.softmax(1)), (IDS,))
    np.testing.assert_allclose(ours, real, atol=1e-6)
    assert not ours[:, :2].any()


def _mixed(x, positions, sign=-1.0):
    angles = positions[..., None] * (0.5 ** torch.arange(8)).repeat(2)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((sign * b, a), dim=-1) * angles.sin()


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        # a mirror
        (lambda x: _mixed(x, torch.arange(6), sign=1.0), "by one angle each"),
        (
            lambda x: x + torch.cat((x[..., 3:], x[..., :3]), dim=-1),
            "by one angle each",
        ),
        (lambda x: x[..., :8] + x[..., 8:], "not a rotary position"),
        (
            lambda x: torch.stack((x[..., ::2], x[..., 1::2]), -1).sum(-1),
            "not set end to end",
        ),
    ],
)
def test_nearly_rotary_positions_are_refused(turn, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(lambda: Parallel(turn), IDS)


@pytest.mark.parametrize(
    "positions",
    [
        torch.arange(6) ** 2,
        torch.arange(24).reshape(4, 6),
        torch.tensor([0, 0, 0, 1, 2, 3]),  # two tokens of padding
        torch.tensor([[1, 1, 0, 1, 2, 3], *3 * [[0, 1, 2, 3, 4, 5]]]),
    ],
)
def test_positions_may_begin_again(positions):
    ((real, ours),) = outputs(lambda: Parallel(lambda x: _mixed(x, positions)), (IDS,))
    np.testing.assert_allclose(ours, real, rtol=1e-6, atol=1e-6)


class Looked(Embedded):
    """Each token takes the row of a table that its largest coordinate names."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(64, 4)
        self.rows = torch.nn.Parameter(torch.randn(4, 64))

    def forward(self, ids):
        x = self.embed(ids)
        return x + (2 * self.rows)[self.map(x).argmax(-1)]


def test_random_indices_are_refused_with_a_remedy():
    message = "index.*indices that are random: a product with the one-hot vectors"
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(Looked, IDS)


class Powers(torch.nn.Module):
    """A product whose entries are raised to a power, or are one."""

    def __init__(self, raised):
        super().__init__()
        self.map = torch.nn.Linear(64, 64, bias=False)
        self.raised = raised

    def forward(self, x):
        return self.raised(self.map(x))


@pytest.mark.parametrize(
    "raised",
    [
        lambda y: (1 + y**2).pow(torch.relu(y)),
        lambda y: 2.0**y,
        lambda y: y ** torch.arange(1.0, 65.0),
    ],
)
def test_powers_with_other_exponents_are_functions_of_entries(raised):
    """A random exponent, and one for each coordinate: torch computes them."""
    build = functools.partial(Powers, raised)
    ((real, ours),) = outputs(build, (torch.randn(3, 64),))
    np.testing.assert_allclose(ours, real, rtol=1e-6)


def test_module_that_cannot_be_copied_is_refused():
    def build():
        module = Powers(torch.relu)
        module.lock = threading.Lock()
        return module

    for module in (build(), build):
        with pytest.raises(
            ValueError, match=r"module='Powers' .*deepcopy can copy .*_thread\.lock"
        ):
            ns.torch.program(module, torch.randn(3, 64))


def test_forward_pass_that_changes_a_buffer_leaves_that_of_the_module():
    class Counting(Powers):
        def __init__(self):
            super().__init__(torch.relu)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1.0)
            self.count.data.mul_(3.0)
            return super().forward(x) * self.count

    module = Counting()
    ns.torch.program(module, torch.randn(3, 64))
    assert module.count == 0


def test_matrix_with_rows_of_zeros_is_refused():
    def build():
        module = torch.nn.Linear(8, 8, bias=False)
        with torch.no_grad():
            module.weight[5:] = 0
        return module

    with pytest.raises(
        ns.torch.UnsupportedError, match="the matrix weight has rows of zeros: 5, 6, 7"
    ):
        ns.torch.program(build, torch.ones(1, 8))


class Acts(torch.nn.Module):
    """A function of the vectors that a matrix makes of tokens."""

    def __init__(self, act):
        super().__init__()
        self.embed, self.map, self.act = (
            torch.nn.Embedding(10, 8),
            torch.nn.Linear(8, 8, bias=False),
            act,
        )

    def forward(self, ids):
        return self.act(self.map(self.embed(ids)))


def _turned(x):
    """Pairs (2f, 2f + 1), turned by the position."""
    angles = torch.arange(x.shape[-2])[:, None] * 0.5 ** torch.arange(4)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack(
        (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1
    ).flatten(-2)


HIDDEN = torch.ones(6, 6, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda x: -(x @ x.mT).masked_fill(HIDDEN, -torch.inf),
            "masked scores times -1",
        ),
        (
            lambda x: (x @ x.mT + torch.full((6, 6), -torch.inf)).softmax(-1),
            "leaves a row of scores without any entry.*NaN: fill in the number",
        ),
        (
            lambda x: x.transpose(1, 2)[:, ::2],
            "a slice of the coordinates of vectors, with step 2",
        ),
        # a channel shuffle
        (
            lambda x: x + x.unflatten(-1, (2, 4)).mT.flatten(-2),
            "the coordinates of vectors are interleaved",
        ),
        (lambda x: (_turned(x) * torch.linspace(1, 2, 8)).relu(), "by one angle each"),
    ],
)
def test_operation_that_breaks_the_axis_rule_is_refused(act, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(lambda: Acts(act), IDS)
