"""Gradients of every matrix of small modules that stop, share or scale them, against
autograd of real initialisations.

Two samples, Kolmogorov–Smirnov, level 1e-4 for all quantities of a module together;
seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import netsor as ns
from tests.internals import ProgramModel

LEVEL = 1e-4
REAL, OURS = 500, 2000
WIDTH, HIDDEN, WORDS = 16, 24, 12
IDS = torch.tensor([[3, 7, 7, 1, 9, 3]])
KINDS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "output",
    "up": "in",
    "down": "out",
}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.up, self.down = (
            torch.nn.Linear(WIDTH, HIDDEN, bias=False),
            torch.nn.Linear(HIDDEN, WIDTH, bias=False),
        )
        self.norm, self.norm2 = (
            torch.nn.RMSNorm(WIDTH, eps=0.1),
            torch.nn.RMSNorm(WIDTH, eps=0.1),
        )

    def weights(self, scores):
        return scores.softmax(-1)

    def activation(self, h):
        return functional.gelu(h)

    def attend(self, x):
        h = self.norm(x)
        scores = self.q(h) @ self.k(h).mT / WIDTH**0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return self.o(self.weights(scores.masked_fill(future, -torch.inf)) @ self.v(h))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Network(torch.nn.Module):
    def __init__(self, layer=Layer, shared=False, tied=False, **table):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH, **table)
        first = layer()
        self.layers = torch.nn.ModuleList([first, first if shared else layer()])
        self.norm, self.head = (
            torch.nn.RMSNorm(WIDTH, eps=0.1),
            torch.nn.Linear(WIDTH, WORDS, bias=False),
        )
        for p in self.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, std=0.3)
        if tied:
            self.head.weight = self.embed.weight

    def look_up(self, ids):
        return self.embed(ids)

    def forward(self, ids):
        x = self.look_up(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Partly(Network):
    """A stream of which a tenth has a gradient."""

    def look_up(self, ids):
        x = self.embed(ids)
        return 0.1 * x + 0.9 * x.detach()


class DetachedHead(Network):
    def forward(self, ids):
        x = self.look_up(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.embed.weight.detach())


class GivenWeights(Layer):
    def weights(self, scores):
        return scores.softmax(-1).detach()


class GivenScale(Layer):
    """The denominator of a norm by hand, and a gate, without gradients."""

    def attend(self, x):
        return super().attend(
            x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1).detach()
        )

    def activation(self, h):
        return h * torch.sigmoid(h).data


class Aside(Layer):
    """Attention without gradients, in a part of `forward`, with an operation in
    place.
    """

    def attend(self, x):
        with torch.no_grad():
            added = super().attend(x)
            added.mul_(0.5)
        return added


class Sign(torch.autograd.Function):
    """A function of entries with a slope of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class OwnSlope(Layer):
    def activation(self, h):
        return Sign.apply(h)


class StraightThrough(Layer):
    def activation(self, h):
        return h + (torch.relu(h) - h).detach()


class Checkpointed(Layer):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


class ZeroRow(Network):
    """A row of zeros, which is no padding: it has a gradient."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.embed.weight[7] = 0.0


class Frozen(Network):
    def __init__(self):
        super().__init__()
        self.layers[0].up.weight.requires_grad_(False)
        self.layers[1].q.weight.requires_grad_(False)


MODULES = {
    "a tenth of the stream": Partly,
    "attention weights": lambda: Network(GivenWeights),
    "scales and gates": lambda: Network(GivenScale),
    "no_grad in forward": lambda: Network(Aside),
    "straight through": lambda: Network(StraightThrough),
    "a slope of its own": lambda: Network(OwnSlope),
    "checkpoints": lambda: Network(Checkpointed),
    "one block twice": lambda: Network(shared=True),
    "tied logits": lambda: Network(tied=True),
    "detached tied logits": DetachedHead,
    "padding": lambda: Network(padding_idx=7),
    "tied padding by frequency": lambda: Network(
        tied=True, padding_idx=3, scale_grad_by_freq=True
    ),
    "a row of zeros": ZeroRow,
    "frozen parameters": Frozen,
}


def real(build):
    """Squared gradients by quantity and block; −1 stands for the whole network."""
    torch.manual_seed(5)
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(REAL):
        network = build().double().eval()
        functional.cross_entropy(network(IDS)[0, :-1], IDS[0, 1:]).backward()
        places = {("grad_embedding", -1): network.embed.weight}
        if (
            network.head.weight is not network.embed.weight
            and network.head.weight.grad is not None
        ):
            places["grad_head", -1] = network.head.weight
        for k, layer in enumerate(network.layers):
            places |= {
                (f"grad_{kind}", k): getattr(layer, name).weight
                for name, kind in KINDS.items()
            }
        for place, p in places.items():
            found.setdefault(place, []).append(
                0.0 if p.grad is None else float(p.grad.square().sum())
            )
    return {place: np.array(squares) for place, squares in found.items()}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_modules_match_autograd(name):
    build = MODULES[name]
    probes = ProgramModel(ns.torch.network(build, IDS), {}).probes(gradients=True)
    ours = probes.measure(OURS, workers=1, progress=False)
    found = {}
    for (quantity, block), right in real(build).items():
        here = ours.get(quantity, np.zeros((OURS, 2)))
        here = here if block < 0 else here[:, block]
        if right.any():
            found[quantity, block] = stats.ks_2samp(here, right, method="asymp").pvalue
        else:
            assert not here.any(), (quantity, block)
    print(f"{name}: smallest p {min(found.values()):.2g} of {len(found)}")
    assert min(found.values()) > LEVEL / len(found), found


def test_detached_matrix_passes_gradients_to_its_input():
    """On the weights of one program: the gradient of the embedding, by `ns.grad` and
    through the law alone.
    """

    class Detached(torch.nn.Module):
        def __init__(self, detach):
            super().__init__()
            self.embed, self.map = (
                torch.nn.Embedding(4, 8),
                torch.nn.Linear(8, 8, bias=False),
            )
            torch.nn.init.normal_(self.map.weight, std=0.4)
            self.detach = detach

        def forward(self, ids):
            x = self.embed(ids)
            w = self.map.weight.detach() if self.detach else self.map.weight
            return x + torch.tanh(functional.linear(x, w))

    nets = [
        ns.torch.program(lambda d=detach: Detached(d), torch.tensor([1, 2]))
        for detach in (True, False)
    ]
    assert np.array_equal(*(net.draw(draws=5) for net in nets))
    kernels = []
    for net in nets:
        p = ns.dot(ns.gaussian(8), net.output[0])
        x = net.probes[0].value
        kernels.append(
            ns.Program(ns.mean_dot(ns.grad(p, x)[0], ns.grad(p, x)[0])).simulate(
                draws=3
            )
        )
    assert np.array_equal(*kernels)
    stopped, moved = (ns.dot(ns.gaussian(8), net.output[0]) for net in nets)
    with pytest.raises(ns.TraceError, match="depends on no weight"):
        ns.step(stopped, stopped, lr=1.0)
    assert ns.step(moved, moved, lr=1.0) is not moved


class Reversed(torch.autograd.Function):
    """The gradient of each entry goes to another one."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(-1)


class Custom(Layer):
    def activation(self, h):
        return Reversed.apply(h)


class InPlace(Layer):
    def activation(self, h):
        with torch.no_grad():
            h.mul_(0.5)
        return h


class Hooked(Network):
    def __init__(self):
        super().__init__()
        self.embed.weight.register_hook(lambda gradient: 0 * gradient)


class Crossed(Network):
    def __init__(self):
        super().__init__()
        self.layers[1].q.weight = self.layers[0].k.weight


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Network(Custom),
            (
                r"Reversed\.apply: the backward pass of a torch\.autograd\.Function is"
                r" read if it multiplies by a slope"
            ),
        ),
        (
            lambda: Network(InPlace),
            "mul_ changes a tensor in place while gradients are off",
        ),
        (
            lambda: Network(max_norm=1.0),
            (
                r"embedding_renorm\.default in embed: max_norm rescales the rows of a"
                r" table: set max_norm=None"
            ),
        ),
        (
            Hooked,
            r"the parameter embed\.weight has a hook on its gradient: remove the hook",
        ),
        (Crossed, r"layers\.0\.k\.weight is key of block 1 and query of block 2"),
    ],
)
def test_unreadable_backward_pass_is_refused(build, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.network(build, IDS)


class HookInForward(torch.nn.Module):
    """A module whose forward pass registers a hook."""

    def __init__(self, register):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.map = torch.nn.Linear(8, 8)
        self.register = register

    def forward(self, ids):
        x = self.map(self.embed(ids))
        self.register(self, x)
        return x


def _hook_on_tensor(module, x):
    x.register_hook(lambda gradient: 0 * gradient)


def _guarded_hook_on_tensor(module, x):
    if x.requires_grad:
        x.register_hook(lambda gradient: 0 * gradient)


def _guarded_hook_on_parameter(module, x):
    if module.map.weight.requires_grad:
        module.map.weight.register_post_accumulate_grad_hook(print)


def _hook_on_module(module, x):
    module.map.register_full_backward_hook(print)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (_hook_on_tensor, r"forward registers a hook on a gradient \(register_hook\)"),
        (_guarded_hook_on_tensor, r"forward registers a hook on a gradient"),
        (_guarded_hook_on_parameter, r"\(register_post_accumulate_grad_hook\)"),
        (_hook_on_module, "the module map has a hook on its gradient: remove the hook"),
    ],
)
def test_hook_registered_in_forward_is_refused(register, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(lambda: HookInForward(register), IDS)


def _hook_that_is_off(module, x):
    if module.training and x.requires_grad:
        x.register_hook(print)


def test_hook_that_evaluation_mode_skips_is_allowed():
    net = ns.torch.program(lambda: HookInForward(_hook_that_is_off), IDS)
    assert net.shape == tuple(IDS.shape)


def test_state_of_torch_is_restored_after_an_error():
    with pytest.raises(ns.torch.UnsupportedError):
        ns.torch.program(lambda: Network(Custom), IDS)
    x = torch.ones(2, requires_grad=True)
    Sign.apply(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    with torch.no_grad():
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
