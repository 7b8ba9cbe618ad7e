"""The rules of an audit: what each one measures, its threshold for a warning, and
why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED
from ..._validate import ArgumentError
from ...models import Transformer
from ._findings import (
    EQUALITY_RTOL,
    FEWEST,
    Finding,
    above,
    band,
    below,
    draws_needed,
    outside_band,
    quantile_interval,
)
from ._quantities import BLOCKS, EVERY, KINDS, number
from ._remedies import Flagged, remedy

# those about gradients
BACKWARD_RULES = ("vanishing", "exploding", "scores", "dominance")
NO_GRADIENTS = "gradients were not requested"


class RuleInput(NamedTuple):
    """The inputs of the rules: draws at the model's own widths (at infinity, if only
    that was requested), and more.
    """

    draws: Mapping[str, Floats]
    # at infinity, where the first are not; or why there are none
    limit: Mapping[str, Floats] | str
    distinct: int  # tokens that begin as different vectors
    uniform_loss: float | None  # ln V
    # first and last block of the network, or of its encoder and its decoder
    stacks: tuple[tuple[int, int], ...]
    tokens: int  # how many there are
    precision: str = "float64"  # of the draws
    model: Transformer | None = None  # that is audited; None: a program

    @property
    def rounding(self) -> float:
        """How near numbers are the same, relative to their size."""
        return EQUALITY_RTOL[self.precision]


Comparison = Callable[[Floats, float], str]  # `above` or `below`
Judge = Callable[[RuleInput, "Rule"], Finding]


class Rule(NamedTuple):
    """A rule."""

    name: str
    rule: str  # in words, with {threshold}
    threshold: float
    brief: str  # a few words, with {value}
    reason: str
    judge: Judge

    def finding(
        self,
        measured: str,
        verdict: str = NOT_APPLICABLE,
        value: float | None = None,
        **ends: Any,
    ) -> Finding:
        """The finding, in words and as a number; or why the rule does not apply."""
        words = self.rule.format(threshold=f"{self.threshold:,g}")
        brief = "" if value is None else self.brief.format(value=number(value))
        said = self.name, words, self.reason, measured, verdict, value, self.threshold
        return Finding(*said, brief=brief, **ends)

    def compared(self, text: str, is_it: Comparison, values: Floats) -> Finding:
        """The finding from the median of values; if undecided, with the number of draws
        that would settle it.
        """
        verdict = is_it(values, self.threshold)
        if verdict == UNDECIDED:
            draws = draws_needed(values, self.threshold)
            text += (
                f"; about {draws:,} draws decide"
                if draws
                else "; at the threshold: no number of draws decides"
            )
        ends = float(np.median(values)), *quantile_interval(values, 0.5)
        value, low, high = (end if math.isfinite(end) else None for end in ends)
        return self.finding(
            text, verdict, value, low=low, high=high, above=is_it is above
        )


RULES: list[Rule] = []  # in the order of reports


def rule(*words: Any) -> Callable[[Judge], None]:
    """Add a rule whose judge is the decorated function; `words` are the other fields of
    `Rule`.
    """
    return lambda judge: RULES.append(Rule._make((*words, judge)))


def judged(facts: RuleInput) -> tuple[Finding, ...]:
    """A finding for each rule, with what to change."""
    return tuple(_advised(facts, rule.judge(facts, rule)) for rule in RULES)


def _advised(facts: RuleInput, finding: Finding) -> Finding:
    flagged = None
    if (
        finding.verdict == FLAG
        and finding.value is not None
        and finding.threshold is not None
        and facts.model
    ):
        flagged = Flagged(facts.model, facts.draws, finding.value, finding.threshold)
    words, changes = remedy(finding.name, flagged)
    return replace(finding, tokens=(facts.tokens,), advice=words, changes=changes)


def rule_name(name: str) -> str:
    """The name of a rule, checked."""
    names = [rule.name for rule in RULES]
    if name not in names:
        raise ArgumentError("rule", name, f"one of {', '.join(names)}")
    return name


def ratio(a: Floats, b: Floats, otherwise: float) -> Floats:
    """a/b; `otherwise` where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((a == 0) & (b == 0), otherwise, a / b)


@rule(
    "growth",
    "the mean square of the stream after the last block is more than {threshold} times"
    " that of the embedding",
    1e4,
    "stream grows ×{value} from the embedding to the end",
    "The token's own vector is then so small a part of the stream that carries it that"
    " bf16, with steps of 0.4 to 0.8 %, hardly resolves it. The two ends of the network"
    " are on other scales, and so are their gradients.",
)
def _growth(facts: RuleInput, rule: Rule) -> Finding:
    square = facts.draws["mean_square"]
    starts = [
        facts.draws[name]
        for name in ("input_mean_square", "decoder_input_mean_square")
        if name in facts.draws
    ]
    ratios = [
        ratio(square[:, last], start, 1.0)
        for start, (_, last) in zip(starts, facts.stacks, strict=True)
    ]
    most = int(np.argmax(np.median(ratios, axis=1)))
    first, last = facts.stacks[most]
    whole, inside = (
        float(np.median(each))
        for each in (ratios[most], ratio(square[:, last], square[:, first], 1.0))
    )
    text = (
        f"mean square {np.median(starts[most]):.3g} at the embedding,"
        f" {np.median(square[:, first]):.3g} after block {first + 1},"
        f" {np.median(square[:, last]):.3g} after block {last + 1}: {number(whole)}"
        f" times in all, {number(inside)} times in the blocks"
    )
    return rule.compared(text, above, ratios[most])


@rule(
    "branches",
    "in some block one branch, attention or MLP, is less than {threshold} of what the"
    " two add",
    0.1,
    "the weaker branch is {value} of what the two add",
    "The other branch then decides what the next block sees, and learning through the"
    " weak one is slow at first.",
)
def _branches(facts: RuleInput, rule: Rule) -> Finding:
    draws = facts.draws
    if not {"attention_share", "mlp_share"} <= draws.keys():
        return rule.finding("attention and MLP are not both probed")
    attention, mlp = (
        draws["attention_share"] + draws.get("cross_share", np.zeros(1)),
        draws["mlp_share"],
    )
    if not (attention + mlp).any():
        return rule.finding("neither branch adds anything")
    part = ratio(attention, attention + mlp, 0.5)
    medians = np.median(part, axis=0)
    worst = int(np.argmin(np.minimum(medians, 1 - medians)))
    weaker, drowned = (
        ("attention", part) if medians[worst] < 0.5 else ("the MLP", 1 - part)
    )
    text = (
        f"after block 1 the stream is {np.median(mlp[:, 0]):.0%} MLP output,"
        f" {np.median(attention[:, 0]):.0%} attention output; in block {worst + 1}"
        f" {weaker} is {np.median(drowned[:, worst]):.2g} of what is added"
    )
    return rule.compared(text, below, drowned[:, worst])


@rule(
    "rank",
    "at the end the tokens fill less than {threshold} of the directions in which they"
    " can differ",
    0.1,
    "tokens fill {value} of the directions in which they can differ",
    "Tokens that point the same way look alike after a norm: the loss hardly depends on"
    " which is which.",
)
def _rank(facts: RuleInput, rule: Rule) -> Finding:
    if facts.distinct < 2:
        return rule.finding("the tokens begin as one vector")
    rank = facts.draws["effective_rank"]
    first, last = min(
        facts.stacks, key=lambda stack: float(np.median(rank[:, stack[1]]))
    )
    free = (rank[:, last] - 1) / (facts.distinct - 1)
    text = (
        f"effective rank {np.median(rank[:, first]):.3g} after block {first + 1},"
        f" {np.median(rank[:, last]):.3g} after block {last + 1}, of {facts.distinct}"
        f" tokens; cosine {np.median(facts.draws['cosine'][:, last]):.2g}"
    )
    return rule.compared(text, below, free)


@rule(
    "entropy",
    "in some block the entropy of attention rows is less than {threshold} of that of"
    " uniform weights",
    0.5,
    "lowest attention entropy is {value} of uniform",
    "A softmax that has already chosen passes little gradient to its scores, and what"
    " it chose is chance.",
)
def _entropy(facts: RuleInput, rule: Rule) -> Finding:
    if "entropy" not in facts.draws:
        return rule.finding("attention weights are not probed")
    entropy = facts.draws["entropy"]
    medians = np.median(entropy, axis=0)
    worst = int(np.argmin(medians))
    text = f"{medians[worst]:.3g} of uniform in block {worst + 1}, the lowest"
    if "score_std" in facts.draws:
        text += (
            "; scores have a standard deviation of"
            f" {np.median(facts.draws['score_std'][:, worst]):.3g} there"
        )
    return rule.compared(text, below, entropy[:, worst])


@rule(
    "loss",
    "the first loss is more than {threshold} nats above ln V",
    2.0,
    "first loss is {value} nats above ln V",
    "A model that knows nothing should say so: the first steps are spent on shrinking"
    " logits that mean nothing. Logits N(0, v) cost v/2, so those of variance 1, as"
    " usual parametrisations have them, cost 0.5.",
)
def _loss(facts: RuleInput, rule: Rule) -> Finding:
    if facts.uniform_loss is None or "loss" not in facts.draws:
        return rule.finding("the model has no logits")
    excess = facts.draws["loss"] - facts.uniform_loss
    middle = float(np.median(excess))
    more = (
        f"{middle:+.3g}"
        if abs(middle) > facts.rounding * facts.uniform_loss
        else "up to rounding"
    )
    text = (
        f"first loss {np.median(facts.draws['loss']):.4g}, which is ln V {more}; logits"
        f" have a standard deviation of {np.median(facts.draws['logit_std']):.3g}"
    )
    return rule.compared(text, above, excess)


@rule(
    "limit",
    "more than {threshold} of all medians at infinite width are outside the 5–95 % band"
    " at the model's own widths",
    0.05,
    "{value} of the infinite-width medians are outside the band",
    "Where the limit is outside the band, a theory of infinite width does not describe"
    " this model.",
)
def _limit(facts: RuleInput, rule: Rule) -> Finding:
    limit = facts.limit
    if isinstance(limit, str):
        return rule.finding(limit)
    names = [q.name for q in BLOCKS if q.name in facts.draws and q.name in limit]
    verdicts: list[str] = []
    farthest, where = 0.0, ""  # of the medians outside the band
    for name in names:
        for block, (here, there) in enumerate(
            zip(facts.draws[name].T, limit[name].T, strict=True), 1
        ):
            verdicts.append(outside_band(there, here, facts.rounding))
            _, low, high, middle = *map(float, band(here)), float(np.median(there))
            away, width = (
                max(low - middle, middle - high),
                max(high - low, facts.rounding * abs(middle)),
            )
            if verdicts[-1] == FLAG and away / width > farthest:
                ends = f"limit {middle:.3g}, band {low:.3g} to {high:.3g}"
                farthest, where = (
                    away / width,
                    f"; farthest, {EVERY[name].title} in block {block}: {ends}",
                )
    outside, doubtful, count = (
        verdicts.count(FLAG),
        verdicts.count(UNDECIDED),
        len(verdicts),
    )
    share, possible = outside / count, (outside + doubtful) / count
    verdict = (
        FLAG
        if share > rule.threshold
        else OK
        if possible <= rule.threshold
        else UNDECIDED
    )
    text = f"{outside} of {count} medians of the limit are outside the band{where}"
    if verdict == UNDECIDED:
        few = min(len(facts.draws[names[0]]), len(limit[names[0]])) < FEWEST
        text += (
            f"; the ends of a band take {FEWEST} draws or more"
            if few
            else f"; {doubtful} may be, by their errors"
        )
    return rule.finding(text, verdict, share)


@rule(
    "vanishing",
    "the stream's gradient after the first block has less than {threshold} of its mean"
    " square after the last",
    0.01,
    "gradient after the first block is ×{value} that after the last",
    "The first blocks then learn ten times slower than the last from one step of"
    " gradient descent, in size; an optimiser that divides by the size of gradients"
    " hides it, until eps or noise does not.",
)
def _vanishing(facts: RuleInput, rule: Rule) -> Finding:
    """In the blocks: the embedding's own gradient may be large only since its vectors
    are small.
    """
    return _through_stack(facts, rule, below, from_embedding=False)


@rule(
    "exploding",
    "the stream's gradient at the embedding has more than {threshold} times its mean"
    " square after the last block",
    1e4,
    "gradient at the embedding is ×{value} that after the last block",
    "One learning rate of plain gradient descent is then too large for the first"
    " weights or too small for the last, and clipping by the norm of all gradients is"
    " decided by the first.",
)
def _exploding(facts: RuleInput, rule: Rule) -> Finding:
    """From the embedding on; where an encoder and a decoder share it, from the first
    block of each on.
    """
    return _through_stack(facts, rule, above, from_embedding=len(facts.stacks) == 1)


def _through_stack(
    facts: RuleInput, rule: Rule, is_it: Comparison, from_embedding: bool
) -> Finding:
    """The mean square of the stream's gradient at the start of a stack over that at its
    end, in the worst stack.
    """
    if "grad_mean_square" not in facts.draws:
        return rule.finding(NO_GRADIENTS)
    square, embedding = facts.draws["grad_mean_square"], facts.draws["grad_input"]
    starts = (
        [embedding]
        if from_embedding
        else [square[:, first] for first, _ in facts.stacks]
    )
    ratios = [
        ratio(start, square[:, last], 1.0)
        for start, (_, last) in zip(starts, facts.stacks, strict=True)
    ]
    worst = int((np.argmin if is_it is below else np.argmax)(np.median(ratios, axis=1)))
    first, last = facts.stacks[worst]
    start, whole = "", ""
    if len(facts.stacks) == 1:
        start = f"{np.median(embedding):.3g} at the embedding, "
        whole = (
            f"{number(float(np.median(ratio(embedding, square[:, last], 1.0))))} times"
            " in all, "
        )
    inside = float(np.median(ratio(square[:, first], square[:, last], 1.0)))
    text = (
        f"mean square of the gradient {start}{np.median(square[:, first]):.3g} after"
        f" block {first + 1}, {np.median(square[:, last]):.3g} after block {last + 1}:"
        f" {whole}{number(inside)} times in the blocks"
    )
    return rule.compared(text, is_it, ratios[worst])


@rule(
    "scores",
    "in some block queries and keys receive less than {threshold} of the squared"
    " gradient of attention's matrices",
    0.001,
    "queries and keys get {value} of the squared gradient of attention",
    "Where tokens attend is then learned long after what they pass on: nearly uniform"
    " weights of nearly equal values hardly depend on the scores.",
)
def _scores(facts: RuleInput, rule: Rule) -> Finding:
    if "grad_qkv" in facts.draws:
        return rule.finding(
            "one matrix makes queries, keys and values, and its gradient is not split"
        )
    if "grad_query" not in facts.draws:
        return rule.finding(NO_GRADIENTS)
    query, key, value, output = (
        facts.draws[f"grad_{kind}"] for kind in ("query", "key", "value", "output")
    )
    total = query + key + value + output
    if not total.any():
        return rule.finding("attention receives no gradient at all")
    share = ratio(query + key, total, 1.0)
    medians = np.median(share, axis=0)
    worst = int(np.argmin(medians))
    squares = [
        (kind, facts.draws.get(f"grad_{kind}_ratio")) for kind in ("query", "value")
    ]
    sizes = [
        f"{np.sqrt(np.median(each[:, worst])):.2g} ({kind})"
        for kind, each in squares
        if each is not None
    ]
    text = (
        f"in block {worst + 1} queries and keys receive {medians[worst]:.2g} of the"
        " squared gradient of attention's matrices; gradient over weight is"
        f" {', '.join(sizes) or 'not defined'}"
    )
    return rule.compared(text, below, share[:, worst])


@rule(
    "dominance",
    "one kind of weight has more than {threshold} of the squared gradient of all",
    0.9,
    "one kind of weight gets {value} of the squared gradient",
    "Clipping by the norm of all gradients then depends on that kind alone, and so does"
    " the first step of plain gradient descent: all others hardly move.",
)
def _dominant(facts: RuleInput, rule: Rule) -> Finding:
    draws = {
        kind: facts.draws[f"grad_{kind}"]
        for kind in KINDS
        if f"grad_{kind}" in facts.draws
    }
    if not draws:
        return rule.finding(NO_GRADIENTS)
    # over all blocks; equal columns are one parameter, which blocks share
    sums = {
        kind: np.unique(each.reshape(len(each), -1), axis=1).sum(axis=1)
        for kind, each in draws.items()
    }
    total: Floats = np.sum(list(sums.values()), axis=0)
    if not total.any():
        return rule.finding("no weight receives a gradient")
    shares = {kind: ratio(each, total, 0.0) for kind, each in sums.items()}
    first, second = sorted(shares, key=lambda kind: -float(np.median(shares[kind])))[:2]
    text = (
        f"of the squared gradient of all weights {np.median(shares[first]):.2g} is that"
        f" of one kind ({first}), {np.median(shares[second]):.2g} of the next"
        f" ({second})"
    )
    return rule.compared(text, above, shares[first])


@rule(
    "load",
    "in some block the busiest expert has more than {threshold} times its even share of"
    " the tokens",
    2.0,
    "the busiest expert gets ×{value} its even share",
    "The capacity of an expert is mostly one or two even shares: what is beyond is"
    " dropped, or waited for by all.",
)
def _load(facts: RuleInput, rule: Rule) -> Finding:
    if "largest_load" not in facts.draws:
        return rule.finding("there are no experts")
    load = facts.draws["largest_load"]
    medians = np.median(load, axis=0)
    worst = int(np.argmax(medians))
    text = (
        f"in block {worst + 1} the busiest expert has {medians[worst]:.3g} times its"
        " even share of the tokens, the idlest"
        f" {np.median(facts.draws['least_load'][:, worst]):.3g} times"
    )
    return rule.compared(text, above, load[:, worst])
