"""Training in law against PyTorch: five steps of a perceptron and of a GPT-2 with two
blocks.

With the same weights, the loss and activations agree after every step; and a thousand
real initialisations have the law of the exact engine (two samples, Kolmogorov–Smirnov,
level 1e-4 for all networks, optimisers and quantities together). Optimisers, schedules
and clipping are those of PyTorch. Muon runs in double precision: PyTorch rounds to
bfloat16.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import netsor as ns
from tests.internals import TRAINING_VECTORS as VECTORS
from tests.internals import _Literal, source_order, topological_order
from tests.internals import model_training as training

STEPS, REAL, OURS = 5, 1000, 1000
# networks, optimisers, losses, quantities: 1e-4 for all together
LEVEL = 1e-4 / (2 * 3 * (STEPS + 1) * 4)
KINDS = ("weight", "gain", "bias")
Parameters = dict[str, list[torch.Tensor]]
IDS, TARGETS = (2, 0, 4, 1, 3, 1), (0, 4, 1, 3, 1, 2)
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 5,
}
GROUPS = ("W^E", "W^P")  # that Muon leaves to AdamW


def model(width: int = 64) -> Any:
    return ns.models.read(
        {**CONFIG, "n_embd": width, "initializer_range": 2.0 / width**0.5}
    )


def warm_up(t: int) -> float:
    return min(1.0, (t + 1) / 3)


def adamw() -> Any:
    return ns.optim.AdamW(3e-3, weight_decay=0.1)


OPTIMISERS = {
    "adamw": (adamw, 1.0),
    "muon": (
        lambda: {
            "matrices": ns.optim.Muon(0.1),
            **{name: by for by in [adamw()] for name in (*GROUPS, None)},
        },
        None,
    ),
    "nesterov": (
        lambda: ns.optim.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        None,
    ),
}


def theirs(
    name: str, matrices: list[torch.Tensor], others: list[torch.Tensor]
) -> list[torch.optim.Optimizer]:
    if name == "nesterov":
        return [
            torch.optim.SGD(
                [*matrices, *others],
                0.05,
                momentum=0.9,
                nesterov=True,
                weight_decay=0.01,
            )
        ]
    if name == "adamw":
        return [torch.optim.AdamW([*matrices, *others], 3e-3, weight_decay=0.1)]
    return [
        torch.optim.Muon(matrices, 0.1),
        torch.optim.AdamW(others, 3e-3, weight_decay=0.1),
    ]


def norm(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (
        torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5) * gain[..., None, :]
        + bias[..., None, :]
    )


def gpt2(p: Parameters) -> tuple[torch.Tensor, ...]:
    """Loss, and the streams after each block, of GPT-2s with parameters (…, out, in) in
    the order of their use.
    """
    weights, gains, biases = (iter(p[kind]) for kind in KINDS)
    table, positions = next(weights), next(weights)
    x = table.mT[..., list(IDS), :] + positions.mT[..., : len(IDS), :]
    streams = []
    tokens, heads = len(IDS), 2
    mask = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)

    def affine(y: torch.Tensor) -> torch.Tensor:
        return y @ next(weights).mT + next(biases)[..., None, :]

    for _ in range(2):
        y = norm(x, next(gains), next(biases))
        q, k, v = (
            affine(y).unflatten(-1, (heads, -1)).transpose(-2, -3) for _ in range(3)
        )
        a = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + mask, -1)
        x = x + affine((a @ v).transpose(-2, -3).flatten(-2))
        y = norm(x, next(gains), next(biases))
        x = x + affine(torch.nn.functional.gelu(affine(y), approximate="tanh"))
        streams.append(x)
    logs = torch.log_softmax(norm(x, next(gains), next(biases)) @ table, -1)
    return -logs[..., range(tokens), list(TARGETS)].mean(-1), *streams


def trained(name: str, starts: list[Parameters], network: Any) -> np.ndarray:
    """Loss and three activations of some initialisations, before and after each step,
    by PyTorch: (steps + 1, 4, …).

    The initialisations run forward and backward as one batch; PyTorch's optimisers and
    clipping see each by itself.
    """
    every = [[w for each in p.values() for w in each] for p in starts]
    matrices = [
        w for p in starts for w in p["weight"] if w.shape[0] > 5 and w.shape[1] > 8
    ]
    hidden = {id(w) for w in matrices}
    optimisers = theirs(
        name, matrices, [w for some in every for w in some if id(w) not in hidden]
    )
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, warm_up) for each in optimisers
    ]
    found = []
    for t in range(STEPS + 1):
        batch = {
            kind: [
                torch.stack(some)
                for some in zip(*(p[kind] for p in starts), strict=True)
            ]
            for kind in KINDS
        }
        loss, *streams = network(batch)
        last = streams[-1]
        numbers = (
            loss,
            last[..., 0, 0],
            last[..., -1, 3],
            (streams[0] ** 2).mean((-2, -1)),
        )
        found.append([x.detach().numpy().copy() for x in numbers])
        if t == STEPS:
            break
        for each in optimisers:
            each.zero_grad()
        loss.sum().backward()
        most = OPTIMISERS[name][1]
        for some in every if most is not None else ():
            torch.nn.utils.clip_grad_norm_(some, most)
        for each in (*optimisers, *schedules):
            each.step()
    return np.array(found)


def program(name: str, size: int) -> tuple[list[ns.Value], Any]:
    """The same as values: loss, the last stream, the mean square of the first."""
    made = training(model(size), IDS, TARGETS, VECTORS)
    first, last = made.watched["stream"]
    square = ns.mean_dot(first[:, None], first[:, None]).mean()
    by, clip = OPTIMISERS[name]
    outputs = [made.loss, last[0], last[-1], square]
    after = ns.train(
        outputs,
        made.loss,
        by(),
        STEPS,
        made.parameters,
        schedule=warm_up,
        clip_norm=clip,
    )
    return [value for each in after for value in each], made


def parameters(made: Any, drawn: Any) -> Parameters:
    found: Parameters = {kind: [] for kind in KINDS}
    for parameter in made.parameters:
        kind = made.vectors.get(parameter, "weight")
        found[kind].append(torch.tensor(np.array(drawn(parameter)), requires_grad=True))
    return found


@pytest.fixture(autouse=True)
def exact_muon(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_gpt2_with_the_same_weights_matches_pytorch(name):
    outputs, made = program(name, 12)
    widths = model(12).widths()
    literal = _Literal(
        source_order(topological_order(outputs)), widths, seed=2, chunk=0, replicas=1
    )
    for value in topological_order(outputs):
        literal.evaluate(value)
    rows = [literal.drawn[value][0] for value in outputs]
    ours = [
        [a, b[0], c[3], d]
        for a, b, c, d in zip(*(rows[k::4] for k in range(4)), strict=True)
    ]
    real = parameters(
        made,
        lambda p: (
            literal.matrix(p, 0)[0] if isinstance(p, ns.Weight) else literal.drawn[p][0]
        ),
    )
    np.testing.assert_allclose(
        ours, trained(name, [real], gpt2)[..., 0], rtol=1e-8, atol=1e-10
    )


# The law over initialisations


def smallest(ours: np.ndarray, real: np.ndarray) -> float:
    return min(
        stats.ks_2samp(a, b, method="asymp").pvalue
        for a, b in zip(ours.T, real.T, strict=True)
    )


def real_draws(name: str, start: Any, network: Any) -> np.ndarray:
    """Of many initialisations, (count, numbers)."""
    parts = [
        trained(name, [start() for _ in range(100)], network).reshape(-1, 100)
        for _ in range(REAL // 100)
    ]
    return np.concatenate(parts, axis=1).T


def checked(name: str, ours: np.ndarray, real: np.ndarray) -> None:
    p = smallest(ours, real)
    print(f"{name}: smallest p {p:.2g} of {real.shape[1]}")
    assert p > LEVEL


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_gpt2_has_the_law_of_pytorch(name):
    outputs, made = program(name, 64)
    ours = np.stack(
        ns.Program(tuple(outputs)).draw(draws=OURS, seed=1, **model().widths()), axis=1
    )
    rng, bound = np.random.default_rng(3), model().widths()

    def drawn(parameter: Any) -> np.ndarray:
        if isinstance(parameter, ns.Weight):
            rows, columns = (
                int(w.bind(bound)) for w in (parameter.out_width, parameter.in_width)
            )
            return rng.standard_normal((rows, columns)) * parameter.std / columns**0.5
        return np.full(int(parameter.width.bind(bound)), float(parameter.op.mean))

    checked(
        f"GPT-2, {name}", ours, real_draws(name, lambda: parameters(made, drawn), gpt2)
    )


X = np.array([[1.0, 0.5, -0.2] * 3, [0.3, -1.0, 0.8] * 3, [-0.7, 0.1, 1.1] * 3])
T = np.array([1.0, -1.0, 0.5])


def perceptron(p: Parameters) -> tuple[torch.Tensor, ...]:
    (w, v), (b,), (r,) = p["weight"], p["bias"], p["gain"]
    h = torch.tanh(torch.tensor(X) @ w.mT)
    k = torch.tanh(h @ v.mT + b[..., None, :])
    f = (k @ r[..., None])[..., 0] / r.shape[-1] ** 0.5
    return ((f - torch.tensor(T)) ** 2).mean(-1), h, k


def real_perceptrons(name: str) -> np.ndarray:
    normal = np.random.default_rng(4).standard_normal

    def start() -> Parameters:
        drawn = {
            "weight": [normal((64, 9)) / 3, normal((64, 64)) / 8],
            "bias": [np.zeros(64)],
            "gain": [normal(64)],
        }
        return {
            kind: [torch.tensor(x, requires_grad=True) for x in drawn[kind]]
            for kind in KINDS
        }

    return real_draws(name, start, perceptron)


def our_perceptrons(name: str, schedule: Any = warm_up) -> np.ndarray:
    w, v = ns.weight(64, 9), ns.weight(64, 64)
    b, r = ns.gaussian(64, cov=0.0), ns.gaussian(64)
    h = ns.tanh(w @ ns.data(X))
    k = ns.tanh(v @ h + b)
    loss = ((ns.dot(r, k) - T) ** 2).mean()
    by, clip = OPTIMISERS[name]
    groups = by()
    groups = (
        {key: each for key, each in groups.items() if key not in GROUPS}
        if name == "muon"
        else groups
    )
    outputs = [loss, k[0], k[-1], ns.mean_dot(h[:, None], h[:, None]).mean()]
    after = ns.train(
        outputs, loss, groups, STEPS, [w, v, b, r], schedule=schedule, clip_norm=clip
    )
    return np.stack(
        ns.Program(tuple(x for each in after for x in each)).draw(draws=OURS, seed=1),
        axis=1,
    )


@pytest.fixture(scope="module")
def real() -> Any:
    """The perceptrons of PyTorch, trained once for each optimiser."""
    return functools.cache(real_perceptrons)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_a_perceptron_has_the_law_of_pytorch(name, real):
    checked(f"perceptron, {name}", our_perceptrons(name), real(name))


OTHERS = {
    "betas": (
        "adamw",
        lambda: ns.optim.AdamW(3e-3, betas=(0.5, 0.5), weight_decay=0.1),
        1.0,
    ),
    "no clipping": ("adamw", adamw, None),
    "no momentum": (
        "muon",
        lambda: {"matrices": ns.optim.Muon(0.1, momentum=0.0), None: adamw()},
        None,
    ),
    "no adjustment": (
        "muon",
        lambda: {
            "matrices": ns.optim.Muon(0.1, adjust_lr_fn=lambda fan_in, fan_out: 1.0),
            None: adamw(),
        },
        None,
    ),
    "heavy ball": (
        "nesterov",
        lambda: ns.optim.SGD(0.05, momentum=0.9, weight_decay=0.01),
        None,
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_comparison_notices_another_optimiser(monkeypatch, other, real):
    name, by, clip = OTHERS[other]
    # before it is changed: another process may have run the test that trains them
    theirs = real(name)
    monkeypatch.setitem(OPTIMISERS, name, (by, clip))
    p = smallest(our_perceptrons(name), theirs)
    print(f"{other}: smallest p {p:.2g}")
    assert p < LEVEL


def test_comparison_notices_another_schedule(real):
    assert (
        smallest(our_perceptrons("nesterov", schedule=None), real("nesterov")) < LEVEL
    )
