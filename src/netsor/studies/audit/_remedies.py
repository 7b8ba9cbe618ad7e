"""What to change where a rule is flagged: in words, and for a described model as fields
with values.

What helps depends on where the norms are. A norm in front of a branch ignores the size
of the stream, so the matrices that write to the stream decide what is added. A norm
behind a branch ignores the size of these matrices, so what is added has mean square 1,
and only the embeddings can be raised. Where the embeddings themselves are normalised,
their std has no effect.

Factors aim at half of a threshold (in size), because the quantities are only nearly
powers of standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ...models import Transformer
from ._quantities import KINDS

MARGIN = 2.0  # beyond the threshold, in size: quantities are mean squares
GRADIENT_MARGIN = 8.0  # gradients spread over decades
SMALLEST_REST = 1e-6  # of a sum: the rest of it may be rounding errors
# orders with norms before, and behind, the branches
BEFORE, BEHIND = ("pre", "parallel"), ("sandwich", "after")
# others: std_KIND
STDS = {
    "query": "std_q",
    "key": "std_k",
    "value": "std_v",
    "output": "std_o",
    "head": "std_logits",
}


class Advice(NamedTuple):
    """What to change."""

    words: str
    # fields of the model, with their new values; empty: words alone
    changes: Mapping[str, Any] = {}


class Flagged(NamedTuple):
    """A rule that flags a model."""

    model: Transformer
    draws: Mapping[str, Floats]
    value: float
    threshold: float

    @property
    def factor(self) -> float:
        """The factor (above 1) by which a std must change so that a mean square gets to
        the right side of the threshold: √(value/threshold) or its inverse, times
        MARGIN.
        """
        high = max(self.value, self.threshold)
        low = max(min(self.value, self.threshold), 1e-30)
        return MARGIN * math.sqrt(high / low)

    @property
    def raises_embeddings(self) -> bool:
        """Whether larger embeddings are a larger part of the stream, and larger
        matrices no larger part.
        """
        return self.model.order not in BEFORE and not self.model.input_norm


def _multiplied(
    model: Transformer, names: tuple[str, ...], factor: float
) -> dict[str, float]:
    """New values of these fields of the model: each times a factor; fields that are 0
    are left out.
    """
    changes = {}
    for name in names:
        value = getattr(model, name)
        if value:
            changes[name] = value * factor
    return changes


def _writing(model: Transformer, factor: float) -> dict[str, float]:
    """New values of the fields that scale what the branches write to the stream: each
    times a factor.
    """
    return _multiplied(model, ("std_o", "std_out", "bias_out"), factor)


def _embedded(model: Transformer, factor: float) -> dict[str, float]:
    """New values of the fields that scale what the stream begins with: each times a
    factor. Tied embeddings are scaled behind the matrix, so logits keep their size.
    """
    names = []
    if model.positions == "learned":
        names.append("std_position")
    if model.std_type:
        names.append("std_type")
    if model.tied:
        return {
            "embedding_scale": model.embedding_scale * factor,
            **_multiplied(model, tuple(names), factor),
        }
    return _multiplied(model, ("std_embedding", *names), factor)


WRITE_LESS = (
    "Lower the std of the matrices that write to the stream (GPT-2 multiplies it by"
    " 1/√(2 · layers)): norms before the branches do not depend on the size of the"
    " stream"
)
EMBED_MORE = (
    "Raise the std of the embeddings (if logits are tied to them, multiply the"
    " embeddings by a factor): norms behind the branches, or behind the sums, undo any"
    " other std"
)
NORMS_BEFORE = (
    "Put the norms before the branches, and lower the std of the matrices that write to"
    " the stream"
)


def growth(flagged: Flagged) -> Advice:
    """Write less to the stream, or embed more, depending on where the norms are; see
    the text at the top.
    """
    model = flagged.model
    if model.order in BEFORE:
        return Advice(WRITE_LESS, _writing(model, 1 / flagged.factor))
    if flagged.raises_embeddings:
        return Advice(EMBED_MORE, _embedded(model, flagged.factor))
    return Advice(NORMS_BEFORE, {"order": "pre", **_writing(model, 1 / flagged.factor)})


def branches(flagged: Flagged) -> Advice:
    """Multiply the std of the last matrix of the weaker branch by a factor. It is that
    for which the blocks with the smallest and the largest odds, attention : MLP, become
    equally far from 1 : 1.
    """
    model = flagged.model
    draws = flagged.draws
    attention = draws["attention_share"] + draws.get("cross_share", np.zeros(1))
    of_attention = np.median(attention, axis=0)
    of_mlp = np.median(draws["mlp_share"], axis=0)
    words = "Give the matrices of the branch that adds nothing a std above 0"
    if not of_attention.all():
        return Advice(words, {"std_o": model.std_out})
    if not of_mlp.all():
        return Advice(words, {"std_out": model.std_o})
    odds = of_attention / of_mlp  # (blocks,)
    # the odds are of mean squares, so f² multiplies them: f⁴ · min · max = 1
    factor = float((odds.min() * odds.max()) ** -0.25)
    names: tuple[str, ...]
    if factor > 1:
        weaker = "attention"
        names = ("std_o",)
    else:
        weaker = "the MLP"
        names = ("std_out", "bias_out")
    words = (
        f"Raise the std of the last matrix of the weaker branch, {weaker}, or lower"
        " that of the other"
    )
    return Advice(words, _multiplied(model, names, max(factor, 1 / factor)))


def rank(flagged: Flagged) -> Advice:
    """Make the branches smaller beside the embeddings, or the embeddings larger. Each
    of the 2L branches adds to what tokens share: the sum should be small beside what
    they differ in.
    """
    model = flagged.model
    draws = flagged.draws
    if model.order == "post":
        # norms hide the growth of the stream; the odds of a branch in its sum show it
        odds = []
        for name in ("attention_share", "mlp_share"):
            share = np.median(draws[name], axis=0)
            odds.append(float((share / np.maximum(1 - share, SMALLEST_REST)).max()))
        stream_growth = max(odds)
    else:
        largest = float(np.median(draws["mean_square"], axis=0).max())
        embedding = float(np.median(draws["input_mean_square"]))
        stream_growth = largest / embedding if embedding else 1.0
    factor = MARGIN * math.sqrt(2 * model.layers * max(1.0, stream_growth))
    if model.order not in BEHIND:
        words = (
            "Lower the std of the matrices that write to the stream, so that tokens"
            " stay apart"
        )
        return Advice(words, _writing(model, 1 / factor))
    if flagged.raises_embeddings:
        return Advice(EMBED_MORE, _embedded(model, factor))
    return Advice(NORMS_BEFORE, {"order": "pre", **_writing(model, 1 / factor)})


def entropy(flagged: Flagged) -> Advice:
    """Lower what the scores are proportional to until their standard deviation is below
    1: such scores leave most of the entropy.
    """
    model = flagged.model
    std = max(1.0, float(np.median(flagged.draws["score_std"], axis=0).max()))
    if model.positions == "alibi" and std == 1.0:
        words = (
            "The biases of ALiBi alone choose so much, whatever the std of the"
            " matrices: take other positions"
        )
        return Advice(words, {"positions": "none"})
    changes: dict[str, Any] = {}
    if model.positions == "relative" and model.std_relative > 1:
        changes["std_relative"] = model.std_relative / std
    if not model.qk_norm:
        words = (
            "Lower the std of the query and key matrices, or normalise queries and keys"
            " (QK-norm)"
        )
        changes |= _multiplied(model, ("std_q", "std_k"), (MARGIN * std) ** -0.5)
        return Advice(words, changes)
    scale = model.d**-0.5 if model.score_scale is None else model.score_scale
    words = (
        "Lower the factor of the scores: queries and keys are normalised, so the std of"
        " their matrices has no effect"
    )
    return Advice(words, changes | {"score_scale": scale / (MARGIN * std)})


def loss(flagged: Flagged) -> Advice:
    """Lower the std of the output matrix until logits have a standard deviation of at
    most 1, where they cost half a nat.
    """
    model = flagged.model
    factor = 1 / max(MARGIN, float(np.median(flagged.draws["logit_std"])))
    if model.tied:
        words = (
            "Lower the std of the embeddings, to which the output matrix is tied, or"
            " multiply the logits by a factor"
        )
        return Advice(words, _multiplied(model, ("std_embedding",), factor))
    return Advice(
        "Lower the std of the output matrix",
        _multiplied(model, ("std_logits",), factor),
    )


def limit(_: Flagged) -> Advice:
    """Words alone: no field brings the limit nearer."""
    words = (
        "Do not describe this model by its infinite-width limit; read the numbers at"
        " its own widths (actual)"
    )
    return Advice(words)


def vanishing(flagged: Flagged) -> Advice:
    """Put the norms before the branches, unless they are there."""
    return Advice(
        "Put the norms before the branches (pre-norm). This rule is about SGD: the size"
        " of Adam's updates does not depend on that of the gradient, as long as the"
        " gradient is above eps",
        {} if flagged.model.order == "pre" else {"order": "pre"},
    )


def exploding(flagged: Flagged) -> Advice:
    """As for a stream that grows, with a larger margin: the gradient through a norm is
    inversely proportional to the size of the stream, so it is large where that
    is small.
    """
    remedy = growth(flagged._replace(value=flagged.value * GRADIENT_MARGIN**2))
    sgd = (
        "This rule is about SGD: with Adam, clip gradients by group rather than by"
        " their global norm"
    )
    return Advice(f"{remedy.words}. {sgd}", remedy.changes)


def scores(flagged: Flagged) -> Advice:
    """Enlarge the gradients of queries and keys relative to those of values and
    outputs.

    The gradient of a query is proportional to the key, the value and the output, so
    larger stds of all these matrices enlarge it more than the other gradients. Where a
    norm follows a matrix, the gradient of that matrix falls with its std instead.
    """
    model = flagged.model
    factor = flagged._replace(value=flagged.value / GRADIENT_MARGIN**2).factor
    sgd = (
        "or give queries and keys a larger learning rate. This rule is about SGD:"
        " Adam's updates do not depend on it"
    )
    if model.order in BEHIND and model.qk_norm:
        words = (
            "Raise the std of the value and output matrices, whose product is"
            f" normalised, {sgd}"
        )
        return Advice(words, _multiplied(model, ("std_v", "std_o"), factor))
    if model.qk_norm:
        words = (
            f"Lower the std of the query and key matrices, which are normalised, {sgd}"
        )
        return Advice(words, _multiplied(model, ("std_q", "std_k"), 1 / factor))
    std = float(np.median(flagged.draws["score_std"], axis=0).max())
    # the factor of queries and keys with which scores have standard deviation 1
    most = max(1.0, std**-0.5) if std else factor
    changes = _multiplied(model, ("std_q", "std_k"), min(factor, most))
    if factor > most:
        changes |= _multiplied(model, ("std_v", "std_o"), factor / most)
    words = (
        "Raise the std of the matrices of attention, until scores have std 1 those of"
        f" queries and keys, {sgd}"
    )
    return Advice(words, changes)


def dominance(flagged: Flagged) -> Advice:
    """Raise the std of the dominating kind of weight: that enlarges the gradients of
    all matrices that it is multiplied with, and not its own.
    """
    model = flagged.model
    medians: dict[str, float] = {}  # of the squared gradients of all blocks
    for kind in KINDS:
        if f"grad_{kind}" in flagged.draws:
            squares = flagged.draws[f"grad_{kind}"]
            sums = squares.reshape(len(squares), -1).sum(axis=1)
            medians[kind] = float(np.median(sums))
    kind = max(medians, key=medians.__getitem__)
    factor = MARGIN * math.sqrt(flagged.value / max(1 - flagged.value, 1e-12))
    names = [STDS.get(kind, f"std_{kind}")]
    if kind == "embedding" and model.positions == "learned" and not model.tied:
        names.append("std_position")
    words = (
        f"Raise the std of this kind of weight ({kind}), which enlarges the gradients"
        " of the others; or clip gradients by group, or give it its own learning rate."
        " This rule is about SGD and about clipping by the global norm"
    )
    return Advice(words, _multiplied(model, tuple(names), factor))


def load(flagged: Flagged) -> Advice:
    """Choose more experts for each token. An expert gets at most every token, which is
    E/k even shares with k of E experts: k = E/threshold is enough.
    """
    model = flagged.model
    enough = math.ceil((model.experts or 1) / flagged.threshold)
    words = (
        f"Add a load-balancing loss, raise the capacity factor, or choose {enough}"
        " experts for each token: at most all tokens choose the same. The std of the"
        " router does not matter: its scale does not change which are chosen"
    )
    return Advice(words, {"experts_per_token": enough})


EITHER = (
    "Where norms are before the branches, lower the std of the matrices that write to"
    " the stream; where they are behind the branches or the sums, raise that of the"
    " embeddings"
)
SGD = "This rule is about SGD"


def with_example(advice: Advice) -> Advice:
    """The advice as sentences, with its changes as one types them."""
    words = f"{advice.words}."
    if advice.changes:
        words = f"{advice.words}. For example: {options_of(advice.changes)}."
    return advice._replace(words=words)


def options_of(changes: Mapping[str, Any]) -> str:
    """The changes as options of the command line: "--set std_q=0.02 --set …"."""
    options = []
    for name, value in changes.items():
        text = f"{value:.3g}" if isinstance(value, float) else f"{value}"
        options.append(f"--set {name}={text}")
    return " ".join(options)
