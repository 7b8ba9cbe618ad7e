"""Kim et al.: hidden states and gradients by depth, with layer norms after, before and
around each branch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ... import language as ns
from ..._mpl_style import BLUE, GREEN, MARK_OF, VERMILLION, new
from ..._program import Program
from ...laws import Estimate
from ...nn import attention, block, mlp
from ...studies import Arrays
from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._depth import exponent, mean_rows, readout, squares, stream
from ._result import (
    EXPONENT_ATOL,
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    mean,
    near,
)

# blocks and width, by the number of parameters
MODELS = {"400M": (24, 1024), "3.2B": (48, 2048)}
HEAD_DIM = 128
TOKENS, MORE = 6, 20
PLACES = (3, 6, 12, 24, 48)  # blocks after which hidden states and gradients are taken
# of a squared gradient, from the last place to the first; fixed before any number was
# seen
VANISHED = 0.1
START = f"At initialisation, from the last block to block {PLACES[0]},"
FACTORS = (20.0, 400.0)  # of the hidden layer of a perceptron
ORDERS = {"Post-LN": "post", "Pre-LN": "pre", "Peri-LN": "sandwich"}
LOOKS = {"Post-LN": VERMILLION, "Pre-LN": BLUE, "Peri-LN": GREEN}


def norm(x: ns.Vector) -> ns.Vector:
    """A layer norm without ε."""
    return ns.layer_norm(x, eps=0.0)


def network(order: str, tokens: int, blocks: int, width: int) -> Program:
    """Sums over tokens of |x_l|²/n and |∂f/∂x_l|², f a random readout of all tokens
    after a last norm.
    """

    def one(x: ns.Vector) -> ns.Vector:
        return block(
            x,
            lambda y: attention(y, width // HEAD_DIM, HEAD_DIM, "causal"),
            lambda y: mlp(y, 4 * width, activation=ns.silu, gate=True),
            norm,
            ORDERS[order],
        ).output

    every = stream(norm(ns.gaussian(width, tokens)), one, blocks)
    kept = [every[place] for place in PLACES if place <= blocks]
    return Program((squares(kept), squares(ns.grad(readout(norm(every[-1])), kept))))


def depth(
    order: str, tokens: int, blocks: int, width: int, draws: int, seed: int
) -> Arrays:
    """Variances of hidden states and logarithms of squared gradients by block, a row
    for each network.
    """
    states, found = network(order, tokens, blocks, width).draw(
        draws=draws, seed=seed, workers=1, progress=False
    )
    return {
        "variance": np.asarray(states) / tokens,
        "log": np.log(np.asarray(found, dtype=np.float64)),
    }


def perceptron(order: str, last_norm: bool, width: int) -> Program:
    """|∂f/∂W₂|² for one branch W₂h and one token by the factor of h, f a readout after
    a last norm or without one.
    """
    made, x = [], ns.gaussian(width, 1)
    for factor in FACTORS:
        h = ns.relu(ns.weight(4 * width, width, std=factor * math.sqrt(2)) @ norm(x))
        a = ns.weight(width, 4 * width) @ h
        o = x + (norm(a) if order == "Peri-LN" else a)
        (g,) = ns.grad(readout(norm(o) if last_norm else o), [a])
        made.append(ns.mean_dot(g, g)[0, 0] * ns.mean_dot(h, h)[0, 0])
    return Program(ns.stack(made))


def power(order: str, last_norm: bool, width: int, seed: int) -> Arrays:
    """The power of |h| in |∂f/∂W₂|, a number for each network."""
    made = perceptron(order, last_norm, width).draw(
        draws=20, seed=seed, workers=1, progress=False
    )
    return {
        "power": (
            np.diff(np.log(np.asarray(made)), axis=1)[:, 0]
            / (2 * math.log(FACTORS[1] / FACTORS[0]))
        )
    }


def parts(quick: bool) -> list[Part]:
    """Three placements by depth in both models, or in the smaller one; and one
    perceptron with large activations.
    """
    draws = 16 if quick else 48
    cases = [
        (order, model, TOKENS)
        for model in list(MODELS)[: 1 if quick else 2]
        for order in LOOKS
    ]
    deep = [
        Part(
            f"{order} {model} {tokens}",
            depth,
            {
                "order": order,
                "tokens": tokens,
                "blocks": MODELS[model][0],
                "width": MODELS[model][1],
                "draws": draws,
            },
            MODELS[model][0] ** 2 * (6e-3 + 1.6e-4 * draws) * tokens / TOKENS,
        )
        for order, model, tokens in [*cases, ("Post-LN", "400M", MORE)]
    ]
    return deep + [
        Part(
            f"{order} perceptron{', last norm' * last}",
            power,
            {"order": order, "last_norm": last, "width": 2048},
            0.1,
        )
        for order, last in (("Pre-LN", False), ("Peri-LN", False), ("Pre-LN", True))
    ]


Deep = Mapping[tuple[str, str, int], Array]


def _deep(numbers: Numbers, key: str) -> Deep:
    """Networks × blocks, by placement, model and number of tokens."""
    labels = [label for label in numbers if key in numbers[label]]
    return {
        (order, model, int(t)): numbers[f"{order} {model} {t}"][key]
        for order, model, t in map(str.split, labels)
    }


def _models(found: Deep) -> list[str]:
    return [model for model in MODELS if ("Pre-LN", model, TOKENS) in found]


def _by_block(values: Array) -> str:
    return ", ".join(
        f"{v:.2f} ({p})" for v, p in zip(values.mean(axis=0), PLACES, strict=False)
    )


def _grown(states: Deep, order: str) -> tuple[str, str]:
    """The power of depth in the variance with Peri-LN, in its logarithm with Pre-LN;
    and whether it is 1.
    """
    listed, verdicts = [], []
    for model in _models(states):
        values = states[order, model, TOKENS]
        found = exponent(values if order == "Peri-LN" else np.log(values))
        listed.append(f"{found} ({model}, variances by block: {_by_block(values)})")
        verdicts.append(near(found, 1.0))
    return "; ".join(listed) + ".", combine(*verdicts)


def _back(logs: Deep, order: str, model: str, tokens: int = TOKENS) -> Estimate:
    """How log |∂f/∂x|² changes from the last block to the first of the places."""
    found = logs[order, model, tokens]
    return mean(found[:, 0] - found[:, -1])


def _vanishing(logs: Deep, tokens: int) -> Claim:
    models = [model for order, model, t in logs if (order, t) == ("Post-LN", tokens)]
    found = {model: _back(logs, "Post-LN", model, tokens) for model in models}
    return Claim(
        f"Post-LN is prone to vanishing gradients: {tokens} tokens.",
        f"{START} |∂f/∂x|² falls below {VANISHED:g} of itself: its logarithm by"
        f" {-math.log(VANISHED):.2f}.",
        "; ".join(
            f"{e} ({m}, by block: {_by_block(logs['Post-LN', m, tokens])})"
            for m, e in found.items()
        )
        + ".",
        extrapolate(
            combine(*(decide_below(e, math.log(VANISHED)) for e in found.values()))
        ),
    )


def _steadier(logs: Deep, order: str) -> Claim:
    found = {
        model: (_back(logs, order, model), _back(logs, "Peri-LN", model))
        for model in _models(logs)
    }
    sizes = [[Estimate(abs(e.value), e.error) for e in pair] for pair in found.values()]
    return Claim(
        f"Gradients are steadier with Peri-LN than with {order}.",
        f"{START} log |∂f/∂x|² changes less, by four standard errors.",
        "; ".join(
            f"{peri} with Peri-LN, {other} with {order} ({m})"
            for m, (other, peri) in found.items()
        )
        + ".",
        extrapolate(combine(*(decide_decreasing(*pair) for pair in sizes))),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Hidden states, gradients by depth, gradients at large activations."""
    states, logs = (_deep(numbers, key) for key in ("variance", "log"))
    pre, peri, after = (
        mean(arrays["power"]) for arrays in numbers.values() if "power" in arrays
    )
    (linear, linear_verdict), (exponential, verdict) = (
        _grown(states, "Peri-LN"),
        _grown(states, "Pre-LN"),
    )
    within, last = f"within {EXPONENT_ATOL:g} of", "from the last two doublings,"
    return [
        Claim(
            "With Peri-LN the variance of hidden states grows linearly with depth.",
            f"At initialisation, the power p of depth, {last} is {within} 1.",
            linear,
            linear_verdict,
        ),
        Claim(
            "With Pre-LN the variance of hidden states can grow exponentially with"
            " depth (during training).",
            f"At initialisation, the exponent p of exp(c l^p), {last} is {within} 1.",
            exponential,
            extrapolate(verdict),
        ),
        *(_vanishing(logs, tokens) for tokens in (TOKENS, MORE)),
        *(_steadier(logs, order) for order in ("Pre-LN", "Post-LN")),
        Claim(
            "At large activations h, the gradient of W₂ grows like |h| with Pre-LN and"
            " is bounded with Peri-LN.",
            f"The power of |h| in |∂f/∂W₂| for one branch is {within} 1 with Pre-LN,"
            f" {within} 0 with Peri-LN.",
            f"{pre} with Pre-LN, {peri} with Peri-LN.",
            combine(near(pre, 1.0), near(peri, 0.0)),
        ),
        Claim(
            "At large activations h, the gradient of W₂ grows like |h| with Pre-LN,"
            " before a last norm too.",
            f"The power of |h| in |∂f/∂W₂| is {within} 1 if a norm follows the sum.",
            f"{after}.",
            extrapolate(near(after, 1.0)),
        ),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Means by placement, model, tokens and block."""
    logs = _deep(numbers, "log")
    for (order, model, tokens), states in _deep(numbers, "variance").items():
        names = {"norms": order, "model": model, "tokens": tokens}
        yield from mean_rows(
            names,
            PLACES,
            {"variance": states, "log_gradient": logs[order, model, tokens]},
        )


def draw(numbers: Numbers) -> Any:
    """Variances and squared gradients by block, of the larger model."""
    figure = new(2.4)
    both = figure.subplots(1, 2)
    found = [_deep(numbers, key) for key in ("variance", "log")]
    model = _models(found[0])[-1]
    for order, colour in LOOKS.items():
        states, logs = (values[order, model, TOKENS].mean(axis=0) for values in found)
        for axes, values in zip(both, (states, np.exp(logs - logs[-1])), strict=True):
            axes.plot(
                PLACES[: len(values)],
                values,
                marker=MARK_OF[colour],
                ms=3.5,
                color=colour,
                label=order,
            )
    for axes, label in zip(
        both, ("variance of hidden states", "squared gradient, last = 1"), strict=True
    ):
        axes.set(xscale="log", yscale="log", xlabel="block", ylabel=label)
        axes.set_xticks(PLACES, map(str, PLACES))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.xaxis.minorticks_off()
        axes.yaxis.set_minor_formatter("")
    figure.legend(
        *both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    return figure


RESULT = Result(
    name="peri-ln",
    title="Peri-LN: norms around each branch",
    source=(
        "Kim et al., Peri-LN: revisiting normalization layer in the transformer"
        " architecture (ICML 2025)."
    ),
    links=("https://arxiv.org/abs/2502.02732",),
    setting=(
        "The largest and the smallest of its models at initialisation: 3.2B"
        " parameters, 48 blocks of width 2048, and 400M, 24 blocks of width 1024, with"
        f" heads of dimension {HEAD_DIM}, causal attention and SwiGLU of four times the"
        f" width. Ours are {TOKENS} tokens ({MORE} in one row) and weights of variance"
        " 1/fan-in. Layer norms are after the sum (Post-LN), before each branch"
        " (Pre-LN), or before and after it (Peri-LN). Then one perceptron with ReLU of"
        f" width 2048 whose hidden layer is {FACTORS[0]:g} or {FACTORS[1]:g} times"
        " larger. Ours: ns.grad, whose draws have the exact law at these widths."
    ),
    quick="the smaller model, 16 networks.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "peri-ln",
            "Left: variances of hidden states. Right: squared gradients, over the"
            " last.",
            draw,
            rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract; linear and exponential growth, the gradient of"
        " W₂ and the numbers of blocks are from a public summary of it. Its widths,"
        " heads and activations were not read: with SwiGLU, blocks of these widths have"
        " 403M and 3.22B parameters. Most of its statements are on training: a failure"
        " at initialisation is outside their range."
    ),
)
