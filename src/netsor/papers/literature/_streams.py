"""Alimaskina et al.: the streams of hyper-connections at initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ... import language as ns
from ...laws import Estimate
from ...nn import attention, mlp
from ...programs._program import Program
from ...report._mpl_style import BLACK, BLUE, GREEN, MARK_OF, ORANGE, VERMILLION, new
from ...studies import Arrays
from .._significance import combine, decide_below, extrapolate
from ._depth import stream
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean, mean_columns

Branch = Callable[[ns.Vector], ns.Vector]
STREAMS, TOKENS, BLOCKS = 4, 4, 16
WIDTH, HEAD_DIM = 512, 64
MEASURED = (0, 1, 2, 4, 8, 16)  # blocks after which streams are compared
# Cases: whether streams start equal, the weight of their mean in the residual mixing,
# and whether branches read the mean of all streams or each the next one.
CASES: dict[str, dict[str, Any]] = {
    "equal": {"equal": True, "mixing": 0.1, "in_turn": False},
    "equal, read in turn": {"equal": True, "mixing": 0.1, "in_turn": True},
    "different": {"equal": False, "mixing": 0.1, "in_turn": False},
    "different, no mixing": {"equal": False, "mixing": 0.0, "in_turn": False},
    "different, read in turn": {"equal": False, "mixing": 0.1, "in_turn": True},
}
LIMITS = ("different", "different, no mixing")  # cases that are run at infinite width
# Rules, fixed before the run of the default seed.
EQUAL_ATOL = 1e-9  # of cosines of equal vectors
APART = 0.01  # streams differ if their cosine is below 1 − APART
DOMINANT = 0.5  # the share of the squared norm that makes a stream dominant


def network(equal: bool, mixing: float, in_turn: bool) -> tuple[Program, Program]:
    """Gram matrices of the streams, and of the gradients by them, for the last token.

    Both programs return an array (MEASURED, streams, streams): ⟨x_i, x_j⟩/n of the
    streams after some blocks, or the same for the gradients of a readout of their sum.
    Every branch reads streams, and is added to all of them.
    """
    n = ns.Width("n")
    heads = WIDTH // HEAD_DIM
    if equal:
        tokens = ns.gaussian(n, TOKENS)
        start = [tokens] * STREAMS
    else:
        start = [ns.gaussian(n, TOKENS) for _ in range(STREAMS)]
    turns = iter(range(2 * BLOCKS))

    def written(x: ns.Vector, branch: Branch) -> ns.Vector:
        """The streams after one branch."""
        average = x.mean(0)
        read = x[next(turns) % STREAMS] if in_turn else average
        output = branch(ns.rms_norm(read))
        mixed = (1 - mixing) * x + mixing * average
        return mixed + output

    def next_block(x: ns.Vector) -> ns.Vector:
        """A block of attention and a perceptron."""
        x = written(x, lambda y: attention(y, heads, HEAD_DIM, "causal"))
        return written(x, lambda y: mlp(y, 4 * n, sigma_w=math.sqrt(2), sigma_out=1.0))

    streams = stream(ns.stack(start), next_block, BLOCKS)
    measured = [streams[number] for number in MEASURED]
    last = streams[-1][:, -1].sum(0)
    f = ns.dot(ns.gaussian(n).reshape(1), last.reshape(1))[0, 0]
    gradients = ns.grad(f, measured)
    return Program(_grams(measured)), Program(_grams(gradients))


def _grams(vectors: list[ns.Vector]) -> ns.Scalar:
    """⟨x_i, x_j⟩/n of the last token in all pairs of streams, for each of these."""
    grams = []
    for x in vectors:
        token = x[:, -1]
        grams.append(ns.mean_dot(token, token))
    return ns.stack(grams)


def cosines(grams: Array) -> Array:
    """The mean cosine of two streams, (draws, MEASURED)."""
    norms = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
    ratios = grams / (norms[..., :, None] * norms[..., None, :])
    first, second = np.triu_indices(STREAMS, 1)
    return np.asarray(ratios[..., first, second].mean(axis=-1))


def compare(case: str, draws: int, seed: int) -> Arrays:
    """Cosines of streams and of gradients, (draws, MEASURED); and the largest share of
    a stream in the sum of squared norms after the last block, (draws,).
    """
    states, gradients = (
        np.asarray(
            program.draw(n=WIDTH, draws=draws, seed=seed, workers=1, progress=False)
        )
        for program in network(**CASES[case])
    )
    squares = np.diagonal(states[:, -1], axis1=-2, axis2=-1)
    return {
        "states": cosines(states),
        "gradients": cosines(gradients),
        "share": squares.max(axis=-1) / squares.sum(axis=-1),
    }


def limit(case: str, draws: int, seed: int) -> Arrays:
    """Cosines of streams at infinite width, (draws, MEASURED)."""
    program, _ = network(**CASES[case])
    states = program.draw(n=math.inf, draws=draws, seed=seed, workers=1, progress=False)
    return {"states": cosines(np.asarray(states))}


def parts(quick: bool) -> list[Part]:
    """Every case at the finite width, and some at infinity."""
    draws = 8 if quick else 40
    parts = []
    for case in CASES:
        arguments = {"case": case, "draws": draws}
        seconds = 1 + 0.03 * draws
        parts.append(
            Part(label=case, work=compare, arguments=arguments, seconds=seconds)
        )
    for case in LIMITS:
        arguments = {"case": case, "draws": draws}
        parts.append(
            Part(
                label=f"{case}, n = ∞",
                work=limit,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


def _off(cosines: Array) -> Estimate:
    """The largest distance of a cosine from 1."""
    return Estimate(float(np.max(np.abs(cosines - 1))), 0.0)


def _symmetric(numbers: Numbers) -> Claim:
    """The symmetry as it is stated."""
    arrays = numbers["equal"]
    states = _off(arrays["states"])
    gradients = _off(arrays["gradients"])
    return Claim(
        published=(
            "Hyper-connections have a permutation symmetry of streams: streams that"
            " start equal, in a network that treats them alike."
        ),
        rule=(
            f"In every draw and after every block, cosines of streams and of their"
            f" gradients are 1 within {EQUAL_ATOL:g}."
        ),
        ours=f"Largest distances from 1: {states.value:.0e} (streams),"
        f" {gradients.value:.0e} (gradients).",
        verdict=combine(
            decide_below(states, EQUAL_ATOL), decide_below(gradients, EQUAL_ATOL)
        ),
    )


def _in_turn(numbers: Numbers) -> Claim:
    """Reading the streams in turn breaks the symmetry for gradients only."""
    arrays = numbers["equal, read in turn"]
    states = _off(arrays["states"])
    first = mean(arrays["gradients"][:, 0])
    return Claim(
        published=(
            "Ours: if every branch reads another stream, equal streams stay equal, and"
            " only their gradients differ."
        ),
        rule=(
            f"Cosines of streams are 1 within {EQUAL_ATOL:g}; those of gradients before"
            f" the first block are below {1 - APART:g}."
        ),
        ours=f"{states.value:.0e} from 1 (streams), {first} (gradients).",
        verdict=combine(
            decide_below(states, EQUAL_ATOL), decide_below(first, 1 - APART)
        ),
    )


def _apart(numbers: Numbers, cases: Sequence[str], words: str) -> Claim:
    """Whether streams that start different stay so."""
    listed = []
    verdicts = []
    for case in cases:
        last = mean(numbers[case]["states"][:, -1])
        listed.append(f"{last} ({case})")
        verdicts.append(extrapolate(decide_below(last, 1 - APART)))
        infinite = numbers.get(f"{case}, n = ∞")
        if infinite is not None:
            listed.append(f"{mean(infinite['states'][:, -1])} (the same at n = ∞)")
    return Claim(
        published=(
            "Breaking the symmetry at stream initialisation keeps streams apart: before"
            f" training, {words}."
        ),
        rule=(
            f"The mean cosine of two streams after {BLOCKS} blocks is below"
            f" {1 - APART:g} if they start independent."
        ),
        ours=f"{', '.join(listed)}.",
        verdict=combine(*verdicts),
    )


def _same_gradients(numbers: Numbers) -> Claim:
    """Gradients where only the start of the streams is different."""
    gradient = mean(numbers["different"]["gradients"][:, 0])
    return Claim(
        published=(
            "The same for gradients: before training, where reading and mixing treat"
            " all streams alike."
        ),
        rule=f"The mean cosine of gradients by two streams is below {1 - APART:g}.",
        ours=f"{gradient}: the output depends on the mean of the streams only.",
        verdict=extrapolate(decide_below(gradient, 1 - APART)),
    )


def _dominant(numbers: Numbers) -> Claim:
    """Dominance, which is stated for training."""
    listed = []
    verdicts = []
    for case in CASES:
        share = mean(numbers[case]["share"])
        listed.append(f"{share} ({case})")
        verdicts.append(decide_below(Estimate(-share.value, share.error), -DOMINANT))
    verdict = combine(*(extrapolate(verdict) for verdict in verdicts))
    return Claim(
        published="Signal concentrates in a dominant stream (in training).",
        rule=(
            f"At initialisation the largest of {STREAMS} streams has more than"
            f" {DOMINANT:g} of the sum of squared norms after {BLOCKS} blocks."
        ),
        ours=f"{', '.join(listed)}.",
        verdict=verdict,
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The symmetry, what breaks it, and dominance."""
    return [
        _symmetric(numbers),
        _in_turn(numbers),
        _apart(numbers, ("different, no mixing",), "with the identity as mixing"),
        _apart(
            numbers,
            ("different", "different, read in turn"),
            "with a tenth of the mean",
        ),
        _same_gradients(numbers),
        _dominant(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean cosines of streams and of gradients by case and block; at infinite width
    there are no gradients.
    """
    for case, arrays in numbers.items():
        for index, block in enumerate(MEASURED):
            states = mean(arrays["states"][:, index])
            gradients = Estimate(math.nan, math.nan)
            if "gradients" in arrays:
                gradients = mean(arrays["gradients"][:, index])
            means = {"cosine": states, "gradient_cosine": gradients}
            yield {"case": case, "block": block, **mean_columns(means)}


def draw(numbers: Numbers) -> Any:
    """Cosines of streams, and of gradients, by block."""
    figure = new(2.6)
    left, right = figure.subplots(1, 2, sharey=True)
    colours = (BLUE, GREEN, VERMILLION, ORANGE, BLACK)
    sizes = (8, 6, 5, 3.5, 3)  # of markers: some cases lie on each other
    blocks = range(len(MEASURED))
    for case, colour, size in zip(CASES, colours, sizes, strict=True):
        arrays = numbers[case]
        style = {"color": colour, "marker": MARK_OF[colour], "ms": size, "mfc": "none"}
        left.plot(blocks, arrays["states"].mean(axis=0), label=case, **style)
        right.plot(blocks, arrays["gradients"].mean(axis=0), **style)
    left.set(ylabel="cosine of two streams", title="states")
    right.set(title="gradients")
    for axes in (left, right):
        axes.set(xlabel="block")
        axes.set_xticks(blocks, map(str, MEASURED))
    left.set_ylim(-0.06, 1.1)
    figure.suptitle("Equal writes make streams parallel before training", size=8)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


RESULT = Result(
    name="streams",
    title="Alimaskina et al.: the streams of hyper-connections",
    source=(
        "Alimaskina, Molodtsov and Beznosikov, Analyzing stream collapse in"
        " hyper-connections: from diagnosis to mitigation (2026)."
    ),
    links=("https://arxiv.org/abs/2606.03483",),
    setting=(
        f"{BLOCKS} blocks of attention and a perceptron, {STREAMS} streams of"
        f" {TOKENS} tokens in width {WIDTH}, with heads of dimension {HEAD_DIM}. Every"
        " branch is added to all streams; the residual mixing is the identity plus 0.1"
        " times the difference to the mean of the streams, or the identity. Branches"
        " read the mean of all streams, or each the next one. Streams start equal, or"
        " independent. Connections are constants, as at initialisation. Draws have the"
        " exact law at finite width; at infinite width the limit is conjectured."
    ),
    quick="8 networks.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="streams",
            caption=(
                "Left: the mean cosine of two streams by block. Right: that of the"
                " gradients by them."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract; its networks were not read, and ours are our"
        " choice. The statements on training are not judged: seeding, mixing near the"
        " identity, better models. What we compute at initialisation is not stated for"
        " it, apart from the symmetry: a failure is outside the stated range."
    ),
)
