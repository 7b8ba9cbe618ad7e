"""Kim et al.: hidden states and gradients by depth, with layer norms after, before and around each branch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from netsor import language as ns
from netsor._mpl_style import BLUE, GREEN, MARK_OF, VERMILLION, new
from netsor._program import Program
from netsor.laws import Estimate
from netsor.studies import Arrays

from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._result import EXPONENT_ATOL, Array, Claim, Numbers, Part, Picture, Result, mean

WIDTH, TOKENS, MORE = 4096, 4, 16
PLACES = (4, 8, 16, 32, 64)  # blocks after which hidden states and gradients are taken
VANISHED = 0.1  # of a squared gradient, from the last place to the first; fixed before any number was seen
FACTORS = (10.0, 100.0)  # of the hidden layer of a perceptron
LOOKS = {"Post-LN": VERMILLION, "Pre-LN": BLUE, "Peri-LN": GREEN}


def norm(x: Any) -> Any:
    """A layer norm without ε."""
    return ns.layer_norm(x, eps=0.0)


def network(order: str, tokens: int, blocks: int) -> Program:
    """Sums over tokens of |x_l|²/n and |∂f/∂x_l|², f a random readout of all tokens after a last norm."""
    n, kept = ns.Width("n"), []
    x = norm(ns.gaussian(n, tokens))
    for branch in range(2 * blocks):
        y = x if order == "Post-LN" else norm(x)
        if branch % 2:
            y = ns.weight(n, n) @ ns.relu(ns.weight(n, n, std=math.sqrt(2)) @ y)
        else:
            q, k, v = (ns.weight(n, n) @ y for _ in range(3))
            y = ns.weight(n, n) @ (ns.softmax(ns.dot(q, k)) @ v)
        x = x + (norm(y) if order == "Peri-LN" else y)
        x = norm(x) if order == "Post-LN" else x
        kept.append(x)
    readouts = ns.dot(ns.gaussian(n, tokens), norm(x))
    states = [kept[2 * place - 1] for place in PLACES if place <= blocks]
    found = ns.grad(ns.stack([readouts[t, t] for t in range(tokens)]).sum(), states)
    return Program(tuple(
        ns.stack([ns.stack([ns.mean_dot(a, a)[t, t] for t in range(tokens)]).sum() for a in arrays])
        for arrays in (states, found)
    ))  # fmt: skip


def depth(order: str, tokens: int, blocks: int, draws: int, seed: int) -> Arrays:
    """Variances of hidden states and logarithms of squared gradients by block, a row for each network."""
    states, found = network(order, tokens, blocks).draw(n=WIDTH, draws=draws, seed=seed, workers=1, progress=False)
    return {"variance": np.asarray(states) / tokens, "log": np.log(np.asarray(found, dtype=np.float64))}


def perceptron(order: str, last_norm: bool) -> Program:
    """|∂f/∂W₂|² for one branch W₂h and one token by the factor of h, f a readout after a last norm or without one."""
    n, made = ns.Width("n"), []
    x = ns.gaussian(n, 1)
    for factor in FACTORS:
        h = ns.relu(ns.weight(n, n, std=factor * math.sqrt(2)) @ norm(x))
        a = ns.weight(n, n) @ h
        o = x + (norm(a) if order == "Peri-LN" else a)
        (g,) = ns.grad(ns.dot(ns.gaussian(n, 1), norm(o) if last_norm else o)[0, 0], [a])
        made.append(ns.mean_dot(g, g)[0, 0] * ns.mean_dot(h, h)[0, 0])
    return Program(ns.stack(made))


def power(order: str, last_norm: bool, seed: int) -> Arrays:
    """The power of |h| in |∂f/∂W₂|, a number for each network."""
    made = perceptron(order, last_norm).draw(n=WIDTH, draws=20, seed=seed, workers=1, progress=False)
    return {"power": np.diff(np.log(np.asarray(made)), axis=1)[:, 0] / (2 * math.log(FACTORS[1] / FACTORS[0]))}


def parts(quick: bool) -> list[Part]:
    """Three placements by depth, and one perceptron with large activations."""
    given, seconds = ({"blocks": 16, "draws": 16}, 1.0) if quick else ({"blocks": 64, "draws": 48}, 15.0)
    deep = [Part(order, depth, {"order": order, "tokens": TOKENS, **given}, seconds) for order in LOOKS]
    more = {"order": "Post-LN", "tokens": MORE, **given, "blocks": 16 if quick else 32}
    return [*deep, Part(f"Post-LN {MORE}", depth, more, seconds / 2)] + [
        Part(f"{order} perceptron{', last norm' * last}", power, {"order": order, "last_norm": last}, 0.1)
        for order, last in (("Pre-LN", False), ("Peri-LN", False), ("Pre-LN", True))
    ]


def exponent(values: Array) -> Estimate:
    """log₂ of the growth over the last doubling of depth over that before: p for c l^p."""
    first, second = (mean(values[:, k + 1] - values[:, k]) for k in (-3, -2))
    error = math.hypot(first.error / first.value, second.error / second.value) / math.log(2)
    return Estimate(math.log2(second.value / first.value), error)


def _near(found: Estimate, value: float) -> str:
    return decide_below(Estimate(abs(found.value - value), found.error), EXPONENT_ATOL)


def _by_block(values: Array) -> str:
    return ", ".join(f"{v:.2f} ({p})" for v, p in zip(values.mean(axis=0), PLACES, strict=False))


def judge(numbers: Numbers) -> list[Claim]:
    """Hidden states, gradients by depth, gradients at large activations."""
    states = {order: numbers[order]["variance"] for order in LOOKS}
    logs = {label: arrays["log"] for label, arrays in numbers.items() if "log" in arrays}
    linear, exponential = exponent(states["Peri-LN"]), exponent(np.log(states["Pre-LN"]))
    back = {order: mean(found[:, 0] - found[:, -1]) for order, found in logs.items()}
    size = {order: Estimate(abs(e.value), e.error) for order, e in back.items()}
    pre, peri, after = (mean(arrays["power"]) for arrays in numbers.values() if "power" in arrays)
    near, start = f"within {EXPONENT_ATOL:g} of", "At initialisation, from the last block to block 4,"
    return [
        Claim(
            "With Peri-LN the variance of hidden states grows linearly with depth.",
            f"At initialisation, the power p of depth, from the last two doublings, is {near} 1.",
            f"{linear}. Variances by block: {_by_block(states['Peri-LN'])}.",
            _near(linear, 1.0),
        ),
        Claim(
            "With Pre-LN the variance of hidden states can grow exponentially with depth (during training).",
            f"At initialisation, the exponent p of exp(c l^p), from the last two doublings, is {near} 1.",
            f"{exponential}. Variances by block: {_by_block(states['Pre-LN'])}.",
            extrapolate(_near(exponential, 1.0)),
        ),
        *(
            Claim(
                f"Post-LN is prone to vanishing gradients: {tokens} tokens.",
                f"{start} |∂f/∂x|² falls below {VANISHED:g} of itself: its logarithm by {-math.log(VANISHED):.2f}.",
                f"Change {back[label]}. Logarithms by block: {_by_block(logs[label])}.",
                extrapolate(decide_below(back[label], math.log(VANISHED))),
            )
            for label, tokens in (("Post-LN", TOKENS), (f"Post-LN {MORE}", MORE))
        ),
        *(
            Claim(
                f"Gradients are steadier with Peri-LN than with {order}.",
                f"{start} log |∂f/∂x|² changes less, by four standard errors.",
                f"Change {back['Peri-LN']} with Peri-LN, {back[order]} with {order}.",
                extrapolate(decide_decreasing(size[order], size["Peri-LN"])),
            )
            for order in ("Pre-LN", "Post-LN")
        ),
        Claim(
            "At large activations h, the gradient of W₂ grows like |h| with Pre-LN and is bounded with Peri-LN.",
            f"The power of |h| in |∂f/∂W₂| for one branch is {near} 1 with Pre-LN, {near} 0 with Peri-LN.",
            f"{pre} with Pre-LN, {peri} with Peri-LN.",
            combine(_near(pre, 1.0), _near(peri, 0.0)),
        ),
        Claim(
            "At large activations h, the gradient of W₂ grows like |h| with Pre-LN, before a last norm too.",
            f"The power of |h| in |∂f/∂W₂| is {near} 1 if a norm follows the sum.",
            f"{after}.",
            extrapolate(_near(after, 1.0)),
        ),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Means by placement and block."""
    for order in LOOKS:
        for place, state, log in zip(PLACES, numbers[order]["variance"].T, numbers[order]["log"].T, strict=False):
            made = {"variance": mean(state), "log_gradient": mean(log)}
            yield {"norms": order, "block": place, **{key: e.value for key, e in made.items()},
                   **{f"{key}_error": e.error for key, e in made.items()}}  # fmt: skip


def draw(numbers: Numbers) -> Any:
    """Variances and squared gradients by block."""
    figure = new(2.4)
    both = figure.subplots(1, 2)
    for order, colour in LOOKS.items():
        states, logs = (numbers[order][key].mean(axis=0) for key in ("variance", "log"))
        for axes, values in zip(both, (states, np.exp(logs - logs[-1])), strict=True):
            axes.plot(PLACES[: len(values)], values, marker=MARK_OF[colour], ms=3.5, color=colour, label=order)
    for axes, label in zip(both, ("variance of hidden states", "squared gradient, last = 1"), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="block", ylabel=label)
        axes.set_xticks(PLACES, map(str, PLACES))
        axes.set_yticks([1, 10, 100] if axes is both[0] else [0.25, 0.5, 1, 2, 4, 8])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


RESULT = Result(
    name="peri-ln",
    title="Peri-LN: norms around each branch",
    source="Kim et al., Peri-LN: revisiting normalization layer in the transformer architecture (ICML 2025).",
    links=("https://arxiv.org/abs/2502.02732",),
    setting=f"64 blocks of width {WIDTH} at initialisation, {TOKENS} tokens ({MORE} over 32 blocks in one row): one "
    "head of bidirectional attention and a perceptron with ReLU, all weights of variance 1/fan-in (2/fan-in before "
    "ReLU). Layer norms are after the sum (Post-LN), before each branch (Pre-LN), or before and after it (Peri-LN). "
    f"Then one perceptron whose hidden layer is {FACTORS[0]:g} or {FACTORS[1]:g} times larger. Ours: ns.grad, whose "
    f"draws have the exact law at this width. The row for {MORE} tokens was added after a first run.",
    quick="16 blocks, 16 networks.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture("peri-ln", "Left: variances of hidden states. Right: squared gradients, over the last.", draw, rows),
    ),
    unread="the paper beyond its abstract; linear and exponential growth and the gradient of W₂ are from a public "
    "summary of it. Most of its statements are on training: a failure at initialisation is outside their range.",
)
