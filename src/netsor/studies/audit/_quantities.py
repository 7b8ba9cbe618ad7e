"""What an audit measures: the words for each quantity, in tables, figures and files."""

from __future__ import annotations

from typing import NamedTuple


class Quantity(NamedTuple):
    """One quantity of a block, or of the output."""

    name: str  # in files, and in the arrays
    title: str
    meaning: str
    log: bool = False  # drawn on a logarithmic axis, if it varies much
    digits: int = 3


BLOCKS = (
    Quantity(
        "mean_square",
        "mean square of the stream",
        "of the residual stream after the block, over tokens and coordinates",
        log=True,
    ),
    Quantity(
        "attention_share",
        "attention's share",
        "the mean square of what attention adds, as a share of the sum of the mean squares of the stream and of all "
        "that is added to it in the block (products between them are left out)",
    ),
    Quantity(
        "cross_share",
        "cross-attention's share",
        "the same of attention to the encoder; 0 in the encoder itself",
    ),
    Quantity(
        "mlp_share",
        "MLP's share",
        "the mean square of what the MLP adds, as a share of that sum",
    ),
    Quantity(
        "cosine",
        "cosine of tokens",
        "between the stream's vectors of two tokens, mean over pairs; 0 if one of the vectors is 0, as padding may be",
    ),
    Quantity(
        "effective_rank",
        "effective rank",
        "exp of the entropy of the eigenvalues of the tokens' Gram matrix, divided by their sum: how many directions "
        "the tokens fill, a longer vector counting for more",
    ),
    Quantity(
        "score_std",
        "standard deviation of scores",
        "of what the softmax is given, over heads and pairs of tokens",
        log=True,
    ),
    Quantity(
        "score_max",
        "largest score",
        "over heads and pairs of tokens",
    ),
    Quantity(
        "entropy",
        "entropy of attention",
        "of a row of weights, over that of uniform weights, mean over heads and tokens",
    ),
    Quantity(
        "largest_weight",
        "largest weight",
        "of attention, over heads and the rows of tokens that have a choice",
    ),
)
FINAL = (
    Quantity("logit_std", "standard deviation of logits", "over the vocabulary and the tokens that predict one"),
    Quantity(
        "loss",
        "loss of the first step",
        "mean cross-entropy in nats: of the next token, of a token itself where nothing is masked, of a class",
        digits=4,
    ),
    Quantity(
        "max_probability",
        "largest probability",
        "that the untrained model gives to any one token, at a token that predicts one",
    ),
)
EVERY = {quantity.name: quantity for quantity in (*BLOCKS, *FINAL)}
