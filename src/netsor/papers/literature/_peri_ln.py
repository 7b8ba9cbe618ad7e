"""Kim et al.: hidden states and gradients by depth, with layer norms after, before and
around each branch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ... import language as ns
from ...laws import Estimate
from ...nn import attention, block, mlp
from ...programs._program import Program
from ...report._mpl_style import BLUE, GREEN, MARK_OF, VERMILLION, new
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


class Size(NamedTuple):
    """The size of a model."""

    blocks: int
    width: int


# By the number of parameters, the smaller one first.
MODELS = {"400M": Size(24, 1024), "3.2B": Size(48, 2048)}
HEAD_DIM = 128
TOKENS, MORE = 6, 20  # of all networks, and of one more
BLOCKS = (3, 6, 12, 24, 48)  # blocks after which hidden states and gradients are taken
# The ratio of squared gradients at the first and last of these blocks below which they
# vanish; it was fixed before any number was seen.
VANISHED = 0.1
START = f"At initialisation, from the last block to block {BLOCKS[0]},"
FACTORS = (20.0, 400.0)  # on the hidden layer of a perceptron
ORDERS = {"Post-LN": "post", "Pre-LN": "pre", "Peri-LN": "sandwich"}
LOOKS = {"Post-LN": VERMILLION, "Pre-LN": BLUE, "Peri-LN": GREEN}


def norm(x: ns.Vector) -> ns.Vector:
    """A layer norm without ε."""
    return ns.layer_norm(x, eps=0.0)


def network(order: str, tokens: int, blocks: int, width: int) -> Program:
    """Sums over tokens of |x_l|²/n and |∂f/∂x_l|², after the blocks l of BLOCKS.

    f is a random readout of all tokens after a last norm. `order` is a key of ORDERS.
    """

    def attend(y: ns.Vector) -> ns.Vector:
        """Causal attention."""
        return attention(y, width // HEAD_DIM, HEAD_DIM, "causal")

    def feed(y: ns.Vector) -> ns.Vector:
        """The gated perceptron."""
        return mlp(y, hidden=4 * width, activation=ns.silu, gate=True)

    def next_block(x: ns.Vector) -> ns.Vector:
        """A block with norms in this order."""
        return block(x, attend, feed, norm, order=ORDERS[order]).output

    streams = stream(norm(ns.gaussian(width, tokens)), next_block, blocks)
    measured = [streams[number] for number in BLOCKS if number <= blocks]
    states = squares(measured)
    gradients = ns.grad(readout(norm(streams[-1])), measured)
    return Program((states, squares(gradients)))


def depth(
    order: str, tokens: int, blocks: int, width: int, draws: int, seed: int
) -> Arrays:
    """Variances of hidden states and logarithms of squared gradients by block: arrays
    (networks, blocks).
    """
    program = network(order, tokens, blocks, width)
    states, gradients = program.draw(draws=draws, seed=seed, workers=1, progress=False)
    return {
        "variance": np.asarray(states) / tokens,
        "log": np.log(np.asarray(gradients, dtype=np.float64)),
    }


def perceptron(order: str, last_norm: bool, width: int) -> Program:
    """|∂f/∂W₂|² for one branch W₂h and one token, for each of FACTORS on h.

    f is a readout after a last norm or without one. With a = W₂h, the gradient by W₂ is
    the outer product of that by a with h, so its square is the product of theirs.
    """
    x = ns.gaussian(width, 1)
    products = []
    for factor in FACTORS:
        w_in = ns.weight(4 * width, width, std=factor * math.sqrt(2))
        h = ns.relu(w_in @ norm(x))
        a = ns.weight(width, 4 * width) @ h
        branch = norm(a) if order == "Peri-LN" else a
        output = x + branch
        if last_norm:
            output = norm(output)
        (g,) = ns.grad(readout(output), [a])
        products.append(ns.mean_dot(g, g)[0, 0] * ns.mean_dot(h, h)[0, 0])
    return Program(ns.stack(products))


def power(order: str, last_norm: bool, width: int, seed: int) -> Arrays:
    """The power of |h| in |∂f/∂W₂|, (networks,): from its growth between FACTORS."""
    program = perceptron(order, last_norm, width)
    squares = program.draw(draws=20, seed=seed, workers=1, progress=False)
    logs = np.log(np.asarray(squares))  # (networks, factors)
    growth = np.diff(logs, axis=1)[:, 0]
    return {"power": growth / (2 * math.log(FACTORS[1] / FACTORS[0]))}


def parts(quick: bool) -> list[Part]:
    """The three orders of norms by depth, and one perceptron with large activations.

    A quick run has only the smaller model.
    """
    parts = []
    models = list(MODELS)[:1] if quick else list(MODELS)
    for model in models:
        parts += [_depth_part(order, model, TOKENS, quick) for order in LOOKS]
    parts.append(_depth_part("Post-LN", model="400M", tokens=MORE, quick=quick))
    for label, order, last_norm in (
        (PRE, "Pre-LN", False),
        (PERI, "Peri-LN", False),
        (PRE_WITH_LAST_NORM, "Pre-LN", True),
    ):
        arguments = {"order": order, "last_norm": last_norm, "width": 2048}
        parts.append(Part(label=label, work=power, arguments=arguments, seconds=0.1))
    return parts


# Labels of perceptrons.
PRE, PERI = "Pre-LN perceptron", "Peri-LN perceptron"
PRE_WITH_LAST_NORM = "Pre-LN perceptron, last norm"


def _depth_part(order: str, model: str, tokens: int, quick: bool) -> Part:
    """The part of one network by depth; its label is "Pre-LN 400M 6", see `_deep`."""
    blocks, width = MODELS[model]
    draws = 16 if quick else 48
    arguments = {
        "order": order,
        "tokens": tokens,
        "blocks": blocks,
        "width": width,
        "draws": draws,
    }
    seconds = blocks**2 * (6e-3 + 1.6e-4 * draws) * tokens / TOKENS
    return Part(
        label=f"{order} {model} {tokens}",
        work=depth,
        arguments=arguments,
        seconds=seconds,
    )


class Setting(NamedTuple):
    """A network of blocks."""

    order: str
    model: str
    tokens: int


Deep = Mapping[Setting, Array]


def _deep(numbers: Numbers, key: str) -> Deep:
    """One array (networks, blocks) of the networks by depth, for each setting; the
    setting is in the label of the part.
    """
    deep = {}
    for label, arrays in numbers.items():
        if key in arrays:
            order, model, tokens = label.split()
            deep[Setting(order, model, int(tokens))] = arrays[key]
    return deep


def _models(deep: Deep) -> list[str]:
    """The models that were run."""
    return [model for model in MODELS if Setting("Pre-LN", model, TOKENS) in deep]


def _by_block(values: Array) -> str:
    """Means over networks, as "1.20 (3), 2.41 (6)": a number and its block. A smaller
    model has the first few of BLOCKS.
    """
    texts = []
    for value, number in zip(values.mean(axis=0), BLOCKS, strict=False):
        texts.append(f"{value:.2f} ({number})")
    return ", ".join(texts)


def _state_growth(states: Deep, order: str) -> tuple[str, str]:
    """The power of depth in the variance of hidden states, in words for all models, and
    the verdict on whether it is 1.

    With Pre-LN it is the power of depth in the logarithm of the variance.
    """
    listed = []
    verdicts = []
    for model in _models(states):
        values = states[Setting(order, model, TOKENS)]
        power = exponent(values if order == "Peri-LN" else np.log(values))
        listed.append(f"{power} ({model}, variances by block: {_by_block(values)})")
        verdicts.append(near(power, 1.0))
    return f"{'; '.join(listed)}.", combine(*verdicts)


def _linear(states: Deep) -> Claim:
    """The claim on hidden states with Peri-LN."""
    measured, verdict = _state_growth(states, "Peri-LN")
    return Claim(
        published=(
            "With Peri-LN the variance of hidden states grows linearly with depth."
        ),
        rule="At initialisation, the power p of depth, from the last two doublings, is"
        f" within {EXPONENT_ATOL:g} of 1.",
        ours=measured,
        verdict=verdict,
    )


def _exponential(states: Deep) -> Claim:
    """The claim on hidden states with Pre-LN."""
    measured, verdict = _state_growth(states, "Pre-LN")
    return Claim(
        published=(
            "With Pre-LN the variance of hidden states can grow exponentially with"
            " depth (during training)."
        ),
        rule=(
            "At initialisation, the exponent p of exp(c l^p), from the last two"
            f" doublings, is within {EXPONENT_ATOL:g} of 1."
        ),
        ours=measured,
        verdict=extrapolate(verdict),
    )


def _gradient_growth(logs: Deep, setting: Setting) -> Estimate:
    """How log |∂f/∂x|² changes from the last block to the first of BLOCKS."""
    values = logs[setting]
    return mean(values[:, 0] - values[:, -1])


def _vanishing(logs: Deep, tokens: int) -> Claim:
    """The claim on gradients with Post-LN, for this many tokens."""
    listed = []
    verdicts = []
    for setting, values in logs.items():
        if setting.order == "Post-LN" and setting.tokens == tokens:
            change = _gradient_growth(logs, setting)
            listed.append(f"{change} ({setting.model}, by block: {_by_block(values)})")
            verdicts.append(decide_below(change, math.log(VANISHED)))
    return Claim(
        published=f"Post-LN is prone to vanishing gradients: {tokens} tokens.",
        rule=f"{START} |∂f/∂x|² falls below {VANISHED:g} of itself: its logarithm by"
        f" {-math.log(VANISHED):.2f}.",
        ours=f"{'; '.join(listed)}.",
        verdict=extrapolate(combine(*verdicts)),
    )


def _steadier(logs: Deep, order: str) -> Claim:
    """The claim on gradients with Peri-LN against those with another order of norms."""
    listed = []
    verdicts = []
    for model in _models(logs):
        other = _gradient_growth(logs, Setting(order, model, TOKENS))
        peri = _gradient_growth(logs, Setting("Peri-LN", model, TOKENS))
        listed.append(f"{peri} with Peri-LN, {other} with {order} ({model})")
        other_size = Estimate(abs(other.value), other.error)
        peri_size = Estimate(abs(peri.value), peri.error)
        verdicts.append(decide_decreasing(other_size, peri_size))
    return Claim(
        published=f"Gradients are steadier with Peri-LN than with {order}.",
        rule=f"{START} log |∂f/∂x|² changes less, by four standard errors.",
        ours=f"{'; '.join(listed)}.",
        verdict=extrapolate(combine(*verdicts)),
    )


def _large_activations(numbers: Numbers) -> Claim:
    """The claim on the gradient of W₂ at large activations."""
    pre = mean(numbers[PRE]["power"])
    peri = mean(numbers[PERI]["power"])
    return Claim(
        published=(
            "At large activations h, the gradient of W₂ grows like |h| with Pre-LN and"
            " is bounded with Peri-LN."
        ),
        rule=(
            f"The power of |h| in |∂f/∂W₂| for one branch is within {EXPONENT_ATOL:g}"
            f" of 1 with Pre-LN, within {EXPONENT_ATOL:g} of 0 with Peri-LN."
        ),
        ours=f"{pre} with Pre-LN, {peri} with Peri-LN.",
        verdict=combine(near(pre, 1.0), near(peri, 0.0)),
    )


def _before_last_norm(numbers: Numbers) -> Claim:
    """The same for a network that ends with a norm."""
    power = mean(numbers[PRE_WITH_LAST_NORM]["power"])
    return Claim(
        published=(
            "At large activations h, the gradient of W₂ grows like |h| with Pre-LN,"
            " before a last norm too."
        ),
        rule=f"The power of |h| in |∂f/∂W₂| is within {EXPONENT_ATOL:g} of 1 if a norm"
        " follows the sum.",
        ours=f"{power}.",
        verdict=extrapolate(near(power, 1.0)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Hidden states, gradients by depth, gradients at large activations."""
    states = _deep(numbers, "variance")
    logs = _deep(numbers, "log")
    return [
        _linear(states),
        _exponential(states),
        _vanishing(logs, TOKENS),
        _vanishing(logs, MORE),
        _steadier(logs, "Pre-LN"),
        _steadier(logs, "Post-LN"),
        _large_activations(numbers),
        _before_last_norm(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows of the table: means over networks of the variance of hidden states and of
    log |∂f/∂x|², by order of norms, model, tokens and block.

    A smaller model has rows for the first few of BLOCKS only.
    """
    logs = _deep(numbers, "log")
    for setting, states in _deep(numbers, "variance").items():
        names = {
            "norms": setting.order,
            "model": setting.model,
            "tokens": setting.tokens,
        }
        columns = {"variance": states, "log_gradient": logs[setting]}
        yield from mean_rows(names, BLOCKS, columns)


def draw(numbers: Numbers) -> Any:
    """Variances and squared gradients by block, of the larger model."""
    figure = new(2.4)
    left, right = figure.subplots(1, 2)
    states = _deep(numbers, "variance")
    logs = _deep(numbers, "log")
    model = _models(states)[-1]
    for order, colour in LOOKS.items():
        setting = Setting(order, model, TOKENS)
        variances = states[setting].mean(axis=0)
        log = logs[setting].mean(axis=0)
        blocks = BLOCKS[: len(variances)]
        style = {"marker": MARK_OF[colour], "ms": 3.5, "color": colour}
        left.plot(blocks, variances, label=order, **style)
        right.plot(blocks, np.exp(log - log[-1]), label=order, **style)
    left.set_ylabel("variance of hidden states")
    right.set_ylabel("squared gradient, last = 1")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="block")
        axes.set_xticks(BLOCKS, map(str, BLOCKS))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.xaxis.minorticks_off()
        axes.yaxis.set_minor_formatter("")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
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
            name="peri-ln",
            caption=(
                "Left: variances of hidden states. Right: squared gradients, over the"
                " last."
            ),
            draw=draw,
            rows=rows,
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
