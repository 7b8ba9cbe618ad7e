"""Findings: each rule says what it looks at, from where on it is worth a warning, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ._backward import BACKWARD_RULES
from ._judge import (
    ABSENT,
    FOUND,
    NOT_FOUND,
    UNDECIDED,
    Array,
    Facts,
    Finding,
    Rule,
    Said,
    above,
    below,
    compared,
    ratio,
    times,
)
from ._order import FEWEST, HIGH, LOW, enclosed
from ._quantities import BLOCKS, EVERY
from ._routing import ROUTING_RULES


def _growth(facts: Facts, threshold: float) -> Said:
    square = facts.draws["mean_square"]
    starts = [facts.draws[name] for name in ("input_mean_square", "decoder_input_mean_square") if name in facts.draws]
    ratios = [ratio(square[:, last], start, 1.0) for start, (_, last) in zip(starts, facts.stacks, strict=True)]
    most = int(np.argmax([np.median(ratio) for ratio in ratios]))
    first, last = facts.stacks[most]
    middle = float(np.median(ratios[most]))
    inside = float(np.median(ratio(square[:, last], square[:, first], 1.0)))
    text = (
        f"mean square {np.median(starts[most]):.3g} at the embedding, {np.median(square[:, first]):.3g} after block "
        f"{first + 1}, {np.median(square[:, last]):.3g} after block {last + 1}: {times(middle)} in all, "
        f"{times(inside)} in the blocks"
    )
    return compared(text, above, ratios[most], threshold, middle)


def _branches(facts: Facts, threshold: float) -> Said:
    draws = facts.draws
    if not {"attention_share", "mlp_share"} <= draws.keys():
        return Said("both branches are not watched", ABSENT)
    attention = draws["attention_share"] + draws.get("cross_share", np.zeros(1))
    if not (attention + draws["mlp_share"]).any():
        return Said("neither branch adds anything", ABSENT)
    part = ratio(attention, attention + draws["mlp_share"], 0.5)
    lesser = np.minimum(np.median(part, axis=0), 1 - np.median(part, axis=0))
    worst = int(np.argmin(lesser))
    is_attention = bool(np.median(part[:, worst]) < 0.5)
    shares = [float(np.median(share[:, 0])) for share in (draws["mlp_share"], attention)]
    text = (
        f"after block 1 the stream is {shares[0]:.0%} MLP output, {shares[1]:.0%} attention output; in block "
        f"{worst + 1} {'attention' if is_attention else 'the MLP'} is {lesser[worst]:.2g} of what is added"
    )
    drowned = part[:, worst] if is_attention else 1 - part[:, worst]
    return compared(text, below, drowned, threshold, float(lesser[worst]))


def _rank(facts: Facts, threshold: float) -> Said:
    if facts.distinct < 2:
        return Said("the tokens begin as one vector", ABSENT)
    rank = facts.draws["effective_rank"]
    first, last = min(facts.stacks, key=lambda stack: float(np.median(rank[:, stack[1]])))
    free = (rank[:, last] - 1) / (facts.distinct - 1)
    text = (
        f"effective rank {np.median(rank[:, first]):.3g} after block {first + 1}, {np.median(rank[:, last]):.3g} "
        f"after block {last + 1}, of {facts.distinct} tokens; cosine {np.median(facts.draws['cosine'][:, last]):.2g}"
    )
    return compared(text, below, free, threshold, float(np.median(free)))


def _entropy(facts: Facts, threshold: float) -> Said:
    if "entropy" not in facts.draws:
        return Said("no attention weights are watched", ABSENT)
    entropy = facts.draws["entropy"]
    medians = np.median(entropy, axis=0)
    worst = int(np.argmin(medians))
    text = f"{medians[worst]:.3g} of uniform in block {worst + 1}, the lowest"
    if "score_std" in facts.draws:
        text += f"; scores have a standard deviation of {np.median(facts.draws['score_std'][:, worst]):.3g} there"
    return compared(text, below, entropy[:, worst], threshold, float(medians[worst]))


def _loss(facts: Facts, threshold: float) -> Said:
    if facts.uniform_loss is None or "loss" not in facts.draws:
        return Said("the model has no logits", ABSENT)
    excess = facts.draws["loss"] - facts.uniform_loss
    middle = float(np.median(excess))
    more = f"{middle:+.3g}" if abs(middle) > facts.rounding * facts.uniform_loss else "up to rounding"
    text = (
        f"first loss {np.median(facts.draws['loss']):.4g}, which is ln V {more}; logits have a standard "
        f"deviation of {np.median(facts.draws['logit_std']):.3g}"
    )
    return compared(text, above, excess, threshold, middle)


def _limit(facts: Facts, threshold: float) -> Said:
    if facts.limit is None:
        return Said("only one of the two widths was measured", ABSENT)
    names = [q.name for q in BLOCKS if q.name in facts.draws and q.name in facts.limit]
    outside, doubtful, worst = 0, 0, (0.0, "")
    columns = [(name, i) for name in names for i in range(facts.draws[name].shape[1])]
    for name, i in columns:
        here, there = facts.draws[name][:, i], facts.limit[name][:, i]
        verdict = _misses(here, there, facts.rounding)
        outside += verdict == FOUND
        doubtful += verdict == UNDECIDED
        low, high, middle = *np.quantile(here, [LOW, HIGH]), float(np.median(there))
        away = max(low - middle, middle - high)
        if verdict == FOUND and (far := away / max(high - low, facts.rounding * abs(middle))) > worst[0]:
            worst = far, f"{EVERY[name].title} in block {i + 1}: limit {middle:.3g}, band {low:.3g} to {high:.3g}"
    share = outside / len(columns)
    text = f"{outside} of {len(columns)} medians of the limit are outside the band"
    if outside:
        text += f"; farthest, {worst[1]}"
    possible = (outside + doubtful) / len(columns)
    verdict = FOUND if share > threshold else NOT_FOUND if possible <= threshold else UNDECIDED
    if verdict == UNDECIDED:
        few = min(len(facts.draws[names[0]]), len(facts.limit[names[0]])) < FEWEST
        text += f"; the ends of a band take {FEWEST} draws or more" if few else f"; {doubtful} may be, by their errors"
    return Said(text, verdict, share)


def _misses(here: Array, there: Array, relative: float) -> str:
    """Is the median of the limit outside the band at the model's own widths?"""
    low, high = enclosed(there, 0.5)
    rounding = relative * float(np.max(np.abs(here), initial=0.0))
    (bottom, bottom_high), (top_low, top) = enclosed(here, LOW), enclosed(here, HIGH)
    if high < bottom - rounding or low > top + rounding:
        return FOUND
    return NOT_FOUND if low >= bottom_high - rounding and high <= top_low + rounding else UNDECIDED


RULES = (
    Rule(
        "growth",
        "the mean square of the stream after the last block is more than 10,000 times that of the embedding",
        1e4,
        "The token's own vector is then less than 1 % of the size of the stream that carries it: one or two steps of "
        "bf16, which are 0.4 to 0.8 %. The two ends of the network are on other scales, and so are their gradients.",
        _growth,
    ),
    Rule(
        "branches",
        "in some block one branch, attention or MLP, is less than 0.1 of what the two add",
        0.1,
        "The other branch then decides what the next block sees, and learning through the weak one is slow at first.",
        _branches,
    ),
    Rule(
        "rank",
        "at the end the tokens fill less than 0.1 of the directions in which they can differ",
        0.1,
        "Tokens that point the same way cannot be told apart after a norm: the loss hardly depends on which is which.",
        _rank,
    ),
    Rule(
        "entropy",
        "in some block the entropy of attention rows is less than 0.5 of that of uniform weights",
        0.5,
        "A softmax that has already chosen passes little gradient to its scores, and what it chose is chance.",
        _entropy,
    ),
    Rule(
        "loss",
        "the first loss is more than 2 nats above ln V",
        2.0,
        "A model that knows nothing should say so: the first steps are spent on shrinking logits that mean nothing. "
        "Logits N(0, v) cost v/2, so those of variance 1, as usual parametrisations have them, cost 0.5.",
        _loss,
    ),
    Rule(
        "limit",
        "more than 0.05 of all medians at infinite width are outside the 5–95 % band at the model's own widths",
        0.05,
        "Where the limit is outside the band, a theory of infinite width does not describe this model.",
        _limit,
    ),
    *BACKWARD_RULES,
    *ROUTING_RULES,
)


def judged(facts: Facts, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """A finding for each rule."""
    found = []
    for rule in rules:
        said = rule.judge(facts, rule.threshold)
        value = said.value if said.value is None or math.isfinite(said.value) else None
        found.append(
            Finding(
                rule.name,
                rule.rule,
                rule.reason,
                said.measured,
                said.verdict,
                value,
                rule.threshold,
                *said.interval,
                said.above,
                (facts.tokens,),
            )
        )
    return tuple(found)
