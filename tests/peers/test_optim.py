"""`ns.optim` against `torch.optim`: with the same weights, number by number, after
every step.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import netsor as ns
from tests.internals import _Literal, source_order, topological_order

X = np.array(
    [
        [[1.0, 0.5, -0.2], [0.3, -1.0, 0.8], [-0.7, 0.1, 1.1]],
        [[0.2, 0.9, 0.4], [-1.0, 0.3, 0.1], [0.6, 0.6, 2.0]],
    ]
)
T = np.array([[1.0, -1.0, 0.5], [0.2, 0.4, -0.9]])
WIDTH, STEPS = 7, 6


def network():
    """Losses of two batches, and the parameters: matrices, a bias that starts at 0, a
    gain, a readout and a scalar.
    """
    w, v = (
        ns.weight(WIDTH, 3, name="in", std=1.3),
        ns.weight(2 * WIDTH, WIDTH, name="hidden"),
    )
    b, r = (
        ns.gaussian(2 * WIDTH, cov=0.0, name="bias"),
        ns.gaussian(2 * WIDTH, name="out"),
    )
    gain, c = ns.gaussian(WIDTH, mean=1.0, cov=0.0, name="gain"), ns.normal(name="c")
    losses = []
    for x, t in zip(X, T, strict=True):
        h = gain * ns.tanh(w @ ns.data(x))
        f = c + ns.dot(r, ns.tanh(v @ h + b))
        losses.append(((f - t) ** 2).mean())
    return losses, [w, v, b, r, gain, c]


OURS = {
    "sgd": lambda: ns.optim.SGD(0.1),
    "heavy ball": lambda: ns.optim.SGD(
        0.05, momentum=0.9, dampening=0.3, weight_decay=0.1
    ),
    "nesterov": lambda: ns.optim.SGD(
        0.05, momentum=0.9, weight_decay=0.1, nesterov=True
    ),
    "adam": lambda: ns.optim.Adam(0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adamw": lambda: ns.optim.AdamW(0.02),
    "muon": lambda: {"matrices": ns.optim.Muon(0.05), None: ns.optim.AdamW(0.02)},
    "muon like adam": lambda: {
        "matrices": ns.optim.Muon(
            0.05,
            nesterov=False,
            adjust_lr_fn="match_rms_adamw",
            weight_decay=0.3,
            eps=0.2,
        ),
        None: ns.optim.SGD(0.02),
    },
}


def theirs(name, parameters):
    matrices, others = parameters[:2], parameters[2:]
    return {
        "sgd": lambda: [torch.optim.SGD(parameters, 0.1)],
        "heavy ball": lambda: [
            torch.optim.SGD(
                parameters, 0.05, momentum=0.9, dampening=0.3, weight_decay=0.1
            )
        ],
        "nesterov": lambda: [
            torch.optim.SGD(
                parameters, 0.05, momentum=0.9, weight_decay=0.1, nesterov=True
            )
        ],
        "adam": lambda: [
            torch.optim.Adam(
                parameters, 0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1
            )
        ],
        "adamw": lambda: [torch.optim.AdamW(parameters, 0.02)],
        "muon": lambda: [
            torch.optim.Muon(matrices, 0.05),
            torch.optim.AdamW(others, 0.02),
        ],
        "muon like adam": lambda: [
            torch.optim.Muon(
                matrices,
                0.05,
                nesterov=False,
                adjust_lr_fn="match_rms_adamw",
                weight_decay=0.3,
                eps=0.2,
            ),
            torch.optim.SGD(others, 0.02),
        ],
    }[name]()


def warm_up(t: int) -> float:
    return min(1.0, (t + 1) / 4)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name", OURS)
def test_optimiser_steps_match_pytorch(monkeypatch, name, clip):
    # Muon in the precision of its gradient
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    losses, parameters = network()
    after = ns.train(
        losses,
        losses,
        OURS[name](),
        STEPS,
        parameters,
        schedule=warm_up,
        clip_norm=clip,
    )
    outputs = [loss for each in after for loss in each]
    literal = _Literal(
        source_order(topological_order(outputs)), {}, seed=2, chunk=0, replicas=1
    )
    for value in topological_order(outputs):
        literal.evaluate(value)
    ours = np.array([literal.drawn[loss][0] for loss in outputs]).reshape(STEPS + 1, 2)

    drawn = [
        literal.matrix(p, 0)[0] if isinstance(p, ns.Weight) else literal.drawn[p][0]
        for p in parameters
    ]
    real = [torch.tensor(np.array(p), requires_grad=True) for p in drawn]
    w, v, b, r, gain, c = real

    def loss(k: int) -> torch.Tensor:
        h = gain * torch.tanh(torch.tensor(X[k]) @ w.T)
        f = c + torch.tanh(h @ v.T + b) @ r / (2 * WIDTH) ** 0.5
        return ((f - torch.tensor(T[k])) ** 2).mean()

    optimisers = theirs(name, real)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, warm_up) for each in optimisers
    ]
    found = [[float(loss(0)), float(loss(1))]]
    for t in range(STEPS):
        for each in optimisers:
            each.zero_grad()
        loss(t % 2).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(real, clip)
        for each in (*optimisers, *schedules):
            each.step()
        found.append([float(loss(0)), float(loss(1))])
    np.testing.assert_allclose(ours, found, rtol=1e-10)
