"""One real step of PyTorch's optimisers on real initialisations, against the law of
`ns.step`.

Two samples, Kolmogorov–Smirnov, level 1e-4 for all quantities of a network together;
seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import netsor as ns
from netsor import models
from tests.internals import Gaussian, topological_order, weights_of

from .real import configuration

LEVEL = 1e-4
REAL, OURS = 1000, 4000
X = np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.8], [-0.7, 0.1, 1.1]])
T = np.array([1.0, -1.0, 0.5])
n = ns.Width("n")


def taller(fan_in: float, fan_out: float) -> float:
    """PyTorch's Muon multiplies its matrix by this."""
    return max(1.0, fan_out / fan_in) ** 0.5


OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.3},
    "muon": {"lr": 0.1, "newton_schulz": 5, "scale": taller},
    "adam": {"lr": 0.02, "eps": 1e-8},
}


def optimiser(name: str, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    lr = OPTIONS[name]["lr"]
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr, eps=1e-8)
    return torch.optim.Muon(parameters, lr=lr, weight_decay=0.0)


def smallest(ours: np.ndarray, theirs: np.ndarray) -> float:
    return min(
        stats.ks_2samp(a, b, method="asymp").pvalue
        for a, b in zip(ours.T, theirs.T, strict=True)
    )


# A perceptron


def perceptron(name: str, width: int) -> np.ndarray:
    """Loss before and after, an output after, and what the hidden layers move by, in
    mean square.
    """
    w, v, r = ns.weight(n, 3), ns.weight(n, n), ns.gaussian(n)
    h = ns.tanh(w @ ns.data(X))
    k = ns.tanh(v @ h)
    f = ns.dot(r, k)
    loss = ((f - T) ** 2).mean()
    after = ns.step([loss, f, h, k], loss, optimiser=name, **OPTIONS[name])
    moved = [
        ns.mean_dot(b - a, b - a)[0, 0] for a, b in zip((h, k), after[2:], strict=True)
    ]
    net = ns.Program((loss, after[0], after[1][0], *moved))
    return np.stack(net.draw(n=width, draws=OURS, seed=1), axis=1)


def real_perceptron(name: str, width: int, count: int) -> np.ndarray:
    torch.manual_seed(3)
    x, t = torch.tensor(X), torch.tensor(T)
    found = []
    for _ in range(count):
        w = (torch.randn(width, 3, dtype=torch.float64) / 3**0.5).requires_grad_()
        v = (
            torch.randn(width, width, dtype=torch.float64) / width**0.5
        ).requires_grad_()
        r = torch.randn(width, dtype=torch.float64)

        def run(
            w: torch.Tensor = w, v: torch.Tensor = v, r: torch.Tensor = r
        ) -> tuple[torch.Tensor, ...]:
            h = torch.tanh(x @ w.T)
            k = torch.tanh(h @ v.T)
            f = k @ r / width**0.5
            return ((f - t) ** 2).mean(), f, h, k

        before = run()
        before[0].backward()
        optimiser(name, [w, v]).step()
        after = run()
        moved = [
            ((b[0] - a[0]) ** 2).mean()
            for a, b in zip(before[2:], after[2:], strict=True)
        ]
        found.append([float(y) for y in (before[0], after[0], after[1][0], *moved)])
    return np.array(found)


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("name", OPTIONS)
def test_step_of_a_perceptron_has_the_law_of_pytorch(name, width):
    # whose bfloat16 takes 0.2 s a step on some machines
    count = 120 if (name, width) == ("muon", 64) else REAL
    ours, theirs = perceptron(name, width), real_perceptron(name, width, count)
    p = smallest(ours, theirs)
    print(f"{name}, width {width}: smallest p {p:.2g} of {ours.shape[1]}")
    assert p > LEVEL / ours.shape[1]


def test_comparison_notices_another_learning_rate(monkeypatch):
    theirs = real_perceptron("sgd", 16, REAL)
    monkeypatch.setitem(OPTIONS["sgd"], "lr", 0.24)
    assert smallest(perceptron("sgd", 16), theirs) < 1e-8


# GPT-2: every id of the vocabulary occurs, and one twice

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 5,
    "initializer_range": 0.25,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
IDS = (2, 0, 4, 1, 3, 1)
RATES: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.3},
    "muon": {"lr": 0.05, "newton_schulz": 5},
    "adam": {"lr": 0.01, "eps": 1e-8},
}


def cross_entropy(p: np.ndarray) -> np.ndarray:
    """Of logits (…, tokens, words): each token is followed by the next id."""
    rows = p[..., :-1, :]
    top = rows.max(axis=-1, keepdims=True)
    total = np.log(np.exp(rows - top).sum(axis=-1)) + top[..., 0]
    own = np.take_along_axis(
        rows, np.array(IDS[1:])[:, None] + np.zeros((*rows.shape[:-1], 1), int), axis=-1
    )
    return (total - own[..., 0]).mean(axis=-1)


def slope(p: np.ndarray, d: np.ndarray) -> np.ndarray:
    rows = np.exp(p - p.max(axis=-1, keepdims=True))
    rows = rows / rows.sum(axis=-1, keepdims=True) - np.eye(5)[[*IDS[1:], 0]]
    rows[..., -1, :] = 0.0
    return d[..., None, None] * rows / (len(IDS) - 1)


def gpt2(name: str) -> np.ndarray:
    model = models.read(CONFIG)
    traced = model.trace(IDS)
    assert traced.table is not None
    words = traced.table.vectors.vectors
    logits = model.width * ns.mean_dot(traced.output, words)
    loss = ns.apply(cross_entropy, logits, axes=2, derivative=slope)
    values = topological_order([loss])
    moving: list[Any] = list({w.source: w for w in weights_of(values)}.values())
    if name != "muon":
        moving += [
            v for v in values if isinstance(v.op, Gaussian) and v.op.factor.any()
        ]
    streams = [layer.stream for layer in traced.layers]
    after = ns.step(
        [loss, logits, *streams], loss, optimiser=name, weights=moving, **RATES[name]
    )
    moved = [
        ns.mean_dot((b - a)[-1], (b - a)[-1])
        for a, b in zip(streams, after[2:], strict=True)
    ]
    net = ns.Program((loss, after[0], after[1][1, 2], *moved))
    return np.stack(net.draw(draws=REAL, seed=1, **model.widths()), axis=1)


def per_head(g: torch.Tensor) -> torch.Tensor:
    """Muon's polynomial of one matrix, in double precision."""
    x = g / g.norm()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def muon(network: Any, lr: float) -> None:
    """Each head for itself: queries, keys and values are columns of one matrix."""
    with torch.no_grad():
        for block in network.transformer.h:
            joint = block.attn.c_attn.weight
            g = joint.grad.reshape(16, 3, 2, 8)
            step = torch.stack(
                [
                    torch.stack([per_head(g[:, i, j]) for j in range(2)], 1)
                    for i in range(3)
                ],
                1,
            )
            joint -= lr * step.reshape(16, 48)
            for w in (
                block.attn.c_proj.weight,
                block.mlp.c_fc.weight,
                block.mlp.c_proj.weight,
            ):
                w -= lr * per_head(w.grad)


def real_gpt2(name: str, count: int) -> np.ndarray:
    import transformers

    config = configuration(CONFIG)
    config._attn_implementation = "eager"
    torch.manual_seed(4)
    ids = torch.tensor([IDS])
    found = []
    for _ in range(count):
        network = transformers.GPT2LMHeadModel(config).eval().double()

        streams: list[torch.Tensor] = []
        for block in network.transformer.h:
            block.register_forward_hook(
                lambda module, given, made, streams=streams: streams.append(
                    made[0] if isinstance(made, torch.Tensor) else made[0][0]
                )
            )

        def run(
            network: Any = network, streams: list[torch.Tensor] = streams
        ) -> tuple[Any, ...]:
            streams.clear()
            out = network(ids, labels=ids)
            return out.loss, out.logits[0], *streams

        before = run()
        before[0].backward()
        if name == "muon":
            muon(network, RATES[name]["lr"])
        else:
            tables = [network.transformer.wte.weight, network.transformer.wpe.weight]
            matrices = [
                p for b in network.transformer.h for p in b.parameters() if p.ndim == 2
            ]
            kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
            kind([*tables, *matrices], lr=RATES[name]["lr"]).step()
        with torch.no_grad():
            after = run()
            moved = [
                ((b[-1] - a[-1]) ** 2).mean()
                for a, b in zip(before[2:], after[2:], strict=True)
            ]
            found.append(
                [float(y) for y in (before[0], after[0], after[1][1, 2], *moved)]
            )
    return np.array(found)


@pytest.mark.parametrize("name", RATES)
def test_step_of_gpt2_has_the_law_of_pytorch(name):
    ours, theirs = gpt2(name), real_gpt2(name, REAL)
    p = smallest(ours, theirs)
    print(f"GPT-2, {name}: smallest p {p:.2g} of {ours.shape[1]}")
    assert p > LEVEL / ours.shape[1]
