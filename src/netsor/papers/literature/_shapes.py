"""Chaintron, Chizat and Maass: residual networks after a step, and how far they are
from their limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from ... import language as ns
from ...laws import Estimate
from ...programs._program import Program
from ...report._mpl_style import BLUE, GREEN, GREY, MARK_OF, VERMILLION, new
from ...studies import Arrays, derive_seed, slope_of
from .._significance import combine, decide_below
from ._result import EXPONENT_ATOL, Array, Claim, Numbers, Part, Picture, Result, near

COSINE = 0.5  # of the input of the step with the other input
COSINES = (1.0, COSINE)  # of both inputs with that of the step
RATE = 0.5  # of the step, in units for which the limit is finite
ACTIVATIONS: dict[str, Callable[[ns.Vector], ns.Vector]] = {
    "identity": lambda x: x,
    "tanh": ns.tanh,
}
Shape = tuple[int, int, int]  # depth L, embedding dimension D, hidden width M
# Where one term of the bound is far above the others. With tanh √(D/(LM)) is
# proportional to 1/√D, and eight times smaller.
SWEEPS: dict[str, tuple[str, tuple[Shape, ...]]] = {
    "D, identity": (
        "identity",
        tuple((4, d, 250 * d**2) for d in (64, 256, 1024, 4096)),
    ),
    "D, tanh": ("tanh", tuple((4, d, 16 * d**2) for d in (16, 32, 64, 128))),
    "M, identity": (
        "identity",
        tuple((4, 10**8, 10**8 * factor) for factor in (4, 16, 64, 256)),
    ),
    "L, identity": (
        "identity",
        tuple((depth, 10**8, 10**8) for depth in (4, 8, 16, 32)),
    ),
}
DEPTHS = (8, 16, 32, 64)  # of the term 1/L, which is not sampled
BOUND = 0.5  # of √(D/(LM)) and of 1/√D: the exponent
NODES = 60  # of each integral of the limit


def network(shape: Shape, activation: str) -> Program:
    """The Gram matrix of both inputs, both last states after a step, and the readout.

    A block adds √D/(LM) V φ(U h/√D), where U and V have entries N(0, 1); the weights
    here contain 1/√D and 1/√M. The output is ⟨w, h⟩/D, the loss of the first input is
    (f − 1)²/2, and rates are those for which each neuron moves by order 1.
    """
    depth, dimension, hidden = shape
    phi = ACTIVATIONS[activation]
    scale = math.sqrt(dimension / hidden) / depth
    inputs = ns.gaussian(dimension, 2, cov=np.array([[1.0, COSINE], [COSINE, 1.0]]))
    readout = ns.gaussian(dimension).reshape(1)
    states = inputs
    rates: dict[Any, float] = {}
    for _ in range(depth):
        u = ns.weight(hidden, dimension)
        v = ns.weight(dimension, hidden)
        rates[u] = RATE * depth * hidden / dimension
        rates[v] = RATE * depth
        states = states + scale * (v @ phi(u @ states))
    f = ns.mean_dot(readout, states[:1])[0, 0]
    loss = 0.5 * (f - 1.0) ** 2
    after = ns.step(states, loss, rates, weights=list(rates))
    vectors = ns.join([inputs, after, readout])
    return Program(ns.mean_dot(vectors, vectors))


@cache
def normal_nodes() -> tuple[Array, Array]:
    """Nodes and weights of a mean over a standard normal number."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, weights / weights.sum()


def drift(activation: str, moved: float, cosine: float) -> float:
    """How fast a state moves along the readout with depth, in the limit.

    After the step the input of a neuron is p = z' + a ω + η κ ξ φ'(z): z and z' are its
    inputs before the step, of the cosine κ, and a is how far the state has moved. Its
    output moves the state by η (E[φ(z) φ(p)] + κ E[φ'(z) φ'(p)]).
    """
    if activation == "identity":
        return 2 * RATE * cosine
    nodes, weights = normal_nodes()
    slopes = 1 - np.tanh(nodes) ** 2  # at z
    variances = 1 - cosine**2 + moved**2 + (RATE * cosine * slopes) ** 2
    p = cosine * nodes[:, None] + np.sqrt(variances)[:, None] * nodes[None, :]
    products = np.tanh(nodes)[:, None] * np.tanh(p)
    products = products + cosine * slopes[:, None] * (1 - np.tanh(p) ** 2)
    return float(RATE * weights @ products @ weights)


def displacement(activation: str, depth: int, cosine: float) -> float:
    """How far the last state moves along the readout, for infinite D and LM/D."""
    moved = 0.0
    for _ in range(depth):
        moved += drift(activation, moved, cosine) / depth
    return moved


def errors(shape: Shape, activation: str, draws: int, seed: int) -> Arrays:
    """Squared distances of last states from the limit of the same depth, (draws,).

    The limit of a state is its input plus a multiple of the readout. Distances are per
    dimension, means over both inputs; "moved" is the mean of that multiple.
    """
    program = network(shape, activation)
    seed = derive_seed(seed, *shape)
    drawn = program.draw(draws=draws, seed=seed, workers=1, progress=False)
    gram = np.asarray(drawn, dtype=np.float64)
    squares = []
    for index, cosine in enumerate(COSINES):
        difference = np.zeros(5)
        difference[2 + index] = 1.0
        difference[index] = -1.0
        difference[4] = -displacement(activation, shape[0], cosine)
        squares.append(np.einsum("i,dij,j->d", difference, gram, difference))
    return {"square": np.mean(squares, axis=0)}


def discretisation(activation: str) -> Arrays:
    """The distance of each of DEPTHS from infinite depth, for infinite D and LM/D.

    Infinite depth is by Richardson's extrapolation from 1,024 and 2,048 blocks.
    """
    distances = []
    for depth in DEPTHS:
        squares = []
        for cosine in COSINES:
            coarse = displacement(activation, 1024, cosine)
            limit = 2 * displacement(activation, 2048, cosine) - coarse
            squares.append((displacement(activation, depth, cosine) - limit) ** 2)
        distances.append(math.sqrt(np.mean(squares)))
    return {"distance": np.array(distances)}


def _no_seed(activation: str, seed: int) -> Arrays:
    """`discretisation`, which draws nothing."""
    del seed
    return discretisation(activation)


def parts(quick: bool) -> list[Part]:
    """One part for each shape, and two for the term 1/L."""
    parts = []
    for sweep, (activation, shapes) in SWEEPS.items():
        for shape in shapes:
            if quick:
                draws = 20 if activation == "tanh" else 200
            else:
                draws = 640 if activation == "tanh" else 800
            depth, _, hidden = shape
            seconds = 0.06 * depth
            if activation == "tanh":
                seconds += draws * depth * hidden * 1.8e-7
            parts.append(
                Part(
                    label=f"{sweep} {shape}",
                    work=errors,
                    arguments={
                        "shape": shape,
                        "activation": activation,
                        "draws": draws,
                    },
                    seconds=seconds,
                )
            )
    for activation in ACTIVATIONS:
        parts.append(
            Part(
                label=f"1/L, {activation}",
                work=_no_seed,
                arguments={"activation": activation},
                seconds=5.0,
            )
        )
    return parts


def _distances(numbers: Numbers, sweep: str) -> list[Estimate]:
    """Root mean squares of the error over draws, by shape."""
    found = []
    for shape in SWEEPS[sweep][1]:
        squares = numbers[f"{sweep} {shape}"]["square"]
        error = squares.std(ddof=1) / math.sqrt(len(squares))
        found.append(Estimate(float(squares.mean()), float(error)).sqrt())
    return found


def _sizes(sweep: str) -> list[int]:
    """What varies in the sweep: L, D or M."""
    index = "LDM".index(sweep[0])
    return [shape[index] for shape in SWEEPS[sweep][1]]


def exponent(numbers: Numbers, sweep: str) -> Estimate:
    """The exponent of the error in L, D or M."""
    return slope_of(_sizes(sweep), _distances(numbers, sweep))


def _depth_exponent(numbers: Numbers) -> Estimate:
    """The exponent of the depth in the error of tanh blocks, without random numbers."""
    distances = numbers["1/L, tanh"]["distance"]
    exact = [Estimate(float(distance), 0.0) for distance in distances]
    return Estimate(slope_of(DEPTHS, exact).value, 0.0)


def _bounded(power: Estimate, bound: float) -> str:
    """Whether the error falls at least like the power −bound."""
    return decide_below(power, EXPONENT_ATOL - bound)


def _term(
    numbers: Numbers, sweeps: Sequence[str], term: str, varied: str
) -> list[Claim]:
    """The bound by one term and its tightness."""
    powers = {sweep: exponent(numbers, sweep) for sweep in sweeps}
    listed = ", ".join(f"{power} ({sweep})" for sweep, power in powers.items())
    where = f"where this term is far above the others, the exponent of {varied}"
    return [
        Claim(
            published=f"After a step the error is at most of order {term}.",
            rule=f"In embedding space, {where} is below {EXPONENT_ATOL - BOUND:g}.",
            ours=f"{listed}.",
            verdict=combine(*(_bounded(power, BOUND) for power in powers.values())),
        ),
        Claim(
            published=f"This is tight: {term}.",
            rule=f"There {where} is within {EXPONENT_ATOL:g} of {-BOUND:g}.",
            ours=f"{listed}.",
            verdict=combine(*(near(power, -BOUND) for power in powers.values())),
        ),
    ]


def _depth_term(numbers: Numbers) -> Claim:
    """The bound by 1/L and its tightness, for tanh."""
    power = _depth_exponent(numbers)
    still = float(np.max(numbers["1/L, identity"]["distance"]))
    return Claim(
        published="After a step the error is at most of order 1/L, and this is tight.",
        rule=(
            f"With tanh, for infinite D and LM/D, the exponent of L from {DEPTHS[0]} to"
            f" {DEPTHS[-1]} is within {EXPONENT_ATOL:g} of −1."
        ),
        ours=f"{power.value:.4f}; with linear blocks the error is below"
        f" {max(still, 1e-12):.0e}, because all of them move at a constant rate.",
        verdict=near(power, -1.0),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The three terms."""
    return [
        *_term(numbers, ("D, identity", "D, tanh"), "1/√D", "D"),
        *_term(numbers, ("M, identity", "L, identity"), "√(D/(LM))", "M or L"),
        _depth_term(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Errors by shape."""
    for sweep, (activation, shapes) in SWEEPS.items():
        for shape, distance in zip(shapes, _distances(numbers, sweep), strict=True):
            depth, dimension, hidden = shape
            yield {
                "sweep": sweep[0],
                "activation": activation,
                "L": depth,
                "D": dimension,
                "M": hidden,
                "distance": distance.value,
                "error": distance.error,
            }
    for depth, value in zip(DEPTHS, numbers["1/L, tanh"]["distance"], strict=True):
        yield {
            "sweep": "1/L",
            "activation": "tanh",
            "L": depth,
            "D": math.inf,
            "M": math.inf,
            "distance": float(value),
            "error": 0.0,
        }


def _line(axes: Any, terms: Array, values: Array, colour: str, label: str) -> None:
    """One sweep of the figure."""
    axes.plot(terms, values, marker=MARK_OF[colour], ms=3.5, color=colour, label=label)


def draw(numbers: Numbers) -> Any:
    """The error against the term of the bound that is largest."""
    figure = new(2.6)
    axes = figure.subplots()
    labels = {
        "D, identity": ("1/√D, linear", BLUE),
        "D, tanh": ("1/√D, tanh", VERMILLION),
        "M, identity": ("√(D/(LM)), linear", GREEN),
    }
    for sweep, (label, colour) in labels.items():
        terms = []
        for depth, dimension, hidden in SWEEPS[sweep][1]:
            ratio = dimension / (depth * hidden)
            square = ratio if sweep[0] == "M" else 1 / dimension
            terms.append(math.sqrt(square))
        values = [distance.value for distance in _distances(numbers, sweep)]
        _line(axes, np.array(terms), np.array(values), colour, label)
    inverse = 1 / np.array(DEPTHS)
    distances = numbers["1/L, tanh"]["distance"]
    axes.plot(inverse, distances, "k--", lw=1.0, label="1/L, tanh")
    guide = np.array([1e-2, 3e-1])
    axes.plot(guide, guide, color=GREY, lw=0.8, ls=":", label="slope 1")
    axes.set(
        title="After one step, the error is proportional to each term",
        xscale="log",
        yscale="log",
        xlabel="term of the bound",
        ylabel="error in embedding space",
    )
    axes.legend(fontsize=6)
    return figure


RESULT = Result(
    name="shapes",
    title="Chaintron, Chizat and Maass: residual networks of all shapes",
    source=(
        "Chaintron, Chizat and Maass, ResNets of all shapes and sizes: convergence of"
        " training dynamics in the large-scale limit (2026)."
    ),
    links=("https://arxiv.org/abs/2603.18168", "https://arxiv.org/abs/2509.10167"),
    setting=(
        "Residual networks of depth L with perceptron blocks of hidden width M in"
        " embedding dimension D, residual scale √D/(LM), and one step of gradient"
        f" descent on one input; a second input has cosine {COSINE:g} with it. Rates"
        " are ours: those for which each neuron moves by order 1. The error is the root"
        " mean square of the last states minus their limit, per dimension, over draws:"
        " in the limit a state moves along the readout, by a multiple that we compute"
        " by quadrature. Terms 1/√D and √(D/(LM)) are measured against the limit of the"
        " same depth, in exact draws at finite width; linear blocks reach D = 10⁸. The"
        " term 1/L is the Euler error of that limit, without random numbers."
    ),
    quick="fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="shapes",
            caption=(
                "The error after one step, by the term of the bound that is far above"
                " the others."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper and its companion beyond their abstracts. The rates of the step and"
        " the readout are our choice, and so is the coupling: the limit uses the same"
        " inputs and readout, not the authors' skeleton maps. Several steps, other"
        " optimisers, transformers and the rate P^(−1/6) of the best shape are not"
        " judged."
    ),
)
