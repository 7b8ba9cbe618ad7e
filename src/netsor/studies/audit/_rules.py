"""The rules of an audit: what each one measures, its threshold for a warning, and
why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._validate import ArgumentError
from ...models import Transformer
from ...models.measure._probed_program import StreamSizes
from ...report._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED
from . import _remedies as remedies
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
from ._quantities import BLOCKS, EVERY, KINDS, amount, number

NO_GRADIENTS = "gradients were not requested"


class RuleInput(NamedTuple):
    """The inputs of the rules: draws at the model's own widths (at infinity, if only
    that was requested), and more.
    """

    # by quantity: (draws, blocks), or (draws,) for a number of the whole network
    draws: Mapping[str, Floats]
    # draws at infinite width, if `draws` are at the model's own widths; a text says why
    # there are none
    limit: Mapping[str, Floats] | str
    distinct: int  # how many different vectors the tokens begin as
    uniform_loss: float | None  # ln V
    # the indices of the first and the last block of the network, or of its encoder and
    # of its decoder
    stacks: tuple[tuple[int, int], ...]
    tokens: int  # the length of the input
    precision: str = "float64"  # of the draws
    model: Transformer | None = None  # that is audited; None: a program
    sizes: StreamSizes | None = None  # of the streams; None: all streams have the same
    has_routers: bool = False  # a block has a matrix that chooses experts

    @property
    def rounding(self) -> float:
        """How near numbers are the same, relative to their size."""
        return EQUALITY_RTOL[self.precision]


Comparison = Callable[[Floats, float], str]  # `above` or `below`
Judge = Callable[[RuleInput, "Rule"], Finding]
Remedy = Callable[[remedies.Flagged], remedies.Advice]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: what it measures, when it flags a model, why that matters, and what to
    change then.
    """

    name: str
    flags_if: str  # in words, with {threshold}
    threshold: float
    brief: str  # the measurement in a few words, with {value}
    why: str
    advice: str  # for programs, and where the rule is not flagged
    judge: Judge
    # for a described model that it flags; None: the same as for programs
    remedy: Remedy | None = None
    # whose figure shows why the rule flags a model; None: that of the mean square
    quantity: str | None = None
    about_gradients: bool = False
    percent: bool = False  # texts give value and threshold in per cent

    def finding(
        self,
        measured: str,
        verdict: str = NOT_APPLICABLE,
        value: float | None = None,
        **interval: Any,
    ) -> Finding:
        """The finding of this rule. `measured` is the measurement in words, `value` the
        median, and `interval` the fields of `Finding` about its interval. Without a
        verdict the rule does not apply, and `measured` says why.
        """
        if self.percent:
            threshold = amount(self.threshold, percent=True)
        else:
            threshold = f"{self.threshold:,g}"
        brief = ""
        if value is not None:
            brief = self.brief.format(value=amount(value, self.percent))
        return Finding(
            name=self.name,
            rule=self.flags_if.format(threshold=threshold),
            reason=self.why,
            measured=measured,
            verdict=verdict,
            value=value,
            threshold=self.threshold,
            percent=self.percent,
            brief=brief,
            **interval,
        )

    def compared(self, text: str, comparison: Comparison, values: Floats) -> Finding:
        """The finding that compares the median of `values` (draws,) with the threshold;
        `text` is the measurement in words. If it is undecided, the text gets the
        number of draws that would settle it.
        """
        verdict = comparison(values, self.threshold)
        if verdict == UNDECIDED:
            draws = draws_needed(values, self.threshold)
            if draws:
                text += f"; about {draws:,} draws decide"
            else:
                text += "; at the threshold: no number of draws decides"
        low, high = quantile_interval(values, 0.5)
        return self.finding(
            text,
            verdict,
            _finite(float(np.median(values))),
            low=_finite(low),
            high=_finite(high),
            above=comparison is above,
        )

    def advised(self, inputs: RuleInput) -> Finding:
        """The finding, with what to change."""
        judge = self.judge  # a plain function, which takes the rule as an argument
        finding = judge(inputs, self)
        advice = self._advice(inputs, finding)
        return replace(
            finding,
            tokens=(inputs.tokens,),
            advice=advice.words,
            changes=advice.changes,
        )

    def _advice(self, inputs: RuleInput, finding: Finding) -> remedies.Advice:
        """What to change.

        It is the remedy, with an example of fields and values, if the rule has one and
        flags a described model by a finite number; otherwise the general advice.
        """
        general = remedies.Advice(f"{self.advice}.")
        if self.remedy is None or inputs.model is None:
            return general
        if finding.verdict != FLAG or finding.value is None:
            return general
        flagged = remedies.Flagged(
            inputs.model, inputs.draws, finding.value, self.threshold
        )
        return remedies.with_example(self.remedy(flagged))


def _finite(end: float) -> float | None:
    """A number, or None for one that is infinite or NaN: JSON has neither."""
    return end if math.isfinite(end) else None


RULES: list[Rule] = []  # in the order of reports


def rule(
    *,
    name: str,
    flags_if: str,
    threshold: float,
    brief: str,
    why: str,
    advice: str,
    remedy: Remedy | None = None,
    quantity: str | None = None,
    about_gradients: bool = False,
    percent: bool = False,
) -> Callable[[Judge], Judge]:
    """A decorator that adds a rule to RULES; the decorated function judges it.

    That function takes the `RuleInput` of a model and the rule, and returns its
    `Finding`. The arguments are the other fields of `Rule`.
    """

    def add(judge: Judge) -> Judge:
        """Add the rule of this function, and return the function unchanged."""
        RULES.append(
            Rule(
                name=name,
                flags_if=flags_if,
                threshold=threshold,
                brief=brief,
                why=why,
                advice=advice,
                remedy=remedy,
                judge=judge,
                quantity=quantity,
                about_gradients=about_gradients,
                percent=percent,
            )
        )
        return judge

    return add


def all_findings(inputs: RuleInput) -> tuple[Finding, ...]:
    """A finding for each rule, with what to change."""
    return tuple(rule.advised(inputs) for rule in RULES)


def rule_name(name: str) -> str:
    """The name of a rule, checked."""
    names = [rule.name for rule in RULES]
    if name not in names:
        raise ArgumentError("rule", name, f"one of {', '.join(names)}")
    return name


def ratio(numerator: Floats, denominator: Floats, otherwise: float) -> Floats:
    """Their ratio; `otherwise` where both are 0."""
    both_zero = (numerator == 0) & (denominator == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(both_zero, otherwise, numerator / denominator)


@rule(
    name="growth",
    flags_if=(
        "the mean square of the stream after the last block is more than {threshold}"
        " times that of the embedding"
    ),
    threshold=1e4,
    brief="stream grows ×{value} from the embedding to the end",
    why=(
        "The token's embedding is then so small relative to the stream that bf16"
        " (0.4–0.8 % resolution) can barely represent it. The two ends of the network,"
        " and their gradients, live on different scales."
    ),
    advice=remedies.EITHER,
    remedy=remedies.growth,
)
def _growth(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the mean square after the last block over that of the embedding, in the
    stack (encoder or decoder) where it is largest.
    """
    square = inputs.draws["mean_square"]  # (draws, blocks)
    # (draws,) for each stack: encoder and decoder may have their own
    embeddings = []
    for name in ("input_mean_square", "decoder_input_mean_square"):
        if name in inputs.draws:
            embeddings.append(inputs.draws[name])
    growths = []
    for embedding, (_, last_block) in zip(embeddings, inputs.stacks, strict=True):
        growths.append(ratio(square[:, last_block], embedding, 1.0))
    worst = int(np.argmax(np.median(growths, axis=1)))
    first_block, last_block = inputs.stacks[worst]
    overall = float(np.median(growths[worst]))
    after_first = square[:, first_block]
    after_last = square[:, last_block]
    in_blocks = float(np.median(ratio(after_last, after_first, 1.0)))
    text = (
        f"mean square {np.median(embeddings[worst]):.3g} at the embedding,"
        f" {np.median(after_first):.3g} after block {first_block + 1},"
        f" {np.median(after_last):.3g} after block {last_block + 1}: {number(overall)}"
        f" times in all, {number(in_blocks)} times in the blocks"
    )
    return rule.compared(text, above, growths[worst])


@rule(
    name="branches",
    flags_if=(
        "in some block one branch, attention or MLP, contributes less than {threshold}"
        " of the block's update"
    ),
    threshold=0.1,
    percent=True,
    brief="the weaker branch contributes {value} of the block's update",
    why=(
        "The other branch then decides what the next block sees, and learning through"
        " the weak one is slow at first."
    ),
    advice=(
        "Raise the std of the matrices of the weaker branch, or lower that of the other"
    ),
    remedy=remedies.branches,
    quantity="attention_share",
)
def _branches(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the share of the weaker branch in what attention and MLP add together,
    in the block where it is least.
    """
    draws = inputs.draws
    if not {"attention_share", "mlp_share"} <= draws.keys():
        return rule.finding("attention and MLP are not both probed")
    attention = draws["attention_share"] + draws.get("cross_share", np.zeros(1))
    mlp = draws["mlp_share"]
    if not (attention + mlp).any():
        return rule.finding("neither branch adds anything")
    of_attention = ratio(attention, attention + mlp, 0.5)  # (draws, blocks)
    medians = np.median(of_attention, axis=0)
    worst = int(np.argmin(np.minimum(medians, 1 - medians)))
    if medians[worst] < 0.5:
        weaker = "attention"
        share = of_attention
    else:
        weaker = "the MLP"
        share = 1 - of_attention
    first_mlp = 100 * np.median(mlp[:, 0])
    first_attention = 100 * np.median(attention[:, 0])
    text = (
        f"after block 1 the stream is {first_mlp:.0f} % MLP output,"
        f" {first_attention:.0f} % attention output; in block {worst + 1}"
        f" {weaker} contributes {100 * np.median(share[:, worst]):.2g} % of the update"
    )
    return rule.compared(text, below, share[:, worst])


@rule(
    name="rank",
    flags_if=(
        "at the end the tokens span less than {threshold} of the directions available"
        " to them"
    ),
    threshold=0.1,
    percent=True,
    brief="tokens span {value} of the directions available to them",
    why=(
        "Tokens that point the same way look alike after a norm: the loss hardly"
        " depends on which is which."
    ),
    advice=f"{remedies.EITHER}: so that tokens stay apart",
    remedy=remedies.rank,
    quantity="effective_rank",
)
def _rank(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the effective rank after the last block: (rank − 1) over (tokens − 1),
    where tokens that begin as the same vector count once. It is 0 if all tokens point
    the same way, and 1 if they are orthogonal.
    """
    if inputs.distinct < 2:
        return rule.finding("the tokens begin as one vector")
    rank = inputs.draws["effective_rank"]  # (draws, blocks)
    # the stack whose last block has the lowest rank
    first_block, last_block = min(
        inputs.stacks, key=lambda stack: float(np.median(rank[:, stack[1]]))
    )
    distinct = inputs.distinct
    if inputs.sizes is not None:
        distinct = min(distinct, inputs.sizes.tokens[last_block])
    if distinct < 2:
        return rule.finding("one token is left at the end")
    spanned = (rank[:, last_block] - 1) / (distinct - 1)
    rank_after_first = np.median(rank[:, first_block])
    rank_after_last = np.median(rank[:, last_block])
    cosine = np.median(inputs.draws["cosine"][:, last_block])
    text = (
        f"effective rank {rank_after_first:.3g} after block {first_block + 1},"
        f" {rank_after_last:.3g} after block {last_block + 1}, of {distinct} tokens;"
        f" cosine {cosine:.2g}"
    )
    return rule.compared(text, below, spanned)


@rule(
    name="entropy",
    flags_if=(
        "in some block the entropy of attention rows is less than {threshold} of that"
        " of uniform weights"
    ),
    threshold=0.5,
    brief="lowest attention entropy is {value} of uniform",
    why=(
        "A softmax that has already chosen passes little gradient to its scores, and"
        " what it chose is chance."
    ),
    advice=(
        "Lower the std of the query and key matrices; where queries and keys are"
        " normalised, the factor of scores"
    ),
    remedy=remedies.entropy,
    quantity="entropy",
)
def _entropy(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the entropy of attention rows relative to uniform ones, in the block
    where it is least.
    """
    if "entropy" not in inputs.draws:
        return rule.finding("attention weights are not probed")
    entropy = inputs.draws["entropy"]  # (draws, blocks)
    medians = np.median(entropy, axis=0)
    worst = int(np.argmin(medians))
    text = f"{medians[worst]:.3g} of uniform in block {worst + 1}, the lowest"
    if "score_std" in inputs.draws:
        text += (
            "; scores have a standard deviation of"
            f" {np.median(inputs.draws['score_std'][:, worst]):.3g} there"
        )
    return rule.compared(text, below, entropy[:, worst])


@rule(
    name="loss",
    flags_if="the first loss is more than {threshold} nats above ln V",
    threshold=2.0,
    brief="first loss is {value} nats above ln V",
    why=(
        "A model that knows nothing should say so: the first steps are spent on"
        " shrinking logits that mean nothing. Logits N(0, v) cost v/2, so those of"
        " variance 1, as usual parametrisations have them, cost 0.5."
    ),
    advice=(
        "Lower the std of the output matrix, or of the embeddings if they are tied"
        " to it"
    ),
    remedy=remedies.loss,
)
def _loss(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the first loss above ln V, the loss of uniform probabilities."""
    if inputs.uniform_loss is None or "loss" not in inputs.draws:
        return rule.finding("the model has no logits")
    excess = inputs.draws["loss"] - inputs.uniform_loss
    median = float(np.median(excess))
    if abs(median) > inputs.rounding * inputs.uniform_loss:
        difference = f"{median:+.3g}"
    else:
        difference = "up to rounding"
    text = (
        f"first loss {np.median(inputs.draws['loss']):.4g}, which is ln V {difference};"
        " logits have a standard deviation of"
        f" {np.median(inputs.draws['logit_std']):.3g}"
    )
    return rule.compared(text, above, excess)


def _beyond_band(
    infinite: Floats, actual: Floats, rounding: float
) -> tuple[float, str]:
    """How far the median of some draws (draws,) is outside the band of others, in
    widths of the band, and both in words.
    """
    _, low, high = map(float, band(actual))
    median = float(np.median(infinite))
    width = max(high - low, rounding * abs(median))
    distance = max(low - median, median - high) / width
    return distance, f"limit {median:.3g}, band {low:.3g} to {high:.3g}"


@rule(
    name="limit",
    flags_if=(
        "more than {threshold} of all medians at infinite width are outside the 5–95 %"
        " band at the model's own widths"
    ),
    threshold=0.05,
    brief="{value} of the infinite-width medians are outside the band",
    why=(
        "Where the limit is outside the band, a theory of infinite width does not"
        " describe this model."
    ),
    advice=(
        "Do not describe this model by its infinite-width limit; read the numbers at"
        " its own widths"
    ),
    remedy=remedies.limit,
)
def _limit(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the share of medians at infinite width, over all quantities and blocks,
    that are outside the band at the model's own widths. Undecided if the medians that
    may be outside, by their intervals, decide whether the share is above the threshold.
    """
    limit = inputs.limit
    if isinstance(limit, str):
        return rule.finding(limit)
    names = [q.name for q in BLOCKS if q.name in inputs.draws and q.name in limit]
    verdicts: list[str] = []
    largest_distance, farthest = 0.0, ""  # of the medians outside the band
    for name in names:
        # draws (draws,) at the model's own widths and at infinity, block by block
        blocks = zip(inputs.draws[name].T, limit[name].T, strict=True)
        for block, (actual, infinite) in enumerate(blocks, 1):
            verdict = outside_band(infinite, actual, inputs.rounding)
            verdicts.append(verdict)
            if verdict != FLAG:
                continue
            distance, text = _beyond_band(infinite, actual, inputs.rounding)
            if distance > largest_distance:
                largest_distance = distance
                farthest = f"; farthest, {EVERY[name].title} in block {block}: {text}"
    outside = verdicts.count(FLAG)
    doubtful = verdicts.count(UNDECIDED)
    count = len(verdicts)
    share = outside / count
    text = f"{outside} of {count} medians of the limit are outside the band{farthest}"
    if share > rule.threshold:
        return rule.finding(text, FLAG, share)
    if (outside + doubtful) / count <= rule.threshold:
        return rule.finding(text, OK, share)
    draws = min(len(inputs.draws[names[0]]), len(limit[names[0]]))
    if draws < FEWEST:
        text += f"; the ends of a band take {FEWEST} draws or more"
    else:
        text += f"; {doubtful} may be, by their errors"
    return rule.finding(text, UNDECIDED, share)


@rule(
    name="vanishing",
    flags_if=(
        "the stream's gradient after the first block has less than {threshold} of its"
        " mean square after the last"
    ),
    threshold=0.01,
    brief="gradient after the first block is ×{value} that after the last",
    why=(
        "The first blocks then learn ten times slower than the last from one step of"
        " gradient descent, in size; an optimiser that divides by the size of gradients"
        " hides it, until eps or noise does not."
    ),
    advice=f"Put the norms before the branches (pre-norm). {remedies.SGD}",
    remedy=remedies.vanishing,
    quantity="grad_mean_square",
    about_gradients=True,
)
def _vanishing(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the gradient after the first block over that after the last: not from
    the embedding on, whose gradient may be large only since its vectors are small.
    """
    return _through_stack(inputs, rule, comparison=below, from_embedding=False)


@rule(
    name="exploding",
    flags_if=(
        "the stream's gradient at the embedding has more than {threshold} times its"
        " mean square after the last block"
    ),
    threshold=1e4,
    brief="gradient at the embedding is ×{value} that after the last block",
    why=(
        "One learning rate of plain gradient descent is then too large for the first"
        " weights or too small for the last, and clipping by the norm of all gradients"
        " is decided by the first."
    ),
    advice=f"{remedies.EITHER}. {remedies.SGD}: with Adam, clip gradients by group",
    remedy=remedies.exploding,
    quantity="grad_mean_square",
    about_gradients=True,
)
def _exploding(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the gradient at the embedding over that after the last block; where an
    encoder and a decoder share the embedding, by that after the first block of each.
    """
    return _through_stack(
        inputs, rule, comparison=above, from_embedding=len(inputs.stacks) == 1
    )


def _through_stack(
    inputs: RuleInput, rule: Rule, comparison: Comparison, from_embedding: bool
) -> Finding:
    """The finding on the mean square of the stream's gradient at the start of a stack
    (encoder or decoder) over that at its end, in the worst stack: the one with the
    smallest ratio if the rule flags values below its threshold, else with the largest.

    Where streams have several sizes, the squared gradient of the whole stream counts:
    the mean square is larger where there are fewer numbers.
    """
    if "grad_mean_square" not in inputs.draws:
        return rule.finding(NO_GRADIENTS)
    square = inputs.draws["grad_mean_square"]  # (draws, blocks)
    embedding = inputs.draws["grad_input"]  # (draws,)
    quantity = "mean square of the gradient"
    if inputs.sizes is not None:
        square = square * np.array(inputs.sizes.numbers)
        embedding = embedding * inputs.sizes.numbers_before
        quantity = "squared gradient of the stream"
    if from_embedding:
        starts = [embedding]
    else:
        starts = [square[:, first_block] for first_block, _ in inputs.stacks]
    ratios = []
    for start, (_, last_block) in zip(starts, inputs.stacks, strict=True):
        ratios.append(ratio(start, square[:, last_block], 1.0))
    medians = np.median(ratios, axis=1)
    if comparison is below:
        worst = int(np.argmin(medians))
    else:
        worst = int(np.argmax(medians))
    first_block, last_block = inputs.stacks[worst]
    after_first = square[:, first_block]
    after_last = square[:, last_block]
    at_embedding = ""
    overall = ""
    if len(inputs.stacks) == 1:
        overall_ratio = float(np.median(ratio(embedding, after_last, 1.0)))
        at_embedding = f"{np.median(embedding):.3g} at the embedding, "
        overall = f"{number(overall_ratio)} times in all, "
    in_blocks = float(np.median(ratio(after_first, after_last, 1.0)))
    text = (
        f"{quantity} {at_embedding}{np.median(after_first):.3g} after block"
        f" {first_block + 1}, {np.median(after_last):.3g} after block"
        f" {last_block + 1}: {overall}{number(in_blocks)} times in the blocks"
    )
    return rule.compared(text, comparison, ratios[worst])


@rule(
    name="scores",
    flags_if=(
        "in some block queries and keys receive less than {threshold} of the squared"
        " gradient of attention's matrices"
    ),
    threshold=0.001,
    brief="queries and keys get {value} of the squared gradient of attention",
    why=(
        "Where tokens attend is then learned long after what they pass on: nearly"
        " uniform weights of nearly equal values hardly depend on the scores."
    ),
    advice=(
        "Raise the std of the query and key matrices (lower it where these are"
        f" normalised), or give them a larger learning rate. {remedies.SGD}"
    ),
    remedy=remedies.scores,
    about_gradients=True,
)
def _scores(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the share of the query and key matrices in the squared gradient of all
    four matrices of attention, in the block where it is least.
    """
    if "grad_qkv" in inputs.draws:
        return rule.finding(
            "one matrix makes queries, keys and values, and its gradient is not split"
        )
    if "grad_query" not in inputs.draws:
        if "grad_mean_square" in inputs.draws:
            return rule.finding("no block has matrices of queries and of keys")
        return rule.finding(NO_GRADIENTS)
    draws = inputs.draws
    of_scores = draws["grad_query"] + draws["grad_key"]
    total = of_scores + draws["grad_value"] + draws["grad_output"]
    if not total.any():
        return rule.finding("attention receives no gradient at all")
    share = ratio(of_scores, total, 1.0)  # (draws, blocks)
    medians = np.median(share, axis=0)
    worst = int(np.argmin(medians))
    sizes = []  # |∂L/∂W| over |W|, of one matrix for scores and one for values
    for kind in ("query", "value"):
        squares = draws.get(f"grad_{kind}_ratio")
        if squares is not None:
            sizes.append(f"{np.sqrt(np.median(squares[:, worst])):.2g} ({kind})")
    text = (
        f"in block {worst + 1} queries and keys receive {medians[worst]:.2g} of the"
        " squared gradient of attention's matrices; gradient over weight is"
        f" {', '.join(sizes) or 'not defined'}"
    )
    return rule.compared(text, below, share[:, worst])


@rule(
    name="dominance",
    flags_if=(
        "one kind of weight has more than {threshold} of the squared gradient of all"
    ),
    threshold=0.9,
    brief="one kind of weight gets {value} of the squared gradient",
    why=(
        "Clipping by the norm of all gradients then depends on that kind alone, and so"
        " does the first step of plain gradient descent: all others hardly move."
    ),
    advice=(
        "Raise the std of that kind of weight, clip gradients by group, or give it its"
        f" own learning rate. {remedies.SGD} and about clipping by the global norm"
    ),
    remedy=remedies.dominance,
    about_gradients=True,
)
def _dominant(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the share of one kind of weight, that with the largest, in the squared
    gradient of all weights.
    """
    sums: dict[str, Floats] = {}  # (draws,) of each kind, over all blocks
    for kind in KINDS:
        if f"grad_{kind}" in inputs.draws:
            squares = inputs.draws[f"grad_{kind}"]
            squares = squares.reshape(len(squares), -1)
            # equal columns are one parameter, which blocks share
            sums[kind] = np.unique(squares, axis=1).sum(axis=1)
    if not sums:
        return rule.finding(NO_GRADIENTS)
    total: Floats = np.sum(list(sums.values()), axis=0)
    if not total.any():
        return rule.finding("no weight receives a gradient")
    shares: dict[str, Floats] = {}
    medians: dict[str, float] = {}
    for kind, kind_sum in sums.items():
        shares[kind] = ratio(kind_sum, total, 0.0)
        medians[kind] = float(np.median(shares[kind]))
    largest, next_largest = sorted(medians, key=medians.__getitem__, reverse=True)[:2]
    text = (
        f"of the squared gradient of all weights {medians[largest]:.2g} is that of one"
        f" kind ({largest}), {medians[next_largest]:.2g} of the next ({next_largest})"
    )
    return rule.compared(text, above, shares[largest])


@rule(
    name="load",
    flags_if=(
        "in some block the busiest expert has more than {threshold} times its even"
        " share of the tokens"
    ),
    threshold=2.0,
    brief="the busiest expert gets ×{value} its even share",
    why=(
        "The capacity of an expert is mostly one or two even shares: what is beyond is"
        " dropped, or waited for by all."
    ),
    advice=(
        "Add a load-balancing loss, raise the capacity factor, or choose more experts"
        " for each token"
    ),
    remedy=remedies.load,
    quantity="largest_load",
)
def _load(inputs: RuleInput, rule: Rule) -> Finding:
    """Judge by the tokens that the busiest expert gets over an even share, in the block
    where it is largest.
    """
    if "largest_load" not in inputs.draws:
        if inputs.has_routers:
            return rule.finding(
                "there is a router, but the gates of its experts were not found"
            )
        return rule.finding("no block chooses among experts")
    load = inputs.draws["largest_load"]  # (draws, blocks)
    medians = np.median(load, axis=0)
    worst = int(np.argmax(medians))
    text = (
        f"in block {worst + 1} the busiest expert has {medians[worst]:.3g} times its"
        " even share of the tokens, the idlest"
        f" {np.median(inputs.draws['least_load'][:, worst]):.3g} times"
    )
    return rule.compared(text, above, load[:, worst])


BACKWARD_RULES = tuple(rule.name for rule in RULES if rule.about_gradients)
