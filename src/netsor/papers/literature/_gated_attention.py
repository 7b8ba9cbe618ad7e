"""Qiu et al.: a sigmoid gate after attention, at initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import language as ns
from ..._mpl_style import BLUE, GREEN, MARK_OF, ORANGE, VERMILLION, new
from ..._program import Program
from ...laws import Estimate
from ...nn import block, mlp
from ...studies import Arrays
from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._depth import squares, stream
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean

# width of the stream and of perceptrons, by the number of blocks
MODELS = {28: (2048, 6144), 48: (1536, 4608)}
HEADS, GROUPS, HEAD_DIM, STD = 16, 8, 128, 0.02  # of both; STD of all weights
# of one head: tokens that span fewer directions than the head has
TOKENS, DIRECTIONS = 48, 6
DEEP_TOKENS, PLACES = 5, (1, 2, 4, 8, 16)  # and the last block
EVEN_MIN, CLOSED, RANK_RTOL, RANK_FACTOR = 0.1, 0.1, 1e-9, 1.1
LOOKS = {
    "none": ("no gate", BLUE),
    "elementwise": ("gate per element", VERMILLION),
    "headwise": ("gate per head", ORANGE),
    "constant": ("constant factor", GREEN),
}
ALONE, STACKS = ("none", "elementwise", "headwise"), ("none", "elementwise", "constant")


def sigma(fan_in: int) -> float:
    """Of a weight, for entries of standard deviation STD."""
    return STD * math.sqrt(fan_in)


def gate_square(width: int) -> float:
    """E σ(z)² of gates, by Gauss–Hermite quadrature: their factor on the square of
    attention's output.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return float(weights @ (1 + np.exp(-sigma(width) * nodes)) ** -2 / weights.sum())


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention with norms of queries and keys."""
    return ns.softmax(ns.dot(ns.rms_norm(q), ns.rms_norm(k)), mask="causal") @ v


def head(kind: str, width: int) -> Program:
    """Inner products of one head's outputs, of their even and odd parts in the tokens,
    and gates, one per token.
    """
    queries, keys, values, gates = (
        ns.weight(HEAD_DIM, width, std=sigma(width)) for _ in range(4)
    )
    out, single = (
        ns.weight(width, HEAD_DIM, std=sigma(HEAD_DIM)),
        sigma(width) * ns.gaussian(width).reshape(1),
    )
    x = ns.rms_norm(ns.normal((TOKENS, DIRECTIONS)) @ ns.gaussian(width, DIRECTIONS))
    signs = []
    for signed in (x, -x):
        y = attend(queries @ signed, keys @ signed, values @ signed)
        scores: dict[str, Any] = {
            "elementwise": gates @ signed,
            "headwise": ns.dot(single, signed)[0],
        }
        signs.append(out @ (y if kind == "none" else ns.sigmoid(scores[kind]) * y))
    found = (signs[0], signs[0] + signs[1], signs[0] - signs[1])
    return Program(
        (*(ns.mean_dot(y, y) for y in found), ns.sigmoid(ns.dot(single, x)[0]))
    )


def heads(kind: str, width: int, draws: int, seed: int) -> Arrays:
    """Eigenvalues of outputs over their sum, largest first; the even share; the share
    of closed gates.
    """
    drawn = head(kind, width).draw(draws=draws, seed=seed, workers=1, progress=False)
    products, even, odd, gates = map(np.asarray, drawn)
    eigenvalues = np.linalg.eigvalsh(products)[:, ::-1]
    parts = [np.trace(part, axis1=1, axis2=2) for part in (even, odd)]
    return {
        "spectrum": np.abs(eigenvalues) / eigenvalues.sum(axis=1, keepdims=True),
        "even": parts[0] / (parts[0] + parts[1]),
        "closed": (gates < CLOSED).mean(axis=1),
    }


def stack(kind: str, depth: int, width: int, hidden: int) -> Program:
    """|∂f/∂x_l|² over all tokens after some blocks l, f a random readout of the last
    token after all.
    """
    # as published: the parameters of gates are taken from the perceptron
    if kind == "elementwise":
        hidden -= HEADS * HEAD_DIM // 3

    def attention(y: ns.Vector) -> ns.Vector:
        q, scores = (
            ns.weight(HEAD_DIM, width, std=sigma(width), batch=HEADS) @ y
            for _ in range(2)
        )
        k, v = (
            ns.weight(HEAD_DIM, width, std=sigma(width), batch=GROUPS) @ y
            for _ in range(2)
        )
        shared = np.repeat(np.arange(GROUPS), HEADS // GROUPS)
        gate = {
            "none": 1.0,
            "elementwise": ns.sigmoid(scores),
            "constant": math.sqrt(gate_square(width)),
        }[kind]
        joined = ns.concat(gate * attend(q, k[shared], v[shared]), axis=0)
        return ns.weight(width, HEADS * HEAD_DIM, std=sigma(HEADS * HEAD_DIM)) @ joined

    def feed(y: ns.Vector) -> ns.Vector:
        return mlp(
            y,
            hidden,
            activation=ns.silu,
            gate=True,
            sigma_w=sigma(width),
            sigma_out=sigma(hidden),
        )

    every = stream(
        STD * ns.gaussian(width, DEEP_TOKENS),
        lambda x: block(x, attention, feed).output,
        depth,
    )
    f = ns.dot(ns.gaussian(width).reshape(1), ns.rms_norm(every[-1]))[0, -1]
    return Program(squares(ns.grad(f, [every[place] for place in places(depth)])))


def places(depth: int) -> tuple[int, ...]:
    """Blocks after which gradients are taken."""
    return (*(place for place in PLACES if place < depth), depth)


def stacks(
    kind: str, depth: int, width: int, hidden: int, draws: int, seed: int
) -> Arrays:
    """The logarithm of the squared gradient after each block, less that after the
    last.
    """
    made = stack(kind, depth, width, hidden).draw(
        draws=draws, seed=seed, workers=1, progress=False
    )
    logs = np.log(np.asarray(made, dtype=np.float64))
    return {"growth": logs - logs[:, -1:]}


def parts(quick: bool) -> list[Part]:
    """One head, and stacks of blocks."""
    few, many = (4, 10) if quick else (32, 400)
    width = MODELS[28][0]
    made = [
        Part(
            f"head {kind}",
            heads,
            {"kind": kind, "width": width, "draws": many},
            0.02 * many,
        )
        for kind in ALONE
    ]
    for depth, (width, hidden) in list(MODELS.items())[: 1 if quick else 2]:
        given = {"depth": depth, "width": width, "hidden": hidden, "draws": few}
        seconds = 2 + 2e-4 * few * depth**2
        made += [
            Part(f"stack {kind} {depth}", stacks, {"kind": kind, **given}, seconds)
            for kind in STACKS
        ]
    return made


def _words(found: dict[str, Estimate]) -> str:
    return ", ".join(f"{e} ({LOOKS[kind][0]})" for kind, e in found.items())


def _nonlinear(numbers: Numbers) -> Claim:
    found = {kind: mean(numbers[f"head {kind}"]["even"]) for kind in ALONE}
    gated = [
        decide_below(Estimate(-found[kind].value, found[kind].error), -EVEN_MIN)
        for kind in ALONE[1:]
    ]
    return Claim(
        "The gate introduces a nonlinearity between the value and output projections.",
        "Of the squared output, the part that is even in the tokens is above"
        f" {EVEN_MIN:g} with a gate and below 1e-9 without one: a linear map has none.",
        f"{_words(found)}; 1 − 1/(4 E σ²) ="
        f" {1 - 0.25 / gate_square(MODELS[28][0]):.4f}.",
        combine(decide_below(found["none"], 1e-9), *gated),
    )


def _rank(numbers: Numbers, kind: str) -> Claim:
    spectra = {name: numbers[f"head {name}"]["spectrum"] for name in ("none", kind)}
    found = {
        name: mean((s > RANK_RTOL * s[:, :1]).sum(axis=1))
        for name, s in spectra.items()
    }
    without = found["none"].value
    ratio = Estimate(
        -found[kind].value / without,
        math.hypot(*(e.error for e in found.values())) / without,
    )
    return Claim(
        f"A {LOOKS[kind][0]} raises the rank of a head's outputs.",
        f"The rank of one head's outputs for {TOKENS} tokens in {DIRECTIONS} directions"
        f" is more than {RANK_FACTOR:g} times that without a gate.",
        f"{_words(found)}.",
        extrapolate(decide_below(ratio, -RANK_FACTOR)),
    )


def _sparse(numbers: Numbers) -> Claim:
    found = mean(numbers["head headwise"]["closed"])
    return Claim(
        "Gates are sparse: at initialisation.",
        f"At least half of all gates are below {CLOSED:g}.",
        f"{found} of them are. Their mean is 1/2 by symmetry, and the mean of their"
        f" squares {gate_square(MODELS[28][0]):.4f}.",
        extrapolate(decide_below(Estimate(-found.value, found.error), -0.5)),
    )


def _stack(numbers: Numbers, kind: str) -> dict[int, Array]:
    """The growth in stacks of this kind, by the number of blocks."""
    return {
        depth: numbers[f"stack {kind} {depth}"]["growth"]
        for depth in MODELS
        if f"stack {kind} {depth}" in numbers
    }


def _steady(numbers: Numbers) -> Claim:
    listed, verdicts = [], []
    for depth in _stack(numbers, "none"):
        found = {kind: mean(_stack(numbers, kind)[depth][:, 0]) for kind in STACKS}
        factor = math.sqrt(gate_square(MODELS[depth][0]))
        listed.append(
            f"{depth} blocks: {_words(found)}; the constant factor on attention is"
            f" {factor:.3f}"
        )
        verdicts.append(decide_decreasing(found["none"], found["elementwise"]))
    return Claim(
        "The gate makes training more stable: at initialisation, gradients grow less"
        " towards the first block.",
        "The mean logarithm of the growth of their squares is below that without gates,"
        " by four standard errors.",
        ". ".join(listed) + ".",
        extrapolate(combine(*verdicts)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Nonlinearity, rank, sparsity and gradients."""
    return [
        _nonlinear(numbers),
        *(_rank(numbers, kind) for kind in ALONE[1:]),
        _sparse(numbers),
        _steady(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean eigenvalues by index, and mean logarithms of growth by block."""
    for kind in LOOKS:
        found = {0: numbers[f"head {kind}"]["spectrum"]} if kind in ALONE else {}
        for depth, values in {
            **found,
            **(_stack(numbers, kind) if kind in STACKS else {}),
        }.items():
            for place, column in zip(
                places(depth) if depth else range(1, TOKENS + 1), values.T, strict=True
            ):
                e = mean(column)
                yield {
                    "quantity": "growth" if depth else "spectrum",
                    "gate": kind,
                    "blocks": depth,
                    "index": place,
                    "mean": e.value,
                    "error": e.error,
                }


def draw(numbers: Numbers) -> Any:
    """The spectrum of one head's outputs, and the growth of gradients over that without
    gates, by block.
    """
    figure = new(2.6)
    left, right = figure.subplots(1, 2)
    depth = max(_stack(numbers, "none"))
    shown, without = {}, _stack(numbers, "none")[depth].mean(axis=0)
    for kind, (label, colour) in LOOKS.items():
        size = 6 if kind == "none" else 3  # to show it below the others
        style: dict[str, Any] = {
            "marker": MARK_OF[colour],
            "ms": size,
            "mfc": "none",
            "color": colour,
        }
        if kind in ALONE:
            values = numbers[f"head {kind}"]["spectrum"].mean(axis=0)
            (shown[label],) = left.plot(range(1, len(values) + 1), values, **style)
        if kind in STACKS:
            values = _stack(numbers, kind)[depth].mean(axis=0) - without
            (shown[label],) = right.plot(places(depth), np.exp(values), **style)
    left.set(
        xscale="log",
        yscale="log",
        ylim=(1e-6, 1),
        xlabel="index",
        ylabel="eigenvalue / sum",
    )
    left.set_xticks((1, DIRECTIONS, TOKENS), map(str, (1, DIRECTIONS, TOKENS)))
    right.set(xscale="log", xlabel="block", ylabel="growth / that without gate")
    right.set_xticks(places(depth), map(str, places(depth)))
    for axes in (left, right):
        axes.minorticks_off()
    figure.legend(
        list(shown.values()), list(shown), loc="outside lower center", ncols=2
    )
    return figure


RESULT = Result(
    name="gated-attention",
    title="Qiu et al.: gated attention at initialisation",
    source=(
        "Qiu et al., Gated attention for large language models: non-linearity,"
        " sparsity, and attention-sink-free (NeurIPS 2025), and its public code."
    ),
    links=(
        "https://arxiv.org/abs/2505.06708",
        "https://github.com/qiuzh20/gated_attention",
    ),
    setting=(
        "Both dense models of the paper, 1.7B parameters each: 28 blocks of width 2048"
        f" with perceptrons (SwiGLU) of 6144, and 48 blocks of 1536 with 4608; {HEADS}"
        f" heads of dimension {HEAD_DIM}, {GROUPS} for keys and values, and norms of"
        f" tokens, queries and keys. Weights have standard deviation {STD:g}, as in the"
        " public code. Gates are σ(W x), one per element or one per head; with gates"
        " the perceptrons are narrower, to keep the number of parameters. Ours:"
        f" without rotations, with {DEEP_TOKENS} tokens in stacks. Draws have the exact"
        " law at these widths. The mixture of experts is not run. The text of the"
        " paper was read in a public copy. What it says about training is not judged:"
        " losses, scaling, larger learning rates, attention sinks, massive activations"
        " and long contexts. It states sparsity and stability for trained networks,"
        " and expressiveness, not rank; a failure at initialisation is outside its"
        " range."
    ),
    quick="stacks of 28 blocks; fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "gated-attention",
            f"Left: the spectrum of one head's outputs for {TOKENS} tokens in"
            f" {DIRECTIONS} directions. Right: how much more squared gradients grow"
            " from the last block to earlier ones than without a gate.",
            draw,
            rows,
        ),
    ),
)
