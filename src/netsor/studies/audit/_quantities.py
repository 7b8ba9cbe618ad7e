"""The quantities of an audit, and their names in tables, figures and files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Quantity(NamedTuple):
    """One quantity of a block, or of the output."""

    name: str  # in files, and in the arrays
    title: str
    meaning: str
    log: bool = False  # drawn on a logarithmic axis, if it varies much
    digits: int = 3
    # of weight, for those that are drawn together, a curve for each kind
    kind: str = ""


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


# besides gradients of kinds of weights
LOG = ("mean_square", "score_std", "grad", "grad_ratio")


def _quantities(**words: tuple[str, str]) -> tuple[Quantity, ...]:
    """Quantities by their names, each with its title and its meaning."""
    return tuple(
        Quantity(name, *said, name in LOG, 4 if name == "loss" else 3)
        for name, said in words.items()
    )


def _gradients(*kinds: str) -> Iterator[Quantity]:
    """The squared gradient of each kind of weight, and its ratio to the squared
    weights.
    """
    for kind in kinds:
        square, ratio = (
            f"|∂L/∂W|² of the {KINDS[kind]}, over all uses of each",
            f"gradient²/weight², {kind}",
        )
        yield Quantity(
            f"grad_{kind}", f"gradient², {kind}", square, log=True, kind=kind
        )
        yield Quantity(
            f"grad_{kind}_ratio",
            ratio,
            f"{square}, over the mean of |W|²",
            log=True,
            kind=kind,
        )


FORWARD = _quantities(
    mean_square=(
        "mean square of the stream",
        "of the residual stream after the block, over tokens and coordinates",
    ),
    attention_share=(
        "attention's share",
        (
            "the mean square of what attention adds, over the sum of those of the"
            " stream and of all that the block adds"
        ),
    ),
    cross_share=(
        "cross-attention's share",
        "the same of attention to the encoder; 0 in the encoder itself",
    ),
    mlp_share=(
        "MLP's share",
        "the mean square that the MLP adds, as a share of that sum",
    ),
    cosine=(
        "cosine of tokens",
        (
            "between the stream's vectors of two tokens, mean over pairs; 0 if one of"
            " them is 0"
        ),
    ),
    effective_rank=(
        "effective rank",
        (
            "exp of the entropy of the normalised eigenvalues of the tokens' Gram"
            " matrix: how many directions they fill"
        ),
    ),
    score_std=(
        "standard deviation of scores",
        "of what the softmax is given, over heads and pairs of tokens",
    ),
    score_max=("largest score", "over heads and pairs of tokens"),
    entropy=(
        "entropy of attention",
        "of a row of weights, over that of uniform weights, mean over heads and tokens",
    ),
    largest_weight=(
        "largest weight",
        "of attention, over heads and the rows of tokens that have a choice",
    ),
)
# of mixtures of experts
ROUTING = _quantities(
    largest_load=(
        "load of the busiest expert",
        "the tokens that it gets, over those of an even load",
    ),
    least_load=("load of the idlest expert", "likewise; 0 if it gets no token"),
)
# of L, the loss of the first step, or a random readout if there are no logits
BACKWARD = (
    Quantity(
        "grad_mean_square",
        "mean square of its gradient",
        "of ∂L/∂x, x the stream after the block",
        log=True,
    ),
    *_gradients(*(kind for kind in KINDS if kind not in END_KINDS)),
)
BLOCKS = (*FORWARD, *ROUTING, *BACKWARD)
TOGETHER = _quantities(  # figures with a curve for each kind
    grad=("squared gradients", "|∂L/∂W|² of the matrices of the block, by kind"),
    grad_ratio=(
        "squared gradients over squared weights",
        "|∂L/∂W|² of these over the mean of |W|², by kind",
    ),
)
FINAL = (
    *_quantities(
        logit_std=(
            "standard deviation of logits",
            "over the vocabulary and the tokens that predict one",
        ),
        loss=(
            "loss of the first step",
            (
                "mean cross-entropy in nats of the next token, the token itself, or a"
                " class"
            ),
        ),
        max_probability=(
            "largest probability",
            "that the untrained model gives to any one token",
        ),
        grad_input=(
            "gradient at the embeddings",
            "mean square of ∂L/∂x, x the stream before the first block",
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


def join_words(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
