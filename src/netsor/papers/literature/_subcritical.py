"""Alekseev: gradients through deep transformers, with layer norms and with tanh-like
functions instead of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ... import language as ns
from ...laws import Estimate
from ...nn import attention, block, mlp
from ...programs._program import Program
from ...report._mpl_style import BLUE, MARK_OF, ORANGE, VERMILLION, new
from ...studies import Arrays
from .._significance import combine, decide_below, extrapolate
from ._depth import exponent, mean_rows, readout, squares, stream
from ._result import EXPONENT_ATOL, Claim, Numbers, Part, Picture, Result, near

# As in the author's notes: width, hidden units, heads, the standard deviation of all
# weights, and the cosine of two tokens.
WIDTH, HIDDEN, HEADS, STD, COSINE = 1024, 4096, 16, 0.02, 0.4
TOKENS = 4
BLOCKS = (4, 8, 16, 32, 64, 128)  # blocks after which the gradient is taken
NORMS: dict[str, Any] = {
    "pre-LN": partial(ns.layer_norm, eps=0.0),
    "DyT": ns.tanh,
    "Derf": ns.erf,
}
LOOKS = {"pre-LN": BLUE, "DyT": VERMILLION, "Derf": ORANGE}
STYLES = {"attention": "-", "perceptrons": "--"}


def gradients(norm: str, with_attention: bool, depth: int) -> Program:
    """|∂f/∂x_l|² over all tokens after the blocks l of BLOCKS, up to `depth`.

    f is a random readout of all tokens, one block after the last of these. `norm` is a
    key of NORMS, and stands before each branch.
    """
    sigma = STD * math.sqrt(WIDTH)
    before = NORMS[norm]

    def attend(y: ns.Vector) -> ns.Vector:
        """The branch of attention."""
        return attention(
            y,
            HEADS,
            WIDTH // HEADS,
            sigma_q=sigma,
            sigma_k=sigma,
            sigma_v=sigma,
            sigma_o=sigma,
        )

    def feed(y: ns.Vector) -> ns.Vector:
        """The perceptron."""
        return mlp(y, HIDDEN, sigma_w=sigma, sigma_out=STD * math.sqrt(HIDDEN))

    def next_block(x: ns.Vector) -> ns.Vector:
        """A block, with attention or without."""
        if not with_attention:
            return x + feed(before(x))
        return block(x, attend, feed, norm=before).output

    tokens = ns.gaussian(WIDTH, TOKENS, cov=(1 - COSINE) * np.eye(TOKENS) + COSINE)
    streams = stream(tokens, next_block, depth + 1)
    measured = [streams[number] for number in BLOCKS if number <= depth]
    return Program(squares(ns.grad(readout(streams[-1]), measured)))


def growth(
    norm: str, with_attention: bool, depth: int, draws: int, seed: int
) -> Arrays:
    """The logarithm of the squared gradient after each of BLOCKS, up to `depth`: an
    array (networks, blocks).
    """
    program = gradients(norm, with_attention, depth)
    squared = program.draw(draws=draws, seed=seed, workers=1, progress=False)
    return {"log": np.log(np.asarray(squared, dtype=np.float64))}


def parts(quick: bool) -> list[Part]:
    """Three norms, with attention and without."""
    parts = []
    for kind, seconds_per_block in (("attention", 0.2), ("perceptrons", 0.08)):
        for norm in NORMS:
            if quick:
                depth, draws = 32, 8
            else:
                # growth with a layer norm is small: its exponent needs more draws
                depth = BLOCKS[-1]
                draws = 72 if norm == "pre-LN" else 24
            arguments = {
                "depth": depth,
                "draws": draws,
                "norm": norm,
                "with_attention": kind == "attention",
            }
            seconds = seconds_per_block * depth * (1 + draws / 24) / 2
            parts.append(
                Part(
                    label=f"{norm} {kind}",
                    work=growth,
                    arguments=arguments,
                    seconds=seconds,
                )
            )
    return parts


def _claim(numbers: Numbers, norm: str, kind: str) -> Claim:
    """The claim on how squared gradients grow with depth, for one norm; `kind` is
    "attention" or "perceptrons".
    """
    logs = numbers[f"{norm} {kind}"]["log"]
    power = exponent(logs)
    # from one of BLOCKS to the next; gradients are larger at the first of them
    growths = -np.diff(logs.mean(axis=0))
    doublings = ", ".join(f"{value:.2f}" for value in growths)
    if norm == "pre-LN":
        growth = "like a power of depth"
        rule = f"within {EXPONENT_ATOL:g} of 0"
        verdict = near(power, 0.0)
    else:
        growth = "like a stretched exponential"
        rule = f"above {EXPONENT_ATOL:g} and below {1 - EXPONENT_ATOL:g}"
        verdict = combine(
            decide_below(Estimate(-power.value, power.error), -EXPONENT_ATOL),
            decide_below(power, 1 - EXPONENT_ATOL),
        )
    blocks = "transformer" if kind == "attention" else "perceptrons only"
    return Claim(
        published=f"With {norm} squared gradients grow {growth}: {blocks}.",
        rule=(
            f"The exponent p of exp(c l^p), from the last three blocks, is {rule}; a"
            " power law has 0, an exponential 1."
        ),
        ours=f"{power}. Growth by doublings of depth, from block {BLOCKS[0]} on:"
        f" {doublings}.",
        verdict=extrapolate(verdict),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Each norm, with attention and without."""
    return [_claim(numbers, norm, kind) for kind in STYLES for norm in NORMS]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean logarithms by network and block."""
    for label, arrays in numbers.items():
        norm, kind = label.split()
        names = {"norm": norm, "blocks": kind}
        yield from mean_rows(names, BLOCKS, {"log": arrays["log"]})


def draw(numbers: Numbers) -> Any:
    """The growth of gradients with depth, as a power law would be a line."""
    figure = new(2.6)
    axes = figure.subplots()
    for label, arrays in numbers.items():
        norm, kind = label.split()
        logs = arrays["log"].mean(axis=0)
        colour = LOOKS[norm]
        axes.plot(
            BLOCKS[: len(logs)],
            logs[0] - logs,
            STYLES[kind],
            color=colour,
            marker=MARK_OF[colour],
            ms=3,
            label=f"{norm}, {kind}",
        )
    axes.set(xscale="log", xlabel="block", ylabel="log growth since block 4")
    axes.set_xticks(BLOCKS, map(str, BLOCKS))
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


RESULT = Result(
    name="subcritical",
    title="Alekseev: gradients with and without norms",
    source=(
        "Alekseev, Subcritical signal propagation at initialization in"
        " normalization-free transformers (2026)."
    ),
    links=(
        "https://arxiv.org/abs/2604.11890",
        "https://github.com/labofdoubt/labofdoubt.github.io",
    ),
    setting=(
        "Vision transformers of the sizes in the author's public notes, ViT-L with 128"
        f" layers: pre-norm blocks of width {WIDTH} with {HEADS} heads of bidirectional"
        f" attention and a perceptron with ReLU of width {HIDDEN}, all weights of"
        f" standard deviation {STD:g}, tokens of variance 1 and cosine {COSINE:g}. Ours"
        f" have 128 blocks and {TOKENS} tokens instead of 197. The norm before each is"
        " a layer norm, tanh (DyT with α = 1) or erf (Derf). Ours: ns.grad, whose"
        " draws have the exact law at this width; means are of logarithms over"
        " networks."
    ),
    quick="32 blocks, 8 networks.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="subcritical",
            caption=(
                "How squared gradients grow with depth; a power law is a line here,"
                " and an exponential of √depth bends up."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract: sizes are from the notes that preceded it, and"
        " whether 128 layers are blocks or branches is not clear there. Its statements"
        " are on large depth, so that a failure at 128 blocks is outside their range."
    ),
)
