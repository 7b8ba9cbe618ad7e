"""Alekseev: gradients through deep transformers, with layer norms and with tanh-like functions instead of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from netsor import language as ns
from netsor._mpl_style import BLUE, MARK_OF, ORANGE, VERMILLION, new
from netsor._program import Program
from netsor.laws import Estimate
from netsor.studies import Arrays

from .._significance import combine, decide_below, extrapolate
from ._result import EXPONENT_ATOL, Claim, Numbers, Part, Picture, Result, mean

WIDTH, TOKENS, DEPTH = 16_384, 3, 129
PLACES = (4, 8, 16, 32, 64, 128)  # blocks after which the gradient is taken
NORMS: dict[str, Any] = {"pre-LN": partial(ns.layer_norm, eps=0.0), "DyT": ns.tanh, "Derf": ns.erf}
LOOKS = {"pre-LN": BLUE, "DyT": VERMILLION, "Derf": ORANGE}
STYLES = {"attention": "-", "perceptrons": "--"}


def gradients(norm: str, attention: bool) -> Program:
    """|∂f/∂x_l|² over all tokens after some blocks l, f a random readout of one token after the last."""
    n, before = ns.Width("n"), NORMS[norm]
    x, kept = ns.gaussian(n, TOKENS), {}
    for block in range(1, DEPTH + 1):
        if attention:
            y = before(x)
            q, k, v = (ns.weight(n, n) @ y for _ in range(3))
            x = x + ns.weight(n, n) @ (ns.softmax(ns.dot(q, k)) @ v)
        x = x + ns.weight(n, n) @ ns.relu(ns.weight(n, n, std=math.sqrt(2)) @ before(x))
        kept[block] = x
    f = ns.dot(ns.gaussian(n).reshape(1), x)[0, 0]
    found = ns.grad(f, [kept[place] for place in PLACES])
    return Program(ns.stack([ns.stack([ns.mean_dot(g, g)[t, t] for t in range(TOKENS)]).sum() for g in found]))


def growth(norm: str, attention: bool, draws: int, seed: int) -> Arrays:
    """The logarithm of the squared gradient at each place, a row for each network."""
    made = gradients(norm, attention).draw(n=WIDTH, draws=draws, seed=seed, workers=1, progress=False)
    return {"log": np.log(np.asarray(made, dtype=np.float64))}


def parts(quick: bool) -> list[Part]:
    """Three norms, with attention and without."""
    draws = 4 if quick else 24
    return [
        Part(f"{norm} {kind}", growth, {"norm": norm, "attention": kind == "attention", "draws": draws},
             2 + draws * (1.5 if kind == "attention" else 0.4))
        for kind in STYLES
        for norm in NORMS
    ]  # fmt: skip


def exponent(logs: Any) -> Estimate:
    """log₂ of the growth from block 64 to 128 over that from 32 to 64: 0 for a power law, p for exp(c l^p)."""
    first, second = (mean(logs[:, k] - logs[:, k + 1]) for k in (-3, -2))
    error = math.hypot(first.error / first.value, second.error / second.value) / math.log(2)
    return Estimate(math.log2(second.value / first.value), error)


def _claim(numbers: Numbers, norm: str, kind: str) -> Claim:
    logs = numbers[f"{norm} {kind}"]["log"]
    found = exponent(logs)
    doublings = ", ".join(f"{value:.2f}" for value in -np.diff(logs.mean(axis=0)))
    if norm == "pre-LN":
        words, rule = "like a power of depth", f"within {EXPONENT_ATOL:g} of 0"
        verdict = decide_below(Estimate(abs(found.value), found.error), EXPONENT_ATOL)
    else:
        words, rule = "like a stretched exponential", f"above {EXPONENT_ATOL:g} and below {1 - EXPONENT_ATOL:g}"
        verdict = combine(
            decide_below(Estimate(-found.value, found.error), -EXPONENT_ATOL), decide_below(found, 1 - EXPONENT_ATOL)
        )
    return Claim(
        f"With {norm} squared gradients grow {words}: {'transformer' if kind == 'attention' else 'perceptrons only'}.",
        f"The exponent p of exp(c l^p), from blocks 32, 64 and 128, is {rule}; a power law has 0, an exponential 1.",
        f"{found}. Growth by doublings of depth, from block 4 on: {doublings}.",
        extrapolate(verdict),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Each norm, with attention and without."""
    return [_claim(numbers, norm, kind) for kind in STYLES for norm in NORMS]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean logarithms by network and block."""
    for label, found in numbers.items():
        norm, kind = label.split()
        for place, value in zip(PLACES, found["log"].T, strict=True):
            made = mean(value)
            yield {"norm": norm, "blocks": kind, "block": place, "log": made.value, "error": made.error}


def draw(numbers: Numbers) -> Any:
    """The growth of gradients with depth, as a power law would be a line."""
    figure = new(2.6)
    axes = figure.subplots()
    for label, found in numbers.items():
        norm, kind = label.split()
        logs = found["log"].mean(axis=0)
        look = {"color": LOOKS[norm], "marker": MARK_OF[LOOKS[norm]], "ms": 3}
        axes.plot(PLACES, logs[0] - logs, STYLES[kind], **look, label=f"{norm}, {kind}")
    axes.set(xscale="log", xlabel="block", ylabel="log growth since block 4")
    axes.set_xticks(PLACES, map(str, PLACES))
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


RESULT = Result(
    name="subcritical",
    title="Alekseev: gradients with and without norms",
    source="Alekseev, Subcritical signal propagation at initialization in normalization-free transformers (2026).",
    links=("https://arxiv.org/abs/2604.11890",),
    setting=f"{DEPTH} pre-norm blocks of width {WIDTH}, {TOKENS} tokens: one head of bidirectional attention and a "
    "perceptron with ReLU, all weights of variance 1/fan-in (2/fan-in before ReLU). The norm before each is a layer "
    "norm, tanh (DyT with α = 1) or erf (Derf). Ours: ns.grad, whose draws have the exact law at this width; means are "
    "of logarithms over networks.",
    quick="4 networks.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "subcritical",
            "How squared gradients grow with depth; a power law is a line here, and an exponential of √depth bends up.",
            draw,
            rows,
        ),
    ),
    unread="the paper beyond its abstract: its sizes, its exponents and its vision transformers are not compared. Its "
    "statements are on large depth, so that a failure at 128 blocks is outside their range.",
)
