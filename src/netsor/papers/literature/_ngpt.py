"""Shigida, Hanin and Gromov: learning rates of normalised transformers by width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import language as ns
from ...laws import Estimate
from ...nn import attention
from ...programs._decorator import program
from ...report._mpl_style import BLUE, GREY, MARK_OF, VERMILLION, new
from ...studies import Arrays
from ...studies.coord_check import coord_check
from .._significance import combine, decide_below
from ._result import Claim, Numbers, Part, Picture, Result, near

WIDTHS = (64, 128, 256, 512)
HEAD_DIM, TOKENS, WORDS = 32, 6, 8
START = 0.05  # of the rate at which a branch is added, as in the public code
# A step so small that changes are proportional to it: at the largest width the first
# step changes an entry of a matrix by this times √512 of its standard deviation.
RATE = 1e-4
STEPS = (1, 2)
MATRICES = ("W^Q", "W^K", "W^V", "W^O", "gate", "up", "down")
# Rules, fixed before the run of the default seed.
CONSTANT = 0.1  # an exponent above it is not constant
RULE_ATOL = 0.2  # of exponents from 1


def rotated(state: ns.Vector, branch: ns.Vector) -> ns.Vector:
    """The state moved towards a branch on the sphere of mean square 1."""
    towards = ns.rms_norm(branch) - state
    return ns.rms_norm(state + START * towards)


def loss(width: int) -> ns.Scalar:
    """The loss of one normalised block for the next words of a sentence.

    States have mean square 1 here, and length 1 in the published code: matrices are the
    same in both, and vectors of words are √width times longer here. The published
    factors of scores, of the hidden layer and of logits have their values at the start.
    """
    n = ns.Width(width)
    words = ns.gaussian(n, WORDS, name="embedding")
    x = ns.rms_norm(words[:TOKENS])
    heads = width // HEAD_DIM
    mixed = attention(x, heads, HEAD_DIM, "causal", qk_norm=ns.rms_norm)
    x = rotated(x, mixed)
    up = ns.weight(4 * n, n, name="up") @ x
    gate = ns.weight(4 * n, n, name="gate") @ x
    down = ns.weight(n, 4 * n, name="down") @ (up * ns.silu(gate))
    x = ns.probe("stream", rotated(x, down))
    head = ns.gaussian(n, WORDS, name="head")
    logits = ns.mean_dot(x, head)  # cosines
    chances = ns.softmax(logits)
    targets = [chances[token, (token + 1) % WORDS] for token in range(TOKENS)]
    return -_log(ns.stack(targets)).mean()


def _log(x: ns.Scalar) -> ns.Scalar:
    """The logarithm, with its derivative."""
    return ns.apply(np.log, x, name="log", derivative=np.reciprocal)


def updates(steps: int, draws: int, seed: int) -> Arrays:
    """How the steps change the output of each matrix, by width.

    "exponent" is (matrices, 2), with errors, in the order of MATRICES, for one rate of
    Adam at all widths and matrices; "change" (matrices, widths) is the mean over
    networks of the root mean square of the change, where outputs have entries of
    order 1.
    """

    @program
    def net(width: int) -> ns.Scalar:
        """The block at this width."""
        return loss(width)

    check = coord_check(
        net,
        widths=WIDTHS,
        lr=RATE,
        optimiser="adam",
        steps=steps,
        draws=draws,
        seed=seed,
        workers=1,
        progress=False,
    )[0]
    exponents = []
    changes = []
    for name in MATRICES:
        verdict = check.update(name)
        power: Any = verdict.exponent
        exponents.append((power.value, power.error))
        changes.append([drawn.mean() for drawn in check.draws[verdict.entry]])
    return {"exponent": np.array(exponents), "change": np.array(changes)}


def parts(quick: bool) -> list[Part]:
    """One step and two."""
    parts = []
    for steps in STEPS:
        draws = 12 if quick else 60
        arguments = {"steps": steps, "draws": draws}
        seconds = 0.5 + 0.09 * steps**2 * draws
        parts.append(
            Part(
                label=f"{steps} steps",
                work=updates,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


def _exponents(numbers: Numbers, steps: int) -> dict[str, Estimate]:
    """The exponent of the width for each matrix."""
    pairs = numbers[f"{steps} steps"]["exponent"]
    return {
        name: Estimate(float(value), float(error))
        for name, (value, error) in zip(MATRICES, pairs, strict=True)
    }


def _listed(numbers: Numbers, steps: int) -> str:
    """The exponents in words."""
    powers = _exponents(numbers, steps)
    return ", ".join(f"{name} {power}" for name, power in powers.items())


def _no_transfer(numbers: Numbers, steps: int, words: str) -> Claim:
    """The claim on widths, for the first steps."""
    verdicts = []
    for power in _exponents(numbers, steps).values():
        verdicts.append(decide_below(Estimate(-power.value, power.error), -CONSTANT))
    return Claim(
        published=(
            "With nGPT's factors, learning rates do not transfer across the model"
            f" dimension: {words}."
        ),
        rule=(
            "With one rate of Adam, what the steps change in the output of a matrix"
            f" grows with the width d by an exponent above {CONSTANT:g}, for every"
            " matrix of the block: no rate then gives steps of equal size at all"
            " widths."
        ),
        ours=f"{_listed(numbers, steps)}.",
        verdict=combine(*verdicts),
    )


def _rule(numbers: Numbers) -> Claim:
    """The exponents themselves."""
    powers = _exponents(numbers, 1).values()
    return Claim(
        published="Ours: the first step needs rates proportional to 1/d for matrices.",
        rule=f"Exponents of the first step are within {RULE_ATOL:g} of 1.",
        ours=f"{_listed(numbers, 1)}.",
        verdict=combine(*(near(power, 1.0, RULE_ATOL) for power in powers)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The first step and the second, and the rule."""
    return [
        _no_transfer(numbers, 1, "the first step"),
        _no_transfer(numbers, 2, "two steps"),
        _rule(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Changes by matrix, number of steps and width."""
    for steps in STEPS:
        changes = numbers[f"{steps} steps"]["change"]
        for name, by_width in zip(MATRICES, changes, strict=True):
            for width, change in zip(WIDTHS, by_width, strict=True):
                yield {
                    "steps": steps,
                    "matrix": name,
                    "width": width,
                    "change": float(change),
                }


def draw(numbers: Numbers) -> Any:
    """What one step and two change, by width."""
    figure = new(2.6)
    axes = figure.subplots()
    for steps, colour in zip(STEPS, (BLUE, VERMILLION), strict=True):
        changes = numbers[f"{steps} steps"]["change"]
        for index, by_width in enumerate(changes):
            label = f"{steps} step{'s' * (steps > 1)}, each matrix"
            axes.plot(
                WIDTHS,
                by_width,
                color=colour,
                marker=MARK_OF[colour],
                ms=3,
                lw=0.8,
                label=label if index == 0 else None,
            )
    guide = RATE * np.array(WIDTHS) / 2
    axes.plot(WIDTHS, guide, color=GREY, lw=0.8, ls=":", label="slope 1")
    axes.set(
        title="With one rate, first steps grow like the width",
        xscale="log",
        yscale="log",
        xlabel="model dimension d",
        ylabel="change of outputs",
    )
    axes.set_xticks(WIDTHS, map(str, WIDTHS))
    axes.set_yticks([5e-3, 1e-2, 2e-2, 5e-2], ["0.005", "0.01", "0.02", "0.05"])
    axes.minorticks_off()
    axes.legend()
    return figure


RESULT = Result(
    name="ngpt",
    title="Shigida, Hanin and Gromov: learning rates of normalised transformers",
    source=(
        "Shigida, Hanin and Gromov, Learning rate transfer in normalized transformers"
        " (2026), on nGPT by Loshchilov et al. (2024)."
    ),
    links=(
        "https://arxiv.org/abs/2604.27077",
        "https://arxiv.org/abs/2410.01131",
        "https://github.com/NVIDIA/ngpt",
    ),
    setting=(
        "One block of nGPT as in its public code: states, branches, queries and keys on"
        f" the sphere, branches added at the rate {START:g}, scores times √d_head,"
        " logits that are cosines, and matrices of standard deviation 1/√d; heads of"
        f" dimension {HEAD_DIM}, {TOKENS} tokens, {WORDS} words. Steps of Adam with one"
        f" rate, {RATE:g}, at all widths from {WIDTHS[0]} to {WIDTHS[-1]}, of the"
        " matrices of the block. Ours have no rotary positions, and rows of the"
        " matrices have length 1 only up to 1/√(2d), at the start and between the"
        " steps. The learned factors stay at their values: stored as the code does, one"
        " step of Adam changes those of scores and branches by η√d of themselves."
    ),
    quick="12 networks.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="ngpt",
            caption=(
                "What Adam's first steps change in the output of each matrix of a"
                " block, by width, at one learning rate."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract, and the article on nGPT beyond its abstract and"
        " the model's code: its training script was not read. Best rates after"
        " training, token horizons and νGPT, whose table was not read, are not judged:"
        " the rules here are on the size of the first two steps."
    ),
)
