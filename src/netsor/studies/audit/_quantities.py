"""The quantities of an audit, and their names in tables, figures and files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Quantity(NamedTuple):
    """One quantity of a block, or of the output."""

    name: str  # in files, and in the arrays
    title: str
    meaning: str  # a caption: stands without the title
    log: bool = False  # drawn on a logarithmic axis, if it varies much
    digits: int = 3
    kind: str = ""  # of weight: the kinds share a figure, with a curve each


KINDS = {  # of weights, and which they are
    "query": "query matrices",
    "key": "key matrices",
    "value": "value matrices",
    "qkv": "matrices of queries, keys and values in one",
    "output": "output matrices of attention",
    "router": "matrix of the router",
    "in": "first matrix of the MLP",
    "gate": "gate matrix of the MLP",
    "out": "last matrix of the MLP",
    "embedding": "embedding, and of the logits where these are tied to it",
    "head": "matrix of the logits",
}
END_KINDS = ("embedding", "head")  # those outside of blocks


# quantities with logarithmic axes, besides gradients of kinds of weights
LOG = ("mean_square", "score_std", "grad", "grad_ratio")


def _quantities(**texts: tuple[str, str]) -> tuple[Quantity, ...]:
    """Quantities by their names, each with its title and its meaning."""
    quantities = []
    for name, (title, meaning) in texts.items():
        quantity = Quantity(
            name=name,
            title=title,
            meaning=meaning,
            log=name in LOG,
            digits=4 if name == "loss" else 3,
        )
        quantities.append(quantity)
    return tuple(quantities)


def _gradients(*kinds: str) -> Iterator[Quantity]:
    """The squared gradient of each kind of weight, and its ratio to the squared
    weights.
    """
    for kind in kinds:
        square = (
            f"squared gradient |∂L/∂W|² of the {KINDS[kind]}, over all uses of each"
        )
        yield Quantity(
            name=f"grad_{kind}",
            title=f"gradient², {kind}",
            meaning=square,
            log=True,
            kind=kind,
        )
        yield Quantity(
            name=f"grad_{kind}_ratio",
            title=f"gradient²/weight², {kind}",
            meaning=f"{square}, divided by the mean of |W|²",
            log=True,
            kind=kind,
        )


FORWARD = _quantities(
    mean_square=(
        "mean square of the stream",
        (
            "mean square of the residual stream after each block, averaged over tokens"
            " and coordinates"
        ),
    ),
    attention_share=(
        "attention's share",
        (
            "mean square of attention's output, as a share of the sum of the mean"
            " squares of the stream and of everything that the block adds to it"
        ),
    ),
    cross_share=(
        "cross-attention's share",
        (
            "mean square of the output of attention to the encoder, as a share of the"
            " sum of the mean squares of the stream and of everything that the block"
            " adds to it; 0 in the encoder itself"
        ),
    ),
    mlp_share=(
        "MLP's share",
        (
            "mean square of the MLP's output, as a share of the sum of the mean squares"
            " of the stream and of everything that the block adds to it"
        ),
    ),
    cosine=(
        "cosine of tokens",
        (
            "cosine between the stream vectors of two tokens, averaged over pairs; 0 if"
            " either vector is 0"
        ),
    ),
    effective_rank=(
        "effective rank",
        (
            "number of directions that the tokens span: exp of the entropy of the"
            " normalised eigenvalues of their Gram matrix"
        ),
    ),
    score_std=(
        "standard deviation of scores",
        (
            "standard deviation of the inputs of the softmax, over heads and pairs of"
            " tokens"
        ),
    ),
    score_max=(
        "largest score",
        "largest input of the softmax, over heads and pairs of tokens",
    ),
    entropy=(
        "entropy of attention",
        (
            "entropy of a row of attention weights, relative to uniform weights,"
            " averaged over heads and tokens"
        ),
    ),
    largest_weight=(
        "largest weight",
        (
            "largest attention weight over all heads, ignoring rows with only one"
            " visible token"
        ),
    ),
)
# of mixtures of experts
ROUTING = _quantities(
    largest_load=(
        "load of the busiest expert",
        "number of tokens routed to the busiest expert, relative to an even load",
    ),
    least_load=(
        "load of the idlest expert",
        "number of tokens routed to the idlest expert, relative to an even load",
    ),
)
# of L, the loss of the first step, or a random readout if there are no logits
BACKWARD = (
    Quantity(
        "grad_mean_square",
        "mean square of its gradient",
        "mean square of ∂L/∂x, where x is the residual stream after each block",
        log=True,
    ),
    *_gradients(*(kind for kind in KINDS if kind not in END_KINDS)),
)
BLOCKS = (*FORWARD, *ROUTING, *BACKWARD)
TOGETHER = _quantities(  # figures with a curve for each kind
    grad=(
        "squared gradients",
        "squared gradients |∂L/∂W|² of the matrices of each block, by kind",
    ),
    grad_ratio=(
        "squared gradients over squared weights",
        (
            "squared gradients |∂L/∂W|² of the matrices of each block, divided by the"
            " mean of |W|², by kind"
        ),
    ),
)
FINAL = (
    *_quantities(
        logit_std=(
            "standard deviation of logits",
            (
                "standard deviation of the logits, over the vocabulary and all"
                " predicting positions"
            ),
        ),
        loss=(
            "loss of the first step",
            (
                "mean cross-entropy, in nats, of the next token, the token itself, or"
                " the class"
            ),
        ),
        max_probability=(
            "largest probability",
            "highest probability the untrained model assigns to any token",
        ),
        grad_input=(
            "gradient at the embeddings",
            (
                "mean square of ∂L/∂x, where x is the residual stream before the first"
                " block"
            ),
        ),
    ),
    *_gradients(*END_KINDS),
)
EVERY = {quantity.name: quantity for quantity in (*BLOCKS, *TOGETHER, *FINAL)}


def at_embedding(name: str) -> str:
    """The array that has a quantity of the blocks at the embedding."""
    return "grad_input" if name == "grad_mean_square" else f"input_{name}"


def number(value: float) -> str:
    """Three digits, and plain where that is short: 56,600."""
    if not 1000 <= value < 1e15:
        return f"{value:.3g}"
    size = 10 ** (math.floor(math.log10(value)) - 2)
    return f"{round(value / size) * size:,}"


def amount(value: float, percent: bool) -> str:
    """Three digits, as a number or in per cent: "56,600" or "13.6 %"."""
    return f"{number(100 * value)} %" if percent else number(value)


def join_words(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"
