"""Qiu et al.: a sigmoid gate after attention, at initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from netsor import language as ns
from netsor._mpl_style import BLUE, GREEN, MARK_OF, ORANGE, VERMILLION, new
from netsor._program import Program
from netsor.laws import Estimate
from netsor.studies import Arrays

from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._result import Claim, Numbers, Part, Picture, Result, mean

WIDTH, HEAD_DIM, HIDDEN, DEPTH, STD = 4096, 128, 22_016, 32, 0.02  # defaults of the public code; STD of all weights
SCORE_STD = STD * math.sqrt(WIDTH)  # of a gate's score
TOKENS, DIRECTIONS = 64, 8  # of one head: tokens that span fewer directions than the head has
DEEP_TOKENS, PLACES = 4, (1, 2, 4, 8, 16, 32)
EVEN_MIN, CLOSED, RANK_RTOL, RANK_FACTOR = 0.1, 0.1, 1e-9, 1.1
LOOKS = {"none": ("no gate", BLUE), "elementwise": ("gate per element", VERMILLION),
         "headwise": ("gate per head", ORANGE), "constant": ("constant factor", GREEN)}  # fmt: skip
HEADS, STACKS = ("none", "elementwise", "headwise"), ("none", "elementwise", "constant")


def gate_square() -> float:
    """E σ(z)² of gates, by Gauss–Hermite quadrature: their factor on the square of attention's output."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return float(weights @ (1 + np.exp(-SCORE_STD * nodes)) ** -2 / weights.sum())


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention with norms of queries and keys."""
    return ns.softmax(ns.dot(ns.rms_norm(q), ns.rms_norm(k)), mask="causal") @ v


def head(kind: str) -> Program:
    """Inner products of one head's outputs, of their even and odd parts in the tokens, and gates, one per token."""
    n, d = ns.Width("n"), ns.Width("d")
    queries, keys, values, gates = (ns.weight(d, n, std=SCORE_STD) for _ in range(4))
    out, single = ns.weight(n, d, std=STD * math.sqrt(HEAD_DIM)), SCORE_STD * ns.gaussian(n).reshape(1)
    x = ns.rms_norm(ns.normal((TOKENS, DIRECTIONS)) @ ns.gaussian(n, DIRECTIONS))
    signs = []
    for signed in (x, -x):
        y = attend(queries @ signed, keys @ signed, values @ signed)
        scores: dict[str, Any] = {"elementwise": gates @ signed, "headwise": ns.dot(single, signed)[0]}
        signs.append(out @ (y if kind == "none" else ns.sigmoid(scores[kind]) * y))
    found = (signs[0], signs[0] + signs[1], signs[0] - signs[1])
    return Program((*(ns.mean_dot(y, y) for y in found), ns.sigmoid(ns.dot(single, x)[0])))


def heads(kind: str, draws: int, seed: int) -> Arrays:
    """Eigenvalues of outputs over their sum, largest first; the even share; the share of closed gates."""
    drawn = head(kind).draw(n=WIDTH, d=HEAD_DIM, draws=draws, seed=seed, workers=1, progress=False)
    products, even, odd, gates = map(np.asarray, drawn)
    eigenvalues = np.linalg.eigvalsh(products)[:, ::-1]
    squares = [np.trace(part, axis1=1, axis2=2) for part in (even, odd)]
    return {
        "spectrum": np.abs(eigenvalues) / eigenvalues.sum(axis=1, keepdims=True),
        "even": squares[0] / (squares[0] + squares[1]),
        "closed": (gates < CLOSED).mean(axis=1),
    }


def stack(kind: str, depth: int) -> Program:
    """|∂f/∂x_l|² over all tokens after some blocks l, f a random readout of the last token after all."""
    n, m = ns.Width("n"), ns.Width("m")
    x, kept = STD * ns.gaussian(n, DEEP_TOKENS), []
    for block in range(1, depth + 1):
        q, k, v, scores = (ns.weight(n, n, std=SCORE_STD) @ ns.rms_norm(x) for _ in range(4))
        gate = {"none": 1.0, "elementwise": ns.sigmoid(scores), "constant": math.sqrt(gate_square())}[kind]
        x = x + ns.weight(n, n, std=SCORE_STD) @ (gate * attend(q, k, v))
        first, second = (ns.weight(m, n, std=SCORE_STD) @ ns.rms_norm(x) for _ in range(2))
        x = x + ns.weight(n, m, std=STD * math.sqrt(HIDDEN)) @ (ns.silu(first) * second)
        kept += [x] * (block in PLACES)
    f = ns.dot(ns.gaussian(n).reshape(1), ns.rms_norm(x))[0, -1]
    found = ns.grad(f, kept)
    return Program(ns.stack([ns.stack([ns.mean_dot(g, g)[t, t] for t in range(DEEP_TOKENS)]).sum() for g in found]))


def stacks(kind: str, depth: int, draws: int, seed: int) -> Arrays:
    """The logarithm of the squared gradient after each block, less that after the last."""
    made = stack(kind, depth).draw(n=WIDTH, m=HIDDEN, draws=draws, seed=seed, workers=1, progress=False)
    logs = np.log(np.asarray(made, dtype=np.float64))
    return {"growth": logs - logs[:, -1:]}


def parts(quick: bool) -> list[Part]:
    """One head, and stacks of blocks."""
    depth, few, many = (DEPTH // 2, 4, 10) if quick else (DEPTH, 32, 100)
    given = {"depth": depth, "draws": few}
    return [
        *(Part(f"head {kind}", heads, {"kind": kind, "draws": many}, 0.1 + 0.01 * many) for kind in HEADS),
        *(Part(f"stack {kind}", stacks, {"kind": kind, **given}, depth * (0.07 + 0.01 * few)) for kind in STACKS),
    ]


def _words(found: dict[str, Estimate]) -> str:
    return ", ".join(f"{e} ({LOOKS[kind][0]})" for kind, e in found.items())


def _nonlinear(numbers: Numbers) -> Claim:
    found = {kind: mean(numbers[f"head {kind}"]["even"]) for kind in HEADS}
    gated = [decide_below(Estimate(-found[kind].value, found[kind].error), -EVEN_MIN) for kind in HEADS[1:]]
    return Claim(
        "The gate introduces a nonlinearity between the value and output projections.",
        f"Of the squared output, the part that is even in the tokens is above {EVEN_MIN:g} with a gate and below "
        "1e-9 without one: a linear map has none.",
        f"{_words(found)}; 1 − 1/(4 E σ²) = {1 - 0.25 / gate_square():.4f}.",
        combine(decide_below(found["none"], 1e-9), *gated),
    )


def _rank(numbers: Numbers, kind: str) -> Claim:
    spectra = {name: numbers[f"head {name}"]["spectrum"] for name in ("none", kind)}
    found = {name: mean((s > RANK_RTOL * s[:, :1]).sum(axis=1)) for name, s in spectra.items()}
    without = found["none"].value
    ratio = Estimate(-found[kind].value / without, math.hypot(*(e.error for e in found.values())) / without)
    return Claim(
        f"A {LOOKS[kind][0]} raises the rank of what a head computes.",
        f"The rank of one head's outputs for {TOKENS} tokens in {DIRECTIONS} directions is more than {RANK_FACTOR:g} "
        "times that without a gate.",
        f"{_words(found)}.",
        extrapolate(decide_below(ratio, -RANK_FACTOR)),
    )


def _sparse(numbers: Numbers) -> Claim:
    found = mean(numbers["head headwise"]["closed"])
    return Claim(
        "Gates are sparse: at initialisation.",
        f"At least half of all gates are below {CLOSED:g}.",
        f"{found} of them are. Their mean is 1/2 by symmetry, and the mean of their squares {gate_square():.4f}.",
        extrapolate(decide_below(Estimate(-found.value, found.error), -0.5)),
    )


def _steady(numbers: Numbers) -> Claim:
    found = {kind: mean(numbers[f"stack {kind}"]["growth"][:, 0]) for kind in STACKS}
    return Claim(
        "The gate makes training more stable: at initialisation, gradients grow less towards the first block.",
        "The mean logarithm of the growth of their squares is below that without gates, by four standard errors.",
        f"{_words(found)}; the constant factor on attention is {math.sqrt(gate_square()):.3f}.",
        extrapolate(decide_decreasing(found["none"], found["elementwise"])),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Nonlinearity, rank, sparsity and gradients."""
    return [_nonlinear(numbers), *(_rank(numbers, kind) for kind in HEADS[1:]), _sparse(numbers), _steady(numbers)]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean eigenvalues by index, and mean logarithms of growth by block."""
    for label, arrays in numbers.items():
        part, kind = label.split()
        key, places = ("spectrum", tuple(range(1, TOKENS + 1))) if part == "head" else ("growth", PLACES)
        for place, values in zip(places, arrays[key].T, strict=False):
            e = mean(values)
            yield {"quantity": key, "gate": kind, "index": place, "mean": e.value, "error": e.error}


def draw(numbers: Numbers) -> Any:
    """The spectrum of one head's outputs, and the growth of gradients over that without gates."""
    figure = new(2.6)
    left, right = figure.subplots(1, 2)
    shown, without = {}, numbers["stack none"]["growth"].mean(axis=0)
    for kind, (label, colour) in LOOKS.items():
        size = 6 if kind == "none" else 3  # so that it is seen below the others
        style: dict[str, Any] = {"marker": MARK_OF[colour], "ms": size, "mfc": "none", "color": colour}
        if kind in HEADS:
            values = numbers[f"head {kind}"]["spectrum"].mean(axis=0)
            (shown[label],) = left.plot(range(1, len(values) + 1), values, **style)
        if kind in STACKS:
            values = numbers[f"stack {kind}"]["growth"].mean(axis=0) - without
            (shown[label],) = right.plot(PLACES[: len(values)], np.exp(values), **style)
    left.set(xscale="log", yscale="log", ylim=(1e-6, 1), xlabel="index", ylabel="eigenvalue / sum")
    left.set_xticks((1, DIRECTIONS, TOKENS), map(str, (1, DIRECTIONS, TOKENS)))
    right.set(xscale="log", xlabel="block", ylabel="growth / that without gate")
    right.set_xticks(PLACES, map(str, PLACES))
    for axes in (left, right):
        axes.minorticks_off()
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=2)
    return figure


RESULT = Result(
    name="gated-attention",
    title="Qiu et al.: gated attention at initialisation",
    source="Qiu et al., Gated attention for large language models: non-linearity, sparsity, and attention-sink-free "
    "(NeurIPS 2025), and its public code.",
    links=("https://arxiv.org/abs/2505.06708", "https://github.com/qiuzh20/gated_attention"),
    setting=f"The defaults of the public code: width {WIDTH}, heads of dimension {HEAD_DIM}, perceptrons of width "
    f"{HIDDEN}, {DEPTH} blocks, weights of standard deviation {STD}, and norms of tokens, queries and keys. Gates are "
    "σ(W x), one per element or one per head. Ours: without rotations; stacks have one head of "
    f"dimension {WIDTH} and {DEEP_TOKENS} tokens. Draws have the exact law at these widths.",
    quick="stacks of 16 blocks; fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "gated-attention",
            f"Left: the spectrum of one head's outputs for {TOKENS} tokens in {DIRECTIONS} directions. Right: how much "
            "more squared gradients grow from the last block to earlier ones than without a gate.",
            draw,
            rows,
        ),
    ),
    unread="the paper beyond its abstract, the public code and what reviews quote. What it says about training is not "
    "judged: losses, scaling, larger learning rates, attention sinks, massive activations and long contexts. It "
    "states sparsity and stability for trained networks, and expressiveness, not rank; a failure at initialisation is "
    "outside its range.",
)
