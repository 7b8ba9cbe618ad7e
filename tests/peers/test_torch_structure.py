"""Blocks that are called several times or have no scores, matrices that start at 0, and
operations in place, against PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import netsor as ns
from tests.internals import ProgramModel, _may_define_module, read_network

from . import literal
from .test_torch_gradients import IDS, WIDTH, Layer, Network


class Repeated(Network):
    """Both layers, twice."""

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(2):
            for layer in self.layers:
                x = layer(x)
        return self.head(self.norm(x))


class OneBlock(Network):
    """One layer without a number, three times."""

    def __init__(self):
        super().__init__()
        self.block = self.layers[0]
        del self.layers

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(3):
            x = self.block(x)
        return self.head(self.norm(x))


class Averaging(Layer):
    """A mean over tokens in place of attention."""

    def attend(self, x):
        return self.o(self.v(self.norm(x)).mean(-2, keepdim=True).expand_as(x))


class Shifted(Layer):
    """Mixtures of a token and the one before, in both branches, as in RWKV."""

    def mixed(self, x, share):
        before = torch.nn.functional.pad(x, (0, 0, 1, -1))
        return x * share + before * (1 - share)

    def attend(self, x):
        h = self.norm(x)
        receptance = torch.sigmoid(self.q(self.mixed(h, 0.3)))
        key, value = self.k(self.mixed(h, 0.5)).exp(), self.v(self.mixed(h, 0.7))
        return self.o(receptance * (key * value).cumsum(-2) / key.cumsum(-2))

    def forward(self, x):
        x = x + self.attend(x)
        h = self.norm2(x)
        return x + self.down(self.up(self.mixed(h, 0.4)).relu() ** 2)


class NoSum(Layer):
    def forward(self, x):
        return self.o(self.norm(x))


def zero_start():
    network = Network()
    for layer in network.layers:
        torch.nn.init.zeros_(layer.down.weight)
    return network


BUILDS = [
    Repeated,
    lambda: Network(Averaging),
    lambda: Network(Shifted),
    zero_start,
]


@pytest.mark.parametrize("build", BUILDS)
def test_program_matches_module(build):
    ((real, ours),) = literal.outputs(build, (IDS,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max()


def test_block_is_found_at_each_call():
    parts = read_network(Repeated, (IDS,)).structure
    paths = [block.path for block in parts.blocks]
    assert paths == ["layers.0", "layers.1", "layers.0", "layers.1"]
    parts = read_network(OneBlock, (IDS,)).structure
    assert [block.path for block in parts.blocks] == ["block"] * 3


@pytest.mark.parametrize("layer", [Averaging, Shifted])
def test_mixer_without_softmax_counts_as_attention(layer):
    net = ns.torch.network(lambda: Network(layer), IDS)
    names = [probe.name for probe in net.probes]
    assert names.count("attention") == names.count("mlp") == 2


def test_sums_inside_a_branch_are_no_sums_of_the_stream():
    parts = read_network(lambda: Network(Shifted), (IDS,)).structure
    for k, block in enumerate(parts.blocks):
        assert {kind: len(nodes) for kind, nodes in block.branches.items()} == {
            "attention": 1,
            "mlp": 1,
        }
        names = [name for of_kind in block.matrices.values() for name in of_kind]
        assert {f"layers.{k}.{x}.weight" for x in ("k", "v", "o", "up", "down")} <= {
            *names
        }


def test_zero_matrix_has_gradient_and_its_input_has_none():
    net = ns.torch.network(zero_start, IDS)
    probes = ProgramModel(net, {}).probes(gradients=True)
    drawn = probes.measure(20, workers=1, progress=False)
    assert not drawn["grad_in"].any()
    ours = drawn["grad_out"].mean()
    torch.manual_seed(0)
    squares = []
    for _ in range(100):
        network = zero_start()
        logits = network(IDS)[0, :-1]
        torch.nn.functional.cross_entropy(logits, IDS[0, 1:]).backward()
        squares += [
            float(layer.down.weight.grad.square().sum()) for layer in network.layers
        ]
    spread = np.std(squares) / np.sqrt(len(squares)) + drawn["grad_out"].std() / 40**0.5
    assert abs(ours - np.mean(squares)) < 4 * spread


def test_message_names_the_module_that_is_no_block():
    with pytest.raises(
        ns.torch.UnsupportedError,
        match=r"no blocks were found: layers\.0 adds nothing to its input; an audit",
    ):
        ns.torch.network(lambda: Network(NoSum), IDS)


class Changed(torch.nn.Module):
    """A tensor that is changed in place, before and after it has a second name."""

    def __init__(self, with_view):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.with_view = with_view

    def forward(self, x):
        y = self.linear(x)
        y.mul_(2.0)
        z = y.view(-1, WIDTH) if self.with_view else y + 0.0
        y.add_(x)
        return y + z.reshape(y.shape)


@pytest.mark.parametrize("with_view", [False, True])
def test_operations_in_place_match_module(with_view):
    x = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)
    ((real, ours),) = literal.outputs(lambda: Changed(with_view), (x,))
    assert np.abs(real - ours).max() < 1e-6


class Replaced(Network):
    """Tokens of one id get a learned vector, and one half of the others is negated."""

    def __init__(self):
        super().__init__()
        self.special = torch.nn.Parameter(torch.randn(WIDTH))

    def forward(self, ids):
        x = self.embed(ids)
        x[ids == 7] = self.special
        x = torch.where((ids < 5)[..., None], x, -2.0 * self.layers[0](x))
        return self.head(self.norm(self.layers[1](x)))


def test_entries_replaced_at_given_mask_match_module():
    ((real, ours),) = literal.outputs(Replaced, (IDS,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max()


def test_modules_of_packages_next_to_torch_are_named():
    """A recorded line is that of a module, and not one inside PyTorch."""
    torch_folder = Path(torch.__file__).parent
    site_packages = torch_folder.parent
    modules = (
        torch_folder / "nn" / "modules" / "linear.py",
        site_packages / "torchvision" / "models" / "resnet.py",
        site_packages / "model.py",
    )
    for file in modules:
        assert _may_define_module(str(file)), file
    assert not _may_define_module(str(torch_folder / "nn" / "functional.py"))
    assert not _may_define_module(str(torch_folder / "_dynamo" / "eval_frame.py"))


class Biased(torch.nn.Module):
    """Attention whose matrix of queries starts at 0: a bias of positions decides."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(16, 16, bias=False) for _ in range(3))
        for part in (self.k, self.v):
            torch.nn.init.normal_(part.weight, std=0.25)
        torch.nn.init.zeros_(self.q.weight)

    def scores(self, x):
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        scores = self.q(x) @ self.k(x).mT / 4 + 3.0 * torch.arange(6)
        return scores.masked_fill(hidden, -torch.inf)

    def forward(self, x):
        return x + self.scores(x).softmax(-1) @ self.v(x)


class OfBiased(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 16)
        self.layers = torch.nn.ModuleList(Biased() for _ in range(2))
        self.head = torch.nn.Linear(16, 10, bias=False)
        torch.nn.init.normal_(self.head.weight, std=0.25)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_attention_that_no_parameter_changes_has_its_entropy():
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    probes = ProgramModel(ns.torch.network(OfBiased, ids), {}).probes(gradients=True)
    entropy = probes.measure(2, workers=1, progress=False)["entropy"]
    weights = Biased().scores(torch.zeros(6, 16)).softmax(-1)[1:]
    choices = torch.arange(2, 7)
    right = (torch.special.entr(weights).sum(-1) / choices.log()).mean().item()
    np.testing.assert_allclose(entropy, right, rtol=1e-6)
    assert ns.torch.check_init(OfBiased, [1, 2, 3, 4, 5, 6], draws=200).ok
