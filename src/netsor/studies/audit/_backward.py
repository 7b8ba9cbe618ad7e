"""Rules on gradients: whether they vanish or explode with depth, who receives none, and who receives all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._judge import ABSENT, Array, Facts, Rule, Said, above, below, compared, ratio, times

NO_GRADIENTS = Said("gradients were not asked for", ABSENT)
ATTENTION = ("query", "key", "value", "output")
KINDS = (*ATTENTION, "in", "gate", "out", "embedding", "head")


def _vanishing(facts: Facts, threshold: float) -> Said:
    """In the blocks: the embedding's own gradient may be large only since its vectors are small."""
    if "grad_mean_square" not in facts.draws:
        return NO_GRADIENTS
    square = facts.draws["grad_mean_square"]
    ratios = [ratio(square[:, first], square[:, last], 1.0) for first, last in facts.stacks]
    return _through(facts, threshold, below, ratios, int(np.argmin([np.median(each) for each in ratios])))


def _exploding(facts: Facts, threshold: float) -> Said:
    """From the embedding on; where an encoder and a decoder share it, from the first block of each on."""
    if "grad_mean_square" not in facts.draws:
        return NO_GRADIENTS
    square = facts.draws["grad_mean_square"]
    starts = [square[:, first] for first, _ in facts.stacks] if len(facts.stacks) > 1 else [facts.draws["grad_input"]]
    ratios = [ratio(start, square[:, last], 1.0) for start, (_, last) in zip(starts, facts.stacks, strict=True)]
    return _through(facts, threshold, above, ratios, int(np.argmax([np.median(each) for each in ratios])))


def _through(
    facts: Facts, threshold: float, is_it: Callable[[Array, float], str], ratios: list[Array], worst: int
) -> Said:
    """The mean square of the stream's gradient, from one end to the other."""
    square, (first, last) = facts.draws["grad_mean_square"], facts.stacks[worst]
    start, whole = "", ""
    if len(facts.stacks) == 1:
        start = f"{np.median(facts.draws['grad_input']):.3g} at the embedding, "
        whole = f"{times(float(np.median(ratio(facts.draws['grad_input'], square[:, last], 1.0))))} in all, "
    inside = float(np.median(ratio(square[:, first], square[:, last], 1.0)))
    text = (
        f"mean square of the gradient {start}{np.median(square[:, first]):.3g} after block {first + 1}, "
        f"{np.median(square[:, last]):.3g} after block {last + 1}: {whole}{times(inside)} in the blocks"
    )
    return compared(text, is_it, ratios[worst], threshold, float(np.median(ratios[worst])))


def _scores(facts: Facts, threshold: float) -> Said:
    if "grad_query" not in facts.draws:
        return NO_GRADIENTS
    query, key, value, output = (facts.draws[f"grad_{kind}"] for kind in ATTENTION)
    total = query + key + value + output
    if not total.any():
        return Said("attention receives no gradient at all", ABSENT)
    share = ratio(query + key, total, 1.0)
    medians = np.median(share, axis=0)
    worst = int(np.argmin(medians))
    text = (
        f"in block {worst + 1} queries and keys receive {medians[worst]:.2g} of the squared gradient of attention's "
        f"matrices; gradient over weight is {_sizes(facts, worst, ('query', 'value'))}"
    )
    return compared(text, below, share[:, worst], threshold, float(medians[worst]))


def _sizes(facts: Facts, block: int, kinds: tuple[str, ...]) -> str:
    """Of some kinds of weights, √(gradient²/weight²)."""
    found = [(kind, facts.draws.get(f"grad_{kind}_ratio")) for kind in kinds]
    said = [f"{np.sqrt(np.median(a[:, block])):.2g} ({kind})" for kind, a in found if a is not None]
    return ", ".join(said) or "not defined"


def _dominant(facts: Facts, threshold: float) -> Said:
    sums = {kind: _whole(facts.draws[f"grad_{kind}"]) for kind in KINDS if f"grad_{kind}" in facts.draws}
    if not sums:
        return NO_GRADIENTS
    total: Array = np.sum(list(sums.values()), axis=0)
    if not total.any():
        return Said("no weight receives a gradient", ABSENT)
    shares = {kind: ratio(each, total, 0.0) for kind, each in sums.items()}
    first, second = sorted(shares, key=lambda kind: -float(np.median(shares[kind])))[:2]
    middle = float(np.median(shares[first]))
    text = (
        f"of the squared gradient of all weights {middle:.2g} is that of one kind ({first}), "
        f"{np.median(shares[second]):.2g} of the next ({second})"
    )
    return compared(text, above, shares[first], threshold, middle)


def _whole(draws: Array) -> Array:
    """Over all blocks."""
    return draws if draws.ndim == 1 else np.asarray(draws.sum(axis=1))


BACKWARD_RULES = (
    Rule(
        "vanishing",
        "the mean square of the stream's gradient after the first block is less than 0.01 of that after the last",
        0.01,
        "The first blocks then learn ten times slower than the last from one step of gradient descent, in size; an "
        "optimiser that divides by the size of gradients hides it, until eps or noise does not.",
        _vanishing,
    ),
    Rule(
        "exploding",
        "the mean square of the stream's gradient at the embedding is more than 10,000 times that after the last block",
        1e4,
        "One learning rate of plain gradient descent is then too large for the first weights or too small for the "
        "last, and clipping by the norm of all gradients is decided by the first.",
        _exploding,
    ),
    Rule(
        "scores",
        "in some block queries and keys receive less than 0.001 of the squared gradient of attention's matrices",
        0.001,
        "Where tokens attend is then learned long after what they pass on: nearly uniform weights of nearly equal "
        "values hardly depend on the scores.",
        _scores,
    ),
    Rule(
        "dominance",
        "one kind of weight has more than 0.9 of the squared gradient of all",
        0.9,
        "Clipping by the norm of all gradients then depends on that kind alone, and so does the first step of plain "
        "gradient descent: all others hardly move.",
        _dominant,
    ),
)
