"""Qiu et al.: a sigmoid gate after attention, at initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import language as ns
from ...laws import Estimate
from ...nn import block, mlp
from ...programs._program import Program
from ...report._mpl_style import BLUE, GREEN, MARK_OF, ORANGE, VERMILLION, new
from ...studies import Arrays
from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._depth import squares, stream
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean


class Size(NamedTuple):
    """The widths of a model."""

    stream: int
    hidden: int  # of perceptrons


# by the number of blocks
MODELS = {28: Size(stream=2048, hidden=6144), 48: Size(stream=1536, hidden=4608)}
# Of both models: heads, those of keys and values, their dimension, and the standard
# deviation of all weights.
HEADS, GROUPS, HEAD_DIM, STD = 16, 8, 128, 0.02
# Of the check of one head: its tokens span fewer directions than the head has.
TOKENS, DIRECTIONS = 48, 6
# Of stacks: gradients are taken after these blocks and the last one.
DEEP_TOKENS, BLOCKS = 5, (1, 2, 4, 8, 16)
EVEN_MIN = 0.1  # the even share of a squared output from which a head is nonlinear
CLOSED = 0.1  # gates below it are closed
RANK_RTOL = 1e-9  # of the largest eigenvalue, for those that count for the rank
RANK_FACTOR = 1.1  # by which a higher rank is higher
# Label and colour of each kind of gate in the figure.
LOOKS = {
    "none": ("no gate", BLUE),
    "elementwise": ("gate per element", VERMILLION),
    "headwise": ("gate per head", ORANGE),
    "constant": ("constant factor", GREEN),
}
# Kinds of gates in one head, and in stacks.
ALONE, STACKS = ("none", "elementwise", "headwise"), ("none", "elementwise", "constant")


def sigma(fan_in: int) -> float:
    """The scale of a weight whose entries have standard deviation STD."""
    return STD * math.sqrt(fan_in)


def gate_square(width: int) -> float:
    """E σ(z)² of gates, their factor on the square of attention's output.

    z has the standard deviation `sigma(width)`. The mean is computed by Gauss–Hermite
    quadrature.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    gates = 1 / (1 + np.exp(-sigma(width) * nodes))
    return float(weights @ gates**2 / weights.sum())


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention with norms of queries and keys."""
    return ns.softmax(ns.dot(ns.rms_norm(q), ns.rms_norm(k)), mask="causal") @ v


def head(kind: str, width: int) -> Program:
    """Products of one head's outputs, of their even and odd parts, and the gates.

    The outputs y(x) are a function of all tokens x; twice its even and odd parts are
    y(x) ± y(−x). Three outputs have the products ⟨y_i, y_j⟩/n of two tokens (T, T), for
    y, the even and the odd part; the last has the gates per head (T,). `kind` is
    "none", "elementwise" or "headwise".
    """
    queries = ns.weight(HEAD_DIM, width, std=sigma(width))
    keys = ns.weight(HEAD_DIM, width, std=sigma(width))
    values = ns.weight(HEAD_DIM, width, std=sigma(width))
    gates = ns.weight(HEAD_DIM, width, std=sigma(width))
    out = ns.weight(width, HEAD_DIM, std=sigma(HEAD_DIM))
    single_gate = sigma(width) * ns.gaussian(width).reshape(1)
    x = ns.rms_norm(ns.normal((TOKENS, DIRECTIONS)) @ ns.gaussian(width, DIRECTIONS))

    def outputs(x: Any) -> Any:
        """The head's outputs for these tokens."""
        y = attend(queries @ x, keys @ x, values @ x)
        if kind == "elementwise":
            y = ns.sigmoid(gates @ x) * y
        elif kind == "headwise":
            y = ns.sigmoid(ns.dot(single_gate, x)[0]) * y
        return out @ y

    plus = outputs(x)
    minus = outputs(-x)
    even = plus + minus
    odd = plus - minus
    return Program(
        (
            ns.mean_dot(plus, plus),
            ns.mean_dot(even, even),
            ns.mean_dot(odd, odd),
            ns.sigmoid(ns.dot(single_gate, x)[0]),
        )
    )


def heads(kind: str, width: int, draws: int, seed: int) -> Arrays:
    """Properties of one head's outputs, a row for each draw.

    "spectrum" has the eigenvalues of their products over the sum, largest first; "even"
    the share of the even part in the squared outputs; "closed" the share of closed
    gates.
    """
    net = head(kind, width)
    outputs = net.draw(draws=draws, seed=seed, workers=1, progress=False)
    products, even, odd, gates = map(np.asarray, outputs)
    eigenvalues = np.linalg.eigvalsh(products)[:, ::-1]
    even_square = np.trace(even, axis1=1, axis2=2)
    odd_square = np.trace(odd, axis1=1, axis2=2)
    return {
        "spectrum": np.abs(eigenvalues) / eigenvalues.sum(axis=1, keepdims=True),
        "even": even_square / (even_square + odd_square),
        "closed": (gates < CLOSED).mean(axis=1),
    }


def stack(kind: str, depth: int, width: int, hidden: int) -> Program:
    """|∂f/∂x_l|², summed over all tokens, after the blocks l of `measured_blocks`.

    f is a random readout of the last token after all blocks. `kind` is "none",
    "elementwise", or "constant": a constant factor with the mean square of gates.
    """
    # As published, the perceptron gives up as many parameters as the gates have. Gates
    # are a matrix (HEADS · HEAD_DIM, width); SwiGLU has three (hidden, width).
    hidden_width = hidden
    if kind == "elementwise":
        hidden_width = hidden - HEADS * HEAD_DIM // 3

    def attention(y: ns.Vector) -> ns.Vector:
        """All heads, with GROUPS of keys and values, each shared by as many heads."""
        q = ns.weight(HEAD_DIM, width, std=sigma(width), batch=HEADS) @ y
        gate_logits = ns.weight(HEAD_DIM, width, std=sigma(width), batch=HEADS) @ y
        k = ns.weight(HEAD_DIM, width, std=sigma(width), batch=GROUPS) @ y
        v = ns.weight(HEAD_DIM, width, std=sigma(width), batch=GROUPS) @ y
        group_of_head = np.repeat(np.arange(GROUPS), HEADS // GROUPS)
        gate: Any = 1.0
        if kind == "elementwise":
            gate = ns.sigmoid(gate_logits)
        elif kind == "constant":
            gate = math.sqrt(gate_square(width))
        attended = attend(q, k[group_of_head], v[group_of_head])
        joined = ns.concat(gate * attended, axis=0)
        return ns.weight(width, HEADS * HEAD_DIM, std=sigma(HEADS * HEAD_DIM)) @ joined

    def feed(y: ns.Vector) -> ns.Vector:
        """The perceptron, SwiGLU."""
        return mlp(
            y,
            hidden=hidden_width,
            activation=ns.silu,
            gate=True,
            sigma_w=sigma(width),
            sigma_out=sigma(hidden_width),
        )

    def next_block(x: ns.Vector) -> ns.Vector:
        """A block of attention and a perceptron."""
        return block(x, attention, feed).output

    streams = stream(STD * ns.gaussian(width, DEEP_TOKENS), next_block, depth)
    direction = ns.gaussian(width).reshape(1)
    f = ns.dot(direction, ns.rms_norm(streams[-1]))[0, -1]
    measured = [streams[number] for number in measured_blocks(depth)]
    return Program(squares(ns.grad(f, measured)))


def measured_blocks(depth: int) -> tuple[int, ...]:
    """Blocks after which gradients are taken: those of BLOCKS, and the last one.

    For example 1, 2, 4, 8, 16, 28 of 28 blocks.
    """
    return (*(number for number in BLOCKS if number < depth), depth)


def stacks(
    kind: str, depth: int, width: int, hidden: int, draws: int, seed: int
) -> Arrays:
    """The logarithm of the squared gradient after each block, less that after the last.

    A row for each draw.
    """
    program = stack(kind, depth, width, hidden)
    drawn = program.draw(draws=draws, seed=seed, workers=1, progress=False)
    logs = np.log(np.asarray(drawn, dtype=np.float64))
    return {"growth": logs - logs[:, -1:]}


def parts(quick: bool) -> list[Part]:
    """One head, and stacks of blocks."""
    parts = []
    draws = 10 if quick else 400
    for kind in ALONE:
        arguments = {"kind": kind, "width": MODELS[28].stream, "draws": draws}
        parts.append(
            Part(
                label=f"head {kind}",
                work=heads,
                arguments=arguments,
                seconds=0.02 * draws,
            )
        )
    draws = 4 if quick else 32
    depths = [28] if quick else list(MODELS)
    for depth in depths:
        seconds = 2 + 2e-4 * draws * depth**2
        for kind in STACKS:
            arguments = {
                "kind": kind,
                "depth": depth,
                "width": MODELS[depth].stream,
                "hidden": MODELS[depth].hidden,
                "draws": draws,
            }
            parts.append(
                Part(
                    label=f"stack {kind} {depth}",
                    work=stacks,
                    arguments=arguments,
                    seconds=seconds,
                )
            )
    return parts


def _listed(by_kind: dict[str, Estimate]) -> str:
    """As "0.1 ± 0.01 (no gate), 0.2 ± 0.01 (gate per head)"."""
    texts = []
    for kind, estimate in by_kind.items():
        label, _ = LOOKS[kind]
        texts.append(f"{estimate} ({label})")
    return ", ".join(texts)


def _nonlinear(numbers: Numbers) -> Claim:
    """The claim that gates make the output nonlinear: its part that is even in the
    tokens, which a linear map does not have.
    """
    even = {kind: mean(numbers[f"head {kind}"]["even"]) for kind in ALONE}
    verdicts = [decide_below(even["none"], 1e-9)]
    for kind in ("elementwise", "headwise"):
        negative = Estimate(-even[kind].value, even[kind].error)
        verdicts.append(decide_below(negative, -EVEN_MIN))
    expected = 1 - 0.25 / gate_square(MODELS[28].stream)
    return Claim(
        published=(
            "The gate introduces a nonlinearity between the value and output"
            " projections."
        ),
        rule="Of the squared output, the part that is even in the tokens is above"
        f" {EVEN_MIN:g} with a gate and below 1e-9 without one: a linear map has none.",
        ours=f"{_listed(even)}; 1 − 1/(4 E σ²) = {expected:.4f}.",
        verdict=combine(*verdicts),
    )


def _mean_rank(numbers: Numbers, kind: str) -> Estimate:
    """The mean number of eigenvalues that are not 0 up to rounding."""
    spectrum = numbers[f"head {kind}"]["spectrum"]
    return mean((spectrum > RANK_RTOL * spectrum[:, :1]).sum(axis=1))


def _rank(numbers: Numbers, kind: str) -> Claim:
    """The claim that a gate raises the rank of outputs."""
    without = _mean_rank(numbers, "none")
    gated = _mean_rank(numbers, kind)
    negative_ratio = Estimate(
        -gated.value / without.value,
        math.hypot(without.error, gated.error) / without.value,
    )
    return Claim(
        published=f"A {LOOKS[kind][0]} raises the rank of a head's outputs.",
        rule=(
            f"The rank of one head's outputs for {TOKENS} tokens in {DIRECTIONS}"
            f" directions is more than {RANK_FACTOR:g} times that without a gate."
        ),
        ours=f"{_listed({'none': without, kind: gated})}.",
        verdict=extrapolate(decide_below(negative_ratio, -RANK_FACTOR)),
    )


def _sparse(numbers: Numbers) -> Claim:
    """The claim that most gates are closed at initialisation."""
    closed = mean(numbers["head headwise"]["closed"])
    return Claim(
        published="Gates are sparse: at initialisation.",
        rule=f"At least half of all gates are below {CLOSED:g}.",
        ours=(
            f"{closed} of them are. Their mean is 1/2 by symmetry, and the mean of"
            f" their squares {gate_square(MODELS[28].stream):.4f}."
        ),
        verdict=extrapolate(decide_below(Estimate(-closed.value, closed.error), -0.5)),
    )


def _growths(numbers: Numbers, kind: str) -> dict[int, Array]:
    """The growth of gradients in stacks of this kind, (draws, measured blocks), by the
    depth of those that were run.
    """
    growths = {}
    for depth in MODELS:
        label = f"stack {kind} {depth}"
        if label in numbers:
            growths[depth] = numbers[label]["growth"]
    return growths


def _steady(numbers: Numbers) -> Claim:
    """The claim that gradients grow less with gates, from the last block to the
    first.
    """
    lines = []
    verdicts = []
    for depth in _growths(numbers, "none"):
        growth = {}
        for kind in STACKS:
            growth[kind] = mean(_growths(numbers, kind)[depth][:, 0])
        factor = math.sqrt(gate_square(MODELS[depth].stream))
        lines.append(
            f"{depth} blocks: {_listed(growth)}; the constant factor on attention is"
            f" {factor:.3f}"
        )
        verdicts.append(decide_decreasing(growth["none"], growth["elementwise"]))
    return Claim(
        published=(
            "The gate makes training more stable: at initialisation, gradients grow"
            " less towards the first block."
        ),
        rule=(
            "The mean logarithm of the growth of their squares is below that without"
            " gates, by four standard errors."
        ),
        ours=f"{'. '.join(lines)}.",
        verdict=extrapolate(combine(*verdicts)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Nonlinearity, rank, sparsity and gradients."""
    return [
        _nonlinear(numbers),
        _rank(numbers, "elementwise"),
        _rank(numbers, "headwise"),
        _sparse(numbers),
        _steady(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean eigenvalues by index, and mean logarithms of growth by block."""
    for kind in LOOKS:
        if kind in ALONE:
            spectrum = numbers[f"head {kind}"]["spectrum"]
            for index, eigenvalues in enumerate(spectrum.T, start=1):
                yield _row("spectrum", kind, blocks=0, index=index, draws=eigenvalues)
        if kind in STACKS:
            for depth, growth in _growths(numbers, kind).items():
                for number, logs in zip(measured_blocks(depth), growth.T, strict=True):
                    yield _row("growth", kind, blocks=depth, index=number, draws=logs)


def _row(
    quantity: str, kind: str, blocks: int, index: int, draws: Array
) -> dict[str, Any]:
    """One row of the table, with the mean of the draws."""
    estimate = mean(draws)
    return {
        "quantity": quantity,
        "gate": kind,
        "blocks": blocks,
        "index": index,
        "mean": estimate.value,
        "error": estimate.error,
    }


def draw(numbers: Numbers) -> Any:
    """The spectrum of one head's outputs, and the growth of gradients by block.

    The growth is over that without gates.
    """
    figure = new(2.6)
    left, right = figure.subplots(1, 2)
    without = _growths(numbers, "none")
    depth = max(without)
    lines = {}  # for the legend, by label
    for kind, (label, colour) in LOOKS.items():
        style: dict[str, Any] = {
            "marker": MARK_OF[colour],
            "ms": 6 if kind == "none" else 3,  # to show it below the others
            "mfc": "none",
            "color": colour,
        }
        if kind in ALONE:
            spectrum = numbers[f"head {kind}"]["spectrum"].mean(axis=0)
            (lines[label],) = left.plot(range(1, len(spectrum) + 1), spectrum, **style)
        if kind in STACKS:
            growth = _growths(numbers, kind)[depth].mean(axis=0)
            ratio = np.exp(growth - without[depth].mean(axis=0))
            (lines[label],) = right.plot(measured_blocks(depth), ratio, **style)
    left.set(xscale="log", xlabel="index")
    left.set(yscale="log", ylabel="eigenvalue / sum", ylim=(1e-6, 1))
    left.set_xticks((1, DIRECTIONS, TOKENS), map(str, (1, DIRECTIONS, TOKENS)))
    right.set(xscale="log", xlabel="block", ylabel="growth / that without gate")
    right.set_xticks(measured_blocks(depth), map(str, measured_blocks(depth)))
    for axes in (left, right):
        axes.minorticks_off()
    figure.legend(
        list(lines.values()), list(lines), loc="outside lower center", ncols=2
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
            name="gated-attention",
            caption=f"Left: the spectrum of one head's outputs for {TOKENS} tokens in"
            f" {DIRECTIONS} directions. Right: how much more squared gradients grow"
            " from the last block to earlier ones than without a gate.",
            draw=draw,
            rows=rows,
        ),
    ),
)
