"""The data of the paper's figures: configurations of its layer, their trials, and which
figure needs which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ... import language as ns
from ...laws import HeadSum
from ...programs._decorator import program
from ...programs._program import Program
from ._layer import layer

WIDTHS = (16, 64, 256, 1024)
HEAD_DIM = 64  # head dimension of low-rank attention, in the paper


@dataclass(frozen=True)
class Case:
    """One configuration of the layer at one width.

    The output is one token, or the score p_11 if `score` is set.
    """

    tokens: int = 4
    heads: int = 2
    activation: str = "clip"
    width: float = math.inf
    head_dim: float | None = None  # the width, if None
    scaling: str = "sqrt"
    score: bool = False

    @property
    def program(self) -> Program:
        """The program whose law it is."""
        if self.score:
            return first_score(tokens=self.tokens, scaling=self.scaling)
        return layer(
            tokens=self.tokens,
            heads=self.heads,
            activation=self.activation,
            low_rank=self.head_dim is not None,
        )

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        if self.head_dim is None:
            return {"n": self.width}
        return {"n": self.width, "d": self.head_dim}

    @property
    def limit(self) -> Case:
        """The same layer at infinite width; its head dimension does not matter."""
        return replace(self, width=math.inf, head_dim=None)

    @property
    def samples(self) -> int:
        """The draws of a trial in the paper."""
        return 100_000 if self.activation == "relu" else 50_000


@program
def first_score(tokens: int = 4, scaling: str = "sqrt") -> ns.Scalar:
    """The score p_11 of one head of the layer, over √n or over n."""
    n = ns.Width("n")
    x = ns.clip(ns.weight(n, n, batch=tokens) @ ns.gaussian(n), 100.0)
    q = ns.weight(n, n) @ x
    k = ns.weight(n, n) @ x
    scores = ns.dot(q, k) if scaling == "sqrt" else ns.mean_dot(q, k)
    return scores[0, 0]


def limit_law(case: Case) -> HeadSum:
    """The law of a case at infinite width, to many digits."""
    return _limit_law(case.limit)


@lru_cache(maxsize=32)
def _limit_law(limit: Case) -> HeadSum:
    """The law of a limit, kept for all cases that have it."""
    law = limit.program.law(n=math.inf)
    assert isinstance(law, HeadSum)
    return law


@dataclass(frozen=True)
class Figure:
    """One panel of the paper."""

    name: str
    kind: str  # of picture: density, kl, scores or heads
    title: str
    cases: tuple[Case, ...]
    parameter: str  # what differs between the cases: n, H or scaling


GROUPS = {
    "all": ("1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b", "5a", "5b", "heads"),
    **{number: (f"{number}a", f"{number}b") for number in "12345"},
    "exp1": ("1a", "1b", "2b", "heads"),
    "exp2": ("2a",),
    "exp3": ("3a", "3b"),
    "exp4": ("5a", "5b"),
}
NAMES = GROUPS["all"]


def figures(tokens: int = 16) -> dict[str, Figure]:
    """All figures by name; `tokens` is the larger number of tokens of figure 4."""
    widths = tuple(Case(width=n) for n in WIDTHS)
    more_tokens = tuple(Case(tokens=tokens, width=n) for n in WIDTHS)
    relu = tuple(Case(activation="relu", width=n) for n in WIDTHS)
    low_rank = tuple(
        Case(heads=h, width=HEAD_DIM * h, head_dim=HEAD_DIM) for h in (1, 4, 16)
    )
    few_and_many = (Case(heads=1, width=256), Case(heads=256, width=256))
    scores = (
        Case(width=256, scaling="sqrt", score=True),
        Case(width=256, scaling="linear", score=True),
    )
    output = "Output of the attention layer"
    limit = "Width n against the limit"
    low_rank_title = "Low-rank attention, head dimension 64, n = 64 H"
    heads_title = "One head and 256 heads at width 256"
    sweep_title = "From few heads to many, at width 256"
    panels = [
        Figure("1a", "density", f"{output}, H = 2, s = 4", widths, "n"),
        Figure("1b", "kl", f"{limit}, H = 2, s = 4", widths, "n"),
        Figure("2a", "scores", "One similarity score at width 256", scores, "scaling"),
        Figure("2b", "density", heads_title, few_and_many, "H"),
        Figure("3a", "density", low_rank_title, low_rank, "H"),
        Figure("3b", "kl", "Low-rank attention against the limit", low_rank, "H"),
        Figure("4a", "density", f"{output}, s = {tokens}", more_tokens, "n"),
        Figure("4b", "kl", f"{limit}, s = {tokens}", more_tokens, "n"),
        Figure("5a", "density", f"{output}, ReLU", relu, "n"),
        Figure("5b", "kl", f"{limit}, ReLU", relu, "n"),
        Figure("heads", "heads", sweep_title, few_and_many, "H"),
    ]
    return {figure.name: figure for figure in panels}
