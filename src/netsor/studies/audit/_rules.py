"""The rules of an audit: what each one measures, its threshold for a warning, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED
from ._findings import FEWEST, Finding, RuleInput, Verdict, above, band, below, compared, number, outside_band, ratio
from ._quantities import BLOCKS, EVERY, KINDS

NO_GRADIENTS = Verdict("gradients were not asked for", NOT_APPLICABLE)
BACKWARD_RULES = ("vanishing", "exploding", "scores", "dominance")  # those about gradients
ATTENTION = ("query", "key", "value", "output")

Judge = Callable[[RuleInput, float], Verdict]  # of the facts and the threshold


class Rule(NamedTuple):
    """A rule."""

    name: str
    rule: str  # in words, with {threshold}
    threshold: float
    brief: str  # a few words, with {value}
    reason: str
    advice: str
    judge: Judge


RULES: list[Rule] = []  # in the order of reports


def rule(*words: Any) -> Callable[[Judge], Judge]:
    """Add a rule whose judge is the decorated function; `words` are the other fields of `Rule`."""

    def add(judge: Judge) -> Judge:
        RULES.append(Rule._make((*words, judge)))
        return judge

    return add


@rule(
    "growth",
    "the mean square of the stream after the last block is more than {threshold} times that of the embedding",
    1e4,
    "stream grows ×{value} from the embedding to the end",
    "The token's own vector is then so small a part of the stream that carries it that bf16, with steps of 0.4 to "
    "0.8 %, hardly resolves it. The two ends of the network are on other scales, and so are their gradients.",
    "Multiply the std of the matrices that write to the stream by 1/√(2 · layers), as GPT-2 does, or raise "
    "the std of the embeddings.",
)
def _growth(facts: RuleInput, threshold: float) -> Verdict:
    square = facts.draws["mean_square"]
    starts = [facts.draws[name] for name in ("input_mean_square", "decoder_input_mean_square") if name in facts.draws]
    ratios = [ratio(square[:, last], start, 1.0) for start, (_, last) in zip(starts, facts.stacks, strict=True)]
    most = int(np.argmax([np.median(ratio) for ratio in ratios]))
    first, last = facts.stacks[most]
    whole, inside = (float(np.median(each)) for each in (ratios[most], ratio(square[:, last], square[:, first], 1.0)))
    text = (
        f"mean square {np.median(starts[most]):.3g} at the embedding, {np.median(square[:, first]):.3g} after block "
        f"{first + 1}, {np.median(square[:, last]):.3g} after block {last + 1}: {number(whole)} times in all, "
        f"{number(inside)} times in the blocks"
    )
    return compared(text, above, ratios[most], threshold)


@rule(
    "branches",
    "in some block one branch, attention or MLP, is less than {threshold} of what the two add",
    0.1,
    "the weaker branch is {value} of what the two add",
    "The other branch then decides what the next block sees, and learning through the weak one is slow at first.",
    "Raise the std of the matrices of the weaker branch, or lower that of the other.",
)
def _branches(facts: RuleInput, threshold: float) -> Verdict:
    draws = facts.draws
    if not {"attention_share", "mlp_share"} <= draws.keys():
        return Verdict("attention and MLP are not both probed", NOT_APPLICABLE)
    attention = draws["attention_share"] + draws.get("cross_share", np.zeros(1))
    if not (attention + draws["mlp_share"]).any():
        return Verdict("neither branch adds anything", NOT_APPLICABLE)
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
    return compared(text, below, drowned, threshold)


@rule(
    "rank",
    "at the end the tokens fill less than {threshold} of the directions in which they can differ",
    0.1,
    "tokens fill {value} of the directions in which they can differ",
    "Tokens that point the same way look alike after a norm: the loss hardly depends on which is which.",
    "Scale the residual branches down with depth, or raise the std of the embeddings, so that tokens stay apart.",
)
def _rank(facts: RuleInput, threshold: float) -> Verdict:
    if facts.distinct < 2:
        return Verdict("the tokens begin as one vector", NOT_APPLICABLE)
    rank = facts.draws["effective_rank"]
    first, last = min(facts.stacks, key=lambda stack: float(np.median(rank[:, stack[1]])))
    free = (rank[:, last] - 1) / (facts.distinct - 1)
    text = (
        f"effective rank {np.median(rank[:, first]):.3g} after block {first + 1}, {np.median(rank[:, last]):.3g} "
        f"after block {last + 1}, of {facts.distinct} tokens; cosine {np.median(facts.draws['cosine'][:, last]):.2g}"
    )
    return compared(text, below, free, threshold)


@rule(
    "entropy",
    "in some block the entropy of attention rows is less than {threshold} of that of uniform weights",
    0.5,
    "lowest attention entropy is {value} of uniform",
    "A softmax that has already chosen passes little gradient to its scores, and what it chose is chance.",
    "Lower the std of the query and key matrices, or normalise queries and keys (QK-norm).",
)
def _entropy(facts: RuleInput, threshold: float) -> Verdict:
    if "entropy" not in facts.draws:
        return Verdict("attention weights are not probed", NOT_APPLICABLE)
    entropy = facts.draws["entropy"]
    medians = np.median(entropy, axis=0)
    worst = int(np.argmin(medians))
    text = f"{medians[worst]:.3g} of uniform in block {worst + 1}, the lowest"
    if "score_std" in facts.draws:
        text += f"; scores have a standard deviation of {np.median(facts.draws['score_std'][:, worst]):.3g} there"
    return compared(text, below, entropy[:, worst], threshold)


@rule(
    "loss",
    "the first loss is more than {threshold} nats above ln V",
    2.0,
    "first loss is {value} nats above ln V",
    "A model that knows nothing should say so: the first steps are spent on shrinking logits that mean nothing. "
    "Logits N(0, v) cost v/2, so those of variance 1, as usual parametrisations have them, cost 0.5.",
    "Lower the std of the output matrix, or of the embeddings if they are tied to it.",
)
def _loss(facts: RuleInput, threshold: float) -> Verdict:
    if facts.uniform_loss is None or "loss" not in facts.draws:
        return Verdict("the model has no logits", NOT_APPLICABLE)
    excess = facts.draws["loss"] - facts.uniform_loss
    middle = float(np.median(excess))
    more = f"{middle:+.3g}" if abs(middle) > facts.rounding * facts.uniform_loss else "up to rounding"
    text = (
        f"first loss {np.median(facts.draws['loss']):.4g}, which is ln V {more}; logits have a standard "
        f"deviation of {np.median(facts.draws['logit_std']):.3g}"
    )
    return compared(text, above, excess, threshold)


@rule(
    "limit",
    "more than {threshold} of all medians at infinite width are outside the 5–95 % band at the model's own widths",
    0.05,
    "{value} of the infinite-width medians are outside the band",
    "Where the limit is outside the band, a theory of infinite width does not describe this model.",
    "Do not describe this model by its infinite-width limit; read the numbers at its own widths.",
)
def _limit(facts: RuleInput, threshold: float) -> Verdict:
    if facts.limit is None:
        return Verdict("infinite width was not asked for, or has no limit", NOT_APPLICABLE)
    names = [q.name for q in BLOCKS if q.name in facts.draws and q.name in facts.limit]
    verdicts: list[str] = []
    worst = 0.0, ""
    columns = [(name, i) for name in names for i in range(facts.draws[name].shape[1])]
    for name, i in columns:
        here, there = facts.draws[name][:, i], facts.limit[name][:, i]
        verdicts.append(outside_band(there, here, facts.rounding))
        _, low, high, middle = *map(float, band(here)), float(np.median(there))
        away = max(low - middle, middle - high)
        if verdicts[-1] == FLAG and (far := away / max(high - low, facts.rounding * abs(middle))) > worst[0]:
            worst = far, f"{EVERY[name].title} in block {i + 1}: limit {middle:.3g}, band {low:.3g} to {high:.3g}"
    outside, doubtful = verdicts.count(FLAG), verdicts.count(UNDECIDED)
    share = outside / len(columns)
    text = f"{outside} of {len(columns)} medians of the limit are outside the band"
    if outside:
        text += f"; farthest, {worst[1]}"
    possible = (outside + doubtful) / len(columns)
    verdict = FLAG if share > threshold else OK if possible <= threshold else UNDECIDED
    if verdict == UNDECIDED:
        few = min(len(facts.draws[names[0]]), len(facts.limit[names[0]])) < FEWEST
        text += f"; the ends of a band take {FEWEST} draws or more" if few else f"; {doubtful} may be, by their errors"
    return Verdict(text, verdict, share)


@rule(
    "vanishing",
    "the stream's gradient after the first block has less than {threshold} of its mean square after the last",
    0.01,
    "gradient after the first block is ×{value} that after the last",
    "The first blocks then learn ten times slower than the last from one step of gradient descent, in size; an "
    "optimiser that divides by the size of gradients hides it, until eps or noise does not.",
    "Use pre-norm blocks or scale the residual branches down with depth. This rule is about SGD: the size of "
    "Adam's updates does not depend on that of the gradient, as long as the gradient is above eps.",
)
def _vanishing(facts: RuleInput, threshold: float) -> Verdict:
    """In the blocks: the embedding's own gradient may be large only since its vectors are small."""
    return _through_stack(facts, threshold, below, from_embedding=False)


@rule(
    "exploding",
    "the stream's gradient at the embedding has more than {threshold} times its mean square after the last block",
    1e4,
    "gradient at the embedding is ×{value} that after the last block",
    "One learning rate of plain gradient descent is then too large for the first weights or too small for the "
    "last, and clipping by the norm of all gradients is decided by the first.",
    "Raise the std of the embeddings, or scale the residual branches down with depth. This rule is about SGD:"
    " with Adam, clip gradients by group rather than by their global norm.",
)
def _exploding(facts: RuleInput, threshold: float) -> Verdict:
    """From the embedding on; where an encoder and a decoder share it, from the first block of each on."""
    return _through_stack(facts, threshold, above, from_embedding=len(facts.stacks) == 1)


def _through_stack(
    facts: RuleInput, threshold: float, is_it: Callable[[Floats, float], str], from_embedding: bool
) -> Verdict:
    """The mean square of the stream's gradient at the start of a stack over that at its end, in the worst stack."""
    if "grad_mean_square" not in facts.draws:
        return NO_GRADIENTS
    square, embedding = facts.draws["grad_mean_square"], facts.draws["grad_input"]
    starts = [embedding] if from_embedding else [square[:, first] for first, _ in facts.stacks]
    ratios = [ratio(start, square[:, last], 1.0) for start, (_, last) in zip(starts, facts.stacks, strict=True)]
    worst = int((np.argmin if is_it is below else np.argmax)([np.median(each) for each in ratios]))
    first, last = facts.stacks[worst]
    start, whole = "", ""
    if len(facts.stacks) == 1:
        start = f"{np.median(embedding):.3g} at the embedding, "
        whole = f"{number(float(np.median(ratio(embedding, square[:, last], 1.0))))} times in all, "
    inside = float(np.median(ratio(square[:, first], square[:, last], 1.0)))
    text = (
        f"mean square of the gradient {start}{np.median(square[:, first]):.3g} after block {first + 1}, "
        f"{np.median(square[:, last]):.3g} after block {last + 1}: {whole}{number(inside)} times in the blocks"
    )
    return compared(text, is_it, ratios[worst], threshold)


@rule(
    "scores",
    "in some block queries and keys receive less than {threshold} of the squared gradient of attention's matrices",
    0.001,
    "queries and keys get {value} of the squared gradient of attention",
    "Where tokens attend is then learned long after what they pass on: nearly uniform weights of nearly equal "
    "values hardly depend on the scores.",
    "Raise the std of the query and key matrices, or give them a larger learning rate. This rule is about "
    "SGD: Adam's first updates do not depend on the size of the gradient.",
)
def _scores(facts: RuleInput, threshold: float) -> Verdict:
    if "grad_qkv" in facts.draws:
        return Verdict("one matrix makes queries, keys and values, and its gradient is not split", NOT_APPLICABLE)
    if "grad_query" not in facts.draws:
        return NO_GRADIENTS
    query, key, value, output = (facts.draws[f"grad_{kind}"] for kind in ATTENTION)
    total = query + key + value + output
    if not total.any():
        return Verdict("attention receives no gradient at all", NOT_APPLICABLE)
    share = ratio(query + key, total, 1.0)
    medians = np.median(share, axis=0)
    worst = int(np.argmin(medians))
    text = (
        f"in block {worst + 1} queries and keys receive {medians[worst]:.2g} of the squared gradient of attention's "
        f"matrices; gradient over weight is {_sizes(facts, worst, ('query', 'value'))}"
    )
    return compared(text, below, share[:, worst], threshold)


def _sizes(facts: RuleInput, block: int, kinds: tuple[str, ...]) -> str:
    """Of some kinds of weights, √(gradient²/weight²)."""
    ratios = [(kind, facts.draws.get(f"grad_{kind}_ratio")) for kind in kinds]
    said = [f"{np.sqrt(np.median(a[:, block])):.2g} ({kind})" for kind, a in ratios if a is not None]
    return ", ".join(said) or "not defined"


@rule(
    "dominance",
    "one kind of weight has more than {threshold} of the squared gradient of all",
    0.9,
    "one kind of weight gets {value} of the squared gradient",
    "Clipping by the norm of all gradients then depends on that kind alone, and so does the first step of plain "
    "gradient descent: all others hardly move.",
    "Clip gradients by group, or give that kind of weight its own learning rate. This rule is about SGD and "
    "about clipping by the global norm.",
)
def _dominant(facts: RuleInput, threshold: float) -> Verdict:
    draws = {kind: facts.draws[f"grad_{kind}"] for kind in KINDS if f"grad_{kind}" in facts.draws}
    if not draws:
        return NO_GRADIENTS
    sums = {kind: each.reshape(len(each), -1).sum(axis=1) for kind, each in draws.items()}  # over all blocks
    total: Floats = np.sum(list(sums.values()), axis=0)
    if not total.any():
        return Verdict("no weight receives a gradient", NOT_APPLICABLE)
    shares = {kind: ratio(each, total, 0.0) for kind, each in sums.items()}
    first, second = sorted(shares, key=lambda kind: -float(np.median(shares[kind])))[:2]
    middle = float(np.median(shares[first]))
    text = (
        f"of the squared gradient of all weights {middle:.2g} is that of one kind ({first}), "
        f"{np.median(shares[second]):.2g} of the next ({second})"
    )
    return compared(text, above, shares[first], threshold)


@rule(
    "load",
    "in some block the busiest expert has more than {threshold} times its even share of the tokens",
    2.0,
    "the busiest expert gets ×{value} its even share",
    "The capacity of an expert is mostly one or two even shares: what is beyond is dropped, or waited for by all.",
    "Add a load-balancing loss, lower the std of the router, or raise the capacity factor.",
)
def _load(facts: RuleInput, threshold: float) -> Verdict:
    if "largest_load" not in facts.draws:
        return Verdict("there are no experts", NOT_APPLICABLE)
    load = facts.draws["largest_load"]
    medians = np.median(load, axis=0)
    worst = int(np.argmax(medians))
    text = (
        f"in block {worst + 1} the busiest expert has {medians[worst]:.3g} times its even share of the tokens, the "
        f"idlest {np.median(facts.draws['least_load'][:, worst]):.3g} times"
    )
    return compared(text, above, load[:, worst], threshold)


def judged(facts: RuleInput) -> tuple[Finding, ...]:
    """A finding for each rule."""
    findings = []
    for rule in RULES:
        said = rule.judge(facts, rule.threshold)
        measured = {**said._asdict(), "threshold": rule.threshold, "tokens": (facts.tokens,), "advice": rule.advice}
        brief = "" if said.value is None else rule.brief.format(value=number(said.value))
        words = rule.name, rule.rule.format(threshold=f"{rule.threshold:,g}"), rule.reason
        findings.append(Finding(*words, **measured, brief=brief))
    return tuple(findings)
